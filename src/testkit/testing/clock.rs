//! A clock for tests with tokio's time, paused or not.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::base::clock::{Clock, Instant};

/// Counts from its making, and counts how often it was asked: a loop that spins gives itself away.
#[derive(Debug)]
pub(crate) struct TokioClock {
    start: tokio::time::Instant,
    asked: AtomicUsize,
    /// Milliseconds that tokio's clock does not know of.
    suspended: AtomicU64,
    fails: AtomicBool,
}

impl TokioClock {
    /// It begins at one hour, so that there is a time before.
    pub(crate) fn new() -> Self {
        Self {
            start: tokio::time::Instant::now(),
            asked: AtomicUsize::new(0),
            suspended: AtomicU64::new(0),
            fails: AtomicBool::new(false),
        }
    }

    /// The machine slept: boot time went on, tokio's did not.
    pub(crate) fn suspend(&self, time: Duration) {
        self.suspended.fetch_add(u64::try_from(time.as_millis()).unwrap(), Ordering::Relaxed);
    }

    /// The next reading panics.
    pub(crate) fn fail_once(&self) {
        self.fails.store(true, Ordering::Relaxed);
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Instant {
        assert!(!self.fails.swap(false, Ordering::Relaxed), "a test");
        self.asked.fetch_add(1, Ordering::Relaxed);
        let suspended = Duration::from_millis(self.suspended.load(Ordering::Relaxed));
        Instant::from_start(Duration::from_secs(3600) + suspended + self.start.elapsed())
    }
}
