//! Boot time, for deadlines: it goes on during suspension, so that a suspended machine sends nothing after its
//! deadline.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// A point in time on the boot-time clock (Linux `CLOCK_BOOTTIME`: monotonic, and going on while the machine sleeps).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    /// A point in time: `since_start` after the clock's zero.
    pub const fn from_start(since_start: Duration) -> Self {
        Self(since_start)
    }

    /// Time from `earlier` to this; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The next multiple of `apart` after this time, counted from the clock's zero: the same for all callers. This time
    /// itself if `apart` is zero.
    pub fn next_of(self, apart: Duration) -> Self {
        let Some(past) = self.0.as_nanos().checked_rem(apart.as_nanos()) else { return self };
        let past = u64::try_from(past).map_or(Duration::ZERO, Duration::from_nanos);
        self + apart.saturating_sub(past)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }
}

/// A clock; tests use their own.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Now, on the boot-time clock.
    fn now(&self) -> Instant;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Instant {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        const ID: rustix::time::ClockId = rustix::time::ClockId::Boottime;
        // Other systems use the monotonic clock; on macOS it stops while the machine sleeps.
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        const ID: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
        let time = rustix::time::clock_gettime(ID);
        Instant(Duration::new(
            u64::try_from(time.tv_sec).unwrap_or_default(),
            u32::try_from(time.tv_nsec).unwrap_or_default(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_tick_is_after_now_and_the_same_for_all_before_it() {
        let at = |millis| Instant::from_start(Duration::from_millis(millis));
        let next = |millis, apart| at(millis).next_of(Duration::from_millis(apart));
        assert_eq!([0, 1, 199].map(|now| next(now, 200)), [at(200); 3]);
        assert_eq!([200, 201, 399].map(|now| next(now, 200)), [at(400); 3]);
        assert_eq!(next(7, 0), at(7));
        let late = Instant::from_start(Duration::MAX);
        assert_eq!(late.next_of(Duration::from_nanos(1)), late);
    }
}
