//! An entry that yields no document, or whose document Elasticsearch refused.

use super::{Decision, EntryPlan, NewestCopy, WriteTask, again_outcome, new_placement};
use crate::base::ids::ShardId;
use crate::base::position::Position;
use crate::base::requests::WriteCondition;
use crate::core::fold::Fold;
use crate::core::mover::{DecidedPart, Entry, MoverState, Outcome, REFUSED_FOLD, Refusal, RetryState};
use crate::core::placement::KnownPlacement;

impl Decision<'_> {
    /// The entry yields no document. If an earlier attempt recorded a target, another owner may be half-way.
    pub(super) fn refuse(
        &self,
        known: Option<KnownPlacement>,
        copy: Option<NewestCopy>,
        refusal: Refusal,
    ) -> EntryPlan {
        if self.may_be_separated(known.as_ref()) {
            return EntryPlan::Settle(separated(refusal, known.as_ref()));
        }
        match known {
            Some(known) if !known.unswept().is_empty() || self.counting.records_refusals() => {
                self.set_back(known, copy, refusal)
            }
            _ => EntryPlan::Settle(Outcome::DeadLetter(refusal.into())),
        }
    }

    /// A recorded decision is to be carried out, and the fold leaves a document without a location. So the owner that recorded it
    /// did not have this fold: it made dead letters of the records that take the location away. They are left out.
    pub(super) fn resume_without_location(
        &self,
        known: KnownPlacement,
        copy: Option<NewestCopy>,
        refusal: Refusal,
    ) -> EntryPlan {
        // Tried before, and its records cannot be read.
        if let Some(refusal) = self.entry.carry.refusal.as_ref() {
            return self.refuse(Some(known), copy, refusal.clone());
        }
        match copy {
            Some(copy) if self.state.separates && self.entry.fold.separable().is_some() => {
                let decided = DecidedPart { to: known.placement.pos, base: Some(copy.source) };
                EntryPlan::Settle(separated_at(refusal, Some(decided)))
            }
            copy => self.refuse(Some(known), copy, refusal),
        }
    }

    pub(super) fn may_be_separated(&self, known: Option<&KnownPlacement>) -> bool {
        may_be_separated(self.state, self.entry, known)
    }

    /// Records that the document stays where its last good copy is. Without one, nothing is changed or swept: a writer
    /// at a lower position may still write a copy into any named geoshard.
    pub(super) fn set_back(
        &self,
        known: KnownPlacement,
        copy: Option<NewestCopy>,
        refusal: Refusal,
    ) -> EntryPlan {
        let Some(copy) = copy else { return EntryPlan::Settle(Outcome::DeadLetter(refusal.into())) };
        let may_hold: Vec<ShardId> = known.unswept().iter().chain(&known.placement.shard).cloned().collect();
        let placement = new_placement(self.state, self.entry, Some(copy.shard.clone()), may_hold)
            .after_refusal()
            .with_fetched(copy.is_recorded.then(|| copy.source.clone()));
        EntryPlan::WriteAhead {
            guard: WriteCondition::Unchanged(known.stamp),
            placement: self.counting.record_refusal(placement, &known),
            task: self.keep(copy, refusal),
        }
    }

    /// Raises the last good copy to the entry's position, unchanged: below it, a zombie that once moved the document
    /// elsewhere could delete it after the moved copy was swept.
    pub(super) fn keep(&self, copy: NewestCopy, refusal: Refusal) -> WriteTask {
        let position = self.entry.fold.last;
        let write = (copy.version < position || copy.is_recorded).then_some(copy.source);
        WriteTask { write, sweep_at: position, then: Outcome::DeadLetter(refusal.into()) }
    }
}

/// Whether a fold that cannot be carried out may be tried record by record: no decision about its last record is recorded, so that the
/// records beyond the recorded one may be cut into folds in any way (protocol, "A fold refused before its placement is written").
pub(in crate::core::mover) fn may_be_separated(
    state: &MoverState,
    entry: &Entry,
    known: Option<&KnownPlacement>,
) -> bool {
    let recorded = known.map_or(Position::NONE, |known| known.placement.pos);
    let Fold { first, last, .. } = *entry.fold;
    let is_of_the_fold = |offsets: Vec<i64>| recorded < first || offsets.contains(&recorded.offset());
    state.separates && recorded < last && entry.fold.separable().is_some_and(is_of_the_fold)
}

/// The outcome of such a fold.
pub(in crate::core::mover) fn separated(refusal: Refusal, known: Option<&KnownPlacement>) -> Outcome {
    let decided = known.map(|known| DecidedPart { to: known.placement.pos, base: None });
    separated_at(refusal, decided)
}

fn separated_at(refusal: Refusal, decided: Option<DecidedPart>) -> Outcome {
    again_outcome(REFUSED_FOLD, RetryState { refusal: Some(refusal), decided, ..RetryState::default() })
}
