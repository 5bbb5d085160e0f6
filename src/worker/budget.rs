//! Memory accounting: bytes held by the worker, and when a partition must stop reading.
//!
//! A record is accounted from the moment the poll thread owns it until its fold is done. Partition tasks and the poll
//! thread share a few atomics per partition; no lock is shared.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use tokio::sync::Notify;

use super::flow::{ReadLimit, Suspended};

/// Cost of a record besides key and value. By a heap profile of a worker at its memory limit (2026-11-22): its fold 190
/// bytes, its slot in the dirty set 250 to 400 depending on load, handles and id 100.
pub const RECORD_OVERHEAD_BYTES: usize = 600;

/// What librdkafka keeps at most for a partition that is held back, unless producers make larger batches: its own queue of 1 MiB, and
/// its share of one more response.
const HELD_BACK_BYTES: usize = 2 << 20;
/// Maximum number of partitions held back.
const MAX_HELD_BACK: usize = 8;

/// Limits on held bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// For all partitions of the worker together.
    pub total: usize,
    /// For one partition.
    pub per_partition: usize,
}

impl MemoryLimits {
    /// At the memory limit a partition flushes once it holds half its fair share: then either some partition qualifies,
    /// or half of all memory is already in flight. With a lower threshold, partitions with little to write would take
    /// batch permits from those with much.
    pub fn flush_threshold(self, partitions: usize) -> usize {
        self.total / (2 * partitions.max(1))
    }

    /// Maximum number of partitions that are held back rather than paused: as many as need no more memory than one partition may
    /// take. A paused one loses what librdkafka has fetched of it, and if a broker has no other partition to be fetched, librdkafka
    /// notices only after up to a second that it is read again.
    pub fn max_held_back(self) -> usize {
        (self.per_partition / HELD_BACK_BYTES).min(MAX_HELD_BACK)
    }
}

/// Each partition's equal share of `memory.cached_placements`. Partitions come and go one by one (cooperative
/// assignment), so each task reads its share between two batches.
#[derive(Debug)]
pub struct CacheShare {
    total: usize,
    partitions: AtomicUsize,
}

impl CacheShare {
    /// `total` placements for all partitions together.
    pub fn new(total: usize) -> Arc<Self> {
        Arc::new(Self { total, partitions: AtomicUsize::new(1) })
    }

    /// Sets the number of partitions owned by the worker.
    pub fn set_partitions(&self, partitions: usize) {
        self.partitions.store(partitions, Relaxed);
    }

    /// The limit of one partition, at least one placement.
    pub fn of_one(&self) -> NonZeroUsize {
        let share = self.total / self.partitions.load(Relaxed).max(1);
        NonZeroUsize::new(share).unwrap_or(NonZeroUsize::MIN)
    }
}

/// Bytes held by all partitions.
#[derive(Debug, Default)]
pub struct MemoryBudget {
    held: AtomicUsize,
}

impl MemoryBudget {
    /// A budget with nothing held.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Bytes currently held by all partitions.
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }
}

/// One partition's bytes, counted here and in the worker's [`MemoryBudget`]. Dropping it returns the rest.
#[derive(Debug)]
pub struct Meter {
    budget: Arc<MemoryBudget>,
    queued: AtomicUsize,
    folded: AtomicUsize,
    waits: AtomicBool,
    needs_records: AtomicBool,
    flush_threshold: AtomicUsize,
    memory_limit_reached: Notify,
}

impl Meter {
    /// Creates a meter that counts into `budget`.
    pub fn new(budget: Arc<MemoryBudget>) -> Self {
        Self {
            budget,
            queued: AtomicUsize::new(0),
            folded: AtomicUsize::new(0),
            waits: AtomicBool::new(false),
            needs_records: AtomicBool::new(false),
            flush_threshold: AtomicUsize::new(usize::MAX),
            memory_limit_reached: Notify::new(),
        }
    }

    /// A record of `bytes` entered the queue to the partition task.
    pub fn enqueued(&self, bytes: usize) {
        self.queued.fetch_add(bytes, Relaxed);
        self.budget.held.fetch_add(bytes, Relaxed);
    }

    /// The partition task took a record of `bytes` from its queue.
    pub fn dequeued(&self, bytes: usize) {
        self.queued.fetch_sub(bytes, Relaxed);
        self.budget.held.fetch_sub(bytes, Relaxed);
    }

    /// All folds of the partition together hold `bytes` now.
    pub fn set_folded(&self, bytes: usize) {
        let before = self.folded.swap(bytes, Relaxed);
        if bytes >= before {
            self.budget.held.fetch_add(bytes - before, Relaxed);
        } else {
            self.budget.held.fetch_sub(before - bytes, Relaxed);
        }
    }

    /// The oldest dirty document is too old: no new records until it is written (promise 4).
    pub fn set_waits(&self, waits: bool) {
        self.waits.store(waits, Relaxed);
    }

    /// Only parked entries are left: only new records can help, whatever the limits (protocol, step 1).
    pub fn set_needs_records(&self, needs: bool) {
        self.needs_records.store(needs, Relaxed);
    }

    /// Set by the poll thread: the partition is not read until it or another one writes, so it should not wait for more
    /// once its folds hold `enough` bytes. `None` once it is read again.
    pub fn set_at_bound(&self, flush_threshold: Option<usize>) {
        let flush_threshold = flush_threshold.unwrap_or(usize::MAX);
        if self.flush_threshold.swap(flush_threshold, Relaxed) > flush_threshold {
            self.memory_limit_reached.notify_one();
        }
    }

    /// Whether the partition is not read until it or another one writes.
    pub fn is_at_bound(&self) -> bool {
        self.flush_threshold.load(Relaxed) != usize::MAX
    }

    /// Whether the partition should flush without waiting for more; see [`Meter::set_at_bound`].
    pub fn is_enough(&self, bytes: usize) -> bool {
        bytes >= self.flush_threshold.load(Relaxed)
    }

    /// Resolves when the partition reaches a limit, or did so since the last call.
    pub async fn memory_limit_reached(&self) {
        self.memory_limit_reached.notified().await;
    }

    /// Bytes held by this partition.
    pub fn held(&self) -> usize {
        self.queued.load(Relaxed) + self.folded.load(Relaxed)
    }

    /// What keeps the partition from being read, if anything, while all hold `held_by_all` bytes. A stopped one is read again only well
    /// below its limits, to avoid flapping. While no record is taken, that holds for the memory of all alone.
    pub fn reached(
        &self,
        limits: MemoryLimits,
        held_by_all: usize,
        suspended: Option<Suspended>,
    ) -> Option<ReadLimit> {
        if self.needs_records.load(Relaxed) {
            return None;
        }
        let below = |limit: usize, with_slack: bool| if with_slack { limit / 4 * 3 } else { limit };
        let own = below(limits.per_partition, suspended.is_some_and(Suspended::is_stopped));
        if self.waits.load(Relaxed) || self.held() >= own {
            return Some(ReadLimit::Partition);
        }
        (held_by_all >= below(limits.total, suspended.is_some())).then_some(ReadLimit::Total)
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.held(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: MemoryLimits = MemoryLimits { total: 1000, per_partition: 600 };
    const OF_ITS_OWN: Option<ReadLimit> = Some(ReadLimit::Partition);
    const OF_ALL: Option<ReadLimit> = Some(ReadLimit::Total);

    const READ: Option<Suspended> = None;
    const PAUSED: Option<Suspended> = Some(Suspended::Paused);
    const WAITING: Option<Suspended> = Some(Suspended::Waiting);

    fn reached(meter: &Meter, suspended: Option<Suspended>) -> Option<ReadLimit> {
        meter.reached(LIMITS, meter.budget.held(), suspended)
    }

    #[test]
    fn partition_pauses_at_its_limit_and_resumes_well_below() {
        let meter = Meter::new(MemoryBudget::new());
        meter.enqueued(599);
        assert_eq!(reached(&meter, READ), None);
        meter.enqueued(1);
        assert_eq!(reached(&meter, READ), OF_ITS_OWN);
        meter.dequeued(100);
        assert_eq!(reached(&meter, PAUSED), OF_ITS_OWN, "still near the bound");
        meter.dequeued(200);
        assert_eq!(reached(&meter, PAUSED), None);
    }

    #[test]
    fn the_less_memory_the_fewer_partitions_are_held_back() {
        let held_back = |bytes| MemoryLimits { total: 64 << 20, per_partition: bytes }.max_held_back();
        let limits = [1 << 20, 2 << 20, 8 << 20, 16 << 20, 64 << 20];
        assert_eq!(limits.map(held_back), [0, 1, 4, 8, 8]);
    }

    #[test]
    fn partitions_together_stop_at_the_total() {
        let budget = MemoryBudget::new();
        let (a, b) = (Meter::new(budget.clone()), Meter::new(budget.clone()));
        a.set_folded(590);
        b.set_folded(410);
        assert_eq!((reached(&a, READ), reached(&b, READ)), (OF_ALL, OF_ALL));
        b.set_waits(true);
        assert_eq!(reached(&b, READ), OF_ITS_OWN);
        b.set_waits(false);
        drop(a);
        assert_eq!(budget.held(), 410);
        assert_eq!(reached(&b, PAUSED), None);
    }

    #[test]
    fn while_nothing_is_polled_a_quarter_of_all_memory_must_be_free_but_not_of_the_partitions() {
        let budget = MemoryBudget::new();
        let (meter, others) = (Meter::new(budget.clone()), Meter::new(budget));
        meter.set_folded(599);
        others.set_folded(151);
        assert_eq!((reached(&meter, READ), reached(&meter, WAITING)), (None, OF_ALL));
        others.set_folded(150);
        assert_eq!((reached(&meter, WAITING), reached(&meter, PAUSED)), (None, OF_ITS_OWN));
    }

    #[test]
    fn at_the_limit_one_qualifies_unless_half_is_in_flight() {
        for partitions in 1..=LIMITS.total / 2 {
            let flush_threshold = LIMITS.flush_threshold(partitions);
            let all_below = partitions * (flush_threshold - 1);
            assert!(all_below < LIMITS.total / 2, "{partitions} partitions: they could all wait");
            assert!(
                partitions * (flush_threshold + 1) > LIMITS.total / 2,
                "{partitions} partitions: {flush_threshold} is too little"
            );
        }
        assert_eq!(LIMITS.flush_threshold(0), LIMITS.flush_threshold(1));
    }

    #[test]
    fn partition_with_only_parked_entries_is_always_read() {
        let meter = Meter::new(MemoryBudget::new());
        meter.set_folded(5000);
        meter.set_waits(true);
        assert_eq!(reached(&meter, READ), OF_ITS_OWN);
        meter.set_needs_records(true);
        assert_eq!(reached(&meter, PAUSED), None);
    }
}
