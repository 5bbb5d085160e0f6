//! Limits log lines that repeat: one per key and interval, with the number of those left out since.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between two lines of one key.
const INTERVAL: Duration = Duration::from_secs(10);

/// When each key was logged last, and how often it was left out since.
#[derive(Debug, Default)]
pub(super) struct Repeats(Mutex<BTreeMap<&'static str, (Instant, u64)>>);

impl Repeats {
    /// Whether to log `key` now, with the number of lines left out since the last one. Keys are from a closed set.
    pub(super) fn log(&self, key: &'static str, now: Instant) -> Option<u64> {
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match keys.get_mut(key) {
            Some((logged, left_out)) if now.saturating_duration_since(*logged) < INTERVAL => {
                *left_out += 1;
                None
            }
            found => {
                let left_out = found.map_or(0, |(_, left_out)| *left_out);
                keys.insert(key, (now, 0));
                Some(left_out)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_lines_are_left_out_and_counted() {
        let repeats = Repeats::default();
        let start = Instant::now();
        let log = |key, seconds| repeats.log(key, start + Duration::from_secs(seconds));
        assert_eq!((log("a", 0), log("a", 1), log("a", 9), log("b", 9)), (Some(0), None, None, Some(0)));
        assert_eq!((log("a", 10), log("a", 11), log("a", 20)), (Some(2), None, Some(1)));
    }
}
