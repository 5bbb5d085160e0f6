//! How many requests the worker may have under way now: `elasticsearch.max_in_flight`, or with
//! `elasticsearch.adaptive_concurrency` what [`ConcurrencyLimit`] makes of the server's answers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::base::clock::Instant;
use crate::base::concurrency_limit::{ConcurrencyLimit, EndedRequest};
use crate::io::elastic::CallError;

/// See the top of this file. One for all partitions of a worker.
pub struct AdaptiveConcurrency {
    /// `None`: does not adapt.
    limit: Mutex<Option<ConcurrencyLimit>>,
    /// Whether there is a limit; readable without a lock.
    adapts: AtomicBool,
    in_flight: AtomicUsize,
    allowed: watch::Sender<usize>,
}

impl Default for AdaptiveConcurrency {
    fn default() -> Self {
        Self {
            limit: Mutex::default(),
            adapts: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            allowed: watch::Sender::new(1),
        }
    }
}

impl AdaptiveConcurrency {
    /// At most `max` requests, and fewer if it adapts.
    pub fn set(&self, max: usize, adapts: bool) {
        let mut limit = self.limit();
        if !adapts {
            *limit = None;
        } else if let Some(limit) = &mut *limit {
            limit.set_max(max);
        } else {
            *limit = Some(ConcurrencyLimit::new(max));
        }
        self.adapts.store(adapts, Ordering::Release);
        let allowed = limit.as_ref().map_or(max, ConcurrencyLimit::allowed);
        self.publish(allowed);
    }

    /// Requests allowed now.
    pub fn allowed(&self) -> watch::Receiver<usize> {
        self.allowed.subscribe()
    }

    /// Whether the number follows the answers: [`AdaptiveConcurrency::ended`] has an effect.
    pub(super) fn adapts(&self) -> bool {
        self.adapts.load(Ordering::Acquire)
    }

    /// Counts a request that is sent, until the result is dropped.
    pub(super) fn begin(&self) -> InFlight<'_> {
        let others = self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight { count: &self.in_flight, at_start: others + 1 }
    }

    /// Takes note of the end of a request.
    pub fn ended(&self, request: &EndedRequest, now: Instant) {
        if let Some(limit) = &mut *self.limit() {
            limit.ended(request, now);
            self.publish(limit.allowed());
        }
    }

    /// Under the lock, so that numbers are published in order.
    fn publish(&self, allowed: usize) {
        self.allowed.send_if_modified(|published| std::mem::replace(published, allowed) != allowed);
    }

    fn limit(&self) -> MutexGuard<'_, Option<ConcurrencyLimit>> {
        // No code that holds the lock can leave it half changed.
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request under way.
pub(super) struct InFlight<'a> {
    count: &'a AtomicUsize,
    /// Requests under way when it was sent, itself included.
    pub(super) at_start: usize,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether a failed request says that the server has too much to do, or did not answer although it `had_time`. A connection
/// that is refused does not: of several nodes one may be down.
pub(super) fn is_overload(error: &CallError, had_time: bool) -> bool {
    match error {
        CallError::Timeout(_) => had_time,
        CallError::Status { status, .. } => matches!(status, 429 | 503 | 504),
        _ => false,
    }
}
