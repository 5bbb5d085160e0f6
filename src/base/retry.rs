//! Backoff: exponential, with full jitter, capped, endless.
//!
//! The nth delay is drawn evenly from `[0, cap]`, where the cap starts at [`RetryPolicy::initial`], doubles each time
//! and stays at [`RetryPolicy::max`]. Full jitter, since workers refused together must not return together. Delays
//! never end; a request's deadline stops retrying.
//!
//! Only this file names the `backoff` crate. It draws from `[i·(1-f), i·(1+f)]`, so a factor of 1 over half the cap is
//! full jitter over the cap.

use std::time::Duration;

use backoff::backoff::Backoff;
use backoff::{ExponentialBackoff, ExponentialBackoffBuilder};

use crate::base::random::Random;

/// Upper limit of a server's `Retry-After`.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Only zero delays would be a busy loop.
const MIN_INITIAL: Duration = Duration::from_millis(1);

/// Limits of the delays between attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Highest first delay; at least 1 ms, at most `max`.
    pub initial: Duration,
    /// Highest delay, `Retry-After` aside.
    pub max: Duration,
}

impl RetryPolicy {
    /// The delays of one request, drawn at random.
    pub fn delays(&self) -> Delays {
        #[cfg(feature = "sabotage")]
        if let Some(seed) = replay::next_seed() {
            return self.seeded_delays(seed);
        }
        let (initial, max) = self.caps();
        let backoff = ExponentialBackoffBuilder::default()
            .with_initial_interval(initial / 2)
            .with_max_interval(max / 2)
            .with_multiplier(2.0)
            .with_randomization_factor(1.0)
            .with_max_elapsed_time(None)
            .build();
        Delays { max, source: Source::Random(Box::new(backoff)) }
    }

    /// The same delays for the same seed: for simulations and tests.
    pub fn seeded_delays(&self, seed: u64) -> Delays {
        let (cap, max) = self.caps();
        Delays { max, source: Source::Seeded { random: Random::new(seed), cap } }
    }

    /// First and highest cap.
    fn caps(&self) -> (Duration, Duration) {
        let max = self.max.max(MIN_INITIAL);
        (self.initial.clamp(MIN_INITIAL, max), max)
    }
}

/// An endless sequence of delays. See [`RetryPolicy::delays`].
#[derive(Debug)]
pub struct Delays {
    max: Duration,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Random(Box<ExponentialBackoff>),
    Seeded { random: Random, cap: Duration },
}

impl Delays {
    /// The next delay. With `at_least` (a `Retry-After`, limited to [`MAX_RETRY_AFTER`]) the jitter is added: otherwise
    /// all clients with the same value would return in the same second.
    pub fn next(&mut self, at_least: Option<Duration>) -> Duration {
        let jittered = match &mut self.source {
            // `None` means that a maximum time has passed, and none is set. The crate may overshoot by a nanosecond.
            Source::Random(backoff) => backoff.next_backoff().unwrap_or(self.max).min(self.max),
            Source::Seeded { random, cap } => {
                let drawn = cap.mul_f64(random.share());
                *cap = cap.saturating_mul(2).min(self.max);
                drawn
            }
        };
        jittered + at_least.unwrap_or_default().min(MAX_RETRY_AFTER)
    }
}

#[cfg(feature = "sabotage")]
pub use replay::with_seed;

/// Seeded delays, for a simulation that must replay runs: only with the test-only feature.
#[cfg(feature = "sabotage")]
mod replay {
    use std::cell::RefCell;

    use crate::base::random::Random;

    thread_local! {
        static SEEDS: RefCell<Option<Random>> = const { RefCell::new(None) };
    }

    /// Draws all delays on this thread from this seed while `work` runs; ends even if it panics.
    pub fn with_seed<R>(seed: u64, work: impl FnOnce() -> R) -> R {
        struct Restore(Option<Random>);
        impl Drop for Restore {
            fn drop(&mut self) {
                SEEDS.set(self.0.take());
            }
        }
        let _restore = Restore(SEEDS.replace(Some(Random::new(seed))));
        work()
    }

    pub(super) fn next_seed() -> Option<u64> {
        SEEDS.with_borrow_mut(|seeds| seeds.as_mut().map(Random::bits))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn policy(initial_ms: u64, max_ms: u64) -> RetryPolicy {
        RetryPolicy { initial: Duration::from_millis(initial_ms), max: Duration::from_millis(max_ms) }
    }

    /// The cap of the nth delay, counted from 0.
    fn cap(policy: RetryPolicy, n: u32) -> Duration {
        let (initial, max) = policy.caps();
        initial.saturating_mul(2u32.saturating_pow(n)).min(max)
    }

    proptest! {
        #[test]
        fn delays_stay_within_a_cap_that_grows_then_stays(
            initial in 0u64..5_000, max in 0u64..60_000, seed: u64,
        ) {
            let policy = policy(initial, max);
            for mut delays in [policy.delays(), policy.seeded_delays(seed)] {
                for n in 0..40 {
                    let delay = delays.next(None);
                    // A nanosecond for each halving and the crate's own rounding.
                    prop_assert!(delay <= cap(policy, n) + Duration::from_nanos(2), "{n}: {delay:?}");
                }
            }
        }

        #[test]
        fn retry_after_is_a_bounded_lower_bound(after in 0u64..1_000_000) {
            let after = Duration::from_secs(after);
            let delay = policy(100, 1_000).delays().next(Some(after));
            prop_assert!(delay >= after.min(MAX_RETRY_AFTER));
            prop_assert!(delay <= MAX_RETRY_AFTER + Duration::from_secs(1));
        }
    }

    #[test]
    fn delays_use_the_whole_range_up_to_the_cap() {
        let policy = policy(1_000, 1_000);
        let mut random = policy.delays();
        let mut seeded = policy.seeded_delays(7);
        for delays in [&mut random, &mut seeded] {
            let mut tenths = [0; 10];
            for _ in 0..2_000 {
                let tenth = usize::try_from(delays.next(None).as_millis() / 100).unwrap();
                tenths[tenth.min(9)] += 1;
            }
            assert!(tenths.iter().all(|&count| (120..280).contains(&count)), "{tenths:?}");
        }
    }

    #[test]
    fn same_seed_gives_the_same_delays() {
        let policy = policy(100, 10_000);
        let draw = |seed| {
            let mut delays = policy.seeded_delays(seed);
            (0..10).map(|_| delays.next(None)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[cfg(feature = "sabotage")]
    #[test]
    fn delays_of_a_thread_can_come_from_one_seed() {
        let policy = policy(100, 10_000);
        let draw = || [(); 4].map(|()| policy.delays().next(None));
        let seeded = |seed| with_seed(seed, draw);
        assert_eq!(seeded(1), seeded(1));
        assert_ne!(seeded(1), seeded(2));
        assert_ne!(seeded(1)[0], seeded(1)[1], "not the same delays for every request");
        assert_ne!(draw(), draw(), "by chance again");
    }
}
