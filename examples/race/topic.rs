//! The topic of a race, and its producer. A round is one transaction: geofold, which reads what is committed, sees none of
//! it until all of it is there, so that the clock starts with a backlog and producing costs no measured time.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::executor::block_on;
use geofold::base::headers::OP_HEADER;
use geofold::base::position::{Epoch, Position};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::{ClientContext, DefaultClientContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};

use crate::documents::Event;

const TIMEOUT: Duration = Duration::from_secs(120);

/// Where each record went, in order of acknowledgement.
#[derive(Default)]
struct Deliveries(Mutex<Vec<Delivered>>);

/// Who the record was about, and where it is; `None` if it is nowhere.
struct Delivered {
    number: usize,
    place: Option<(i32, i64)>,
}

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, number: usize) {
        let place = result.as_ref().ok().map(|message| (message.partition(), message.offset()));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Delivered { number, place });
    }
}

/// See the top of this file.
pub struct Topic {
    name: String,
    producer: ThreadedProducer<Deliveries>,
    /// Whose record is the last of its partition.
    last: Vec<usize>,
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
        let producer: ThreadedProducer<Deliveries> = config.create_with_context(Deliveries::default())?;
        producer.init_transactions(TIMEOUT).context("preparing transactions")?;
        Ok(Self { name: name.to_owned(), producer, last: Vec::new(), is_open: false })
    }

    /// Whether a document's record is the last of its partition. Their next one must not be the first of the next round:
    /// the raw loader writes one version above each record's, and that one is the version of the record that follows.
    pub fn is_last(&self, number: usize) -> bool {
        self.last.contains(&number)
    }

    /// Produces records, in order, without anybody seeing them yet; `versions` is then what geofold will write of those
    /// whose number it has. `prefix`: also name the document's index in a header, for the peer.
    pub fn produce(
        &mut self,
        events: &[Event],
        versions: &mut [Position],
        prefix: Option<&str>,
    ) -> Result<()> {
        if !std::mem::replace(&mut self.is_open, true) {
            self.producer.begin_transaction()?;
        }
        for event in events {
            let mut record = BaseRecord::<str, str, usize>::with_opaque_to(&self.name, event.number)
                .key(event.id.as_str());
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

        let epoch = Epoch::new(1).context("an epoch")?;
        let mut last = std::collections::BTreeMap::new();
        for Delivered { number, place } in
            self.producer.context().0.lock().unwrap_or_else(PoisonError::into_inner).drain(..)
        {
            let Some((partition, offset)) = place else { bail!("a record was not delivered") };
            if let Some(version) = versions.get_mut(number) {
                let written = Position::new(epoch, offset).context("an offset")?;
                *version = written.max(*version);
            }
            let newest = last.entry(partition).or_insert((offset, number));
            *newest = (*newest).max((offset, number));
        }
        self.last = last.into_values().map(|(_, number)| number).collect();
        Ok(())
    }

    /// Lets everybody see what was produced.
    pub fn show(&mut self) -> Result<()> {
        self.is_open = false;
        self.producer.commit_transaction(TIMEOUT).context("committing a round")
    }
}
