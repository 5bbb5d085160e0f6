//! Work beyond the index that must finish before an offset may be committed.
//!
//! The ledger knows up to where the index is right. Work that must follow a write and survive a crash has a
//! [`CommitGate`]: it is held in the step in which the ledger settles the write, before anything is published, and
//! released once the work is acknowledged. The lowest held offset limits the published watermark.

use std::collections::BTreeMap;

/// Offsets whose writes are in the index but whose follow-up work is not acknowledged.
#[derive(Debug, Default)]
pub(super) struct CommitGate {
    /// Number of holds per offset.
    held: BTreeMap<i64, usize>,
}

impl CommitGate {
    /// Hold on this offset to forbid every commit.
    pub(super) const ANY: i64 = i64::MIN;

    /// Keeps the watermark at or below `offset`. Call when its entry is settled: a hold below the published watermark
    /// is too late.
    pub(super) fn hold(&mut self, offset: i64) {
        *self.held.entry(offset).or_default() += 1;
    }

    /// Undoes one [`CommitGate::hold`] of this offset.
    pub(super) fn release(&mut self, offset: i64) {
        if let Some(times) = self.held.get_mut(&offset) {
            *times -= 1;
            if *times == 0 {
                self.held.remove(&offset);
            }
        }
    }

    /// The offset that may be committed if the index is right up to `done`; `None` if none may.
    pub(super) fn limit(&self, done: i64) -> Option<i64> {
        let lowest = self.lowest().map_or(done, |lowest| lowest.min(done));
        (lowest != Self::ANY).then_some(lowest)
    }

    /// Whether nothing is held.
    pub(super) fn is_open(&self) -> bool {
        self.held.is_empty()
    }

    fn lowest(&self) -> Option<i64> {
        self.held.first_key_value().map(|(offset, _)| *offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_held_offset_limits_the_watermark_until_all_holds_are_released() {
        let mut gate = CommitGate::default();
        assert_eq!(gate.limit(7), Some(7));
        assert!(gate.is_open());
        for offset in [5, 3, 3] {
            gate.hold(offset);
        }
        assert_eq!(gate.limit(7), Some(3));
        assert_eq!(gate.limit(2), Some(2), "the index is right only up to 2");
        gate.release(3);
        assert_eq!(gate.limit(7), Some(3), "held twice");
        gate.release(3);
        assert_eq!(gate.limit(7), Some(5));
        assert!(!gate.is_open());
        gate.release(5);
        gate.release(5);
        assert!(gate.is_open());
        gate.hold(CommitGate::ANY);
        assert_eq!(gate.limit(7), None);
        gate.release(CommitGate::ANY);
        assert_eq!(gate.limit(7), Some(7));
    }
}
