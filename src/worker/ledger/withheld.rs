//! Documents with a dead letter in flight. Their later records wait until it is delivered: if one were written before that, and the worker
//! died, the next owner would find a copy newer than the refused record, take that record for written, and lose its dead letter
//! (protocol, step 8).
//!
//! The waiting records are in two folds, so that a document whose records are refused one after the other makes progress: each fold waits
//! for the dead letters about its own and earlier records, and not for those that are sent while it waits.

use super::{Dirty, Ledger};
use crate::base::clock::Instant;
use crate::base::ids::DocId;
use crate::base::sabotage::{self, Sabotage};
use crate::core::mover::Entry;

/// The records that wait for the dead letters of one document. If its entry is apart, parked, or waits for the source of truth, its later
/// records are kept there and not here.
#[derive(Debug, Clone, Default)]
pub(super) struct Withheld {
    /// Dead letters in flight about the first fold, or about earlier records.
    dead_letters: u32,
    /// Dead letters in flight about the second fold.
    later_dead_letters: u32,
    /// The first fold, with the offset of its first record.
    waiting: Option<(i64, Dirty)>,
    /// The second fold: records read while the first waits.
    behind: Option<(i64, Dirty)>,
    /// The document's entry is apart, and is due once nothing holds it.
    is_due: bool,
}

impl Ledger {
    /// A dead letter is in flight about records of `id` that are before all unfinished ones: nothing of the document is handed out before
    /// [`Ledger::delivered`]. An entry in a batch stays there.
    pub(super) fn withhold(&mut self, id: &DocId) {
        if sabotage::is(Sabotage::LettersAreNotAwaited) {
            return;
        }
        let pending = self.dirty.withdraw_pending(id);
        let was_due = self.apart.get(id).is_some_and(|apart| self.due.remove(&(apart.due, id.clone())));
        let withheld = self.withheld.entry(id.clone()).or_default();
        withheld.dead_letters += 1;
        withheld.is_due |= was_due;
        if let Some(pending) = pending {
            self.wait_first(id, pending);
        }
    }

    /// Withholds the documents whose folds have rejected a record since the last call.
    pub(super) fn withhold_rejecting(&mut self) {
        while let Some(rejected) = self.merger.rejected.get(self.rejected_seen) {
            let (id, at) = (rejected.id.clone(), rejected.fold.first);
            self.rejected_seen += 1;
            let is_behind = self.apart.get(&id).is_some_and(|apart| apart.dirty.last() < at);
            if is_behind && !sabotage::is(Sabotage::LettersAreNotAwaited) {
                self.withheld.entry(id).or_default().later_dead_letters += 1;
            } else {
                self.withhold(&id);
            }
        }
    }

    /// Takes entries back out of a batch whose folds have just rejected a record: those from `from` on.
    pub(super) fn take_back_rejecting(&mut self, entries: &mut Vec<Entry>, from: usize) {
        let ids: Vec<DocId> =
            self.merger.rejected[from..].iter().map(|rejected| rejected.id.clone()).collect();
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

    /// Adds records that were handed out, or could have been, to the front of the first fold.
    fn wait_first(&mut self, id: &DocId, older: (i64, Dirty)) {
        self.forget_answer(id);
        let waiting = self.withheld.get_mut(id).and_then(|withheld| withheld.waiting.take());
        let all = self.one_after_the_other(id, Some(older), waiting);
        if let Some(withheld) = self.withheld.get_mut(id) {
            withheld.waiting = all;
        }
    }

    /// Whether new records of the document have to wait.
    pub(super) fn is_withheld(&self, id: &DocId) -> bool {
        !self.withheld.is_empty() && self.withheld.contains_key(id)
    }

    /// Whether the document's entry, which is apart, has to wait, too.
    pub(super) fn is_held_apart(&self, id: &DocId) -> bool {
        !self.withheld.is_empty() && self.withheld.get(id).is_some_and(|withheld| withheld.dead_letters > 0)
    }

    /// Adds records to those that wait for the dead letters of a withheld document.
    pub(super) fn wait(&mut self, id: &DocId, score: i64, newer: Dirty) {
        // It may wait for long, and can fetch again.
        self.forget_answer(id);
        let Some(withheld) = self.withheld.get_mut(id) else { return };
        match (&mut withheld.waiting, &mut withheld.behind) {
            (None, _) => {
                withheld.waiting = Some((score, newer));
                withheld.dead_letters += std::mem::take(&mut withheld.later_dead_letters);
            }
            (Some(_), None) => withheld.behind = Some((score, newer)),
            (Some(_), Some((_, behind))) => {
                let rejected_before = self.merger.rejected.len();
                self.merger.merge(id, behind, newer);
                if self.merger.rejected.len() > rejected_before {
                    // Counts as seen: it moves before those that are not.
                    self.merger.rejected.swap(self.rejected_seen, rejected_before);
                    self.rejected_seen += 1;
                    withheld.later_dead_letters += 1;
                }
            }
        }
    }

    /// The entry of `id`, which is apart, may join a batch when it is due, or once its dead letters are delivered.
    pub(super) fn make_due(&mut self, id: &DocId) {
        match self.withheld.get_mut(id).filter(|withheld| withheld.dead_letters > 0) {
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

    /// Takes the waiting records of `id`, to be put behind its entry, which is apart from now on: the dead letters in flight are about
    /// records behind it.
    pub(super) fn put_behind(&mut self, id: &DocId) -> Option<(i64, Dirty)> {
        let waiting = self.take_waiting(id);
        if let Some(withheld) = self.withheld.get_mut(id) {
            withheld.later_dead_letters = std::mem::take(&mut withheld.dead_letters);
        }
        waiting
    }

    /// Takes the waiting records of `id`, to remove all records of it from the batches.
    pub(super) fn take_waiting(&mut self, id: &DocId) -> Option<(i64, Dirty)> {
        let withheld = self.withheld.get_mut(id)?;
        withheld.dead_letters += std::mem::take(&mut withheld.later_dead_letters);
        let (waiting, behind) = (withheld.waiting.take(), withheld.behind.take());
        let (score, mut waiting) = waiting?;
        if let Some((_, behind)) = behind {
            self.merger.merge(id, &mut waiting, behind);
        }
        Some((score, waiting))
    }

    /// A dead letter about `id` was delivered, whose first record is at `offset`: folds that no other one holds join the dirty set.
    pub(super) fn release_withheld(&mut self, id: &DocId, offset: i64) {
        let apart = self.apart.get(id).map(|apart| apart.dirty.last());
        let Some(withheld) = self.withheld.get_mut(id) else { return };
        let first = withheld.waiting.as_ref().map(|(_, dirty)| dirty.last());
        // A letter about a record after the entry that is apart, or after the first fold, holds the second fold only.
        let is_later = apart.or(first).is_some_and(|last| last.offset() < offset);
        let count = if is_later { &mut withheld.later_dead_letters } else { &mut withheld.dead_letters };
        *count = count.saturating_sub(1);
        // Nothing holds the first fold. The second then becomes the first, and may be free as well.
        while let Some(withheld) = self.withheld.get_mut(id)
            && withheld.dead_letters == 0
        {
            let (waiting, is_due) = (withheld.waiting.take(), std::mem::take(&mut withheld.is_due));
            // The entry that is apart may go on, but the records behind it may not join it yet.
            let is_held = apart.is_some() && withheld.later_dead_letters > 0;
            if !is_held {
                withheld.waiting = withheld.behind.take();
                withheld.dead_letters = std::mem::take(&mut withheld.later_dead_letters);
                if withheld.waiting.is_none() && withheld.dead_letters == 0 {
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

    /// The lowest first offset of the waiting records.
    pub(super) fn lowest_withheld(&self) -> Option<i64> {
        self.withheld.values().filter_map(|withheld| Some(withheld.waiting.as_ref()?.0)).min()
    }

    /// When the oldest waiting document became dirty.
    pub(super) fn oldest_withheld_since(&self) -> Option<Instant> {
        self.withheld.values().filter_map(|withheld| Some(withheld.waiting.as_ref()?.1.since)).min()
    }

    /// Documents whose only records wait.
    pub(super) fn withheld(&self) -> usize {
        let is_elsewhere =
            |id: &DocId| self.dirty.get_in_flight(id).is_some() || self.dirty.get_pending(id).is_some();
        let waits = |(id, of): &(&DocId, &Withheld)| of.waiting.is_some() && !is_elsewhere(id);
        self.withheld.iter().filter(waits).count()
    }
}
