//! The Kafka side of `geofold send`: settings that geofold's promises need, deliveries counted as they come.
//!
//! Every producer must send a document's key to the same partition: so the partitioner is that of the other producers
//! (`kafka.partitioner`), and a record may name its partition. A later write must not overtake an earlier one that is sent again: so the producer is idempotent.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use rdkafka::client::{Client, ClientContext};
use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use super::{SendError, SendRecord};
use crate::base::headers::OP_HEADER;
use crate::io::kafka::login;

/// Defaults that may be overridden: good throughput, and at most 64 MiB queued for a broker slower than the input.
const DEFAULTS: [(&str, &str); 5] = [
    ("partitioner", "murmur2_random"),
    ("client.id", "geofold-send"),
    ("compression.type", "lz4"),
    ("linger.ms", "20"),
    ("queue.buffering.max.kbytes", "65536"),
];
/// May not.
const REQUIRED: [(&str, &str); 2] = [("acks", "all"), ("enable.idempotence", "true")];

const METADATA_TIMEOUT: Duration = Duration::from_secs(10);
/// A broker that creates topics by itself says "unknown" the first time.
const METADATA_ATTEMPTS: u32 = 3;
const METADATA_PAUSE: Duration = Duration::from_millis(500);
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(10);

/// A record that did not get into the topic.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the record of line {line} was not delivered: {reason}")]
pub struct DeliveryFailure {
    /// The line it came from.
    pub line: u64,
    /// The error of the broker or client.
    pub reason: String,
}

/// Settings of every producer of writes: the given ones, with those that geofold's promises need.
pub(crate) fn settings(properties: &BTreeMap<String, String>) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.extend(DEFAULTS.map(|(key, value)| (key.to_owned(), value.to_owned())));
    config.extend(properties.clone());
    config.extend(REQUIRED.map(|(key, value)| (key.to_owned(), value.to_owned())));
    config
}

/// Checks that the topic exists. Blocks.
pub(crate) fn check_topic(
    client: &Client<impl ClientContext>,
    topic: &str,
    properties: &BTreeMap<String, String>,
) -> Result<(), SendError> {
    let servers = || properties.get("bootstrap.servers").cloned().unwrap_or_default();
    let topic = topic.to_owned();
    for attempt in 1.. {
        let metadata = client
            .fetch_metadata(Some(&topic), METADATA_TIMEOUT)
            .map_err(|source| SendError::Unreachable { servers: servers(), source })?;
        let error = match metadata.topics().iter().find(|found| found.name() == topic) {
            Some(found) => found.error().map(RDKafkaErrorCode::from),
            None => Some(RDKafkaErrorCode::UnknownTopicOrPartition),
        };
        match error {
            None => break,
            Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::LeaderNotAvailable)
                if attempt < METADATA_ATTEMPTS =>
            {
                sleep(METADATA_PAUSE);
            }
            Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
                return Err(SendError::UnknownTopic { topic, servers: servers() });
            }
            Some(error) => return Err(SendError::Topic { topic, reason: error.to_string() }),
        }
    }
    Ok(())
}

/// A producer for one topic that is known to be there.
pub(crate) struct TopicProducer {
    producer: ThreadedProducer<Deliveries>,
    topic: String,
}

impl TopicProducer {
    pub(crate) fn connect(properties: &BTreeMap<String, String>, topic: &str) -> Result<Self, SendError> {
        let producer =
            ThreadedProducer::from_config_and_context(&settings(properties), Deliveries::default())
                .map_err(SendError::Client)?;
        check_topic(producer.client(), topic, properties)?;
        Ok(Self { producer, topic: topic.to_owned() })
    }

    /// Hands the record to the client, for `partition` if one is given, else where its key belongs; waits while its queue is full. `false`: `stop` came first, the record was not
    /// taken. A record that the client refuses counts as refused.
    pub(crate) fn produce(
        &self,
        record: &SendRecord<'_>,
        partition: Option<i32>,
        line: u64,
        stop: &CancellationToken,
    ) -> bool {
        let opaque = usize::try_from(line).unwrap_or(usize::MAX);
        let mut message =
            BaseRecord::<str, str, usize>::with_opaque_to(&self.topic, opaque).key(record.key.as_ref());
        message.partition = partition;
        message.payload = record.value;
        message.headers = record.op.map(|op| {
            OwnedHeaders::new_with_capacity(1).insert(Header { key: OP_HEADER, value: Some(op.as_str()) })
        });
        loop {
            match self.producer.send(message) {
                Ok(()) => return true,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), returned)) => {
                    if stop.is_cancelled() {
                        return false;
                    }
                    message = returned;
                    sleep(QUEUE_FULL_PAUSE);
                }
                Err((error, _)) => {
                    self.deliveries().refuse(line, &error);
                    return true;
                }
            }
        }
    }

    /// Waits until everything is delivered or refused, or for `timeout`. Remaining records are discarded with the producer.
    pub(crate) fn flush(&self, timeout: Duration) {
        if let Err(error) = self.producer.flush(timeout) {
            tracing::warn!(%error, open = self.producer.in_flight_count(), "not everything was acknowledged in time");
        }
    }

    /// The client's fatal error, if any: it delivers nothing more.
    pub(crate) fn fatal_error(&self) -> Option<String> {
        self.producer.client().fatal_error().map(|(code, reason)| format!("{reason} ({code})"))
    }

    pub(crate) fn delivered(&self) -> u64 {
        self.deliveries().delivered.load(Ordering::Relaxed)
    }

    pub(crate) fn refused(&self) -> u64 {
        self.deliveries().refused.load(Ordering::Relaxed)
    }

    /// The first refusals, in the order in which they came.
    pub(crate) fn refusals(&self) -> Vec<DeliveryFailure> {
        self.deliveries().refusals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn deliveries(&self) -> &Deliveries {
        self.producer.context()
    }
}

/// Delivery results; the line number travels with each record.
#[derive(Debug, Default)]
struct Deliveries {
    delivered: AtomicU64,
    refused: AtomicU64,
    refusals: Mutex<Vec<DeliveryFailure>>,
}

impl Deliveries {
    fn refuse(&self, line: u64, reason: &KafkaError) {
        if self.refused.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(line, %reason, "record not delivered; further ones are only counted");
        }
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        if refusals.len() < super::NAMED_FAILURES {
            refusals.push(DeliveryFailure { line, reason: reason.to_string() });
        }
    }
}

impl ClientContext for Deliveries {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, source: Option<&str>) -> login::TokenResult {
        login::token(source)
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, line: usize) {
        match result {
            Ok(_) => {
                self.delivered.fetch_add(1, Ordering::Relaxed);
            }
            Err((error, _)) => self.refuse(u64::try_from(line).unwrap_or(u64::MAX), error),
        }
    }
}
