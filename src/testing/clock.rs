//! A clock for tests with tokio's time, paused or not.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::clock::{Clock, Instant};

/// Counts from its making, and counts how often it was asked: a loop that spins gives itself away.
#[derive(Debug)]
pub(crate) struct TokioClock {
    start: tokio::time::Instant,
    asked: AtomicUsize,
}

impl TokioClock {
    /// It begins at one hour, so that there is a time before.
    pub(crate) fn new() -> Self {
        Self { start: tokio::time::Instant::now(), asked: AtomicUsize::new(0) }
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Instant {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Instant::from_start(Duration::from_secs(3600) + self.start.elapsed())
    }
}
