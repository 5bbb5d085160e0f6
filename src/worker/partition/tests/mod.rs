//! The partition task against an in-memory search server, in paused time unless a test depends on real time.

mod assignment;
mod batches;
mod claims;
mod dead_letters;
mod distribution;
mod endings;
mod increments;
mod look_ahead;
mod maps;
mod offsets;
mod owners;
mod refeed;
mod schemas;
mod topic;
mod trouble;
mod visibility;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use rdkafka::message::{Header, OwnedHeaders};
use tokio::task::JoinHandle;
use tokio::time::{Instant as TokioInstant, sleep_until};

use self::distribution::{Endpoint, distributor};
use super::task::GAUGE_INTERVAL;
use super::*;
use crate::base::headers::OP_HEADER;
use crate::base::ids::{DocId, ShardId};
use crate::base::position::Position;
#[cfg(feature = "sabotage")]
use crate::base::sabotage::{self, Sabotage};
use crate::core::counting::facets::FacetRules;
use crate::core::mover::OnMissing;
use crate::geoshard::GeoshardMap;
use crate::io::claims::Keeper;
use crate::io::elastic::rounds::{self, RequestDeadline};
use crate::io::kafka::{TopicFactsError, TopicFactsFound};
use crate::io::maps::{MapsRecord, MapsStore, OffsetFloor, Watcher};
use crate::io::meta::TopicFacts;
use crate::support::config::{KeyForm, LostRecords, MoveVisibility as Promise, RecordFormat};
use crate::support::telemetry::metrics::level;
use crate::testkit::testing::{MemoryElastic, TokioClock, rules};
use crate::worker::budget::{MemoryBudget, MemoryLimits};
use crate::worker::dead_letter::{DeadLetter, Origin};
use crate::worker::distribution::action::JobAction;
use crate::worker::flow::Suspended;
use crate::worker::limits;
use crate::worker::topic_watch::{Describe, TopicWatch};

/// Old copies are deleted at once unless a test says otherwise.
const REALTIME: MovesConfig =
    MovesConfig { visibility: Promise::Realtime, search_grace: Duration::from_secs(1) };

/// Old copies are deleted once every search that began before has ended.
const FOR_SEARCHES: MovesConfig =
    MovesConfig { visibility: Promise::Search, search_grace: Duration::from_secs(1) };

const RETRY: RetryPolicy = RetryPolicy { initial: Duration::from_millis(100), max: Duration::from_secs(1) };

/// Limits that no test reaches by accident.
const WIDE: MemoryLimits = MemoryLimits { total: usize::MAX, per_partition: usize::MAX };

/// Keeps dead letters; acknowledges them only while open.
struct KeptLetters {
    letters: Mutex<Vec<DeadLetter>>,
    open: watch::Sender<bool>,
}

impl DeadLetterSink for KeptLetters {
    fn deliver(&self, letters: Vec<DeadLetter>) -> BoxFuture<'_, ()> {
        async move {
            let mut open = self.open.subscribe();
            let _ = open.wait_for(|open| *open).await;
            self.letters.lock().unwrap().extend(letters);
        }
        .boxed()
    }
}

/// Every record sent, to be read again.
#[derive(Default)]
struct KeptRecords {
    records: Mutex<BTreeMap<i64, Record>>,
    /// Makes every read fail with this reason.
    fault: Mutex<Option<&'static str>>,
    /// How often it was asked.
    reads: AtomicI64,
}

impl RecordReader for KeptRecords {
    fn read(&self, _: i32, offsets: Vec<i64>) -> BoxFuture<'static, Result<Vec<Record>, String>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let records = self.records.lock().unwrap();
        let records = offsets.iter().filter_map(|offset| records.get(offset).cloned()).collect();
        let answer = self.fault.lock().unwrap().map_or(Ok(records), |fault| Err(fault.to_owned()));
        async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            answer
        }
        .boxed()
    }
}

/// One partition task and its environment.
struct Rig {
    elastic: Arc<MemoryElastic>,
    clock: Arc<TokioClock>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    letters: Arc<KeptLetters>,
    memory: TopicMemory,
    budget: Arc<MemoryBudget>,
    meter: Arc<Meter>,
    published: Arc<Published>,
    records: mpsc::Sender<Record>,
    mode: watch::Sender<Mode>,
    cancel: CancellationToken,
    fatal: mpsc::UnboundedReceiver<Halt>,
    task: JoinHandle<()>,
    watermark: Option<i64>,
    /// Permits for requests to the server.
    permits: Arc<Semaphore>,
    /// Permits for batches.
    batch_permits: Arc<Semaphore>,
    /// Publishes limits.
    limits: watch::Sender<limits::WorkerLimits>,
    kept_records: Arc<KeptRecords>,
    cache_share: Arc<CacheShare>,
    context: Arc<WorkerContext>,
    /// Triggered by [`Rig::look`]; see [`Rig::following`].
    watcher: Option<Watcher>,
    /// See [`Rig::look_at_topic`].
    topic_watch: TopicWatch,
}

/// A topic with this many partitions.
struct Topic {
    partitions: i32,
}

impl Describe for Topic {
    fn describe(&self) -> BoxFuture<'_, Result<TopicFactsFound, TopicFactsError>> {
        let found = TopicFactsFound { topic_id: Some("a".to_owned()), partitions: self.partitions };
        async move { Ok(found) }.boxed()
    }
}

/// A claim keeper for the worker of this name.
fn keeper(
    elastic: &Arc<MemoryElastic>,
    clock: &Arc<TokioClock>,
    owner: &str,
    deadline: Duration,
) -> (Keeper, Claims) {
    let process = RandomState::new().hash_one(owner);
    Keeper::new(elastic.clone(), "topic", owner.into(), deadline, clock.clone(), process)
}

fn batching() -> Batching {
    Batching {
        max_documents: 100,
        max_bytes: 1 << 20,
        linger: Duration::from_millis(200),
        max_dirty_age: Duration::from_secs(10),
        deadline: Duration::from_secs(60),
    }
}

/// How a rig differs from the usual one.
struct RigOptions {
    batching: Batching,
    has_dead_letters: bool,
    /// Follows the maps record on each [`Rig::look`], and must claim its partition.
    follows: bool,
    counts: Option<(FacetRules, Arc<IncrementsContext>)>,
    /// Of a distribution job with a gate.
    action: Option<Arc<dyn JobAction>>,
    on_missing: OnMissing,
    refeed: Option<SourceFetcher>,
    registry: Option<Registry>,
    /// That of an earlier owner of the partition.
    elastic: Option<Arc<MemoryElastic>>,
    moves: MovesConfig,
    look_ahead: Option<Arc<dyn AheadReader>>,
}

impl Default for RigOptions {
    fn default() -> Self {
        Self {
            batching: batching(),
            has_dead_letters: true,
            follows: false,
            counts: None,
            action: None,
            on_missing: OnMissing::DeadLetter,
            refeed: None,
            registry: None,
            elastic: None,
            moves: REALTIME,
            look_ahead: None,
        }
    }
}

/// Requests to this server, four at a time.
fn request_sender(
    elastic: &Arc<MemoryElastic>,
    clock: &Arc<TokioClock>,
    metrics: &Arc<Metrics>,
) -> RequestSender {
    RequestSender {
        elastic: elastic.clone(),
        permits: Arc::new(Semaphore::new(4)),
        queue: None,
        server: Arc::default(),
        look: 0,
        limits: rounds::RequestLimits {
            max_operations: 1000,
            max_bytes: 1 << 20,
            request_timeout: Duration::from_secs(20),
        },
        retry: RETRY,
        clock: clock.clone(),
        observer: metrics.clone(),
    }
}

impl Rig {
    fn start() -> Self {
        Self::build(RigOptions::default())
    }

    fn with(batching: Batching) -> Self {
        Self::build(RigOptions { batching, ..RigOptions::default() })
    }

    fn distributing(endpoint: &Arc<Endpoint>) -> Self {
        Self::build(RigOptions { action: Some(endpoint.clone()), ..RigOptions::default() })
    }

    /// Another owner of the same partition.
    fn next_owner(&self) -> Self {
        Self::build(RigOptions { elastic: Some(self.elastic.clone()), ..RigOptions::default() })
    }

    /// Searches never miss a moving document.
    fn serving_searches() -> Self {
        Self::build(RigOptions { moves: FOR_SEARCHES, ..RigOptions::default() })
    }

    /// Follows the maps record on each [`Rig::look`], and must claim its partition.
    fn following() -> Self {
        let rig = Self::watching();
        rig.look_at_topic(4).now_or_never().unwrap();
        rig
    }

    /// As [`Rig::following`], with the topic not yet looked at.
    fn watching() -> Self {
        Self::build(RigOptions { follows: true, ..RigOptions::default() })
    }

    /// Looks at the topic, which now has this many partitions and had 4.
    async fn look_at_topic(&self, partitions: i32) {
        self.topic_watch.look(&Topic { partitions }).await;
    }

    fn build(options: RigOptions) -> Self {
        let RigOptions { batching, has_dead_letters, follows, counts, action, .. } = options;
        let RigOptions { on_missing, refeed, registry, elastic, moves, look_ahead, .. } = options;
        let (tally, counting) = counts.unzip();
        let rules = Rules { tally, on_missing, ..rules() };
        let elastic = elastic.unwrap_or_else(|| MemoryElastic::for_map(&rules.map));
        elastic.set_faults(|faults| faults.delay = Duration::from_millis(10));
        let clock = Arc::new(TokioClock::new());
        let metrics = Metrics::new().unwrap();
        let health = Health::new(clock.clone(), metrics.clone(), Duration::from_secs(30));
        health.ready(Health::STARTUP);
        let rounds = request_sender(&elastic, &clock, &metrics);
        let (permits, batch_permits) = (rounds.permits.clone(), Arc::new(Semaphore::new(2)));
        let memory = TopicMemory::new(rounds.clone(), "topic");
        let letters = Arc::new(KeptLetters { letters: Mutex::default(), open: watch::Sender::new(true) });
        let kept_records = Arc::new(KeptRecords::default());
        let epoch = Epoch::new(1).unwrap();
        let topic =
            TopicFacts { epoch, topic_id: Some("a".to_owned()), partitions: 4, map: None, added: None };
        let (topic_watch, topic_reader) = TopicWatch::new(topic, clock.clone());
        let deadline = batching.deadline;
        let (watcher, maps, claims, topic_reader, partitions) = if follows {
            let configured = MapsRecord::unwritten(rules.map.clone(), epoch);
            let gauges = metrics.maps.clone();
            let (watcher, maps) =
                Watcher::new(elastic.clone(), "topic", configured, deadline, clock.clone(), gauges);
            let (keeper, claims) = keeper(&elastic, &clock, "test", deadline);
            tokio::spawn(keeper.run(CancellationToken::new()));
            (Some(watcher), maps, claims, topic_reader, 4)
        } else {
            let maps = MapsReader::fixed(rules.map.clone(), clock.clone());
            (None, maps, Claims::unchecked(clock.clone(), deadline), TopicView::fixed(), i32::MAX)
        };
        let (limits, followed) = watch::channel(limits::WorkerLimits {
            batching,
            requests: rounds.limits,
            max_in_flight: 4,
            adaptive_concurrency: false,
            max_operations_per_second: None,
            memory: WIDE,
        });
        let (fatal_sender, fatal) = mpsc::unbounded_channel();
        let visibility = Visibility::new(rounds.clone(), metrics.clone());
        tokio::spawn(visibility.clone().run(CancellationToken::new()));
        let format = if registry.is_some() { RecordFormat::Registry } else { RecordFormat::Json };
        let context = Arc::new(WorkerContext {
            topic: "topic".into(),
            partitions,
            partitioner: Partitioner::Murmur2,
            lost_records: LostRecords::Stop,
            topic_reader,
            epoch,
            batching,
            limits: followed,
            decoder: Decoder::new(rules.location.clone(), epoch, 1 << 20).in_forms(format, KeyForm::Text),
            registry,
            maps,
            claims,
            rules,
            rounds,
            batch_permits: batch_permits.clone(),
            moves,
            visibility,
            memory: memory.clone(),
            refeed,
            distributor: distributor(&letters, &clock, &metrics, action),
            reread: kept_records.clone(),
            look_ahead,
            dead_letters: has_dead_letters.then(|| letters.clone() as Arc<dyn DeadLetterSink>),
            counting,
            load: None,
            retry: RETRY,
            traces: Traces::default(),
            clock: clock.clone(),
            metrics: metrics.clone(),
            health: health.clone(),
            fatal: fatal_sender,
        });
        let (records, records_receiver) = mpsc::channel(4096);
        let (mode, mode_receiver) = watch::channel(Mode::Run);
        let budget = MemoryBudget::new();
        let meter = Arc::new(Meter::new(budget.clone()));
        let (published, cache_share) = (Published::new(), CacheShare::new(1000));
        let cancel = CancellationToken::new();
        let partition = Partition {
            number: 0,
            context: context.clone(),
            records: records_receiver,
            mode: mode_receiver,
            cancel: cancel.clone(),
            meter: meter.clone(),
            published: published.clone(),
            cache_share: cache_share.clone(),
            metrics: metrics.partition(0),
        };
        let task = tokio::spawn(partition.run());
        Self {
            elastic,
            clock,
            metrics,
            health,
            letters,
            memory,
            budget,
            meter,
            published,
            records,
            mode,
            cancel,
            fatal,
            task,
            watermark: None,
            permits,
            batch_permits,
            limits,
            kept_records,
            cache_share,
            context,
            watcher,
            topic_watch,
        }
    }

    /// The watcher reads the maps record.
    async fn look(&self) {
        self.watcher.as_ref().unwrap().look().await;
    }

    /// Changes the maps record; the task sees the change after [`Rig::look`].
    async fn set_maps(&self, record: &MapsRecord) {
        let store = MapsStore::new(&*self.elastic, "topic", Duration::from_secs(10));
        let over = store.read().await.unwrap().map(|stored| stored.stamp);
        store.write(record, over).await.unwrap();
    }

    /// The generation confirmed by the owner of partition 0.
    async fn confirmed(&self) -> Option<u64> {
        let store = MapsStore::new(&*self.elastic, "topic", Duration::from_secs(10));
        store.claims(1).await.unwrap().pop().flatten().map(|claim| claim.generation)
    }

    /// Whether the partition may be read.
    fn may_read(&self, limits: MemoryLimits, is_paused: bool) -> bool {
        let suspended = is_paused.then_some(Suspended::Paused);
        self.meter.reached(limits, self.budget.held(), suspended).is_none()
    }

    fn send(&self, offset: i64, id: &str, value: Option<&str>, op: Option<&str>) {
        let headers = op.map(|op| OwnedHeaders::new().insert(Header { key: OP_HEADER, value: Some(op) }));
        let copy = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        let record = Record { offset, key: Some(copy(id)), value: value.map(copy), headers };
        self.kept_records.records.lock().unwrap().insert(offset, record.clone());
        self.meter.enqueued(record.bytes());
        assert!(self.records.try_send(record).is_ok());
    }

    /// A document at 1° north and `lon`° east; `n` distinguishes versions.
    fn index(&self, offset: i64, id: &str, lon: i32, n: i64) {
        self.send(offset, id, Some(&document(lon, n)), None);
    }

    fn bad(&self, offset: i64, id: &str) {
        self.send(offset, id, Some("{"), None);
    }

    /// Checks the invariants of every step.
    fn check(&mut self) {
        let watermark = self.published.watermark();
        assert!(watermark >= self.watermark, "the watermark went back");
        self.watermark = watermark;
        let counts = self.counts();
        assert_eq!(counts["in"], counts["done"] + counts["in_flight"], "{counts:?}");
        assert_eq!(self.budget.held(), self.meter.held());
    }

    /// The record metrics: sums and each outcome.
    fn counts(&self) -> BTreeMap<String, i64> {
        let outcomes = self.metrics.read_outcomes();
        let done: u64 = outcomes.iter().map(|(_, records)| records).sum();
        let in_flight = self.metrics.read_partitions().iter().map(|partition| partition.in_flight).sum();
        let sums =
            [("in", level(self.metrics.read_records())), ("done", level(done)), ("in_flight", in_flight)];
        let outcomes = outcomes.into_iter().filter(|(_, records)| *records > 0);
        let outcomes = outcomes.map(|(outcome, records)| (outcome, level(records)));
        sums.into_iter().chain(outcomes).map(|(key, records)| (key.to_owned(), records)).collect()
    }

    /// Number of partitions reported as stopped.
    fn metrics_of_stopped(&self) -> i64 {
        let text = self.metrics.render().unwrap();
        let line = text.lines().find(|line| line.starts_with("geofold_stopped_partitions ")).unwrap();
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    }

    /// Advances time until `wanted`, checking invariants at each step.
    async fn until(&mut self, what: &str, wanted: impl Fn(&Self) -> bool) {
        let limit = TokioInstant::now() + Duration::from_secs(300);
        while !wanted(self) {
            assert!(TokioInstant::now() < limit, "never came: {what}; {:?}", self.counts());
            tokio::time::sleep(Duration::from_millis(5)).await;
            self.check();
        }
    }

    async fn until_watermark(&mut self, offset: i64) {
        self.until(&format!("watermark {offset}"), |rig| rig.published.watermark() == Some(offset)).await;
    }

    async fn pass(&mut self, time: Duration) {
        let end = TokioInstant::now() + time;
        while TokioInstant::now() < end {
            tokio::time::sleep(Duration::from_millis(50)).await;
            self.check();
        }
    }

    async fn until_ended(&mut self) {
        self.until("the task's end", |rig| rig.task.is_finished()).await;
        assert!(self.published.drained());
    }

    fn letters(&self) -> Vec<(i64, i64, &'static str, &'static str)> {
        let letters = self.letters.letters.lock().unwrap();
        let origin = |letter: &DeadLetter| {
            let Origin { first_offset, last_offset, .. } = letter.origin;
            (first_offset, last_offset, letter.stage, letter.reason)
        };
        let mut letters: Vec<_> = letters.iter().map(origin).collect();
        letters.sort_unstable();
        letters
    }
}
fn document(lon: i32, n: i64) -> String {
    format!(r#"{{"location":[{lon},1],"n":{n}}}"#)
}

fn shards(copies: &[(ShardId, String)]) -> Vec<&str> {
    copies.iter().map(|(shard, _)| shard.as_str()).collect()
}

/// Bulk operations on placements for one more write of `id`.
async fn placements_written(rig: &mut Rig, offset: i64, id: &str) -> usize {
    placements_written_at(rig, offset, id, 10).await
}

/// The same, where that longitude is.
async fn placements_written_at(rig: &mut Rig, offset: i64, id: &str, lon: i32) -> usize {
    let before = rig.elastic.placement_writes();
    rig.index(offset, id, lon, offset);
    rig.until_watermark(offset + 1).await;
    rig.elastic.placement_writes() - before
}

/// Two geoshards made of the six faces: the hemisphere of longitude 91° is `f1`, that of 1° is `f3`.
fn two_halves() -> Arc<GeoshardMap> {
    let shard = |id| ShardId::new(id).unwrap();
    let ranges = vec![(0, shard("f3")), (1 << 61 | 1, shard("f1")), (2 << 61 | 1, shard("f3"))];
    Arc::new(GeoshardMap::new(2, "halves", ranges).unwrap())
}

fn unwritten() -> MapsRecord {
    MapsRecord::unwritten(rules().map, Epoch::new(1).unwrap())
}
