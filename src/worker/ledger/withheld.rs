//! Documents with a dead letter under way. What came later for them waits until it is delivered: were it written before that and the
//! worker died, the next owner would find a copy newer than the refused record, take that for written, and nobody would ever be
//! told (protocol, step 8).

use super::{Dirty, Ledger, Merge};
use crate::base::clock::Instant;
use crate::base::ids::DocId;
use crate::base::sabotage::{self, Sabotage};
use crate::core::mover::Entry;

/// What waits for the letters of one document. Of one whose entry is apart, parked, or waits for the source of truth, nothing is here: what comes
/// later for it is with that.
#[derive(Debug, Clone, Default)]
pub(super) struct Withheld {
    /// How many are under way.
    letters: u32,
    /// Its records after them, with the offset of the first.
    waiting: Option<(i64, Dirty)>,
    /// Its entry is apart, and would be due.
    is_due: bool,
}

impl Ledger {
    /// A dead letter about `id` is under way: what is to be handed out of the document waits until [`Ledger::delivered`]. What is in a
    /// batch already goes on.
    pub(super) fn withhold(&mut self, id: &DocId) {
        if sabotage::is(Sabotage::LettersAreNotAwaited) {
            return;
        }
        // An entry that is apart has what came later behind it.
        let waiting = self.dirty.withdraw_pending(id);
        let was_due = self.apart.get(id).is_some_and(|apart| self.due.remove(&(apart.due, id.clone())));
        let withheld = self.withheld.entry(id.clone()).or_default();
        withheld.letters += 1;
        withheld.is_due |= was_due;
        if let Some((score, dirty)) = waiting {
            self.wait(id, score, dirty);
        }
    }

    /// Takes entries back out of a batch whose folds have just rejected a record: those from `from` on.
    pub(super) fn take_back_rejecting(&mut self, entries: &mut Vec<Entry>, from: usize) {
        let ids: Vec<DocId> = self.rejected[from..].iter().map(|letter| letter.id.clone()).collect();
        self.withhold_rejecting();
        for id in &ids {
            let place = entries.iter().position(|entry| entry.id == *id);
            let Some(place) = place.filter(|_| self.is_withheld(id)) else { continue };
            entries.remove(place);
            if self.apart.contains_key(id) {
                self.make_due(id);
            } else if let Some(dirty) = self.dirty.commit_one(id) {
                self.wait(id, dirty.fold.first.offset(), dirty);
            }
        }
    }

    /// Withholds the documents whose folds have rejected a record since the last call.
    pub(super) fn withhold_rejecting(&mut self) {
        while let Some(id) = self.rejected.get(self.rejected_seen).map(|letter| letter.id.clone()) {
            self.rejected_seen += 1;
            self.withhold(&id);
        }
    }

    /// Whether what comes for the document has to wait.
    pub(super) fn is_withheld(&self, id: &DocId) -> bool {
        !self.withheld.is_empty() && self.withheld.contains_key(id)
    }

    /// Adds to what waits for the letters of a document that is withheld.
    pub(super) fn wait(&mut self, id: &DocId, score: i64, newer: Dirty) {
        // It may wait for long, and can ask again.
        self.forget_answer(id);
        let Some(withheld) = self.withheld.get_mut(id) else { return };
        match &mut withheld.waiting {
            None => withheld.waiting = Some((score, newer)),
            Some((first, older)) => {
                *first = (*first).min(score);
                let mut merge =
                    Merge { rules: &self.rules, bytes: &mut self.bytes, rejected: &mut self.rejected };
                merge.merge(id, older, newer);
            }
        }
    }

    /// The entry of `id`, which is apart, may join a batch when it is due, or once its letters are delivered.
    pub(super) fn make_due(&mut self, id: &DocId) {
        match self.withheld.get_mut(id) {
            Some(withheld) => withheld.is_due = true,
            None => {
                if let Some(apart) = self.apart.get(id) {
                    self.due.insert((apart.due, id.clone()));
                }
            }
        }
    }

    /// The entry of `id`, which is apart, waits for something else.
    pub(super) fn not_due(&mut self, id: &DocId) {
        if let Some(apart) = self.apart.get(id) {
            self.due.remove(&(apart.due, id.clone()));
        }
        if let Some(withheld) = self.withheld.get_mut(id) {
            withheld.is_due = false;
        }
    }

    /// What waits for the letters of `id`, for whoever takes all records of it out of the batches.
    pub(super) fn take_waiting(&mut self, id: &DocId) -> Option<(i64, Dirty)> {
        self.withheld.get_mut(id)?.waiting.take()
    }

    /// A letter about `id` was delivered.
    pub(super) fn let_go_on(&mut self, id: &DocId) {
        let Some(withheld) = self.withheld.get_mut(id) else { return };
        withheld.letters = withheld.letters.saturating_sub(1);
        if withheld.letters > 0 {
            return;
        }
        let Some(Withheld { waiting, is_due, .. }) = self.withheld.remove(id) else { return };
        if let Some((score, dirty)) = waiting {
            self.add(id.clone(), score, dirty);
        }
        if is_due {
            self.make_due(id);
        }
    }

    /// The lowest first offset of what waits.
    pub(super) fn lowest_withheld(&self) -> Option<i64> {
        self.withheld.values().filter_map(|withheld| Some(withheld.waiting.as_ref()?.0)).min()
    }

    /// Since when the oldest document is dirty that waits.
    pub(super) fn oldest_withheld_since(&self) -> Option<Instant> {
        self.withheld.values().filter_map(|withheld| Some(withheld.waiting.as_ref()?.1.since)).min()
    }

    /// Documents that wait, and are nowhere else.
    pub(super) fn withheld(&self) -> usize {
        let waits =
            |(id, of): &(&DocId, &Withheld)| of.waiting.is_some() && self.dirty.get_in_flight(*id).is_none();
        self.withheld.iter().filter(waits).count()
    }
}
