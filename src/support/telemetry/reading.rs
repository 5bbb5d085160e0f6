//! Reads metrics back for the status page.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use prometheus::IntCounterVec;
use prometheus::core::Collector;

use super::elasticsearch::RequestLabel;
use super::families::Label;
use super::metrics::{Metrics, Success};
use super::partitions::{OutcomeLabel, PartitionMetrics};

/// Gauges of one owned partition.
#[derive(Debug, Clone, PartialEq)]
pub struct PartitionReading {
    /// Its number.
    pub partition: i32,
    /// It cannot get past a record.
    pub stopped: bool,
    /// Records read that have not come to their end.
    pub in_flight: i64,
    /// Entries parked now.
    pub parked: i64,
    /// Documents with writes that are not in Elasticsearch yet.
    pub dirty_documents: i64,
    /// Bytes of those writes.
    pub dirty_bytes: i64,
    /// Seconds since the oldest of those writes was read.
    pub oldest_dirty_seconds: f64,
}

/// Requests of one kind since the worker started.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestReading {
    /// Which kind.
    pub kind: RequestLabel,
    /// Those with a usable answer.
    pub ok: u64,
    /// Those without.
    pub failed: u64,
    /// Upper bound in seconds, and requests that took no longer; ascending.
    pub buckets: Vec<(f64, u64)>,
}

impl Metrics {
    /// The partitions owned now, in order.
    pub fn read_partitions(&self) -> Vec<PartitionReading> {
        let owned = self.owned.lock().unwrap_or_else(PoisonError::into_inner);
        let reading = |(&partition, handles): (&i32, &PartitionMetrics)| PartitionReading {
            partition,
            stopped: owned.stopped.contains(&partition),
            in_flight: handles.in_flight.get(),
            parked: handles.parked.get(),
            dirty_documents: handles.dirty_ids.get(),
            dirty_bytes: handles.dirty_bytes.get(),
            oldest_dirty_seconds: handles.oldest_dirty_seconds.get(),
        };
        owned.partitions.iter().map(reading).collect()
    }

    /// Records read of all partitions, including revoked ones.
    pub fn read_records(&self) -> u64 {
        by_label(&self.by_partition.records, "partition").values().sum()
    }

    /// Records that came to their end, by outcome; every outcome is there, in the order of its declaration.
    pub fn read_outcomes(&self) -> Vec<(&'static str, u64)> {
        let counted = by_label(&self.by_partition.records_done, "outcome");
        let count = |outcome: &OutcomeLabel| counted.get(outcome.as_str()).copied().unwrap_or_default();
        OutcomeLabel::ALL.iter().map(|outcome| (outcome.as_str(), count(outcome))).collect()
    }

    /// Operations sent again, by reason that occurred.
    pub fn read_retries(&self) -> BTreeMap<String, u64> {
        counted(by_label(&self.elasticsearch.retries, "reason"))
    }

    /// Dead letters, by reason that occurred.
    pub fn read_dead_letters(&self) -> BTreeMap<String, u64> {
        counted(by_label(&self.dead_letters, "reason"))
    }

    /// Requests to Elasticsearch, by kind.
    pub fn read_requests(&self) -> Vec<RequestReading> {
        let reading = |&kind: &RequestLabel| {
            let count = |result: Success| {
                self.elasticsearch.requests.with_label_values(&[kind.as_str(), result.as_str()]).get()
            };
            let families = self.elasticsearch.request_seconds.of(kind).collect();
            let histograms = families.iter().flat_map(|family| family.get_metric());
            let buckets = histograms
                .flat_map(|metric| metric.get_histogram().get_bucket())
                .map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()))
                .filter(|(bound, _)| bound.is_finite())
                .collect();
            RequestReading { kind, ok: count(Success::Ok), failed: count(Success::Failed), buckets }
        };
        RequestLabel::ALL.iter().map(reading).collect()
    }
}

/// Sums of a family's counters, by the values of one of its labels.
fn by_label(counters: &IntCounterVec, label: &str) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for family in counters.collect() {
        for metric in family.get_metric() {
            let Some(pair) = metric.get_label().iter().find(|pair| pair.name() == label) else { continue };
            *sums.entry(pair.value().to_owned()).or_default() += whole(metric.get_counter().get_value());
        }
    }
    sums
}

/// Without what never was.
fn counted(mut sums: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    sums.retain(|_, count| *count > 0);
    sums
}

/// Whole counters come out of `collect` as floats.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a counter of whole numbers, not negative"
)]
fn whole(count: f64) -> u64 {
    count as u64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn readings_add_up_over_partitions_and_a_revoked_partition_stays_revoked() {
        let metrics = Metrics::new().unwrap();
        for number in [3, 4] {
            let partition = metrics.partition(number);
            (0..5).for_each(|_| partition.record_in());
            partition.record_done(OutcomeLabel::Indexed, 2);
            partition.parked(1);
        }
        metrics.partition_stopped(4);
        metrics.drop_partition(3);

        let partitions = metrics.read_partitions();
        assert_eq!(partitions.len(), 1);
        assert_eq!((partitions[0].partition, partitions[0].stopped), (4, true));
        assert_eq!((partitions[0].in_flight, partitions[0].parked), (3, 1));
        assert_eq!(metrics.read_records(), 10);
        let outcomes = metrics.read_outcomes();
        assert_eq!((outcomes[0], outcomes[7]), (("indexed", 4), ("handed_over", 3)));
        assert!(!metrics.render().unwrap().contains("geofold_records_in_flight{partition=\"3\"}"));
    }

    #[test]
    fn requests_are_read_with_their_buckets() {
        let metrics = Metrics::new().unwrap();
        metrics.elasticsearch.request(RequestLabel::Bulk, Success::Failed, Duration::from_millis(3));
        metrics.elasticsearch.retry("429", 7);
        let bulk = metrics.read_requests().into_iter().find(|read| read.kind == RequestLabel::Bulk).unwrap();
        assert_eq!((bulk.ok, bulk.failed), (0, 1));
        assert_eq!(bulk.buckets[..2], [(0.002, 0), (0.005, 1)]);
        assert_eq!(metrics.read_retries(), BTreeMap::from([("429".to_owned(), 7)]));
    }
}
