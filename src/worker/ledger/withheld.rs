//! Documents with a dead letter under way. What came later for them waits until it is delivered: were it written before that and the
//! worker died, the next owner would find a copy newer than the refused record, take that for written, and nobody would ever be
//! told (protocol, step 8).
//!
//! What waits is in two folds, so that a document of which one record after the other is refused does not wait for ever: each fold waits for
//! the letters about its own records and those before, and not for those that come while it waits.

use super::{Dirty, Ledger, Merge};
use crate::base::clock::Instant;
use crate::base::ids::DocId;
use crate::base::sabotage::{self, Sabotage};
use crate::core::mover::Entry;

/// What waits for the letters of one document. Of one whose entry is apart, parked, or waits for the source of truth, no records are here: what
/// comes later for it is with that.
#[derive(Debug, Clone, Default)]
pub(super) struct Withheld {
    /// Letters under way about what waits first, or what came before.
    letters: u32,
    /// Letters about what is behind that.
    later_letters: u32,
    /// What waits first, with the offset of its first record.
    waiting: Option<(i64, Dirty)>,
    /// What came while that waits.
    behind: Option<(i64, Dirty)>,
    /// The document's entry is apart, and would be due.
    is_due: bool,
}

impl Ledger {
    /// A dead letter is under way about records of `id` before all that is left of them: nothing is handed out of the document before
    /// [`Ledger::delivered`]. What is in a batch already goes on.
    pub(super) fn withhold(&mut self, id: &DocId) {
        if sabotage::is(Sabotage::LettersAreNotAwaited) {
            return;
        }
        let pending = self.dirty.withdraw_pending(id);
        let was_due = self.apart.get(id).is_some_and(|apart| self.due.remove(&(apart.due, id.clone())));
        let withheld = self.withheld.entry(id.clone()).or_default();
        withheld.letters += 1;
        withheld.is_due |= was_due;
        if let Some(pending) = pending {
            self.wait_first(id, pending);
        }
    }

    /// Withholds the documents whose folds have rejected a record since the last call.
    pub(super) fn withhold_rejecting(&mut self) {
        while let Some(letter) = self.rejected.get(self.rejected_seen) {
            let (id, at) = (letter.id.clone(), letter.fold.first);
            self.rejected_seen += 1;
            let is_behind = self.apart.get(&id).is_some_and(|apart| apart.dirty.fold.last < at);
            if is_behind && !sabotage::is(Sabotage::LettersAreNotAwaited) {
                self.withheld.entry(id).or_default().later_letters += 1;
            } else {
                self.withhold(&id);
            }
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
                self.wait_first(id, (dirty.fold.first.offset(), dirty));
            }
        }
        self.withhold_rejecting();
    }

    /// Adds what was handed out, or could have been, before what waits.
    fn wait_first(&mut self, id: &DocId, older: (i64, Dirty)) {
        self.forget_answer(id);
        let waiting = self.withheld.get_mut(id).and_then(|withheld| withheld.waiting.take());
        let all = self.one_after_the_other(id, Some(older), waiting);
        if let Some(withheld) = self.withheld.get_mut(id) {
            withheld.waiting = all;
        }
    }

    /// Whether what comes for the document has to wait.
    pub(super) fn is_withheld(&self, id: &DocId) -> bool {
        !self.withheld.is_empty() && self.withheld.contains_key(id)
    }

    /// Whether the document's entry that is apart has to wait, too.
    pub(super) fn is_held_apart(&self, id: &DocId) -> bool {
        !self.withheld.is_empty() && self.withheld.get(id).is_some_and(|withheld| withheld.letters > 0)
    }

    /// Adds to what waits for the letters of a document that is withheld.
    pub(super) fn wait(&mut self, id: &DocId, score: i64, newer: Dirty) {
        // It may wait for long, and can ask again.
        self.forget_answer(id);
        let Some(withheld) = self.withheld.get_mut(id) else { return };
        match (&mut withheld.waiting, &mut withheld.behind) {
            (None, _) => {
                withheld.waiting = Some((score, newer));
                withheld.letters += std::mem::take(&mut withheld.later_letters);
            }
            (Some(_), None) => withheld.behind = Some((score, newer)),
            (Some(_), Some((_, behind))) => {
                let rejected_before = self.rejected.len();
                let mut merge =
                    Merge { rules: &self.rules, bytes: &mut self.bytes, rejected: &mut self.rejected };
                merge.merge(id, behind, newer);
                if self.rejected.len() > rejected_before {
                    // It is taken care of, before others that are not.
                    self.rejected.swap(self.rejected_seen, rejected_before);
                    self.rejected_seen += 1;
                    withheld.later_letters += 1;
                }
            }
        }
    }

    /// The entry of `id`, which is apart, may join a batch when it is due, or once its letters are delivered.
    pub(super) fn make_due(&mut self, id: &DocId) {
        match self.withheld.get_mut(id).filter(|withheld| withheld.letters > 0) {
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

    /// What waits for the letters of `id`, to be put behind its entry, which is apart from now on: letters that are under way are about
    /// what is behind it.
    pub(super) fn put_behind(&mut self, id: &DocId) -> Option<(i64, Dirty)> {
        let waiting = self.take_waiting(id);
        if let Some(withheld) = self.withheld.get_mut(id) {
            withheld.later_letters = std::mem::take(&mut withheld.letters);
        }
        waiting
    }

    /// What waits for the letters of `id`, for whoever takes all records of it out of the batches.
    pub(super) fn take_waiting(&mut self, id: &DocId) -> Option<(i64, Dirty)> {
        let withheld = self.withheld.get_mut(id)?;
        withheld.letters += std::mem::take(&mut withheld.later_letters);
        let (waiting, behind) = (withheld.waiting.take(), withheld.behind.take());
        let (score, mut waiting) = waiting?;
        if let Some((_, behind)) = behind {
            let mut merge =
                Merge { rules: &self.rules, bytes: &mut self.bytes, rejected: &mut self.rejected };
            merge.merge(id, &mut waiting, behind);
        }
        Some((score, waiting))
    }

    /// A letter about `id` was delivered, whose first record is at `offset`.
    pub(super) fn let_go_on(&mut self, id: &DocId, offset: i64) {
        let apart = self.apart.get(id).map(|apart| apart.dirty.fold.last);
        let Some(withheld) = self.withheld.get_mut(id) else { return };
        let first = withheld.waiting.as_ref().map(|(_, dirty)| dirty.fold.last);
        let is_later = apart.or(first).is_some_and(|last| last.offset() < offset);
        let letters = if is_later { &mut withheld.later_letters } else { &mut withheld.letters };
        *letters = letters.saturating_sub(1);
        while let Some(withheld) = self.withheld.get_mut(id)
            && withheld.letters == 0
        {
            let (waiting, is_due) = (withheld.waiting.take(), std::mem::take(&mut withheld.is_due));
            let is_held = apart.is_some() && withheld.later_letters > 0;
            if !is_held {
                withheld.waiting = withheld.behind.take();
                withheld.letters = std::mem::take(&mut withheld.later_letters);
                if withheld.waiting.is_none() && withheld.letters == 0 {
                    self.withheld.remove(id);
                }
            }
            if is_due {
                self.make_due(id);
            }
            if let Some((score, dirty)) = waiting {
                self.add_pending(id.clone(), score, dirty);
            }
            if is_held {
                break;
            }
        }
        self.withhold_rejecting();
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
        let is_elsewhere =
            |id: &DocId| self.dirty.get_in_flight(id).is_some() || self.dirty.get_pending(id).is_some();
        let waits = |(id, of): &(&DocId, &Withheld)| of.waiting.is_some() && !is_elsewhere(id);
        self.withheld.iter().filter(waits).count()
    }
}
