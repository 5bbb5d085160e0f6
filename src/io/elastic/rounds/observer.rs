//! How many requests wait, for metrics.

use crate::base::requests::RoundsObserver;

/// Counts one waiting request for as long as it lives, also if the wait is dropped.
pub(super) struct WaitingRequest<'a>(&'a dyn RoundsObserver);

impl<'a> WaitingRequest<'a> {
    pub(super) fn begin(observer: &'a dyn RoundsObserver) -> Self {
        observer.waiting(1);
        Self(observer)
    }
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        self.0.waiting(-1);
    }
}
