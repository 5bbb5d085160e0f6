//! Time as deadlines need it: counted since boot, so that a suspended machine can not send what is long past.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// A point in time on the boot-time clock (Linux `CLOCK_BOOTTIME`: monotonic, and going on while the machine sleeps).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    /// A point in time for tests: `since_start` after an arbitrary zero.
    pub const fn from_start(since_start: Duration) -> Self {
        Self(since_start)
    }

    /// Time from `earlier` to this; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }
}

/// Tells the time. A test tells its own.
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
        // Elsewhere the monotonic clock is the nearest thing; on macOS it stops while the machine sleeps.
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        const ID: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
        let time = rustix::time::clock_gettime(ID);
        Instant(Duration::new(
            u64::try_from(time.tv_sec).unwrap_or_default(),
            u32::try_from(time.tv_nsec).unwrap_or_default(),
        ))
    }
}
