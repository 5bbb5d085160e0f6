//! The records of one chunk: a record without a value for each id, keyed by it, acknowledged by the broker.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use thiserror::Error;

use super::CampaignAction;
use super::store::Failed;
use crate::base::clock::Instant;
use crate::base::headers::OP_HEADER;
use crate::base::ids::DocId;
use crate::base::pace::Pace;
use crate::base::retry::RetryPolicy;
use crate::io::kafka::login::Login;
use crate::io::send::{Destination, Destinations, SendError, check_topic, settings};

/// While librdkafka's queue is full.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(10);
/// A shorter sleep is not kept by the system anyway.
const SHORTEST_SLEEP: Duration = Duration::from_millis(2);
/// Maximum sleep before the rate is read again.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Why an id fails.
const UNKNOWN_PARTITION: &str =
    "its partition is not known: kafka.partitioner is \"custom\", and its placement names none";

/// Nothing can be produced, now or later.
#[derive(Debug, Error)]
#[error("could not produce records: {0}; check [kafka], the topic, and what this user may do there")]
pub struct ProduceError(KafkaError);

/// Sends the records of chunks to one topic.
pub struct Producing {
    producer: FutureProducer<Login>,
    topic: String,
    destinations: Destinations,
    retry: RetryPolicy,
}

/// What a refusal blames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blame {
    /// The record's own: another try ends the same way.
    Record,
    /// It passes.
    Nobody,
    /// No record will be taken.
    Everything,
}

fn blame(error: &KafkaError) -> Blame {
    use RDKafkaErrorCode as Code;
    match error.rdkafka_error_code() {
        Some(
            Code::MessageSizeTooLarge
            | Code::InvalidMessage
            | Code::InvalidMessageSize
            | Code::InvalidRecord
            | Code::PolicyViolation,
        ) => Blame::Record,
        Some(
            Code::TopicAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::SaslAuthenticationFailed
            | Code::InvalidTopic
            | Code::UnknownTopic
            | Code::Fatal,
        ) => Blame::Everything,
        _ => Blame::Nobody,
    }
}

impl Producing {
    /// Connects, and sees that the topic is there. Blocks while it does.
    ///
    /// # Errors
    /// If the settings are not taken, no broker answers, or there is no such topic.
    pub(crate) fn connect(
        properties: &BTreeMap<String, String>,
        topic: &str,
        destinations: Destinations,
        retry: RetryPolicy,
    ) -> Result<Self, SendError> {
        let producer: FutureProducer<Login> =
            settings(properties).create_with_context(Login).map_err(SendError::Client)?;
        check_topic(producer.client(), topic, properties)?;
        Ok(Self { producer, topic: topic.to_owned(), destinations, retry })
    }

    /// Produces a record for each id and waits until each is acknowledged, however often it takes; gives those that cannot
    /// be. At most `rate` ids per second, which may change meanwhile; 0: any number.
    ///
    /// # Errors
    /// If no record will be taken any more.
    pub async fn produce(
        &self,
        action: CampaignAction,
        ids: &[Vec<u8>],
        rate: &AtomicI64,
    ) -> Result<Vec<Failed>, ProduceError> {
        let mut failed = Vec::new();
        let fail = |id: &[u8], reason: String| Failed { id: id.to_vec(), reason };
        let mut checked: Vec<(&[u8], DocId)> = Vec::with_capacity(ids.len());
        for id in ids {
            match DocId::from_key(Some(id)) {
                Ok(key) => checked.push((id, key)),
                Err(bad) => failed.push(fail(id, bad.to_string())),
            }
        }
        let keys: Vec<DocId> = checked.iter().map(|(_, key)| key.clone()).collect();
        let mut open = Vec::with_capacity(keys.len());
        for ((id, key), to) in checked.into_iter().zip(self.destinations_of(&keys).await) {
            match to {
                Destination::Unknown => failed.push(fail(id, UNKNOWN_PARTITION.to_owned())),
                to => open.push((id, key, to.partition())),
            }
        }
        let mut pace = ChunkPace::new();
        let mut delays = self.retry.delays();
        loop {
            let mut under_way = Vec::with_capacity(open.len());
            let mut refused = Vec::new();
            for (id, key, to) in open {
                pace.wait(rate).await;
                match self.send(action, &key, to).await {
                    Ok(delivery) => under_way.push((id, key, to, delivery)),
                    Err(error) => refused.push((id, key, to, error)),
                }
            }
            for (id, key, to, delivery) in under_way {
                match delivery.await {
                    Ok(Ok(_)) => {}
                    Ok(Err((error, _))) => refused.push((id, key, to, error)),
                    // The producer was dropped: the outcome is unknown.
                    Err(_) => refused.push((id, key, to, KafkaError::Canceled)),
                }
            }
            open = Vec::new();
            let mut passing = None;
            for (id, key, to, error) in refused {
                match blame(&error) {
                    Blame::Everything => return Err(ProduceError(error)),
                    Blame::Record => failed.push(fail(id, error.to_string())),
                    Blame::Nobody => {
                        open.push((id, key, to));
                        passing = Some(error);
                    }
                }
            }
            let Some(error) = passing else { return Ok(failed) };
            if let Some((_, reason)) = self.producer.client().fatal_error() {
                tracing::error!(%reason, "the kafka client failed permanently");
                return Err(ProduceError(error));
            }
            let delay = delays.next(None);
            tracing::warn!(%error, records = open.len(), ?delay, "records were not acknowledged; resending");
            tokio::time::sleep(delay).await;
        }
    }

    /// Which partitions records of these documents go to, however often it takes to find out.
    async fn destinations_of(&self, keys: &[DocId]) -> Vec<Destination> {
        let mut delays = self.retry.delays();
        loop {
            match self.destinations.of(keys).await {
                Ok(destinations) => return destinations,
                Err(error) => {
                    let delay = delays.next(None);
                    tracing::warn!(%error, ?delay, "the campaign waits");
                    tokio::time::sleep(delay).await;
                }
            }
        }
    }

    async fn send(
        &self,
        action: CampaignAction,
        key: &DocId,
        to: Option<i32>,
    ) -> Result<rdkafka::producer::DeliveryFuture, KafkaError> {
        let headers = OwnedHeaders::new_with_capacity(1)
            .insert(Header { key: OP_HEADER, value: Some(action.as_str()) });
        let mut record: FutureRecord<'_, str, [u8]> =
            FutureRecord::to(&self.topic).key(key.as_str()).headers(headers);
        record.partition = to;
        loop {
            match self.producer.send_result(record) {
                Ok(delivery) => return Ok(delivery),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), returned)) => {
                    record = returned;
                    tokio::time::sleep(QUEUE_FULL_PAUSE).await;
                }
                Err((error, _)) => return Err(error),
            }
        }
    }
}

/// Spreads a chunk over the time that the rate gives it, so that all runners together send evenly.
struct ChunkPace {
    pace: Pace,
    start: tokio::time::Instant,
}

impl ChunkPace {
    fn new() -> Self {
        // Pauses are not followed by a burst.
        let pace = Pace::new(None, SHORTEST_SLEEP, Instant::from_start(Duration::ZERO));
        Self { pace, start: tokio::time::Instant::now() }
    }

    /// Waits until the next id is due.
    async fn wait(&mut self, rate: &AtomicI64) {
        loop {
            let now = Instant::from_start(self.start.elapsed());
            let per_second = u32::try_from(rate.load(Ordering::Relaxed)).ok().and_then(NonZeroU32::new);
            self.pace.set_rate(per_second, now);
            let wait = self.pace.wait(now);
            if wait < SHORTEST_SLEEP {
                self.pace.take(1, now);
                return;
            }
            tokio::time::sleep(wait.min(LONGEST_SLEEP)).await;
        }
    }
}
