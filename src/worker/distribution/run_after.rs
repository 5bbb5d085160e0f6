//! Whether a run that started after an update is known to have succeeded: pure functions over one
//! small record that all workers share.
//!
//! The record is `generation:counter:succeeded`.
//! - A run takes the next number of the counter as its [`Token`] **before** it does anything.
//! - Once it **succeeded**, and not before, it raises `succeeded` to its token.
//! - A worker that owes a run reads the counter **after** the update was completed: that is its [`Mark`]. The run is settled
//!   once `succeeded` is **above** the mark, in the same generation.
//!
//! Proof: within a generation the counter only rises. A run with a token above the mark had not taken it
//! when the mark was read, so it began after that, and after the update.
//!
//! A generation is a random number, drawn when the record is made. A record that was lost (evicted, wiped, a memcached
//! restart) and made again begins another generation, in which earlier marks and tokens mean nothing.
//! No clock is involved. `tests/it/run_after.rs` explores it exhaustively, and with each rule removed.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

/// The shared state of one job and geoshard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunRecord {
    /// Drawn when the record was made.
    pub generation: u64,
    /// Number of runs started.
    pub counter: u64,
    /// The highest token of a run that is known to have succeeded; 0 if none is.
    pub succeeded: u64,
}

/// The counter at the completion of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// Of the record that was read.
    pub generation: u64,
    /// Runs that had started by then.
    pub counter: u64,
}

/// Identifies a run within a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    /// Of the record that it was taken from.
    pub generation: u64,
    /// The counter when the run had started.
    pub number: u64,
}

impl RunRecord {
    /// A record of a new generation without runs.
    pub fn new(generation: u64) -> Self {
        Self { generation, counter: 0, succeeded: 0 }
    }

    /// The mark of an update completed by now.
    pub fn mark(&self) -> Mark {
        Mark { generation: self.generation, counter: self.counter }
    }

    /// Whether a run that started after the mark is known to have succeeded.
    pub fn covers(&self, mark: Mark) -> bool {
        self.generation == mark.generation && self.succeeded > mark.counter
    }

    /// Whether a run started after the mark whose outcome is unknown. Its worker may have died: never wait for it
    /// without a limit.
    pub fn is_under_way_since(&self, mark: Mark) -> bool {
        self.generation == mark.generation && self.counter > mark.counter && !self.covers(mark)
    }

    /// The record to write before a run begins, and the run's token. `None` at the counter's end: then run without
    /// sharing.
    pub fn start(&self) -> Option<(Self, Token)> {
        let counter = self.counter.checked_add(1)?;
        Some((Self { counter, ..*self }, Token { generation: self.generation, number: counter }))
    }

    /// The record to write once the run of `token` has succeeded; `None` if that is recorded, or the record is of
    /// another generation and must not be changed.
    pub fn succeed(&self, token: Token) -> Option<Self> {
        // A number above the counter cannot have been taken from this record.
        let is_own = self.generation == token.generation && token.number <= self.counter;
        (is_own && token.number > self.succeeded).then_some(Self { succeeded: token.number, ..*self })
    }

    /// Parses the stored text; `None` for anything that geofold did not write.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let mut parts = text.split(':');
        let generation = u64::from_str_radix(parts.next()?, 16).ok()?;
        let counter = parts.next()?.parse().ok()?;
        let succeeded = parts.next()?.parse().ok()?;
        (parts.next().is_none() && succeeded <= counter).then_some(Self { generation, counter, succeeded })
    }
}

impl fmt::Display for RunRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}:{}:{}", self.generation, self.counter, self.succeeded)
    }
}

/// A generation that no other record has: 64 bits of the system's randomness.
pub fn new_generation() -> u64 {
    // The standard library keys its hasher from the system's randomness, per thread, and counts on from there.
    RandomState::new().hash_one(std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_covers_earlier_marks_once_it_succeeded() {
        let record = RunRecord::new(7);
        let before = record.mark();
        let (record, token) = record.start().unwrap();
        let during = record.mark();
        assert!(!record.covers(before) && record.is_under_way_since(before));
        let record = record.succeed(token).unwrap();
        assert!(record.covers(before) && !record.is_under_way_since(before));
        assert!(!record.covers(during), "it had started before this was marked");
        assert_eq!(record.succeed(token), None, "it says so already");
    }

    #[test]
    fn earlier_run_that_ends_late_takes_nothing_back() {
        let (record, first) = RunRecord::new(7).start().unwrap();
        let (record, second) = record.start().unwrap();
        let record = record.succeed(second).unwrap();
        assert_eq!(record.succeed(first), None);
    }

    #[test]
    fn generations_are_independent() {
        let (old, token) = RunRecord::new(7).start().unwrap();
        let (new, _) = RunRecord::new(8).start().unwrap();
        assert_eq!(new.succeed(token), None);
        let new = RunRecord { succeeded: 1, ..new };
        assert!(!new.covers(Mark { counter: 0, ..old.mark() }) && !new.is_under_way_since(old.mark()));
        assert_ne!(new_generation(), new_generation());
    }

    #[test]
    fn stored_record_survives_and_anything_else_is_refused() {
        let record = RunRecord { generation: u64::MAX - 1, counter: 12, succeeded: 11 };
        assert_eq!(record.to_string(), "fffffffffffffffe:12:11");
        assert_eq!(RunRecord::parse(record.to_string().as_bytes()), Some(record));
        for text in
            ["", "1", "1:2", "1:2:3", "1:2:1:1", "x:2:1", "1:-2:1", "1:99999999999999999999:1", "\u{ff}"]
        {
            assert_eq!(RunRecord::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(RunRecord { counter: u64::MAX, ..record }.start(), None);
    }
}
