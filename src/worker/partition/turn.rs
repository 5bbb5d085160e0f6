//! A batch's turn: how many batches of a worker are under way at once.
//!
//! A batch has until its deadline. Were all partitions' batches begun at once, some hundred of them would spend that time
//! waiting for one another's requests, and none would come to its end. So a partition waits for its turn first, in the order
//! of asking, and nothing that it holds is handed out until then.

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

    /// Whether it waits: [`BatchPermit::come`] will tell.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_terminated()
    }

    /// The turn, if it has come; asks for one otherwise. It ends when it is dropped.
    pub(super) fn take(&mut self) -> Option<OwnedSemaphorePermit> {
        if !self.is_waiting() && self.held.is_none() {
            self.held = self.turns.clone().try_acquire_owned().ok();
            if self.held.is_none() {
                self.waiting = self.turns.clone().acquire_owned().map(Result::ok).boxed().fuse();
            }
        }
        self.held.take()
    }

    /// It is not needed any more.
    pub(super) fn give_back(&mut self) {
        self.held = None;
        self.waiting = Fuse::terminated();
    }

    /// Waits until the turn that was asked for has come; for ever, if none was.
    pub(super) async fn come(&mut self) {
        self.held = (&mut self.waiting).await;
    }
}
