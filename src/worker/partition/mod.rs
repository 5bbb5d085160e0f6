//! One partition's task: decode, fold, one batch in flight, settle, publish the watermark. Partitions share
//! nothing but the permits and the budget.
//!
//! | file | what it holds |
//! |---|---|
//! | `first.rs` | where reading may start |
//! | `keys.rs` | whether its keys are where `kafka.partitioner` puts them |
//! | `maps.rs` | the maps it acts by |
//! | `claim.rs` | the partition's claim and the remaining power of earlier owners |
//! | `load.rs` | counts written documents by place |
//! | `letters.rs` | dead letters |
//! | `refeed.rs` | requests to the source of truth |
//! | `reread.rs` | records of a refused fold, retried one by one |
//! | `core/schemas/mod.rs` | a record that lacks a schema |
//! | `distributions.rs` | requested distributions |
//! | `gates.rs` | other work that must finish before a commit |
//! | `tally.rs` | increments, and the commits that wait for them |

mod claim;
mod distributions;
mod first;
pub mod gates;
mod keys;
mod letters;
mod load;
mod maps;
mod refeed;
mod reread;
mod schemas;
mod tally;
mod turn;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use futures::future::{BoxFuture, Fuse, FusedFuture, FutureExt};
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant as TokioInstant, MissedTickBehavior, sleep_until};
use tokio_util::sync::CancellationToken;

use self::claim::Ownership;
use self::distributions::Distributions;
use self::first::First;
use self::gates::CommitBarrier;
use self::letters::Delivered;
use self::load::PartitionLoad;
use self::schemas::Asking;
pub use self::tally::Counting;
use self::tally::{Sending, Tally};
use self::turn::BatchPermit;
use super::budget::{CacheShare, Meter};
use super::ledger::{Ledger, Settlement};
use super::limits::{self, Batching, LimitsReader};
use super::record::Record;
use super::reread::Reread;
use super::topic_watch::TopicReader;
use crate::base::clock::{Clock, Instant};
use crate::base::position::{Epoch, Position};
use crate::base::retry::{Delays, RetryPolicy};
#[cfg(feature = "sabotage")]
use crate::base::sabotage::{self, Sabotage};
use crate::core::decode::{Decoder, RawRecord, Undecoded};
use crate::core::mover::{self, Finished, MoverState, Rules};
use crate::core::offsets::Trouble;
use crate::core::placement::PlacementCache;
use crate::core::schemas::Schemas;
use crate::io::claims::{Claimed, Claims};
use crate::io::elastic::rounds::{self, Halt, RequestDeadline, RequestSender};
use crate::io::kafka::partitioner::Sample;
use crate::io::load::LoadSender;
use crate::io::maps::{MapsReader, MapsRecord};
use crate::io::meta::Memory;
use crate::io::registry::Registry;
use crate::support::config::{LostRecords, Moves, Partitioner, Visibility as Promise};
use crate::support::telemetry::events::{
    BatchFailed, BatchFinished, EntryParked, GapWhileCounting, PartitionStopped, PlacementSetBack,
    RecordedDecisionFinished,
};
use crate::support::telemetry::health::Health;
use crate::support::telemetry::metrics::{Lookup, Metrics, Outcome as Counted, PartitionMetrics};
use crate::support::telemetry::traces::{PartitionTraces, Traces};
use crate::worker::dead_letter::DeadLetterSink;
use crate::worker::distribution::Distributor;
use crate::worker::drive::run;
use crate::worker::refeed::{FetchResponse, SourceFetcher};
use crate::worker::visibility::{Seen, Subscription, Visibility};

/// Records taken from the queue in one go before the batch in flight is polled again.
const RECORDS_AT_ONCE: usize = 512;

/// Maximum time that due sweeps wait to be batched.
const LONGEST_SWEEP_LINGER: Duration = Duration::from_secs(1);

/// Interval between gauge updates.
const GAUGE_INTERVAL: Duration = Duration::from_millis(500);

/// Shared dependencies of all partition tasks of a worker.
pub struct WorkerContext {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The configured epoch.
    pub epoch: Epoch,
    /// The topic's partition count when the worker started.
    pub partitions: i32,
    /// The producers' partitioner.
    pub partitioner: Partitioner,
    /// Policy for records deleted from the topic before they were read.
    pub lost_records: LostRecords,
    /// Reports whether the topic was re-created or repartitioned.
    pub topic_reader: TopicReader,
    /// Batching limits at startup. Only `deadline` stays fixed; the rest may be reloaded.
    pub batching: Batching,
    /// The limits in force.
    pub limits: LimitsReader,
    /// Decodes records into writes.
    pub decoder: Decoder,
    /// The schema registry; `None` if no record needs one.
    pub registry: Option<Registry>,
    /// Placement rules; `maps` supplies the map.
    pub rules: Rules,
    /// The maps in force.
    pub maps: MapsReader,
    /// Claims partitions.
    pub claims: Claims,
    /// Sends requests to Elasticsearch.
    pub rounds: RequestSender,
    /// Limits batches in flight.
    pub turns: Arc<Semaphore>,
    /// Guarantees for documents that move.
    pub moves: Moves,
    /// When searches find what was written.
    pub visibility: Arc<Visibility>,
    /// Remembered state of the topic and its partitions.
    pub memory: Memory,
    /// The source of truth, if configured.
    pub refeed: Option<SourceFetcher>,
    /// Work that must follow a change of a geoshard, if configured.
    pub distributor: Option<Arc<Distributor>>,
    /// Reads records of refused folds again; `None`: such a fold becomes one dead letter.
    pub reread: Option<Arc<dyn Reread>>,
    /// The dead-letter topic; `None` stops a partition at its first bad record.
    pub dead_letters: Option<Arc<dyn DeadLetterSink>>,
    /// Publishes count increments; `None` if nothing is counted.
    pub counting: Option<Arc<Counting>>,
    /// Where written documents are counted by place, and the level of the cells; `None` if they are not.
    pub load: Option<(u8, LoadSender)>,
    /// Pause between attempts that made no progress.
    pub retry: RetryPolicy,
    /// Trace exporter.
    pub traces: Traces,
    /// Boot-time clock.
    pub clock: Arc<dyn Clock>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Reports stopped partitions.
    pub health: Arc<Health>,
    /// Receives the errors that stop the worker.
    pub fatal: mpsc::UnboundedSender<Halt>,
}

/// What the poll thread tells a partition task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Read and write.
    Run,
    /// The worker stops: take no more records, write everything dirty, then end.
    Drain,
    /// The partition is revoked: finish the batch in flight, then end.
    FinishBatch,
}

/// Offset information from the poll thread, beyond the records.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known {
    /// Every offset below was handed over or is not a record (transaction marker, compacted).
    pub read_to: Option<i64>,
    /// The partition's first offset, if nothing is committed.
    pub first: Option<i64>,
    /// Why reading cannot continue.
    pub trouble: Option<Trouble>,
}

/// State shared by a partition task and the poll thread.
#[derive(Debug)]
pub struct Published {
    known: watch::Sender<Known>,
    watermark: AtomicI64,
    committed: AtomicI64,
    drained: AtomicBool,
}

impl Published {
    const NONE: i64 = -1;

    /// Nothing read, nothing done.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            known: watch::Sender::default(),
            watermark: AtomicI64::new(Self::NONE),
            committed: AtomicI64::new(Self::NONE),
            drained: AtomicBool::new(false),
        })
    }

    /// The offset that may be committed.
    pub fn watermark(&self) -> Option<i64> {
        // Acquire: a reader of the watermark also relies on the acknowledgements behind it.
        let offset = self.watermark.load(Ordering::Acquire);
        (offset != Self::NONE).then_some(offset)
    }

    /// The broker acknowledged the commit of this offset.
    pub fn set_committed(&self, offset: i64) {
        self.committed.fetch_max(offset, Ordering::AcqRel);
    }

    /// The offset that the broker has acknowledged.
    pub fn committed(&self) -> Option<i64> {
        let offset = self.committed.load(Ordering::Acquire);
        (offset != Self::NONE).then_some(offset)
    }

    /// Updates the offset information. Set [`Known::read_to`] only after all records below it are queued.
    pub fn tell(&self, change: impl FnOnce(&mut Known)) {
        self.known.send_modify(change);
    }

    /// Whether the task has ended.
    pub fn drained(&self) -> bool {
        self.drained.load(Ordering::Acquire)
    }
}

/// The name of a stopped partition in [`Health`].
pub fn stopped_part(partition: i32) -> String {
    format!("partition {partition}")
}

const DEFECT: &str =
    "its task ended unexpectedly; this is a defect in geofold, please report it with the log";

fn show_stopped(bench: &WorkerContext, partition: i32, offset: Option<i64>, reason: &str) {
    bench.health.not_ready(stopped_part(partition), reason);
    PartitionStopped { partition, offset, reason: &reason }.emit(&bench.metrics);
}

/// One partition's task, before it runs.
pub struct Partition {
    /// The partition number.
    pub number: i32,
    /// Shared by all tasks.
    pub bench: Arc<WorkerContext>,
    /// Its records.
    pub records: mpsc::Receiver<Record>,
    /// The current instruction.
    pub mode: watch::Receiver<Mode>,
    /// Ends the task at once; versions make anything in flight harmless.
    pub cancel: CancellationToken,
    /// Bytes held.
    pub meter: Arc<Meter>,
    /// State visible to the poll thread.
    pub published: Arc<Published>,
    /// The partition's share of the placement cache.
    pub cache_share: Arc<CacheShare>,
    /// Its counters.
    pub metrics: PartitionMetrics,
}

type Batch = Fuse<BoxFuture<'static, Result<(Finished, Duration), Halt>>>;

impl Partition {
    /// Runs until drained, finished or cancelled.
    pub async fn run(self) {
        let cancel = self.cancel.clone();
        let (number, bench, published) = (self.number, self.bench.clone(), self.published.clone());
        let Ok(mut task) = catch_unwind(AssertUnwindSafe(|| Task::new(self))) else {
            show_stopped(&bench, number, None, DEFECT);
            published.drained.store(true, Ordering::Release);
            return;
        };
        let ended = tokio::select! {
            biased;
            () = cancel.cancelled() => Ok(()),
            // Without this, a panic would leave the partition silently unprocessed.
            ended = AssertUnwindSafe(task.run()).catch_unwind() => ended,
        };
        match ended {
            Err(_) => task.stop(None, DEFECT),
            Ok(()) if !cancel.is_cancelled() => task.leave_claim(),
            Ok(()) => {}
        }
        // The next owner reads the rest again.
        task.partition.meter.set_folded(0);
        task.partition.published.drained.store(true, Ordering::Release);
    }
}

struct Task {
    partition: Partition,
    ledger: Ledger,
    gates: CommitBarrier,
    distributions: Option<Distributions>,
    /// What searches must find before old copies are deleted.
    visibility: Subscription,
    /// `None` while a batch is in flight.
    desk: Option<MoverState>,
    batch: Batch,
    /// The limits of the last batch's end, or later ones.
    batching: Batching,
    requests: rounds::Limits,
    limits: LimitsReader,
    /// Nothing is handed out before this is granted.
    turn: BatchPermit,
    /// Wakes when the maps record was read again.
    maps: MapsReader,
    /// The maps record the task acts by.
    acting: Arc<MapsRecord>,
    /// The partition's claim; it also carries the maps the task acts by.
    claim: Claimed,
    /// Offset information from the poll thread.
    known: watch::Receiver<Known>,
    ownership: Ownership,
    batch_size: u32,
    deliveries: FuturesUnordered<BoxFuture<'static, Delivered>>,
    /// Records of refused folds that are being read again.
    rereading: FuturesUnordered<BoxFuture<'static, reread::Came>>,
    /// Bytes held by dead letters in flight.
    letter_bytes: usize,
    /// The schemas of its records.
    schemas: Schemas,
    /// The last record read, if it lacks a schema.
    held_back: Option<Record>,
    /// The pending schema request.
    asking: Asking,
    /// Answers of the source.
    answers: mpsc::UnboundedReceiver<FetchResponse>,
    /// Handed out with each request to the source.
    asked: mpsc::UnboundedSender<FetchResponse>,
    delays: Delays,
    /// Earliest start of the next batch after one without progress.
    not_before: Option<TokioInstant>,
    /// When returned entries are due again.
    again_at: Option<TokioInstant>,
    tally: Option<Tally>,
    load: Option<PartitionLoad>,
    /// The increment in flight.
    sending: Sending,
    /// The committed position at assignment, if known.
    committed_before: Position,
    stopped: bool,
    /// Wakes when the topic was checked again.
    topic: TopicReader,
    /// Positions of dirty entries may be meaningless: nothing is sent or published.
    frozen: bool,
    /// When the partition was assigned.
    assigned_at: Instant,
    /// Offsets are missing between the committed and the read ones (compaction or transaction markers).
    saw_gap: bool,
    /// The first keys read, until the sample is large enough.
    sample: Option<Sample>,
    /// Offset and digest of the last record read.
    last_read: Option<(i64, u64)>,
    /// Last iteration of the loop; after the first record at least one per gauge tick.
    last_turn: Instant,
    /// Cached placements may be outdated beyond what versions protect against.
    is_cache_doubtful: bool,
    traces: PartitionTraces,
    metrics: PartitionMetrics,
}

impl Task {
    fn new(partition: Partition) -> Self {
        let bench = &partition.bench;
        let cache = PlacementCache::new(partition.cache_share.of_one());
        let (asked, answers) = mpsc::unbounded_channel();
        #[cfg(feature = "sabotage")]
        let cache = crate::worker::kept::take(partition.number).unwrap_or(cache);
        let mut task = Self {
            ledger: Ledger::new(bench.rules.clone(), bench.epoch),
            gates: CommitBarrier::default(),
            distributions: bench
                .distributor
                .as_ref()
                .map(|d| Distributions::new(d.subscribe(partition.number))),
            visibility: bench.visibility.subscribe(),
            desk: Some(MoverState {
                partition: Some(partition.number),
                ..MoverState::new(bench.rules.clone(), cache)
            }),
            batch: Fuse::terminated(),
            batching: bench.batching,
            requests: bench.rounds.limits,
            limits: bench.limits.clone(),
            turn: BatchPermit::new(bench.turns.clone()),
            maps: bench.maps.clone(),
            acting: bench.maps.record(),
            claim: bench.claims.claim(partition.number, bench.maps.record().generation),
            known: partition.published.known.subscribe(),
            ownership: Ownership::default(),
            batch_size: 0,
            deliveries: FuturesUnordered::new(),
            rereading: FuturesUnordered::new(),
            schemas: Schemas::new(),
            held_back: None,
            asking: Fuse::terminated(),
            answers,
            asked,
            delays: bench.retry.delays(),
            letter_bytes: 0,
            not_before: None,
            again_at: None,
            tally: Tally::new(bench, partition.number),
            load: bench.load.clone().map(|(level, to)| PartitionLoad::new(level, to)),
            sending: Fuse::terminated(),
            committed_before: Position::from_version(0),
            stopped: false,
            topic: bench.topic_reader.clone(),
            frozen: false,
            assigned_at: bench.clock.now(),
            saw_gap: false,
            sample: Some(Sample::default()),
            last_read: None,
            last_turn: bench.clock.now(),
            is_cache_doubtful: false,
            traces: bench.traces.partition(partition.number),
            metrics: partition.metrics.clone(),
            partition,
        };
        task.act_by(task.acting.clone());
        task.distribute_all();
        task
    }

    async fn run(&mut self) {
        let Some(first) = self.first().await else { return };
        if !self.may_start_at(first.offset()).await {
            // The partition may be stopped for a long time while others need the memory.
            if let First::Record(record) = first {
                self.partition.meter.dequeued(record.bytes());
            }
            return self.wait_for_revocation().await;
        }
        self.count_from(first.offset());
        match first {
            First::Record(record) => self.take(record),
            First::End(offset) => self.ledger.read_up_to(offset),
        }
        // Nothing ticked while the task waited for the first record.
        self.last_turn = self.now();
        let mut gauges = tokio::time::interval(GAUGE_INTERVAL);
        gauges.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.follow_claim();
            self.follow_topic();
            self.follow_offsets();
            self.invalidate_stale_cache();
            self.publish();
            self.follow_maps();
            self.follow_limits();
            self.follow_cache_share();
            let mode = *self.partition.mode.borrow_and_update();
            if self.has_ended(mode) {
                return;
            }
            self.flush_before_leaving(mode);
            self.start_batch(mode);
            self.send_increment(mode);
            let takes_records = mode == Mode::Run && !self.stopped && self.held_back.is_none();
            let batch_due_at = if self.turn.is_waiting() { None } else { self.batch_due_at(mode) };
            let wake_at = [batch_due_at, self.increment_due_at(mode)].into_iter().flatten().min();
            tokio::select! {
                // Rare and terminating events come first: the stream of records may never pause.
                biased;
                changed = self.partition.mode.changed() => {
                    if changed.is_err() { return; }
                }
                finished = &mut self.batch => self.finish_batch(finished),
                () = self.turn.come() => {}
                Some(delivered) = self.deliveries.next() => self.letter_delivered(&delivered),
                Some(came) = self.rereading.next() => self.records_came(came),
                Some(answered) = self.answers.recv() => self.source_answered(answered),
                (id, looked) = &mut self.asking => self.schema_came(id, looked),
                seen = self.visibility.seen() => self.seen(&seen),
                released = distributions::next(&mut self.distributions) => self.released(&released),
                () = self.claim.changed() => {}
                sent = &mut self.sending => self.increment_sent(sent),
                () = self.maps.read_again() => {}
                () = self.topic.looked() => {}
                _ = self.known.changed() => {}
                () = self.partition.meter.memory_limit_reached() => {}
                _ = gauges.tick() => {
                    self.update_gauges();
                    self.load.iter_mut().for_each(PartitionLoad::tick);
                }
                record = self.partition.records.recv(), if takes_records => match record {
                    Some(record) => self.take_many(record),
                    None => return,
                },
                () = sleep_until(wake_at.unwrap_or_else(TokioInstant::now)), if wake_at.is_some() => {}
            }
        }
    }

    /// Applies the current limits between two batches. Never during one: a batch is sent under the limits it was made
    /// with.
    fn follow_limits(&mut self) {
        if self.desk.is_some()
            && let Some(limits) = limits::newer(&mut self.limits)
        {
            (self.batching, self.requests) = (limits.batching, limits.requests);
        }
    }

    /// Trims the cache to the partition's share between two batches.
    fn follow_cache_share(&mut self) {
        let share = self.partition.cache_share.of_one();
        if let Some(desk) = &mut self.desk
            && desk.cache.capacity() != share.get()
        {
            desk.cache.resize(share);
        }
    }

    fn has_ended(&self, mode: Mode) -> bool {
        let is_quiet = self.batch.is_terminated()
            && self.deliveries.is_empty()
            && self.gates.are_open()
            && self.tally_is_flushed();
        match mode {
            Mode::Run => false,
            Mode::FinishBatch => is_quiet,
            // Parked entries wait for records that a stopping worker will not read.
            Mode::Drain => {
                let can_do_no_more = self.is_halted() || self.ownership.is_lost || self.frozen;
                // Nor are sweeps awaited: the next owner continues them.
                let has_work =
                    self.ledger.has_work() || self.has_clears() || self.ledger.has_due_sweeps(self.now());
                is_quiet && (can_do_no_more || !has_work)
            }
        }
    }

    /// Whether clears are pending.
    fn has_clears(&self) -> bool {
        self.desk.as_ref().is_some_and(|desk| !desk.clears.is_empty())
    }

    fn take_many(&mut self, record: Record) {
        self.take(record);
        for _ in 1..RECORDS_AT_ONCE {
            if self.stopped || self.held_back.is_some() {
                break;
            }
            match self.partition.records.try_recv() {
                Ok(record) => self.take(record),
                Err(_) => break,
            }
        }
    }

    fn take(&mut self, record: Record) {
        let cost = record.bytes();
        let read = Some((record.offset, record.digest()));
        if read == self.last_read {
            // On a rebalance librdkafka returns to its last stored position while another thread hands out the record.
            // The offsets are fine: it is the same record.
            tracing::debug!(partition = self.partition.number, offset = record.offset, "read twice in a row");
            return self.partition.meter.dequeued(cost);
        }
        if let Some(next) = self.ledger.next_offset().filter(|next| record.offset < *next) {
            self.partition.meter.dequeued(cost);
            let offset = record.offset;
            let reason = format!(
                "offset {offset} was read after offset {}: the partition lost records, or the topic was created anew, so \
                 offsets start over; raise positions.epoch above {}",
                next - 1,
                self.partition.bench.epoch
            );
            return self.stop(Some(offset), &reason);
        }
        if let Some(other) = self.other_partitioner(record.key.as_deref()) {
            self.partition.meter.dequeued(cost);
            return self.stop(Some(record.offset), &other.to_string());
        }
        self.last_read = read;
        if self.ledger.next_offset().is_some_and(|next| record.offset > next) {
            self.note_gap();
        }
        self.metrics.record_in();
        self.decode(record);
    }

    /// Decodes a record into its write or its defect; holds it back while its schema is unknown.
    fn decode(&mut self, record: Record) {
        let cost = record.bytes();
        let raw = RawRecord {
            partition: self.partition.number,
            offset: record.offset,
            key: record.key.as_deref(),
            value: record.value.clone(),
            op: record.op(),
        };
        match self.partition.bench.decoder.decode(raw, &mut self.schemas) {
            Ok(write) => {
                self.traces.note(&write.id, record.headers.as_ref(), record.offset);
                self.ledger.take(write, self.partition.bench.clock.now());
                self.send_rejected();
            }
            Err(Undecoded::Bad(bad)) => self.refuse(record, &bad),
            Err(Undecoded::Lacks(schema)) => return self.wait_for_schema(record, schema),
        }
        self.partition.meter.dequeued(cost);
        self.count_held();
    }

    /// Reports missing offsets, once per assignment.
    fn note_gap(&mut self) {
        if !std::mem::replace(&mut self.saw_gap, true) && self.tally.is_some() {
            GapWhileCounting { partition: self.partition.number }.emit(&self.partition.bench.metrics);
        }
    }

    /// Starts a batch if one is due.
    fn start_batch(&mut self, mode: Mode) {
        if self.batch_due_at(mode).is_none_or(|due| TokioInstant::now() < due) {
            return self.turn.give_back();
        }
        let Some(turn) = self.turn.take() else { return };
        let Some(mut desk) = self.desk.take() else { return };
        #[cfg(feature = "sabotage")]
        if sabotage::is(Sabotage::CacheSurvivesAssignment) {
            crate::worker::kept::put(self.partition.number, desk.cache.clone());
        }
        desk.lookups = mover::Lookups::default();
        desk.committed = self.committed();
        desk.separates = self.partition.bench.reread.is_some();
        desk.max_copy_bytes = self.batching.max_bytes;
        // Somebody else may still act on a record that compaction has taken from this one's sight.
        let zombie_may_act = self.anybody_else_may_act();
        desk.rules.announce_all = self.partition.bench.rules.announce_all || (self.saw_gap && zombie_may_act);
        let entries = self.ledger.hand_out(self.batching.max_documents, self.batching.max_bytes, self.now());
        desk.sweeps = self.ledger.hand_out_sweeps(self.batching.max_documents, self.now());
        self.send_rejected();
        self.batch_size = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        (self.not_before, self.again_at) = (None, None);
        let (bench, lease) = (self.partition.bench.clone(), self.lease());
        let observer = self.traces.begin(&entries, bench.rounds.observer.clone());
        let rounds = RequestSender { limits: self.requests, observer, ..bench.rounds.clone() };
        let batch = async move {
            let began = bench.clock.now();
            let finished = run(desk, entries, &rounds, &lease).await?;
            drop(turn);
            Ok((finished, bench.clock.now().since(began)))
        };
        self.batch = batch.boxed().fuse();
    }

    /// When the next batch may start; `None` if only an event can tell.
    fn batch_due_at(&self, mode: Mode) -> Option<TokioInstant> {
        // No desk: a batch is in flight, or the worker is halted.
        if self.desk.is_none() || mode == Mode::FinishBatch || self.frozen || !self.may_send() {
            return None;
        }
        let batching = &self.batching;
        let pending = self.ledger.pending();
        let has_due_work = || {
            self.ledger.has_due_work(self.now())
                || self.ledger.has_due_sweeps(self.now())
                || self.has_clears()
        };
        let at_once = (mode == Mode::Drain && has_due_work())
            || pending >= batching.max_documents
            || (pending > 0 && self.ledger.bytes() >= batching.max_bytes)
            // At the memory limit no further records can come. Without this, only `memory.total` would be written per
            // linger.
            || (pending > 0 && self.partition.meter.is_enough(self.ledger.bytes()))
            // No batch follows that could carry the clears.
            || (pending == 0 && self.has_clears() && self.partition.records.is_empty());
        let now = TokioInstant::now();
        // Partitions flush on a shared tick so that small writes can be coalesced (`elastic::rounds::BulkCoalescer`).
        let leaves_at = |since: Instant| now + since.next_of(batching.linger).since(self.now());
        let lingered = self.ledger.pending_since().map(leaves_at);
        // Sweeps hold the watermark, so they wait less than a long configured linger.
        let moment = batching.linger.min(LONGEST_SWEEP_LINGER);
        let swept = self.ledger.next_sweep().map(|due| now + due.next_of(moment).since(self.now()));
        let unanswered = self.again_at.filter(|_| self.ledger.has_unanswered());
        let retried = self.ledger.next_retry().map(|due| {
            let due = now + due.since(self.now());
            self.again_at.map_or(due, |again_at| due.max(again_at))
        });
        let due =
            [at_once.then_some(now), lingered, swept, unanswered, retried].into_iter().flatten().min()?;
        Some(self.not_before.map_or(due, |not_before| due.max(not_before)))
    }

    fn finish_batch(&mut self, finished: Result<(Finished, Duration), Halt>) {
        let (finished, took) = match finished {
            Ok(finished) => finished,
            Err(halt) => return self.halt(halt),
        };
        let Finished { desk, settled, edges, sweeps } = finished;
        self.traces.end(&settled);
        self.put_edges(edges);
        if let Some(load) = &mut self.load {
            load.count(&settled);
        }
        self.count_lookups(&desk);
        self.desk = Some(desk);
        let mut settlement = self.ledger.settle(settled, self.now());
        let (ticket, unseen) = self.ledger.settle_sweeps(sweeps, &mut settlement.changes, self.now());
        self.visibility.request(unseen, ticket);
        self.distribute(&settlement.changes);
        self.count(&settlement, took);
        let goes_on = settlement.again.is_empty() || settlement.made_progress();
        if goes_on {
            self.delays = self.partition.bench.retry.delays();
        }
        if !settlement.again.is_empty() {
            // If other entries make progress, wait a linger before retrying, so that one stuck entry does not shrink every batch.
            let pause = if goes_on { self.batching.linger } else { self.delays.next(None) };
            self.again_at = Some(TokioInstant::now() + pause);
            // Elasticsearch does not answer: other requests would fail, too.
            let is_unanswered = settlement.again.contains_key(mover::UNANSWERED);
            self.not_before = self.again_at.filter(|_| is_unanswered && !goes_on);
        }
        self.send_undeliverable(settlement.undeliverable);
        self.send_rejected();
        self.ask_source();
        self.read_again();
        self.count_held();
    }

    /// Searches find documents moved to a geoshard: once older searches have ended, old copies are deleted.
    fn seen(&mut self, seen: &Seen) {
        let due = self.now() + self.partition.bench.moves.search_grace;
        self.ledger.seen(&seen.shard, seen.ticket, due);
    }

    fn count_held(&self) {
        self.partition.meter.set_folded(self.ledger.bytes() + self.letter_bytes + self.edge_bytes());
    }

    fn count_lookups(&self, desk: &MoverState) {
        let lookups = &self.partition.bench.metrics.placement_cache_lookups;
        lookups.of(Lookup::Hit).inc_by(desk.lookups.hits);
        lookups.of(Lookup::Miss).inc_by(desk.lookups.misses);
    }

    fn count(&self, settlement: &Settlement, took: Duration) {
        let all = &self.partition.bench.metrics;
        for (outcome, documents) in [
            (Counted::Indexed, settlement.indexed),
            (Counted::Deleted, settlement.deleted),
            (Counted::AlreadyApplied, settlement.already_applied),
            (Counted::Dropped, settlement.dropped),
            (Counted::NothingToPlace, settlement.nothing_to_place),
            (Counted::Folded, settlement.folded),
        ] {
            self.metrics.record_done(outcome, documents);
        }
        all.moves.inc_by(settlement.moved);
        for (reason, entries) in &settlement.again {
            all.entries_retried(reason, *entries);
        }
        let (partition, documents) = (self.partition.number, self.batch_size);
        for (id, position, placed_at) in &settlement.parked {
            EntryParked { partition, position: *position, placed_at: *placed_at, id }.emit(all);
        }
        for (id, position) in &settlement.finished_recorded {
            RecordedDecisionFinished { partition, position: *position, id }.emit(all);
        }
        for (id, position) in &settlement.set_back {
            PlacementSetBack { partition, position: *position, id }.emit(all);
        }
        let Some(unanswered) = settlement.again.get(mover::UNANSWERED) else {
            return BatchFinished { partition, documents, took }.emit(all);
        };
        let unfinished = u32::try_from(*unanswered).unwrap_or(u32::MAX);
        BatchFailed { partition, unfinished, took, error: &"no usable answer from elasticsearch in time" }
            .emit(all);
    }

    fn publish(&self) {
        if self.frozen {
            return;
        }
        let open = self.ledger.watermark().and_then(|done| self.gates.hold_back(done));
        if let Some(watermark) = open.map(|open| self.let_through(open)) {
            debug_assert!(
                self.partition.published.watermark().is_none_or(|published| published <= watermark),
                "INV-3: the watermark went back"
            );
            self.partition.published.watermark.store(watermark, Ordering::Release);
        }
        let age = self.ledger.oldest_since().map(|since| self.now().since(since));
        self.partition.meter.set_waits(age.is_some_and(|age| age > self.batching.max_dirty_age));
        self.partition.meter.set_needs_records(self.ledger.only_parked() && self.held_back.is_none());
    }

    fn update_gauges(&self) {
        self.metrics.dirty(self.ledger.documents(), self.ledger.bytes(), self.oldest_age());
        self.metrics.parked(self.ledger.parked());
        self.metrics.sweeps(self.ledger.sweeps());
        self.update_tally_gauges();
    }

    /// Stops reading; records already taken are still written. The first reason stays.
    fn stop(&mut self, offset: Option<i64>, reason: &str) {
        self.close_queue();
        if std::mem::replace(&mut self.stopped, true) {
            return;
        }
        show_stopped(&self.partition.bench, self.partition.number, offset, reason);
    }

    /// Stops for good if the topic was re-created or repartitioned: read and committed offsets have lost their meaning.
    fn follow_topic(&mut self) {
        if !self.frozen
            && let Some(difference) = self.topic.difference()
        {
            self.frozen = true;
            self.stop(None, &difference.to_string());
        }
    }

    /// Stops the whole worker.
    fn halt(&mut self, halt: Halt) {
        self.close_queue();
        self.stopped = true;
        // The receiver is gone only if the worker is stopping already.
        let _ = self.partition.bench.fatal.send(halt);
    }

    /// Whether Elasticsearch refused the worker's credentials during a batch, which consumed the desk.
    fn is_halted(&self) -> bool {
        self.desk.is_none() && self.batch.is_terminated()
    }

    /// Queued records would hold memory that other partitions need; the next owner reads them again.
    fn close_queue(&mut self) {
        self.let_go_of_held_back();
        self.partition.records.close();
        while let Ok(record) = self.partition.records.try_recv() {
            self.partition.meter.dequeued(record.bytes());
        }
    }

    fn lease(&self) -> RequestDeadline {
        RequestDeadline {
            deadline: self.now() + self.partition.bench.batching.deadline,
            cancel: self.partition.cancel.child_token(),
        }
    }

    fn oldest_age(&self) -> Option<Duration> {
        self.ledger.oldest_owed_since().map(|since| self.now().since(since))
    }

    fn now(&self) -> Instant {
        self.partition.bench.clock.now()
    }
}

#[cfg(test)]
mod tests;
