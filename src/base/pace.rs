//! An even rate: what is taken must be earned first, and what is not taken is saved up for a short time (a token bucket). Pure:
//! the time is passed in.

use std::num::NonZeroU32;
use std::time::Duration;

use super::clock::Instant;

const NANOSECONDS_PER_SECOND: u128 = 1_000_000_000;

/// See the top of this file. It begins with nothing saved up.
#[derive(Debug, Clone)]
pub struct Pace {
    /// Per second; `None`: any number.
    rate: Option<NonZeroU32>,
    /// For how long what is not taken is saved up.
    saved_for: Duration,
    /// When what was taken is earned and as much is saved up as may be.
    full: Instant,
}

impl Pace {
    /// So many per second from now on.
    pub fn new(rate: Option<NonZeroU32>, saved_for: Duration, now: Instant) -> Self {
        Self { rate, saved_for, full: now + saved_for }
    }

    /// Changes the rate. What was taken before no longer delays anything, so that a higher rate helps at once.
    pub fn set_rate(&mut self, rate: Option<NonZeroU32>, now: Instant) {
        if rate != self.rate {
            self.rate = rate;
            self.full = self.full.min(now + self.saved_for);
        }
    }

    /// How long until something may be taken.
    pub fn wait(&self, now: Instant) -> Duration {
        match self.rate {
            Some(_) => self.full.since(now + self.saved_for),
            None => Duration::ZERO,
        }
    }

    /// Takes so many, also more than are saved up or before the time: what follows waits until they are earned.
    pub fn take(&mut self, count: usize, now: Instant) {
        self.full = self.full.max(now) + self.time_to_earn(count);
    }

    /// The same, and nothing waits for longer than `most` because of it.
    pub fn take_with_wait_up_to(&mut self, most: Duration, count: usize, now: Instant) {
        let before = self.full;
        self.take(count, now);
        self.full = self.full.min(before.max(now + self.saved_for + most));
    }

    fn time_to_earn(&self, count: usize) -> Duration {
        let Some(rate) = self.rate else { return Duration::ZERO };
        let nanoseconds = count as u128 * NANOSECONDS_PER_SECOND / u128::from(rate.get());
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED_FOR: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Instant {
        Instant::from_start(Duration::from_millis(millis))
    }

    /// From the clock's zero.
    fn pace(rate: u32) -> Pace {
        Pace::new(NonZeroU32::new(rate), SAVED_FOR, at(0))
    }

    fn wait(pace: &Pace, millis: u64) -> u128 {
        pace.wait(at(millis)).as_millis()
    }

    #[test]
    fn what_is_taken_is_earned_before_more_is() {
        let mut pace = pace(1_000);
        assert_eq!(wait(&pace, 0), 0);
        pace.take(300, at(0));
        assert_eq!((wait(&pace, 0), wait(&pace, 100), wait(&pace, 300)), (300, 200, 0));
        // More than a second's worth at once, and before its time.
        pace.take(2_000, at(200));
        assert_eq!(wait(&pace, 200), 2_100);
    }

    #[test]
    fn one_second_is_saved_up_and_no_more() {
        let mut pace = pace(1_000);
        pace.take(1_000, at(60_000));
        assert_eq!(wait(&pace, 60_000), 0);
        pace.take(1, at(60_000));
        assert_eq!(wait(&pace, 60_000), 1);
    }

    #[test]
    fn over_a_minute_the_rate_is_kept_whatever_the_portions() {
        let mut pace = pace(700);
        let (mut now, mut taken) = (Duration::ZERO, 0);
        for portion in [1, 700, 13, 250].into_iter().cycle() {
            now += pace.wait(Instant::from_start(now));
            if now >= Duration::from_secs(60) {
                break;
            }
            pace.take(portion, Instant::from_start(now));
            taken += portion;
        }
        assert!((60 * 700..=61 * 700).contains(&taken), "{taken}");
    }

    #[test]
    fn without_a_rate_nothing_waits_and_a_new_rate_forgets_what_was_taken() {
        let mut pace = pace(0);
        pace.take(1_000_000, at(0));
        assert_eq!(wait(&pace, 0), 0);
        pace.set_rate(NonZeroU32::new(10), at(0));
        pace.take(600, at(0));
        assert_eq!(wait(&pace, 0), 60_000);
        pace.set_rate(NonZeroU32::new(10), at(0));
        assert_eq!(wait(&pace, 0), 60_000, "the same rate");
        pace.set_rate(NonZeroU32::new(20), at(0));
        assert_eq!(wait(&pace, 0), 0);
    }

    #[test]
    fn a_bound_on_the_wait_neither_adds_to_one_nor_shortens_one_that_is_longer() {
        let bounded = |first: usize| {
            let mut pace = pace(1_000);
            pace.take(first, at(0));
            pace.take_with_wait_up_to(SAVED_FOR, 10_000, at(0));
            wait(&pace, 0)
        };
        assert_eq!([0, 500, 3_000].map(bounded), [1_000, 1_000, 3_000]);
    }
}
