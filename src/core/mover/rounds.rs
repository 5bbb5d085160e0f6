//! A batch of entries as a chain of types, one per round. Each returns the operations of its round; taking their
//! answers yields the next type. A batch that is all in place has no operations after [`Announce`].
//!
//! [`ReadPlacements`] → [`ReadDocuments`] → [`Announce`] → [`WriteDocuments`] → [`FindLastCopy`] → [`CleanUp`] →
//! [`Finished`]

use std::collections::HashSet;

use super::counting::{Change, History};
use super::decide::{
    Copy, Plan, Task, again_outcome, copies_needed, decide, may_be_separated, new_placement, separated,
};
use super::{
    AffectedShards, CONFIRMED_COPY, Clear, Done, Entry, MoverState, Outcome, Refusal, RetryState, SET_BACK,
    STALE_COPY, Settled, SourceAnswer, Sweep, Swept, UNANSWERED,
};
use crate::base::ids::{DocId, ShardId};
use crate::base::position::Position;
use crate::base::requests::{BulkOp, Get, Index, WriteCondition};
use crate::base::requests::{BulkOutcome, GetOutcome};
use crate::base::sabotage::{self, Sabotage};
use crate::core::invariants::inv_6_one_entry_of_a_document;
use crate::core::placement::{Known, Placement};

/// State that a batch carries through its rounds.
#[derive(Debug, Clone)]
struct BatchState {
    state: MoverState,
    settled: Vec<Settled>,
    edges: Vec<Change>,
    sweeps: Vec<(Sweep, Swept)>,
}

impl BatchState {
    fn settle(&mut self, entry: Entry, outcome: Outcome, touched: AffectedShards) {
        self.settled.push(Settled { entry, outcome, touched });
    }

    /// Finishes an entry, whose document's placement has this history.
    fn done(&mut self, entry: Entry, outcome: Outcome, versions: &History, touched: AffectedShards) {
        self.edges.extend(self.state.counting().edges(versions));
        self.settle(entry, outcome, touched);
    }

    /// Back to step 1 with a fresh read of the placement.
    fn start_over(&mut self, entry: Entry, reason: &'static str, carry: RetryState) {
        self.state.cache.forget(&entry.id);
        self.settle(entry, again_outcome(reason, carry), AffectedShards::default());
    }

    fn unanswered(&mut self, entry: Entry) {
        // Nothing was learnt: the next attempt keeps its state.
        let carry = entry.carry.clone();
        self.settle(entry, again_outcome(UNANSWERED, carry), AffectedShards::default());
    }

    /// The same, where the placement may have been written, or may be out of date.
    fn unanswered_placement(&mut self, entry: Entry) {
        self.state.cache.forget(&entry.id);
        self.unanswered(entry);
    }
}

/// Number of the round's answers that belong to one entry.
#[derive(Debug, Clone)]
struct Reading {
    entry: Entry,
    known: Option<Known>,
    fresh: bool,
    shards: Vec<ShardId>,
}

/// R1: reads the placements that are not cached.
#[derive(Debug, Clone)]
pub struct ReadPlacements {
    batch: BatchState,
    known: Vec<(Entry, Known)>,
    unknown: Vec<Entry>,
}

impl ReadPlacements {
    /// Begins a batch. It holds at most one entry per document (INV-6).
    pub fn begin(mut state: MoverState, entries: Vec<Entry>) -> Self {
        debug_assert_eq!(inv_6_one_entry_of_a_document(entries.iter().map(|entry| &entry.id)), Ok(()));
        let settled = Vec::with_capacity(entries.len());
        let mut known = Vec::with_capacity(entries.len());
        let mut unknown = Vec::new();
        for entry in entries {
            // A touch may concern a copy that the cached placement does not name.
            let may_be_cached = entry.fold.touched_at.is_none();
            match state.cache.get(&entry.id).filter(|_| may_be_cached) {
                Some(placement) => known.push((entry, placement)),
                None => unknown.push(entry),
            }
        }
        state.lookups.hits += known.len() as u64;
        state.lookups.misses += unknown.len() as u64;
        let batch = BatchState { state, settled, edges: Vec::new(), sweeps: Vec::new() };
        Self { batch, known, unknown }
    }

    /// The placements to read.
    pub fn gets(&self) -> Vec<Get> {
        self.unknown.iter().map(|entry| Get { index: Index::Placements, id: entry.id.clone() }).collect()
    }

    /// Takes one answer per get, in order.
    pub fn answered(mut self, answers: Vec<GetOutcome>) -> ReadDocuments {
        let mut readings: Vec<Reading> = Vec::with_capacity(self.known.len() + self.unknown.len());
        let add =
            |readings: &mut Vec<Reading>, state: &MoverState, entry: Entry, known: Option<Known>, fresh| {
                let shards = copies_needed(state, &entry, known.as_ref());
                readings.push(Reading { entry, known, fresh, shards });
            };
        for (entry, known) in self.known {
            add(&mut readings, &self.batch.state, entry, Some(known), false);
        }
        for (entry, answer) in self.unknown.into_iter().zip(answers) {
            match answer {
                GetOutcome::Unanswered => self.batch.unanswered(entry),
                GetOutcome::Missing => add(&mut readings, &self.batch.state, entry, None, true),
                GetOutcome::Found(found) => match Placement::from_json(&found.source) {
                    Ok(placement) => {
                        let floor = self.batch.state.cache.floor(&entry.id);
                        let known = Known::new(placement, found.stamp).above(floor);
                        self.batch.state.cache.put(&entry.id, known.clone());
                        add(&mut readings, &self.batch.state, entry, Some(known), true);
                    }
                    Err(error) => {
                        tracing::error!(
                            index = "placements",
                            position = %entry.fold.last,
                            %error,
                            "a placement cannot be read; its document waits until it is repaired (docs/runbooks.md)"
                        );
                        self.batch.start_over(entry, "unreadable_placement", RetryState::default());
                    }
                },
            }
        }
        ReadDocuments { batch: self.batch, readings }
    }
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
        let fits = |reading: &Reading| {
            let is_first = copies == 0;
            copies += reading.shards.len();
            reading.shards.is_empty() || is_first || copy_size.of(copies) <= max_copy_bytes
        };
        let (now, later) = std::mem::take(&mut self.readings).into_iter().partition(fits);
        self.readings = now;
        let later: Vec<Reading> = later;
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
                    .map(|shard| Get { index: Index::Geoshard(shard.clone()), id: reading.entry.id.clone() })
            })
            .collect()
    }

    /// Takes one answer per get, in order, and decides every entry.
    pub fn answered(self, answers: Vec<GetOutcome>) -> Announce {
        let Self { mut batch, readings } = self;
        let mut copy_size = batch.state.copy_size;
        let mut answers = answers.into_iter();
        let mut announced =
            Announced { in_place: Vec::with_capacity(readings.len()), ..Announced::default() };
        for reading in readings {
            let Reading { entry, known, fresh, shards } = reading;
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
            let plan = decide(&batch.state, &entry, known, fresh, copy);
            if let Some(version) = version.filter(|_| !plan.is_doubt()) {
                batch.state.cache.saw(&entry.id, version);
            }
            match plan {
                Plan::Settle(Outcome::Again { reason, carry }) => batch.start_over(entry, reason, carry),
                Plan::Settle(outcome @ Outcome::Parked { .. }) => {
                    batch.settle(entry, outcome, AffectedShards::default());
                }
                Plan::Settle(Outcome::Fetch) => {
                    // A missing copy is believed only after a fresh read.
                    if entry.carry.nothing_found.is_some() {
                        batch.state.cache.forget(&entry.id);
                    }
                    batch.settle(entry, Outcome::Fetch, AffectedShards::default());
                }
                Plan::Settle(outcome) => batch.done(entry, outcome, &before, touched),
                Plan::Reject(refusal) => {
                    batch.settle(entry, Outcome::DeadLetter(refusal), AffectedShards::default());
                }
                Plan::Confirm { copy, carry } => {
                    announced.confirming.push(Confirming { entry: Entry { carry, ..entry }, copy });
                }
                Plan::InPlace { known, task } => announced.in_place.push(Placed { entry, known, task }),
                Plan::WriteAhead { guard, placement, task } => {
                    announced.ahead.push(Ahead { entry, guard, placement, task, before });
                }
                Plan::CarryOut { known, task } => announced.ready.push(Placed { entry, known, task }),
            }
        }
        batch.state.copy_size = copy_size;
        let rewritten: HashSet<&DocId> = announced.ahead.iter().map(|ahead| &ahead.entry.id).collect();
        let mut clears = std::mem::take(&mut batch.state.clears);
        clears.retain(|clear| !rewritten.contains(&clear.id));
        Announce { batch, announced, clears }
    }
}

/// The newest copy found; `None` if a read was not answered.
fn newest_copy(copies: impl Iterator<Item = (ShardId, GetOutcome)>) -> Option<Option<Copy>> {
    let mut newest: Option<Copy> = None;
    let mut all_answered = true;
    for (shard, answer) in copies {
        match answer {
            GetOutcome::Unanswered => all_answered = false,
            GetOutcome::Missing => {}
            GetOutcome::Found(found) => {
                let copy = Copy::new(shard, found);
                if newest.as_ref().is_none_or(|best| best.version < copy.version) {
                    newest = Some(copy);
                }
            }
        }
    }
    all_answered.then_some(newest)
}

/// A placement about to be written.
#[derive(Debug, Clone)]
struct Ahead {
    entry: Entry,
    guard: WriteCondition,
    placement: Placement,
    task: Task,
    /// The placement's history before this write.
    before: History,
}

impl Ahead {
    fn guard(&self) -> WriteCondition {
        if sabotage::is(Sabotage::ExternalVersion) {
            return WriteCondition::External(self.placement.pos);
        }
        self.guard
    }

    /// Writes sent before the placement under a sabotage; empty otherwise. Their answers are ignored.
    fn too_early(&self) -> Vec<BulkOp> {
        let Self { entry, placement, task, .. } = self;
        if sabotage::is(Sabotage::DeleteFirst) {
            return deletes(&entry.id, &placement.leftovers, task.sweep_at).collect();
        }
        if sabotage::is(Sabotage::WriteAheadBeside) {
            return document(&entry.id, entry.fold.last, placement, task).into_iter().collect();
        }
        Vec::new()
    }
}

/// Writes the document into the placement's geoshard; `None` if there is nothing to write.
fn document(id: &DocId, at: Position, placement: &Placement, task: &Task) -> Option<BulkOp> {
    Some(BulkOp::Index {
        index: Index::Geoshard(placement.shard.clone()?),
        id: id.clone(),
        guard: WriteCondition::External(at),
        source: task.write.clone()?,
    })
}

/// One delete per geoshard.
fn deletes(id: &DocId, shards: &[ShardId], version: Position) -> impl Iterator<Item = BulkOp> {
    shards.iter().map(move |shard| BulkOp::Delete {
        index: Index::Geoshard(shard.clone()),
        id: id.clone(),
        version,
    })
}

/// An entry with a written placement.
#[derive(Debug, Clone)]
struct Placed {
    entry: Entry,
    known: Known,
    task: Task,
}

impl Placed {
    fn document(&self) -> Option<BulkOp> {
        document(&self.entry.id, self.entry.fold.last, &self.known.placement, &self.task)
    }

    fn done(self, batch: &mut BatchState, outcome: Outcome) {
        batch.done(self.entry, outcome, &self.known.placement.versions, AffectedShards::by(&self.known));
    }
}

#[derive(Debug, Clone, Default)]
struct Announced {
    ahead: Vec<Ahead>,
    in_place: Vec<Placed>,
    ready: Vec<Placed>,
    confirming: Vec<Confirming>,
}

/// A copy older than expected, to be rewritten unchanged.
#[derive(Debug, Clone)]
struct Confirming {
    entry: Entry,
    copy: Copy,
}

impl Confirming {
    fn op(&self) -> BulkOp {
        BulkOp::Index {
            index: Index::Geoshard(self.copy.shard.clone()),
            id: self.entry.id.clone(),
            guard: WriteCondition::ExternalOrEqual(self.copy.version),
            source: self.copy.source.clone(),
        }
    }

    /// Back to step 1 with the result.
    fn answered(self, answer: BulkOutcome, batch: &mut BatchState) {
        let Self { entry, copy } = self;
        let mut carry = entry.carry.clone();
        let Some(doubt) = &mut carry.doubt else { return batch.start_over(entry, STALE_COPY, carry) };
        let (found, at_least) = (copy.version, doubt.at_least);
        match answer {
            // If its geoshard no longer accepts the document, a newer copy can be neither proved nor excluded.
            BulkOutcome::Done { .. } | BulkOutcome::Refused(_) => {
                tracing::warn!(
                    position = %entry.fold.last,
                    %found,
                    expected = %at_least,
                    "a document's newest copy is older than expected; continuing from it (docs/operations.md, \"Metrics\")"
                );
                doubt.newest = Some((copy.shard, copy.version));
                batch.start_over(entry, CONFIRMED_COPY, carry);
            }
            BulkOutcome::Conflict | BulkOutcome::NotFound => {
                tracing::warn!(
                    position = %entry.fold.last,
                    %found,
                    expected = %at_least,
                    "an elasticsearch node answers reads from an old state; answer ignored (docs/operations.md, \"Metrics\")"
                );
                doubt.newest = None;
                batch.start_over(entry, STALE_COPY, carry);
            }
            BulkOutcome::Unanswered => batch.start_over(entry, UNANSWERED, carry),
        }
    }
}

/// R2: write-aheads, documents in place, and clears of earlier batches.
#[derive(Debug, Clone)]
pub struct Announce {
    batch: BatchState,
    announced: Announced,
    clears: Vec<Clear>,
}

impl Announce {
    /// Write-aheads, then documents in place, then clears, then copies that are in doubt.
    pub fn ops(&self) -> Vec<BulkOp> {
        let ahead = self.announced.ahead.iter().map(|ahead| BulkOp::Index {
            index: Index::Placements,
            id: ahead.entry.id.clone(),
            guard: ahead.guard(),
            source: ahead.placement.to_json(),
        });
        let in_place = self.announced.in_place.iter().filter_map(Placed::document);
        let clears = self.clears.iter().map(|clear| BulkOp::Index {
            index: Index::Placements,
            id: clear.id.clone(),
            guard: WriteCondition::Unchanged(clear.stamp),
            source: clear.placement.to_json(),
        });
        let too_early = self.announced.ahead.iter().flat_map(Ahead::too_early);
        let confirming = self.announced.confirming.iter().map(Confirming::op);
        ahead.chain(in_place).chain(clears).chain(confirming).chain(too_early).collect()
    }

    /// Takes one answer per operation, in order.
    pub fn answered(self, answers: Vec<BulkOutcome>) -> WriteDocuments {
        let Self { mut batch, announced, clears } = self;
        let mut answers = answers.into_iter();
        let mut placed = announced.ready;
        for (ahead, answer) in announced.ahead.into_iter().zip(answers.by_ref()) {
            let Ahead { entry, placement, task, before, .. } = ahead;
            match answer {
                BulkOutcome::Done { stamp: Some(stamp) } => {
                    let known = Known::new(placement, stamp);
                    batch.state.cache.put(&entry.id, known.clone());
                    placed.push(Placed { entry, known, task });
                }
                // Perhaps our own write, executed by a request whose answer was lost: the fresh read finds and resumes
                // it.
                BulkOutcome::Done { stamp: None } | BulkOutcome::Conflict | BulkOutcome::NotFound => {
                    batch.start_over(entry, "placement_conflict", RetryState::default());
                }
                BulkOutcome::Refused(error) => {
                    let refusal = Refusal::by_elasticsearch(&error);
                    batch.done(entry, Outcome::DeadLetter(refusal), &before, AffectedShards::default());
                }
                BulkOutcome::Unanswered => batch.unanswered_placement(entry),
            }
        }
        let mut refused = Vec::new();
        for (placed, answer) in announced.in_place.into_iter().zip(answers.by_ref()) {
            if matches!(answer, BulkOutcome::Done { .. } | BulkOutcome::Conflict) {
                batch.state.cache.saw(&placed.entry.id, placed.entry.fold.last);
            }
            let outcome = match answer {
                BulkOutcome::Done { .. } => placed.task.then.clone(),
                BulkOutcome::Conflict | BulkOutcome::NotFound => Outcome::Done(Done::AlreadyApplied),
                BulkOutcome::Refused(error)
                    if may_be_separated(&batch.state, &placed.entry, Some(&placed.known)) =>
                {
                    let again = separated(Refusal::by_elasticsearch(&error), Some(&placed.known));
                    batch.settle(placed.entry, again, AffectedShards::default());
                    continue;
                }
                BulkOutcome::Refused(error) if batch.state.counting().records_refusals() => {
                    refused.push((placed, Refusal::by_elasticsearch(&error)));
                    continue;
                }
                BulkOutcome::Refused(error) => Outcome::DeadLetter(Refusal::by_elasticsearch(&error)),
                BulkOutcome::Unanswered => {
                    batch.unanswered(placed.entry);
                    continue;
                }
            };
            if sabotage::is(Sabotage::InPlaceHasNoEdges) {
                let touched = AffectedShards::by(&placed.known);
                batch.settle(placed.entry, outcome, touched);
            } else {
                placed.done(&mut batch, outcome);
            }
        }
        for (clear, answer) in clears.into_iter().zip(answers.by_ref()) {
            match answer {
                BulkOutcome::Done { stamp: Some(stamp) } => {
                    batch.state.cache.put(&clear.id, Known::new(clear.placement, stamp));
                }
                // A clear may fail or never happen; but the cached placement may now be outdated.
                _ => batch.state.cache.forget(&clear.id),
            }
        }
        for (confirming, answer) in announced.confirming.into_iter().zip(answers) {
            confirming.answered(answer, &mut batch);
        }
        WriteDocuments::new(batch, placed, refused)
    }
}

/// R3: writes the documents whose placement is written.
#[derive(Debug, Clone)]
pub struct WriteDocuments {
    batch: BatchState,
    writing: Vec<Placed>,
    /// Nothing to write: continue with the deletes.
    written: Vec<Placed>,
    /// Refused in place, with counting: continue with the last good copy.
    refused: Vec<(Placed, Refusal)>,
}

impl WriteDocuments {
    fn new(batch: BatchState, placed: Vec<Placed>, refused: Vec<(Placed, Refusal)>) -> Self {
        let (writing, written) = placed.into_iter().partition(|placed| placed.document().is_some());
        Self { batch, writing, written, refused }
    }

    /// One index operation per document to write.
    pub fn ops(&self) -> Vec<BulkOp> {
        self.writing.iter().filter_map(Placed::document).collect()
    }

    /// Takes one answer per operation, in order.
    pub fn answered(self, answers: Vec<BulkOutcome>) -> FindLastCopy {
        let Self { mut batch, writing, mut written, mut refused } = self;
        for (mut placed, answer) in writing.into_iter().zip(answers) {
            if matches!(answer, BulkOutcome::Done { .. } | BulkOutcome::Conflict) {
                batch.state.cache.saw(&placed.entry.id, placed.entry.fold.last);
            }
            match answer {
                BulkOutcome::Done { .. } => written.push(placed),
                // Perhaps a tombstone from the document's move, since this write was below the recorded position: a
                // leftover may hold the last copy. It stays named, and the next record handles it.
                BulkOutcome::Conflict
                    if placed.known.placement.pos > placed.entry.fold.last
                        && !sabotage::is(Sabotage::FinishingSweepsAnyway) =>
                {
                    placed.done(&mut batch, Outcome::Done(Done::AlreadyApplied));
                }
                BulkOutcome::Conflict => {
                    if let Outcome::Done(done) = &mut placed.task.then {
                        *done = Done::AlreadyApplied;
                    }
                    written.push(placed);
                }
                // The last good copy cannot be raised (its mapping has changed); it stays as it is.
                BulkOutcome::Refused(_) if placed.known.placement.refused => written.push(placed),
                // While a lost record's decision is being finished, this entry must not set the placement back.
                BulkOutcome::Refused(error) if placed.known.placement.pos > placed.entry.fold.last => {
                    placed.done(&mut batch, Outcome::DeadLetter(Refusal::by_elasticsearch(&error)));
                }
                BulkOutcome::Refused(error) => refused.push((placed, Refusal::by_elasticsearch(&error))),
                // The placement is recorded: the next attempt resumes it.
                BulkOutcome::NotFound | BulkOutcome::Unanswered => batch.unanswered(placed.entry),
            }
        }
        FindLastCopy { batch, written, refused }
    }
}

/// R3b, usually empty: finds the last good copy of a refused document.
#[derive(Debug, Clone)]
pub struct FindLastCopy {
    batch: BatchState,
    written: Vec<Placed>,
    refused: Vec<(Placed, Refusal)>,
}

impl FindLastCopy {
    /// The copies to look for.
    pub fn gets(&self) -> Vec<Get> {
        self.refused
            .iter()
            .flat_map(|(placed, _)| {
                let id = &placed.entry.id;
                let shards = placed.known.placement.may_hold();
                shards.map(move |shard| Get { index: Index::Geoshard(shard.clone()), id: id.clone() })
            })
            .collect()
    }

    /// Takes one answer per get, in order.
    pub fn answered(self, answers: Vec<GetOutcome>) -> CleanUp {
        let Self { mut batch, written, refused } = self;
        let mut answers = answers.into_iter();
        let mut set_backs = Vec::new();
        for (placed, refusal) in refused {
            let Placed { entry, known, .. } = placed;
            let shards: Vec<ShardId> = known.placement.may_hold().cloned().collect();
            let Some(copy) = newest_copy(shards.iter().cloned().zip(answers.by_ref())) else {
                batch.unanswered(entry);
                continue;
            };
            // Never to "deleted": a writer at a lower position that relies on this record may still write a copy.
            let stays_in = match copy {
                Some(copy) => Some(copy.shard),
                None if sabotage::is(Sabotage::RefusedIsDeleted) => None,
                None => known.placement.shard.clone(),
            };
            let placement = new_placement(&batch.state, &entry, stays_in, shards).after_refusal();
            let placement = batch.state.counting().record_refusal(placement, &known);
            set_backs.push(SetBack {
                entry,
                refusal,
                guard: WriteCondition::Unchanged(known.stamp),
                placement,
            });
        }
        CleanUp::new(batch, written, set_backs)
    }
}

/// A placement to be set back to the last good copy.
#[derive(Debug, Clone)]
struct SetBack {
    entry: Entry,
    refusal: Refusal,
    guard: WriteCondition,
    placement: Placement,
}

/// R4: deletes due old copies of this batch and earlier ones, and sets back placements of refused documents.
#[derive(Debug, Clone)]
pub struct CleanUp {
    batch: BatchState,
    sweeping: Vec<Sweep>,
    set_backs: Vec<SetBack>,
}

impl CleanUp {
    /// An entry is done once its document is written; its sweep is tracked separately.
    fn new(mut batch: BatchState, written: Vec<Placed>, set_backs: Vec<SetBack>) -> Self {
        let mut sweeping = std::mem::take(&mut batch.state.sweeps);
        for Placed { entry, known, task } in written {
            let Some(sweep) = Sweep::after(&entry, &known, task.sweep_at) else {
                let (id, touched) = (entry.id.clone(), AffectedShards::by(&known));
                batch.done(entry, task.then, &known.placement.versions, touched);
                if known.placement.fetched.is_some() {
                    batch.written(id, known);
                }
                continue;
            };
            let touched = AffectedShards { target: known.placement.shard.clone(), sources: Vec::new() };
            batch.done(entry, task.then, &known.placement.versions, touched);
            // Also if there was nothing to write: another owner wrote it, perhaps a moment ago.
            let waits = batch.state.searches_are_served && sweep.must_be_seen_in().is_some();
            let at_once = sabotage::is(Sabotage::DeleteBeforeSeen)
                || (task.write.is_none() && sabotage::is(Sabotage::ResumedSweepsAtOnce));
            if waits && !at_once {
                batch.sweeps.push((sweep, Swept::Waits));
            } else {
                sweeping.push(sweep);
            }
        }
        Self { batch, sweeping, set_backs }
    }

    /// Deletes, then set-backs.
    pub fn ops(&self) -> Vec<BulkOp> {
        let deletes = self.sweeping.iter().flat_map(|sweep| deletes(&sweep.id, sweep.leftovers(), sweep.at));
        let set_backs = self.set_backs.iter().map(|set_back| BulkOp::Index {
            index: Index::Placements,
            id: set_back.entry.id.clone(),
            guard: set_back.guard,
            source: set_back.placement.to_json(),
        });
        deletes.chain(set_backs).collect()
    }

    /// Takes one answer per operation, in order.
    pub fn answered(self, answers: Vec<BulkOutcome>) -> Finished {
        let Self { mut batch, sweeping, set_backs } = self;
        let mut answers = answers.into_iter();
        for sweep in sweeping {
            let answers: Vec<_> = answers.by_ref().take(sweep.leftovers().len()).collect();
            let gone =
                |answer: &BulkOutcome| matches!(answer, BulkOutcome::Done { .. } | BulkOutcome::NotFound);
            if !answers.iter().all(|answer| gone(answer) || *answer == BulkOutcome::Conflict) {
                batch.sweeps.push((sweep, Swept::Unanswered));
                continue;
            }
            // A conflict: this delete, sent twice, or a copy at least as new, which this sweep must not remove. It
            // stays named (INV-1), and the document's next entry sweeps again.
            if answers.iter().all(gone) {
                batch.swept(&sweep);
            } else {
                batch.not_swept(&sweep);
            }
            batch.sweeps.push((sweep, Swept::Ended));
        }
        for (set_back, answer) in set_backs.into_iter().zip(answers) {
            let SetBack { entry, refusal, placement, .. } = set_back;
            match answer {
                BulkOutcome::Done { stamp: Some(stamp) } => {
                    let known = Known::new(placement, stamp);
                    batch.state.cache.put(&entry.id, known);
                    let carry = RetryState { refusal: Some(refusal), ..RetryState::default() };
                    // The next attempt sweeps the other copies and returns the dead letter.
                    batch.settle(entry, again_outcome(SET_BACK, carry), AffectedShards::default());
                }
                BulkOutcome::Unanswered => batch.unanswered_placement(entry),
                _ => batch.start_over(entry, "placement_conflict", RetryState::default()),
            }
        }
        let BatchState { state, settled, edges, sweeps } = batch;
        Finished { state, settled, edges, sweeps }
    }
}

impl BatchState {
    /// The fetched document is in its geoshard; the placement need not carry it.
    fn written(&mut self, id: DocId, mut known: Known) {
        known.placement.fetched = None;
        self.clear_with_the_next_bulk(id, known.placement.clone(), known);
    }

    /// Step 7: the leftovers are gone; the next bulk clears them if nothing was recorded since. ⚠ A later placement
    /// names them too, and its own sweep must leave tombstones at its own position: it learns nothing of this one.
    fn swept(&mut self, sweep: &Sweep) {
        let is_latest = |cached: &Known| cached.stamp == sweep.known.stamp;
        let cached = self.state.cache.get(&sweep.id);
        if cached.as_ref().is_none_or(is_latest) {
            let known = Known { swept: true, ..sweep.known.clone() };
            if cached.is_some() {
                self.state.cache.put(&sweep.id, known.clone());
            }
            let placement = Placement { leftovers: Default::default(), ..known.placement };
            self.state.clears.push(Clear { id: sweep.id.clone(), placement, stamp: known.stamp });
        }
    }

    /// Some leftovers stay named, but the placement need not carry the fetched document.
    fn not_swept(&mut self, sweep: &Sweep) {
        let cached = self.state.cache.get(&sweep.id);
        if let Some(known) = cached.filter(|cached| cached.stamp == sweep.known.stamp)
            && known.placement.fetched.is_some()
        {
            self.written(sweep.id.clone(), known);
        }
    }

    fn clear_with_the_next_bulk(&mut self, id: DocId, placement: Placement, known: Known) {
        let stamp = known.stamp;
        self.state.cache.put(&id, known);
        self.state.clears.push(Clear { id, placement, stamp });
    }
}

/// The end of a batch.
#[derive(Debug, Clone)]
pub struct Finished {
    /// The owner's state.
    pub state: MoverState,
    /// Every entry of the batch, once.
    pub settled: Vec<Settled>,
    /// Changes of the counts by entries that are done or dead-lettered: for the partition's map of edges, where each
    /// replaces the one at its position. Empty if nothing is counted. An edge without change still replaces another. An
    /// edge may be at or above the watermark; it joins an increment once it is below.
    pub edges: Vec<Change>,
    /// Old copies still to delete, or deleted.
    pub sweeps: Vec<(Sweep, Swept)>,
}

impl Finished {
    /// The batch's next slice, with the outcomes so far.
    pub fn go_on(self, Unread(readings): Unread) -> ReadDocuments {
        let Self { state, settled, edges, sweeps } = self;
        ReadDocuments { batch: BatchState { state, settled, edges, sweeps }, readings }
    }
}

impl Entry {
    /// The source's answer, unless a later record replaces the whole document or requests a new fetch.
    pub(super) fn said(&self) -> Option<&SourceAnswer> {
        let fetched = self.fetched.as_deref()?;
        let is_recent = self.fold.whole_at.is_none_or(|whole_at| whole_at <= fetched.after);
        (is_recent || sabotage::is(Sabotage::OldAnswerIsBelieved)).then_some(&fetched.said)
    }

    /// The version of its writes (protocol: `p`).
    pub fn position(&self) -> Position {
        self.fold.last
    }
}
