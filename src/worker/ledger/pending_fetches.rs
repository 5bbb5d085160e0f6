//! Documents that wait for the source of truth: in no batch, and holding the watermark (protocol, "Refeed").

use super::{Dirty, Ledger};
use crate::base::ids::DocId;
use crate::core::mover::{Carry, Entry, FetchedDocument, SourceAnswer};
use crate::worker::refeed::{FetchRequest, FetchWaiter, Held};

/// An entry that waits for the source.
#[derive(Debug, Clone)]
pub(super) struct PendingFetches {
    score: i64,
    dirty: Dirty,
    carry: Carry,
    request: FetchRequest,
    _waiter: FetchWaiter,
}

/// An answer, kept until its document is done.
#[derive(Debug, Clone)]
pub(super) struct HeldFetch {
    pub(super) fetched: FetchedDocument,
    bytes: usize,
    _held: Held,
}

impl Ledger {
    /// Requests to the source since the last call.
    pub fn take_fetch_requests(&mut self) -> Vec<FetchRequest> {
        std::mem::take(&mut self.fetch_requests)
    }

    /// Documents that wait for the source.
    pub fn fetching(&self) -> usize {
        self.fetching.len()
    }

    /// The source has answered. An answer that is no longer needed is dropped.
    pub fn answered(&mut self, request: &FetchRequest, answer: SourceAnswer, held: Held) {
        if self.fetching.get(&request.id).is_none_or(|fetching| fetching.request != *request) {
            return;
        }
        let bytes = match &answer {
            SourceAnswer::Document(document) => document.len(),
            SourceAnswer::Gone | SourceAnswer::Unusable(_) => 0,
        };
        self.merger.bytes += bytes;
        let fetched = FetchedDocument { after: request.after, answer };
        self.answers.insert(request.id.clone(), HeldFetch { fetched, bytes, _held: held });
        self.resume(&request.id);
    }

    /// Removes the entry from the batches until the source has answered.
    pub(super) fn fetch(&mut self, entry: Entry) {
        let Entry { id, fold, carry, .. } = entry;
        self.forget_answer(&id);
        let Some((score, dirty)) = self.withdraw(&id) else { return };
        if dirty.fold.whole_at > Some(fold.last) {
            return self.add(id, score, dirty);
        }
        let (request, waiter) = FetchRequest::new(id.clone(), dirty.fold.last);
        self.fetch_requests.push(request.clone());
        self.fetching.insert(id, PendingFetches { score, dirty, carry, request, _waiter: waiter });
    }

    /// Adds a record to a waiting document, or gives it back. A record that replaces the whole document ends the wait.
    pub(super) fn take_while_fetching(&mut self, id: &DocId, newer: Dirty) -> Option<Dirty> {
        let Some(fetching) = self.fetching.get_mut(id) else { return Some(newer) };
        self.merger.merge(id, &mut fetching.dirty, newer);
        if fetching.dirty.fold.whole_at > Some(fetching.request.after) {
            self.resume(id);
        }
        None
    }

    fn resume(&mut self, id: &DocId) {
        let Some(PendingFetches { score, dirty, carry, .. }) = self.fetching.remove(id) else { return };
        if carry != Carry::default() {
            self.carries.insert(id.clone(), carry);
        }
        self.add(id.clone(), score, dirty);
    }

    pub(super) fn forget_answer(&mut self, id: &DocId) {
        if !self.answers.is_empty()
            && let Some(kept) = self.answers.remove(id)
        {
            self.merger.bytes -= kept.bytes;
        }
    }

    /// The lowest first offset of waiting entries.
    pub(super) fn lowest_fetching(&self) -> Option<i64> {
        self.fetching.values().map(|fetching| fetching.score).min()
    }
}
