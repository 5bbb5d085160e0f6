//! The metrics of a configuration that is read again.

use std::time::SystemTime;

use prometheus::{IntGauge, Result};

use super::families::{Counters, Label, Register, label};
use super::recent::unix_millis;

label! {
    /// Result of a configuration reload.
    Reloaded {
        /// It is in force, as far as it can be followed.
        Followed => "followed",
        /// It cannot be used; the one before stays.
        Refused => "refused",
    }
}

/// How often, and when, configuration reloaded.
#[derive(Debug, Clone)]
pub struct ReloadMetrics {
    reloads: Counters<Reloaded>,
    followed_at: IntGauge,
    refused_at: IntGauge,
}

impl ReloadMetrics {
    pub(super) fn new(r: &mut Register) -> Result<Self> {
        let reloads = r.counters(
            "geofold_config_reloads_total",
            "Reloads of the configuration, by outcome.",
            "outcome",
        )?;
        let at = r.gauge_vec(
            "geofold_config_reload_timestamp_seconds",
            "Last reload with this outcome, Unix time; 0 if none.",
            &["outcome"],
        )?;
        let [followed_at, refused_at] =
            [Reloaded::Followed, Reloaded::Refused].map(|outcome| at.with_label_values(&[outcome.as_str()]));
        Ok(Self { reloads, followed_at, refused_at })
    }

    /// It was read again just now.
    pub fn count(&self, outcome: Reloaded) {
        self.reloads.of(outcome).inc();
        let at = match outcome {
            Reloaded::Followed => &self.followed_at,
            Reloaded::Refused => &self.refused_at,
        };
        at.set(i64::try_from(unix_millis(SystemTime::now()) / 1000).unwrap_or(i64::MAX));
    }
}
