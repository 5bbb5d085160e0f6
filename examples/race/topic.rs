//! The topic of a race, and its producer. A round is one transaction: geofold, which reads what is committed, sees none of
//! it until all of it is there, so that the clock starts with a backlog and producing costs no measured time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::executor::block_on;
use geofold::base::headers::OP_HEADER;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::{ClientContext, DefaultClientContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};

use crate::documents::Event;

const TIMEOUT: Duration = Duration::from_secs(120);

/// Counts records that were not delivered.
#[derive(Default)]
struct Lost(AtomicUsize);

impl ClientContext for Lost {}

impl ProducerContext for Lost {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if result.is_err() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// See the top of this file.
pub struct Topic {
    name: String,
    producer: ThreadedProducer<Lost>,
    /// Whether something is not visible yet.
    is_open: bool,
}

/// Makes a topic.
pub fn make(brokers: &str, name: &str, partitions: i32) -> Result<()> {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", brokers).create()?;
    let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
    for result in block_on(admin.create_topics([&topic], &AdminOptions::new()))? {
        result.map_err(|(topic, error)| anyhow::anyhow!("making topic {topic}: {error}"))?;
    }
    Ok(())
}

/// The header that says which index a document belongs to, for the peer.
pub fn index_header(prefix: &str, event: &Event) -> OwnedHeaders {
    let index = format!("{prefix}-{}", event.shard);
    OwnedHeaders::new().insert(Header { key: "index", value: Some(index.as_str()) })
}

/// That of Java's producers, which geofold takes for that of the topic.
pub const PARTITIONER: &str = "murmur2_random";

impl Topic {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes the topic, and a producer for it.
    pub fn create(brokers: &str, name: &str, partitions: i32) -> Result<Self> {
        make(brokers, name, partitions)?;
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", brokers);
        config
            .set("transactional.id", name)
            .set("transaction.timeout.ms", "600000")
            .set("compression.codec", "lz4")
            .set("partitioner", PARTITIONER)
            .set("linger.ms", "50")
            .set("queue.buffering.max.messages", "2000000")
            .set("queue.buffering.max.kbytes", "2000000");
        let producer: ThreadedProducer<Lost> = config.create_with_context(Lost::default())?;
        producer.init_transactions(TIMEOUT).context("preparing transactions")?;
        Ok(Self { name: name.to_owned(), producer, is_open: false })
    }

    /// Produces records, in order, without anybody seeing them yet. `prefix`: also name the document's index in a header, for the
    /// peer.
    pub fn produce(&mut self, events: &[Event], prefix: Option<&str>) -> Result<()> {
        if !std::mem::replace(&mut self.is_open, true) {
            self.producer.begin_transaction()?;
        }
        for event in events {
            let mut record = BaseRecord::<str, str>::to(&self.name).key(event.id.as_str());
            if let Some(value) = &event.value {
                record = record.payload(value.as_str());
            }
            if event.patch {
                let patch = Header { key: OP_HEADER, value: Some("patch") };
                record = record.headers(OwnedHeaders::new().insert(patch));
            }
            if let Some(prefix) = prefix {
                record = record.headers(index_header(prefix, event));
            }
            while let Err((error, returned)) = self.producer.send(record) {
                let KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull) = error else {
                    return Err(error).context("producing a record");
                };
                std::thread::sleep(Duration::from_millis(10));
                record = returned;
            }
        }
        self.producer.flush(TIMEOUT).context("producing a round")?;
        match self.producer.context().0.load(Ordering::Relaxed) {
            0 => Ok(()),
            lost => bail!("{lost} records were not delivered"),
        }
    }

    /// Lets everybody see what was produced.
    pub fn show(&mut self) -> Result<()> {
        self.is_open = false;
        self.producer.commit_transaction(TIMEOUT).context("committing a round")
    }
}
