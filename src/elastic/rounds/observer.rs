//! What a round tells about itself, for metrics.

use std::time::Duration;

use crate::elastic::{Index, ItemError};

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

/// Is told how the server stands; its calls must be quick.
pub trait ServerObserver: Send + Sync {
    /// Credentials are refused, for this reason, and nothing is sent but one request at a time; `None`: no more.
    fn credentials_refused(&self, reason: Option<&str>);
    /// An index refuses whatever it is given, such as with this error, which is not put down to the documents; `None`: it has
    /// taken one.
    fn index_at_fault(&self, index: &Index, error: Option<&ItemError>);
}

/// Looks away.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unobserved;

impl RoundsObserver for Unobserved {
    fn request(&self, _: RequestKind, _: usize, _: usize, _: Duration, _: bool) {}
    fn retry(&self, _: &'static str, _: usize) {}
    fn waiting(&self, _: i64) {}
}

impl ServerObserver for Unobserved {
    fn credentials_refused(&self, _: Option<&str>) {}
    fn index_at_fault(&self, _: &Index, _: Option<&ItemError>) {}
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
