//! What came of a batch: counts by outcome, and the changes of each geoshard.

use std::collections::{BTreeMap, HashMap};

use super::Undeliverable;
use crate::base::ids::{DocId, ShardId};
use crate::base::position::Position;
use crate::core::fold::Fold;
use crate::core::mover::AffectedShards;
use crate::worker::distribution::scheduler::ShardChange;

/// The result of settling a batch. Counts are documents, except `folded`: records.
#[derive(Debug, Default, PartialEq)]
pub struct Settlement {
    /// Folds whose last copy was written.
    pub indexed: u64,
    /// Those of them that moved; see [`Done::Indexed`](crate::core::mover::Done::Indexed).
    pub moved: u64,
    /// See [`Done::Deleted`](crate::core::mover::Done::Deleted).
    pub deleted: u64,
    /// See [`Done::AlreadyApplied`](crate::core::mover::Done::AlreadyApplied).
    pub already_applied: u64,
    /// See [`Done::Dropped`](crate::core::mover::Done::Dropped).
    pub dropped: u64,
    /// See [`Done::NothingToPlace`](crate::core::mover::Done::NothingToPlace).
    pub nothing_to_place: u64,
    /// Records folded into a newer one.
    pub folded: u64,
    /// Entries parked until their document's next record, each with its own position and the one it waits for.
    pub parked: Vec<(DocId, Position, Position)>,
    /// Finished recorded decisions of records that never came.
    pub finished_recorded: Vec<(DocId, Position)>,
    /// Placements set back to the last good copy.
    pub set_back: Vec<(DocId, Position)>,
    /// Entries that now wait for the source of truth.
    pub fetching: u64,
    /// Entries to be retried, by reason.
    pub again: BTreeMap<&'static str, u64>,
    /// For the dead-letter topic.
    pub undeliverable: Vec<Undeliverable>,
    /// Changes per geoshard.
    pub changes: BTreeMap<ShardId, ShardChange>,
}

impl Settlement {
    /// Whether anything was finished.
    pub fn made_progress(&self) -> bool {
        self.indexed + self.deleted + self.already_applied + self.dropped > 0
            || self.fetching > 0
            || !(self.parked.is_empty() && self.set_back.is_empty() && self.undeliverable.is_empty())
    }
}

pub(super) type Changes = HashMap<ShardId, ShardChange, ahash::RandomState>;

/// Adds the changes of a settled entry to those of others.
pub(super) fn note_changes(changes: &mut Changes, touched: AffectedShards, fold: &Fold) {
    let AffectedShards { target, sources } = touched;
    for source in sources {
        note_change(changes.entry(source).or_default(), target.as_ref(), (fold.first, fold.last));
    }
    if let Some(target) = target {
        note_change(changes.entry(target).or_default(), None, (fold.first, fold.last));
    }
}

pub(super) fn note_change(
    change: &mut ShardChange,
    moved_to: Option<&ShardId>,
    (first, last): (Position, Position),
) {
    let (first, last) = (first.offset(), last.offset());
    change.documents += 1;
    change.offsets = Some(change.offsets.map_or((first, last), |(f, l)| (f.min(first), l.max(last))));
    change.moved_to.extend(moved_to.cloned());
}
