//! The metrics of a partition.
//!
//! Records add up, per partition and over the worker's life:
//! `geofold_records_total = sum(geofold_records_processed_total) + geofold_records_in_flight`.
//! [`PartitionMetrics`] is the only way to count a record and keeps the gauge itself, so that it cannot be otherwise
//! (but for the instant between two atomic adds, which a scrape may fall into).

use std::time::Duration;

use prometheus::{Gauge, GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Result};

use super::families::{Counters, Label, Register, label};
use super::metrics::level;

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

const PARTITION: &[&str] = &["partition"];

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

impl PartitionFamilies {
    pub(super) fn new(r: &mut Register) -> Result<Self> {
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

    pub(super) fn remove_gauges(&self, partition: i32) {
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

    pub(super) fn hand_over(&self) {
        let left = u64::try_from(self.in_flight.get()).unwrap_or_default();
        self.record_done(OutcomeLabel::HandedOver, left);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::support::telemetry::Metrics;

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
