//! An even rate: record `n` is due at `n / rate`. Short waits are saved up until they are worth a sleep.

use std::num::NonZeroU32;
use std::thread::sleep;
use std::time::Duration;

use crate::base::clock::Instant;
use crate::base::pace::Pace;

/// A shorter sleep is not kept by the system anyway.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);
/// After a pause (a full queue, a slow pipe) the rate is not made up for by a burst of more than this.
const MOST_BEHIND: Duration = Duration::from_millis(100);

/// When the next record is due, on the run's clock.
#[derive(Debug)]
pub(super) struct SendPace(Pace);

impl SendPace {
    pub(super) fn new(rate: NonZeroU32) -> Self {
        Self(Pace::new(Some(rate), MOST_BEHIND, Instant::from_start(Duration::ZERO)))
    }

    /// Sleeps until the next record is due. `now` is the time since the run's start.
    pub(super) fn wait(&mut self, now: Duration) {
        let wait = self.next(now);
        if wait >= SHORTEST_SLEEP {
            sleep(wait);
        }
    }

    /// How long the next record has to wait.
    fn next(&mut self, now: Duration) -> Duration {
        let now = Instant::from_start(now);
        let wait = self.0.wait(now);
        self.0.take(1, now);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(rate: u32) -> SendPace {
        SendPace::new(NonZeroU32::new(rate).unwrap())
    }

    #[test]
    fn a_thousand_records_at_a_thousand_per_second_take_a_second() {
        let mut pace = pace(1000);
        let mut now = Duration::ZERO;
        for _ in 0..=1000 {
            now += pace.next(now);
        }
        assert_eq!(now, Duration::from_secs(1));
    }

    #[test]
    fn pause_is_not_followed_by_a_burst() {
        let mut pace = pace(100);
        pace.next(Duration::ZERO);
        let now = Duration::from_secs(60);
        let at_once = (0..1000).take_while(|_| pace.next(now).is_zero()).count();
        assert_eq!(at_once, 11, "what was due within the last 100 ms");
    }
}
