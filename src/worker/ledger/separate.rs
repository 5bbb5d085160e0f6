//! Folds of several records that cannot be written as one, or that the fold before them rejects as one. Their records are read from the
//! topic again, and applied one by one, so that the good ones are written and each bad one is a dead letter of its own, as it was in the
//! topic. The placement does not know the last of them; those that it knows were decided as one fold and stay one, and the others may be
//! cut into folds in any way. (If the placement already records the rejected patches, the preceding entry is parked and the patches are
//! folded in one by one.)

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Dirty, Ledger, Undeliverable};
use crate::base::clock::Instant;
use crate::base::ids::DocId;
use crate::core::fold::Fold;
use crate::core::mover::{Carry, Refusal};
use crate::core::write::Write;
use crate::worker::record::Record;

/// One record of a split fold. The first part may instead be the preceding fold, or the records that were decided together before.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) dirty: Dirty,
    /// The record, if it is one.
    record: Option<Arc<Record>>,
}

/// The records of a fold that is taken apart.
#[derive(Debug, Clone)]
pub(super) struct Parts {
    /// Its records were read.
    are_read: bool,
    /// The record that is tried.
    current: Option<Arc<Record>>,
    /// The records after it.
    pub(super) rest: VecDeque<Part>,
}

/// Records to be read again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reread {
    /// Their document.
    pub id: DocId,
    /// Their offsets, ascending.
    pub offsets: Vec<i64>,
}

impl Ledger {
    /// Records to be read again, of `max` documents at most: those that have waited longest.
    pub fn take_rereads(&mut self, max: usize) -> Vec<Reread> {
        let max = max.min(self.rereads.len());
        self.rereads.drain(..max).collect()
    }

    /// Documents that are tried record by record.
    pub fn tried(&self) -> usize {
        let parts = self.apart.values().filter_map(|apart| apart.parts.as_ref());
        parts.filter(|parts| parts.are_read).count()
    }

    /// The fold of `id` was refused, or has rejected later patches: it waits for the records of the one or the other. It is in no batch
    /// meanwhile.
    pub(super) fn separate(&mut self, id: DocId, score: i64, carry: Carry, now: Instant) {
        self.carries.remove(&id);
        self.put_apart(id.clone(), score, carry, true, now);
        let Some(apart) = self.apart.get_mut(&id) else { return };
        let rest = apart.parts.take().map(|parts| parts.rest).unwrap_or_default();
        apart.parts = Some(Parts { are_read: false, current: None, rest });
        let offsets = apart.dirty.newest().separable().unwrap_or_default();
        self.not_due(&id);
        self.rereads.push_back(Reread { id, offsets });
    }

    /// The records of a fold were read again, or why they could not be. Returns how many are gone from the topic though
    /// later ones are not. If none can be read, the fold is undeliverable as one ([`Ledger::take_rejected`]).
    pub fn reread(&mut self, id: &DocId, records: Result<Vec<(Write, Record)>, String>, now: Instant) -> u32 {
        let apart = self.apart.get_mut(id);
        let Some(parts) = apart.and_then(|apart| apart.parts.as_mut()).filter(|parts| !parts.are_read) else {
            return 0;
        };
        parts.are_read = true;
        let gone = match records {
            Ok(records) if records.is_empty() => Err("they are gone from the topic".to_owned()),
            Ok(records) => Ok(self.try_one_by_one(id, records, now)),
            Err(why) => Err(why),
        };
        if let Err(why) = &gone {
            self.give_up(id, why);
        }
        self.withhold_rejecting();
        gone.unwrap_or_default()
    }

    /// The records cannot be read: their fold is one dead letter.
    fn give_up(&mut self, id: &DocId, why: &str) {
        let Some(apart) = self.apart.get_mut(id) else { return };
        if let Some(patches) = apart.dirty.unmerged.take() {
            let dirty = &mut apart.dirty;
            if let Err(rejected) = self.merger.absorb(&mut dirty.fold, patches) {
                self.merger.refuse(id, &mut dirty.fold, *rejected, Some(why));
            }
            self.merger.bytes -= dirty.bytes;
            dirty.bytes = dirty.held_bytes(id);
            self.merger.bytes += dirty.bytes;
            apart.parts = None;
            return self.make_due(id);
        }
        let carry = &mut *apart.carry;
        if let Some(refusal) = &mut carry.refusal
            && carry.decided.take().is_some_and(|decided| decided.base.is_some())
        {
            // A decision about its last record stands: the mover ends the entry.
            refusal.detail.push_str(&untried(&apart.dirty.fold, why));
            apart.parts = None;
            return self.make_due(id);
        }
        let mut refusal = carry.refusal.take().unwrap_or_else(|| Refusal {
            reason: "refused_by_elasticsearch",
            detail: "the fold was refused".to_owned(),
        });
        let fold = Arc::unwrap_or_clone(apart.dirty.fold.clone());
        refusal.detail.push_str(&untried(&fold, why));
        self.merger.rejected.push(Undeliverable {
            id: id.clone(),
            fold,
            refusal,
            stage: "write",
            record: None,
        });
        self.commit_apart(id);
    }

    /// Puts the records in the place of their fold.
    fn try_one_by_one(&mut self, id: &DocId, records: Vec<(Write, Record)>, now: Instant) -> u32 {
        let Some(apart) = self.apart.get_mut(id) else { return 0 };
        let Some(parts) = &mut apart.parts else { return 0 };
        let count = u32::try_from(records.len()).unwrap_or(u32::MAX);
        let gone = apart.dirty.newest().records.saturating_sub(count);
        let since = apart.dirty.since;
        let mut decided = apart.carry.decided.take();
        let mut rest: VecDeque<Part> = VecDeque::with_capacity(records.len() + 1);
        if apart.dirty.unmerged.is_some() {
            let older = Dirty::new(id, apart.dirty.fold.clone(), since);
            self.merger.bytes += older.bytes;
            rest.push_back(Part { dirty: older, record: None });
        }
        for (write, record) in records {
            let (id, mut fold) = self.merger.rules.fold(write);
            let decided = decided.as_mut().filter(|decided| fold.last <= decided.to);
            let is_decided = decided.is_some();
            if let Some(base) = decided.and_then(|decided| decided.base.as_mut())
                && let Err(refusal) = self.merger.rules.change(base, &fold)
            {
                let record = Some(Arc::new(record.clone()));
                let bad =
                    Undeliverable { id: id.clone(), fold: fold.clone(), refusal, stage: "write", record };
                self.merger.rejected.push(bad);
                fold.leave_out();
            }
            let mut dirty = Dirty::new(&id, Arc::new(fold), since);
            match rest.back_mut().filter(|_| is_decided) {
                Some(decided) => {
                    self.merger.bytes += dirty.bytes;
                    self.merger.merge(&id, &mut decided.dirty, dirty);
                    decided.record = None;
                }
                None => {
                    dirty.bytes += record.bytes();
                    self.merger.bytes += dirty.bytes;
                    rest.push_back(Part { dirty, record: Some(Arc::new(record)) });
                }
            }
        }
        rest.append(&mut parts.rest);
        parts.rest = rest;
        (apart.since, apart.due) = (now, now);
        self.next_part(id);
        gone
    }

    /// Continues with the next record of a split fold; `false` if there is none.
    pub(super) fn next_part(&mut self, id: &DocId) -> bool {
        let Some(apart) = self.apart.get_mut(id) else { return false };
        let Some(parts) = &mut apart.parts else { return false };
        let Some(Part { dirty, record }) = parts.rest.pop_front() else { return false };
        parts.current = record;
        apart.carry = Carry::default();
        // Each record begins with short pauses: the time spent on earlier ones must not lengthen them.
        apart.since = apart.due;
        apart.score = dirty.fold.first.offset();
        let done = std::mem::replace(&mut apart.dirty, dirty);
        self.merger.bytes -= done.bytes;
        self.make_due(id);
        true
    }

    /// The record behind the entry of `id`, if that is part of a split fold.
    pub(super) fn single_record(&self, id: &DocId) -> Option<Arc<Record>> {
        self.apart.get(id)?.parts.as_ref()?.current.clone()
    }
}

/// Ends the detail of a dead letter about such a fold.
pub(super) fn untried(fold: &Fold, why: &str) -> String {
    format!("; this is a fold of {} records, which could not be tried one by one: {why}", fold.records)
}
