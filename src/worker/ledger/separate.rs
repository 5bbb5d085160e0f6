//! Folds of several records that Elasticsearch refused in place. Their records are read from the topic again, and applied one by one, so
//! that the good ones are written and each bad one is a dead letter of its own, as it was in the topic. The placement knows none of
//! these records, so that they may be cut into folds in any way (protocol, "Folding").

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Dirty, Ledger, Undeliverable, held_bytes};
use crate::base::clock::Instant;
use crate::base::ids::DocId;
use crate::core::mover::{Refusal, RetryState};
use crate::core::write::{Fold, Write};
use crate::worker::record::Record;

/// One record of a fold that was taken apart.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) dirty: Dirty,
    record: Arc<Record>,
}

/// What a refused fold was made of.
#[derive(Debug, Clone)]
pub(super) struct Parts {
    /// The record that is tried; `None` until the records were read.
    current: Option<Arc<Record>>,
    /// Those after it.
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
    /// Records to be read again, since the last call.
    pub fn take_rereads(&mut self) -> Vec<Reread> {
        std::mem::take(&mut self.rereads)
    }

    /// The fold of `id` was refused in place: it waits for its records. It is in no batch meanwhile.
    pub(super) fn separate(&mut self, id: DocId, fold: &Fold, refusal: Option<Refusal>, now: Instant) {
        let carry = RetryState { refusal, ..RetryState::default() };
        self.put_apart(id.clone(), fold.first.offset(), carry, true, now);
        let Some(apart) = self.apart.get_mut(&id) else { return };
        apart.parts = Some(Parts { current: None, rest: VecDeque::new() });
        self.due.remove(&(apart.due, id.clone()));
        self.rereads.push(Reread { id, offsets: fold.separable().unwrap_or_default() });
    }

    /// The records of a refused fold were read again, or why they could not be. Says how many are gone from the topic, which others came
    /// after. If none can be had, the fold is undeliverable as one ([`Ledger::take_rejected`]).
    pub fn reread(&mut self, id: &DocId, records: Result<Vec<(Write, Record)>, String>, now: Instant) -> u32 {
        let Some(apart) = self.apart.get_mut(id) else { return 0 };
        let Some(parts @ Parts { current: None, .. }) = &mut apart.parts else { return 0 };
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
                return 0;
            }
        };
        let gone = apart.dirty.fold.records.saturating_sub(u32::try_from(records.len()).unwrap_or(u32::MAX));
        let (since, rules) = (apart.dirty.since, &self.rules);
        parts.rest = records
            .into_iter()
            .map(|(write, record)| {
                let (id, mut fold) = Fold::from_write(write, |at| rules.map.locate(at).clone());
                if let Some(tally) = &rules.tally {
                    fold = fold.counted_by(tally);
                }
                let bytes = held_bytes(&id, &fold) + record.bytes();
                Part { dirty: Dirty { fold: Arc::new(fold), since, bytes }, record: Arc::new(record) }
            })
            .collect();
        self.bytes += parts.rest.iter().map(|part| part.dirty.bytes).sum::<usize>();
        apart.carry = RetryState::default();
        (apart.since, apart.due) = (now, now);
        self.next_part(id);
        gone
    }

    /// Goes on with the next record of a fold that was taken apart; `false` if there is none.
    pub(super) fn next_part(&mut self, id: &DocId) -> bool {
        let Some(apart) = self.apart.get_mut(id) else { return false };
        let Some(parts) = &mut apart.parts else { return false };
        let Some(Part { dirty, record }) = parts.rest.pop_front() else { return false };
        parts.current = Some(record);
        apart.carry = RetryState::default();
        apart.score = dirty.fold.first.offset();
        let done = std::mem::replace(&mut apart.dirty, dirty);
        self.bytes -= done.bytes;
        self.due.insert((apart.due, id.clone()));
        true
    }

    /// The record that the entry of `id` is, if it is one of a fold that was taken apart.
    pub(super) fn single_record(&self, id: &DocId) -> Option<Arc<Record>> {
        self.apart.get(id)?.parts.as_ref()?.current.clone()
    }
}
