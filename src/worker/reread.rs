//! Reads single records of a partition again: those of a fold that Elasticsearch refused. The poll thread owns the
//! worker's consumer and its position, so this uses a short-lived consumer outside any group, with the same settings.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, FutureExt};
use rdkafka::ClientConfig;
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::{Message, Offset, TopicPartitionList};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::record::Record;
use crate::io::kafka::{PlainConsumer, client_config, plain_consumer};
use crate::support::config::Config;

/// Timeout for all records of one fold.
const TIMEOUT: Duration = Duration::from_secs(20);

const POLL: Duration = Duration::from_millis(100);

/// Maximum bytes of all records of one fold.
const MAX_BYTES: usize = 8 << 20;

/// If the next offset is at most this far ahead, reading goes on to it: a seek takes longer.
const NEAR: i64 = 1_000;

/// Where records can be read once more.
pub trait RecordReader: Send + Sync {
    /// The records at these offsets, ascending, without those gone from the topic; or why they cannot be read. Dropping
    /// the future abandons the read.
    fn read(&self, partition: i32, offsets: Vec<i64>) -> BoxFuture<'static, Result<Vec<Record>, String>>;
}

/// Reads them from Kafka, one fold at a time.
pub struct KafkaReread {
    topic: Arc<str>,
    client: ClientConfig,
    /// Limits concurrent reads. Never closed.
    turn: Arc<Semaphore>,
}

impl KafkaReread {
    /// For the configured topic.
    pub fn new(config: &Config) -> Self {
        let mut client = client_config(&config.consumer_properties());
        client.set("statistics.interval.ms", "0");
        // If the offset was deleted, reading starts at the first record that exists.
        client.set("auto.offset.reset", "earliest");
        Self { topic: config.kafka.topic.as_str().into(), client, turn: Arc::new(Semaphore::new(1)) }
    }
}

impl RecordReader for KafkaReread {
    fn read(&self, partition: i32, offsets: Vec<i64>) -> BoxFuture<'static, Result<Vec<Record>, String>> {
        let (topic, client, turn) = (self.topic.clone(), self.client.clone(), self.turn.clone());
        async move {
            let _turn = turn.acquire().await;
            let stop = CancellationToken::new();
            let _stop = stop.clone().drop_guard();
            let reading =
                tokio::task::spawn_blocking(move || read(&client, &topic, partition, &offsets, &stop));
            reading.await.unwrap_or_else(|error| Err(error.to_string()))
        }
        .boxed()
    }
}

fn read(
    client: &ClientConfig,
    topic: &str,
    partition: i32,
    offsets: &[i64],
    stop: &CancellationToken,
) -> Result<Vec<Record>, String> {
    let began = Instant::now();
    let consumer = plain_consumer(client).map_err(|error| format!("could not create a consumer: {error}"))?;
    let mut records = Vec::with_capacity(offsets.len());
    let mut bytes = 0;
    // The record that came last, and where the consumer is.
    let mut came: Option<Record> = None;
    let mut position = None;
    for &offset in offsets {
        // What was wanted before was gone, and this came in its place.
        match came.take_if(|record| record.offset >= offset) {
            Some(record) if record.offset == offset => {
                bytes += record.bytes();
                records.push(record);
                continue;
            }
            Some(further_on) => {
                came = Some(further_on);
                continue;
            }
            None => {}
        }
        if position.is_none_or(|position| !(position..position + NEAR).contains(&offset)) {
            let from_there = |error| format!("offset {offset} cannot be read: {error}");
            start_at(&consumer, topic, partition, offset).map_err(from_there)?;
        }
        let mut last_error = None;
        loop {
            if stop.is_cancelled() || began.elapsed() >= TIMEOUT {
                let why = last_error.map_or_else(String::new, |error: KafkaError| format!(": {error}"));
                return Err(format!("offset {offset} was not read within {TIMEOUT:?}{why}"));
            }
            match consumer.poll(POLL) {
                None => {}
                Some(Err(KafkaError::PartitionEOF(_))) => {
                    position = None;
                    break;
                }
                Some(Err(error)) => last_error = Some(error),
                Some(Ok(message)) if message.offset() < offset => {}
                Some(Ok(message)) => {
                    position = Some(message.offset() + 1);
                    let record = Record::copy_of(&message);
                    if record.offset == offset {
                        bytes += record.bytes();
                        records.push(record);
                    } else {
                        came = Some(record);
                    }
                    break;
                }
            }
        }
        if bytes > MAX_BYTES {
            return Err(format!("the records exceed {MAX_BYTES} bytes"));
        }
    }
    Ok(records)
}

/// With `assign` and without `subscribe`, the client joins no group.
pub(super) fn start_at(
    consumer: &PlainConsumer,
    topic: &str,
    partition: i32,
    offset: i64,
) -> KafkaResult<()> {
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, partition, Offset::Offset(offset))?;
    consumer.assign(&list)
}
