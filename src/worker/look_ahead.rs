//! Reads a partition ahead of the worker, to know which of its records later ones supersede: by a consumer of its own, outside any
//! group. Only the last whole write of each document is kept, by offset.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, FutureExt};
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, KafkaResult};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::record::Record;
use super::reread::start_at;
use crate::core::decode::Decoder;
use crate::core::look_ahead::LookAhead;
use crate::core::schemas::Schemas;
use crate::core::write::Body;
use crate::io::kafka::{client_config, plain_consumer};
use crate::support::config::Config;

const POLL: Duration = Duration::from_millis(100);
/// How long nothing may come while there is more.
const MAX_SILENCE: Duration = Duration::from_secs(20);

/// Where a partition can be read ahead.
pub trait AheadReader: Send + Sync {
    /// Reads from this offset to the end, or as far as it may, and keeps so many documents; or says why not. Dropping the future
    /// abandons the read. `None`: another partition is read.
    fn read(&self, partition: i32, from: i64, documents: usize) -> Option<Reading>;
}

/// A read under way.
pub type Reading = BoxFuture<'static, Result<LookAhead, String>>;

/// Reads Kafka, one partition at a time.
pub struct KafkaAhead {
    topic: Arc<str>,
    client: ClientConfig,
    decoder: Decoder,
    max_records: u64,
    /// Whose turn it is.
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
        Self { topic, client, decoder, max_records, turn: Arc::new(Semaphore::new(1)) }
    }
}

impl AheadReader for KafkaAhead {
    fn read(&self, partition: i32, from: i64, documents: usize) -> Option<Reading> {
        let turn = self.turn.clone().try_acquire_owned().ok()?;
        let (topic, client, decoder) = (self.topic.clone(), self.client.clone(), self.decoder.clone());
        let max_records = self.max_records;
        let reading = async move {
            let _turn = turn;
            let stop = CancellationToken::new();
            let _stop = stop.clone().drop_guard();
            let reading = tokio::task::spawn_blocking(move || {
                let found = LookAhead::new(from, documents);
                read(&client, &decoder, &topic, (partition, from), max_records, found, &stop)
                    .map_err(|error| error.to_string())
            });
            reading.await.unwrap_or_else(|error| Err(error.to_string()))
        };
        Some(reading.boxed())
    }
}

fn read(
    client: &ClientConfig,
    decoder: &Decoder,
    topic: &str,
    (partition, from): (i32, i64),
    max_records: u64,
    mut found: LookAhead,
    stop: &CancellationToken,
) -> KafkaResult<LookAhead> {
    let consumer = plain_consumer(client)?;
    start_at(&consumer, topic, partition, from)?;
    // Its records need none.
    let mut schemas = Schemas::new();
    let (mut next, mut records, mut heard, mut trouble) = (from, 0, Instant::now(), None);
    while records < max_records && !stop.is_cancelled() {
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
