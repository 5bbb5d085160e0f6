//! Documents that wait for the source of truth: in no batch, and holding the watermark (protocol, "Refeed").

use super::{Dirty, Ledger, Merge};
use crate::base::ids::DocId;
use crate::core::mover::{Entry, Fetched, RetryState, SourceAnswer};
use crate::worker::refeed::{FetchRequest, Held, Waiter};

/// An entry that waits for the source.
#[derive(Debug, Clone)]
pub(super) struct PendingFetches {
    score: i64,
    dirty: Dirty,
    carry: RetryState,
    question: FetchRequest,
    _waiter: Waiter,
}

/// An answer, kept until its document is done.
#[derive(Debug, Clone)]
pub(super) struct HeldFetch {
    pub(super) fetched: Fetched,
    bytes: usize,
    _held: Held,
}

impl Ledger {
    /// Requests to the source since the last call.
    pub fn take_questions(&mut self) -> Vec<FetchRequest> {
        std::mem::take(&mut self.questions)
    }

    /// Documents that wait for the source.
    pub fn asking(&self) -> usize {
        self.asking.len()
    }

    /// The source has answered. An answer that is no longer needed is dropped.
    pub fn answered(&mut self, question: &FetchRequest, said: SourceAnswer, held: Held) {
        if self.asking.get(&question.id).is_none_or(|asking| asking.question != *question) {
            return;
        }
        let bytes = match &said {
            SourceAnswer::Document(document) => document.len(),
            SourceAnswer::Gone | SourceAnswer::Unusable(_) => 0,
        };
        self.bytes += bytes;
        let fetched = Fetched { after: question.after, said };
        self.kept.insert(question.id.clone(), HeldFetch { fetched, bytes, _held: held });
        self.go_on(&question.id);
    }

    /// Removes the entry from the batches until the source has answered.
    pub(super) fn ask(&mut self, entry: Entry) {
        let Entry { id, fold, carry, .. } = entry;
        self.forget_answer(&id);
        let Some((score, dirty)) = self.withdraw(&id) else { return };
        if dirty.fold.whole_at > Some(fold.last) {
            return self.add(id, score, dirty);
        }
        let (question, waiter) = FetchRequest::new(id.clone(), dirty.fold.last);
        self.questions.push(question.clone());
        self.asking.insert(id, PendingFetches { score, dirty, carry, question, _waiter: waiter });
    }

    /// Adds a record to a waiting document, or gives it back. A record that replaces the whole document ends the wait.
    pub(super) fn take_while_asking(&mut self, id: &DocId, newer: Dirty) -> Option<Dirty> {
        let Some(asking) = self.asking.get_mut(id) else { return Some(newer) };
        let mut merge = Merge { rules: &self.rules, bytes: &mut self.bytes, rejected: &mut self.rejected };
        merge.merge(id, &mut asking.dirty, newer);
        if asking.dirty.fold.whole_at > Some(asking.question.after) {
            self.go_on(id);
        }
        None
    }

    fn go_on(&mut self, id: &DocId) {
        let Some(PendingFetches { score, dirty, carry, .. }) = self.asking.remove(id) else { return };
        if carry != RetryState::default() {
            self.carries.insert(id.clone(), carry);
        }
        self.add(id.clone(), score, dirty);
    }

    pub(super) fn forget_answer(&mut self, id: &DocId) {
        if !self.kept.is_empty()
            && let Some(kept) = self.kept.remove(id)
        {
            self.bytes -= kept.bytes;
        }
    }

    /// The lowest first offset of waiting entries.
    pub(super) fn lowest_asking(&self) -> Option<i64> {
        self.asking.values().map(|asking| asking.score).min()
    }
}
