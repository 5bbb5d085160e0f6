//! Steps 2 and 3: no decision is recorded at the entry's position.

use bytes::Bytes;

use super::content::{MISSING_DOCUMENT, Made, SourceUse, Wanted};
use super::{Decision, EntryPlan, NewestCopy, WriteTask, again_outcome, new_placement, separated};
use crate::base::ids::ShardId;
use crate::base::requests::{SeqNo, WriteCondition};
use crate::base::sabotage::{self, Sabotage};
use crate::core::fold::{Content, Target};
use crate::core::mover::counting::Contribution;
use crate::core::mover::{Done, HISTORY_FULL, Outcome, Refusal, RetryState};
use crate::core::placement::{KnownPlacement, Placement};

impl Decision<'_> {
    /// Steps 2 and 3: no decision is recorded at this position.
    pub(super) fn decide_new(&self, known: Option<KnownPlacement>, copy: Option<NewestCopy>) -> EntryPlan {
        let fold = &self.entry.fold;
        let placed_in = known.as_ref().and_then(|known| known.placement.shard.clone());
        let wanted = self.wanted(known.as_ref(), placed_in.as_ref(), copy.clone(), SourceUse::MayBeAsked);
        let wanted = match wanted {
            Ok(wanted) => wanted,
            Err(refusal) => return self.refuse(known, copy, refusal),
        };
        let mut fetched = None;
        let (target, write, then, counted) = match wanted {
            Wanted::Settle(outcome) => return EntryPlan::Settle(outcome),
            Wanted::Gone(Outcome::DeadLetter(refusal))
                if refusal.reason != MISSING_DOCUMENT && self.may_be_separated(known.as_ref()) =>
            {
                return EntryPlan::Settle(separated(refusal, known.as_ref()));
            }
            Wanted::Gone(outcome) => (None, None, outcome, Contribution::default()),
            // The owner that wrote it in place decided for this shard; deciding again might use another map.
            Wanted::Written(written) => {
                // Unless the entry is in place, a cached placement may be outdated: a zombie moved the document away
                // and back, and calling the entry done would leave those leftovers unswept forever. Nor, with counting,
                // is known what an owner with other fold boundaries may still record.
                let is_done = known.as_ref().is_some_and(|known| {
                    self.counting.is_off() && self.is_in_place(known, &written.shard)
                        || sabotage::is(Sabotage::WrittenIsDone) && known.placement.leftovers.is_empty()
                });
                if is_done {
                    return EntryPlan::Settle(Outcome::Done(Done::AlreadyApplied));
                }
                let counted = Contribution::recorded(known.as_ref());
                (Some(written.shard), None, Outcome::Done(Done::AlreadyApplied), counted)
            }
            Wanted::Document(document, made) => {
                let target = match self.target(known.as_ref(), &document, made) {
                    Ok(target) => target,
                    Err(refusal) => return self.refuse(known, copy, refusal),
                };
                let is_recorded = made != Made::Logged && !sabotage::is(Sabotage::FetchedIsNotRecorded);
                fetched = is_recorded.then(|| document.clone());
                let moved = placed_in.as_ref().is_some_and(|from| *from != target);
                let then = Outcome::Done(Done::Indexed { moved });
                let counted = self.counting.of_document(fold, &document, &target);
                let base = copy.as_ref().map(|copy| copy.version);
                let is_in_place = |known: &KnownPlacement| {
                    made == Made::Logged
                        && self.is_in_place(known, &target)
                        && self.counting.keeps_recorded(&known.placement, fold, &counted, base)
                };
                if known.as_ref().is_some_and(is_in_place)
                    && let Some(known) = known
                {
                    let task = WriteTask { write: Some(document), sweep_at: fold.last, then };
                    return EntryPlan::InPlace { known, task };
                }
                if known.is_none() && sabotage::is(Sabotage::NoWriteAhead) {
                    return self.unannounced(target, document, then);
                }
                (Some(target), Some(document), then, counted)
            }
        };
        if known.as_ref().is_some_and(|known| self.counting.awaits_commit(&known.placement, fold)) {
            let carry = RetryState { awaits_commit: true, ..self.entry.carry.clone() };
            return EntryPlan::Settle(again_outcome(HISTORY_FULL, carry));
        }
        let (guard, may_hold) = match &known {
            None => (WriteCondition::Absent, Vec::new()),
            Some(known) => {
                let may_hold = known.unswept().iter().chain(&known.placement.shard).cloned().collect();
                (WriteCondition::Unchanged(known.stamp), may_hold)
            }
        };
        let placement = new_placement(self.state, self.entry, target, may_hold).with_fetched(fetched);
        EntryPlan::WriteAhead {
            guard,
            placement: self.counting.record(placement, known.as_ref(), counted),
            task: WriteTask { write, sweep_at: fold.last, then },
        }
    }

    /// Step 2: only records after the recorded position decide; the recording owner decided the older ones.
    fn target(
        &self,
        known: Option<&KnownPlacement>,
        document: &[u8],
        made: Made,
    ) -> Result<ShardId, Refusal> {
        let fold = &self.entry.fold;
        // The earlier decision was about another document.
        if made != Made::Fetched
            && let Some(known) = known
            && let Some(stays) = &known.placement.shard
            // A placement that was set back names the last good copy, not the target of a record.
            && (!known.placement.refused || sabotage::is(Sabotage::RefusedStays))
            && fold.located_at.max(fold.touched_at) <= Some(known.placement.pos)
            && !sabotage::is(Sabotage::OldRecordsDecide)
            && !sabotage::is(Sabotage::DecideAgainAtEqualPosition)
        {
            if fold.located_at.is_some() {
                self.has_location(document)?;
            }
            return Ok(stays.clone());
        }
        match fold.content {
            Content::Index { at, .. } => Ok(self.rules.locate(at)),
            _ => self.rules.locate_document(document),
        }
    }

    /// Step 3: the one case without write-ahead.
    fn is_in_place(&self, known: &KnownPlacement, target: &ShardId) -> bool {
        let placement = &known.placement;
        !self.rules.announce_all
            // Places of earlier records are not known by both maps.
            && (self.rules.other_map.is_none() || self.entry.fold.first >= self.state.both_maps_since)
            // The write-ahead will fail, and the placement be read again.
            && !known.outdated
            // Otherwise a record in another partition would go unnoticed.
            && (self.state.partition.is_none()
                || placement.partition_in(self.entry.fold.last.epoch()) == self.state.partition)
            && placement.leftovers.is_empty()
            && placement.fetched.is_none()
            // There may be no copy: the next refusal must be recorded again.
            && !placement.refused
            && placement.shard.as_ref() == Some(target)
            // The owner of the record that wrote the placement may yet be refused, and set the placement back.
            && (placement.pos < self.entry.fold.first
                || sabotage::is(Sabotage::InPlaceOverItsOwnRecord)
                || sabotage::is(Sabotage::InPlaceHasNoEdges))
            // A fold A→B→A must write ahead: a zombie still at B would move the document away.
            && (self.entry.fold.targets.iter().all(|step| matches!(step, Target::Shard(shard) if shard == target))
                || sabotage::is(Sabotage::InPlaceDespiteTargets))
    }

    /// Writes a new document as if it had a placement already: [`Sabotage::NoWriteAhead`].
    fn unannounced(&self, target: ShardId, document: Bytes, then: Outcome) -> EntryPlan {
        let position = self.entry.fold.last;
        let placement = Placement::new(position, Some(target), []);
        let known = KnownPlacement::new(placement, SeqNo { seq_no: 0, primary_term: 0 });
        EntryPlan::InPlace { known, task: WriteTask { write: Some(document), sweep_at: position, then } }
    }
}
