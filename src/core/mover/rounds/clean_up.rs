//! The last round: deletes old copies that no search needs, and sets back placements of refused documents.

use super::{BatchState, Finished, Placed, sweep_deletes};
use crate::base::ids::DocId;
use crate::base::requests::{BulkOp, BulkOutcome, Index, WriteCondition};
use crate::base::sabotage::{self, Sabotage};
use crate::core::mover::decide::again_outcome;
use crate::core::mover::{AffectedShards, Carry, Clear, Entry, Refusal, RetryState, SET_BACK, Sweep, Swept};
use crate::core::placement::{KnownPlacement, Placement};

/// A placement to be set back to the last good copy.
#[derive(Debug, Clone)]
pub(super) struct SetBack {
    pub(super) entry: Entry,
    pub(super) refusal: Refusal,
    pub(super) guard: WriteCondition,
    pub(super) placement: Placement,
}

/// R4: deletes old copies that need not wait for searches, and sets back placements of refused documents.
#[derive(Debug, Clone)]
pub struct CleanUp {
    batch: BatchState,
    sweeping: Vec<Sweep>,
    set_backs: Vec<SetBack>,
}

impl CleanUp {
    /// An entry is done once its document is written; its sweep is tracked separately.
    pub(super) fn new(mut batch: BatchState, written: Vec<Placed>, set_backs: Vec<SetBack>) -> Self {
        let mut sweeping = Vec::with_capacity(written.len());
        for Placed { entry, known, task, .. } in written {
            let Some(sweep) = Sweep::after(&entry, &known, task.sweep_at) else {
                let (id, touched) = (entry.id.clone(), AffectedShards::by(&known));
                batch.done(entry, task.then, &known.placement.versions, touched);
                if known.placement.fetched.is_some() {
                    batch.written(id, known);
                }
                continue;
            };
            let touched = AffectedShards { target: known.placement.shard.clone(), sources: Vec::new() };
            batch.done(entry, task.then, &known.placement.versions, touched);
            // Also if there was nothing to write: another owner wrote it, perhaps a moment ago.
            let waits = batch.state.searches_are_served && sweep.must_be_seen_in().is_some();
            let at_once = sabotage::is(Sabotage::DeleteBeforeSeen)
                || (task.write.is_none() && sabotage::is(Sabotage::ResumedSweepsAtOnce));
            if waits && !at_once {
                batch.sweeps.push((sweep, Swept::Waits));
            } else {
                sweeping.push(sweep);
            }
        }
        Self { batch, sweeping, set_backs }
    }

    /// Deletes, then set-backs.
    pub fn ops(&self) -> Vec<BulkOp> {
        let deletes = self.sweeping.iter().flat_map(sweep_deletes);
        let set_backs = self.set_backs.iter().map(|set_back| BulkOp::Index {
            index: Index::Placements,
            id: set_back.entry.id.clone(),
            guard: set_back.guard,
            source: set_back.placement.stored(&set_back.entry.id),
        });
        let mut ops = Vec::with_capacity(self.sweeping.len() + self.set_backs.len());
        ops.extend(deletes);
        ops.extend(set_backs);
        ops
    }

    /// Takes one answer per operation, in order.
    pub fn answered(self, answers: Vec<BulkOutcome>) -> Finished {
        let Self { mut batch, sweeping, set_backs } = self;
        let mut answers = answers.into_iter();
        batch.answer_sweeps(sweeping, &mut answers);
        for (set_back, answer) in set_backs.into_iter().zip(answers) {
            let SetBack { entry, refusal, placement, .. } = set_back;
            match answer {
                BulkOutcome::Done { stamp: Some(stamp) } => {
                    let known = KnownPlacement::new(placement, stamp);
                    batch.state.cache.put(&entry.id, known);
                    let carry = RetryState { refusal: Some(refusal), ..RetryState::default() };
                    // The next attempt sweeps the other copies and returns the dead letter.
                    batch.settle(entry, again_outcome(SET_BACK, carry), AffectedShards::default());
                }
                BulkOutcome::Unanswered => batch.unanswered_placement(entry),
                _ => batch.start_over(entry, "placement_conflict", Carry::default()),
            }
        }
        let BatchState { state, settled, edges, sweeps } = batch;
        Finished { state, settled, edges, sweeps }
    }
}

impl BatchState {
    /// Takes one answer per delete, in order.
    pub(super) fn answer_sweeps(
        &mut self,
        sweeps: Vec<Sweep>,
        answers: &mut impl Iterator<Item = BulkOutcome>,
    ) {
        self.sweeps.reserve(sweeps.len());
        self.state.clears.reserve(sweeps.len());
        for sweep in sweeps {
            let (mut are_answered, mut are_gone) = (true, true);
            for answer in answers.by_ref().take(sweep.leftovers().len()) {
                match answer {
                    BulkOutcome::Done { .. } | BulkOutcome::NotFound => {}
                    // This delete, sent twice, or a copy at least as new, which this sweep must not remove. It stays
                    // named (INV-1), and the document's next entry sweeps again.
                    BulkOutcome::Conflict => are_gone = false,
                    BulkOutcome::Refused(_) | BulkOutcome::Unanswered => are_answered = false,
                }
            }
            if !are_answered {
                self.sweeps.push((sweep, Swept::Unanswered));
                continue;
            }
            if are_gone {
                self.swept(&sweep);
            } else {
                self.not_swept(&sweep);
            }
            self.sweeps.push((sweep, Swept::Ended));
        }
    }

    /// The fetched document is in its geoshard; the placement need not carry it.
    fn written(&mut self, id: DocId, mut known: KnownPlacement) {
        known.placement.fetched = None;
        self.clear_with_the_next_bulk(id, known.placement.clone(), known);
    }

    /// Step 7: the leftovers are gone; the next bulk clears them if nothing was recorded since. ⚠ A later placement
    /// names them too, and its own sweep must leave tombstones at its own position: it learns nothing of this one.
    fn swept(&mut self, sweep: &Sweep) {
        let cached = self.state.cache.get(&sweep.id);
        if cached.as_ref().is_none_or(|cached| sweep.is_of(cached)) {
            if let Some(mut known) = cached {
                known.swept = true;
                known.placement.fetched = None;
                self.state.cache.put(&sweep.id, known);
            }
            self.state.clears.push(sweep.clear());
        }
    }

    /// Some leftovers stay named, but the placement need not carry the fetched document.
    fn not_swept(&mut self, sweep: &Sweep) {
        let cached = self.state.cache.get(&sweep.id);
        if let Some(known) = cached.filter(|cached| sweep.is_of(cached))
            && known.placement.fetched.is_some()
        {
            self.written(sweep.id.clone(), known);
        }
    }

    fn clear_with_the_next_bulk(&mut self, id: DocId, placement: Placement, known: KnownPlacement) {
        let stamp = known.stamp;
        self.state.cache.put(&id, known);
        self.state.clears.push(Clear { id, placement, stamp });
    }
}
