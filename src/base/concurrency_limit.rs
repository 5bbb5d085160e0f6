//! How many requests to have under way, by how the server answers. Pure: the time is passed in.
//!
//! Additive increase, multiplicative decrease, as in TCP: the limit rises by one after a round of answers. It falls to 0.7 of
//! itself when requests take 1.6 times as long as with one at a time, and to half when one is rejected or times out.
//!
//! *Like is compared with like.* What is averaged is the time per operation, and only of large writes: a backlog consists of
//! those, and the fixed costs of a request, which a small one mostly consists of, hardly count. Other requests only show
//! rejections. *Two averages*: the fast one is of the last 20 large writes under this limit. The slow one is made of
//! measurements: when large writes come for the first time, and again after three minutes, one request at a time is sent until
//! 24 of them are answered. A slow average of all requests would do without, but in a long backlog it rises to what it is to be
//! compared with, and the limit follows.
//!
//! A request counts only if it was sent after the limit last fell, and no more than the limit were under way with it: others
//! show what the limit before was like.

use std::time::Duration;

use super::clock::Instant;

/// Too many are under way if they take this many times as long as one at a time.
const SLOW: f64 = 1.6;
/// The limit falls to this share of itself if requests are slow.
const SLOW_DECREASE: f64 = 0.7;
/// The same if one was rejected.
const REJECTED_DECREASE: f64 = 0.5;
/// Share of a request in the fast average.
const FAST: f64 = 0.05;
/// Share of a measurement in the slow average.
const MEASUREMENT: f64 = 0.5;
/// The averages mean something after so many requests.
const ENOUGH: u32 = 24;
/// The limit rises after so many answers, or as many as it allows at once if those are more.
const ROUND: usize = 16;
/// When to measure again.
const MEASURED_FOR: Duration = Duration::from_secs(180);
/// A measurement that lasts longer is given up: large writes no longer come.
const MEASURING_TIMEOUT: Duration = Duration::from_secs(20);

/// How a request ended.
#[derive(Debug, Clone, Copy)]
pub struct EndedRequest {
    /// From sending to the answer.
    pub took: Duration,
    /// Operations of a large write; `None`: of a request that is not to be compared.
    pub operations: Option<usize>,
    /// The server was too busy, or did not answer in time.
    pub is_rejected: bool,
    /// Requests under way when it was sent, itself included.
    pub in_flight: usize,
}

/// See the top of this file.
#[derive(Debug, Clone)]
pub struct ConcurrencyLimit {
    max: usize,
    /// From 1 to `max`.
    limit: f64,
    /// When the limit fell last, or the measurement began or ended.
    changed: Option<Instant>,
    /// Answers since the limit changed.
    answers: usize,
    /// Seconds per operation, averaged over `large` writes since `changed`.
    fast: f64,
    large: u32,
    /// Seconds per operation with one request at a time.
    slow: Option<f64>,
    /// When `slow` was measured last, or could not be.
    measured: Option<Instant>,
    /// Since when it is measured.
    measuring: Option<Instant>,
}

impl ConcurrencyLimit {
    /// Begins with `max`, at least one.
    pub fn new(max: usize) -> Self {
        let max = max.max(1);
        Self {
            max,
            limit: as_float(max),
            changed: None,
            answers: 0,
            fast: 0.0,
            large: 0,
            slow: None,
            measured: None,
            measuring: None,
        }
    }

    /// Requests allowed at once now.
    pub fn allowed(&self) -> usize {
        if self.measuring.is_some() {
            return 1;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 1 to a number that was a usize"
        )]
        let limit = self.limit as usize;
        limit
    }

    /// Changes the upper bound. A limit that was there stays there.
    pub fn set_max(&mut self, max: usize) {
        let max = max.max(1);
        let was_at_max = self.limit >= as_float(self.max);
        self.max = max;
        if was_at_max || self.limit > as_float(max) {
            self.limit = as_float(max);
        }
    }

    /// Takes note of the end of a request.
    pub fn ended(&mut self, request: &EndedRequest, now: Instant) {
        if self.measuring.is_some_and(|since| now.since(since) > MEASURING_TIMEOUT) {
            self.end_measurement(now);
        }
        let is_of_before = self.changed.is_some_and(|changed| now.since(changed) < request.took);
        if is_of_before || request.in_flight > self.allowed() {
            return;
        }
        if request.is_rejected {
            self.fall_to(REJECTED_DECREASE, now);
            return;
        }
        if let Some(operations) = request.operations {
            self.large_write(request.took, operations, now);
        }
        if self.measuring.is_none() {
            self.answered();
        }
    }

    /// Measures, or compares with what was measured.
    fn large_write(&mut self, took: Duration, operations: usize, now: Instant) {
        let is_measured = self.measured.is_some_and(|measured| now.since(measured) < MEASURED_FOR);
        if !is_measured && self.measuring.is_none() {
            self.measuring = Some(now);
            self.begin_averaging(now);
            return;
        }
        let seconds = took.as_secs_f64() / as_float(operations.max(1));
        self.large = self.large.saturating_add(1);
        self.fast += (seconds - self.fast) * f64::from(self.large).recip().max(FAST);
        if self.large < ENOUGH {
            return;
        }
        if self.measuring.is_some() {
            self.slow = Some(self.slow.map_or(self.fast, |slow| slow + (self.fast - slow) * MEASUREMENT));
            self.end_measurement(now);
        } else if self.slow.is_some_and(|slow| self.fast > slow * SLOW) {
            self.fall_to(SLOW_DECREASE, now);
        }
    }

    fn end_measurement(&mut self, now: Instant) {
        (self.measuring, self.measured) = (None, Some(now));
        self.begin_averaging(now);
    }

    fn fall_to(&mut self, share: f64, now: Instant) {
        self.limit = (self.limit * share).max(1.0);
        self.begin_averaging(now);
    }

    fn begin_averaging(&mut self, now: Instant) {
        (self.changed, self.answers, self.large) = (Some(now), 0, 0);
    }

    fn answered(&mut self) {
        self.answers += 1;
        if self.answers >= ROUND.max(self.allowed()) {
            self.answers = 0;
            self.limit = (self.limit + 1.0).min(as_float(self.max));
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests and operations")]
fn as_float(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;

    /// A server in simulated time, to which as many large writes are sent at once as are allowed.
    struct Server {
        limit: ConcurrencyLimit,
        now: Duration,
        random: Random,
        /// When each request under way ends, when it was sent, and how many were under way then.
        under_way: Vec<(Duration, Duration, usize)>,
        /// What was allowed after each answer.
        allowed: Vec<usize>,
    }

    impl Server {
        fn new(max: usize) -> Self {
            Self {
                limit: ConcurrencyLimit::new(max),
                now: Duration::ZERO,
                random: Random::new(7),
                under_way: Vec::new(),
                allowed: Vec::new(),
            }
        }

        /// So many answers. `latency`: milliseconds by the number of requests under way; each takes up to `noise` of that more
        /// or less.
        fn answers(&mut self, answers: usize, latency: impl Fn(usize) -> f64, noise: f64) -> &[usize] {
            let before = self.allowed.len();
            for _ in 0..answers {
                while self.under_way.len() < self.limit.allowed() {
                    let in_flight = self.under_way.len() + 1;
                    let factor = 1.0 + noise * (2.0 * self.random.share() - 1.0);
                    let took = Duration::from_secs_f64(latency(in_flight) * factor / 1e3);
                    self.under_way.push((self.now + took, self.now, in_flight));
                }
                self.under_way.sort_unstable();
                let (now, sent, in_flight) = self.under_way.remove(0);
                self.now = now;
                self.limit.ended(
                    &EndedRequest {
                        took: now - sent,
                        operations: Some(2_000),
                        is_rejected: false,
                        in_flight,
                    },
                    Instant::from_start(now),
                );
                self.allowed.push(self.limit.allowed());
            }
            &self.allowed[before..]
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_start(Duration::from_secs(seconds))
    }

    /// Took a second.
    fn request(operations: Option<usize>, is_rejected: bool) -> EndedRequest {
        EndedRequest { took: Duration::from_secs(1), operations, is_rejected, in_flight: 1 }
    }

    /// 100 ms for up to `capacity` requests at once; beyond it they wait for one another.
    #[expect(clippy::cast_precision_loss, reason = "a handful of requests")]
    fn of_capacity(capacity: usize) -> impl Fn(usize) -> f64 + Copy {
        move |in_flight| 100.0 * (in_flight as f64 / capacity as f64).max(1.0)
    }

    #[test]
    fn limit_settles_near_the_capacity_of_the_server() {
        for (max, capacity, noise) in [(4, 2, 0.0), (16, 2, 0.3), (32, 8, 0.0), (32, 8, 0.5), (64, 16, 0.5)] {
            let mut server = Server::new(max);
            server.answers(2_000, of_capacity(capacity), noise);
            let allowed = server.answers(20_000, of_capacity(capacity), noise);
            let settled: Vec<usize> = allowed.iter().copied().filter(|allowed| *allowed > 1).collect();
            assert!(settled.len() > 19_500, "measured for too long: {}", settled.len());
            let mean = settled.iter().sum::<usize>() / settled.len();
            assert!((capacity..2 * capacity).contains(&mean), "{max} {capacity} {noise}: {mean}");
            assert!(settled.iter().all(|allowed| *allowed <= 5 * capacity / 2), "{max} {capacity} {noise}");
        }
    }

    #[test]
    fn limit_stays_at_the_maximum_while_latency_is_constant_but_for_measurements() {
        for noise in [0.0, 0.5] {
            let mut server = Server::new(4);
            let allowed = server.answers(20_000, |_| 100.0, noise);
            assert!(allowed.iter().all(|allowed| [1, 4].contains(allowed)), "{noise}");
            let measuring = allowed.iter().filter(|allowed| **allowed == 1).count();
            assert!(measuring < 200, "{noise}: {measuring}");
        }
    }

    #[test]
    fn limit_climbs_back_when_the_server_has_recovered() {
        let mut server = Server::new(16);
        server.answers(5_000, of_capacity(2), 0.3);
        assert!(server.limit.allowed() <= 5, "{}", server.limit.allowed());
        server.answers(500, of_capacity(100), 0.3);
        assert_eq!(server.limit.allowed(), 16);
    }

    #[test]
    fn server_that_stays_slower_is_measured_anew() {
        let mut server = Server::new(8);
        server.answers(1_000, |_| 100.0, 0.3);
        server.answers(50, |_| 300.0, 0.3);
        assert!(server.limit.allowed() < 8);
        server.answers(30_000, |_| 300.0, 0.3);
        let allowed = server.answers(1_000, |_| 300.0, 0.3);
        assert!(allowed.iter().filter(|allowed| **allowed == 8).count() > 900);
    }

    #[test]
    fn a_rejection_halves_the_limit_once_for_all_that_were_under_way() {
        let mut limit = ConcurrencyLimit::new(16);
        let rejected = |limit: &mut ConcurrencyLimit, second| {
            limit.ended(&request(None, true), at(second));
            limit.allowed()
        };
        assert_eq!(rejected(&mut limit, 10), 8);
        // Sent at 9 s and at 9.5 s, when 16 were allowed.
        assert_eq!(rejected(&mut limit, 10), 8);
        limit.ended(&EndedRequest { took: Duration::from_millis(1_500), ..request(None, true) }, at(11));
        assert_eq!(limit.allowed(), 8);
        // Others of the 16 are still under way.
        limit.ended(&EndedRequest { in_flight: 9, ..request(None, true) }, at(20));
        assert_eq!(limit.allowed(), 8);
        let later: Vec<usize> = (0..5).map(|n| rejected(&mut limit, 30 + 10 * n)).collect();
        assert_eq!(later, [4, 2, 1, 1, 1]);
    }

    #[test]
    fn small_requests_raise_the_limit_and_their_latency_does_not_lower_it() {
        let mut limit = ConcurrencyLimit::new(3);
        limit.ended(&request(None, true), at(10));
        assert_eq!(limit.allowed(), 1);
        let mut allowed = Vec::new();
        for n in 0_u32..40 {
            let took = Duration::from_secs(1) * (1 + n);
            limit.ended(&EndedRequest { took, ..request(None, false) }, at(1_000 + u64::from(n)));
            allowed.push(limit.allowed());
        }
        assert_eq!([allowed[14], allowed[15], allowed[39]], [1, 2, 3]);
    }

    #[test]
    fn measurement_is_given_up_when_large_writes_no_longer_come() {
        let mut limit = ConcurrencyLimit::new(4);
        limit.ended(&request(Some(2_000), false), at(10));
        assert_eq!(limit.allowed(), 1, "the first large write");
        limit.ended(&request(None, false), at(20));
        assert_eq!(limit.allowed(), 1);
        limit.ended(&request(None, false), at(31));
        assert_eq!(limit.allowed(), 4);
        limit.ended(&request(Some(2_000), false), at(60));
        assert_eq!(limit.allowed(), 4, "not again within three minutes");
        limit.ended(&request(Some(2_000), false), at(300));
        assert_eq!(limit.allowed(), 1);
    }

    #[test]
    fn a_new_maximum_is_followed() {
        let mut limit = ConcurrencyLimit::new(4);
        limit.set_max(8);
        assert_eq!(limit.allowed(), 8);
        limit.ended(&request(None, true), at(10));
        limit.set_max(6);
        assert_eq!(limit.allowed(), 4);
        limit.set_max(2);
        assert_eq!(limit.allowed(), 2);
        limit.set_max(0);
        assert_eq!(limit.allowed(), 1);
    }
}
