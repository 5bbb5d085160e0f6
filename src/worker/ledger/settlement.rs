//! What came of a batch: what each outcome means for its entry, counts by outcome, and the changes of each geoshard.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::{Ledger, Undeliverable};
use crate::base::clock::Instant;
use crate::base::ids::{DocId, ShardId};
use crate::base::position::Position;
use crate::base::sabotage::{self, Sabotage};
use crate::core::fold::Fold;
use crate::core::mover::{self, AffectedShards, Carry, Done, Entry, Outcome, Refusal, Settled};
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

    fn count(&mut self, done: Done) {
        match done {
            Done::Indexed { moved } => {
                self.indexed += 1;
                self.moved += u64::from(moved);
            }
            Done::Deleted => self.deleted += 1,
            Done::AlreadyApplied => self.already_applied += 1,
            Done::Dropped => self.dropped += 1,
            Done::NothingToPlace => self.nothing_to_place += 1,
        }
    }
}

impl Ledger {
    /// Takes the outcomes of a batch.
    pub fn settle(&mut self, settled: Vec<Settled>, now: Instant) -> Settlement {
        let mut sum = Settlement::default();
        // Looked up for every entry: hashed, and sorted at the end.
        let mut changes = Changes::default();
        for Settled { entry, outcome, touched } in settled {
            // Usually empty, and each lookup would hash the id.
            if !self.carries.is_empty() {
                self.carries.remove(&entry.id);
            }
            if outcome == Outcome::Fetch {
                sum.fetching += 1;
                self.fetch(entry);
                continue;
            }
            let Entry { id, fold, carry, .. } = entry;
            // An entry that awaits a commit may wait long, and can fetch again.
            if !matches!(&outcome, Outcome::Again { carry, .. } if !carry.awaits_commit) {
                self.forget_answer(&id);
            }
            if carry.finish_recorded && matches!(outcome, Outcome::Done(_)) {
                sum.finished_recorded.push((id.clone(), fold.last));
            }
            if matches!(outcome, Outcome::Done(_) | Outcome::DeadLetter(_)) {
                note_changes(&mut changes, touched, &fold);
            }
            match outcome {
                Outcome::Done(done) => sum.count(done),
                Outcome::Again { .. } if sabotage::is(Sabotage::ForgetOnFailure) => sum.dropped += 1,
                Outcome::Again { reason, carry } => {
                    self.try_again(id, &fold, reason, carry, &mut sum, now);
                    continue;
                }
                // Requested above.
                Outcome::Fetch => continue,
                Outcome::Parked { until } => {
                    sum.parked.push((id.clone(), fold.last, until));
                    self.park(id, until);
                    continue;
                }
                Outcome::DeadLetter(refusal) => {
                    sum.undeliverable.push(self.refuse(id, fold, *refusal));
                    continue;
                }
            }
            sum.folded += u64::from(fold.records).saturating_sub(1);
            self.commit(&id);
        }
        sum.changes = changes.into_iter().collect();
        self.withhold_rejecting();
        sum
    }

    /// The entry is to be retried, at once or after a pause; of a refused fold, its records one by one.
    fn try_again(
        &mut self,
        id: DocId,
        fold: &Fold,
        reason: &'static str,
        carry: Carry,
        sum: &mut Settlement,
        now: Instant,
    ) {
        *sum.again.entry(reason).or_default() += 1;
        if reason == mover::SET_BACK {
            sum.set_back.push((id.clone(), fold.last));
        }
        if reason == mover::REFUSED_FOLD {
            self.separate(id, fold.first.offset(), carry, now);
            return;
        }
        let was_answered = reason != mover::UNANSWERED;
        if was_answered || carry.refusal.is_some() || self.apart.contains_key(&id) {
            self.put_apart(id, fold.first.offset(), carry, was_answered, now);
        } else if carry != Carry::default() {
            self.carries.insert(id, carry);
        }
    }

    /// The entry is for the dead-letter topic; until it is there, its offset holds the watermark.
    fn refuse(&mut self, id: DocId, fold: Arc<Fold>, refusal: Refusal) -> Undeliverable {
        let record = self.single_record(&id);
        self.commit(&id);
        self.dead_letter_queued(fold.first.offset());
        self.withhold(&id);
        Undeliverable { id, fold: Arc::unwrap_or_clone(fold), refusal, stage: "write", record }
    }
}

type Changes = HashMap<ShardId, ShardChange, ahash::RandomState>;

/// Adds the changes of a settled entry to those of others.
fn note_changes(changes: &mut Changes, touched: AffectedShards, fold: &Fold) {
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
