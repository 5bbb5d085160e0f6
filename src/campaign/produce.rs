//! The records of one chunk: a record without a value for each id, keyed by it, acknowledged by the broker.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rdkafka::client::DefaultClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use thiserror::Error;
use tokio::time::Instant;

use super::Action;
use super::store::Failed;
use crate::ids::DocId;
use crate::retry::RetryPolicy;
use crate::send::{OP_HEADER, SendError, check_topic, settings};

/// While librdkafka's queue is full.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(10);
/// A shorter sleep is not kept by the system anyway.
const SHORTEST_SLEEP: Duration = Duration::from_millis(2);
/// So long a sleep, at most, until the rate is looked at again.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Nothing can be produced, now or later.
#[derive(Debug, Error)]
#[error("records can not be produced: {0}; check [kafka], the topic, and what this user may do there")]
pub struct ProduceError(KafkaError);

/// Sends the records of chunks to one topic.
pub struct Producing {
    producer: FutureProducer<DefaultClientContext>,
    topic: String,
    retry: RetryPolicy,
}

/// Whose fault a refusal is.
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
    pub fn connect(
        properties: &BTreeMap<String, String>,
        topic: &str,
        retry: RetryPolicy,
    ) -> Result<Self, SendError> {
        let producer: FutureProducer<DefaultClientContext> =
            settings(properties).create().map_err(SendError::Client)?;
        check_topic(producer.client(), topic, properties)?;
        Ok(Self { producer, topic: topic.to_owned(), retry })
    }

    /// Produces a record for each id and waits until each is acknowledged, however often it takes; gives those that can not
    /// be. At most `rate` ids per second, which may change meanwhile; 0: any number.
    ///
    /// # Errors
    /// If no record will be taken any more.
    pub async fn produce(
        &self,
        action: Action,
        ids: &[Vec<u8>],
        rate: &AtomicI64,
    ) -> Result<Vec<Failed>, ProduceError> {
        let mut failed = Vec::new();
        let fail = |id: &[u8], reason: String| Failed { id: id.to_vec(), reason };
        let mut open: Vec<(&[u8], DocId)> = Vec::with_capacity(ids.len());
        for id in ids {
            match DocId::from_key(Some(id)) {
                Ok(checked) => open.push((id, checked)),
                Err(bad) => failed.push(fail(id, bad.to_string())),
            }
        }
        let mut pace = Pace::new();
        let mut delays = self.retry.delays();
        loop {
            let mut under_way = Vec::with_capacity(open.len());
            let mut refused = Vec::new();
            for (id, key) in open {
                pace.wait(rate).await;
                match self.send(action, &key).await {
                    Ok(delivery) => under_way.push((id, key, delivery)),
                    Err(error) => refused.push((id, key, error)),
                }
            }
            for (id, key, delivery) in under_way {
                match delivery.await {
                    Ok(Ok(_)) => {}
                    Ok(Err((error, _))) => refused.push((id, key, error)),
                    // The producer is gone, and nobody knows.
                    Err(_) => refused.push((id, key, KafkaError::Canceled)),
                }
            }
            open = Vec::new();
            let mut passing = None;
            for (id, key, error) in refused {
                match blame(&error) {
                    Blame::Everything => return Err(ProduceError(error)),
                    Blame::Record => failed.push(fail(id, error.to_string())),
                    Blame::Nobody => {
                        open.push((id, key));
                        passing = Some(error);
                    }
                }
            }
            let Some(error) = passing else { return Ok(failed) };
            if let Some((_, reason)) = self.producer.client().fatal_error() {
                tracing::error!(%reason, "the kafka client can go on no more");
                return Err(ProduceError(error));
            }
            let delay = delays.next(None);
            tracing::warn!(%error, records = open.len(), ?delay, "records were not acknowledged; they are sent again");
            tokio::time::sleep(delay).await;
        }
    }

    async fn send(
        &self,
        action: Action,
        key: &DocId,
    ) -> Result<rdkafka::producer::DeliveryFuture, KafkaError> {
        let headers = OwnedHeaders::new_with_capacity(1)
            .insert(Header { key: OP_HEADER, value: Some(action.as_str()) });
        let mut record: FutureRecord<'_, str, [u8]> =
            FutureRecord::to(&self.topic).key(key.as_str()).headers(headers);
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
struct Pace {
    due: Instant,
}

impl Pace {
    fn new() -> Self {
        Self { due: Instant::now() }
    }

    /// Waits until the next id is due.
    async fn wait(&mut self, rate: &AtomicI64) {
        loop {
            let Ok(per_second) = u32::try_from(rate.load(Ordering::Relaxed)) else { return };
            if per_second == 0 {
                return;
            }
            let gap = Duration::from_secs(1) / per_second;
            let now = Instant::now();
            // What a slower rate asked for is not waited for at a faster one, nor is a pause made up for.
            self.due =
                self.due.clamp(now.checked_sub(SHORTEST_SLEEP).unwrap_or(now), now + gap.max(SHORTEST_SLEEP));
            let wait = self.due.saturating_duration_since(now);
            if wait < SHORTEST_SLEEP {
                self.due += gap;
                return;
            }
            tokio::time::sleep(wait.min(LONGEST_SLEEP)).await;
        }
    }
}
