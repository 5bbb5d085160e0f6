//! Entries that returned from a batch for a reason other than a missing answer: a conflict, a missing copy, a refusal,
//! an unreadable placement. They leave the dirty set, hold the watermark, and join a batch again after pauses that grow
//! with the time since their first return. So a stuck entry neither stops its partition's reading nor shrinks each
//! batch.

use std::time::Duration;

use super::separate::Parts;
use super::{Dirty, Ledger};
use crate::base::clock::Instant;
use crate::base::ids::DocId;
use crate::core::mover::{Carry, Entry};

/// The longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// A pause is this fraction of the time since the first return: the first retry is immediate, and each pause is longer
/// by this fraction than the one before.
const PAUSE_FRACTION: u32 = 4;

/// An entry that waits longer drops its fetched answer, which counts against `source.max_bytes`. It can fetch again.
const ANSWER_IS_KEPT: Duration = Duration::from_secs(1);

/// An entry outside the dirty set until it is done.
#[derive(Debug, Clone)]
pub(super) struct Apart {
    pub(super) score: i64,
    pub(super) dirty: Dirty,
    pub(super) carry: Carry,
    /// Its first return.
    pub(super) since: Instant,
    /// When it may join a batch again. Listed in [`Ledger::due`] under this time, unless it is in a batch.
    pub(super) due: Instant,
    /// The document's records since then, and the offset of the first.
    pub(super) behind: Option<(i64, Dirty)>,
    /// The remaining records of a refused fold; `None` for other entries.
    pub(super) parts: Option<Parts>,
}

impl Ledger {
    /// When the next returned entry is due, apart from those in a batch.
    pub fn next_retry(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Keeps a returned entry outside the dirty set until it is due. An unanswered one stays: nothing was learnt that
    /// would justify a pause.
    pub(super) fn put_apart(
        &mut self,
        id: DocId,
        score: i64,
        carry: Carry,
        was_answered: bool,
        now: Instant,
    ) {
        let apart = match self.apart.remove(&id) {
            Some(apart) => {
                let since = if was_answered { apart.since } else { now };
                let pause = pause(now, since);
                if pause > ANSWER_IS_KEPT {
                    self.forget_answer(&id);
                }
                Apart { carry, since, due: now + pause, ..apart }
            }
            None => {
                let Some(dirty) = self.dirty.commit_one(&id) else { return };
                let behind = self.dirty.withdraw(&id, |id, older, newer| self.merger.merge(id, older, newer));
                let waiting = self.put_behind(&id);
                let behind = self.one_after_the_other(&id, behind, waiting);
                Apart { score, dirty, carry, since: now, due: now, behind, parts: None }
            }
        };
        self.apart.insert(id.clone(), apart);
        self.make_due(&id);
    }

    /// Adds a record to a document's returned entry; gives it back if there is none.
    pub(super) fn take_while_apart(&mut self, id: &DocId, offset: i64, newer: Dirty) -> Option<Dirty> {
        let Some(apart) = self.apart.get_mut(id) else { return Some(newer) };
        match &mut apart.behind {
            None => apart.behind = Some((offset, newer)),
            Some((_, behind)) => {
                self.merger.merge(id, behind, newer);
            }
        }
        None
    }

    /// Hands out due entries, up to half of a batch. Newer records are folded in, unless the entry was refused: the
    /// next batch ends a refused entry, and a grown fold would be refused again each time while the watermark waits.
    pub(super) fn hand_out_apart(&mut self, max_documents: usize, now: Instant) -> Vec<Entry> {
        let mut entries = Vec::new();
        while entries.len() < max_documents.div_ceil(2)
            && self.due.first().is_some_and(|(at, _)| *at <= now)
            && let Some((_, id)) = self.due.pop_first()
        {
            // A dead letter may be in flight about the records behind it.
            let is_withheld = self.is_withheld(&id);
            let Some(apart) = self.apart.get_mut(&id) else { continue };
            if !is_withheld
                && apart.carry.refusal.is_none()
                && apart.parts.is_none()
                && let Some((_, newer)) = apart.behind.take()
            {
                self.merger.merge(&id, &mut apart.dirty, newer);
                if apart.dirty.unmerged.is_some() {
                    let score = apart.score;
                    self.separate(id, score, Carry::default(), now);
                    continue;
                }
            }
            entries.push(Entry {
                fold: apart.dirty.fold.clone(),
                carry: apart.carry.clone(),
                fetched: self.answers.get(&id).map(|answer| Box::new(answer.fetched.clone())),
                id,
            });
        }
        entries
    }

    /// The entry is done: makes the next record of its split fold due, or else the newer records of its document.
    /// `false` if there is no such entry.
    pub(super) fn commit_apart(&mut self, id: &DocId) -> bool {
        if self.next_part(id) {
            return true;
        }
        let Some(Apart { dirty, due, behind, .. }) = self.apart.remove(id) else { return false };
        self.due.remove(&(due, id.clone()));
        self.merger.bytes -= dirty.bytes;
        if let Some((score, behind)) = behind {
            self.add(id.clone(), score, behind);
        }
        true
    }

    /// Removes a document from the batches: returns the offset of its first record, and all its records as one fold.
    pub(super) fn withdraw(&mut self, id: &DocId) -> Option<(i64, Dirty)> {
        let waiting = self.take_waiting(id);
        let Some(Apart { score, mut dirty, due, behind, parts, .. }) = self.apart.remove(id) else {
            let dirty = self.dirty.withdraw(id, |id, older, newer| self.merger.merge(id, older, newer));
            return self.one_after_the_other(id, dirty, waiting);
        };
        self.due.remove(&(due, id.clone()));
        let parts = parts.into_iter().flat_map(|parts| parts.rest).map(|part| part.dirty);
        for newer in parts.chain(behind.map(|(_, newer)| newer)) {
            self.merger.merge(id, &mut dirty, newer);
        }
        Some((score, dirty))
    }

    pub(super) fn one_after_the_other(
        &mut self,
        id: &DocId,
        older: Option<(i64, Dirty)>,
        newer: Option<(i64, Dirty)>,
    ) -> Option<(i64, Dirty)> {
        match (older, newer) {
            (Some((score, mut older)), Some((_, newer))) => {
                self.merger.merge(id, &mut older, newer);
                Some((score, older))
            }
            (one, other) => one.or(other),
        }
    }

    /// The lowest first offset of what is apart.
    pub(super) fn lowest_apart(&self) -> Option<i64> {
        self.apart.values().map(|apart| apart.score).min()
    }
}

fn pause(now: Instant, since: Instant) -> Duration {
    (now.since(since) / PAUSE_FRACTION).min(MAX_PAUSE)
}
