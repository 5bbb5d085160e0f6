//! Circuit breaker. Pure: the time is passed in.

use std::time::Duration;

use crate::base::clock::Instant;

/// A trial without a result after this time is assumed to have been cancelled by its sender; another one may start.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(60);

/// Admits every request until several in a row have failed; then, after each pause, one trial at a time.
#[derive(Debug, Clone)]
pub struct CircuitBreaker {
    threshold: u32,
    /// Consecutive failures; those of concurrent requests while it is open count once.
    failures: u32,
    state: State,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Closed,
    /// No request is admitted before `until`.
    Open {
        until: Instant,
    },
    /// A trial is in flight; no other request is admitted before `until`.
    HalfOpen {
        until: Instant,
    },
}

impl CircuitBreaker {
    /// Closed. It opens after `threshold` consecutive failures (at least 1).
    pub fn new(threshold: u32) -> Self {
        Self { threshold: threshold.max(1), failures: 0, state: State::Closed }
    }

    /// Whether a request may be sent now. If so, it must be sent, and its result reported: it may be the trial.
    pub fn admits(&mut self, now: Instant) -> bool {
        let may_send = self.would_admit(now);
        if may_send && self.is_open() {
            self.state = State::HalfOpen { until: now + TRIAL_TIMEOUT };
        }
        may_send
    }

    /// What [`CircuitBreaker::admits`] would return, without starting a trial.
    pub fn would_admit(&self, now: Instant) -> bool {
        self.open_until().is_none_or(|until| until <= now)
    }

    /// When the next request is admitted; `None` while it is closed.
    pub fn open_until(&self) -> Option<Instant> {
        match self.state {
            State::Closed => None,
            State::Open { until } | State::HalfOpen { until } => Some(until),
        }
    }

    /// Whether the last requests failed.
    pub fn is_open(&self) -> bool {
        !matches!(self.state, State::Closed)
    }

    /// Records a success, which closes it. Returns the number of consecutive failures before.
    pub fn succeeded(&mut self) -> u32 {
        self.state = State::Closed;
        std::mem::take(&mut self.failures)
    }

    /// Records a failure. If it opens the breaker, or opens it again, the result is the pause before the next trial, which
    /// `pause` computes from the number of pauses since the last success. Failures during a pause change nothing.
    pub fn failed(&mut self, now: Instant, pause: impl FnOnce(u32) -> Duration) -> Option<Duration> {
        if matches!(self.state, State::Open { until } if now < until) {
            return None;
        }
        self.failures = self.failures.saturating_add(1);
        let pauses = self.failures.checked_sub(self.threshold)?;
        let pause = pause(pauses);
        self.state = State::Open { until: now + pause };
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Instant {
        Instant::from_start(Duration::from_millis(millis))
    }

    /// One that opened at time 0, after `threshold` failures, for a second.
    fn open(threshold: u32) -> CircuitBreaker {
        let mut breaker = CircuitBreaker::new(threshold);
        for _ in 1..threshold {
            assert_eq!(breaker.failed(at(0), |_| SECOND), None);
            assert!(breaker.admits(at(0)) && !breaker.is_open());
        }
        assert_eq!(breaker.failed(at(0), |_| SECOND), Some(SECOND));
        breaker
    }

    #[test]
    fn consecutive_failures_open_it_and_one_trial_follows_the_pause() {
        for threshold in [1, 5] {
            let mut breaker = open(threshold);
            assert!(breaker.is_open() && !breaker.admits(at(999)));
            assert_eq!(breaker.open_until(), Some(at(1_000)));
            assert!(breaker.would_admit(at(1_000)) && breaker.admits(at(1_000)));
            assert!(!breaker.would_admit(at(1_000)) && !breaker.admits(at(1_000)), "one trial at a time");
            assert_eq!(breaker.succeeded(), threshold);
            assert!(!breaker.is_open() && breaker.admits(at(1_000)) && breaker.admits(at(1_000)));
            assert_eq!(breaker.open_until(), None);
        }
    }

    #[test]
    fn isolated_failures_do_not_open_it() {
        let mut breaker = CircuitBreaker::new(5);
        for _ in 0..3 {
            for _ in 1..5 {
                assert_eq!(breaker.failed(at(0), |_| SECOND), None);
            }
            assert_eq!(breaker.succeeded(), 4);
        }
        assert!(!breaker.is_open());
    }

    #[test]
    fn failed_trial_starts_the_next_pause() {
        let mut breaker = open(3);
        for n in 1..4 {
            let now = breaker.open_until().unwrap();
            assert!(breaker.admits(now));
            assert_eq!(breaker.failed(now, |pauses| SECOND * pauses), Some(SECOND * n));
            assert_eq!(breaker.open_until(), Some(now + SECOND * n));
        }
        breaker.succeeded();
        assert_eq!(
            open(3).failed(at(1_000), |pauses| SECOND * pauses),
            Some(SECOND),
            "late, without a trial"
        );
    }

    #[test]
    fn failures_of_concurrent_requests_do_not_extend_the_pause() {
        let mut breaker = open(1);
        assert_eq!(breaker.failed(at(500), |_| 10 * SECOND), None);
        assert_eq!(breaker.open_until(), Some(at(1_000)));
    }

    #[test]
    fn trial_without_a_result_is_repeated_after_a_timeout() {
        let mut breaker = open(1);
        assert!(breaker.admits(at(1_000)));
        assert_eq!(breaker.open_until(), Some(at(61_000)));
        assert!(!breaker.admits(at(60_999)));
        assert!(breaker.admits(at(61_000)) && !breaker.admits(at(61_000)));
    }
}
