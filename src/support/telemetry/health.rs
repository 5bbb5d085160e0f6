//! Is the worker alive, is it ready, and if not, why: a little state that everybody shares.
//!
//! *Alive* means that the thread which polls Kafka has polled lately: a worker whose poll thread hangs is of no use and
//! should be restarted. *Ready* means that no part of the worker has named a reason against it. The two are apart on
//! purpose: an Elasticsearch that is down makes a worker not ready, and restarting the worker would not help.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::IntGauge;

use crate::base::clock::{Clock, Instant};
use crate::support::telemetry::Metrics;
use crate::support::telemetry::events::ReadinessChanged;

/// Whether the poll thread polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alive {
    /// It has polled lately, or has not started.
    Yes,
    /// It has not polled for this long.
    Silent(Duration),
}

/// See the file's first lines. All methods are cheap; [`Health::poll_heartbeat`] is one clock reading and one store.
#[derive(Debug)]
pub struct Health {
    clock: Arc<dyn Clock>,
    /// 1 while it is ready.
    ready: IntGauge,
    /// The poll thread is taken for hung when it has not polled for longer than this.
    max_silence: Duration,
    /// Milliseconds on the boot-time clock of the last poll; [`NEVER`] before the first.
    last_poll: AtomicU64,
    /// Why the worker is not ready, by the part that says so.
    missing: Mutex<BTreeMap<String, String>>,
}

const NEVER: u64 = u64::MAX;

impl Health {
    /// The part that is not ready at first; the worker calls [`Health::ready`] with it after startup.
    pub const STARTUP: &str = "startup";
    /// The part that is not ready once the process was told to stop.
    pub const SHUTDOWN: &str = "shutdown";

    /// Alive, and not ready because of [`Health::STARTUP`].
    pub fn new(clock: Arc<dyn Clock>, metrics: Arc<Metrics>, max_silence: Duration) -> Arc<Self> {
        Self::with_gauge(clock, metrics.ready.clone(), max_silence)
    }

    /// The same for another process than a worker: `ready` is its gauge.
    pub fn with_gauge(clock: Arc<dyn Clock>, ready: IntGauge, max_silence: Duration) -> Arc<Self> {
        // No event: every worker starts not ready.
        let missing = BTreeMap::from([(Self::STARTUP.to_owned(), "it is starting".to_owned())]);
        let last_poll = AtomicU64::new(NEVER);
        Arc::new(Self { clock, ready, max_silence, last_poll, missing: Mutex::new(missing) })
    }

    /// The poll thread has polled.
    pub fn poll_heartbeat(&self) {
        self.last_poll.store(self.now_millis(), Ordering::Relaxed);
    }

    /// Whether the poll thread polls.
    pub fn alive(&self) -> Alive {
        let last_poll = self.last_poll.load(Ordering::Relaxed);
        if last_poll == NEVER {
            return Alive::Yes;
        }
        let silence = Duration::from_millis(self.now_millis().saturating_sub(last_poll));
        if silence > self.max_silence { Alive::Silent(silence) } else { Alive::Yes }
    }

    /// `part` ("elasticsearch", "partition 3") keeps the worker from being ready; a later reason replaces an earlier.
    pub fn not_ready(&self, part: impl Into<String>, reason: impl Into<String>) {
        self.change(|missing| {
            let reason = reason.into();
            let before = missing.insert(part.into(), reason.clone());
            before.as_ref() != Some(&reason)
        });
    }

    /// `part` no longer keeps the worker from being ready.
    pub fn ready(&self, part: &str) {
        self.change(|missing| missing.remove(part).is_some());
    }

    /// Why the worker is not ready, by part; empty when it is ready.
    pub fn missing(&self) -> BTreeMap<String, String> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Applies `change`, which returns whether it changed anything. Emits the event under the lock, so that gauge and last log
    /// line show the latest state.
    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, String>) -> bool) {
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        if change(&mut missing) {
            let is_stopping = missing.contains_key(Self::SHUTDOWN);
            ReadinessChanged { missing: &missing, is_stopping }.emit(&self.ready);
        }
    }

    fn now_millis(&self) -> u64 {
        let since_boot = self.clock.now().since(Instant::from_start(Duration::ZERO));
        u64::try_from(since_boot.as_millis()).unwrap_or(NEVER - 1)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Seconds, set by hand.
    #[derive(Debug, Default)]
    pub(crate) struct HandClock(pub AtomicU64);

    impl Clock for HandClock {
        fn now(&self) -> Instant {
            Instant::from_start(Duration::from_secs(self.0.load(Ordering::Relaxed)))
        }
    }

    fn health() -> (Arc<HandClock>, Arc<Health>) {
        let clock = Arc::new(HandClock::default());
        let health = Health::new(clock.clone(), Metrics::new().unwrap(), Duration::from_secs(30));
        (clock, health)
    }

    #[test]
    fn silent_poll_thread_is_not_alive_until_it_polls() {
        let (clock, health) = health();
        clock.0.store(1000, Ordering::Relaxed);
        assert_eq!(health.alive(), Alive::Yes, "it has not begun");
        health.poll_heartbeat();
        clock.0.store(1030, Ordering::Relaxed);
        assert_eq!(health.alive(), Alive::Yes);
        clock.0.store(1031, Ordering::Relaxed);
        assert_eq!(health.alive(), Alive::Silent(Duration::from_secs(31)));
        health.poll_heartbeat();
        assert_eq!(health.alive(), Alive::Yes);
    }

    #[test]
    fn the_worker_is_ready_when_no_part_has_a_reason_left() {
        let (_, health) = health();
        assert_eq!(health.missing().len(), 1);
        health.not_ready("elasticsearch", "refused the credentials");
        health.ready(Health::STARTUP);
        assert_eq!(health.ready.get(), 0);
        health.not_ready("elasticsearch", "does not answer");
        assert_eq!(health.missing()["elasticsearch"], "does not answer");
        health.ready("elasticsearch");
        assert!(health.missing().is_empty());
        assert_eq!(health.ready.get(), 1);
    }
}
