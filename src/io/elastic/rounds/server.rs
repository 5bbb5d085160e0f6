//! Knowledge of the server shared by all requests of a worker, and how much of it they may use.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::Halt;
use super::adaptive::AdaptiveConcurrency;
use super::ceiling::OperationsCeiling;
use super::credentials::CredentialState;
use super::refusals::{Refusals, RefusedItem};
use crate::base::clock::Instant;
use crate::base::requests::{ServerObserver, Unobserved};
use crate::io::elastic::Index;

/// When the server, or an index, is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerLimits {
    /// 401 or 403 for so long, and the worker must stop.
    pub unauthorized: Duration,
    /// An index that refuses so many different documents alike, and takes none in between, is at fault; 0: never.
    pub refusals: usize,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self { unauthorized: Duration::from_secs(30), refusals: 50 }
    }
}

/// Whether credentials are refused, which indices refuse everything, and how much may be sent. One for all partitions of a
/// worker.
pub struct ServerState {
    /// Write operations per second.
    pub ceiling: OperationsCeiling,
    /// Concurrent requests.
    pub concurrency: AdaptiveConcurrency,
    pub(super) credentials: CredentialState,
    pub(super) refusals: Refusals,
    observer: Arc<dyn ServerObserver>,
    /// When a request ended last without its answer.
    given_up: Mutex<Option<Instant>>,
}

impl Default for ServerState {
    fn default() -> Self {
        Self::new(ServerLimits::default(), Arc::new(Unobserved))
    }
}

impl ServerState {
    /// Nothing is refused yet.
    pub fn new(limits: ServerLimits, observer: Arc<dyn ServerObserver>) -> Self {
        let credentials = CredentialState::new(limits.unauthorized);
        Self {
            ceiling: OperationsCeiling::default(),
            concurrency: AdaptiveConcurrency::default(),
            credentials,
            refusals: Refusals::new(limits.refusals),
            observer,
            given_up: Mutex::default(),
        }
    }

    /// A request ended without its answer: it may be carried out later.
    pub(super) fn gave_up(&self, now: Instant) {
        *self.given_up.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// Whether every request of the last `duration` was answered, so that none can still be executed.
    pub fn has_all_answers(&self, duration: Duration, now: Instant) -> bool {
        let given_up = *self.given_up.lock().unwrap_or_else(PoisonError::into_inner);
        given_up.is_none_or(|at| now.since(at) > duration)
    }

    /// Records a 401 or 403 of a request, or of its items of one index.
    pub(super) fn unauthorized(&self, what: Option<Index>, now: Instant, reason: &str) -> Result<(), Halt> {
        let refusal = self.credentials.refused(what, now);
        if refusal.is_news {
            self.observer.credentials_refused(Some(reason));
        }
        if refusal.is_over { Err(Halt::Unauthorized(reason.to_owned())) } else { Ok(()) }
    }

    /// A request was answered, and nothing of it got 401 or 403.
    pub(super) fn authorized<'a>(
        &self,
        indices: impl IntoIterator<Item = &'a Index>,
        now: Instant,
        is_probe: bool,
    ) {
        if self.credentials.accepted(indices, now, is_probe) {
            self.observer.credentials_refused(None);
        }
    }

    /// Places of the refused items that are to be sent again, since their index refuses everything.
    pub(super) fn not_the_documents(
        &self,
        took: &BTreeSet<&Index>,
        refused: Vec<RefusedItem<'_>>,
    ) -> BTreeSet<usize> {
        let judged = self.refusals.judge(took, refused);
        for index in &judged.well {
            self.observer.index_at_fault(index, None);
        }
        for (index, error) in &judged.at_fault {
            self.observer.index_at_fault(index, Some(error));
        }
        judged.to_be_repeated
    }
}
