//! The metrics of live counts, as a worker has them.

use std::time::Duration;

use prometheus::{Gauge, GaugeVec, IntCounter, IntGauge, IntGaugeVec, Result};

use super::families::{Counters, Register};
use super::metrics::{Success, level};

const PARTITION: &[&str] = &["partition"];

/// Increments sent and pending.
#[derive(Debug)]
pub struct TallyMetrics {
    /// Increments sent, each attempt.
    pub increments: Counters<Success>,
    /// Bytes of acknowledged increments.
    pub increment_bytes: IntCounter,
    /// Edges in acknowledged increments.
    pub edges_sent: IntCounter,
    /// Values that are not counted.
    pub values_left_out: IntCounter,
    /// Assignments in which offsets were missing.
    pub gaps: IntCounter,
    edges: IntGaugeVec,
    edge_bytes: IntGaugeVec,
    oldest_edge_seconds: GaugeVec,
}

/// A partition's gauges, for one assignment.
#[derive(Debug, Clone)]
pub struct PartitionTally {
    edges: IntGauge,
    edge_bytes: IntGauge,
    oldest_edge_seconds: Gauge,
}

impl TallyMetrics {
    pub(super) fn new(r: &mut Register) -> Result<Self> {
        Ok(Self {
            increments: r.counters(
                "geofold_tally_increments_total",
                "Increments sent, every attempt, by result.",
                "result",
            )?,
            increment_bytes: r.counter(
                "geofold_tally_increment_bytes_total",
                "Bytes of acknowledged increments, uncompressed.",
            )?,
            edges_sent: r.counter("geofold_tally_edges_sent_total", "Edges in acknowledged increments.")?,
            values_left_out: r.counter(
                "geofold_tally_values_left_out_total",
                "Values not counted: too long, too many, or not storable.",
            )?,
            gaps: r.counter(
                "geofold_tally_gaps_total",
                "Assignments with missing offsets: if a worker died there, recount.",
            )?,
            edges: r.gauge_vec(
                "geofold_tally_edges",
                "Unacknowledged edges (changes of counts).",
                PARTITION,
            )?,
            edge_bytes: r.gauge_vec(
                "geofold_tally_edge_bytes",
                "Held bytes of unacknowledged edges.",
                PARTITION,
            )?,
            oldest_edge_seconds: r.float_gauge_vec(
                "geofold_tally_oldest_edge_seconds",
                "Age of the oldest unacknowledged edge; 0 if none.",
                PARTITION,
            )?,
        })
    }

    /// The gauges of a partition that was assigned.
    pub fn partition(&self, partition: i32) -> PartitionTally {
        let partition = partition.to_string();
        let label = &[partition.as_str()];
        PartitionTally {
            edges: self.edges.with_label_values(label),
            edge_bytes: self.edge_bytes.with_label_values(label),
            oldest_edge_seconds: self.oldest_edge_seconds.with_label_values(label),
        }
    }

    /// Removes a partition's gauges, if it has any.
    pub(super) fn drop_partition(&self, partition: i32) {
        let partition = partition.to_string();
        let label = &[partition.as_str()];
        // The only error is "no such series".
        let _ = self.edges.remove_label_values(label);
        let _ = self.edge_bytes.remove_label_values(label);
        let _ = self.oldest_edge_seconds.remove_label_values(label);
    }
}

impl PartitionTally {
    /// Sets the gauges of unacknowledged edges: count, bytes, age of the oldest.
    pub fn held(&self, edges: usize, bytes: usize, oldest: Option<Duration>) {
        self.edges.set(level(edges));
        self.edge_bytes.set(level(bytes));
        self.oldest_edge_seconds.set(oldest.unwrap_or_default().as_secs_f64());
    }
}
