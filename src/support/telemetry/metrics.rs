//! Every metric of the worker: one struct of handles on a registry of its own.
//!
//! A new metric is a field of [`Metrics`], or of the struct of its subject in a file beside this one; it is registered in
//! `new`, counted where it happens (with its log line in `events.rs`, if it has one), and shown in `dashboards/`. A new label name
//! goes into the list in the tests below.
//!
//! Nothing here is global, so that several workers (and tests) live in one process. Names begin with `geofold_`, units
//! are seconds, bytes, records and documents; labels are a partition's number or one of a closed set of words, never a
//! document's id. A partition's handles are made once per assignment ([`Metrics::partition`]); when it is revoked, its
//! gauges go ([`Metrics::drop_partition`]) and its counters stay, since a counter that vanishes looks like a reset.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, Registry, Result, TextEncoder};

use super::audit::AuditMetrics;
use super::distribution::{DistributionFamilies, DistributionMetrics};
use super::elasticsearch::ElasticsearchMetrics;
use super::families::{Counters, MetricInfo, Register, label};
use super::maps::MapsMetrics;
use super::partitions::{PartitionFamilies, PartitionMetrics};
use super::refeed::RefeedMetrics;
use super::reload::ReloadMetrics;
use super::repeats::Repeats;
use super::schemas::SchemaMetrics;
use super::tally::TallyMetrics;
use super::visibility::VisibilityMetrics;
use crate::core::mover::UNANSWERED;

label! {
    /// Whether something was found.
    LookupLabel {
        /// It was.
        Hit => "hit",
        /// It was not.
        Miss => "miss",
    }
}

label! {
    /// How something went.
    Success {
        /// Well.
        Ok => "ok",
        /// Not well.
        Failed => "failed",
    }
}

label! {
    /// A change of the partitions that this worker owns.
    Rebalance {
        /// Partitions came.
        Assign => "assign",
        /// Partitions went, in order.
        Revoke => "revoke",
        /// Partitions went before this worker could finish with them.
        Lost => "lost",
    }
}

/// Seconds; from a local round trip to the longest batch deadline.
pub(super) const TIME_BUCKETS: [f64; 14] =
    [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Documents in one batch.
const SIZE_BUCKETS: [f64; 10] = [1.0, 10.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10000.0];

/// Every metric of one worker.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    catalogue: Vec<MetricInfo>,
    /// Source of the two gauges below.
    pub(super) owned: Mutex<Owned>,
    assigned_partitions: IntGauge,
    stopped_partitions: IntGauge,
    pub(super) by_partition: PartitionFamilies,
    entries_retried: IntCounterVec,
    pub(super) dead_letters: IntCounterVec,
    /// Limits the log lines about dead letters.
    pub(super) dead_letter_lines: Repeats,

    /// Records deleted from the topic before they were read.
    pub lost_records: IntCounter,
    /// Documents that changed geoshard.
    pub moves: IntCounter,
    /// Entries parked (protocol, step 1).
    pub parked: IntCounter,
    /// Recorded decisions finished without the record that made them (protocol, step 1).
    pub recorded_decisions_finished: IntCounter,
    /// Lookups in the owner's cache of placements.
    pub placement_cache_lookups: Counters<LookupLabel>,
    /// Placements set back after Elasticsearch refused a document for good.
    pub set_backs: IntCounter,
    /// Requests to Elasticsearch.
    pub elasticsearch: ElasticsearchMetrics,
    /// Time of one batch, from its first read to its last answer.
    pub batch_seconds: Histogram,
    /// Documents of one batch.
    pub batch_documents: Histogram,
    /// Batches that gave up.
    pub batches_failed: IntCounter,
    /// Memory that records and folds hold.
    pub held_bytes: IntGauge,
    /// Where fetching stops.
    pub held_bytes_limit: IntGauge,
    /// Partitions whose fetching is paused.
    pub paused_partitions: IntGauge,
    /// Offset commits by how they went.
    pub commits: Counters<Success>,
    /// Rebalance callbacks served.
    pub rebalances: Counters<Rebalance>,
    distribution: DistributionFamilies,
    /// Times that memcached gave no usable answer about last runs.
    pub distribution_store_failures: IntCounter,
    /// What is known of the maps in force.
    pub maps: MapsMetrics,
    /// 1 if `/readyz` says ready.
    pub ready: IntGauge,
    /// Requests to the schema registry.
    pub schemas: SchemaMetrics,
    /// Refreshes.
    pub visibility: VisibilityMetrics,
    /// Requests to the source of truth.
    pub refeed: RefeedMetrics,
    /// Live counts.
    pub tally: TallyMetrics,
    /// The worker's own audit.
    pub audit: AuditMetrics,
    /// The configuration that is read again.
    pub reload: ReloadMetrics,
}

/// The assigned partitions. There may be ten thousand: update incrementally, never recount.
#[derive(Debug, Default)]
pub(super) struct Owned {
    pub(super) partitions: BTreeMap<i32, PartitionMetrics>,
    /// Those of them that cannot get past a record.
    pub(super) stopped: BTreeSet<i32>,
}

/// `n` as a gauge takes it.
pub fn level(n: impl TryInto<i64>) -> i64 {
    n.try_into().unwrap_or(i64::MAX)
}

impl Metrics {
    /// All metrics at zero, on a new registry.
    ///
    /// # Errors
    /// Only if two metrics share a name, which the unit tests exclude.
    pub fn new() -> Result<Arc<Self>> {
        let mut r = Register::default();
        let by_partition = PartitionFamilies::new(&mut r)?;
        r.about_the_process()?;

        Ok(Arc::new(Self {
            owned: Mutex::default(),
            by_partition,
            assigned_partitions: r.gauge("geofold_assigned_partitions", "Partitions this worker owns.")?,
            stopped_partitions: r
                .gauge("geofold_stopped_partitions", "Owned partitions stopped at a record.")?,
            entries_retried: r.by_reason(
                "geofold_entries_retried_total",
                "Entries returned to protocol step 1, by reason.",
                &["placement_conflict", UNANSWERED],
            )?,
            dead_letter_lines: Repeats::default(),
            dead_letters: r.by_reason(
                "geofold_dead_letters_total",
                "Messages written to the dead-letter topic, by reason.",
                &[
                    "bad_location",
                    "missing_document",
                    "no_location",
                    "refused_by_elasticsearch",
                    "unparsable_json",
                ],
            )?,
            lost_records: r.counter(
                "geofold_lost_records_total",
                "Records deleted from the topic before they were read, at most.",
            )?,
            moves: r.counter("geofold_moves_total", "Documents that changed geoshard.")?,
            parked: r.counter(
                "geofold_parked_total",
                "Entries parked because an earlier owner had folded further.",
            )?,
            recorded_decisions_finished: r.counter(
                "geofold_placements_recovered_total",
                "Decisions of an earlier owner finished after their record was deleted.",
            )?,
            placement_cache_lookups: r.counters(
                "geofold_placement_cache_lookups_total",
                "Placement cache lookups.",
                "result",
            )?,
            set_backs: r.counter(
                "geofold_placement_rollbacks_total",
                "Placements rolled back to the last good copy after a refusal.",
            )?,
            elasticsearch: ElasticsearchMetrics::new(&mut r)?,
            batch_seconds: r.histogram(
                "geofold_batch_seconds",
                "Duration of a batch, first request to last answer.",
                &TIME_BUCKETS,
            )?,
            batch_documents: r.histogram("geofold_batch_documents", "Documents per batch.", &SIZE_BUCKETS)?,
            batches_failed: r.counter("geofold_batches_failed_total", "Batches ended by their deadline.")?,
            held_bytes: r
                .gauge("geofold_buffered_bytes", "Bytes of records and folds waiting to be written.")?,
            held_bytes_limit: r
                .gauge("geofold_buffered_bytes_limit", "Held bytes at which fetching from Kafka pauses.")?,
            paused_partitions: r
                .gauge("geofold_paused_partitions", "Owned partitions with paused fetching.")?,
            commits: r.counters(
                "geofold_commits_total",
                "Offset commits sent to Kafka, by result.",
                "result",
            )?,
            rebalances: r.counters("geofold_rebalances_total", "Changes of the owned partitions.", "kind")?,
            distribution: DistributionFamilies::new(&mut r)?,
            distribution_store_failures: r.counter(
                "geofold_distribution_store_failures_total",
                "Memcached calls without a usable answer.",
            )?,
            maps: MapsMetrics::new(&mut r)?,
            ready: r.gauge("geofold_ready", "1 if /readyz answers 200.")?,
            schemas: SchemaMetrics::new(&mut r)?,
            visibility: VisibilityMetrics::new(&mut r)?,
            refeed: RefeedMetrics::new(&mut r)?,
            tally: TallyMetrics::new(&mut r)?,
            audit: AuditMetrics::new(&mut r)?,
            reload: ReloadMetrics::new(&mut r)?,
            registry: r.registry,
            catalogue: r.catalogue,
        }))
    }

    /// The handles of a partition that was assigned. It counts as owned until [`Metrics::drop_partition`].
    pub fn partition(&self, partition: i32) -> PartitionMetrics {
        let handles = self.by_partition.handles(partition);
        self.change_owned(|owned| {
            owned.stopped.remove(&partition);
            owned.partitions.insert(partition, handles.clone());
        });
        handles
    }

    /// The handles of a distribution job.
    pub fn distribution(&self, job: &str) -> DistributionMetrics {
        self.distribution.handles(job)
    }

    /// Call once a revoked partition's task has ended: counts its writes in flight as handed over and removes the
    /// partition's gauges. Does nothing if the partition is not owned.
    pub fn drop_partition(&self, partition: i32) {
        let dropped = self.change_owned(|owned| {
            owned.stopped.remove(&partition);
            owned.partitions.remove(&partition)
        });
        if let Some(handles) = dropped {
            handles.hand_over();
            self.by_partition.remove_gauges(partition);
            self.tally.drop_partition(partition);
        }
    }

    /// An owned partition stopped at a record. Ignored if it was revoked meanwhile.
    pub(super) fn partition_stopped(&self, partition: i32) {
        self.change_owned(|owned| {
            if owned.partitions.contains_key(&partition) {
                owned.stopped.insert(partition);
            }
        });
    }

    /// An owned partition that had stopped works again.
    pub(super) fn partition_goes_on(&self, partition: i32) {
        self.change_owned(|owned| owned.stopped.remove(&partition));
    }

    fn change_owned<T>(&self, change: impl FnOnce(&mut Owned) -> T) -> T {
        let mut owned = self.owned.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut owned);
        self.assigned_partitions.set(level(owned.partitions.len()));
        self.stopped_partitions.set(level(owned.stopped.len()));
        changed
    }

    /// So many entries went back to step 1 of the protocol.
    pub fn entries_retried(&self, reason: &'static str, entries: u64) {
        self.entries_retried.with_label_values(&[reason]).inc_by(entries);
    }

    /// A message was written to the dead-letter topic.
    pub(super) fn dead_letter(&self, reason: &'static str) {
        self.dead_letters.with_label_values(&[reason]).inc();
    }

    /// Every metric of geofold's own, for docs and dashboards. The `process_…` metrics are not in it.
    pub fn catalogue(&self) -> &[MetricInfo] {
        &self.catalogue
    }

    /// All metrics in Prometheus' text format, version 0.0.4.
    ///
    /// # Errors
    /// If the encoder refuses a family that the registry gathered.
    pub fn render(&self) -> Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

#[cfg(test)]
mod tests {
    use super::super::elasticsearch::RequestLabel;
    use std::time::Duration;

    use super::super::families::MetricType;
    use super::super::partitions::OutcomeLabel;
    use super::*;

    #[test]
    fn every_metric_has_the_prefix_a_help_text_and_the_suffix_of_its_type() {
        let metrics = Metrics::new().unwrap();
        assert!(!metrics.catalogue().is_empty());
        for MetricInfo { name, kind, help, labels } in metrics.catalogue() {
            assert!(name.starts_with("geofold_"), "{name}");
            assert!(help.ends_with('.') && help.len() > 15, "{name}: {help}");
            assert_eq!(name.ends_with("_total"), *kind == MetricType::Counter, "{name}");
            for label in labels {
                assert!(
                    [
                        "partition",
                        "outcome",
                        "kind",
                        "result",
                        "reason",
                        "version",
                        "distribution",
                        "defect",
                        "state"
                    ]
                    .contains(&label.as_str()),
                    "{name} has the label {label}"
                );
            }
        }
    }

    #[test]
    fn rendered_metrics_match_the_catalogue() {
        let metrics = Metrics::new().unwrap();
        metrics.partition(3);
        metrics.tally.partition(3);
        metrics.elasticsearch.request(RequestLabel::Bulk, Success::Failed, Duration::from_millis(3));
        metrics.elasticsearch.retry("429", 7);
        metrics.entries_retried("conflict", 1);
        metrics.dead_letter("bad_json");
        metrics.distribution("refresh");
        let text = metrics.render().unwrap();
        for metric in metrics.catalogue() {
            assert!(text.contains(&format!("# HELP {} {}\n", metric.name, metric.help)), "{}", metric.name);
            assert!(text.contains(&format!("# TYPE {} {}\n", metric.name, metric.kind.as_str())));
        }
        assert!(text.contains("geofold_elasticsearch_retries_total{reason=\"429\"} 7\n"));
        let at_zero = [
            "commits_total{result=\"failed\"}",
            "elasticsearch_retries_total{reason=\"503\"}",
            "elasticsearch_requests_total{kind=\"mget\",result=\"failed\"}",
            "entries_retried_total{reason=\"placement_conflict\"}",
            "dead_letters_total{reason=\"bad_location\"}",
        ];
        for series in at_zero {
            assert!(text.contains(&format!("geofold_{series} 0\n")), "{series} does not begin at zero");
        }
        assert_eq!(metrics.read_retries(), [("429".to_owned(), 7)].into(), "only what was counted");
    }

    #[test]
    fn a_revoked_partition_leaves_its_counters_and_takes_its_gauges_along() {
        let metrics = Metrics::new().unwrap();
        let partition = metrics.partition(3);
        metrics.partition(4);
        metrics.partition_stopped(4);
        for _ in 0..5 {
            partition.record_in();
        }
        partition.record_done(OutcomeLabel::Indexed, 2);
        partition.dirty(3, 300, Some(Duration::from_millis(1500)));
        assert!(metrics.render().unwrap().contains("geofold_oldest_dirty_seconds{partition=\"3\"} 1.5\n"));

        metrics.drop_partition(3);
        let text = metrics.render().unwrap();
        assert!(text.contains("geofold_records_total{partition=\"3\"} 5\n"));
        assert!(
            text.contains("geofold_records_processed_total{outcome=\"handed_over\",partition=\"3\"} 3\n")
        );
        assert!(!text.contains("geofold_records_in_flight{partition=\"3\"}"));
        assert!(!text.contains("geofold_oldest_dirty_seconds{partition=\"3\"}"));
        assert!(text.contains("geofold_assigned_partitions 1\n"));
        assert!(text.contains("geofold_stopped_partitions 1\n"));
        metrics.drop_partition(4);
        metrics.drop_partition(4);
        metrics.partition_stopped(4);
        assert!(metrics.render().unwrap().contains("geofold_stopped_partitions 0\n"));

        assert_eq!(metrics.partition(3).in_flight(), 0, "the next assignment begins with nothing in flight");
    }
}
