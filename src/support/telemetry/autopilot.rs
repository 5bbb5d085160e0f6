//! Every metric of `geofold shards autopilot`, on a registry of its own.

use std::sync::Arc;

use prometheus::{Gauge, IntCounter, IntGauge, Registry, Result, TextEncoder};

use super::families::{Counters, MetricInfo, Register, label};
use crate::geoshard::balance::decide::BalanceDecision;

label! {
    /// What a decision came to.
    Decided {
        /// Nothing is to be done.
        Wait => "wait",
        /// The map is to be changed.
        Change => "change",
        /// It was stopped, or a change is under way.
        Blocked => "blocked",
        /// None could be made.
        Failed => "failed",
    }
}

/// Every metric of the autopilot.
#[derive(Debug)]
pub struct AutopilotMetrics {
    registry: Registry,
    catalogue: Vec<MetricInfo>,
    decisions: Counters<Decided>,
    last_decision: IntGauge,
    max_over_mean: Gauge,
    expected: Gauge,
    moved_today: Gauge,
    left_today: Gauge,
    /// Changes of the map that it began.
    pub changes_begun: IntCounter,
    /// Changes of the map that it brought to their end.
    pub changes_ended: IntCounter,
}

impl AutopilotMetrics {
    /// All at zero, on a new registry.
    ///
    /// # Errors
    /// Only if two metrics share a name, which the unit tests exclude.
    pub fn new() -> Result<Arc<Self>> {
        let mut to = Register::default();
        let decisions =
            to.counters("geofold_autopilot_decisions_total", "Decisions, by outcome.", "outcome")?;
        let last_decision = to.gauge(
            "geofold_autopilot_last_decision_timestamp_seconds",
            "Last decision, Unix time; 0 if none.",
        )?;
        let max_over_mean = to.float_gauge(
            "geofold_autopilot_max_over_mean",
            "Largest load of a geoshard over the mean, now.",
        )?;
        let expected = to.float_gauge(
            "geofold_autopilot_expected_max_over_mean",
            "Expected largest load of a geoshard over the mean.",
        )?;
        let moved_today =
            to.float_gauge("geofold_autopilot_moved_documents", "Documents moved within 24 hours.")?;
        let left_today = to.float_gauge(
            "geofold_autopilot_budget_documents",
            "Documents that may still be moved within 24 hours.",
        )?;
        let changes_begun =
            to.counter("geofold_autopilot_changes_begun_total", "Changes of the map begun.")?;
        let changes_ended =
            to.counter("geofold_autopilot_changes_ended_total", "Changes of the map completed.")?;
        to.about_the_process()?;
        let Register { registry, catalogue } = to;
        Ok(Arc::new(Self {
            registry,
            catalogue,
            decisions,
            last_decision,
            max_over_mean,
            expected,
            moved_today,
            left_today,
            changes_begun,
            changes_ended,
        }))
    }

    /// What a decision stands on.
    pub fn measured(&self, decision: &BalanceDecision) {
        self.max_over_mean.set(decision.now);
        self.expected.set(decision.forecast);
        self.moved_today.set(decision.moved_today);
        self.left_today.set(decision.left_today);
    }

    /// A decision was made. `now`: seconds since 1970.
    pub fn decided(&self, outcome: Decided, now: u64) {
        self.decisions.of(outcome).inc();
        self.last_decision.set(i64::try_from(now).unwrap_or(i64::MAX));
    }

    /// Name, type, help and labels of every metric.
    pub fn catalogue(&self) -> &[MetricInfo] {
        &self.catalogue
    }

    /// In Prometheus' text format.
    ///
    /// # Errors
    /// If two series are the same, which the registry excludes.
    pub fn render(&self) -> Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}
