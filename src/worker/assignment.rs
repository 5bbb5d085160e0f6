//! The poll thread's view of the assigned partitions: where records go, what is paused, what may be committed. Used by
//! the poll thread only, in and between the consumer's callbacks.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc as std_mpsc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::budget::{CacheShare, MemoryBudget, MemoryLimits, Meter};
use super::flow::{self, FlowControl, PartitionFlow, ReadLimit, Suspended};
use super::limits::{self, LimitsReader};
use super::partition::{Mode, Partition, Published, WorkerContext, stopped_part};
use super::record::Record;
use crate::core::offsets::{OffsetTrouble, OffsetVerdict, Truncated, judge};
use crate::support::config::LostRecords;
use crate::support::telemetry::PartitionMetrics;
use crate::support::telemetry::events::RecordsLost;
use crate::support::telemetry::metrics::level;
use crate::support::telemetry::partition_status::PartitionStatus;

/// Capacity in records of the queue to a partition task. [`MemoryLimits`] in bytes apply first: pausing discards what
/// librdkafka has fetched for a partition, and resuming takes up to a second.
const QUEUE_RECORDS: usize = 1 << 20;

/// Records of one partition handed to its task at once. One by one each would wake the task, which costs more than the
/// record. Records never wait for a full chunk: every poll ends by handing all of them out.
const PASSED_ON_AT_ONCE: usize = 128;

/// Interval between two looks at where partitions end: librdkafka takes locks for each.
const ENDS_INTERVAL: Duration = Duration::from_millis(50);

/// Time for a cancelled task to end; it only has to reach its next await.
const CANCEL_GRACE: Duration = Duration::from_millis(500);

/// Number of consecutive checks that must find a partition unread; one may hit a fresh assignment.
const UNREAD_AT_LEAST: u32 = 2;

/// One partition of the assignment.
#[derive(Debug)]
struct AssignedPartition {
    records: mpsc::Sender<Record>,
    /// Records not handed out yet, or refused by the full queue; then the partition is paused.
    overflow: VecDeque<Record>,
    meter: Arc<Meter>,
    published: Arc<Published>,
    mode: watch::Sender<Mode>,
    cancel: CancellationToken,
    /// Disconnected once the task has ended.
    ended: std_mpsc::Receiver<()>,
    /// `None` while it is being read.
    suspended: Option<Suspended>,
    /// Sent to the broker, perhaps not acknowledged yet.
    requested: Option<i64>,
    /// Acknowledged by the broker.
    committed: Option<i64>,
    /// Stored in the meta index.
    remembered: Option<i64>,
    /// The partition's last known end.
    end: Option<i64>,
    /// The next offset: after the last routed record or the commit; `None` while unknown.
    next: Option<i64>,
    /// Whether anything was read.
    has_begun: bool,
    /// Every offset below is routed or not a record; reported to the task after the records queued here.
    read_to: Option<i64>,
    /// It cannot be read further.
    is_in_trouble: bool,
    /// Consecutive checks in which librdkafka did not read it.
    unread: u32,
    metrics: PartitionMetrics,
}

impl AssignedPartition {
    /// Hands the task as many queued records as its queue takes.
    fn pass_on(&mut self) {
        self.pass_on_records();
        if self.overflow.is_empty()
            && let Some(read_to) = self.read_to.take()
        {
            self.published.update(|known| known.read_to = Some(read_to));
        }
    }

    fn pass_on_records(&mut self) {
        while let Some(record) = self.overflow.pop_front() {
            match self.records.try_send(record) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(record)) => return self.overflow.push_front(record),
                // The task takes no more records: they are read again after the next assignment.
                Err(mpsc::error::TrySendError::Closed(record)) => self.meter.dequeued(record.bytes()),
            }
        }
    }

    /// Whether its task takes records.
    fn is_at_work(&self) -> bool {
        !self.records.is_closed() && *self.mode.borrow() == Mode::Run
    }

    /// Itself as [`flow::decide`] sees it, while all partitions hold `held_by_all` bytes.
    fn flow(&self, number: i32, limits: MemoryLimits, held_by_all: usize) -> PartitionFlow {
        let is_at_work = self.is_at_work();
        let reached = if self.overflow.is_empty() && is_at_work {
            self.meter.reached(limits, held_by_all, self.suspended)
        } else {
            Some(ReadLimit::Partition)
        };
        PartitionFlow { number, suspended: self.suspended, reached, is_at_work }
    }
}

/// See the module documentation.
pub struct Assignment {
    context: Arc<WorkerContext>,
    runtime: tokio::runtime::Handle,
    budget: Arc<MemoryBudget>,
    limits: MemoryLimits,
    followed: LimitsReader,
    pub(super) cache_share: Arc<CacheShare>,
    owned: HashMap<i32, AssignedPartition, ahash::RandomState>,
    /// Revoked while paused. librdkafka keeps the paused state, so they return paused.
    left_paused: HashSet<i32, ahash::RandomState>,
    /// Assigned, and still held back.
    fresh: Vec<i32>,
    /// When the tasks were told last where their partitions end.
    ends_told: Option<Instant>,
    /// Whether the worker is stopping: partitions of a later rebalance are not started.
    draining: bool,
}

impl Assignment {
    /// An empty assignment. `cached_placements` is for all partitions together.
    pub fn new(
        context: Arc<WorkerContext>,
        runtime: tokio::runtime::Handle,
        budget: Arc<MemoryBudget>,
        limits: MemoryLimits,
        cached_placements: usize,
    ) -> Self {
        let followed = context.limits.clone();
        Self {
            context,
            runtime,
            budget,
            limits,
            followed,
            cache_share: CacheShare::new(cached_placements),
            owned: HashMap::default(),
            left_paused: HashSet::default(),
            fresh: Vec::new(),
            ends_told: None,
            draining: false,
        }
    }

    /// Starts a task per partition, given with its committed offset. Keeps nothing of an earlier assignment: a
    /// placement cached then would make two copies (protocol, "The owner's cache"). They must be held back;
    /// the next [`Assignment::flow`] lets them through.
    pub fn assign(&mut self, partitions: &[(i32, Option<i64>)]) {
        let numbers: Vec<i32> = partitions.iter().map(|(number, _)| *number).collect();
        // No partition comes twice without a revocation; if it did, the earlier task must end first.
        self.revoke(&numbers, Duration::ZERO);
        self.cache_share.set_partitions(self.owned.len() + partitions.len());
        let begin_with = if self.draining { Mode::Drain } else { Mode::Run };
        for &(number, next) in partitions {
            let (records, records_receiver) = mpsc::channel(QUEUE_RECORDS);
            let (mode, mode_receiver) = watch::channel(begin_with);
            let (ended_sender, ended) = std_mpsc::channel();
            let meter = Arc::new(Meter::new(self.budget.clone()));
            let published = Published::new();
            let cancel = CancellationToken::new();
            let metrics = self.context.metrics.partition(number);
            let partition = Partition {
                number,
                context: self.context.clone(),
                records: records_receiver,
                mode: mode_receiver,
                cancel: cancel.clone(),
                meter: meter.clone(),
                published: published.clone(),
                cache_share: self.cache_share.clone(),
                metrics: metrics.clone(),
            };
            #[expect(clippy::disallowed_methods, reason = "a panic stops the partition (Partition::run)")]
            self.runtime.spawn(async move {
                partition.run().await;
                drop(ended_sender);
            });
            let owned = AssignedPartition {
                records,
                overflow: VecDeque::new(),
                meter,
                published,
                mode,
                cancel,
                ended,
                suspended: self.left_paused.remove(&number).then_some(Suspended::Paused),
                requested: None,
                committed: None,
                remembered: None,
                end: None,
                next,
                has_begun: false,
                read_to: None,
                is_in_trouble: false,
                unread: 0,
                metrics,
            };
            self.owned.insert(number, owned);
        }
        self.fresh.extend(numbers);
    }

    /// Lets each partition finish its batch within `grace`, cancels the rest, and returns the offsets that may still be
    /// committed. Afterwards these partitions can publish nothing.
    pub fn revoke(&mut self, partitions: &[i32], grace: Duration) -> Vec<(i32, i64)> {
        let revoked: Vec<(i32, AssignedPartition)> =
            partitions.iter().filter_map(|&number| Some((number, self.owned.remove(&number)?))).collect();
        self.cache_share.set_partitions(self.owned.len());
        for (_, owned) in &revoked {
            // The receiver is gone if the task has ended.
            let _ = owned.mode.send(Mode::FinishBatch);
        }
        let deadline = Instant::now() + grace;
        for (_, owned) in &revoked {
            wait_for_end(&owned.ended, deadline);
        }
        for (_, owned) in &revoked {
            owned.cancel.cancel();
        }
        let deadline = Instant::now() + CANCEL_GRACE;
        let mut to_commit = Vec::new();
        for (number, owned) in revoked {
            wait_for_end(&owned.ended, deadline);
            self.context.metrics.drop_partition(number);
            self.context.health.ready(&stopped_part(number));
            if owned.suspended == Some(Suspended::Paused) {
                self.left_paused.insert(number);
            }
            if let Some(watermark) = owned.published.watermark()
                && owned.committed.is_none_or(|committed| committed < watermark)
            {
                to_commit.push((number, watermark));
            }
        }
        to_commit
    }

    /// Takes a record for its partition's task, which receives it with the next [`Assignment::flow`] at the latest.
    /// Never blocks: an excess waits here and the partition is paused. Returns whether the partition may be read on; if
    /// not, call [`Assignment::flow`] before the next record.
    pub fn route(&mut self, number: i32, record: Record) -> bool {
        // Its partition was just revoked: the next owner reads the record again.
        let Some(owned) = self.owned.get_mut(&number) else { return true };
        owned.next = owned.next.max(Some(record.offset + 1));
        owned.has_begun = true;
        owned.meter.enqueued(record.bytes());
        owned.overflow.push_back(record);
        if owned.overflow.len() >= PASSED_ON_AT_ONCE {
            owned.pass_on();
        }
        // Records in flight still arrive after a hold; there is nothing more to decide.
        owned.suspended.is_some() || owned.meter.reached(self.limits, self.budget.held(), None).is_none()
    }

    /// Hands out queued records, and tells the tasks now and then where their partitions end, as known by `end_of`. Returns which
    /// partitions to stop reading, or to read again.
    pub fn flow(&mut self, now: Instant, end_of: impl Fn(i32) -> i64) -> FlowControl {
        if let Some(newer) = limits::newer(&mut self.followed) {
            self.limits = newer.memory;
            self.context.metrics.held_bytes_limit.set(level(newer.memory.total));
        }
        self.owned.values_mut().for_each(AssignedPartition::pass_on);
        if self.ends_told.is_none_or(|told| now.saturating_duration_since(told) >= ENDS_INTERVAL) {
            self.ends_told = Some(now);
            self.owned.iter().for_each(|(&number, owned)| owned.published.set_end(end_of(number)));
        }
        // Taken once: tasks change it meanwhile.
        let held_by_all = self.budget.held();
        let flow_of =
            |(&number, owned): (&i32, &AssignedPartition)| owned.flow(number, self.limits, held_by_all);
        let mut partitions: Vec<PartitionFlow> = self.owned.iter().map(flow_of).collect();
        let mut control = flow::decide(&mut partitions, self.limits.max_held_back());
        let threshold = self.limits.flush_threshold(partitions.len());
        for PartitionFlow { number, suspended, reached, .. } in partitions {
            let Some(owned) = self.owned.get_mut(&number) else { continue };
            owned.suspended = suspended;
            owned.meter.set_at_bound((reached.is_some() && owned.overflow.is_empty()).then_some(threshold));
        }
        let fresh = std::mem::take(&mut self.fresh).into_iter();
        control.let_through.extend(fresh.filter(|number| !control.hold_back.contains(number)));
        self.set_gauges();
        control
    }

    fn set_gauges(&self) {
        let paused = self.owned.values().filter(|owned| owned.suspended.is_some()).count();
        let metrics = &self.context.metrics;
        metrics.paused_partitions.set(level(paused));
        metrics.held_bytes.set(level(self.budget.held()));
        let free = level(self.context.rounds.permits.available_permits());
        let permits = metrics.elasticsearch.permits.get();
        metrics.elasticsearch.permits_in_use.set(permits.saturating_sub(free).max(0));
    }

    /// Offsets to commit: watermarks that the broker does not have yet, each returned once until
    /// [`Assignment::commit_failed`].
    pub fn due_commits(&mut self) -> Vec<(i32, i64)> {
        let mut due = Vec::new();
        for (&number, owned) in &mut self.owned {
            if let Some(watermark) = owned.published.watermark()
                && owned.requested.is_none_or(|requested| requested < watermark)
            {
                owned.requested = Some(watermark);
                due.push((number, watermark));
            }
        }
        due
    }

    /// The broker acknowledged `offset`.
    pub fn committed(&mut self, number: i32, offset: i64) {
        let Some(owned) = self.owned.get_mut(&number) else { return };
        owned.committed = owned.committed.max(Some(offset));
        owned.published.set_committed(offset);
        owned.requested = owned.requested.max(owned.committed);
        owned.metrics.committed(offset);
    }

    /// The commit failed: it is due again, or dropped if the partition is gone.
    pub fn commit_failed(&mut self, number: i32) {
        if let Some(owned) = self.owned.get_mut(&number) {
            owned.requested = owned.committed;
        }
    }

    /// Acknowledged offsets to store in the meta index, each once.
    pub fn to_remember(&mut self) -> Vec<(i32, i64)> {
        let mut due = Vec::new();
        for (&number, owned) in &mut self.owned {
            if owned.committed > owned.remembered
                && let Some(committed) = owned.committed
            {
                owned.remembered = Some(committed);
                due.push((number, committed));
            }
        }
        due
    }

    /// Whether `offset` is not the expected start or next offset: then [`Assignment::check_skipped`] decides. (The task
    /// detects later jumps back, since it knows what it has read.)
    pub fn is_unexpected(&self, number: i32, offset: i64) -> bool {
        let is_unexpected = |owned: &AssignedPartition| {
            owned.next.is_none_or(|next| next < offset || (next != offset && !owned.has_begun))
        };
        self.owned.get(&number).is_some_and(is_unexpected)
    }

    /// Whether nothing was read yet of a partition that starts at `offset`.
    pub fn is_to_begin_at(&self, number: i32, offset: i64) -> bool {
        let begins = |owned: &AssignedPartition| {
            !owned.has_begun && owned.next == Some(offset) && !owned.is_in_trouble
        };
        self.owned.get(&number).is_some_and(begins)
    }

    /// Reading reached `offset`; the partition begins at `low`. Reports and counts lost offsets in between. Returns
    /// whether the partition may be read on.
    pub fn check_skipped(&mut self, number: i32, offset: i64, low: i64) -> bool {
        let Some(owned) = self.owned.get_mut(&number) else { return true };
        if owned.next.is_none() {
            owned.published.update(|known| known.first = Some(low));
        }
        match judge(owned.next, None, low.min(offset), i64::MAX) {
            OffsetVerdict::Lost(lost) => self.report_trouble(number, lost.into()),
            OffsetVerdict::There if owned.next.is_some_and(|next| offset < next) => {
                let what = Truncated { next: owned.next.unwrap_or(offset), end: Some(offset) };
                self.report_trouble(number, OffsetTrouble::Truncated(what, self.context.epoch));
            }
            OffsetVerdict::There | OffsetVerdict::Begins | OffsetVerdict::Truncated(_) => {}
        }
        self.owned.get(&number).is_some_and(|owned| !owned.is_in_trouble)
    }

    /// Reading reached the partition's end: offsets below that were not routed are not records.
    pub fn at_end(&mut self, number: i32, offset: i64) {
        if let Some(owned) = self.owned.get_mut(&number)
            && owned.next.is_none_or(|next| next < offset)
            && !owned.is_in_trouble
        {
            owned.next = Some(offset);
            owned.has_begun = true;
            owned.read_to = Some(offset);
        }
    }

    /// Partitions being read, each with its next offset.
    pub fn to_be_read(&self) -> Vec<(i32, i64)> {
        let readable = self.owned.iter().filter(|(_, owned)| !owned.is_in_trouble);
        readable.filter_map(|(&number, owned)| Some((number, owned.next?))).collect()
    }

    /// Checks that the next offset exists.
    pub fn check_next(&mut self, number: i32, next: i64, low: i64, high: i64) {
        match judge(Some(next), None, low, high) {
            OffsetVerdict::Lost(lost) => self.report_trouble(number, lost.into()),
            OffsetVerdict::Truncated(truncated) => {
                self.report_trouble(number, OffsetTrouble::Truncated(truncated, self.context.epoch));
            }
            OffsetVerdict::There | OffsetVerdict::Begins => {}
        }
    }

    /// The next offset of a partition cannot be read: stops it, unless that is accepted.
    pub fn report_trouble(&mut self, number: i32, trouble: OffsetTrouble) {
        let Some(owned) = self.owned.get_mut(&number) else { return };
        let mut accepted = false;
        if let OffsetTrouble::Lost(lost) = trouble {
            accepted = self.context.lost_records == LostRecords::Accept;
            let topic = &self.context.topic;
            RecordsLost { topic, partition: number, lost, accepted }.emit(&self.context.metrics);
        }
        if !accepted {
            owned.is_in_trouble = true;
            owned.published.update(|known| known.trouble = Some(trouble));
        }
    }

    /// librdkafka does not read these, although it stopped somewhere and every partition's ends look right. A partition
    /// that stays so was truncated below what was read. `true`: one has no offset to read from and must be assigned
    /// again.
    pub fn note_unread(&mut self, numbers: &[i32]) -> bool {
        let epoch = self.context.epoch;
        let mut must_begin_again = false;
        let mut truncated = Vec::new();
        for (&number, owned) in &mut self.owned {
            let is_unread = numbers.contains(&number) && !owned.is_in_trouble;
            owned.unread = if is_unread { owned.unread + 1 } else { 0 };
            match owned.next {
                _ if owned.unread < UNREAD_AT_LEAST => {}
                Some(next) => truncated.push((number, Truncated { next, end: None })),
                None => must_begin_again = true,
            }
        }
        for (number, what) in truncated {
            self.report_trouble(number, OffsetTrouble::Truncated(what, epoch));
        }
        must_begin_again
    }

    /// The broker reported the partition's end.
    pub fn partition_end(&mut self, number: i32, end: i64) {
        if let Some(owned) = self.owned.get_mut(&number) {
            owned.end = Some(end);
        }
    }

    /// Updates the lag gauges.
    pub fn update_lag(&self) {
        for owned in self.owned.values() {
            if let (Some(end), Some(watermark)) = (owned.end, owned.published.watermark()) {
                owned.metrics.watermark(watermark, end);
            }
        }
    }

    /// Makes all partitions write dirty entries and end; later ones do not start.
    pub fn drain(&mut self) {
        self.draining = true;
        for owned in self.owned.values() {
            // The receiver is gone if the task has ended.
            let _ = owned.mode.send(Mode::Drain);
        }
    }

    /// Whether every partition has written its dirty entries, or cannot.
    pub fn is_drained(&self) -> bool {
        self.owned.values().all(|owned| owned.published.drained())
    }

    /// Whether the broker has acknowledged every watermark.
    pub fn is_committed(&self) -> bool {
        self.owned.values().all(|owned| owned.published.watermark() <= owned.committed)
    }

    /// The status of each owned partition.
    pub fn statuses(&self) -> Vec<PartitionStatus> {
        let status = |(&partition, owned): (&i32, &AssignedPartition)| PartitionStatus {
            partition,
            paused: owned.suspended.is_some(),
            watermark: owned.published.watermark(),
            committed: owned.committed,
            end: owned.end,
        };
        self.owned.iter().map(status).collect()
    }

    /// What a partition that is owned shares with its task.
    #[cfg(test)]
    pub fn published(&self, number: i32) -> &Published {
        &self.owned[&number].published
    }

    /// The partitions owned now.
    pub fn partitions(&self) -> Vec<i32> {
        self.owned.keys().copied().collect()
    }
}

fn wait_for_end(ended: &std_mpsc::Receiver<()>, deadline: Instant) {
    // Nothing is ever sent: the wait ends with "disconnected" (the task has ended) or a timeout.
    let _ = ended.recv_timeout(deadline.saturating_duration_since(Instant::now()));
}
