//! Metrics and events of a batch, and of a partition's stop.

use std::time::Duration;

use super::{WorkerContext, stopped_part};
use crate::core::mover::{Lookups, UNANSWERED};
use crate::support::telemetry::events::{
    BatchFailed, BatchFinished, EntryParked, PartitionStopped, PlacementSetBack, RecordedDecisionFinished,
};
use crate::support::telemetry::metrics::LookupLabel;
use crate::support::telemetry::{Metrics, OutcomeLabel, PartitionMetrics};
use crate::worker::ledger::Settlement;

/// The reason shown for a partition whose task has panicked.
pub(super) const DEFECT: &str =
    "its task ended unexpectedly; this is a defect in geofold, please report it with the log";

/// Shows that the partition is stopped.
pub(super) fn stopped(context: &WorkerContext, partition: i32, offset: Option<i64>, reason: &str) {
    let shown = match offset {
        Some(offset) => format!("{reason} (offset {offset})"),
        None => reason.to_owned(),
    };
    context.health.not_ready(stopped_part(partition), shown);
    PartitionStopped { partition, offset, reason: &reason }.emit(&context.metrics);
}

/// Counts a batch's lookups of placements.
pub(super) fn lookups(metrics: &Metrics, Lookups { hits, misses }: Lookups) {
    metrics.placement_cache_lookups.of(LookupLabel::Hit).inc_by(hits);
    metrics.placement_cache_lookups.of(LookupLabel::Miss).inc_by(misses);
}

/// Counts the entries of a batch by outcome, and reports its end.
pub(super) fn batch(
    metrics: &Metrics,
    of_partition: &PartitionMetrics,
    partition: i32,
    documents: u32,
    settlement: &Settlement,
    took: Duration,
) {
    for (outcome, documents) in [
        (OutcomeLabel::Indexed, settlement.indexed),
        (OutcomeLabel::Deleted, settlement.deleted),
        (OutcomeLabel::AlreadyApplied, settlement.already_applied),
        (OutcomeLabel::Dropped, settlement.dropped),
        (OutcomeLabel::NothingToPlace, settlement.nothing_to_place),
        (OutcomeLabel::Folded, settlement.folded),
    ] {
        of_partition.record_done(outcome, documents);
    }
    metrics.moves.inc_by(settlement.moved);
    for (reason, entries) in &settlement.again {
        metrics.entries_retried(reason, *entries);
    }
    for (id, position, placed_at) in &settlement.parked {
        EntryParked { partition, position: *position, placed_at: *placed_at, id }.emit(metrics);
    }
    for (id, position) in &settlement.finished_recorded {
        RecordedDecisionFinished { partition, position: *position, id }.emit(metrics);
    }
    for (id, position) in &settlement.set_back {
        PlacementSetBack { partition, position: *position, id }.emit(metrics);
    }
    let Some(unanswered) = settlement.again.get(UNANSWERED) else {
        return BatchFinished { partition, documents, took }.emit(metrics);
    };
    let unfinished = u32::try_from(*unanswered).unwrap_or(u32::MAX);
    BatchFailed { partition, unfinished, took, error: &"no usable answer from elasticsearch in time" }
        .emit(metrics);
}
