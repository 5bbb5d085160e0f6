//! The metrics of distribution jobs.

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Result};

use super::families::{Label, Register};
use super::metrics::{Success, TIME_BUCKETS};

/// The metric families with a `distribution` label.
#[derive(Debug)]
pub(super) struct DistributionFamilies {
    requested: IntCounterVec,
    runs: IntCounterVec,
    redundant: IntCounterVec,
    given_up: IntCounterVec,
    pending: IntGaugeVec,
    seconds: HistogramVec,
}

/// A distribution job's handles. The names of jobs come from the configuration, so there are few.
#[derive(Debug, Clone)]
pub struct DistributionMetrics {
    /// Distributions requested by batches, one per changed geoshard.
    pub requested: IntCounter,
    /// Runs that succeeded.
    pub succeeded: IntCounter,
    /// Runs that did not.
    pub failed: IntCounter,
    /// Distributions dropped because a later run of another worker had succeeded.
    pub redundant: IntCounter,
    /// Runs given up for good.
    pub given_up: IntCounter,
    /// Geoshards for which a distribution is owed.
    pub pending: IntGauge,
    /// From the oldest update that a run settled to its end.
    pub seconds: Histogram,
}

impl DistributionFamilies {
    pub(super) fn new(r: &mut Register) -> Result<Self> {
        // Not "job": Prometheus puts that name on every series itself, and would call this one "exported_job".
        const LABEL: &[&str] = &["distribution"];
        Ok(Self {
            requested: r.counter_vec(
                "geofold_distribution_requested_total",
                "Distributions requested, one per batch and geoshard.",
                LABEL,
            )?,
            runs: r.counter_vec(
                "geofold_distribution_runs_total",
                "Distribution attempts by this worker, by result.",
                &["distribution", "result"],
            )?,
            redundant: r.counter_vec(
                "geofold_distribution_redundant_total",
                "Distributions covered by another worker's run.",
                LABEL,
            )?,
            given_up: r.counter_vec(
                "geofold_distribution_abandoned_total",
                "Distributions abandoned after a lasting failure.",
                LABEL,
            )?,
            pending: r.gauge_vec(
                "geofold_distribution_pending",
                "Geoshards with a pending distribution.",
                LABEL,
            )?,
            seconds: r.histogram_vec(
                "geofold_distribution_seconds",
                "Time from a run's oldest update to its end.",
                LABEL,
                &TIME_BUCKETS,
            )?,
        })
    }

    /// The handles of a job.
    pub(super) fn handles(&self, job: &str) -> DistributionMetrics {
        let run = |success: Success| self.runs.with_label_values(&[job, success.as_str()]);
        DistributionMetrics {
            requested: self.requested.with_label_values(&[job]),
            succeeded: run(Success::Ok),
            failed: run(Success::Failed),
            redundant: self.redundant.with_label_values(&[job]),
            given_up: self.given_up.with_label_values(&[job]),
            pending: self.pending.with_label_values(&[job]),
            seconds: self.seconds.with_label_values(&[job]),
        }
    }
}
