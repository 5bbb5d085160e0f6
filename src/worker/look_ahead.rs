//! Reads a partition ahead of the worker, to know which of its records later ones supersede: by a consumer of its own, outside any
//! group. Only the last whole write of each document is kept, by offset.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, FutureExt};
use rdkafka::ClientConfig;
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, KafkaResult};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::record::Record;
use super::reread::start_at;
use crate::core::decode::Decoder;
use crate::core::look_ahead::{LookAhead, can_be_worth_it};
use crate::core::schemas::Schemas;
use crate::core::write::Body;
use crate::io::kafka::{client_config, plain_consumer};
use crate::support::config::Config;

const POLL: Duration = Duration::from_millis(100);
const ENDS_TIMEOUT: Duration = Duration::from_secs(10);
/// How long nothing may come while there is more.
const MAX_SILENCE: Duration = Duration::from_secs(20);

/// Where a partition can be read ahead.
pub trait AheadReader: Send + Sync {
    /// Whether so much waits from this offset on that a read can be worth it, if it keeps so many documents; or why that is unknown.
    fn is_far_behind(&self, partition: i32, from: i64, documents: usize) -> Asking;

    /// Once no other partition is read: reads from where this begins to the end, or as far as it may; or says why not. Dropping the
    /// future abandons the read.
    fn read(&self, partition: i32, into: LookAhead) -> Reading;
}

/// A question under way.
pub type Asking = BoxFuture<'static, Result<bool, String>>;

/// A read that waits for its turn, or is under way.
pub type Reading = BoxFuture<'static, Result<LookAhead, String>>;

/// Reads Kafka, one partition at a time.
pub struct KafkaAhead {
    topic: Arc<str>,
    client: ClientConfig,
    decoder: Decoder,
    max_records: u64,
    /// Whose turn it is to ask.
    question: Arc<Semaphore>,
    /// Whose turn it is to be read.
    turn: Arc<Semaphore>,
}

impl KafkaAhead {
    /// For the configured topic.
    pub fn new(config: &Config, decoder: Decoder) -> Self {
        let max_records = config.memory.look_ahead;
        let mut client = client_config(&config.consumer_properties());
        client.set("statistics.interval.ms", "0").set("auto.offset.reset", "earliest");
        // One partition at a time: large fetches hold little memory.
        client.set("fetch.message.max.bytes", "1048576").set("queued.max.messages.kbytes", "4096");
        let topic = config.kafka.topic.as_str().into();
        let one = || Arc::new(Semaphore::new(1));
        Self { topic, client, decoder, max_records, question: one(), turn: one() }
    }
}

impl AheadReader for KafkaAhead {
    fn is_far_behind(&self, partition: i32, from: i64, documents: usize) -> Asking {
        let (topic, client, max_records) = (self.topic.clone(), self.client.clone(), self.max_records);
        let question = self.question.clone();
        let asking = async move {
            let _question = question.acquire_owned().await.map_err(|error| error.to_string())?;
            let end = tokio::task::spawn_blocking(move || {
                let consumer = plain_consumer(&client)?;
                consumer.fetch_watermarks(&topic, partition, ENDS_TIMEOUT).map(|(_, end)| end)
            });
            let end = end.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
            let waiting = u64::try_from(end - from).unwrap_or(0);
            Ok(can_be_worth_it(waiting, documents, max_records))
        };
        asking.boxed()
    }

    fn read(&self, partition: i32, into: LookAhead) -> Reading {
        let turn = self.turn.clone();
        let (topic, client, decoder) = (self.topic.clone(), self.client.clone(), self.decoder.clone());
        let max_records = self.max_records;
        let reading = async move {
            let _turn = turn.acquire_owned().await.map_err(|error| error.to_string())?;
            let stop = CancellationToken::new();
            let _stop = stop.clone().drop_guard();
            let reading = tokio::task::spawn_blocking(move || {
                read(&client, &decoder, &topic, partition, max_records, into, &stop)
                    .map_err(|error| error.to_string())
            });
            reading.await.unwrap_or_else(|error| Err(error.to_string()))
        };
        reading.boxed()
    }
}

fn read(
    client: &ClientConfig,
    decoder: &Decoder,
    topic: &str,
    partition: i32,
    max_records: u64,
    mut found: LookAhead,
    stop: &CancellationToken,
) -> KafkaResult<LookAhead> {
    let consumer = plain_consumer(client)?;
    let from = found.start();
    start_at(&consumer, topic, partition, from)?;
    // Its records need none.
    let mut schemas = Schemas::new();
    let (mut next, mut records, mut heard, mut trouble) = (from, 0, Instant::now(), None);
    while records < max_records && !found.is_hopeless(records) && !stop.is_cancelled() {
        match consumer.poll(POLL) {
            None => {}
            Some(Err(KafkaError::PartitionEOF(_))) => break,
            Some(Err(error)) => trouble = Some(error),
            Some(Ok(message)) => {
                let record = Record::copy_of(&message);
                (next, heard) = (record.offset + 1, Instant::now());
                records += 1;
                if let Ok(write) = decoder.decode(record.raw(partition), &mut schemas)
                    && matches!(write.body, Body::Index { .. } | Body::Delete)
                {
                    found.found_whole(&write.id, record.offset);
                }
            }
        }
        if heard.elapsed() >= MAX_SILENCE {
            return Err(trouble.unwrap_or(KafkaError::NoMessageReceived));
        }
    }
    found.ended(next);
    Ok(found)
}
