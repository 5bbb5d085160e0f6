//! A worker's process as seen by one partition: the real partition task, and a driver in place of poll thread and Kafka
//! that feeds it, commits for it, stops it and kills it.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use geofold::base::clock::Clock;
use geofold::base::headers::OP_HEADER;
use geofold::base::ids::ShardId;
use geofold::base::position::Epoch;
use geofold::base::retry::RetryPolicy;
use geofold::core::decode::{Decoder, LocationPath};
use geofold::core::look_ahead::LookAhead;
use geofold::core::mover::Rules;
use geofold::core::schemas::Schemas;
use geofold::core::write::Body;
use geofold::geoshard::GeoshardMap;
use geofold::io::claims::{Claims, Keeper};
use geofold::io::elastic::rounds::{self, Halt, RequestDeadline, RequestSender, Unobserved};
use geofold::io::maps::{MapsReader, MapsRecord, OffsetFloor, Watcher};
use geofold::io::meta::TopicMemory;
use geofold::support::config::{LostRecords, Partitioner};
use geofold::support::telemetry::Metrics;
use geofold::support::telemetry::health::Health;
use geofold::support::telemetry::traces::Traces;
use geofold::worker::budget::{self, CacheShare, MemoryBudget, Meter};
use geofold::worker::dead_letter::{DeadLetter, DeadLetterSink};
use geofold::worker::flow::Suspended;
use geofold::worker::limits::WorkerLimits;
use geofold::worker::limits::{BATCHES_PER_REQUEST, Batching};
use geofold::worker::look_ahead::{AheadReader, Asking, Reading};
use geofold::worker::partition::{Mode, Partition, Published, WorkerContext};
use geofold::worker::record::Record;
use geofold::worker::reread::RecordReader;
use geofold::worker::topic_watch::TopicView;
use geofold::worker::visibility::Visibility;
use rdkafka::message::{Header, OwnedHeaders};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::requests::Wire;
use crate::scenario::{DEADLINE, Kind, PLACES, Scenario, Setup, document_id};
use crate::world::{Delivery, GEOSHARDS, TOPIC, World};
use crate::{searches, tally};

/// Which geoshard has which place by the usual map; and by the other one where two are live: every place moves, or all but one.
pub const USUAL: [&str; PLACES.len()] = GEOSHARDS;
pub const OTHERS: [[&str; PLACES.len()]; 2] = [["b", "c", "a"], ["a", "c", "b"]];

/// Where letters matter most they take so many times longer than a request.
const SLOW_LETTERS: u64 = 20;

/// Records that are read ahead at once.
const AHEAD_RECORDS: i64 = 4;

/// Records that may wait between poll thread and partition task.
const QUEUE_RECORDS: usize = 64;

/// Shared by all runs of a thread: it costs more to make than a run.
#[derive(Clone)]
pub struct Shared {
    pub metrics: Arc<Metrics>,
    /// For each other map: both are known, the usual one decides.
    pub both_known: [MapsRecord; 2],
    /// Both are known, the other one decides. No floor is needed: no process knows only one of them before this.
    pub other_decides: [MapsRecord; 2],
    map: Arc<GeoshardMap>,
    location: LocationPath,
}

impl Shared {
    pub fn new() -> Self {
        let usual = map(1, USUAL);
        let unwritten = MapsRecord::unwritten(usual.clone(), Epoch::default());
        let both_known = OTHERS.map(|other| unwritten.begin(map(2, other)).unwrap());
        let decides = |known: &MapsRecord| known.activate(Epoch::default(), OffsetFloor::new()).unwrap();
        let other_decides = both_known.each_ref().map(decides);
        Self {
            metrics: Metrics::new().unwrap(),
            both_known,
            other_decides,
            map: usual,
            location: LocationPath::new("location").unwrap(),
        }
    }
}

/// Each place of [`PLACES`] on its own face of S2's cube.
fn map(version: u64, geoshards: [&str; PLACES.len()]) -> Arc<GeoshardMap> {
    let starts = [0, 0x2000_0000_0000_0001, 0x4000_0000_0000_0001];
    let ranges = starts.into_iter().zip(geoshards.map(|id| ShardId::new(id).unwrap())).collect();
    Arc::new(GeoshardMap::new(version, "three faces", ranges).unwrap())
}

/// Stops a process, as SIGSTOP does: time goes on, and the process does nothing.
#[derive(Debug, Default)]
struct Freezer {
    is_frozen: AtomicBool,
    asleep: Mutex<Vec<Waker>>,
}

impl Freezer {
    fn freeze(&self) {
        self.is_frozen.store(true, Ordering::Relaxed);
    }

    fn thaw(&self) {
        self.is_frozen.store(false, Ordering::Relaxed);
        let asleep = std::mem::take(&mut *self.asleep.lock().unwrap_or_else(PoisonError::into_inner));
        asleep.into_iter().for_each(Waker::wake);
    }

    /// Runs work that stops while this is frozen.
    fn spawn(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        tokio::spawn(Stoppable { freezer: self.clone(), work: work.boxed() })
    }
}

/// A task that can be stopped at any await.
struct Stoppable {
    freezer: Arc<Freezer>,
    work: BoxFuture<'static, ()>,
}

impl Future for Stoppable {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.freezer.is_frozen.load(Ordering::Relaxed) {
            self.freezer.asleep.lock().unwrap_or_else(PoisonError::into_inner).push(cx.waker().clone());
            return Poll::Pending;
        }
        self.work.as_mut().poll(cx)
    }
}

/// The dead-letter topic as seen by one process.
struct Letters {
    world: Arc<World>,
    process: usize,
}

impl DeadLetterSink for Letters {
    fn deliver(&self, letters: Vec<DeadLetter>) -> BoxFuture<'_, ()> {
        async move {
            let (way, no_letters_until) = {
                let mut state = self.world.state();
                (state.one_to(self.world.scenario.setup.latency), state.no_letters_until)
            };
            // So that what comes later for the same document is often there before.
            let way = if self.world.scenario.spoils() { way * SLOW_LETTERS } else { way };
            let stalled = no_letters_until.saturating_sub(self.world.clock.awake());
            sleep(Duration::from_millis(stalled + way)).await;
            let Some(DeadLetter { stage, reason, origin, .. }) = letters.into_iter().next() else { return };
            let (first, last) = (origin.first_offset, origin.last_offset);
            self.world
                .note(None, || format!("  {} dead letter for {first}..={last}: {reason}", self.process));
            self.world.state().deliveries.push(Delivery { process: self.process, first, last, stage });
        }
        .boxed()
    }
}

/// The log, for records of refused folds, and to be read ahead: neither happens where compaction takes any.
struct Log {
    world: Arc<World>,
    location: LocationPath,
}

impl RecordReader for Log {
    fn read(&self, _: i32, offsets: Vec<i64>) -> BoxFuture<'static, Result<Vec<Record>, String>> {
        let scenario = self.world.scenario.clone();
        let way = self.world.state().one_to(scenario.setup.latency);
        async move {
            sleep(Duration::from_millis(way)).await;
            let record = |offset: &i64| record_at(&scenario, *offset);
            Ok(offsets.iter().filter_map(record).collect())
        }
        .boxed()
    }
}

impl AheadReader for Log {
    fn is_far_behind(&self, _: i32, _: i64, _: usize) -> Asking {
        async { Ok(true) }.boxed()
    }

    fn read(&self, _: i32, mut found: LookAhead) -> Reading {
        let scenario = self.world.scenario.clone();
        let from = found.start();
        let end = self.world.end_of_log().min(from + AHEAD_RECORDS);
        let way = scenario.setup.latency;
        let decoder = Decoder::new(self.location.clone(), Epoch::default(), 1 << 20);
        async move {
            sleep(Duration::from_millis(way)).await;
            for record in (from..end).filter_map(|offset| record_at(&scenario, offset)) {
                if let Ok(write) = decoder.decode(record.raw(0), &mut Schemas::new())
                    && matches!(write.body, Body::Index { .. } | Body::Delete)
                {
                    found.found_whole(&write.id, record.offset);
                }
            }
            found.ended(end);
            Ok(found)
        }
        .boxed()
    }
}

/// A record of the log, as a task is given it.
fn record_at(scenario: &Scenario, offset: i64) -> Option<Record> {
    let record = scenario.records.get(usize::try_from(offset).ok()?)?;
    let copy = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    let header = |op| OwnedHeaders::new().insert(Header { key: OP_HEADER, value: Some(op) });
    let (key, value) = (copy(&document_id(record.document)), record.value.as_deref().map(copy));
    Some(Record { offset, key: Some(key), value, headers: record.op.map(header) })
}

/// See the file's first lines.
pub struct Process {
    /// Counted from 0: one for each assignment.
    pub name: usize,
    /// The partition's number.
    number: i32,
    /// The offset committed before.
    began_at: i64,
    /// The offset of the next record to feed.
    pub next: i64,
    /// Stopped until then.
    pub frozen_until: Option<u64>,
    /// It has lost the partition, and learns so at this time.
    pub acts_until: Option<u64>,
    /// Whether it reads on after it lost the partition.
    pub reads_on: bool,
    world: Arc<World>,
    meter: Arc<Meter>,
    published: Arc<Published>,
    records: mpsc::Sender<Record>,
    mode: watch::Sender<Mode>,
    cancel: CancellationToken,
    freezer: Arc<Freezer>,
    health: Arc<Health>,
    fatal: mpsc::UnboundedReceiver<Halt>,
    memory: TopicMemory,
    task: JoinHandle<()>,
    limits: budget::MemoryLimits,
    suspended: Option<Suspended>,
}

fn limits(setup: &Setup) -> WorkerLimits {
    let batching = Batching {
        max_documents: setup.max_documents,
        max_bytes: 1 << 20,
        linger: Duration::from_millis(setup.linger),
        max_dirty_age: Duration::from_millis(setup.max_dirty_age),
        deadline: Duration::from_millis(DEADLINE),
    };
    let requests = rounds::RequestLimits {
        max_operations: setup.max_operations,
        max_bytes: 1 << 20,
        request_timeout: Duration::from_millis(setup.request_timeout),
    };
    WorkerLimits {
        batching,
        requests,
        max_in_flight: setup.permits,
        adaptive_concurrency: false,
        max_operations_per_second: None,
        memory: budget::MemoryLimits { total: usize::MAX, per_partition: setup.held },
    }
}

/// Sends the requests of the process called `name`.
fn request_sender(world: &Arc<World>, name: usize, limits: rounds::RequestLimits) -> RequestSender {
    let Setup { permits, retry_initial, retry_max, .. } = world.scenario.setup;
    let sender = RequestSender {
        elastic: Arc::new(Wire { world: world.clone(), process: name }),
        permits: Arc::new(Semaphore::new(permits)),
        queue: None,
        server: Arc::default(),
        look: 0,
        limits,
        retry: RetryPolicy {
            initial: Duration::from_millis(retry_initial),
            max: Duration::from_millis(retry_max),
        },
        clock: world.clock.clone(),
        observer: Arc::new(Unobserved),
    };
    sender.with_queue()
}

/// Follows the maps record, and keeps a claim on the partition.
fn follow_maps(
    rounds: &RequestSender,
    shared: &Shared,
    name: usize,
    freezer: &Arc<Freezer>,
    cancel: &CancellationToken,
) -> (MapsReader, Claims) {
    let (elastic, clock, deadline) = (&rounds.elastic, &rounds.clock, Duration::from_millis(DEADLINE));
    let configured = MapsRecord::unwritten(shared.map.clone(), Epoch::default());
    let gauges = shared.metrics.maps.clone();
    let (watcher, maps) = Watcher::new(elastic.clone(), TOPIC, configured, deadline, clock.clone(), gauges);
    freezer.spawn(watcher.run(cancel.clone()));
    let (owner, process) = (name.to_string().into(), name as u64);
    let (keeper, claims) = Keeper::new(elastic.clone(), TOPIC, owner, deadline, clock.clone(), process);
    freezer.spawn(keeper.run(cancel.clone()));
    (maps, claims)
}

impl Process {
    /// Starts a process that is assigned the partition and reads from `next` on.
    pub fn start(world: &Arc<World>, shared: &Shared, number: i32, name: usize, next: i64) -> Self {
        let scenario = &world.scenario;
        let freezer = Arc::<Freezer>::default();
        let cancel = CancellationToken::new();
        let clock: Arc<dyn Clock> = world.clock.clone();
        let metrics = shared.metrics.clone();
        let health = Health::new(clock.clone(), metrics.clone(), Duration::from_secs(30));
        health.ready(Health::STARTUP);
        let rules = Rules {
            map: shared.map.clone(),
            location: shared.location.clone(),
            on_missing: scenario.on_missing,
            other_map: None,
            announce_all: false,
            tally: scenario.counts().then(tally::rules),
        };
        let log = Arc::new(Log { world: world.clone(), location: shared.location.clone() });
        let limits = limits(&scenario.setup);
        let rounds = request_sender(world, name, limits.requests);
        let memory = TopicMemory::new(rounds.clone(), TOPIC);
        let (maps, claims) = match scenario.kind {
            Kind::TwoMaps => follow_maps(&rounds, shared, name, &freezer, &cancel),
            _ => (
                MapsReader::fixed(shared.map.clone(), clock.clone()),
                Claims::unchecked(clock.clone(), Duration::from_millis(DEADLINE)),
            ),
        };
        let (fatal_sender, fatal) = mpsc::unbounded_channel();
        let epoch = Epoch::default();
        let visibility = Visibility::new(rounds.clone(), metrics.clone());
        freezer.spawn(visibility.clone().run(cancel.clone()));
        let context = WorkerContext {
            topic: TOPIC.into(),
            epoch,
            counting: scenario.counts().then(|| tally::counting(world, name)),
            partitions: i32::MAX,
            partitioner: Partitioner::Custom,
            lost_records: LostRecords::Stop,
            topic_reader: TopicView::fixed(),
            batching: limits.batching,
            // They never change here.
            limits: watch::channel(limits).1,
            decoder: Decoder::new(shared.location.clone(), epoch, 1 << 20),
            registry: None,
            rules,
            maps,
            claims,
            retry: rounds.retry,
            rounds,
            batch_permits: Arc::new(Semaphore::new(limits.max_in_flight * BATCHES_PER_REQUEST)),
            moves: searches::moves(scenario.serves_searches()),
            visibility,
            memory: memory.clone(),
            refeed: None,
            distributor: None,
            reread: log.clone(),
            look_ahead: scenario.looks_ahead().then_some(log),
            dead_letters: Some(Arc::new(Letters { world: world.clone(), process: name })),
            load: None,
            traces: Traces::default(),
            clock,
            metrics: metrics.clone(),
            health: health.clone(),
            fatal: fatal_sender,
        };
        let (records, records_receiver) = mpsc::channel(QUEUE_RECORDS);
        let (mode, mode_receiver) = watch::channel(Mode::Run);
        let meter = Arc::new(Meter::new(MemoryBudget::new()));
        if scenario.looks_ahead() {
            meter.set_at_bound(Some(0));
        }
        let published = Published::new();
        let partition = Partition {
            number,
            context: Arc::new(context),
            records: records_receiver,
            mode: mode_receiver,
            cancel: cancel.clone(),
            meter: meter.clone(),
            published: published.clone(),
            cache_share: CacheShare::new(scenario.setup.cached_placements),
            // One for all: metrics are not checked.
            metrics: metrics.partition(0),
        };
        let task = freezer.spawn(partition.run());
        world.note(None, || format!("process {name} begins at {next}"));
        Self {
            name,
            number,
            began_at: next,
            next,
            frozen_until: None,
            acts_until: None,
            reads_on: true,
            world: world.clone(),
            meter,
            published,
            records,
            mode,
            cancel,
            freezer,
            health,
            fatal,
            memory,
            task,
            limits: limits.memory,
            suspended: None,
        }
    }

    /// Feeds the task the available records as far as memory allows.
    pub fn feed(&mut self, is_there: &[bool]) {
        if self.frozen_until.is_some() || !self.reads_on {
            return;
        }
        let now = self.world.clock.awake();
        while let Ok(offset) = usize::try_from(self.next)
            && let Some(record) = self.world.scenario.records.get(offset)
            && record.at <= now
        {
            if is_there[offset] {
                let reached = self.meter.reached(self.limits, self.meter.held(), self.suspended);
                let may_read = reached.is_none() && !self.records.is_closed();
                self.suspended = (!may_read).then_some(Suspended::Paused);
                if !may_read {
                    return;
                }
                let id = document_id(record.document);
                let Some(queued) = record_at(&self.world.scenario, self.next) else { return };
                let bytes = queued.bytes();
                if self.records.try_send(queued).is_err() {
                    return;
                }
                self.meter.enqueued(bytes);
                self.world.note(Some(&id), || format!("{} reads {offset}", self.name));
            }
            self.next += 1;
        }
    }

    /// The offset that may be committed.
    pub fn watermark(&self) -> Option<i64> {
        self.published.watermark()
    }

    /// Whether all of the log is done.
    pub fn is_done(&self) -> bool {
        self.watermark().unwrap_or(self.began_at) == self.world.end_of_log()
    }

    /// The task learns the commit now; Elasticsearch stores it a while later.
    pub fn remember(&self, committed: i64) {
        self.published.set_committed(committed);
        let (memory, world) = (self.memory.clone(), self.world.clone());
        let number = self.number;
        let cancel = self.cancel.child_token();
        let work = async move {
            let lease =
                RequestDeadline { deadline: world.clock.now() + Duration::from_millis(DEADLINE), cancel };
            // It may fail: a lagging value only detects less.
            let _ = memory.remember_watermarks(Epoch::default(), &[(number, committed)], &lease).await;
        };
        self.freezer.spawn(work);
    }

    /// Stops everything that the process does, until it is thawed.
    pub fn freeze(&mut self, until: u64) {
        self.frozen_until = Some(until);
        self.freezer.freeze();
        self.world.note(None, || format!("process {} is stopped until {until}", self.name));
    }

    /// Wakes the process if it is time.
    pub fn thaw_if_due(&mut self, now: u64) {
        if self.frozen_until.is_some_and(|until| until <= now) {
            self.frozen_until = None;
            self.freezer.thaw();
            self.world.note(None, || format!("process {} wakes", self.name));
        }
    }

    pub fn tell(&self, mode: Mode) {
        // The receiver is gone if the task has ended.
        let _ = self.mode.send(mode);
        self.world.note(None, || format!("process {} is told: {mode:?}", self.name));
    }

    /// What the end of a revocation does.
    pub fn cancel(&self) {
        self.cancel.cancel();
        self.world.note(None, || format!("process {} is cancelled", self.name));
    }

    /// Kills the process.
    pub fn kill(&self) {
        self.task.abort();
        self.cancel.cancel();
        self.world.note(None, || format!("process {} crashes", self.name));
    }

    pub fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Checks a process at any time. Another owner may have gone further than one that has lost its partition.
    pub fn check(&mut self, is_owner: bool) {
        let panic = crate::run::last_panic();
        // A zombie that was slow with its first claim may take the owner's, which gets it back once the zombie is
        // silent; otherwise the run hangs.
        let is_claimed_away = |reason: &str| reason.contains("now holds the claim");
        if (is_owner || panic.is_some())
            && let Some((part, reason)) = self.health.missing().into_iter().next()
            && !(panic.is_none() && is_claimed_away(&reason))
        {
            let panic = panic.unwrap_or_default();
            self.world.fail("stopped", None, format!("process {}: {part}: {reason} {panic}", self.name));
        }
        if let Ok(halt) = self.fatal.try_recv() {
            self.world.fail("halted", None, format!("process {}: {halt}", self.name));
        }
    }

    /// Checks a process that ended by itself.
    pub fn check_ended(&self) {
        let held = self.meter.held();
        if held > 0 {
            self.world.fail(
                "held",
                None,
                format!("process {} ended and still holds {held} bytes", self.name),
            );
        }
    }
}

/// A partition number per run, so that state that [`geofold::base::sabotage`] keeps across assignments does not leak
/// between runs.
pub fn next_partition() -> i32 {
    static NEXT: AtomicI32 = AtomicI32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
