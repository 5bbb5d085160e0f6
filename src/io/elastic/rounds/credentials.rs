//! Handles 401 and 403: allow one request at a time as a probe, hold back all others, and halt if it lasts.
//!
//! One node that has restarted, a proxy, or a security index that is not assigned yet answers so for seconds. A worker that
//! ended at once would take its whole group down; one that continued would lock accounts. So the first refusal closes a gate
//! that every request passes. Requests that are refused try one after the other, with growing pauses, and the first that is
//! not refused opens the gate. If the server, or an index, refuses for [`CredentialState::timeout`], the worker must stop.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::base::clock::Instant;
use crate::io::elastic::Index;

/// The first pause between two attempts is the timeout divided by this; each further pause doubles.
const FIRST_PAUSE: u32 = 15;
/// How often a pause doubles at most.
const MAX_DOUBLINGS: u32 = 3;

/// See the top of this file.
pub(super) struct CredentialState {
    timeout: Duration,
    /// Copy of `refused`, readable without a lock.
    is_closed: AtomicBool,
    /// Whether an answer has to be reported although it refuses nothing.
    is_watching: AtomicBool,
    refused: Mutex<Refused>,
    /// Held by the request that tries while the gate is closed.
    probe: Semaphore,
    opened: Notify,
}

/// Refused indices, and since when. Pure.
#[derive(Debug, Default)]
struct Refused {
    /// By index; `None`: a whole request.
    spans: BTreeMap<Option<Index>, Span>,
}

#[derive(Debug)]
struct Span {
    first: Instant,
    last: Instant,
}

impl Refused {
    /// How long refusals have lasted without a success in between. A refusal older than `timeout` starts over.
    fn refused(&mut self, what: Option<Index>, now: Instant, timeout: Duration) -> Duration {
        let span = self.spans.entry(what).or_insert(Span { first: now, last: now });
        if now.since(span.last) > timeout {
            span.first = now;
        }
        span.last = now;
        now.since(span.first)
    }

    /// A request that named these indices was not refused, nor was any part of it.
    fn accepted<'a>(
        &mut self,
        indices: impl IntoIterator<Item = &'a Index>,
        now: Instant,
        timeout: Duration,
    ) {
        self.spans.remove(&None);
        for index in indices {
            self.spans.remove(&Some(index.clone()));
        }
        self.spans.retain(|_, span| now.since(span.last) <= timeout);
    }
}

impl CredentialState {
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            is_closed: AtomicBool::new(false),
            is_watching: AtomicBool::new(false),
            refused: Mutex::default(),
            probe: Semaphore::new(1),
            opened: Notify::new(),
        }
    }

    /// Waits until a request may be sent. Returns the probe's permit if the gate is closed.
    pub(super) async fn enter(&self) -> Option<SemaphorePermit<'_>> {
        loop {
            let opened = self.opened.notified();
            tokio::pin!(opened);
            opened.as_mut().enable();
            if !self.is_closed() {
                return None;
            }
            tokio::select! {
                biased;
                () = opened => {}
                // Never closed.
                permit = self.probe.acquire() => return permit.ok().filter(|_| self.is_closed()),
            }
        }
    }

    /// The probe's permit, if it is free.
    pub(super) fn try_probe(&self) -> Option<SemaphorePermit<'_>> {
        self.probe.try_acquire().ok()
    }

    /// The pause after the `n`th refused attempt, from 0.
    pub(super) fn pause(&self, attempt: u32) -> Duration {
        (self.timeout / FIRST_PAUSE).saturating_mul(1 << attempt.min(MAX_DOUBLINGS))
    }

    /// Records a refusal. Returns whether it closed the gate, and whether refusals have lasted too long.
    pub(super) fn refused(&self, what: Option<Index>, now: Instant) -> CredentialRefusal {
        let mut refused = self.lock();
        let lasts = refused.refused(what, now, self.timeout);
        self.is_watching.store(true, Ordering::Release);
        let is_news = !self.is_closed.swap(true, Ordering::AcqRel);
        CredentialRefusal { is_news, is_over: lasts >= self.timeout }
    }

    /// Whether [`CredentialState::accepted`] must be called on success.
    pub(super) fn is_watching(&self) -> bool {
        self.is_watching.load(Ordering::Acquire)
    }

    /// A request that named these indices was not refused, nor was any part of it. It opens the gate if it was sent since
    /// that was closed (`is_probe`); returns whether it did.
    pub(super) fn accepted<'a>(
        &self,
        indices: impl IntoIterator<Item = &'a Index>,
        now: Instant,
        is_probe: bool,
    ) -> bool {
        let mut refused = self.lock();
        refused.accepted(indices, now, self.timeout);
        let is_news = is_probe && self.is_closed.swap(false, Ordering::AcqRel);
        if is_news {
            self.opened.notify_waiters();
        }
        self.is_watching.store(!refused.spans.is_empty() || self.is_closed(), Ordering::Release);
        is_news
    }

    /// Whether requests have to wait.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, Refused> {
        // No code that holds the lock can leave it half changed.
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What follows from a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CredentialRefusal {
    /// It is the first since the last success.
    pub(super) is_news: bool,
    /// It has lasted for too long.
    pub(super) is_over: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_start(Duration::from_secs(seconds))
    }

    const TIMEOUT: Duration = Duration::from_secs(30);

    #[test]
    fn only_repeated_refusals_without_success_are_permanent() {
        let mut refused = Refused::default();
        let mut lasts = |what: Option<Index>, now| refused.refused(what, at(now), TIMEOUT).as_secs();
        assert_eq!(lasts(None, 100), 0);
        assert_eq!(lasts(Some(Index::Meta), 110), 0);
        assert_eq!(lasts(None, 120), 20);
        assert_eq!(lasts(Some(Index::Meta), 130), 20);
        assert_eq!(lasts(None, 151), 0, "the last one was 31 s ago");
        refused.accepted([&Index::Placements], at(151), TIMEOUT);
        assert_eq!(refused.refused(None, at(152), TIMEOUT), Duration::ZERO);
        assert_eq!(
            refused.refused(Some(Index::Meta), at(153), TIMEOUT).as_secs(),
            43,
            "a success elsewhere says nothing of an index"
        );
        refused.accepted([&Index::Meta], at(154), TIMEOUT);
        assert!(refused.spans.is_empty());
    }

    #[test]
    fn pauses_grow_so_that_few_attempts_are_made_before_it_is_over() {
        let credentials = CredentialState::new(TIMEOUT);
        let pauses: Vec<u64> = (0..6).map(|attempt| credentials.pause(attempt).as_secs()).collect();
        assert_eq!(pauses, [2, 4, 8, 16, 16, 16]);
    }
}
