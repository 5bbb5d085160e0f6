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
//!
//! Records add up, per partition and over the worker's life:
//! `geofold_records_total = sum(geofold_records_processed_total) + geofold_records_in_flight`.
//! [`PartitionMetrics`] is the only way to count a record and keeps the gauge itself, so that it cannot be otherwise
//! (but for the instant between two atomic adds, which a scrape may fall into).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::{
    Counter, Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Registry, Result, TextEncoder,
};

use super::audit::AuditMetrics;
use super::families::{Counters, Gauges, Histograms, Label, MetricInfo, Register, label};
use super::maps::MapsMetrics;
use super::refeed::RefeedMetrics;
use super::reload::ReloadMetrics;
use super::repeats::Repeats;
use super::schemas::SchemaMetrics;
use super::tally::TallyMetrics;
use super::visibility::VisibilityMetrics;
use crate::core::mover::UNANSWERED;

label! {
    /// How a record ended.
    OutcomeLabel {
        /// Its content was written to a geoshard.
        Indexed => "indexed",
        /// Its document was deleted.
        Deleted => "deleted",
        /// It was folded into a newer record of the same document.
        Folded => "folded",
        /// Elasticsearch had this version or a newer one.
        AlreadyApplied => "already_applied",
        /// It went to the dead-letter topic.
        DeadLettered => "dead_lettered",
        /// Its document is not there and `on_missing` is `drop`, or the source of truth does not have it either.
        Dropped => "dropped",
        /// A touch of a document that is not there.
        NothingToPlace => "nothing_to_place",
        /// Given up when the partition was revoked; the next owner reads it again.
        HandedOver => "handed_over",
    }
}

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
    /// A request on the hot path.
    RequestLabel {
        /// Reads documents.
        Mget => "mget",
        /// Writes documents.
        Bulk => "bulk",
    }
}

label! {
    /// Whether a node of Elasticsearch answered last.
    NodeState {
        /// It answers, or was not used yet.
        Up => "up",
        /// It did not, and is passed over while others do.
        Down => "down",
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
const TIME_BUCKETS: [f64; 14] =
    [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Documents in one batch.
const SIZE_BUCKETS: [f64; 10] = [1.0, 10.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10000.0];

const PARTITION: &[&str] = &["partition"];

/// Reasons whose series begin at zero: `increase()` does not see the first event of a series that begins with it. Other
/// reasons get theirs when they occur.
const FREQUENT_RETRIES: [&str; 4] = ["429", "503", "connection", "timeout"];
const FREQUENT_RESTARTS: [&str; 2] = ["placement_conflict", UNANSWERED];
const FREQUENT_DEAD_LETTERS: [&str; 5] =
    ["bad_location", "missing_document", "no_location", "refused_by_elasticsearch", "unparsable_json"];

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
    pub(super) elasticsearch_requests: IntCounterVec,
    pub(super) elasticsearch_retries: IntCounterVec,
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
    /// Time of one request to Elasticsearch, from sending to the decoded answer.
    pub elasticsearch_request_seconds: Histograms<RequestLabel>,
    /// Operations sent, each time they are sent.
    pub elasticsearch_operations: Counters<RequestLabel>,
    /// Bytes of request bodies sent.
    pub elasticsearch_bytes: Counters<RequestLabel>,
    /// The configured nodes, by whether they answer.
    pub elasticsearch_nodes: Gauges<NodeState>,
    /// Indices that refuse every document.
    pub refusing_indices: IntGauge,
    /// Maximum concurrent requests.
    pub elasticsearch_permits: IntGauge,
    /// Requests under way, with those that wait to be sent again.
    pub elasticsearch_permits_in_use: IntGauge,
    /// Requests that wait for a permit or for their next attempt.
    pub elasticsearch_requests_waiting: IntGauge,
    /// Time that requests waited for the ceiling of operations.
    pub elasticsearch_throttled_seconds: Counter,
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

/// The metric families with a `partition` label.
#[derive(Debug)]
pub(super) struct PartitionFamilies {
    pub(super) records: IntCounterVec,
    pub(super) records_done: IntCounterVec,
    records_in_flight: IntGaugeVec,
    parked: IntGaugeVec,
    sweeps: IntGaugeVec,
    dirty_ids: IntGaugeVec,
    dirty_bytes: IntGaugeVec,
    oldest_dirty_seconds: GaugeVec,
    watermark_lag_records: IntGaugeVec,
    committed_offset: IntGaugeVec,
}

/// The metric families with a `distribution` label.
#[derive(Debug)]
struct DistributionFamilies {
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

/// A partition's handles, for one assignment. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PartitionMetrics {
    records: IntCounter,
    done: Counters<OutcomeLabel>,
    pub(super) in_flight: IntGauge,
    pub(super) parked: IntGauge,
    sweeps: IntGauge,
    pub(super) dirty_ids: IntGauge,
    pub(super) dirty_bytes: IntGauge,
    pub(super) oldest_dirty_seconds: Gauge,
    watermark_lag_records: IntGauge,
    committed_offset: IntGauge,
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

        let metrics = Self {
            owned: Mutex::default(),
            by_partition,
            assigned_partitions: r.gauge("geofold_assigned_partitions", "Partitions this worker owns.")?,
            stopped_partitions: r
                .gauge("geofold_stopped_partitions", "Owned partitions stopped at a record.")?,
            elasticsearch_requests: r.counter_vec(
                "geofold_elasticsearch_requests_total",
                "Requests sent to Elasticsearch, every attempt.",
                &["kind", "result"],
            )?,
            elasticsearch_retries: r.counter_vec(
                "geofold_elasticsearch_retries_total",
                "Retried operations, by reason.",
                &["reason"],
            )?,
            entries_retried: r.counter_vec(
                "geofold_entries_retried_total",
                "Entries returned to protocol step 1, by reason.",
                &["reason"],
            )?,
            dead_letter_lines: Repeats::default(),
            dead_letters: r.counter_vec(
                "geofold_dead_letters_total",
                "Messages written to the dead-letter topic, by reason.",
                &["reason"],
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
            elasticsearch_request_seconds: r.histograms(
                "geofold_elasticsearch_request_seconds",
                "Duration of an Elasticsearch request.",
                "kind",
                &TIME_BUCKETS,
            )?,
            elasticsearch_operations: r.counters(
                "geofold_elasticsearch_operations_total",
                "Operations sent to Elasticsearch, every attempt.",
                "kind",
            )?,
            elasticsearch_bytes: r.counters(
                "geofold_elasticsearch_bytes_total",
                "Request body bytes sent to Elasticsearch, uncompressed.",
                "kind",
            )?,
            elasticsearch_nodes: r.gauges(
                "geofold_elasticsearch_nodes",
                "Nodes of elasticsearch.urls, by state.",
                "state",
            )?,
            refusing_indices: r.gauge("geofold_refusing_indices", "Indices that refuse every document.")?,
            elasticsearch_permits: r
                .gauge("geofold_elasticsearch_permits", "Permits for concurrent Elasticsearch requests.")?,
            elasticsearch_permits_in_use: r.gauge(
                "geofold_elasticsearch_permits_in_use",
                "Elasticsearch requests in flight or waiting for a retry.",
            )?,
            elasticsearch_requests_waiting: r.gauge(
                "geofold_elasticsearch_requests_waiting",
                "Elasticsearch requests waiting for a permit or a retry.",
            )?,
            elasticsearch_throttled_seconds: r.float_counter(
                "geofold_elasticsearch_throttled_seconds_total",
                "Time that requests waited for elasticsearch.max_operations_per_second, summed.",
            )?,
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
        };
        metrics.begin_at_zero();
        Ok(Arc::new(metrics))
    }

    /// Frequent reasons have their series from the start.
    fn begin_at_zero(&self) {
        for (counters, reasons) in [
            (&self.elasticsearch_retries, FREQUENT_RETRIES.as_slice()),
            (&self.entries_retried, &FREQUENT_RESTARTS),
            (&self.dead_letters, &FREQUENT_DEAD_LETTERS),
        ] {
            reasons.iter().for_each(|reason| _ = counters.with_label_values(&[reason]));
        }
        for kind in RequestLabel::ALL {
            for result in Success::ALL {
                self.elasticsearch_requests.with_label_values(&[kind.as_str(), result.as_str()]);
            }
        }
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
        let families = &self.distribution;
        let run = |success: Success| families.runs.with_label_values(&[job, success.as_str()]);
        DistributionMetrics {
            requested: families.requested.with_label_values(&[job]),
            succeeded: run(Success::Ok),
            failed: run(Success::Failed),
            redundant: families.redundant.with_label_values(&[job]),
            given_up: families.given_up.with_label_values(&[job]),
            pending: families.pending.with_label_values(&[job]),
            seconds: families.seconds.with_label_values(&[job]),
        }
    }

    /// Call once a revoked partition's task has ended: counts its writes in flight as [`OutcomeLabel::HandedOver`] and removes the
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

    /// One attempt of a request to Elasticsearch came to its end.
    pub fn elasticsearch_request(&self, kind: RequestLabel, result: Success, took: Duration) {
        self.elasticsearch_requests.with_label_values(&[kind.as_str(), result.as_str()]).inc();
        self.elasticsearch_request_seconds.of(kind).observe(took.as_secs_f64());
    }

    /// `items` operations will be sent again.
    pub fn elasticsearch_retry(&self, reason: &'static str, items: u64) {
        self.elasticsearch_retries.with_label_values(&[reason]).inc_by(items);
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

impl DistributionFamilies {
    fn new(r: &mut Register) -> Result<Self> {
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
}

impl PartitionFamilies {
    fn new(r: &mut Register) -> Result<Self> {
        Ok(Self {
            records: r.counter_vec(
                "geofold_records_total",
                "Records read; equals done plus in flight.",
                PARTITION,
            )?,
            records_done: r.counter_vec(
                "geofold_records_processed_total",
                "Finished records, by outcome.",
                &["partition", "outcome"],
            )?,
            records_in_flight: r.gauge_vec(
                "geofold_records_in_flight",
                "Records read and not finished.",
                PARTITION,
            )?,
            parked: r.gauge_vec(
                "geofold_parked_documents",
                "Entries waiting for their document's next record.",
                PARTITION,
            )?,
            sweeps: r.gauge_vec("geofold_sweeps", "Moves whose old copies wait to be deleted.", PARTITION)?,
            dirty_ids: r.gauge_vec(
                "geofold_dirty_documents",
                "Documents with writes not yet in Elasticsearch.",
                PARTITION,
            )?,
            dirty_bytes: r.gauge_vec(
                "geofold_dirty_bytes",
                "Bytes of writes not yet in Elasticsearch.",
                PARTITION,
            )?,
            oldest_dirty_seconds: r.float_gauge_vec(
                "geofold_oldest_dirty_seconds",
                "Age of the oldest pending write; 0 if none.",
                PARTITION,
            )?,
            watermark_lag_records: r.gauge_vec(
                "geofold_watermark_lag_records",
                "Records from the watermark to the partition's end.",
                PARTITION,
            )?,
            committed_offset: r.gauge_vec("geofold_committed_offset", "Last committed offset.", PARTITION)?,
        })
    }

    pub(super) fn handles(&self, partition: i32) -> PartitionMetrics {
        let partition = partition.to_string();
        let label = &[partition.as_str()];
        PartitionMetrics {
            records: self.records.with_label_values(label),
            done: Counters::new(|outcome: OutcomeLabel| {
                self.records_done.with_label_values(&[partition.as_str(), outcome.as_str()])
            }),
            in_flight: self.records_in_flight.with_label_values(label),
            parked: self.parked.with_label_values(label),
            sweeps: self.sweeps.with_label_values(label),
            dirty_ids: self.dirty_ids.with_label_values(label),
            dirty_bytes: self.dirty_bytes.with_label_values(label),
            oldest_dirty_seconds: self.oldest_dirty_seconds.with_label_values(label),
            watermark_lag_records: self.watermark_lag_records.with_label_values(label),
            committed_offset: self.committed_offset.with_label_values(label),
        }
    }

    fn remove_gauges(&self, partition: i32) {
        let partition = partition.to_string();
        let label = &[partition.as_str()];
        let whole_numbers = [
            &self.records_in_flight,
            &self.parked,
            &self.sweeps,
            &self.dirty_ids,
            &self.dirty_bytes,
            &self.watermark_lag_records,
            &self.committed_offset,
        ];
        // The only error is "no such series".
        for family in whole_numbers {
            let _ = family.remove_label_values(label);
        }
        let _ = self.oldest_dirty_seconds.remove_label_values(label);
    }
}

impl PartitionMetrics {
    /// One record was read.
    pub fn record_in(&self) {
        self.records.inc();
        self.in_flight.inc();
    }

    /// `records` records came to their end. A fold of five that is indexed is one `Indexed` and four `Folded`.
    pub fn record_done(&self, outcome: OutcomeLabel, records: u64) {
        self.done.of(outcome).inc_by(records);
        self.in_flight.sub(level(records));
        debug_assert!(self.in_flight.get() >= 0, "more records done than were read");
    }

    /// Records read that have not come to their end.
    pub fn in_flight(&self) -> i64 {
        self.in_flight.get()
    }

    /// Entries parked now.
    pub fn parked(&self, entries: usize) {
        self.parked.set(level(entries));
    }

    /// Sweeps owed now.
    pub fn sweeps(&self, owed: usize) {
        self.sweeps.set(level(owed));
    }

    /// Sets the gauges of the dirty set: documents, bytes, age of the oldest write.
    pub fn dirty(&self, ids: usize, bytes: usize, oldest: Option<Duration>) {
        self.dirty_ids.set(level(ids));
        self.dirty_bytes.set(level(bytes));
        self.oldest_dirty_seconds.set(oldest.unwrap_or_default().as_secs_f64());
    }

    /// Where the watermark is, and the offset after the partition's last record.
    pub fn watermark(&self, watermark: i64, end_offset: i64) {
        self.watermark_lag_records.set(end_offset.saturating_sub(watermark).max(0));
    }

    /// This offset was committed.
    pub fn committed(&self, offset: i64) {
        self.committed_offset.set(offset);
    }

    fn hand_over(&self) {
        let left = u64::try_from(self.in_flight.get()).unwrap_or_default();
        self.record_done(OutcomeLabel::HandedOver, left);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::families::MetricType;
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
        metrics.elasticsearch_request(RequestLabel::Bulk, Success::Failed, Duration::from_millis(3));
        metrics.elasticsearch_retry("429", 7);
        metrics.entries_retried("conflict", 1);
        metrics.dead_letter("bad_json");
        metrics.distribution("refresh");
        let text = metrics.render().unwrap();
        for metric in metrics.catalogue() {
            assert!(text.contains(&format!("# HELP {} {}\n", metric.name, metric.help)), "{}", metric.name);
            assert!(text.contains(&format!("# TYPE {} {}\n", metric.name, metric.kind.as_str())));
        }
        assert!(text.contains("geofold_elasticsearch_retries_total{reason=\"429\"} 7\n"));
        let at_zero = ["commits_total{result=\"failed\"}", "elasticsearch_retries_total{reason=\"503\"}"];
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

    proptest! {
        #[test]
        fn records_in_equal_records_done_and_in_flight(
            steps in prop::collection::vec((0_u64..20, 0_usize..7, 0_u64..20), 0..50),
        ) {
            let metrics = Metrics::new().unwrap();
            let partition = metrics.partition(0);
            for (read, outcome, done) in steps {
                (0..read).for_each(|_| partition.record_in());
                let done = done.min(u64::try_from(partition.in_flight()).unwrap());
                partition.record_done(OutcomeLabel::ALL[outcome], done);
                prop_assert_eq!(
                    partition.records.get(),
                    partition.done.sum() + u64::try_from(partition.in_flight()).unwrap()
                );
            }
            metrics.drop_partition(0);
            prop_assert_eq!(partition.records.get(), partition.done.sum());
        }
    }
}
