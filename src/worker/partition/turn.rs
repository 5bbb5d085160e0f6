//! Limits the batches that a worker runs at once.
//!
//! A batch must end by its deadline. If hundreds of partitions began at once, they would spend that time waiting for
//! one another's requests, and none would finish. So a partition first waits for a permit, in order of request, and
//! hands nothing out before.

use std::sync::Arc;

use futures::future::{BoxFuture, Fuse, FusedFuture, FutureExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What one partition has of them.
pub(super) struct BatchPermit {
    turns: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
    waiting: Fuse<BoxFuture<'static, Option<OwnedSemaphorePermit>>>,
}

impl BatchPermit {
    pub(super) fn new(turns: Arc<Semaphore>) -> Self {
        Self { turns, held: None, waiting: Fuse::terminated() }
    }

    /// Whether a permit is awaited: [`BatchPermit::come`] returns once it is there.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_terminated()
    }

    /// Takes the permit if granted; requests one otherwise. Dropping it returns it.
    pub(super) fn take(&mut self) -> Option<OwnedSemaphorePermit> {
        if !self.is_waiting() && self.held.is_none() {
            self.held = self.turns.clone().try_acquire_owned().ok();
            if self.held.is_none() {
                self.waiting = self.turns.clone().acquire_owned().map(Result::ok).boxed().fuse();
            }
        }
        self.held.take()
    }

    /// Returns the permit or withdraws the request.
    pub(super) fn give_back(&mut self) {
        self.held = None;
        self.waiting = Fuse::terminated();
    }

    /// Waits until the requested permit is granted; forever if none was requested.
    pub(super) async fn come(&mut self) {
        self.held = (&mut self.waiting).await;
    }
}
