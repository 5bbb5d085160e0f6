//! The permit of one partition's batch.
//!
//! A batch must end by its deadline. If hundreds of partitions began at once, they would spend that time waiting for
//! one another's requests, and none would finish. So a partition first waits for a permit, in order of request, and
//! hands nothing out before.

use std::sync::Arc;

use futures::future::{BoxFuture, Fuse, FusedFuture, FutureExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The permit of one partition, if it has one.
pub(super) struct BatchPermit {
    permits: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
    waiting: Fuse<BoxFuture<'static, Option<OwnedSemaphorePermit>>>,
}

impl BatchPermit {
    pub(super) fn new(permits: Arc<Semaphore>) -> Self {
        Self { permits, held: None, waiting: Fuse::terminated() }
    }

    /// Whether a permit was requested and not granted: [`BatchPermit::granted`] returns once it is.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_terminated()
    }

    /// Takes the permit if granted; requests one otherwise. Dropping it returns it.
    pub(super) fn take(&mut self) -> Option<OwnedSemaphorePermit> {
        if !self.is_waiting() && self.held.is_none() {
            self.held = self.permits.clone().try_acquire_owned().ok();
            if self.held.is_none() {
                self.waiting = self.permits.clone().acquire_owned().map(Result::ok).boxed().fuse();
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
    pub(super) async fn granted(&mut self) {
        self.held = (&mut self.waiting).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn permit_is_requested_once_and_taken_when_granted() {
        let permits = Arc::new(Semaphore::new(1));
        let (mut first, mut second) = (BatchPermit::new(permits.clone()), BatchPermit::new(permits.clone()));
        let running = first.take();
        assert!(running.is_some() && !first.is_waiting());
        assert!(second.take().is_none() && second.is_waiting());
        assert!(second.granted().now_or_never().is_none());
        drop(running);
        second.granted().await;
        assert!(!second.is_waiting());
        assert!(first.take().is_none(), "it was granted to the other one");
        assert!(second.take().is_some());
    }

    #[tokio::test]
    async fn withdrawn_request_leaves_the_permit_to_others() {
        let permits = Arc::new(Semaphore::new(1));
        let running = permits.clone().try_acquire_owned();
        let mut waiting = BatchPermit::new(permits.clone());
        assert!(waiting.take().is_none());
        waiting.give_back();
        drop(running);
        assert_eq!((waiting.is_waiting(), permits.available_permits()), (false, 1));
    }
}
