//! The topic of documents as tools use it: where partitions end, what is committed, and touches.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::{Offset, TopicPartitionList};
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::base::ids::DocId;
use crate::io::elastic::Elastic;
use crate::io::kafka::{
    PlainConsumer, TopicFactsError, client_config, logged_in, plain_consumer, topic_facts,
};
use crate::io::maps::OffsetFloor;
use crate::io::send::{
    Destination, Destinations, Op, SendError, SendRecord, TopicProducer, UnknownDestinations,
};
use crate::support::blocking::blocking;
use crate::support::config::Config;

const TIMEOUT: Duration = Duration::from_secs(20);
const FLUSH_TIMEOUT: Duration = Duration::from_secs(60);

/// A failed Kafka request.
#[derive(Debug, Error)]
pub enum TopicError {
    /// A question was not answered.
    #[error("cannot {doing}: {error}")]
    Request {
        /// The request.
        doing: &'static str,
        /// In librdkafka's words.
        error: KafkaError,
    },
    /// The topic cannot be described.
    #[error("could not describe the topic: {0}")]
    Describe(#[from] TopicFactsError),
    /// Touches cannot be produced.
    #[error("could not produce touches: {0}")]
    Producer(#[from] SendError),
    /// The partitions of documents are not known.
    #[error(transparent)]
    Placements(#[from] UnknownDestinations),
    /// A document's partition is not known.
    #[error(
        "the partition of {0:?} is not known: kafka.partitioner is \"custom\", and its placement names none; write the document again"
    )]
    UnknownPartition(String),
    /// The producer has a fatal error. This process cannot produce any more, even after the cause is fixed.
    #[error("touches can no longer be produced: {reason}; fix that and repeat the command")]
    ProducerLost {
        /// In librdkafka's words.
        reason: String,
    },
    /// Some touches did not get into the topic.
    #[error("{missing} touches were not delivered: {reason}; run the same command again")]
    NotDelivered {
        /// How many.
        missing: u64,
        /// Of one of them.
        reason: String,
    },
}

/// The topic, its group's offsets, and a producer for it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SendTopic(Arc<Inner>);

struct Inner {
    /// A consumer outside any group, for requests only.
    consumer: PlainConsumer,
    producer: TopicProducer,
    topic: String,
    partitions: i32,
    destinations: Destinations,
    /// Touches that the producer was given.
    touches: AtomicU64,
}

impl SendTopic {
    /// `elastic` has the placements, which name the partitions of documents.
    pub(crate) async fn connect(config: &Config, elastic: Arc<dyn Elastic>) -> Result<Self, TopicError> {
        let destinations = Destinations::new(config, elastic);
        let config = config.clone();
        blocking(move || {
            let topic = config.kafka.topic.clone();
            let mut client = client_config(&config.consumer_properties());
            // Statistics are not used here, and each would be a log line of thousands of characters.
            client.set("statistics.interval.ms", "0");
            let consumer = plain_consumer(&client)
                .map_err(|error| TopicError::Request { doing: "make a kafka client", error })?;
            let properties = config.topic_producer_properties().into_iter().collect();
            let producer = TopicProducer::connect(&properties, &topic)?;
            let partitions = topic_facts(consumer.client(), &topic, TIMEOUT)?.partitions;
            let touches = AtomicU64::new(0);
            Ok(Self(Arc::new(Inner { consumer, producer, topic, partitions, destinations, touches })))
        })
        .await
    }

    pub(crate) fn partitions(&self) -> i32 {
        self.0.partitions
    }

    /// Where each partition ends now.
    pub(crate) async fn ends(&self) -> Result<OffsetFloor, TopicError> {
        let topic = self.clone();
        blocking(move || {
            let doing = "ask where the partitions end";
            topic.0.ends().map_err(|error| TopicError::Request { doing, error })
        })
        .await
    }

    /// The partitions whose committed offset is below `floor`, with that offset.
    pub(crate) async fn behind(&self, floor: &OffsetFloor) -> Result<OffsetFloor, TopicError> {
        let (topic, floor) = (self.clone(), floor.clone());
        blocking(move || {
            let doing = "ask for the group's committed offsets";
            let committed = topic.0.committed().map_err(|error| TopicError::Request { doing, error })?;
            let committed = |partition| committed.get(&partition).copied().unwrap_or(0);
            let behind = floor.iter().map(|(&partition, &end)| (partition, committed(partition), end));
            Ok(behind
                .filter(|(_, done, end)| done < end)
                .map(|(partition, done, _)| (partition, done))
                .collect())
        })
        .await
    }

    /// Produces a touch, or another record without a value, for each document, into the partition of its other records; they
    /// are in the topic after [`SendTopic::flush`].
    pub(crate) async fn ask(&self, op: Op, ids: Vec<DocId>) -> Result<(), TopicError> {
        let destinations = self.0.destinations.of(&ids).await?;
        let unknown = destinations.iter().position(|to| *to == Destination::Unknown);
        if let Some(id) = unknown.and_then(|place| ids.get(place)) {
            return Err(TopicError::UnknownPartition(id.to_string()));
        }
        let topic = self.clone();
        blocking(move || {
            let stop = CancellationToken::new();
            topic.0.touches.fetch_add(ids.len() as u64, Ordering::Relaxed);
            for (id, to) in ids.iter().zip(destinations) {
                let record = SendRecord { key: Cow::Borrowed(id.as_str()), value: None, op: Some(op) };
                topic.0.producer.produce(&record, to.partition(), 0, &stop);
            }
        })
        .await;
        Ok(())
    }

    /// Waits until all touches are in the topic.
    pub(crate) async fn flush(&self) -> Result<(), TopicError> {
        let topic = self.clone();
        blocking(move || {
            let producer = &topic.0.producer;
            producer.flush(FLUSH_TIMEOUT);
            let missing = topic.0.touches.load(Ordering::Relaxed).saturating_sub(producer.delivered());
            if missing == 0 {
                return Ok(());
            }
            if let Some(reason) = producer.fatal_error() {
                return Err(TopicError::ProducerLost { reason });
            }
            // The next round finds these documents again.
            topic.0.touches.fetch_sub(missing, Ordering::Relaxed);
            let refusal = producer.refusals().into_iter().next().map(|refusal| refusal.reason);
            let reason = refusal.unwrap_or_else(|| "no acknowledgement in time".to_owned());
            Err(TopicError::NotDelivered { missing, reason })
        })
        .await
    }
}

impl Inner {
    fn ends(&self) -> KafkaResult<OffsetFloor> {
        let end = |partition| {
            let (low, high) = logged_in(&self.consumer)?.fetch_watermarks(&self.topic, partition, TIMEOUT)?;
            // In an empty partition nothing is ever committed.
            Ok((partition, if low == high { 0 } else { high }))
        };
        (0..self.partitions).map(end).collect()
    }

    fn committed(&self) -> KafkaResult<OffsetFloor> {
        let mut asked = TopicPartitionList::new();
        for partition in 0..self.partitions {
            asked.add_partition(&self.topic, partition);
        }
        let answer = logged_in(&self.consumer)?.committed_offsets(asked, TIMEOUT)?;
        let offset = |offset| if let Offset::Offset(offset) = offset { offset } else { 0 };
        answer.elements().iter().map(|element| Ok((element.partition(), offset(element.offset())))).collect()
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::types::RDKafkaRespErr;

    use super::*;
    use crate::testkit::embedded::broker::{BrokerCall, EmbeddedBroker};
    use crate::testkit::testing::{MemoryElastic, six_faces};

    #[tokio::test]
    async fn fatal_producer_error_is_not_retried() {
        let broker = EmbeddedBroker::start().unwrap();
        broker.create_topic("t", 1).unwrap();
        let fatal = RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED;
        broker.fail_next(BrokerCall::InitProducer, &[fatal]).unwrap();
        let mut config = Config::default();
        config.kafka.brokers = vec![broker.address().to_owned()];
        config.kafka.topic = "t".to_owned();
        let topic = SendTopic::connect(&config, MemoryElastic::for_map(&six_faces())).await.unwrap();
        topic.ask(Op::Touch, vec![DocId::from_key(Some(b"a")).unwrap()]).await.unwrap();
        let error = topic.flush().await.unwrap_err();
        assert!(matches!(error, TopicError::ProducerLost { .. }), "{error}");
        assert!(!crate::ops::migrate::MigrateError::Topic(error).is_transient(), "retried without end");
    }
}
