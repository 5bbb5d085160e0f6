//! A ceiling of write operations per second (`elasticsearch.max_operations_per_second`), so that a backlog leaves Elasticsearch time
//! for searches.
//!
//! It counts the operations of `_bulk` requests: writes of documents and placements, and deletes. It does not count reads:
//! the worker reads by id, at most once per write, and none of it makes segments that have to be merged.
//!
//! A request waits before it takes a permit, so that it keeps none from reads. Requests are admitted in the order in which they
//! came: a partition waits for what others had to send before it, and for no more. Operations that are sent again are counted
//! but do not wait: they hold their permit already, and have waited for their backoff. They delay later requests by at most
//! [`MAX_WAIT_FOR_REPEATED`]; otherwise what follows a long outage would wait for its many attempts.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::base::clock::{Clock, Instant};
use crate::base::pace::Pace;

/// What is not used of the ceiling may be made up for within this time.
const SAVED_FOR: Duration = Duration::from_secs(1);

/// Because of operations that were sent again nothing waits for longer than this.
const MAX_WAIT_FOR_REPEATED: Duration = Duration::from_secs(5);

/// See the top of this file. One for all partitions of a worker.
pub struct OperationsCeiling {
    /// Readable without a lock.
    is_set: AtomicBool,
    pace: Mutex<Pace>,
    /// Held by the request that is admitted next. Fair: others queue for it.
    next: tokio::sync::Mutex<()>,
    changed: Notify,
}

impl Default for OperationsCeiling {
    fn default() -> Self {
        Self {
            is_set: AtomicBool::new(false),
            pace: Mutex::new(Pace::new(None, SAVED_FOR, Instant::from_start(Duration::ZERO))),
            next: tokio::sync::Mutex::default(),
            changed: Notify::new(),
        }
    }
}

impl OperationsCeiling {
    /// Changes it, also for requests that wait; `None`: no ceiling.
    pub fn set(&self, per_second: Option<NonZeroU32>, now: Instant) {
        self.pace().set_rate(per_second, now);
        self.is_set.store(per_second.is_some(), Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Whether there is one.
    pub(super) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Waits until a request of so many operations may be sent, and counts them.
    pub(super) async fn admit(&self, operations: usize, clock: &dyn Clock) {
        let _next = self.next.lock().await;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let wait = self.take(operations, clock.now());
            if wait.is_zero() {
                return;
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Counts operations that are sent again.
    pub(super) fn count_again(&self, operations: usize, now: Instant) {
        self.pace().take_with_wait_up_to(MAX_WAIT_FOR_REPEATED, operations, now);
    }

    /// Takes the operations, or gives the time until they may be taken.
    fn take(&self, operations: usize, now: Instant) -> Duration {
        let mut pace = self.pace();
        let wait = pace.wait(now);
        if wait.is_zero() {
            pace.take(operations, now);
        }
        wait
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        // No code that holds the lock can leave it half changed.
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
