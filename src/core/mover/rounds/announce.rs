//! The round that writes placements ahead and documents in place, and ends what earlier batches left: sweeps and clears.

use super::write::WriteDocuments;
use super::{BatchState, Placed, deletes, document, sweep_deletes};
use crate::base::requests::{BulkOp, BulkOutcome, Index, WriteCondition};
use crate::base::sabotage::{self, Sabotage};
use crate::core::mover::counting::FacetHistory;
use crate::core::mover::decide::{NewestCopy, WriteTask, may_be_separated, separated};
use crate::core::mover::{
    AffectedShards, CONFIRMED_COPY, Carry, Clear, Done, Entry, NOT_NEW, Outcome, Refusal, RetryState,
    STALE_COPY, Sweep, UNANSWERED,
};
use crate::core::placement::{KnownPlacement, Placement};

/// A placement about to be written.
#[derive(Debug, Clone)]
pub(super) struct Ahead {
    pub(super) entry: Entry,
    pub(super) guard: WriteCondition,
    pub(super) placement: Placement,
    pub(super) task: WriteTask,
    /// The placement's history before this write.
    pub(super) before: FacetHistory,
    /// No placement was read, since the document is taken for new.
    pub(super) is_guess: bool,
}

impl Ahead {
    fn guard(&self) -> WriteCondition {
        if sabotage::is(Sabotage::ExternalVersion) {
            return WriteCondition::External(self.placement.pos);
        }
        self.guard
    }

    /// The placement was written, or not. Returns the entry if its document can follow.
    fn answered(self, answer: BulkOutcome, batch: &mut BatchState) -> Option<Placed> {
        let Self { entry, placement, task, before, is_guess, .. } = self;
        if is_guess && answer != BulkOutcome::Unanswered {
            batch.state.new_documents.saw(answer != BulkOutcome::Conflict);
        }
        match answer {
            // Also where it is refused: what becomes of a refused document depends on its placement.
            BulkOutcome::Conflict | BulkOutcome::NotFound | BulkOutcome::Refused(_) if is_guess => {
                batch.start_over(
                    entry,
                    NOT_NEW,
                    RetryState { read_placement: true, ..RetryState::default() },
                );
            }
            BulkOutcome::Done { stamp: Some(stamp) } => {
                let known = KnownPlacement::new(placement, stamp);
                let slot = batch.state.cache.put(&entry.id, known.clone());
                return Some(Placed { entry, known, task, slot });
            }
            // Perhaps our own write, executed by a request whose answer was lost: the fresh read finds and resumes
            // it.
            BulkOutcome::Done { stamp: None } | BulkOutcome::Conflict | BulkOutcome::NotFound => {
                batch.start_over(entry, "placement_conflict", Carry::default());
            }
            BulkOutcome::Refused(error) => {
                let refusal = Refusal::by_elasticsearch(&error);
                batch.done(entry, Outcome::DeadLetter(refusal.into()), &before, AffectedShards::default());
            }
            BulkOutcome::Unanswered => batch.unanswered_placement(entry),
        }
        None
    }

    /// Writes sent before the placement under a sabotage; empty otherwise. Their answers are ignored.
    fn too_early(&self) -> Vec<BulkOp> {
        let Self { entry, placement, task, .. } = self;
        if sabotage::is(Sabotage::DeleteFirst) {
            return deletes(&entry.id, &placement.leftovers, task.sweep_at).collect();
        }
        if sabotage::is(Sabotage::WriteAheadBeside) {
            return document(&entry.id, entry.fold.last, placement, task).into_iter().collect();
        }
        Vec::new()
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Announced {
    pub(super) ahead: Vec<Ahead>,
    pub(super) in_place: Vec<Placed>,
    pub(super) ready: Vec<Placed>,
    pub(super) confirming: Vec<Confirming>,
}

/// A copy older than expected, to be rewritten unchanged.
#[derive(Debug, Clone)]
pub(super) struct Confirming {
    pub(super) entry: Entry,
    pub(super) copy: NewestCopy,
}

impl Confirming {
    fn op(&self) -> BulkOp {
        BulkOp::Index {
            index: Index::Geoshard(self.copy.shard.clone()),
            id: self.entry.id.clone(),
            guard: WriteCondition::ExternalOrEqual(self.copy.version),
            source: self.copy.source.clone(),
        }
    }

    /// Back to step 1 with the result.
    fn answered(self, answer: BulkOutcome, batch: &mut BatchState) {
        let Self { entry, copy } = self;
        let mut carry = entry.carry.clone();
        let Some(doubt) = &mut carry.doubt else { return batch.start_over(entry, STALE_COPY, carry) };
        let (found, at_least) = (copy.version, doubt.at_least);
        match answer {
            // If its geoshard no longer accepts the document, a newer copy can be neither proved nor excluded.
            BulkOutcome::Done { .. } | BulkOutcome::Refused(_) => {
                tracing::warn!(
                    position = %entry.fold.last,
                    %found,
                    expected = %at_least,
                    "a document's newest copy is older than expected; continuing from it (docs/operations.md, \"Metrics\")"
                );
                doubt.newest = Some((copy.shard, copy.version));
                batch.start_over(entry, CONFIRMED_COPY, carry);
            }
            BulkOutcome::Conflict | BulkOutcome::NotFound => {
                tracing::warn!(
                    position = %entry.fold.last,
                    %found,
                    expected = %at_least,
                    "an elasticsearch node answers reads from an old state; answer ignored (docs/operations.md, \"Metrics\")"
                );
                doubt.newest = None;
                batch.start_over(entry, STALE_COPY, carry);
            }
            BulkOutcome::Unanswered => batch.start_over(entry, UNANSWERED, carry),
        }
    }
}

/// R2: write-aheads, documents in place, and clears and due sweeps of earlier batches. These wait for no round of their own, since a
/// request costs Elasticsearch a sync of each shard that it writes to.
#[derive(Debug, Clone)]
pub struct Announce {
    pub(super) batch: BatchState,
    pub(super) announced: Announced,
    pub(super) clears: Vec<Clear>,
    pub(super) sweeps: Vec<Sweep>,
}

impl Announce {
    /// Write-aheads, then documents in place, then clears, then copies that are in doubt, then deletes of old copies.
    pub fn ops(&self) -> Vec<BulkOp> {
        let Announced { ahead, in_place, confirming, .. } = &self.announced;
        let mut ops =
            Vec::with_capacity(ahead.len() + in_place.len() + self.clears.len() + self.sweeps.len());
        ops.extend(ahead.iter().map(|ahead| BulkOp::Index {
            index: Index::Placements,
            id: ahead.entry.id.clone(),
            guard: ahead.guard(),
            source: ahead.placement.stored(&ahead.entry.id),
        }));
        ops.extend(in_place.iter().filter_map(Placed::document));
        ops.extend(self.clears.iter().map(|clear| BulkOp::Index {
            index: Index::Placements,
            id: clear.id.clone(),
            guard: WriteCondition::Unchanged(clear.stamp),
            source: clear.placement.stored(&clear.id),
        }));
        ops.extend(confirming.iter().map(Confirming::op));
        ops.extend(self.sweeps.iter().flat_map(sweep_deletes));
        ops.extend(ahead.iter().flat_map(Ahead::too_early));
        ops
    }

    /// Takes one answer per operation, in order.
    pub fn answered(self, answers: Vec<BulkOutcome>) -> WriteDocuments {
        let Self { mut batch, announced, clears, sweeps } = self;
        let mut answers = answers.into_iter();
        let mut placed = announced.ready;
        placed.reserve(announced.ahead.len());
        for (ahead, answer) in announced.ahead.into_iter().zip(answers.by_ref()) {
            placed.extend(ahead.answered(answer, &mut batch));
        }
        for (in_place, answer) in announced.in_place.iter().zip(answers.as_slice()) {
            if matches!(answer, BulkOutcome::Done { .. } | BulkOutcome::Conflict) {
                batch.saw(in_place);
            }
        }
        let mut refused = Vec::new();
        for (in_place, answer) in announced.in_place.into_iter().zip(answers.by_ref()) {
            refused.extend(in_place.answered_in_place(answer, &mut batch));
        }
        for (clear, answer) in clears.into_iter().zip(answers.by_ref()) {
            match answer {
                BulkOutcome::Done { stamp: Some(stamp) } => {
                    batch.state.cache.put(&clear.id, KnownPlacement::new(clear.placement, stamp));
                }
                // A clear may fail or never happen; but the cached placement may now be outdated.
                _ => batch.state.cache.forget(&clear.id),
            }
        }
        for (confirming, answer) in announced.confirming.into_iter().zip(answers.by_ref()) {
            confirming.answered(answer, &mut batch);
        }
        batch.answer_sweeps(sweeps, &mut answers);
        WriteDocuments::new(batch, placed, refused)
    }
}

impl Placed {
    /// The entry was written in place, or not. Returns it if it was refused and that is to be recorded.
    fn answered_in_place(self, answer: BulkOutcome, batch: &mut BatchState) -> Option<(Self, Refusal)> {
        let outcome = match answer {
            BulkOutcome::Done { .. } => self.task.then.clone(),
            BulkOutcome::Conflict | BulkOutcome::NotFound => Outcome::Done(Done::AlreadyApplied),
            BulkOutcome::Refused(error) if may_be_separated(&batch.state, &self.entry, Some(&self.known)) => {
                let again = separated(Refusal::by_elasticsearch(&error), Some(&self.known));
                batch.settle(self.entry, again, AffectedShards::default());
                return None;
            }
            BulkOutcome::Refused(error) if batch.state.counting().records_refusals() => {
                return Some((self, Refusal::by_elasticsearch(&error)));
            }
            BulkOutcome::Refused(error) => Outcome::DeadLetter(Refusal::by_elasticsearch(&error).into()),
            BulkOutcome::Unanswered => {
                batch.unanswered(self.entry);
                return None;
            }
        };
        if sabotage::is(Sabotage::InPlaceHasNoEdges) {
            let touched = AffectedShards::by(&self.known);
            batch.settle(self.entry, outcome, touched);
        } else {
            self.done(batch, outcome);
        }
        None
    }
}
