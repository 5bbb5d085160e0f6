//! What a round tells about itself, for metrics.

use std::time::Duration;

/// The kind of a request, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// `_mget`.
    Mget,
    /// `_bulk`.
    Bulk,
}

/// Is told what happens; its calls must be quick.
pub trait RoundsObserver: Send + Sync {
    /// A request ended. `bytes`: of its body, as an upper bound; `ok`: with an answer for each item, whatever it says.
    fn request(&self, kind: RequestKind, items: usize, bytes: usize, took: Duration, ok: bool);
    /// So many items will be sent again, for this reason (a label as of [`CallError::label`](crate::elastic::CallError::label)).
    fn retry(&self, label: &'static str, items: usize);
    /// One more (1) or one less (-1) request waits: for a permit, or for its next attempt.
    fn waiting(&self, delta: i64);
}

/// Looks away.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unobserved;

impl RoundsObserver for Unobserved {
    fn request(&self, _: RequestKind, _: usize, _: usize, _: Duration, _: bool) {}
    fn retry(&self, _: &'static str, _: usize) {}
    fn waiting(&self, _: i64) {}
}

/// Counts one waiting request for as long as it lives, also if the wait is dropped.
pub(super) struct Waiting<'a>(&'a dyn RoundsObserver);

impl<'a> Waiting<'a> {
    pub(super) fn begin(observer: &'a dyn RoundsObserver) -> Self {
        observer.waiting(1);
        Self(observer)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting(-1);
    }
}
