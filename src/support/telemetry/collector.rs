//! Every metric of a collector, on a registry of its own.

use std::sync::Arc;

use prometheus::{Histogram, IntCounter, IntGauge, Registry, Result, TextEncoder};

use super::families::{Counters, MetricInfo, Register, label};
use super::reload::ReloadMetrics;

label! {
    /// Outcome of an edge.
    EdgesLabel {
        /// It was counted.
        Applied => "applied",
        /// Counted before.
        Skipped => "skipped",
    }
}

/// Seconds of one merge.
const TIME_BUCKETS: [f64; 10] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// Every metric of one collector.
#[derive(Debug)]
pub struct CollectorMetrics {
    registry: Registry,
    catalogue: Vec<MetricInfo>,
    /// Merges that happened.
    pub merges: IntCounter,
    /// Increments in them.
    pub increments: IntCounter,
    /// Edges in those.
    pub edges: Counters<EdgesLabel>,
    /// Counts that changed.
    pub values: IntCounter,
    /// Top-N lists read again from the database.
    pub boards_read: IntCounter,
    /// Time of one merge.
    pub merge_seconds: Histogram,
    /// Counts below 0 after the last merge, of those it changed.
    pub negative: IntGauge,
    /// Increments that are not read yet.
    pub lag: IntGauge,
    /// The latest version of the counts that is known here.
    pub version: IntGauge,
    /// 1 while this collector merges.
    pub leading: IntGauge,
    /// Clients that listen to versions.
    pub streams: IntGauge,
    /// Versions that the notify topic was not told of.
    pub notices_failed: IntCounter,
    /// 1 if `/readyz` says ready.
    pub ready: IntGauge,
    /// Of a configuration that is read again.
    pub reload: ReloadMetrics,
}

impl CollectorMetrics {
    /// All at zero, on a new registry.
    ///
    /// # Errors
    /// Only if two metrics share a name, which the unit tests exclude.
    pub fn new() -> Result<Arc<Self>> {
        let mut to = Register::default();
        let merges = to.counter("geofold_collector_merges_total", "Merges of increments into counts.")?;
        let increments =
            to.counter("geofold_collector_increments_total", "Increments merged, including duplicates.")?;
        let edges = to.counters(
            "geofold_collector_edges_total",
            "Edges applied, or skipped because already counted.",
            "outcome",
        )?;
        let values = to.counter("geofold_collector_values_total", "Counts changed by merges.")?;
        let boards_read = to.counter(
            "geofold_collector_top_n_reloads_total",
            "Facets reloaded from the database for the cloud.",
        )?;
        let merge_seconds =
            to.histogram("geofold_collector_merge_seconds", "Duration of a merge.", &TIME_BUCKETS)?;
        let negative =
            to.gauge("geofold_collector_negative_counts", "Negative counts found by the last merge.")?;
        let lag = to.gauge("geofold_collector_lag_records", "Increments in the topic not yet read.")?;
        let version = to.gauge("geofold_collector_version", "Latest known version of the counts.")?;
        let leading = to.gauge("geofold_collector_leading", "1 while this collector merges.")?;
        let streams = to.gauge("geofold_collector_streams", "Clients of /cloud/stream.")?;
        let notices_failed = to.counter(
            "geofold_collector_notices_failed_total",
            "Versions not announced on the notify topic.",
        )?;
        let ready = to.gauge("geofold_ready", "1 if /readyz answers 200.")?;
        let reload = ReloadMetrics::new(&mut to)?;
        to.about_the_process()?;
        let Register { registry, catalogue } = to;
        Ok(Arc::new(Self {
            registry,
            catalogue,
            merges,
            increments,
            edges,
            values,
            boards_read,
            merge_seconds,
            negative,
            lag,
            version,
            leading,
            streams,
            notices_failed,
            ready,
            reload,
        }))
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
