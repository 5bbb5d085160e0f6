//! When an answer "there is no such document" is trusted.
//!
//! A web server answers 404 for a missing document, and so does a proxy without a backend, or a wrong path. If those
//! were trusted, a campaign would delete every document it requests. So after a 404 the source is asked for a document
//! that exists, the probe: only a source that has the probe can deny another document. A 404 from a request sent while
//! the probe was missing is not trusted either: the source may have recovered in between. If most answers are 404, the
//! probe is requested several times in a row, since one of several servers may be broken.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{FetchAnswer, FetchFailure};

/// Number of recent answers considered.
const WINDOW: u32 = 100;
/// With fewer answers the share is meaningless.
const FEW: u32 = 20;
/// How often in a row the probe must be found while most documents are missing.
const PROBES_WHILE_MOST_ARE_GONE: u32 = 3;

/// The share of missing documents. Pure.
#[derive(Debug, Default)]
struct Share {
    answers: u32,
    gone: u32,
}

impl Share {
    fn add(&mut self, answers: u32, gone: u32) {
        self.answers = self.answers.saturating_add(answers);
        self.gone = self.gone.saturating_add(gone);
        while self.answers > WINDOW {
            self.answers /= 2;
            self.gone /= 2;
        }
    }

    /// How often in a row the probe must be found.
    fn probes(&self) -> u32 {
        let are_most = self.answers >= FEW && self.gone.saturating_mul(2) > self.answers;
        if are_most { PROBES_WHILE_MOST_ARE_GONE } else { 1 }
    }
}

/// The source's state when a request began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Before {
    /// The last probing found the probe, or there was none.
    is_well: bool,
    /// Number of probings that failed.
    missed: u64,
}

/// Shared by all requests to a source.
#[derive(Debug, Default)]
pub(super) struct GoneGuard {
    is_missing: AtomicBool,
    missed: AtomicU64,
    share: Mutex<Share>,
    /// Number of the last probing that began.
    begun: AtomicU64,
    /// Number of the last probing that found the probe. Locked during a probing.
    found: tokio::sync::Mutex<u64>,
}

impl GoneGuard {
    /// Call before a request is sent.
    pub(super) fn before(&self) -> Before {
        let is_well = !self.is_missing.load(Ordering::Acquire);
        Before { is_well, missed: self.missed.load(Ordering::Acquire) }
    }

    /// Returns the answers of one request as far as they can be trusted. `probe` requests a document that exists.
    pub(super) async fn check<F: Future<Output = FetchAnswer>>(
        &self,
        before: Before,
        mut answers: Vec<FetchAnswer>,
        probe: impl Fn() -> F,
    ) -> Vec<FetchAnswer> {
        let gone = answers.iter().filter(|answer| **answer == FetchAnswer::Gone).count();
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let probes = {
            let mut share = self.share.lock().unwrap_or_else(PoisonError::into_inner);
            share.add(number(answers.len()), number(gone));
            share.probes()
        };
        if gone == 0 {
            return answers;
        }
        let mut confirmed = self.confirm(probes, probe).await;
        if confirmed.is_ok() && !(before.is_well && before == self.before()) {
            confirmed = Err(FetchFailure::new(
                "the source says that a document is gone, and may have said so while it did not have the one in \
                 source.probe_id; it is asked again",
            ));
        }
        if let Err(failure) = confirmed {
            for answer in answers.iter_mut().filter(|answer| **answer == FetchAnswer::Gone) {
                *answer = FetchAnswer::Failed(failure.clone());
            }
        }
        answers
    }

    /// Finds the probe `times` in a row. Waiting requests share a probing that began after their answers.
    async fn confirm<F: Future<Output = FetchAnswer>>(
        &self,
        probes: u32,
        probe: impl Fn() -> F,
    ) -> Result<(), FetchFailure> {
        let begun_before = self.begun.load(Ordering::Acquire);
        let mut found = self.found.lock().await;
        if *found > begun_before {
            return Ok(());
        }
        let probed = self.probe(probes, probe, &mut found).await;
        if probed.is_err() {
            self.missed.fetch_add(1, Ordering::AcqRel);
        }
        self.is_missing.store(probed.is_err(), Ordering::Release);
        probed
    }

    async fn probe<F: Future<Output = FetchAnswer>>(
        &self,
        probes: u32,
        probe: impl Fn() -> F,
        found: &mut u64,
    ) -> Result<(), FetchFailure> {
        let this = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        for _ in 0..probes {
            match probe().await {
                FetchAnswer::Found(_) => {}
                FetchAnswer::Gone => {
                    return Err(FetchFailure::new(
                        "the source says that a document is gone, and says so of the one in source.probe_id, which must \
                         exist, too: nothing is deleted; check source.url and what answers there, or set source.probe_id \
                         to a document that exists",
                    ));
                }
                FetchAnswer::Failed(failure) => {
                    let reason = format!(
                        "the source says that a document is gone, and fails when asked for source.probe_id: {failure}"
                    );
                    return Err(FetchFailure {
                        retry_after: failure.retry_after,
                        ..FetchFailure::new(reason)
                    });
                }
                FetchAnswer::Unusable { detail, .. } => {
                    return Err(FetchFailure::new(format!(
                        "the source says that a document is gone, and refuses the one in source.probe_id ({detail}): set \
                         source.probe_id to a document that exists"
                    )));
                }
            }
        }
        *found = this;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn probe_is_repeated_once_most_of_many_are_missing() {
        let mut share = Share::default();
        share.add(10, 10);
        assert_eq!(share.probes(), 1, "ten are few");
        share.add(10, 10);
        assert_eq!(share.probes(), PROBES_WHILE_MOST_ARE_GONE);
        share.add(21, 0);
        assert_eq!(share.probes(), 1);
        for _ in 0..1000 {
            share.add(1, 1);
        }
        assert_eq!(share.probes(), PROBES_WHILE_MOST_ARE_GONE);
        share.add(101, 0);
        assert_eq!(share.probes(), 1);
    }

    fn found() -> FetchAnswer {
        FetchAnswer::Found(Bytes::from_static(b"{}"))
    }

    #[tokio::test]
    async fn missing_document_is_trusted_only_while_the_probe_is_found() {
        let guard = GoneGuard::default();
        let gone = || vec![found(), FetchAnswer::Gone];
        let is_doubted = |checked: &[FetchAnswer]| {
            checked[0] == found()
                && matches!(&checked[1], FetchAnswer::Failed(failure) if failure.reason.contains("probe_id"))
        };
        let first = guard.before();
        assert_eq!(guard.check(first, gone(), || async { found() }).await, gone());
        for odd in [FetchAnswer::Gone, FetchAnswer::Failed(FetchFailure::new("503"))] {
            let checked = guard.check(guard.before(), gone(), || async { odd.clone() }).await;
            assert!(is_doubted(&checked), "{checked:?}");
        }
        let missing = guard.before();
        for asked_meanwhile in [first, missing] {
            let checked = guard.check(asked_meanwhile, gone(), || async { found() }).await;
            assert!(is_doubted(&checked), "it has come back since: {checked:?}");
        }
        assert_eq!(guard.check(guard.before(), gone(), || async { found() }).await, gone());
        let unasked = guard.check(first, vec![found()], || async { panic!("nothing is gone") }).await;
        assert_eq!(unasked, [found()]);
    }

    #[tokio::test]
    async fn with_most_missing_one_server_without_the_probe_is_doubted() {
        let guard = GoneGuard::default();
        let asked = AtomicU64::new(0);
        // Two of three servers have it.
        let probe = || async {
            if asked.fetch_add(1, Ordering::Relaxed) % 3 == 2 { FetchAnswer::Gone } else { found() }
        };
        let checked = guard.check(guard.before(), vec![FetchAnswer::Gone; 20], probe).await;
        assert!(checked.iter().all(|answer| matches!(answer, FetchAnswer::Failed(_))), "{checked:?}");
    }
}
