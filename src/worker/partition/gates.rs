//! Work beyond the index that must finish before an offset may be committed.
//!
//! The ledger knows up to where the index is right. Work that must follow a write and survive a crash has a [`Gate`]:
//! it is held in the step in which the ledger settles the write, before anything is published, and released once the
//! work is acknowledged. The lowest held offset limits the published watermark.

use std::collections::BTreeMap;

/// All gates of a partition.
#[derive(Debug, Default)]
pub struct CommitBarrier {
    /// Distributions that must follow a write.
    pub distribution: Gate,
}

impl CommitBarrier {
    /// The offset that may be committed if the index is right up to `done`; `None` if none may.
    pub fn hold_back(&self, done: i64) -> Option<i64> {
        let lowest = self.all().into_iter().filter_map(Gate::lowest).fold(done, i64::min);
        (lowest != Gate::ANY).then_some(lowest)
    }

    /// Whether nothing is held. A partition ends only then, if time allows.
    pub fn are_open(&self) -> bool {
        self.all().into_iter().all(|gate| gate.lowest().is_none())
    }

    fn all(&self) -> [&Gate; 1] {
        [&self.distribution]
    }
}

/// Offsets whose writes are in the index but whose follow-up work is not acknowledged.
#[derive(Debug, Default)]
pub struct Gate {
    /// Number of holds per offset.
    held: BTreeMap<i64, usize>,
}

impl Gate {
    /// Hold on this offset to forbid every commit.
    pub const ANY: i64 = i64::MIN;

    /// Keeps the watermark at or below `offset`. Call when its entry is settled: a hold below the published watermark
    /// is too late.
    pub fn hold(&mut self, offset: i64) {
        *self.held.entry(offset).or_default() += 1;
    }

    /// Undoes one [`Gate::hold`] of this offset.
    pub fn release(&mut self, offset: i64) {
        if let Some(times) = self.held.get_mut(&offset) {
            *times -= 1;
            if *times == 0 {
                self.held.remove(&offset);
            }
        }
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
        let mut gates = CommitBarrier::default();
        assert_eq!(gates.hold_back(7), Some(7));
        assert!(gates.are_open());
        for offset in [5, 3, 3] {
            gates.distribution.hold(offset);
        }
        assert_eq!(gates.hold_back(7), Some(3));
        assert_eq!(gates.hold_back(2), Some(2), "the index is right only up to 2");
        gates.distribution.release(3);
        assert_eq!(gates.hold_back(7), Some(3), "held twice");
        gates.distribution.release(3);
        assert_eq!(gates.hold_back(7), Some(5));
        assert!(!gates.are_open());
        gates.distribution.release(5);
        gates.distribution.release(5);
        assert!(gates.are_open());
        gates.distribution.hold(Gate::ANY);
        assert_eq!(gates.hold_back(7), None);
        gates.distribution.release(Gate::ANY);
        assert_eq!(gates.hold_back(7), Some(7));
    }
}
