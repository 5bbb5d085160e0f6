//! Whether cached placements may be older than the tombstones that stop late writes: an in-place write would no longer
//! be refused (protocol, "The owner's cache"). Pure.

use std::time::Duration;

use crate::base::clock::Instant;
use crate::io::claims::Taken;

/// What is known about the age of the cache.
#[derive(Debug)]
pub(super) struct CacheValidity {
    /// The claim; `None` before it is taken.
    taken: Option<Taken>,
    /// When the cache was last emptied; initially when the claim was taken.
    emptied_at: Option<Instant>,
    /// The last check; after the first record there is at least one per gauge tick.
    checked_at: Instant,
    /// Cached placements may be outdated beyond what versions protect against.
    is_doubtful: bool,
}

impl CacheValidity {
    pub(super) fn new(now: Instant) -> Self {
        Self { taken: None, emptied_at: None, checked_at: now, is_doubtful: false }
    }

    /// The claim was taken. If that was from another worker, cached placements predate it.
    pub(super) fn claim_taken(&mut self, taken: Taken) {
        self.is_doubtful |= self.taken.is_some();
        (self.taken, self.emptied_at) = (Some(taken), Some(taken.at));
    }

    /// Nothing was checked while the task waited for its first record.
    pub(super) fn start(&mut self, now: Instant) {
        self.checked_at = now;
    }

    /// Checks the cache's age before a batch. Returns how long the worker was suspended, if it was.
    pub(super) fn check(&mut self, now: Instant, deadline: Duration) -> Option<Duration> {
        // After a suspension the process may have lost its partitions without noticing.
        let silence = now.since(self.checked_at);
        self.checked_at = now;
        let was_suspended = silence > deadline;
        self.is_doubtful |= was_suspended | self.is_old(now, deadline);
        was_suspended.then_some(silence)
    }

    /// Whether the cache may hold a placement that a zombie changed so long ago that Elasticsearch may forget the
    /// tombstone before a batch begun now ends. Checked before every batch, so no batch begins with a placement cached
    /// more than a batch deadline ago while zombies could act.
    fn is_old(&mut self, now: Instant, deadline: Duration) -> bool {
        let (Some(taken), Some(emptied_at)) = (self.taken, self.emptied_at) else { return false };
        let due = (emptied_at + deadline).min(taken.zombies_end());
        let is_old = emptied_at <= taken.zombies_end() && now > due;
        if is_old {
            self.emptied_at = Some(now);
        }
        is_old
    }

    /// Whether the cache has to be emptied before the next batch.
    pub(super) fn is_doubtful(&self) -> bool {
        self.is_doubtful
    }

    /// It was emptied.
    pub(super) fn emptied(&mut self) {
        self.is_doubtful = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(60);

    fn at(second: u64) -> Instant {
        Instant::from_start(Duration::from_secs(second))
    }

    fn taken(second: u64) -> Taken {
        Taken { at: at(second), deadline: DEADLINE, zombies: 2 * DEADLINE }
    }

    /// Whether the cache is doubtful at each of these seconds; emptied then.
    fn doubtful_at(validity: &mut CacheValidity, seconds: &[u64]) -> Vec<u64> {
        let check = |second: &u64| {
            validity.check(at(*second), DEADLINE);
            let is_doubtful = validity.is_doubtful();
            validity.emptied();
            is_doubtful.then_some(*second)
        };
        seconds.iter().filter_map(check).collect()
    }

    #[test]
    fn cache_is_emptied_once_a_deadline_while_zombies_may_act() {
        let mut validity = CacheValidity::new(at(0));
        let seconds: Vec<u64> = (0..400).step_by(5).collect();
        assert!(doubtful_at(&mut validity, &seconds[..2]).is_empty(), "not claimed yet");
        validity.claim_taken(taken(10));
        assert_eq!(doubtful_at(&mut validity, &seconds[2..]), [75, 135], "their time ends at 130");
    }

    #[test]
    fn suspension_makes_the_cache_doubtful() {
        let mut validity = CacheValidity::new(at(0));
        assert_eq!(validity.check(at(60), DEADLINE), None);
        assert_eq!(validity.check(at(121), DEADLINE), Some(Duration::from_secs(61)));
        assert!(validity.is_doubtful());
        validity.emptied();
        assert_eq!((validity.check(at(181), DEADLINE), validity.is_doubtful()), (None, false));
        validity.start(at(500));
        assert_eq!(validity.check(at(501), DEADLINE), None);
    }

    #[test]
    fn claim_taken_back_makes_the_cache_doubtful() {
        let mut validity = CacheValidity::new(at(0));
        validity.claim_taken(taken(1));
        assert!(!validity.is_doubtful());
        validity.claim_taken(taken(9));
        assert!(validity.is_doubtful());
    }
}
