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

/// A new decision: what is to become of the document.
struct NewDecision {
    /// Its geoshard; `None` if it is deleted.
    target: Option<ShardId>,
    /// What to write; `None` if the target has it already.
    write: Option<Bytes>,
    /// Its content, where the placement must record it: the source may answer otherwise at the next request.
    fetched: Option<Bytes>,
    /// What is then true of the entry.
    then: Outcome,
    counted: Contribution,
}

impl Decision<'_> {
    /// Steps 2 and 3: no decision is recorded at this position.
    pub(super) fn decide_new(&self, known: Option<KnownPlacement>, copy: Option<NewestCopy>) -> EntryPlan {
        let placed_in = known.as_ref().and_then(|known| known.placement.shard.as_ref());
        match self.wanted(known.as_ref(), placed_in, copy.clone(), SourceUse::MayBeAsked) {
            Err(refusal) => self.refuse(known, copy, refusal),
            Ok(Wanted::Settle(outcome)) => EntryPlan::Settle(outcome),
            Ok(Wanted::Gone(Outcome::DeadLetter(refusal)))
                if refusal.reason != MISSING_DOCUMENT && self.may_be_separated(known.as_ref()) =>
            {
                EntryPlan::Settle(separated(*refusal, known.as_ref()))
            }
            Ok(Wanted::Gone(then)) => {
                let counted = Contribution::default();
                self.write_ahead(
                    known,
                    NewDecision { target: None, write: None, fetched: None, then, counted },
                )
            }
            Ok(Wanted::Written(written)) => self.decide_written(known, written.shard),
            Ok(Wanted::Document(document, made)) => self.decide_document(known, copy, document, made),
        }
    }

    /// The document is in `shard` already. The owner that wrote it in place decided for this shard; deciding again might use another
    /// map.
    fn decide_written(&self, known: Option<KnownPlacement>, shard: ShardId) -> EntryPlan {
        // Unless the entry is in place, a cached placement may be outdated: a zombie moved the document away and back, and
        // calling the entry done would leave those leftovers unswept forever. Nor, with counting, is known what an owner
        // with other fold boundaries may still record.
        let is_done = known.as_ref().is_some_and(|known| {
            self.counting.is_off() && self.is_in_place(known, &shard)
                || sabotage::is(Sabotage::WrittenIsDone) && known.placement.leftovers.is_empty()
        });
        let then = Outcome::Done(Done::AlreadyApplied);
        if is_done {
            return EntryPlan::Settle(then);
        }
        let counted = Contribution::recorded(known.as_ref());
        self.write_ahead(
            known,
            NewDecision { target: Some(shard), write: None, fetched: None, then, counted },
        )
    }

    /// The document is to be written: in place, or where it belongs now.
    fn decide_document(
        &self,
        known: Option<KnownPlacement>,
        copy: Option<NewestCopy>,
        document: Bytes,
        made: Made,
    ) -> EntryPlan {
        let fold = &self.entry.fold;
        let target = match self.target(known.as_ref(), &document, made) {
            Ok(target) => target,
            Err(refusal) => return self.refuse(known, copy, refusal),
        };
        let placed_in = known.as_ref().and_then(|known| known.placement.shard.as_ref());
        let then = Outcome::Done(Done::Indexed { moved: placed_in.is_some_and(|from| *from != target) });
        let counted = self.counting.of_document(fold, &document, &target);
        let base = copy.map(|copy| copy.version);
        let is_in_place = |known: &KnownPlacement| {
            made == Made::Logged
                && self.is_in_place(known, &target)
                && self.counting.keeps_recorded(&known.placement, fold, &counted, base)
        };
        match known {
            Some(known) if is_in_place(&known) => {
                let task = WriteTask { write: Some(document), sweep_at: fold.last, then };
                EntryPlan::InPlace { known, task }
            }
            None if sabotage::is(Sabotage::NoWriteAhead) => self.unannounced(target, document, then),
            known => {
                let is_recorded = made != Made::Logged && !sabotage::is(Sabotage::FetchedIsNotRecorded);
                let fetched = is_recorded.then(|| document.clone());
                let (target, write) = (Some(target), Some(document));
                self.write_ahead(known, NewDecision { target, write, fetched, then, counted })
            }
        }
    }

    /// Records the decision in the placement, before anything is written or deleted.
    fn write_ahead(&self, known: Option<KnownPlacement>, decision: NewDecision) -> EntryPlan {
        let fold = &self.entry.fold;
        let NewDecision { target, write, fetched, then, counted } = decision;
        if known.as_ref().is_some_and(|known| self.counting.awaits_commit(&known.placement, fold)) {
            let carry = RetryState { awaits_commit: true, ..self.carried() };
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
