//! The demo's topics: records produced and committed, and dead letters.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::people::Event;
use crate::base::headers::OP_HEADER;
use crate::testkit::embedded::broker::EmbeddedBroker;

pub(super) const DOCUMENTS: &str = "documents";
pub(super) const DEAD_LETTERS: &str = "documents-dead-letters";
pub(super) const GROUP: &str = "demo";

const TIMEOUT: Duration = Duration::from_secs(10);

/// Records that may be waiting for the workers. A partition of the embedded broker forgets its oldest records above
/// [`EmbeddedBroker::PARTITION_BYTES`]; the demo's records have less than 300 bytes, and keys spread evenly.
const MAX_LAG: u64 = 100_000;

/// See the top of this file.
pub(super) struct DemoTopic {
    producer: ThreadedProducer<DefaultProducerContext>,
    consumer: BaseConsumer,
    dead_letters: BaseConsumer,
    partitions: i32,
    produced: u64,
    committed: u64,
}

impl DemoTopic {
    /// Makes both topics.
    pub(super) fn create(broker: &EmbeddedBroker, partitions: i32) -> KafkaResult<Self> {
        broker.create_topic(DOCUMENTS, partitions)?;
        broker.create_topic(DEAD_LETTERS, 1)?;
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", broker.address());
        let producer = client.clone().set("partitioner", "murmur2_random").set("linger.ms", "5").create()?;
        let consumer = client.clone().set("group.id", GROUP).create()?;
        let dead_letters = client.set("group.id", "demo-reader").create()?;
        Ok(Self { producer, consumer, dead_letters, partitions, produced: 0, committed: 0 })
    }

    /// Whether the broker can keep more, as far as is known since the last [`DemoTopic::update_lag`].
    pub(super) fn has_room(&self) -> bool {
        self.produced - self.committed < MAX_LAG
    }

    /// Produces one event, waiting while the producer's queue is full.
    pub(super) fn produce(&mut self, event: &Event) -> KafkaResult<()> {
        let mut record: BaseRecord<'_, str, str> = BaseRecord::to(DOCUMENTS).key(&event.key);
        record.payload = event.value.as_deref();
        if event.is_patch {
            record =
                record.headers(OwnedHeaders::new().insert(Header { key: OP_HEADER, value: Some("patch") }));
        }
        while let Err((error, unsent)) = self.producer.send(record) {
            if error.rdkafka_error_code() != Some(RDKafkaErrorCode::QueueFull) {
                return Err(error);
            }
            self.producer.flush(TIMEOUT)?;
            record = unsent;
        }
        self.produced += 1;
        Ok(())
    }

    /// Records that are produced and not committed yet.
    pub(super) fn update_lag(&mut self) -> KafkaResult<u64> {
        let mut asked = TopicPartitionList::new();
        for partition in 0..self.partitions {
            asked.add_partition(DOCUMENTS, partition);
        }
        let offsets = self.consumer.committed_offsets(asked, TIMEOUT)?;
        self.committed = offsets
            .elements()
            .iter()
            .map(|element| match element.offset() {
                Offset::Offset(offset) => u64::try_from(offset).unwrap_or(0),
                _ => 0,
            })
            .sum();
        Ok(self.produced.saturating_sub(self.committed))
    }

    /// Whether everything produced is committed.
    pub(super) fn is_committed(&mut self) -> KafkaResult<bool> {
        self.producer.flush(TIMEOUT)?;
        Ok(self.update_lag()? == 0)
    }

    /// The dead letters. Duplicates, written when a worker was killed before its commit, count once.
    pub(super) fn dead_letters(&self) -> KafkaResult<DemoDeadLetters> {
        let (_, end) = self.dead_letters.fetch_watermarks(DEAD_LETTERS, 0, TIMEOUT)?;
        let mut from_start = TopicPartitionList::new();
        from_start.add_partition_offset(DEAD_LETTERS, 0, Offset::Beginning)?;
        self.dead_letters.assign(&from_start)?;
        let mut letters = DemoDeadLetters::default();
        for _ in 0..end {
            let message = self.dead_letters.poll(TIMEOUT).ok_or(KafkaError::NoMessageReceived)??;
            let header = |key: &str| {
                let found = message.headers()?.iter().find(|header| header.key == key)?.value?;
                Some(String::from_utf8_lossy(found).into_owned())
            };
            let key = String::from_utf8_lossy(message.key().unwrap_or_default()).into_owned();
            letters.by_key.insert(key, header("geofold-error-reason").unwrap_or_default());
        }
        Ok(letters)
    }
}

/// The dead letters: for each key, why.
#[derive(Debug, Default)]
pub(super) struct DemoDeadLetters {
    /// The last reason for each key.
    pub by_key: BTreeMap<String, String>,
}
