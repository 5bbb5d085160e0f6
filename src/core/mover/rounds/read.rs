//! The rounds that read: placements that are not cached, and copies that patches and touches apply to.

use std::collections::HashSet;

use ahash::RandomState;

use super::announce::{Ahead, Announce, Announced, Confirming};
use super::{BatchState, Finished, Placed, newest_copy};
use crate::base::ids::{DocId, ShardId};
use crate::base::requests::{Get, GetOutcome, Index};
use crate::core::fold::Content;
use crate::core::invariants::inv_6_one_entry_of_a_document;
use crate::core::mover::decide::{EntryPlan, copies_needed, decide};
use crate::core::mover::{AffectedShards, Carry, Entry, MoverState, Outcome};
use crate::core::placement::{CacheSlot, KnownPlacement, Placement, PlacementFloor};

/// How an entry's placement is known, or known to be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KnownBy {
    Cache,
    Read,
    /// It is taken to be missing. Creating it will show.
    Guess,
}

/// An entry whose placement is known, or known to be missing.
#[derive(Debug, Clone)]
struct Reading {
    entry: Entry,
    known: Option<KnownPlacement>,
    by: KnownBy,
    /// Where the placement is cached, if it is.
    slot: Option<CacheSlot>,
    /// Where copies are read: each is one of the round's gets.
    shards: Vec<ShardId>,
}

impl Reading {
    fn new(state: &MoverState, entry: Entry, known: Option<KnownPlacement>, by: KnownBy) -> Self {
        let shards = copies_needed(state, &entry, known.as_ref());
        Self { entry, known, by, slot: None, shards }
    }
}

/// R1: reads the placements that are not cached.
#[derive(Debug, Clone)]
pub struct ReadPlacements {
    batch: BatchState,
    /// Those whose placement is cached, or taken to be missing.
    readings: Vec<Reading>,
    unknown: Vec<Entry>,
}

impl ReadPlacements {
    /// Begins a batch. It holds at most one entry per document (INV-6).
    pub fn begin(mut state: MoverState, entries: Vec<Entry>) -> Self {
        debug_assert_eq!(inv_6_one_entry_of_a_document(entries.iter().map(|entry| &entry.id)), Ok(()));
        let settled = Vec::with_capacity(entries.len());
        let mut readings = Vec::with_capacity(entries.len());
        let mut unknown = Vec::new();
        // All are looked up before the first is used: so the CPU waits for the memory of several at once.
        let slots: Vec<Option<CacheSlot>> = entries.iter().map(|entry| state.cache.slot(&entry.id)).collect();
        for (entry, slot) in entries.into_iter().zip(slots) {
            // A touch may concern a copy that the cached placement does not name.
            let slot = slot.filter(|_| entry.fold.touched_at.is_none());
            match slot.and_then(|slot| Some((slot, state.cache.get_at(slot)?))) {
                Some((slot, known)) => {
                    state.lookups.hits += 1;
                    let reading = Reading::new(&state, entry, Some(known), KnownBy::Cache);
                    readings.push(Reading { slot: Some(slot), ..reading });
                }
                None => {
                    state.lookups.misses += 1;
                    if is_taken_for_new(&state, &entry) {
                        readings.push(Reading::new(&state, entry, None, KnownBy::Guess));
                    } else {
                        unknown.push(entry);
                    }
                }
            }
        }
        let batch = BatchState { state, settled, edges: Vec::new(), sweeps: Vec::new() };
        Self { batch, readings, unknown }
    }

    /// The placements to read.
    pub fn gets(&self) -> Vec<Get> {
        let cache = &self.batch.state.cache;
        let get = |entry: &Entry| {
            // A touch may concern a copy that was named since.
            let since = cache.readable_since(&entry.id).filter(|_| entry.fold.touched_at.is_none());
            Get { since, ..Get::realtime(Index::Placements, entry.id.clone()) }
        };
        self.unknown.iter().map(get).collect()
    }

    /// Takes one answer per get, in order.
    pub fn answered(self, answers: Vec<GetOutcome>) -> ReadDocuments {
        let Self { mut batch, mut readings, unknown } = self;
        for (entry, answer) in unknown.into_iter().zip(answers) {
            if answer != GetOutcome::Unanswered {
                batch.state.new_documents.saw(answer == GetOutcome::Missing);
            }
            match answer {
                GetOutcome::Unanswered => batch.unanswered(entry),
                GetOutcome::Missing => readings.push(Reading::new(&batch.state, entry, None, KnownBy::Read)),
                GetOutcome::Found(found) => match Placement::from_json(&found.source) {
                    Ok(placement) => {
                        let floor = batch.state.cache.floor(&entry.id);
                        let known = KnownPlacement::new(placement, found.stamp).above(floor);
                        let slot = batch.state.cache.put_read(&entry.id, known.clone());
                        let reading = Reading::new(&batch.state, entry, Some(known), KnownBy::Read);
                        readings.push(Reading { slot, ..reading });
                    }
                    Err(error) => {
                        tracing::error!(
                            index = "placements",
                            position = %entry.fold.last,
                            %error,
                            "a placement cannot be read; its document waits until it is repaired (docs/runbooks.md)"
                        );
                        batch.start_over(entry, "unreadable_placement", Carry::default());
                    }
                },
            }
        }
        ReadDocuments { batch, readings }
    }
}

/// Whether the entry's placement is created without being read before. Only for whole documents: without a placement, nothing else
/// is decided about them, so a wrong guess ends at the create.
fn is_taken_for_new(state: &MoverState, entry: &Entry) -> bool {
    state.new_documents.are_expected()
        && matches!(entry.fold.content, Content::Index { .. })
        && entry.carry == Carry::default()
        // Else this owner has seen its placement, and the create would fail.
        && state.cache.floor(&entry.id) == PlacementFloor::default()
}

/// R1b: reads the copies that patches and touches apply to.
#[derive(Debug, Clone)]
pub struct ReadDocuments {
    batch: BatchState,
    readings: Vec<Reading>,
}

/// Entries left for the batch's next slice.
#[derive(Debug, Clone)]
pub struct Unread(Vec<Reading>);

impl ReadDocuments {
    /// Keeps the entries that need no copy, and others with about [`MoverState::max_copy_bytes`] of copies, at least
    /// one. Returns the rest, if any, for [`Finished::go_on`].
    #[must_use]
    pub fn cut(&mut self) -> Option<Unread> {
        let MoverState { copy_size, max_copy_bytes, .. } = self.batch.state;
        let mut copies = 0;
        let is_too_much = |reading: &mut Reading| {
            let is_first = copies == 0;
            copies += reading.shards.len();
            !(reading.shards.is_empty() || is_first || copy_size.of(copies) <= max_copy_bytes)
        };
        let later: Vec<Reading> = self.readings.extract_if(.., is_too_much).collect();
        (!later.is_empty()).then_some(Unread(later))
    }

    /// The copies to read.
    pub fn gets(&self) -> Vec<Get> {
        self.readings
            .iter()
            .flat_map(|reading| {
                reading
                    .shards
                    .iter()
                    .map(|shard| Get::realtime(Index::Geoshard(shard.clone()), reading.entry.id.clone()))
            })
            .collect()
    }

    /// Takes one answer per get, in order, and decides every entry.
    pub fn answered(self, answers: Vec<GetOutcome>) -> Announce {
        let Self { mut batch, readings } = self;
        let mut copy_size = batch.state.copy_size;
        let mut answers = answers.into_iter();
        // What is known is mostly in place, and what is missing is written ahead.
        let known = readings.iter().filter(|reading| reading.known.is_some()).count();
        let mut announced = Announced {
            ahead: Vec::with_capacity(readings.len() - known),
            in_place: Vec::with_capacity(known),
            ..Announced::default()
        };
        for reading in readings {
            let Reading { entry, known, by, slot, shards } = reading;
            let answers = answers.by_ref().inspect(|answer| {
                if let GetOutcome::Found(found) = answer {
                    copy_size.saw(found.source.len());
                }
            });
            let copies = shards.into_iter().zip(answers);
            let Some(copy) = newest_copy(copies) else {
                // A cached placement may name a geoshard that was deleted since, and taken out of the placement before: read anew, it
                // does not.
                batch.unanswered_placement(entry);
                continue;
            };
            // Empty if nothing is counted, and then free to clone.
            let before = known.as_ref().map(|known| known.placement.versions.clone()).unwrap_or_default();
            let touched = known.as_ref().map(AffectedShards::by).unwrap_or_default();
            let version = copy.as_ref().map(|copy| copy.version);
            let plan = decide(&batch.state, &entry, known, by == KnownBy::Read, copy);
            if let Some(version) = version.filter(|_| !plan.is_doubt()) {
                batch.state.cache.saw(&entry.id, version);
            }
            match plan {
                EntryPlan::Settle(Outcome::Again { reason, carry }) => batch.start_over(entry, reason, carry),
                EntryPlan::Settle(outcome @ Outcome::Parked { .. }) => {
                    batch.settle(entry, outcome, AffectedShards::default());
                }
                EntryPlan::Settle(Outcome::Fetch) => {
                    // A missing copy is believed only after a fresh read.
                    if entry.carry.nothing_found.is_some() {
                        batch.state.cache.forget(&entry.id);
                    }
                    batch.settle(entry, Outcome::Fetch, AffectedShards::default());
                }
                EntryPlan::Settle(outcome) => batch.done(entry, outcome, &before, touched),
                EntryPlan::Reject(refusal) => {
                    batch.settle(entry, Outcome::DeadLetter(refusal.into()), AffectedShards::default());
                }
                EntryPlan::Confirm { copy, carry } => {
                    announced.confirming.push(Confirming { entry: Entry { carry, ..entry }, copy });
                }
                EntryPlan::InPlace { known, task } => {
                    announced.in_place.push(Placed { entry, known, task, slot });
                }
                EntryPlan::WriteAhead { guard, placement, task } => {
                    let is_guess = by == KnownBy::Guess;
                    announced.ahead.push(Ahead { entry, guard, placement, task, before, is_guess });
                }
                EntryPlan::CarryOut { known, task } => {
                    announced.ready.push(Placed { entry, known, task, slot });
                }
            }
        }
        batch.state.copy_size = copy_size;
        let mut clears = std::mem::take(&mut batch.state.clears);
        if !clears.is_empty() {
            let rewritten: HashSet<&DocId, RandomState> =
                announced.ahead.iter().map(|ahead| &ahead.entry.id).collect();
            clears.retain(|clear| !rewritten.contains(&clear.id));
        }
        let sweeps = std::mem::take(&mut batch.state.sweeps);
        Announce { batch, announced, clears, sweeps }
    }
}

impl Finished {
    /// The batch's next slice, with the outcomes so far.
    pub fn go_on(self, Unread(readings): Unread) -> ReadDocuments {
        let Self { state, settled, edges, sweeps } = self;
        ReadDocuments { batch: BatchState { state, settled, edges, sweeps }, readings }
    }
}
