//! Whole workers on librdkafka's mock broker, with an in-memory search server.

mod groups;
mod increments;
mod locations;
mod lost_records;
mod memory;
mod rereads;
mod stops;

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};

use rdkafka::ClientConfig;
use rdkafka::consumer::BaseConsumer;
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{Offset, TopicPartitionList};
use tokio::task::JoinHandle;

use super::limits::WorkerLimits;
use super::*;
use crate::base::clock::BootClock;
use crate::base::position::Epoch;
use crate::core::counting::facets::FacetRules;
use crate::core::counting::increment::Increment;
use crate::io::kafka::produce_with_header;
use crate::support::config::{self, ByteSize, DeadLetterPolicy, GroupProtocol};
use crate::support::supervisor::LostTasks;
use crate::testkit::testing::{MemoryElastic, Merger, recount, rules, six_faces};
use crate::worker::reread::{KafkaReread, RecordReader};

const TOPIC: &str = "documents";

const PARTITIONS: i32 = 4;

/// For things that take a second or two on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A broker with a topic, what was produced to it, and a search server.
struct World {
    // Clients before their broker, in the order in which fields are dropped: a consumer that is closed without one may wait for ever.
    producer: BaseProducer,
    /// Reads the group's offsets without being a member.
    group: BaseConsumer,
    broker: MockCluster<'static, DefaultProducerContext>,
    elastic: Arc<MemoryElastic>,
    /// The partition count that workers saw at their start.
    partitions: i32,
    ends: BTreeMap<i32, i64>,
    wanted: BTreeMap<String, String>,
}

/// One worker.
struct Running {
    stop: CancellationToken,
    task: JoinHandle<Result<(), WorkerError>>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    limits: watch::Sender<WorkerLimits>,
    supervisor: Supervisor,
    lost: LostTasks,
}

impl World {
    fn new() -> Self {
        let broker = MockCluster::new(1).unwrap();
        broker.create_topic(TOPIC, PARTITIONS, 1).unwrap();
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", broker.bootstrap_servers());
        let producer: BaseProducer = client.create().unwrap();
        client.set("group.id", Config::default().kafka.group_id).set("enable.auto.commit", "false");
        let group = client.create().unwrap();
        let elastic = MemoryElastic::for_map(&six_faces());
        Self {
            broker,
            producer,
            group,
            elastic,
            partitions: PARTITIONS,
            ends: BTreeMap::new(),
            wanted: BTreeMap::new(),
        }
    }

    fn config(&self) -> Config {
        let mut config = Config::default();
        config.kafka.brokers = vec![self.broker.bootstrap_servers()];
        config.kafka.topic = TOPIC.to_owned();
        // The mock broker's rebalances take the session timeout less a second.
        config.kafka.session_timeout = Duration::from_millis(2500);
        config.kafka.heartbeat_interval = Duration::from_millis(200);
        config.commit.interval = Duration::from_millis(100);
        config.batch.linger = Duration::from_millis(20);
        config.retry.initial_backoff = Duration::from_millis(10);
        config.retry.max_backoff = Duration::from_millis(100);
        config.shutdown.revoke_timeout = Duration::from_secs(2);
        config
    }

    /// Produces `count` writes, the `round`th of ten documents in each partition; every fifth is a delete.
    fn produce(&mut self, round: i32, count: i32, padding: usize) {
        for n in 0..count {
            let partition = n % PARTITIONS;
            let id = format!("p{partition}-{}", (n / PARTITIONS) % 10);
            let lon = (n * 17 + round * 91) % 180;
            let padding = "x".repeat(padding);
            let document =
                format!(r#"{{"location":[{lon},1],"round":{round},"n":{n},"padding":"{padding}"}}"#);
            let record: BaseRecord<'_, str, str> =
                BaseRecord::to(TOPIC).key(id.as_str()).partition(partition);
            let sent = if n % 5 == 4 {
                self.wanted.remove(&id);
                self.producer.send(record)
            } else {
                self.wanted.insert(id.clone(), document.clone());
                self.producer.send(record.payload(&document))
            };
            sent.map_err(|(error, _)| error).unwrap();
            *self.ends.entry(partition).or_default() += 1;
        }
        self.producer.flush(PATIENCE).unwrap();
    }

    fn start(&self, config: &Config) -> Running {
        let clock = Arc::new(BootClock);
        let metrics = Metrics::new().unwrap();
        let health = Health::new(clock.clone(), metrics.clone(), PATIENCE);
        let stop = CancellationToken::new();
        let (limits, followed) = watch::channel(WorkerLimits::of(config));
        let (supervisor, lost) = Supervisor::new();
        let surroundings = WorkerDependencies {
            elastic: self.elastic.clone(),
            rules: Rules {
                tally: FacetRules::configured(&config.tally),
                location: config.documents.location_path().unwrap(),
                ..rules()
            },
            maps: MapsReader::fixed(six_faces(), clock.clone()),
            limits: followed,
            source: None,
            topic: TopicFacts {
                epoch: Epoch::default(),
                topic_id: None,
                partitions: self.partitions,
                map: None,
                added: None,
            },
            clock,
            metrics: metrics.clone(),
            traces: Traces::default(),
            health: health.clone(),
            partition_status: watch::channel(Vec::new()).0,
            stop: stop.clone(),
            supervisor: supervisor.clone(),
        };
        let config = config.clone();
        let task = tokio::spawn(async move { run(&config, surroundings).await });
        Running { stop, task, metrics, health, limits, supervisor, lost }
    }

    /// The group's committed offsets.
    fn committed(&self) -> BTreeMap<i32, i64> {
        let mut list = TopicPartitionList::new();
        list.add_partition_range(TOPIC, 0, PARTITIONS - 1);
        let list = self.group.committed_offsets(list, PATIENCE).unwrap();
        let offset = |element: rdkafka::topic_partition_list::TopicPartitionListElem<'_>| {
            let Offset::Offset(offset) = element.offset() else { return None };
            Some((element.partition(), offset))
        };
        list.elements().into_iter().filter_map(offset).collect()
    }

    /// Waits until everything produced is committed, and checks that all of it is done.
    async fn until_done(&self) {
        until("all is committed", || self.committed() == self.ends).await;
        for id in self.wanted.keys() {
            assert_eq!(self.elastic.document(id), self.wanted.get(id).cloned(), "{id}");
        }
        assert_eq!(self.elastic.ids(), self.wanted.keys().cloned().collect());
    }
}

impl Running {
    fn gauge(&self, name: &str) -> i64 {
        let text = self.metrics.render().unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
    }

    fn owned(&self) -> i64 {
        self.gauge("geofold_assigned_partitions")
    }

    fn paused(&self) -> i64 {
        self.gauge("geofold_paused_partitions")
    }

    async fn stop(mut self) -> Result<(), WorkerError> {
        self.stop.cancel();
        let ended = tokio::time::timeout(PATIENCE, self.task).await.expect("it ends").unwrap();
        assert_eq!(self.lost.reported(), None, "it was stopped on purpose");
        ended
    }
}

async fn until(what: &str, wanted: impl Fn() -> bool) {
    let limit = std::time::Instant::now() + PATIENCE;
    while !wanted() {
        assert!(std::time::Instant::now() < limit, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn debezium_change_events_yield_their_rows() {
    let mut world = World::new();
    let row = r#"{"location":[13.4,52.5],"n":1.10}"#;
    let events = [
        ("kept", Some(format!(r#"{{"schema":{{}},"payload":{{"op":"r","before":null,"after":{row}}}}}"#))),
        ("gone", Some(format!(r#"{{"op":"c","before":null,"after":{row}}}"#))),
        ("gone", Some(format!(r#"{{"op":"d","before":{row},"after":null}}"#))),
        ("gone", None),
    ];
    for (id, event) in &events {
        let record = BaseRecord::to(TOPIC).key(*id).partition(0);
        let record = match event {
            Some(event) => record.payload(event.as_str()),
            None => record,
        };
        world.producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    world.producer.flush(PATIENCE).unwrap();
    world.ends.insert(0, 4);
    world.wanted.insert("kept".to_owned(), row.to_owned());
    let mut config = world.config();
    config.kafka.envelope = config::Envelope::Debezium;
    let worker = world.start(&config);
    world.until_done().await;
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn header_whose_name_is_not_utf8_stops_no_partition() {
    const DOCUMENT: &CStr = cr#"{"location":[13.4,52.5],"n":1}"#;
    let mut world = World::new();
    let topic = CString::new(TOPIC).unwrap();
    let header = (c"caf\xe9", c"1");
    produce_with_header(world.producer.client(), &topic, c"a", DOCUMENT, header);
    produce_with_header(world.producer.client(), &topic, c"a", c"{", header);
    produce_with_header(world.producer.client(), &topic, c"b", DOCUMENT, header);
    world.producer.flush(PATIENCE).unwrap();
    world.ends.insert(0, 3);
    for id in ["a", "b"] {
        world.wanted.insert(id.to_owned(), DOCUMENT.to_str().unwrap().to_owned());
    }
    let mut config = world.config();
    config.dead_letter.policy = DeadLetterPolicy::Topic;
    config.dead_letter.topic = Some("dead".to_owned());
    world.broker.create_topic("dead", 1, 1).unwrap();
    let worker = world.start(&config);
    world.until_done().await;
    worker.stop().await.unwrap();
    let mut dead = TopicPartitionList::new();
    dead.add_partition_offset("dead", 0, Offset::Beginning).unwrap();
    world.group.assign(&dead).unwrap();
    let letter = world.group.poll(PATIENCE).unwrap().unwrap();
    let kept = Header { key: "caf\u{fffd}", value: Some(b"1".as_slice()) };
    assert!(letter.headers().unwrap().iter().any(|header| header == kept), "the dead letter has it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn produced_records_are_indexed_and_committed() {
    let mut world = World::new();
    world.produce(1, 400, 0);
    let worker = world.start(&world.config());
    world.until_done().await;
    assert!(worker.health.missing().is_empty());
    world.produce(2, 40, 0);
    world.until_done().await;
    let told_at = std::time::Instant::now();
    worker.stop().await.unwrap();
    assert!(told_at.elapsed() < world.config().shutdown.drain_timeout, "{:?}", told_at.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lag_is_reported() {
    let mut world = World::new();
    world.produce(1, 40, 0);
    let mut config = world.config();
    config.kafka.properties = toml::from_str(r#""statistics.interval.ms" = 100"#).unwrap();
    let worker = world.start(&config);
    world.until_done().await;
    let lag = "geofold_watermark_lag_records{partition=\"1\"}";
    until("the end is known", || worker.metrics.render().unwrap().contains(lag)).await;
    world.elastic.set_faults(|faults| faults.down = true);
    world.produce(2, 40, 0);
    until("ten records behind", || worker.gauge(lag) == 10).await;
    world.elastic.set_faults(|faults| faults.down = false);
    until("up to date", || worker.gauge(lag) == 0).await;
    worker.stop().await.unwrap();
}
