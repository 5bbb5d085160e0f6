//! A worker: the real ledger and the real mover, one call at a time.
//!
//! A worker is a function of its events, so each step is computed once and stored: in a state of the world a worker is
//! a number, and nearly all steps are one lookup. Workers with equal `Debug` output are the same worker.

use std::collections::BTreeMap;
use std::time::Duration;

use ahash::AHashMap;
use geofold::base::clock::Instant;
use geofold::base::position::{Epoch, Position};
use geofold::base::sabotage::Sabotage;
use geofold::core::mover::{
    Announce, CleanUp, CopySize, FindLastCopy, Finished, Lookups, MoverState, NewDocuments, ReadDocuments,
    ReadPlacements, Rules, SourceAnswer, WriteDocuments,
};
use geofold::core::placement::PlacementCache;
use geofold::core::write::Write;
use geofold::io::elastic::rounds::{BulkOutcome, GetOutcome};
use geofold::io::elastic::{BulkOp, Get};
use geofold::worker::ledger::{Ledger, Reread};
use geofold::worker::record::Record as Raw;
use geofold::worker::refeed::{FetchRequest, Held};

use super::collector::Edges;
use super::record::{answers, number_of, position, shard};
use super::store::{Names, Op, Reply, outcome};

/// Time stands still: every retry is due.
const NOW: Instant = Instant::from_start(Duration::ZERO);

/// When the searches in flight are over.
const LATER: Instant = Instant::from_start(Duration::from_secs(1));

/// A batch at one of its rounds.
#[derive(Debug, Clone)]
enum Batch {
    ReadPlacements(ReadPlacements),
    ReadDocuments(ReadDocuments),
    Announce(Announce),
    WriteDocuments(WriteDocuments),
    FindLastCopy(FindLastCopy),
    CleanUp(CleanUp),
    Finished(Finished),
}

impl Batch {
    fn gets(&self) -> Vec<Get> {
        match self {
            Self::ReadPlacements(round) => round.gets(),
            Self::ReadDocuments(round) => round.gets(),
            Self::FindLastCopy(round) => round.gets(),
            _ => Vec::new(),
        }
    }

    fn ops(&self) -> Vec<BulkOp> {
        match self {
            Self::Announce(round) => round.ops(),
            Self::WriteDocuments(round) => round.ops(),
            Self::CleanUp(round) => round.ops(),
            _ => Vec::new(),
        }
    }

    fn answered(self, replies: &[Reply], names: &Names) -> Self {
        let gets = || -> Vec<GetOutcome> { replies.iter().map(|reply| names.found(*reply)).collect() };
        let ops = || -> Vec<BulkOutcome> { replies.iter().map(|reply| outcome(*reply)).collect() };
        match self {
            Self::ReadPlacements(round) => Self::ReadDocuments(round.answered(gets())),
            Self::ReadDocuments(round) => Self::Announce(round.answered(gets())),
            Self::Announce(round) => Self::WriteDocuments(round.answered(ops())),
            Self::WriteDocuments(round) => Self::FindLastCopy(round.answered(ops())),
            Self::FindLastCopy(round) => Self::CleanUp(round.answered(gets())),
            Self::CleanUp(round) => Self::Finished(round.answered(ops())),
            Self::Finished(finished) => Self::Finished(finished),
        }
    }
}

/// The real components.
#[derive(Debug, Clone)]
struct Worker {
    /// Its log and its rules.
    class: u8,
    ledger: Ledger,
    /// `None` during a batch.
    state: Option<MoverState>,
    /// What it expects at the start of every batch.
    new_documents: NewDocuments,
    batch: Option<Batch>,
    calls: Vec<Call>,
    read_to: u8,
    /// The offsets read and not done, as bits.
    undone: u8,
    /// The pending request to the source.
    request: Option<FetchRequest>,
    /// The records of refused folds that are read again, before the next batch.
    rereads: Vec<Reread>,
    /// The geoshards in which something must be found by searches before old copies go; a bit each.
    unseen: u8,
    emitter: Emitter,
}

/// A worker's tally state, in offsets.
#[derive(Debug, Clone, Default)]
struct Emitter {
    /// The committed offset known to the owner.
    committed: u8,
    /// Every edge below is in an acknowledged increment.
    acknowledged: u8,
    edges: Edges,
}

/// One call of the current round.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub op: Op,
    pub reply: Option<Reply>,
}

/// An event of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// It reads `records` records, takes the dirty entries, and begins a batch; `grace_is_over`: no search in flight
    /// began before the last report of visibility.
    Begin { records: u8, grace_is_over: bool },
    /// Searches find its writes to a geoshard; `with_grace`: some searches in flight have queried that geoshard before.
    Seen { shard: u8, with_grace: bool },
    /// A call of the round is answered.
    Answer { call: u8, reply: Reply },
    /// The batch passes its deadline: open calls stay unanswered.
    Deadline,
    /// The source gives this answer: one of [`answers`].
    Fetched { answer: u8 },
    /// Its increment up to this offset was acknowledged.
    Acknowledged { to: u8 },
    /// Its commit of this offset was acknowledged.
    Committed { to: u8 },
    /// It empties its cache between two batches.
    ForgetCached,
}

/// A worker's actions that concern the world.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// It dead-lettered or dropped a fold whose last record is the one before this offset; 0: none.
    pub gave_up_before: u8,
    /// It finished a decision whose record never came.
    pub finished_recorded: bool,
}

/// The observable state of a worker.
#[derive(Debug, Clone)]
pub struct Known {
    worker: Worker,
    pub calls: Vec<Call>,
    pub is_idle: bool,
    pub has_work: bool,
    /// It owes deletes of old copies.
    pub owes_sweeps: bool,
    /// Whether some are due now; and whether they are once the searches in flight are over.
    pub sweeps_are_due: [bool; 2],
    /// See [`Worker::unseen`].
    pub unseen: u8,
    pub has_clears: bool,
    /// It waits for the source.
    pub is_fetching: bool,
    pub read_to: u8,
    pub watermark: Option<u8>,
    pub undone: u8,
    /// Whether any document is dirty, parked ones included.
    pub owes: bool,
    /// Increments up to here are acknowledged.
    pub acknowledged: u8,
}

impl Known {
    pub fn edges(&self) -> &Edges {
        &self.worker.emitter.edges
    }
}

/// All possible workers in a world, by number. Number 0 is none.
#[derive(Debug)]
pub struct Workers {
    /// The log, and the rules, of each class.
    classes: Vec<(Vec<Option<Write>>, Rules)>,
    sabotage: Option<Sabotage>,
    searches_are_served: bool,
    loses_clears: bool,
    prunes_uncommitted: bool,
    max_versions: usize,
    new_documents: NewDocuments,
    numbers: AHashMap<u128, u32>,
    known: Vec<Known>,
    steps: AHashMap<(u32, Event), (u32, Report)>,
}

impl Workers {
    pub fn new(
        classes: Vec<(Vec<Option<Write>>, Rules)>,
        sabotage: Option<Sabotage>,
        searches_are_served: bool,
        loses_clears: bool,
        prunes_uncommitted: bool,
        max_versions: usize,
        expects_new: bool,
    ) -> Self {
        Self {
            classes,
            sabotage,
            searches_are_served,
            loses_clears,
            prunes_uncommitted,
            max_versions,
            new_documents: if expects_new { NewDocuments::expected() } else { NewDocuments::default() },
            numbers: AHashMap::new(),
            known: Vec::new(),
            steps: AHashMap::new(),
        }
    }

    pub fn get(&self, number: u32) -> &Known {
        &self.known[number as usize - 1]
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// A newly assigned worker with its own cache, or (a weakening) that of another.
    pub fn assigned(&mut self, class: u8, read_to: u8, cache_of: Option<u32>) -> u32 {
        let rules = &self.classes[usize::from(class)].1;
        let cache = cache_of.and_then(|other| self.get(other).worker.state.clone()).map(|state| state.cache);
        let cache = cache.unwrap_or_else(|| PlacementCache::new(1.try_into().unwrap()));
        let counted_to = if rules.tally.is_some() { read_to } else { 0 };
        let worker = Worker {
            class,
            ledger: Ledger::new(rules.clone(), Epoch::default()),
            state: Some(MoverState {
                max_versions: self.max_versions,
                searches_are_served: self.searches_are_served,
                separates: true,
                new_documents: self.new_documents,
                ..MoverState::new(rules.clone(), cache)
            }),
            new_documents: self.new_documents,
            batch: None,
            calls: Vec::new(),
            read_to,
            undone: 0,
            request: None,
            rereads: Vec::new(),
            unseen: 0,
            emitter: Emitter { committed: counted_to, acknowledged: counted_to, edges: Edges::new() },
        };
        self.number(worker)
    }

    /// The worker after an event, and its report.
    pub fn after(&mut self, number: u32, event: Event, names: &mut Names) -> (u32, Report) {
        if let Some(known) = self.steps.get(&(number, event)) {
            return *known;
        }
        let mut worker = self.get(number).worker.clone();
        let log = &self.classes[usize::from(worker.class)].0;
        let prunes_at = self.prunes_uncommitted.then(|| self.get(number).watermark).flatten();
        let report = weakened(self.sabotage, || worker.take(event, log, prunes_at, names));
        if let (true, Some(state)) = (self.loses_clears, &mut worker.state) {
            state.clears.clear();
        }
        let after = (self.number(worker), report);
        self.steps.insert((number, event), after);
        after
    }

    fn number(&mut self, worker: Worker) -> u32 {
        let look = format!("{worker:?}");
        let hash = |seed| u128::from(ahash::RandomState::with_seeds(seed, 2, 3, 4).hash_one(&look));
        let key = hash(1) << 64 | hash(5);
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        let watermark = weakened(self.sabotage, || worker.ledger.watermark());
        self.known.push(Known {
            calls: worker.calls.clone(),
            is_idle: worker.batch.is_none(),
            has_work: worker.ledger.has_work(),
            owes_sweeps: worker.ledger.sweeps() > 0,
            sweeps_are_due: [NOW, LATER].map(|at| worker.ledger.has_due_sweeps(at)),
            unseen: worker.unseen,
            has_clears: worker.state.as_ref().is_some_and(|state| !state.clears.is_empty()),
            is_fetching: worker.request.is_some(),
            read_to: worker.read_to,
            watermark: watermark.map(|offset| u8::try_from(offset).unwrap()),
            undone: worker.undone,
            owes: worker.ledger.documents() > 0,
            acknowledged: worker.emitter.acknowledged,
            worker,
        });
        let number = u32::try_from(self.known.len()).unwrap();
        self.numbers.insert(key, number);
        number
    }
}

impl Worker {
    /// `prunes_at`: the offset taken as committed, for a weakening.
    fn take(
        &mut self,
        event: Event,
        log: &[Option<Write>],
        prunes_at: Option<u8>,
        names: &mut Names,
    ) -> Report {
        match event {
            Event::Seen { shard: n, with_grace } => {
                self.unseen &= !(1 << n);
                let due = if with_grace { LATER } else { NOW };
                self.ledger.seen(&shard(n.into()), u64::MAX, due);
                Report::default()
            }
            Event::Begin { records, grace_is_over } => {
                for _ in 0..records {
                    self.read(log);
                }
                self.read_again(log);
                let entries = self.ledger.hand_out(10, usize::MAX, NOW);
                self.rejected();
                let mut state = self.state.take().expect("no batch is under way");
                state.lookups = Lookups::default();
                state.sweeps = self.ledger.hand_out_sweeps(10, if grace_is_over { LATER } else { NOW });
                state.committed = position(prunes_at.unwrap_or(self.emitter.committed).into());
                self.go_on(Batch::ReadPlacements(ReadPlacements::begin(state, entries)), names)
            }
            Event::Fetched { answer } => {
                let answer = match &answers()[usize::from(answer)] {
                    Some(document) => SourceAnswer::Document(document.to_string().into()),
                    None => SourceAnswer::Gone,
                };
                let request = self.request.take().expect("a document is being fetched");
                self.ledger.answered(&request, answer, Held::none());
                Report::default()
            }
            Event::Acknowledged { to } => {
                self.emitter.acknowledged = to;
                self.emitter.edges = self.emitter.edges.split_off(&position(to.into()));
                Report::default()
            }
            Event::Committed { to } => {
                self.emitter.committed = to;
                Report::default()
            }
            Event::ForgetCached => {
                self.state.as_mut().expect("no batch is under way").cache.clear();
                Report::default()
            }
            Event::Answer { call, reply } => {
                self.calls[usize::from(call)].reply = Some(reply);
                self.answered(names)
            }
            Event::Deadline => {
                for call in &mut self.calls {
                    call.reply.get_or_insert(Reply::Unanswered);
                }
                let mut report = self.answered(names);
                // Nothing else is sent in this batch either.
                while self.batch.is_some() {
                    self.calls.iter_mut().for_each(|call| call.reply = Some(Reply::Unanswered));
                    report = self.answered(names);
                }
                report
            }
        }
    }

    fn read(&mut self, log: &[Option<Write>]) {
        let offset = self.read_to;
        self.read_to += 1;
        match &log[usize::from(offset)] {
            Some(write) => {
                self.undone |= 1 << offset;
                self.ledger.take(write.clone(), NOW);
            }
            None => self.ledger.read_up_to(i64::from(self.read_to)),
        }
        self.rejected();
    }

    fn read_again(&mut self, log: &[Option<Write>]) {
        for Reread { id, offsets } in std::mem::take(&mut self.rereads) {
            let record = |offset: &i64| {
                let write = log[usize::try_from(*offset).unwrap()].clone()?;
                Some((write, Raw { offset: *offset, key: None, value: None, headers: None }))
            };
            self.ledger.reread(&id, Ok(offsets.iter().filter_map(record).collect()), NOW);
        }
    }

    fn rejected(&mut self) {
        for letter in self.ledger.take_rejected() {
            self.ledger.delivered(letter.fold.first.offset(), Some(&letter.id));
        }
    }

    /// Goes on to the next round with calls, or to the end of the batch, once all is answered.
    fn answered(&mut self, names: &mut Names) -> Report {
        if self.calls.iter().any(|call| call.reply.is_none()) {
            return Report::default();
        }
        let replies: Vec<Reply> = self.calls.drain(..).filter_map(|call| call.reply).collect();
        match self.batch.take().expect("a batch is under way").answered(&replies, names) {
            Batch::Finished(finished) => self.finish(finished),
            batch => self.go_on(batch, names),
        }
    }

    fn go_on(&mut self, batch: Batch, names: &mut Names) -> Report {
        let gets = batch.gets().into_iter().map(|get| Names::get(&get));
        let mut ops: Vec<Op> = gets.collect();
        ops.extend(batch.ops().iter().map(|op| names.op(op)));
        self.calls = ops.into_iter().map(|op| Call { op, reply: None }).collect();
        self.batch = Some(batch);
        self.answered(names)
    }

    fn finish(&mut self, finished: Finished) -> Report {
        let Finished { mut state, settled, edges, sweeps } = finished;
        state.lookups = Lookups::default();
        state.new_documents = self.new_documents;
        state.copy_size = CopySize::default();
        // Normalized: it is set for every batch.
        state.committed = Position::from_version(0);
        self.state = Some(state);
        let acknowledged = position(self.emitter.acknowledged.into());
        for edge in edges.into_iter().filter(|edge| edge.pos >= acknowledged) {
            let (pos, delta) = (edge.pos, edge.delta());
            if delta.is_empty() {
                self.emitter.edges.remove(&pos);
            } else {
                self.emitter.edges.insert(pos, delta);
            }
        }
        let mut report = Report::default();
        for settled in &settled {
            use geofold::core::mover::{Done, Outcome};
            let fold = &settled.entry.fold;
            let (first, last) = (fold.first.offset(), fold.last.offset());
            if matches!(settled.outcome, Outcome::Done(_) | Outcome::DeadLetter(_)) {
                (first..=last).for_each(|offset| self.undone &= !(1 << offset));
            }
            if matches!(
                settled.outcome,
                Outcome::Done(Done::Dropped | Done::NothingToPlace) | Outcome::DeadLetter(_)
            ) {
                report.gave_up_before = u8::try_from(last + 1).unwrap();
            }
        }
        let settlement = self.ledger.settle(settled, NOW);
        self.rereads.extend(self.ledger.take_rereads(1));
        let (_, unseen) = self.ledger.settle_sweeps(sweeps, &mut BTreeMap::new(), NOW);
        self.unseen |= unseen.iter().fold(0, |bits, shard| bits | 1 << number_of(shard));
        report.finished_recorded = !settlement.finished_recorded.is_empty();
        // One document: a later request replaces an earlier one.
        self.request = self.ledger.take_fetch_requests().pop().or(self.request.take());
        for letter in settlement.undeliverable {
            self.ledger.delivered(letter.fold.first.offset(), Some(&letter.id));
        }
        self.rejected();
        report
    }
}

/// Does it while this rule is not kept.
fn weakened<R>(sabotage: Option<Sabotage>, work: impl FnOnce() -> R) -> R {
    match sabotage {
        Some(sabotage) => geofold::base::sabotage::with(sabotage, work),
        None => work(),
    }
}
