//! What else has to be done, beyond the index, before an offset may be committed.
//!
//! The ledger says up to where the index is right. Whatever must follow a write and may not be lost in a crash has a
//! [`Gate`] here: it is held where the ledger settles the write, in the same step, before anything is published, and
//! released once the work was acknowledged. The lowest offset held by any gate holds back what is published.

use std::collections::BTreeMap;

/// All gates of a partition.
#[derive(Debug, Default)]
pub struct CommitBarrier {
    /// Distributions that must follow a write.
    pub distribution: Gate,
}

impl CommitBarrier {
    /// The offset that may be committed, where the index is right up to `done`; `None` while none may.
    pub fn hold_back(&self, done: i64) -> Option<i64> {
        let lowest = self.all().into_iter().filter_map(Gate::lowest).fold(done, i64::min);
        (lowest != Gate::ANY).then_some(lowest)
    }

    /// Whether nothing is held. A partition ends only then, if it is given the time.
    pub fn are_open(&self) -> bool {
        self.all().into_iter().all(|gate| gate.lowest().is_none())
    }

    fn all(&self) -> [&Gate; 1] {
        [&self.distribution]
    }
}

/// Offsets whose writes are in the index, but something that must follow them was not acknowledged.
#[derive(Debug, Default)]
pub struct Gate {
    /// How often each is held.
    held: BTreeMap<i64, usize>,
}

impl Gate {
    /// Held as an offset: none at all may be committed.
    pub const ANY: i64 = i64::MIN;

    /// From now on the watermark does not pass `offset`. It must not be below what was published: hold it when its entry
    /// is settled, and not later.
    pub fn hold(&mut self, offset: i64) {
        *self.held.entry(offset).or_default() += 1;
    }

    /// Takes back one [`Gate::hold`] of this offset.
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
    fn the_lowest_offset_that_is_held_holds_the_watermark_until_it_is_released_as_often() {
        let mut gates = CommitBarrier::default();
        assert_eq!(gates.hold_back(7), Some(7));
        assert!(gates.are_open());
        for offset in [5, 3, 3] {
            gates.distribution.hold(offset);
        }
        assert_eq!(gates.hold_back(7), Some(3));
        assert_eq!(gates.hold_back(2), Some(2), "the index is right up to there only");
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
