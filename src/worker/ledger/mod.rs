//! The unfinished work of a partition: every record that was read and is not done, and the resulting watermark.
//!
//! Pure: takes records, outcomes and the time; returns entries to work on and dead letters to deliver. One ledger per
//! assignment, dropped on revocation, since the next owner reads the same records again.
//!
//! *Invariant (INV-3):* [`Ledger::watermark`] is never above the first record of anything that is pending, in flight, apart,
//! parked, waiting for the source of truth or for a dead letter, passed over for a later write, or on its way to the dead-letter topic; nor of
//! anything whose old copies are left to delete.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | records in, entries out, the watermark |
//! | `merger.rs` | folds of one document that become one |
//! | `settlement.rs` | what came of a batch |
//! | `apart.rs` | entries to be retried after a pause |
//! | `parked.rs` | entries that wait for their document's next record |
//! | `pending_fetches.rs` | documents that wait for the source of truth |
//! | `separate.rs` | refused folds whose records are tried one by one |
//! | `withheld.rs` | records that wait for a dead letter about their document |
//! | `sweeps.rs` | old copies that are left to delete |

mod apart;
mod merger;
mod parked;
mod pending_fetches;
mod separate;
mod settlement;
mod sweeps;
mod withheld;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use self::apart::Apart;
use self::merger::Merger;
use self::parked::Parked;
use self::pending_fetches::{HeldFetch, PendingFetches};
pub use self::separate::Reread;
pub use self::settlement::Settlement;
use self::sweeps::Sweeps;
use self::withheld::Withheld;
use super::budget::RECORD_OVERHEAD_BYTES;
use super::record::Record;
use crate::base::clock::Instant;
use crate::base::ids::DocId;
use crate::base::position::{Epoch, Position};
use crate::base::sabotage::{self, Sabotage};
use crate::core::dirty_set::DirtySet;
use crate::core::fold::Fold;
use crate::core::look_ahead::{Coming, LookAhead, Passage, PassedOver};
use crate::core::mover::{Carry, Entry, Refusal, Rules};
use crate::core::write::{Body, Write};
use crate::geoshard::GeoshardMap;
use crate::worker::refeed::FetchRequest;

/// The dirty set's value for a document.
#[derive(Debug, Clone)]
struct Dirty {
    /// Shared with the entry handed out, if any.
    fold: Arc<Fold>,
    /// Later patches that `fold` rejects as one. Their records are read again before it is handed out.
    unmerged: Option<Arc<Fold>>,
    /// When its first record was read.
    since: Instant,
    /// Memory cost in bytes.
    bytes: usize,
}

impl Dirty {
    fn new(id: &DocId, fold: Arc<Fold>, since: Instant) -> Self {
        let mut dirty = Self { fold, unmerged: None, since, bytes: 0 };
        dirty.bytes = dirty.held_bytes(id);
        dirty
    }

    fn held_bytes(&self, id: &DocId) -> usize {
        held_bytes(id, &self.fold) + self.unmerged.as_ref().map_or(0, |patches| held_bytes(id, patches))
    }

    /// The fold that is taken apart if its records are read again.
    fn newest(&self) -> &Fold {
        self.unmerged.as_ref().unwrap_or(&self.fold)
    }

    /// Position of its last record.
    fn last(&self) -> Position {
        self.newest().last
    }
}

/// A fold for the dead-letter topic.
#[derive(Debug, Clone, PartialEq)]
pub struct Undeliverable {
    /// The document.
    pub id: DocId,
    /// The requested write.
    pub fold: Fold,
    /// Why it was refused.
    pub refusal: Refusal,
    /// The step that refused it: `fold` or `write`.
    pub stage: &'static str,
    /// The record, if it is a single one that was read again from the topic.
    pub record: Option<Arc<Record>>,
}

impl Undeliverable {
    /// Memory cost in bytes.
    pub fn bytes(&self) -> usize {
        held_bytes(&self.id, &self.fold)
    }
}

/// See the module documentation.
#[derive(Debug, Clone)]
pub struct Ledger {
    merger: Merger,
    epoch: Epoch,
    dirty: DirtySet<DocId, Dirty>,
    parked: HashMap<DocId, Parked, ahash::RandomState>,
    /// Parked entries by the position they wait for. A position belongs to one record and so to one document; but if a
    /// producer put a key into two partitions, the other partition's position may be recorded, and two documents wait
    /// for the same number.
    parked_until: BTreeSet<(Position, DocId)>,
    carries: HashMap<DocId, Carry, ahash::RandomState>,
    /// Entries returned from a batch with an answer. Their documents are not in `dirty`.
    apart: HashMap<DocId, Apart, ahash::RandomState>,
    /// When each of those outside a batch is due.
    due: BTreeSet<(Instant, DocId)>,
    /// Records to be read again.
    rereads: VecDeque<Reread>,
    fetching: HashMap<DocId, PendingFetches, ahash::RandomState>,
    fetch_requests: Vec<FetchRequest>,
    /// Answers of the source.
    answers: HashMap<DocId, HeldFetch, ahash::RandomState>,
    sweeps: Sweeps,
    /// First offsets of dead letters in flight.
    dead_letters: BTreeMap<i64, u32>,
    /// How many of the merger's rejected folds are known to be under way.
    rejected_seen: usize,
    withheld: HashMap<DocId, Withheld, ahash::RandomState>,
    /// What later writes supersede, if the partition is far behind.
    look_ahead: Option<Box<LookAhead>>,
    next_offset: Option<i64>,
}

/// A record needs others that were passed over for a write that has not come: the topic lost it meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "offset {offset} needs records before it, which were passed over for the document's write at offset {passed_over_for}; that one is gone: \
     was the topic compacted or truncated meanwhile? Restart the worker: it reads them again"
)]
pub struct SupersedingLost {
    offset: i64,
    passed_over_for: i64,
}

impl Ledger {
    /// A partition before its first record.
    pub fn new(rules: Rules, epoch: Epoch) -> Self {
        Self {
            merger: Merger::new(rules),
            epoch,
            dirty: DirtySet::new(),
            parked: HashMap::default(),
            parked_until: BTreeSet::new(),
            carries: HashMap::default(),
            apart: HashMap::default(),
            due: BTreeSet::new(),
            rereads: VecDeque::new(),
            fetching: HashMap::default(),
            fetch_requests: Vec::new(),
            answers: HashMap::default(),
            sweeps: Sweeps::default(),
            dead_letters: BTreeMap::new(),
            rejected_seen: 0,
            withheld: HashMap::default(),
            look_ahead: None,
            next_offset: None,
        }
    }

    /// Uses these maps for all later records. Returns the position of the first such record.
    pub fn place_by(&mut self, map: Arc<GeoshardMap>, other: Option<Arc<GeoshardMap>>) -> Position {
        (self.merger.rules.map, self.merger.rules.other_map) = (map, other);
        self.next_offset.and_then(|next| Position::new(self.epoch, next)).unwrap_or(Position::NONE)
    }

    /// Takes a decoded record. A fold that it makes undeliverable (a patch that leaves its document without a location)
    /// is returned by [`Ledger::take_rejected`].
    pub fn take(&mut self, write: Write, now: Instant) {
        let offset = write.position.offset();
        let (id, fold) = self.merger.rules.fold(write);
        let dirty = Dirty::new(&id, Arc::new(fold), now);
        self.add_read(id, offset, offset, dirty);
    }

    /// The same, unless a later write is known to supersede it: then it is only owed. An old one is taken, too: `max_age`.
    pub fn take_or_pass_over(
        &mut self,
        write: Write,
        max_age: Duration,
        now: Instant,
    ) -> Result<(), SupersedingLost> {
        let Some(mut ahead) = self.look_ahead.take() else {
            self.take(write, now);
            return Ok(());
        };
        let offset = write.position.offset();
        let is_whole = matches!(write.body, Body::Index { .. } | Body::Delete);
        let (id, mut fold) = self.merger.rules.fold(write);
        let is_held = self.is_held(&id);
        let coming = Coming { id: &id, offset, targets: &fold.targets, is_whole, is_held, now, max_age };
        let passage = ahead.pass(coming);
        self.look_ahead = Some(ahead).filter(|ahead| !ahead.is_over(offset + 1));
        let score = match passage {
            Passage::Take(None) => offset,
            Passage::Take(Some(PassedOver { first, records, target })) => {
                // An offset below one that has a position has one, too.
                fold.stand_for(Position::new(self.epoch, first).unwrap_or(fold.first), records, target);
                first
            }
            Passage::PassOver => {
                self.read_up_to(offset + 1);
                return Ok(());
            }
            Passage::Lost(passed_over_for) => return Err(SupersedingLost { offset, passed_over_for }),
        };
        let dirty = Dirty::new(&id, Arc::new(fold), now);
        self.add_read(id, offset, score, dirty);
        Ok(())
    }

    /// What a reader ahead has found, which may follow what was found before.
    pub fn look_ahead(&mut self, found: LookAhead) {
        let next = self.next_offset.unwrap_or(found.start());
        match &mut self.look_ahead {
            Some(ahead) if ahead.end() == found.start() => ahead.extend(found, next),
            Some(_) => {}
            None => self.look_ahead = (!found.is_over(next)).then(|| Box::new(found)),
        }
    }

    /// By what records are passed over for later ones.
    pub fn ahead(&self) -> Option<&LookAhead> {
        self.look_ahead.as_deref()
    }

    /// Whether anything of the document is unfinished.
    fn is_held(&self, id: &DocId) -> bool {
        self.dirty.get_pending(id).is_some()
            || self.dirty.get_in_flight(id).is_some()
            || self.apart.contains_key(id)
            || self.parked.contains_key(id)
            || self.fetching.contains_key(id)
            || self.withheld.contains_key(id)
    }

    /// Adds the record at `offset`; `score`: the first one that it stands for.
    fn add_read(&mut self, id: DocId, offset: i64, score: i64, dirty: Dirty) {
        self.merger.bytes += dirty.bytes;
        let mut dirty = Some(dirty);
        if !self.fetching.is_empty() {
            dirty = dirty.and_then(|dirty| self.take_while_fetching(&id, dirty));
        }
        if !self.apart.is_empty() {
            dirty = dirty.and_then(|dirty| self.take_while_apart(&id, score, dirty));
        }
        match dirty {
            Some(dirty) if self.parked.is_empty() => self.add(id, score, dirty),
            Some(dirty) => self.take_while_parked(id, score, dirty),
            None => {}
        }
        self.read_up_to(offset + 1);
        self.withhold_rejecting();
    }

    /// The partition was read up to `next_offset`, including bad records and transaction markers.
    pub fn read_up_to(&mut self, next_offset: i64) {
        if self.next_offset.is_some_and(|known| known >= next_offset) {
            return;
        }
        self.next_offset = Some(next_offset);
        if let Some(last_read) = Position::new(self.epoch, next_offset - 1)
            && self.parked_until.first().is_some_and(|(until, _)| *until <= last_read)
        {
            self.release_passed(last_read);
        }
    }

    /// The record at `offset` is being dead-lettered: the watermark waits for [`Ledger::delivered`].
    pub fn dead_letter_queued(&mut self, offset: i64) {
        *self.dead_letters.entry(offset).or_default() += 1;
    }

    /// The dead letter whose first record is at `offset` was acknowledged, with its document, if that is known.
    pub fn delivered(&mut self, offset: i64, id: Option<&DocId>) {
        let Some(count) = self.dead_letters.get_mut(&offset) else { return };
        *count -= 1;
        if *count == 0 {
            self.dead_letters.remove(&offset);
        }
        if let Some(id) = id {
            self.release_withheld(id, offset);
        }
    }

    /// Hands out the oldest dirty entries: unfinished ones of earlier batches that are due `now`, and new ones up to
    /// `max_documents` and about `max_bytes` in all, but at least one.
    pub fn hand_out(&mut self, max_documents: usize, max_bytes: usize, now: Instant) -> Vec<Entry> {
        let rejected_before = self.merger.rejected.len();
        let mut entries =
            if self.due.is_empty() { Vec::new() } else { self.hand_out_apart(max_documents, now) };
        let held: usize = self.dirty.in_flight().map(|entry| entry.value.bytes).sum();
        let held_apart: usize = entries.iter().map(|entry| held_bytes(&entry.id, &entry.fold)).sum();
        let mut budget = max_bytes.saturating_sub(held + held_apart);
        let affordable = self
            .dirty
            .pending()
            .take(max_documents)
            .take_while(|entry| {
                let fits = entry.value.bytes <= budget;
                budget = budget.saturating_sub(entry.value.bytes);
                fits
            })
            .count()
            .max(1);
        let room = max_documents.max(1) - entries.len();
        let n = (self.dirty.in_flight_len() + affordable).min(room);
        entries.reserve(n);
        let (carries, answers) = (&self.carries, &self.answers);
        let handed_out = self.dirty.reserve(n, false, |id, older, newer| self.merger.merge(id, older, newer));
        let mut unmerged = Vec::new();
        entries.extend(handed_out.filter_map(|entry| {
            if entry.value.unmerged.is_some() {
                unmerged.push((entry.key.clone(), entry.score));
                return None;
            }
            Some(Entry {
                id: entry.key.clone(),
                fold: entry.value.fold.clone(),
                carry: carries.get(entry.key).cloned().unwrap_or_default(),
                fetched: answers.get(entry.key).map(|answer| Box::new(answer.fetched.clone())),
            })
        }));
        for (id, score) in unmerged {
            self.separate(id, score, Carry::default(), now);
        }
        if self.merger.rejected.len() > rejected_before {
            self.take_back_rejecting(&mut entries, rejected_before);
        }
        entries
    }

    /// Folds that a merge made undeliverable since the last call. The watermark already waits for them.
    pub fn take_rejected(&mut self) -> Vec<Undeliverable> {
        self.withhold_rejecting();
        let rejected = std::mem::take(&mut self.merger.rejected);
        self.rejected_seen = 0;
        for Undeliverable { fold, .. } in &rejected {
            self.dead_letter_queued(fold.first.offset());
        }
        rejected
    }

    /// The offset below which everything is done; `None` before the first record.
    pub fn watermark(&self) -> Option<i64> {
        let is_parked_owed = !sabotage::is(Sabotage::CommitAboveParked);
        let parked = self.parked.values().filter(|_| is_parked_owed).map(|parked| parked.score).min();
        let dirty = if sabotage::is(Sabotage::CommitAboveFailed) {
            self.dirty.lowest_pending()
        } else {
            self.dirty.lowest_score()
        };
        let dead_letters = self.dead_letters.first_key_value().map(|(offset, _)| *offset);
        let rejected = self.merger.rejected.iter().map(|rejected| rejected.fold.first.offset()).min();
        let apart =
            [self.lowest_apart(), self.lowest_fetching(), self.lowest_withheld(), self.lowest_swept()];
        let passed_over = self.look_ahead.as_ref().and_then(|ahead| ahead.first_owed());
        let oldest_owed =
            [dirty, parked, dead_letters, rejected, passed_over].into_iter().chain(apart).flatten().min();
        oldest_owed.or(self.next_offset)
    }

    /// When the oldest document that waits only for its batch or an answer became dirty: this limits reading. Parked
    /// entries wait for a record; entries apart may never settle, and hold only the watermark.
    pub fn oldest_since(&self) -> Option<Instant> {
        let first = |mut entries: crate::core::dirty_set::Entries<'_, DocId, Dirty>| {
            entries.next().map(|e| e.value.since)
        };
        [first(self.dirty.pending()), first(self.dirty.in_flight())].into_iter().flatten().min()
    }

    /// When the oldest workable document became dirty, entries apart included; for metrics.
    pub fn oldest_owed_since(&self) -> Option<Instant> {
        let apart = self.apart.values().map(|apart| apart.dirty.since);
        let passed_over = self.look_ahead.as_ref().and_then(|ahead| ahead.owed_since());
        apart.chain(self.oldest_withheld_since()).chain(self.oldest_since()).chain(passed_over).min()
    }

    /// When the oldest document not handed out became dirty.
    pub fn pending_since(&self) -> Option<Instant> {
        self.dirty.pending().next().map(|entry| entry.value.since)
    }

    /// Offsets read from the oldest document not handed out on.
    pub fn read_since_pending(&self) -> u64 {
        let read = self.next_offset.zip(self.dirty.lowest_pending()).map(|(next, first)| next - first);
        read.and_then(|read| u64::try_from(read).ok()).unwrap_or(0)
    }

    /// The offset after the last record read.
    pub fn next_offset(&self) -> Option<i64> {
        self.next_offset
    }

    /// Documents not handed out yet.
    pub fn pending(&self) -> usize {
        self.dirty.pending_len()
    }

    /// Documents handed out and not done.
    pub fn in_flight(&self) -> usize {
        self.dirty.in_flight_len() + self.apart.keys().filter(|id| !self.is_held_apart(id)).count()
    }

    /// Whether an entry of an earlier batch only lacks an answer.
    pub fn has_unanswered(&self) -> bool {
        self.dirty.in_flight_len() > 0
    }

    /// All dirty documents.
    pub fn documents(&self) -> usize {
        self.dirty.len() + self.apart.len() + self.parked.len() + self.fetching.len() + self.withheld()
    }

    /// Bytes held by all folds.
    pub fn bytes(&self) -> usize {
        self.merger.bytes
    }

    /// Whether any dirty document can be worked on.
    pub fn has_work(&self) -> bool {
        !self.dirty.is_empty() || self.apart.keys().any(|id| !self.is_held_apart(id))
    }

    /// Whether any of those may be handed out `now`.
    pub fn has_due_work(&self, now: Instant) -> bool {
        !self.dirty.is_empty() || self.next_retry().is_some_and(|due| due <= now)
    }

    fn add(&mut self, id: DocId, score: i64, dirty: Dirty) {
        if self.is_withheld(&id) {
            return self.wait(&id, score, dirty);
        }
        self.add_pending(id, score, dirty);
    }

    fn add_pending(&mut self, id: DocId, score: i64, dirty: Dirty) {
        self.dirty.add(id, score, dirty, |id, older, newer| self.merger.merge(id, older, newer));
    }

    fn commit(&mut self, id: &DocId) {
        if !self.apart.is_empty() && self.commit_apart(id) {
            return;
        }
        if let Some(done) = self.dirty.commit_one(id) {
            self.merger.bytes -= done.bytes;
        }
    }
}

/// Memory cost of a fold: a delete has no content, but a million of them are not free.
fn held_bytes(id: &DocId, fold: &Fold) -> usize {
    id.as_str().len() + fold.bytes() + RECORD_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests;
