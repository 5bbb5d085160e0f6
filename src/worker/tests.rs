//! Whole workers on librdkafka's mock broker, with a search server in memory.

use std::collections::BTreeMap;

use rdkafka::consumer::BaseConsumer;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{Offset, TopicPartitionList};
use tokio::task::JoinHandle;

use super::*;
use crate::clock::BootClock;
use crate::config::{self, ByteSize, GroupProtocol};
use crate::testing::{MemoryElastic, rules, six_faces};

const TOPIC: &str = "documents";
const PARTITIONS: i32 = 4;
/// For things that take a second or two on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A broker with a topic, what was produced to it, and a search server.
struct World {
    broker: MockCluster<'static, DefaultProducerContext>,
    producer: BaseProducer,
    /// Asks for the group's offsets, and is no member of it.
    group: BaseConsumer,
    elastic: Arc<MemoryElastic>,
    ends: BTreeMap<i32, i64>,
    wanted: BTreeMap<String, String>,
}

/// One worker.
struct Running {
    stop: CancellationToken,
    task: JoinHandle<Result<(), WorkerError>>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
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
        Self { broker, producer, group, elastic, ends: BTreeMap::new(), wanted: BTreeMap::new() }
    }

    fn config(&self) -> Config {
        let mut config = Config::default();
        config.kafka.brokers = vec![self.broker.bootstrap_servers()];
        config.kafka.topic = TOPIC.to_owned();
        // The mock broker's rebalances take the session's timeout less a second.
        config.kafka.session_timeout = Duration::from_millis(2500);
        config.kafka.heartbeat_interval = Duration::from_millis(200);
        config.commit.interval = Duration::from_millis(100);
        config.batch.linger = Duration::from_millis(20);
        config.retry.initial = Duration::from_millis(10);
        config.retry.max = Duration::from_millis(100);
        config.shutdown.revoke = Duration::from_secs(2);
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
        let surroundings = Surroundings {
            elastic: self.elastic.clone(),
            rules: rules(),
            maps: MapsReader::fixed(six_faces(), clock.clone()),
            partitions: PARTITIONS,
            clock,
            metrics: metrics.clone(),
            health: health.clone(),
            board: tokio::sync::watch::channel(Vec::new()).0,
            stop: stop.clone(),
        };
        let config = config.clone();
        let task = tokio::spawn(async move { run(&config, surroundings).await });
        Running { stop, task, metrics, health }
    }

    /// What the group has committed.
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

    /// Waits until all that was produced is committed, and checks that all of it is done.
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

    async fn stop(self) -> Result<(), WorkerError> {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.expect("it ends").unwrap()
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
async fn what_is_in_the_topic_is_in_the_index_and_committed() {
    let mut world = World::new();
    world.produce(1, 400, 0);
    let worker = world.start(&world.config());
    world.until_done().await;
    assert!(worker.health.missing().is_empty());
    world.produce(2, 40, 0);
    world.until_done().await;
    let told_at = std::time::Instant::now();
    worker.stop().await.unwrap();
    assert!(told_at.elapsed() < world.config().shutdown.drain, "{:?}", told_at.elapsed());
}

/// Workers come and go while records do.
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
async fn workers_may_come_and_go_with_the_cooperative_sticky_assignment() {
    come_and_go(World::config).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_may_come_and_go_with_the_range_assignment() {
    come_and_go(|world| {
        let mut config = world.config();
        config.kafka.assignment = config::Assignment::Range;
        config
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_may_come_and_go_with_the_consumer_group_protocol() {
    come_and_go(|world| {
        let mut config = world.config();
        config.kafka.group_protocol = GroupProtocol::Consumer;
        config
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_index_stops_fetching_and_held_bytes_stay_at_the_bound() {
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
async fn a_partition_that_was_taken_while_paused_is_read_again_when_it_comes_back() {
    let mut world = World::new();
    world.produce(1, 400, 2000);
    world.elastic.set_faults(|faults| faults.down = true);
    let mut config = world.config();
    // Every partition is revoked in a rebalance, and some come back.
    config.kafka.assignment = config::Assignment::Range;
    config.memory.per_partition = ByteSize::new(32 * 1024);
    config.shutdown.revoke = Duration::from_millis(100);
    config.batch.deadline = Duration::from_secs(2);
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
async fn a_commit_that_is_refused_is_asked_for_again() {
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
async fn a_worker_that_can_not_drain_leaves_at_its_deadline_and_the_next_one_does_the_work() {
    let mut world = World::new();
    world.produce(1, 40, 0);
    let mut config = world.config();
    // In the classic protocol the mock broker leaves a join without an answer if it comes while the group's last member
    // is timing out.
    config.kafka.group_protocol = GroupProtocol::Consumer;
    config.shutdown.drain = Duration::from_secs(1);
    config.shutdown.revoke = Duration::from_millis(200);
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
async fn refused_credentials_end_the_worker_and_no_offset_moves() {
    let mut world = World::new();
    world.produce(1, 40, 0);
    world.elastic.set_faults(|faults| faults.unauthorized = true);
    let worker = world.start(&world.config());
    let ended = tokio::time::timeout(PATIENCE, worker.task).await.expect("it ends by itself").unwrap();
    assert!(matches!(ended, Err(WorkerError::Halt(_))), "{ended:?}");
    assert!(worker.health.missing().contains_key("elasticsearch"));
    assert_eq!(world.committed(), BTreeMap::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_record_stops_its_partition_only() {
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
async fn the_lag_is_shown() {
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
