//! Delivers geofold's own records one by one, and says of each that was not delivered whether another attempt can help.
//!
//! Three things are added to librdkafka's producer:
//!
//! - A client with a fatal error delivers nothing any more, even if the brokers are changed later, and one that was refused
//!   access to a topic asks again only after minutes. Such a client is replaced, at most once per [`REPLACE_INTERVAL`].
//! - A client that could not deliver in time may have lost its brokers (`lost_brokers.rs`), and finds them again.
//! - A broker refuses a batch as a whole. A record that was refused is sent once more in a batch of its own, so that a refusal
//!   says something about this record, not about those beside it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use thiserror::Error;
use tokio::time::Instant;

use super::login::Login;
use super::lost_brokers::find_brokers_again;

/// The least time between two clients in the same place.
const REPLACE_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum wait of a record for space in the client's queue.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two attempts to put a record into a full queue.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(50);

/// Classification of a delivery error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeliveryVerdict {
    /// It is larger than the topic or the client takes.
    TooLarge,
    /// The broker does not take a record like this one: without a key into a compacted topic, for example.
    Invalid,
    /// Not the record's fault: permissions, brokers or the topic may change, and then the record is delivered unchanged.
    Retry,
}

/// Classifies a delivery error. Unknown errors do not blame the record.
pub(crate) fn judge(error: &KafkaError) -> DeliveryVerdict {
    use RDKafkaErrorCode as Code;
    match error.rdkafka_error_code() {
        Some(Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize) => {
            DeliveryVerdict::TooLarge
        }
        // Brokers before 2.4 answer InvalidMessage where later ones answer InvalidRecord.
        Some(Code::InvalidRecord | Code::InvalidMessage | Code::PolicyViolation) => DeliveryVerdict::Invalid,
        // InvalidTimestamp among them: the record has the time at which it is sent, so a clock is wrong, and with less in it the
        // record would be refused all the same. InvalidDifferentRecord blames another record of the batch.
        _ => DeliveryVerdict::Retry,
    }
}

/// One record to deliver.
#[derive(Debug, Clone)]
pub(crate) struct Message<'a> {
    pub topic: &'a str,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub headers: Option<OwnedHeaders>,
}

/// Why a record was not delivered, as far as is known: without an answer it may be in the topic.
#[derive(Debug, Error)]
#[error("{error}")]
pub(crate) struct Undelivered {
    pub verdict: DeliveryVerdict,
    pub error: KafkaError,
}

/// See the top of this file.
pub(crate) struct ResilientProducer {
    batched: Slot,
    /// Its batches have one record each. There once it is needed.
    alone: Slot,
}

impl ResilientProducer {
    /// A producer with these settings; `purpose` names it in the log, like `dead letters`.
    ///
    /// # Errors
    /// If librdkafka refuses the settings.
    pub(crate) fn new(settings: ClientConfig, purpose: &'static str) -> KafkaResult<Self> {
        Self::replacing_after(REPLACE_INTERVAL, settings, purpose)
    }

    pub(crate) fn replacing_after(
        interval: Duration,
        settings: ClientConfig,
        purpose: &'static str,
    ) -> KafkaResult<Self> {
        let mut settings_alone = settings.clone();
        settings_alone.set("batch.num.messages", "1");
        let batched = Slot::new(settings, purpose, interval);
        batched.client().map_err(|undelivered| undelivered.error)?;
        Ok(Self { batched, alone: Slot::new(settings_alone, purpose, interval) })
    }

    /// Tries once, and returns when the record is on every in-sync replica, or was refused, or is given up by librdkafka
    /// (`delivery.timeout.ms`).
    ///
    /// # Errors
    /// If it was not acknowledged.
    pub(crate) async fn send(&self, message: &Message<'_>) -> Result<(), Undelivered> {
        match self.batched.send(message).await {
            Err(Failed { undelivered, by_broker: true }) if undelivered.verdict != DeliveryVerdict::Retry => {
                self.alone.send(message).await.map_err(|failed| failed.undelivered)
            }
            sent => sent.map_err(|failed| failed.undelivered),
        }
    }
}

struct Failed {
    undelivered: Undelivered,
    /// The broker refused a whole batch, rather than the client this record.
    by_broker: bool,
}

/// A place for one client after the other.
struct Slot {
    settings: ClientConfig,
    purpose: &'static str,
    interval: Duration,
    state: Mutex<SlotState>,
}

#[derive(Default)]
struct SlotState {
    client: Option<Arc<Client>>,
    made_at: Option<Instant>,
}

impl Slot {
    fn new(settings: ClientConfig, purpose: &'static str, interval: Duration) -> Self {
        Self { settings, purpose, interval, state: Mutex::default() }
    }

    async fn send(&self, message: &Message<'_>) -> Result<(), Failed> {
        let client = self.client().map_err(|undelivered| Failed { undelivered, by_broker: false })?;
        client.send(message).await
    }

    /// The client, or another one if it is lost.
    fn client(&self) -> Result<Arc<Client>, Undelivered> {
        let mut state = self.state();
        let lost = match &state.client {
            Some(client) => match client.loss() {
                Some(loss) => Some(loss),
                None => return Ok(client.clone()),
            },
            None => None,
        };
        let now = Instant::now();
        if !may_make(state.made_at, now, self.interval) {
            let code = lost.map_or(RDKafkaErrorCode::Fatal, |(code, _)| code);
            let error = KafkaError::MessageProduction(code);
            return Err(Undelivered { verdict: DeliveryVerdict::Retry, error });
        }
        state.made_at = Some(now);
        if let Some((code, reason)) = lost {
            tracing::warn!(
                %code,
                reason,
                "the kafka client for {} failed; replacing it",
                self.purpose
            );
        }
        let made = Client::new(&self.settings);
        let client = made.map_err(|error| Undelivered { verdict: DeliveryVerdict::Retry, error })?;
        Ok(state.client.insert(Arc::new(client)).clone())
    }

    fn state(&self) -> MutexGuard<'_, SlotState> {
        // No code that holds the lock can leave it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a client may be made now, where the last one was made at `last`.
fn may_make(last: Option<Instant>, now: Instant, interval: Duration) -> bool {
    last.is_none_or(|last| now.saturating_duration_since(last) >= interval)
}

/// One client of librdkafka.
struct Client {
    /// `None` only while it is dropped.
    producer: Option<FutureProducer<Login>>,
    /// Access to a topic was denied: until the next metadata request (minutes) the client would refuse by itself.
    is_denied: AtomicBool,
}

impl Client {
    fn new(settings: &ClientConfig) -> KafkaResult<Self> {
        Ok(Self { producer: Some(settings.create_with_context(Login)?), is_denied: AtomicBool::new(false) })
    }

    /// Why it should be replaced, if it should.
    fn loss(&self) -> Option<(RDKafkaErrorCode, String)> {
        if self.is_denied.load(Ordering::Relaxed) {
            let reason = "access to the topic was refused".to_owned();
            return Some((RDKafkaErrorCode::TopicAuthorizationFailed, reason));
        }
        self.producer.as_ref()?.client().fatal_error()
    }

    async fn send(&self, message: &Message<'_>) -> Result<(), Failed> {
        let failed = |error: KafkaError, by_broker| {
            if error.rdkafka_error_code() == Some(RDKafkaErrorCode::TopicAuthorizationFailed) {
                self.is_denied.store(true, Ordering::Relaxed);
            }
            Failed { undelivered: Undelivered { verdict: judge(&error), error }, by_broker }
        };
        let Some(producer) = &self.producer else { return Err(failed(KafkaError::Canceled, false)) };
        let Message { topic, key, value, headers } = message;
        let mut record: FutureRecord<'_, [u8], [u8]> = FutureRecord::to(topic);
        (record.key, record.payload, record.headers) = (*key, *value, headers.clone());
        let give_up_at = Instant::now() + QUEUE_TIMEOUT;
        let delivery = loop {
            match producer.send_result(record) {
                Ok(delivery) => break delivery,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), returned))
                    if Instant::now() < give_up_at =>
                {
                    record = returned;
                    tokio::time::sleep(QUEUE_FULL_PAUSE).await;
                }
                Err((error, _)) => return Err(failed(error, false)),
            }
        };
        match delivery.await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err((error, _))) => {
                if error.rdkafka_error_code() == Some(RDKafkaErrorCode::MessageTimedOut) {
                    find_brokers_again(producer.client());
                }
                Err(failed(error, true))
            }
            // The client was dropped under it.
            Err(_) => Err(failed(KafkaError::Canceled, false)),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let is_lost = self.loss().is_some();
        let producer = self.producer.take();
        if is_lost {
            // Ending a client takes up to a second, which a thread of the runtime does not have.
            let ending = std::thread::Builder::new().name("end producer".to_owned());
            if let Err(error) = ending.spawn(move || drop(producer)) {
                tracing::warn!(%error, "no thread to close a failed kafka client");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::types::RDKafkaRespErr;

    use super::*;
    use crate::io::kafka::fenced_broker::{FencedBroker, is_answered};
    use crate::testkit::embedded::broker::{BrokerCall, EmbeddedBroker};

    const PATIENCE: Duration = Duration::from_secs(60);

    fn broker() -> EmbeddedBroker {
        let broker = EmbeddedBroker::start().unwrap();
        broker.create_topic("t", 1).unwrap();
        broker
    }

    fn settings(broker: &EmbeddedBroker) -> ClientConfig {
        let mut config = crate::support::config::Config::default();
        config.kafka.brokers = vec![broker.address().to_owned()];
        crate::io::kafka::client_config(&config.producer_properties())
    }

    fn message(value: &[u8]) -> Message<'_> {
        Message { topic: "t", key: Some(b"key"), value: Some(value), headers: None }
    }

    async fn send(producer: &ResilientProducer, value: &[u8]) -> Result<(), DeliveryVerdict> {
        let message = message(value);
        let sent = tokio::time::timeout(PATIENCE, producer.send(&message));
        sent.await.expect("no answer to a delivery").map_err(|undelivered| undelivered.verdict)
    }

    /// Sends until it is delivered; how many attempts failed.
    async fn send_until_delivered(producer: &ResilientProducer) -> usize {
        let mut failures = 0;
        let delivered = async {
            while send(producer, b"x").await.is_err() {
                failures += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, delivered).await.expect("nothing is delivered any more");
        failures
    }

    #[test]
    fn only_errors_about_the_record_refuse_it() {
        use RDKafkaErrorCode as Code;
        for (verdict, codes) in [
            (
                DeliveryVerdict::TooLarge,
                &[Code::MessageSizeTooLarge, Code::MessageBatchTooLarge, Code::InvalidMessageSize][..],
            ),
            (DeliveryVerdict::Invalid, &[Code::InvalidRecord, Code::InvalidMessage, Code::PolicyViolation]),
            (
                DeliveryVerdict::Retry,
                &[
                    Code::TopicAuthorizationFailed,
                    Code::ClusterAuthorizationFailed,
                    Code::SaslAuthenticationFailed,
                    Code::UnknownTopicOrPartition,
                    Code::UnknownTopic,
                    Code::UnknownPartition,
                    Code::InvalidTimestamp,
                    Code::InvalidDifferentRecord,
                    Code::UnsupportedForMessageFormat,
                    Code::UnsupportedCompressionType,
                    Code::NotEnoughReplicas,
                    Code::NotEnoughReplicasAfterAppend,
                    Code::MessageTimedOut,
                    Code::RequestTimedOut,
                    Code::QueueFull,
                    Code::PurgeQueue,
                    Code::PurgeInflight,
                    Code::OutOfOrderSequenceNumber,
                    Code::Fatal,
                    Code::Unknown,
                ],
            ),
        ] {
            for code in codes {
                assert_eq!(judge(&KafkaError::MessageProduction(*code)), verdict, "{code:?}");
            }
        }
        assert_eq!(judge(&KafkaError::Canceled), DeliveryVerdict::Retry);
    }

    #[test]
    fn clients_are_made_at_a_bounded_rate() {
        let (now, interval) = (Instant::now(), Duration::from_secs(10));
        assert!(may_make(None, now, interval));
        assert!(!may_make(Some(now), now, interval));
        assert!(!may_make(Some(now), now + Duration::from_millis(9_999), interval));
        assert!(may_make(Some(now), now + interval, interval));
    }

    #[tokio::test]
    async fn a_client_with_a_fatal_error_is_replaced() {
        let broker = broker();
        let fatal = RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED;
        broker.fail_next(BrokerCall::InitProducer, &[fatal, fatal]).unwrap();
        let interval = Duration::from_millis(300);
        let producer = ResilientProducer::replacing_after(interval, settings(&broker), "tests").unwrap();
        let began = Instant::now();
        assert!(send_until_delivered(&producer).await > 0, "no error was fatal");
        assert!(began.elapsed() >= interval, "two clients were lost, and not replaced in turn");
    }

    #[tokio::test]
    async fn a_client_that_was_refused_access_is_replaced_once_it_may_write() {
        let broker = broker();
        let denied = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
        broker.fail_next(BrokerCall::Produce, &[denied]).unwrap();
        let interval = Duration::from_millis(100);
        let producer = ResilientProducer::replacing_after(interval, settings(&broker), "tests").unwrap();
        assert!(send_until_delivered(&producer).await > 0);
    }

    #[tokio::test]
    async fn a_client_that_lost_its_brokers_finds_them_again() {
        let broker = FencedBroker::start();
        let mut settings = ClientConfig::new();
        settings.set("bootstrap.servers", broker.address()).set("message.timeout.ms", "500");
        let producer = ResilientProducer::new(settings, "tests").unwrap();
        let client = producer.batched.client().unwrap_or_else(|_| panic!("there is a client"));
        let native = client.producer.as_ref().unwrap().client();
        broker.make_lose(native);
        assert_eq!(send(&producer, b"x").await, Err(DeliveryVerdict::Retry));
        assert!(is_answered(native));
    }

    #[tokio::test]
    async fn a_record_that_is_refused_with_its_batch_is_tried_alone() {
        let broker = broker();
        let producer = ResilientProducer::new(settings(&broker), "tests").unwrap();
        let (invalid, large) = (
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_RECORD,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE,
        );
        broker.fail_next(BrokerCall::Produce, &[invalid]).unwrap();
        assert_eq!(send(&producer, b"x").await, Ok(()), "alone it is fine");
        broker.fail_next(BrokerCall::Produce, &[invalid, invalid]).unwrap();
        assert_eq!(send(&producer, b"x").await, Err(DeliveryVerdict::Invalid));
        broker.fail_next(BrokerCall::Produce, &[large, large]).unwrap();
        assert_eq!(send(&producer, b"x").await, Err(DeliveryVerdict::TooLarge));
        assert_eq!(send(&producer, b"x").await, Ok(()), "the next one is not affected");
    }

    #[tokio::test]
    async fn request_refused_by_the_client_is_not_sent() {
        let broker = broker();
        let mut settings = settings(&broker);
        settings.set("message.max.bytes", "2000");
        let producer = ResilientProducer::new(settings, "tests").unwrap();
        assert_eq!(send(&producer, &[b'x'; 5000]).await, Err(DeliveryVerdict::TooLarge));
        assert!(producer.alone.state().client.is_none(), "another client was made for nothing");
        assert_eq!(send(&producer, b"x").await, Ok(()));
    }
}
