//! The metrics of refreshes, as a worker has them.

use std::time::Duration;

use prometheus::{Gauge, Histogram, Result};

use super::families::{Counters, Register};
use super::metrics::Success;

/// Seconds of a refresh.
const TIME_BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0];

/// Refreshes requested by this worker, and entries waiting for them.
#[derive(Debug)]
pub struct VisibilityMetrics {
    refreshes: Counters<Success>,
    seconds: Histogram,
    waiting_seconds: Gauge,
}

impl VisibilityMetrics {
    pub(super) fn new(r: &mut Register) -> Result<Self> {
        Ok(Self {
            refreshes: r.counters(
                "geofold_refreshes_total",
                "Refresh attempts of geoshards, by result.",
                "result",
            )?,
            seconds: r.histogram("geofold_refresh_seconds", "Duration of a refresh.", &TIME_BUCKETS)?,
            waiting_seconds: r.float_gauge(
                "geofold_refresh_waiting_seconds",
                "Age of the oldest pending refresh request; 0 if none.",
            )?,
        })
    }

    /// A refresh was answered, well or not.
    pub fn refreshed(&self, is_ok: bool, took: Duration) {
        self.refreshes.of(if is_ok { Success::Ok } else { Success::Failed }).inc();
        self.seconds.observe(took.as_secs_f64());
    }

    /// How long the oldest write has waited for a refresh, if one waits.
    pub fn waits(&self, oldest: Option<Duration>) {
        self.waiting_seconds.set(oldest.unwrap_or_default().as_secs_f64());
    }
}
