//! Bytes held by the worker: who counts them, and when a partition must stop reading.
//!
//! Every record costs its bytes from the moment the poll thread owns it until its fold is done. Partition tasks and the
//! poll thread meet in a few atomics, one set per partition; no lock is shared.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use tokio::sync::Notify;

/// What one record costs besides key and value. By a heap profile of a worker at its bound (2026-11-22): its fold 190 bytes, its
/// place in the dirty set 250 to 400 by how full that is, handles and id 100.
pub const RECORD_OVERHEAD_BYTES: usize = 600;

/// Bounds on held bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// For all partitions of the worker together.
    pub total: usize,
    /// For one partition.
    pub per_partition: usize,
}

impl Limits {
    /// At the memory limit a partition flushes once it holds half its fair share: then either some partition qualifies, or half of
    /// all memory is already in flight. With a lower threshold, partitions with little to write would take turns from those with
    /// much.
    pub fn enough(self, partitions: usize) -> usize {
        self.total / (2 * partitions.max(1))
    }
}

/// How many placements each partition of the worker may cache: all have the same share of `memory.cached_placements`. Partitions come
/// and go one by one (cooperative assignment), so each task looks again between two batches.
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

    /// The worker owns so many partitions now.
    pub fn set_partitions(&self, partitions: usize) {
        self.partitions.store(partitions, Relaxed);
    }

    /// What one partition may cache, at least one placement.
    pub fn of_one(&self) -> NonZeroUsize {
        let share = self.total / self.partitions.load(Relaxed).max(1);
        NonZeroUsize::new(share).unwrap_or(NonZeroUsize::MIN)
    }
}

/// Bytes held by all partitions.
#[derive(Debug, Default)]
pub struct Budget {
    held: AtomicUsize,
}

impl Budget {
    /// A budget with nothing held.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Bytes held now by all partitions.
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }
}

/// One partition's share: counted here, and in the worker's [`Budget`]. Whatever is left is given back on drop.
#[derive(Debug)]
pub struct Meter {
    budget: Arc<Budget>,
    queued: AtomicUsize,
    folded: AtomicUsize,
    waits: AtomicBool,
    needs_records: AtomicBool,
    enough: AtomicUsize,
    memory_limit_reached: Notify,
}

impl Meter {
    /// A meter that counts into `budget`.
    pub fn new(budget: Arc<Budget>) -> Self {
        Self {
            budget,
            queued: AtomicUsize::new(0),
            folded: AtomicUsize::new(0),
            waits: AtomicBool::new(false),
            needs_records: AtomicBool::new(false),
            enough: AtomicUsize::new(usize::MAX),
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

    /// The oldest dirty document waits for too long: no new records until it is written (promise 4).
    pub fn set_waits(&self, waits: bool) {
        self.waits.store(waits, Relaxed);
    }

    /// All that is left is parked: only new records can help, whatever the bounds say (protocol, step 1).
    pub fn set_needs_records(&self, needs: bool) {
        self.needs_records.store(needs, Relaxed);
    }

    /// Told by the poll thread: nothing is read for the partition before something is written, its own or others', so it should
    /// not wait for more once its folds hold `enough` bytes. `None` once it is read again.
    pub fn set_at_bound(&self, enough: Option<usize>) {
        let enough = enough.unwrap_or(usize::MAX);
        if self.enough.swap(enough, Relaxed) > enough {
            self.memory_limit_reached.notify_one();
        }
    }

    /// Whether the partition should not wait for more before it writes; see [`Meter::set_at_bound`].
    pub fn is_enough(&self, bytes: usize) -> bool {
        bytes >= self.enough.load(Relaxed)
    }

    /// Ends when the partition comes to a bound, or if it did so since this was last waited for.
    pub async fn memory_limit_reached(&self) {
        self.memory_limit_reached.notified().await;
    }

    /// Bytes held by this partition.
    pub fn held(&self) -> usize {
        self.queued.load(Relaxed) + self.folded.load(Relaxed)
    }

    /// Whether the partition may be read. A paused one is resumed only when it is well below its bounds, so that it does not
    /// flutter.
    pub fn may_read(&self, limits: Limits, is_paused: bool) -> bool {
        if self.needs_records.load(Relaxed) {
            return true;
        }
        if self.waits.load(Relaxed) {
            return false;
        }
        let slack = |limit: usize| if is_paused { limit / 4 * 3 } else { limit };
        self.held() < slack(limits.per_partition) && self.budget.held() < slack(limits.total)
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

    const LIMITS: Limits = Limits { total: 1000, per_partition: 600 };

    #[test]
    fn a_partition_stops_at_its_bound_and_goes_on_well_below_it() {
        let meter = Meter::new(Budget::new());
        meter.enqueued(599);
        assert!(meter.may_read(LIMITS, false));
        meter.enqueued(1);
        assert!(!meter.may_read(LIMITS, false));
        meter.dequeued(100);
        assert!(!meter.may_read(LIMITS, true), "still near the bound");
        meter.dequeued(200);
        assert!(meter.may_read(LIMITS, true));
    }

    #[test]
    fn all_partitions_together_stop_at_the_total() {
        let budget = Budget::new();
        let (a, b) = (Meter::new(budget.clone()), Meter::new(budget.clone()));
        a.set_folded(590);
        b.set_folded(410);
        assert!(!a.may_read(LIMITS, false) && !b.may_read(LIMITS, false));
        drop(a);
        assert_eq!(budget.held(), 410);
        assert!(b.may_read(LIMITS, true));
    }

    #[test]
    fn at_the_bound_one_has_enough_unless_half_is_under_way() {
        for partitions in 1..=LIMITS.total / 2 {
            let enough = LIMITS.enough(partitions);
            let none_has_enough = partitions * (enough - 1);
            assert!(none_has_enough < LIMITS.total / 2, "{partitions} partitions: they could all wait");
            assert!(
                partitions * (enough + 1) > LIMITS.total / 2,
                "{partitions} partitions: {enough} is too little"
            );
        }
        assert_eq!(LIMITS.enough(0), LIMITS.enough(1));
    }

    #[test]
    fn a_partition_with_only_parked_entries_is_always_read() {
        let meter = Meter::new(Budget::new());
        meter.set_folded(5000);
        meter.set_waits(true);
        assert!(!meter.may_read(LIMITS, false));
        meter.set_needs_records(true);
        assert!(meter.may_read(LIMITS, true));
    }
}
