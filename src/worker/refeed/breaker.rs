//! Circuit breaker for a failing source. Pure: the time is passed in.

use crate::base::clock::Instant;
use crate::base::retry::{Delays, RetryPolicy};

/// The breaker opens after this many consecutive requests without a usable answer.
const FAILURES: u32 = 5;

/// Admits or blocks requests.
#[derive(Debug)]
pub(super) struct Breaker {
    policy: RetryPolicy,
    failures: u32,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    /// When one trial request may be sent.
    until: Instant,
    /// The trial is in flight.
    is_tried: bool,
    delays: Delays,
}

impl Breaker {
    /// Closed: every request is admitted.
    pub(super) fn new(policy: RetryPolicy) -> Self {
        Self { policy, failures: 0, open: None }
    }

    /// Whether a request may be sent now. If so, it must be sent: it may be the trial.
    pub(super) fn may_ask(&mut self, now: Instant) -> bool {
        match &mut self.open {
            None => true,
            Some(open) if open.is_tried || now < open.until => false,
            Some(open) => {
                open.is_tried = true;
                true
            }
        }
    }

    /// When to call again, if blocked now and no trial is in flight.
    pub(super) fn due_at(&self) -> Option<Instant> {
        self.open.as_ref().filter(|open| !open.is_tried).map(|open| open.until)
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// A request was answered.
    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
        self.open = None;
    }

    /// A request failed; the source may have sent `Retry-After`.
    pub(super) fn failed(&mut self, now: Instant, retry_after: Option<std::time::Duration>) {
        self.failures = self.failures.saturating_add(1);
        match &mut self.open {
            Some(open) => {
                open.until = now + open.delays.next(retry_after);
                open.is_tried = false;
            }
            None if self.failures >= FAILURES => {
                let mut delays = self.policy.delays();
                let until = now + delays.next(retry_after);
                self.open = Some(Open { until, is_tried: false, delays });
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_start(Duration::from_millis(millis))
    }

    fn breaker() -> Breaker {
        let second = Duration::from_secs(1);
        Breaker::new(RetryPolicy { initial: second, max: second })
    }

    #[test]
    fn open_breaker_admits_one_trial_request() {
        let mut breaker = breaker();
        for _ in 1..FAILURES {
            breaker.failed(at(0), None);
            assert!(breaker.may_ask(at(0)) && !breaker.is_open());
        }
        breaker.failed(at(0), Some(Duration::from_secs(3)));
        assert!(breaker.is_open() && !breaker.may_ask(at(2_999)));
        let due = breaker.due_at().unwrap();
        assert!(due >= at(3_000) && due <= at(4_000), "{due:?}");
        assert!(breaker.may_ask(due));
        assert!(!breaker.may_ask(due), "another one while the first is under way");
        assert_eq!(breaker.due_at(), None);
        breaker.failed(due, None);
        assert!(breaker.is_open() && breaker.due_at().is_some());
        assert!(breaker.may_ask(at(10_000)));
        breaker.succeeded();
        assert!(!breaker.is_open() && breaker.may_ask(at(10_000)));
    }

    #[test]
    fn isolated_failures_do_not_open_the_breaker() {
        let mut breaker = breaker();
        for _ in 0..3 {
            for _ in 1..FAILURES {
                breaker.failed(at(0), None);
            }
            breaker.succeeded();
        }
        assert!(!breaker.is_open());
    }
}
