//! Step 1: a decision is recorded at the entry's position, or by a later record that never came. It is carried out.

use bytes::Bytes;

use super::content::{Made, SourceUse, Wanted};
use super::{Decision, EntryPlan, NewestCopy, WriteTask, new_placement};
use crate::base::ids::ShardId;
use crate::base::requests::WriteCondition;
use crate::base::sabotage::{self, Sabotage};
use crate::core::fold::{Content, Fold};
use crate::core::mover::counting::Contribution;
use crate::core::mover::{Done, Outcome, Refusal};
use crate::core::placement::{KnownPlacement, Placement};

impl Decision<'_> {
    /// Step 1, equal position: carry out the recorded decision (the map may have changed since).
    pub(super) fn resume(&self, known: KnownPlacement, copy: Option<NewestCopy>) -> EntryPlan {
        let sweep_at = self.entry.fold.last;
        if known.placement.refused {
            return self.resume_refused(known, copy);
        }
        let Some(shard) = known.placement.shard.clone() else {
            let then = match self.entry.fold.content {
                Content::Delete | Content::Refeed => Outcome::Done(Done::Deleted),
                _ => self.missing_outcome(),
            };
            return EntryPlan::CarryOut { known, task: WriteTask { write: None, sweep_at, then } };
        };
        // A touch that followed a delete and found nothing was placed with its fetched document; here both are one
        // fold.
        if self.entry.fold.content == Content::Delete {
            let write = copy.filter(|copy| copy.is_recorded).map(|copy| copy.source);
            let then = Outcome::Done(Done::AlreadyApplied);
            return EntryPlan::CarryOut { known, task: WriteTask { write, sweep_at, then } };
        }
        let source = match sabotage::is(Sabotage::FetchedIsNotRecorded) {
            true => SourceUse::MayBeAsked,
            false => SourceUse::IsNotAsked,
        };
        match self.wanted(Some(&known), Some(&shard), copy.clone(), source) {
            Ok(Wanted::Settle(outcome)) => EntryPlan::Settle(outcome),
            Ok(Wanted::Written(_)) => EntryPlan::CarryOut {
                known,
                task: WriteTask { write: None, sweep_at, then: Outcome::Done(Done::AlreadyApplied) },
            },
            Ok(Wanted::Document(document, made)) => {
                if let Err(refusal) = self.has_location(&document) {
                    return self.resume_without_location(known, copy, refusal);
                }
                if let Some(target) = self.corrected_target(&known.placement, copy.as_ref(), &document, made)
                {
                    return self.correct(known, target, document);
                }
                let moved = !known.placement.leftovers.is_empty();
                let then = Outcome::Done(Done::Indexed { moved });
                EntryPlan::CarryOut { known, task: WriteTask { write: Some(document), sweep_at, then } }
            }
            // Recorded with a shard, but there is no document: record that, then sweep.
            Ok(Wanted::Gone(then)) => {
                let may_hold: Vec<ShardId> = known.placement.may_hold().cloned().collect();
                let placement = new_placement(self.state, self.entry, None, may_hold);
                EntryPlan::WriteAhead {
                    guard: WriteCondition::Unchanged(known.stamp),
                    placement: self.counting.record(placement, Some(&known), Contribution::default()),
                    task: WriteTask { write: None, sweep_at, then },
                }
            }
            Err(refusal) => self.refuse(Some(known), copy, refusal),
        }
    }

    /// Where the document belongs by every live map, if another geoshard is recorded at the entry's position, and no copy is
    /// there yet. Where the maps agree, all workers decide alike at a position, unless Elasticsearch refuses a document that a
    /// patch mends: one worker folds both, another has given up the refused record and has only the patch.
    fn corrected_target(
        &self,
        placement: &Placement,
        copy: Option<&NewestCopy>,
        document: &[u8],
        made: Made,
    ) -> Option<ShardId> {
        let Fold { content, last, .. } = &*self.entry.fold;
        let recorded = placement.shard.as_ref()?;
        let is_written = copy.is_some_and(|copy| copy.shard == *recorded && copy.version >= *last);
        if self.rules.announce_all
            || made != Made::Logged
            || is_written
            || sabotage::is(Sabotage::MisplacedIsResumed)
        {
            return None;
        }
        let target = match content {
            Content::Index { at, .. } => self.rules.agreed(*at)?,
            _ => self.rules.agreed_document(document)?,
        };
        (target != *recorded).then_some(target)
    }

    /// Records another geoshard at the entry's own position, and writes the document there.
    fn correct(&self, known: KnownPlacement, target: ShardId, document: Bytes) -> EntryPlan {
        let position = self.entry.fold.last;
        let may_hold: Vec<ShardId> = known.placement.may_hold().cloned().collect();
        let counted = self.counting.of_document(&self.entry.fold, &document, &target);
        let placement = new_placement(self.state, self.entry, Some(target), may_hold);
        let then = Outcome::Done(Done::Indexed { moved: true });
        EntryPlan::WriteAhead {
            guard: WriteCondition::Unchanged(known.stamp),
            placement: self.counting.record(placement, Some(&known), counted),
            task: WriteTask { write: Some(document), sweep_at: position, then },
        }
    }

    /// Step 1, equal position, permanently refused there: the last good copy stays, the others are deleted.
    fn resume_refused(&self, known: KnownPlacement, copy: Option<NewestCopy>) -> EntryPlan {
        if copy.is_none() && !self.is_surely_missing(Some(&known)) {
            return EntryPlan::Settle(self.look_again(Some(&known)));
        }
        let refusal = self.entry.carry.refusal.clone().unwrap_or_else(|| Refusal {
            reason: "refused_by_elasticsearch",
            detail: "an earlier attempt at this position was permanently refused; its dead letter says why"
                .to_owned(),
        });
        match copy {
            Some(copy) if Some(&copy.shard) == known.placement.shard.as_ref() => {
                EntryPlan::CarryOut { task: self.keep(copy, refusal), known }
            }
            copy => self.set_back(known, copy, refusal),
        }
    }

    /// Step 1, recorded by a later record that never came (compacted or lost): finishes its decision. The document is
    /// written at the fold's own position, so that the lost record's true content would still win.
    pub(super) fn finish_recorded(&self, known: KnownPlacement, copy: Option<NewestCopy>) -> EntryPlan {
        let recorded = known.placement.pos;
        let finish = |known, write: Option<Bytes>, then| EntryPlan::CarryOut {
            known,
            task: WriteTask { write, sweep_at: recorded, then },
        };
        let applied = Outcome::Done(Done::AlreadyApplied);
        let Some(shard) = known.placement.shard.clone() else { return finish(known, None, applied) };
        if let Some(copy) = &copy
            && copy.shard != shard
            && (self.entry.fold.last..recorded).contains(&copy.version)
        {
            // The fold was applied before the lost record moved the document: the copy moves unchanged.
            let source = copy.source.clone();
            return finish(known, Some(source), Outcome::Done(Done::Indexed { moved: true }));
        }
        match self.wanted(Some(&known), Some(&shard), copy, SourceUse::IsNotAsked) {
            Ok(Wanted::Document(document, _)) => match self.has_location(&document) {
                Ok(()) => finish(known, Some(document), Outcome::Done(Done::Indexed { moved: false })),
                Err(refusal) => EntryPlan::Settle(Outcome::DeadLetter(refusal.into())),
            },
            Ok(Wanted::Written(_)) => finish(known, None, applied),
            Ok(Wanted::Gone(outcome)) => finish(known, None, outcome),
            Ok(Wanted::Settle(Outcome::Again { reason, mut carry })) => {
                carry.finish_recorded = true;
                EntryPlan::Settle(Outcome::Again { reason, carry })
            }
            Ok(Wanted::Settle(outcome)) => EntryPlan::Settle(outcome),
            Err(refusal) => EntryPlan::Settle(Outcome::DeadLetter(refusal.into())),
        }
    }
}
