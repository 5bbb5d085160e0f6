//! Whole workers on librdkafka's mock broker, with an in-memory search server.

use std::collections::BTreeMap;

use rdkafka::ClientConfig;
use rdkafka::consumer::BaseConsumer;
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{Offset, TopicPartitionList};
use tokio::task::JoinHandle;

use super::limits::Limits;
use super::*;
use crate::base::clock::BootClock;
use crate::base::position::Epoch;
use crate::core::counting::facets::FacetRules;
use crate::core::counting::increment::Increment;
use crate::support::config::{self, ByteSize, GroupProtocol};
use crate::support::supervisor::LostTasks;
use crate::testkit::testing::{MemoryElastic, Merger, recount, rules, six_faces};
use crate::worker::reread::Reread;

const TOPIC: &str = "documents";
const PARTITIONS: i32 = 4;
/// For things that take a second or two on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A broker with a topic, what was produced to it, and a search server.
struct World {
    broker: MockCluster<'static, DefaultProducerContext>,
    producer: BaseProducer,
    /// Reads the group's offsets without being a member.
    group: BaseConsumer,
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
    limits: watch::Sender<Limits>,
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
        let group = client.set("group.id", Config::default().kafka.group_id).create().unwrap();
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
        let (limits, followed) = watch::channel(Limits::of(config));
        let (supervisor, lost) = Supervisor::new();
        let surroundings = Dependencies {
            elastic: self.elastic.clone(),
            rules: Rules { tally: FacetRules::configured(&config.tally), ..rules() },
            maps: MapsReader::fixed(six_faces(), clock.clone()),
            limits: followed,
            source: None,
            topic: TopicFacts {
                epoch: Epoch::default(),
                topic_id: None,
                partitions: self.partitions,
                map: None,
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
async fn refused_fold_is_reread_and_only_the_bad_record_dead_lettered() {
    let world = World::new();
    world.broker.create_topic("dead", 1, 1).unwrap();
    let mut config = world.config();
    config.dead_letter.policy = DeadLetterPolicy::Topic;
    config.dead_letter.topic = Some("dead".to_owned());
    let produce = |id: &str, value: &str, op: &str| {
        let headers =
            OwnedHeaders::new().insert(Header { key: crate::core::decode::OP_HEADER, value: Some(op) });
        let record = BaseRecord::to(TOPIC).key(id).payload(value).headers(headers).partition(0);
        world.producer.send(record).map_err(|(error, _)| error).unwrap();
        world.producer.flush(PATIENCE).unwrap();
    };
    produce("a", r#"{"location":[13.4,52.5]}"#, "index");
    let worker = world.start(&config);
    until("it is committed", || world.committed().get(&0) == Some(&1)).await;

    world.elastic.set_faults(|faults| faults.refused_text = Some("bad"));
    // All patches arrive during the write of another document and become one fold.
    world.elastic.set_faults(|faults| faults.delay = Duration::from_secs(1));
    let calls = world.elastic.calls();
    produce("other", r#"{"location":[1,1]}"#, "index");
    until("the other is being written", || world.elastic.calls() > calls).await;
    for patch in [r#"{"p":1}"#, r#"{"q":"bad"}"#, r#"{"r":3}"#] {
        produce("a", patch, "patch");
    }
    world.elastic.set_faults(|faults| faults.delay = Duration::ZERO);
    until("all is committed", || world.committed().get(&0) == Some(&5)).await;
    let document = world.elastic.document("a");
    assert_eq!(document.as_deref(), Some(r#"{"location":[13.4,52.5],"p":1,"r":3}"#));
    let metrics = worker.metrics.render().unwrap();
    assert!(metrics.contains("reason=\"refused_fold\"} 1\n"), "the patches were one fold\n{metrics}");

    let mut dead = TopicPartitionList::new();
    dead.add_partition_offset("dead", 0, Offset::Beginning).unwrap();
    world.group.assign(&dead).unwrap();
    let letter = world.group.poll(PATIENCE).unwrap().unwrap();
    assert_eq!(letter.payload(), Some(br#"{"q":"bad"}"#.as_slice()));
    let header = |key: &str| {
        let headers = letter.headers().unwrap();
        let value = headers.iter().find(|header| header.key == key).unwrap().value.unwrap();
        String::from_utf8(value.to_vec()).unwrap()
    };
    assert_eq!((header("geofold-op"), header("geofold-error-offset")), ("patch".to_owned(), "3".to_owned()));
    assert_eq!(header("geofold-error-first-offset"), "3");
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_records_are_reread_without_missing_ones() {
    let mut world = World::new();
    world.produce(1, 40, 10);
    let reread = KafkaReread::new(&world.config());
    let records = reread.read(2, vec![0, 3, 4, 9, 99]).await.unwrap();
    let offsets: Vec<i64> = records.iter().map(|record| record.offset).collect();
    assert_eq!(offsets, [0, 3, 4, 9], "the partition has ten");
    assert_eq!(records[1].key.as_deref(), Some(b"p2-3".as_slice()));
}

/// Workers start and stop while records are produced.
async fn come_and_go(config: impl Fn(&World) -> Config) {
    let mut world = World::new();
    let config = config(&world);
    world.produce(1, 200, 0);
    let first = world.start(&config);
    until("the first owns all", || first.owned() == i64::from(PARTITIONS)).await;
    let second = world.start(&config);
    world.produce(2, 200, 0);
    until("the second owns its share", || second.owned() > 0 && first.owned() + second.owned() == 4).await;
    world.produce(3, 200, 0);
    world.until_done().await;
    world.produce(4, 200, 0);
    first.stop().await.unwrap();
    until("the second owns all", || second.owned() == i64::from(PARTITIONS)).await;
    world.produce(5, 200, 0);
    world.until_done().await;
    assert!(second.health.missing().is_empty(), "{:?}", second.health.missing());
    second.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_rebalance_with_cooperative_sticky_assignment() {
    come_and_go(World::config).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_rebalance_with_range_assignment() {
    come_and_go(|world| {
        let mut config = world.config();
        config.kafka.partition_assignment_strategy = config::Assignment::Range;
        config
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_rebalance_with_the_consumer_group_protocol() {
    come_and_go(|world| {
        let mut config = world.config();
        config.kafka.group_protocol = GroupProtocol::Consumer;
        config
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_index_stops_fetching_at_the_memory_limit() {
    let mut world = World::new();
    world.produce(1, 1000, 2000);
    world.elastic.set_faults(|faults| faults.delay = Duration::from_millis(20));
    let mut config = world.config();
    let bound = 64 * 1024;
    config.memory.total = ByteSize::new(bound);
    config.memory.per_partition = ByteSize::new(bound / 2);
    let worker = world.start(&config);
    let (mut most, mut was_paused) = (0, false);
    while world.committed() != world.ends {
        most = most.max(worker.metrics.held_bytes.get());
        was_paused |= worker.paused() > 0;
        assert!(!worker.task.is_finished());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(was_paused);
    assert!(most <= 80 * 1024, "{most} bytes were held, and the bound was {bound}");
    world.until_done().await;
    until("all is given back", || worker.metrics.held_bytes.get() == 0 && worker.paused() == 0).await;
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raised_memory_limit_resumes_reading() {
    let mut world = World::new();
    world.produce(1, 1000, 2000);
    world.elastic.set_faults(|faults| faults.down = true);
    let mut config = world.config();
    config.memory.total = ByteSize::new(64 * 1024);
    config.memory.per_partition = config.memory.total;
    let worker = world.start(&config);
    until("all are paused", || worker.paused() == i64::from(PARTITIONS)).await;

    config.memory.total = ByteSize::mib(16);
    config.memory.per_partition = config.memory.total;
    worker.limits.send(Limits::of(&config)).unwrap();
    until("it reads on, with nothing written", || worker.metrics.held_bytes.get() > 256 * 1024).await;
    world.elastic.set_faults(|faults| faults.down = false);
    world.until_done().await;
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_the_memory_limit_a_worker_writes_without_waiting() {
    let mut world = World::new();
    world.produce(1, 400, 2000);
    let mut config = world.config();
    // All partitions together reach the limit; none has a full batch.
    config.memory.total = ByteSize::new(64 * 1024);
    config.memory.per_partition = config.memory.total;
    config.batch.max_bytes = config.memory.total;
    (config.batch.linger, config.batch.max_dirty_age) =
        (Duration::from_secs(3600), Duration::from_secs(7200));
    let worker = world.start(&config);
    until("most is committed", || world.committed().values().sum::<i64>() > 200).await;
    worker.stop().await.unwrap();
    // The last records are too few to reach the limit.
    let patient = world.start(&world.config());
    world.until_done().await;
    patient.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partition_revoked_while_paused_is_read_when_reassigned() {
    taken_while_not_read(400, 2000, |memory| memory.per_partition = ByteSize::new(32 * 1024)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partition_revoked_while_held_back_is_read_when_reassigned() {
    // The default limit per partition is large enough to hold back.
    taken_while_not_read(200, 300_000, |memory| memory.total = ByteSize::mib(17)).await;
}

async fn taken_while_not_read(records: i32, bytes: usize, bound: impl Fn(&mut config::Memory)) {
    let mut world = World::new();
    world.produce(1, records, bytes);
    world.elastic.set_faults(|faults| faults.down = true);
    let mut config = world.config();
    // A rebalance revokes every partition, and some return.
    config.kafka.partition_assignment_strategy = config::Assignment::Range;
    bound(&mut config.memory);
    config.shutdown.revoke_timeout = Duration::from_millis(100);
    config.batch.timeout = Duration::from_secs(2);
    let first = world.start(&config);
    until("all are paused", || first.paused() == i64::from(PARTITIONS)).await;
    let second = world.start(&config);
    until("the second owns its share", || second.owned() == 2 && first.owned() == 2).await;
    world.elastic.set_faults(|faults| faults.down = false);
    world.until_done().await;
    first.stop().await.unwrap();
    second.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_commit_is_retried() {
    let mut world = World::new();
    world.produce(1, 40, 0);
    let refused = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS; 2];
    world.broker.request_errors(RDKafkaApiKey::OffsetCommit, &refused);
    let worker = world.start(&world.config());
    world.until_done().await;
    assert!(worker.gauge("geofold_commits_total{result=\"failed\"}") > 0);
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_leaves_at_its_drain_deadline_and_the_next_finishes() {
    let mut world = World::new();
    world.produce(1, 40, 0);
    let mut config = world.config();
    // In the classic protocol the mock broker does not answer a join that arrives while the group's last member times
    // out.
    config.kafka.group_protocol = GroupProtocol::Consumer;
    config.shutdown.drain_timeout = Duration::from_secs(1);
    config.shutdown.revoke_timeout = Duration::from_millis(200);
    let worker = world.start(&config);
    world.until_done().await;
    world.elastic.set_faults(|faults| faults.down = true);
    world.produce(2, 40, 0);
    until("some were read", || worker.gauge("geofold_elasticsearch_requests_waiting") > 0).await;
    worker.stop().await.unwrap();
    assert_ne!(world.committed(), world.ends);
    world.elastic.set_faults(|faults| faults.down = false);
    let worker = world.start(&config);
    world.until_done().await;
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lasting_unauthorized_answers_end_the_worker_without_commits() {
    let mut world = World::new();
    world.produce(1, 40, 0);
    world.elastic.set_faults(|faults| faults.unauthorized = true);
    let mut config = world.config();
    config.retry.unauthorized_timeout = Duration::from_millis(300);
    let worker = world.start(&config);
    let ended = tokio::time::timeout(PATIENCE, worker.task).await.expect("it ends by itself").unwrap();
    assert!(matches!(ended, Err(WorkerError::Halt(_))), "{ended:?}");
    assert!(worker.health.missing().contains_key("elasticsearch"));
    assert_eq!(world.committed(), BTreeMap::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_record_stops_only_its_partition() {
    let mut world = World::new();
    world.produce(1, 40, 0);
    let bad: BaseRecord<'_, str, str> = BaseRecord::to(TOPIC).key("bad").partition(2).payload("{");
    world.producer.send(bad).map_err(|(error, _)| error).unwrap();
    world.produce(2, 40, 0);
    let worker = world.start(&world.config());
    let expected = BTreeMap::from([(0, 20), (1, 20), (2, 10), (3, 20)]);
    until("the others are done", || world.committed() == expected).await;
    assert!(worker.health.missing()[&partition::stopped_part(2)].contains("bad record"));
    until("the poll thread has noticed", || worker.paused() == 1).await;
    worker.stop().await.unwrap();
    assert_eq!(world.committed(), expected);
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

const INCREMENTS: &str = "documents-increments";

impl World {
    /// With live counts; some increments are refused at first, and commits, too.
    fn counting_config(&self) -> Config {
        let mut config = self.config();
        config.tally.geoshard = true;
        config.tally.facets =
            [("round", "round"), ("n", "n")].map(|(a, b)| (a.to_owned(), b.to_owned())).into();
        config.tally.emit_interval = Duration::from_millis(50);
        config
    }

    /// All increments in their topic, in order.
    fn increments(&self) -> Vec<Increment> {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", self.broker.bootstrap_servers()).set("group.id", "merger");
        let reader: BaseConsumer = client.set("enable.partition.eof", "true").create().unwrap();
        let mut list = TopicPartitionList::new();
        for partition in [0, 1] {
            list.add_partition_offset(INCREMENTS, partition, Offset::Beginning).unwrap();
        }
        reader.assign(&list).unwrap();
        let (mut increments, mut ends) = (Vec::new(), std::collections::BTreeSet::new());
        let limit = std::time::Instant::now() + PATIENCE;
        while ends.len() < 2 {
            assert!(std::time::Instant::now() < limit, "the topic of increments has no end");
            match reader.poll(Duration::from_millis(200)) {
                Some(Ok(message)) => {
                    let increment = Increment::from_json(message.payload().unwrap()).unwrap();
                    assert_eq!(message.key(), Some(increment.key().as_bytes()));
                    increments.push(increment);
                }
                Some(Err(rdkafka::error::KafkaError::PartitionEOF(partition))) => {
                    ends.insert(partition);
                }
                Some(Err(error)) => panic!("{error}"),
                None => {}
            }
        }
        increments
    }

    /// Merges all increments, twice, and compares them with the index.
    fn assert_counted(&self, config: &Config) {
        let rules = FacetRules::configured(&config.tally).unwrap();
        let increments = self.increments();
        let mut names: Vec<&str> = increments.iter().map(|increment| increment.id.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), increments.len(), "each has a name of its own");
        let mut merger = Merger::default();
        increments.iter().chain(&increments).for_each(|increment| merger.merge(increment));
        let documents = self.elastic.ids();
        assert_eq!(merger.counts, recount(&rules, documents.iter().flat_map(|id| self.elastic.copies(id))));
        assert!(!merger.counts.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn increments_equal_a_recount_despite_crashes_and_failed_commits() {
    let mut world = World::new();
    world.broker.create_topic(INCREMENTS, 2, 1).unwrap();
    let config = world.counting_config();
    world.produce(1, 200, 0);
    let first = world.start(&config);
    until("the first owns all", || first.owned() == i64::from(PARTITIONS)).await;
    // Increments are acknowledged while the commits of their offsets fail.
    let refused = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS; 6];
    world.broker.request_errors(RDKafkaApiKey::OffsetCommit, &refused);
    world.produce(2, 200, 0);
    let second = world.start(&config);
    until("the second owns its share", || second.owned() > 0 && first.owned() + second.owned() == 4).await;
    world.produce(3, 200, 0);
    // An abort: work in flight is left as it is.
    first.task.abort();
    until("the second owns all", || second.owned() == i64::from(PARTITIONS)).await;
    let refused = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS; 3];
    world.broker.request_errors(RDKafkaApiKey::Produce, &refused);
    world.produce(4, 200, 0);
    let third = world.start(&config);
    world.produce(5, 40, 0);
    world.until_done().await;
    world.assert_counted(&config);
    second.stop().await.unwrap();
    world.produce(6, 40, 0);
    world.until_done().await;
    third.stop().await.unwrap();
    world.assert_counted(&config);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_committed_while_increments_are_refused() {
    let mut world = World::new();
    world.broker.create_topic(INCREMENTS, 2, 1).unwrap();
    let config = world.counting_config();
    world.produce(1, 40, 0);
    let refused = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED; 100_000];
    world.broker.request_errors(RDKafkaApiKey::Produce, &refused);
    let worker = world.start(&config);
    let written = || world.elastic.ids() == world.wanted.keys().cloned().collect();
    until("documents do not wait", written).await;
    until("it was tried", || worker.gauge("geofold_tally_increments_total{result=\"failed\"}") > 4).await;
    // The start offset may be committed: nothing is below it.
    assert!(world.committed().values().all(|offset| *offset == 0), "{:?}", world.committed());
    world.broker.clear_request_errors(RDKafkaApiKey::Produce);
    world.until_done().await;
    worker.stop().await.unwrap();
    world.assert_counted(&config);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn added_partitions_stop_all_partitions_of_the_worker() {
    let mut world = World::new();
    world.partitions = PARTITIONS - 1;
    world.produce(1, 40, 0);
    let worker = world.start(&world.config());
    let stopped = || worker.health.missing();
    until("all partitions stop", || {
        (0..PARTITIONS).all(|n| stopped().contains_key(&partition::stopped_part(n)))
    })
    .await;
    assert!(stopped()[&partition::stopped_part(0)].contains("has 4 partitions and had 3"));
    assert_eq!((world.committed(), world.elastic.ids().len()), (BTreeMap::new(), 0));
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panicked_background_task_ends_the_worker_cleanly() {
    let mut world = World::new();
    world.produce(0, 40, 0);
    let mut worker = world.start(&world.config());
    world.until_done().await;
    world.produce(1, 40, 0);
    worker.supervisor.spawn("fake", worker.stop.clone(), async { panic!("for the test") });
    let work = async { worker.task.await.unwrap() };
    let ended = tokio::time::timeout(PATIENCE, worker.lost.or_else_stop(&worker.stop, work)).await;
    let lost = ended.expect("it ends").unwrap_err();
    assert_eq!((lost.task, lost.how.as_str()), ("fake", "panicked: for the test"));
    assert!(worker.health.missing().contains_key("shutdown"), "no longer ready");
    // It has left the group: another worker continues with the uncommitted records.
    let next = world.start(&world.config());
    world.until_done().await;
    next.stop().await.unwrap();
}

/// 1.25 times the mock broker's capacity per partition, in records of this size.
const TOO_MUCH: (i32, usize) = (PARTITIONS * 110, 60_000);

fn lost(worker: &Running) -> i64 {
    worker.gauge("geofold_lost_records_total")
}

impl World {
    /// Offset of the first record of each partition.
    fn beginnings(&self) -> Vec<i64> {
        (0..PARTITIONS).map(|n| self.group.fetch_watermarks(TOPIC, n, PATIENCE).unwrap().0).collect()
    }

    fn commit(&self, partition: i32, offset: i64) {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(TOPIC, partition, Offset::Offset(offset)).unwrap();
        self.group.commit(&list, rdkafka::consumer::CommitMode::Sync).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_deleted_during_an_outage_stop_their_partitions() {
    let mut world = World::new();
    let mut config = world.config();
    world.produce(1, 40, 0);
    let worker = world.start(&config);
    world.until_done().await;
    worker.stop().await.unwrap();
    let committed = world.committed();
    world.produce(2, TOO_MUCH.0, TOO_MUCH.1);
    let beginnings = world.beginnings();
    assert!(beginnings.iter().all(|low| *low > 10), "{beginnings:?}");
    let gone: i64 = beginnings.iter().map(|low| low - 10).sum();

    let worker = world.start(&config);
    let stopped = || worker.health.missing();
    until("all partitions stop", || {
        (0..PARTITIONS).all(|n| stopped().contains_key(&partition::stopped_part(n)))
    })
    .await;
    let reason = stopped()[&partition::stopped_part(0)].clone();
    let words = format!("from offset 10 up to {} were deleted", beginnings[0] - 1);
    assert!(reason.contains(&words) && reason.contains("kafka.lost_records"), "{reason}");
    assert_eq!((lost(&worker), world.committed()), (gone, committed));
    worker.stop().await.unwrap();

    config.kafka.lost_records = config::LostRecords::Accept;
    let worker = world.start(&config);
    world.until_done().await;
    assert_eq!((lost(&worker), worker.health.missing().len()), (gone, 0));
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_group_starts_at_the_first_record_left_without_loss() {
    for protocol in [GroupProtocol::Classic, GroupProtocol::Consumer] {
        let mut world = World::new();
        world.produce(1, TOO_MUCH.0, TOO_MUCH.1);
        assert!(world.beginnings().iter().all(|low| *low > 0));
        let mut config = world.config();
        config.kafka.group_protocol = protocol;
        // No statistics, which would hide a wrong start of a partition.
        config.kafka.properties = toml::from_str(r#""statistics.interval.ms" = 0"#).unwrap();
        let worker = world.start(&config);
        world.until_done().await;
        assert_eq!((lost(&worker), worker.health.missing().len()), (0, 0));
        worker.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_deleted_while_paused_stop_their_partitions() {
    let mut world = World::new();
    let mut config = world.config();
    let bound = 64 * 1024;
    config.memory.total = ByteSize::new(bound);
    config.memory.per_partition = ByteSize::new(bound / 2);
    let worker = world.start(&config);
    world.produce(1, 40, 0);
    world.until_done().await;
    world.elastic.set_faults(|faults| faults.down = true);
    world.produce(2, 40, 30_000);
    until("it stands still", || worker.paused() == i64::from(PARTITIONS)).await;
    world.produce(3, TOO_MUCH.0, TOO_MUCH.1);
    world.elastic.set_faults(|faults| faults.down = false);
    let stopped = || worker.health.missing();
    until("all partitions stop", || {
        (0..PARTITIONS).all(|n| stopped().contains_key(&partition::stopped_part(n)))
    })
    .await;
    let reason = stopped()[&partition::stopped_part(0)].clone();
    assert!(reason.contains("were deleted from the topic before they were read"), "{reason}");
    // Only what was read before is done.
    let committed: Vec<i64> = world.committed().into_values().collect();
    assert!(committed.iter().zip(world.beginnings()).all(|(done, low)| *done < low), "{committed:?}");
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partition_ending_below_its_commit_stops_alone() {
    let mut world = World::new();
    world.produce(1, 40, 0);
    world.commit(2, 25);
    let worker = world.start(&world.config());
    let expected = BTreeMap::from([(0, 10), (1, 10), (2, 25), (3, 10)]);
    until("it stops", || worker.health.missing().contains_key(&partition::stopped_part(2))).await;
    until("the others are done", || world.committed() == expected).await;
    let reason = worker.health.missing()[&partition::stopped_part(2)].clone();
    assert!(
        reason.contains("ends at offset 10") && reason.contains("raise positions.epoch above 1"),
        "{reason}"
    );
    assert_eq!((lost(&worker), worker.health.missing().len()), (0, 1));
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partition_whose_leader_lacks_the_commit_stops_alone() {
    let mut world = World::new();
    let mut config = world.config();
    config.kafka.properties = toml::from_str(r#""statistics.interval.ms" = 100"#).unwrap();
    world.produce(1, 40, 0);
    let worker = world.start(&config);
    world.until_done().await;
    worker.stop().await.unwrap();
    // The committed offset is of the newest leader epoch, which has written nothing.
    world.broker.partition_leader(TOPIC, 2, Some(1)).unwrap();
    let worker = world.start(&config);
    until("it stops", || worker.health.missing().contains_key(&partition::stopped_part(2))).await;
    let reason = worker.health.missing()[&partition::stopped_part(2)].clone();
    assert!(reason.contains("other records") && reason.contains("raise positions.epoch above 1"), "{reason}");
    world.produce(2, 40, 0);
    let expected = BTreeMap::from([(0, 20), (1, 20), (2, 10), (3, 20)]);
    until("the others are done", || world.committed() == expected).await;
    assert_eq!((lost(&worker), worker.health.missing().len()), (0, 1));
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_group_starts_after_its_offsets_were_unavailable() {
    let mut world = World::new();
    world.produce(1, 40, 0);
    let mut config = world.config();
    config.kafka.properties = toml::from_str(r#""statistics.interval.ms" = 100"#).unwrap();
    let refused = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED];
    world.broker.request_errors(RDKafkaApiKey::OffsetFetch, &refused);
    let worker = world.start(&config);
    until("the refusal was met", || worker.owned() == i64::from(PARTITIONS)).await;
    world.until_done().await;
    assert_eq!((lost(&worker), worker.health.missing().len()), (0, 0));
    worker.stop().await.unwrap();
}
