//! The topic of increments, as used by a worker.

use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;

use super::emitter::OutgoingIncrement;
use crate::base::retry::RetryPolicy;
use crate::io::kafka::resilient_producer::{DeliveryVerdict, Message, ResilientProducer, Undelivered};
use crate::support::telemetry::Metrics;
use crate::support::telemetry::events::{IncrementAcknowledged, IncrementFailed};

/// Sends increments: to Kafka, or into a test's memory.
pub trait IncrementTopic: Send + Sync {
    /// Returns once every in-sync replica has the increment; retries without limit. Dropping the future abandons it: it
    /// may still arrive late, which is harmless.
    ///
    /// # Errors
    /// If it is too large for the topic or the producer.
    fn send<'a>(
        &'a self,
        partition: i32,
        increment: &'a OutgoingIncrement,
    ) -> BoxFuture<'a, Result<(), TooLarge>>;
}

/// An increment is larger than the topic or the producer takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the increment is larger than the topic of increments takes")]
pub struct TooLarge;

/// Sends to Kafka.
pub struct KafkaIncrements {
    topic: Arc<str>,
    producer: ResilientProducer,
    retry: RetryPolicy,
    metrics: Arc<Metrics>,
}

impl KafkaIncrements {
    /// Produces to `topic` with these settings.
    ///
    /// # Errors
    /// If librdkafka refuses the settings.
    pub fn new(
        settings: ClientConfig,
        topic: &str,
        retry: RetryPolicy,
        metrics: Arc<Metrics>,
    ) -> Result<Self, KafkaError> {
        let producer = ResilientProducer::new(settings, "increments")?;
        Ok(Self { topic: topic.into(), producer, retry, metrics })
    }

    async fn send_until_acknowledged(
        &self,
        partition: i32,
        increment: &OutgoingIncrement,
    ) -> Result<(), TooLarge> {
        let mut delays = self.retry.delays();
        let message = Message {
            topic: &self.topic,
            key: Some(increment.key.as_bytes()),
            value: Some(&increment.value),
            headers: None,
        };
        loop {
            let Err(Undelivered { verdict, error }) = self.producer.send(&message).await else {
                IncrementAcknowledged { partition, edges: increment.edges, bytes: increment.value.len() }
                    .emit(&self.metrics);
                return Ok(());
            };
            if verdict == DeliveryVerdict::TooLarge {
                return Err(TooLarge);
            }
            let delay = delays.next(None);
            IncrementFailed { partition, topic: &self.topic, error: &error, delay }.emit(&self.metrics);
            tokio::time::sleep(delay).await;
        }
    }
}

impl IncrementTopic for KafkaIncrements {
    fn send<'a>(
        &'a self,
        partition: i32,
        increment: &'a OutgoingIncrement,
    ) -> BoxFuture<'a, Result<(), TooLarge>> {
        self.send_until_acknowledged(partition, increment).boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use rdkafka::consumer::{BaseConsumer, Consumer};
    use rdkafka::message::Message as _;
    use rdkafka::types::RDKafkaRespErr;

    use super::*;
    use crate::support::telemetry::metrics::Success;
    use crate::testkit::embedded::broker::{BrokerCall, EmbeddedBroker};

    fn settings(broker: &EmbeddedBroker) -> ClientConfig {
        let mut config = crate::support::config::Config::default();
        config.kafka.brokers = vec![broker.address().to_owned()];
        crate::io::kafka::client_config(&config.producer_properties())
    }

    fn increments(settings: ClientConfig, metrics: &Arc<Metrics>) -> KafkaIncrements {
        let retry = RetryPolicy { initial: Duration::from_millis(10), max: Duration::from_millis(50) };
        KafkaIncrements::new(settings, "increments", retry, metrics.clone()).unwrap()
    }

    fn outgoing(bytes: usize) -> OutgoingIncrement {
        OutgoingIncrement { key: "documents/3".into(), value: Bytes::from(vec![b'x'; bytes]), edges: 2 }
    }

    #[tokio::test]
    async fn increment_is_retried_until_acknowledged_and_has_its_key() {
        let broker = EmbeddedBroker::start().unwrap();
        broker.create_topic("increments", 2).unwrap();
        let metrics = Metrics::new().unwrap();
        let increments = increments(settings(&broker), &metrics);
        // An error that the client does not retry by itself.
        let refused = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED; 2];
        broker.fail_next(BrokerCall::Produce, &refused).unwrap();
        let increment = outgoing(100);
        let sending = increments.send(3, &increment);
        tokio::time::timeout(Duration::from_secs(60), sending).await.expect("never acknowledged").unwrap();
        assert!(metrics.tally.increments.of(Success::Failed).get() >= 1);
        assert_eq!(metrics.tally.increments.of(Success::Ok).get(), 1);
        assert_eq!((metrics.tally.edges_sent.get(), metrics.tally.increment_bytes.get()), (2, 100));

        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", broker.address()).set("group.id", "g");
        let consumer: BaseConsumer = client.set("auto.offset.reset", "earliest").create().unwrap();
        consumer.subscribe(&["increments"]).unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(60);
        let message = loop {
            assert!(std::time::Instant::now() < until, "nothing came");
            if let Some(message) = consumer.poll(Duration::from_millis(500)) {
                break message.unwrap();
            }
        };
        assert_eq!((message.key(), message.payload()), (Some(&b"documents/3"[..]), Some(&*increment.value)));
    }

    #[tokio::test]
    async fn increment_that_is_too_large_is_reported_as_such() {
        let broker = EmbeddedBroker::start().unwrap();
        broker.create_topic("increments", 1).unwrap();
        let metrics = Metrics::new().unwrap();
        let mut settings = settings(&broker);
        settings.set("message.max.bytes", "2000");
        let increments = increments(settings, &metrics);
        assert_eq!(increments.send(0, &outgoing(5000)).await, Err(TooLarge));
        assert_eq!(increments.send(0, &outgoing(500)).await, Ok(()));
    }
}
