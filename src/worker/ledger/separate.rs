//! Folds of several records that cannot be written as one. Their records are read from the topic again, and applied one by one, so
//! that the good ones are written and each bad one is a dead letter of its own, as it was in the topic. The placement does not know
//! the last of them; those that it knows were decided as one fold and stay one, and the others may be cut into folds in any way.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Dirty, Ledger, Merge, Undeliverable, held_bytes};
use crate::base::clock::Instant;
use crate::base::ids::DocId;
use crate::core::fold::Fold;
use crate::core::mover::{Refusal, RetryState};
use crate::core::write::Write;
use crate::worker::record::Record;

/// One record of a fold that was taken apart; or, first of all, those that were decided as one before.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) dirty: Dirty,
    /// The record, if it is one.
    record: Option<Arc<Record>>,
}

/// The records of a refused fold.
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

    /// The fold of `id` was refused: it waits for its records. It is in no batch meanwhile.
    pub(super) fn separate(&mut self, id: DocId, fold: &Fold, carry: RetryState, now: Instant) {
        self.put_apart(id.clone(), fold.first.offset(), carry, true, now);
        let Some(apart) = self.apart.get_mut(&id) else { return };
        apart.parts = Some(Parts { are_read: false, current: None, rest: VecDeque::new() });
        self.not_due(&id);
        self.rereads.push_back(Reread { id, offsets: fold.separable().unwrap_or_default() });
    }

    /// The records of a refused fold were read again, or why they could not be. Returns how many are gone from the
    /// topic though later ones are not. If none can be read, the fold is undeliverable as one
    /// ([`Ledger::take_rejected`]).
    pub fn reread(&mut self, id: &DocId, records: Result<Vec<(Write, Record)>, String>, now: Instant) -> u32 {
        let Some(apart) = self.apart.get_mut(id) else { return 0 };
        let Some(parts @ Parts { are_read: false, .. }) = &mut apart.parts else { return 0 };
        let records = match records {
            Ok(records) if records.is_empty() => Err("they are gone from the topic".to_owned()),
            records => records,
        };
        let records = match records {
            Ok(records) => records,
            Err(why) => {
                let refusal = apart.carry.refusal.take().unwrap_or(Refusal {
                    reason: "refused_by_elasticsearch",
                    detail: "the fold was refused".to_owned(),
                });
                let fold = Arc::unwrap_or_clone(apart.dirty.fold.clone());
                let detail = format!(
                    "{}; this is a fold of {} records, which could not be tried one by one: {why}",
                    refusal.detail, fold.records
                );
                apart.parts = None;
                let refusal = Refusal { detail, ..refusal };
                self.rejected.push(Undeliverable {
                    id: id.clone(),
                    fold,
                    refusal,
                    stage: "write",
                    record: None,
                });
                self.commit_apart(id);
                self.withhold_rejecting();
                return 0;
            }
        };
        let gone = apart.dirty.fold.records.saturating_sub(u32::try_from(records.len()).unwrap_or(u32::MAX));
        let (since, rules) = (apart.dirty.since, &self.rules);
        let decided_to = apart.carry.decided_to;
        let mut rest: VecDeque<Part> = VecDeque::with_capacity(records.len());
        for (write, record) in records {
            let (id, fold) = rules.fold(write);
            let is_decided = decided_to.is_some_and(|decided_to| fold.last <= decided_to);
            let bytes = held_bytes(&id, &fold);
            let mut dirty = Dirty { fold: Arc::new(fold), since, bytes };
            match rest.back_mut().filter(|_| is_decided) {
                Some(decided) => {
                    self.bytes += dirty.bytes;
                    let mut merge = Merge { rules, bytes: &mut self.bytes, rejected: &mut self.rejected };
                    merge.merge(&id, &mut decided.dirty, dirty);
                    decided.record = None;
                }
                None => {
                    dirty.bytes += record.bytes();
                    self.bytes += dirty.bytes;
                    rest.push_back(Part { dirty, record: Some(Arc::new(record)) });
                }
            }
        }
        parts.rest = rest;
        parts.are_read = true;
        apart.carry = RetryState::default();
        (apart.since, apart.due) = (now, now);
        self.next_part(id);
        self.withhold_rejecting();
        gone
    }

    /// Continues with the next record of a split fold; `false` if there is none.
    pub(super) fn next_part(&mut self, id: &DocId) -> bool {
        let Some(apart) = self.apart.get_mut(id) else { return false };
        let Some(parts) = &mut apart.parts else { return false };
        let Some(Part { dirty, record }) = parts.rest.pop_front() else { return false };
        parts.current = record;
        apart.carry = RetryState::default();
        apart.score = dirty.fold.first.offset();
        let done = std::mem::replace(&mut apart.dirty, dirty);
        self.bytes -= done.bytes;
        self.make_due(id);
        true
    }

    /// The record behind the entry of `id`, if that is part of a split fold.
    pub(super) fn single_record(&self, id: &DocId) -> Option<Arc<Record>> {
        self.apart.get(id)?.parts.as_ref()?.current.clone()
    }
}
