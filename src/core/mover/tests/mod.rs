//! The protocol's tables, its counterexamples, and random histories, over an Elasticsearch in memory.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | documents on a globe of three geoshards; a [`Batch`] at any of its rounds; an [`Owner`] to step through it |
//! | `store.rs` | the Elasticsearch in memory |
//! | `as_of_before.rs` | which placements may be read as of a moment before |
//! | `answers.rs` | every answer at every round: what follows, and what must not |
//! | `counterexamples.rs` | every weakening that the protocol names, as the history that it would break |
//! | `refused.rs` | documents that Elasticsearch refuses |
//! | `split_folds.rs` | patches that leave a document without a location |
//! | `partitions.rs` | one key in two partitions |
//! | `refeed.rs` | documents from the source of truth |
//! | `tally.rs` | recorded facets, and the edges of a finished entry |
//! | `stale.rs` | a node that answers reads by an old state |
//! | `sweeps.rs` | old copies that stay until searches find the new ones |
//! | `new_documents.rs` | placements that are created without being read before |
//! | `slices.rs` | batches whose patches have many bytes to read |
//! | `histories.rs` | random logs, crashes, zombies and lost replies, judged by the invariants |
//! | `sabotages.rs` | rules of the code removed one at a time: a history or a counterexample breaks |

mod answers;
mod as_of_before;
mod counterexamples;
mod histories;
mod new_documents;
mod partitions;
mod refeed;
mod refused;
#[cfg(feature = "sabotage")]
mod sabotages;
mod slices;
mod split_folds;
mod stale;
mod store;
mod sweeps;
mod tally;

use std::num::NonZeroUsize;
use std::sync::Arc;

use self::store::{StoreAnswer, StoreCall, TestStore};
use super::{
    Announce, Carry, CleanUp, Done, Entry, FindLastCopy, Finished, MoverState, NewDocuments, NothingFound,
    OnMissing, Outcome, ReadDocuments, ReadPlacements, RetryState, Rules, Settled, Sweep, Swept,
    WriteDocuments,
};
use crate::base::ids::{DocId, ShardId};
use crate::base::position::{Epoch, Position};
use crate::core::counting::increment::CountChange;
use crate::core::decode::LocationPath;
use crate::core::fold::Fold;
use crate::core::placement::{Placement, PlacementCache};
use crate::core::write::{Body, Write};
use crate::geoshard::GeoshardMap;
use crate::io::elastic::{BulkOp, Index, WriteCondition};
use crate::testkit::testing::{at, id, shard};

fn path() -> LocationPath {
    LocationPath::new("location").unwrap()
}

/// Three places, one on each of three faces of the S2 cube; [`OLD_MAP`] gives them to `a`, `b` and `c`.
const A: f64 = 0.0;
const B: f64 = 90.0;
const C: f64 = 170.0;

const OLD_MAP: [&str; 3] = ["a", "b", "c"];
/// Every place belongs to another geoshard.
const NEW_MAP: [&str; 3] = ["b", "c", "a"];
/// Two places change their geoshard, and one does not.
const PARTLY_NEW_MAP: [&str; 3] = ["a", "c", "b"];

fn map(shards: [&str; 3]) -> Arc<GeoshardMap> {
    let starts = [0, 0x2000_0000_0000_0001, 0x4000_0000_0000_0001];
    let ranges = starts.into_iter().zip(shards.map(shard)).collect();
    Arc::new(GeoshardMap::new(1, "three faces", ranges).unwrap())
}

fn rules() -> Rules {
    Rules {
        map: map(OLD_MAP),
        location: path(),
        on_missing: OnMissing::DeadLetter,
        other_map: None,
        announce_all: false,
        tally: None,
    }
}

/// A document at a place; `n` tells which.
fn doc(place: f64, n: i64) -> String {
    format!(r#"{{"location":{{"lat":1,"lon":{place}}},"n":{n}}}"#)
}

fn index(place: f64, offset: i64) -> Write {
    let doc = doc(place, offset);
    let at_place = path().locate(doc.as_bytes()).unwrap().into();
    write(offset, Body::Index { doc: doc.into(), at: at_place })
}

/// A document that every geoshard refuses.
fn unacceptable(place: f64, offset: i64) -> Write {
    let doc = format!(r#"{{"location":{{"lat":1,"lon":{place}}},"n":"{}"}}"#, store::UNACCEPTABLE);
    let at_place = path().locate(doc.as_bytes()).unwrap().into();
    write(offset, Body::Index { doc: doc.into(), at: at_place })
}

fn delete(offset: i64) -> Write {
    write(offset, Body::Delete)
}

fn touch(offset: i64) -> Write {
    write(offset, Body::Touch)
}

fn patch(text: &str, offset: i64) -> Write {
    let moves = path().patch_move(text.as_bytes()).unwrap();
    write(offset, Body::Patch { patch: text.to_owned().into(), moves })
}

fn write(offset: i64, body: Body) -> Write {
    Write { id: id("x"), position: at(offset), body }
}

/// The records as one entry, folded under these rules.
fn entry_by<const N: usize>(rules: &Rules, writes: [Write; N]) -> Entry {
    let mut folds = writes.into_iter().map(|write| rules.fold(write));
    let (id, mut fold) = folds.next().unwrap();
    folds.for_each(|(_, newer)| fold.absorb(newer, &rules.location).unwrap());
    Entry { id, fold: Arc::new(fold), carry: Carry::default(), fetched: None }
}

fn entry<const N: usize>(writes: [Write; N]) -> Entry {
    entry_by(&rules(), writes)
}

/// The rounds of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Round {
    ReadPlacements,
    ReadDocuments,
    Announce,
    WriteDocuments,
    FindLastCopy,
    CleanUp,
}

/// A batch at one of its rounds: the chain of types as one type, for tests.
#[derive(Debug)]
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
    fn begin(state: MoverState, entries: Vec<Entry>) -> Self {
        Self::ReadPlacements(ReadPlacements::begin(state, entries))
    }

    /// `None` at the end.
    fn round(&self) -> Option<Round> {
        Some(match self {
            Self::ReadPlacements(_) => Round::ReadPlacements,
            Self::ReadDocuments(_) => Round::ReadDocuments,
            Self::Announce(_) => Round::Announce,
            Self::WriteDocuments(_) => Round::WriteDocuments,
            Self::FindLastCopy(_) => Round::FindLastCopy,
            Self::CleanUp(_) => Round::CleanUp,
            Self::Finished(_) => return None,
        })
    }

    /// The calls of this round.
    fn calls(&self) -> Vec<StoreCall> {
        let (gets, ops) = match self {
            Self::ReadPlacements(round) => (round.gets(), Vec::new()),
            Self::ReadDocuments(round) => (round.gets(), Vec::new()),
            Self::Announce(round) => (Vec::new(), round.ops()),
            Self::WriteDocuments(round) => (Vec::new(), round.ops()),
            Self::FindLastCopy(round) => (round.gets(), Vec::new()),
            Self::CleanUp(round) => (Vec::new(), round.ops()),
            Self::Finished(_) => (Vec::new(), Vec::new()),
        };
        gets.into_iter().map(StoreCall::Get).chain(ops.into_iter().map(StoreCall::Bulk)).collect()
    }

    fn answered(self, answers: Vec<StoreAnswer>) -> Self {
        let (mut gets, mut ops) = (Vec::new(), Vec::new());
        for answer in answers {
            match answer {
                StoreAnswer::Get(answer) => gets.push(answer),
                StoreAnswer::Bulk(answer) => ops.push(answer),
            }
        }
        match self {
            Self::ReadPlacements(round) => Self::ReadDocuments(round.answered(gets)),
            Self::ReadDocuments(round) => Self::Announce(round.answered(gets)),
            Self::Announce(round) => Self::WriteDocuments(round.answered(ops)),
            Self::WriteDocuments(round) => Self::FindLastCopy(round.answered(ops)),
            Self::FindLastCopy(round) => Self::CleanUp(round.answered(gets)),
            Self::CleanUp(round) => Self::Finished(round.answered(ops)),
            Self::Finished(finished) => Self::Finished(finished),
        }
    }
}

fn new_state(rules: Rules) -> MoverState {
    MoverState::new(rules, PlacementCache::new(NonZeroUsize::new(100).unwrap()))
}

/// A current or former owner of the partition that can be stopped before any round.
#[derive(Debug)]
struct Owner {
    /// `None` during a batch.
    state: Option<MoverState>,
    batch: Option<Batch>,
    /// Of all batches that are finished.
    edges: Vec<CountChange>,
    /// Sweeps owed.
    sweeps: Vec<Sweep>,
}

impl Owner {
    fn new() -> Self {
        Self::by(rules())
    }

    fn by(rules: Rules) -> Self {
        Self { state: Some(new_state(rules)), batch: None, edges: Vec::new(), sweeps: Vec::new() }
    }

    /// An owner that keeps old copies until searches find the new ones.
    fn serving_searches() -> Self {
        let mut owner = Self::new();
        owner.state.as_mut().unwrap().searches_are_served = true;
        owner
    }

    fn begin(&mut self, entry: Entry) -> &mut Self {
        self.batch = Some(Batch::begin(self.state.take().unwrap(), vec![entry]));
        self
    }

    fn batch(&self) -> &Batch {
        self.batch.as_ref().unwrap()
    }

    /// Runs until `round` is about to be sent.
    fn up_to(&mut self, round: Round, store: &mut TestStore) -> &mut Self {
        while self.batch().round().unwrap() < round {
            self.step(store);
        }
        self
    }

    /// Executes one round.
    fn step(&mut self, store: &mut TestStore) -> &mut Self {
        let answers = self.batch().calls().iter().map(|call| store.call(call)).collect();
        self.answered(answers)
    }

    /// Answers the round regardless of the store.
    fn answered(&mut self, answers: Vec<StoreAnswer>) -> &mut Self {
        self.batch = Some(self.batch.take().unwrap().answered(answers));
        self
    }

    /// Abandons the round, and returns its calls, which are still in flight.
    fn unanswered(&mut self) -> Vec<StoreCall> {
        let calls = self.batch().calls();
        self.answered(calls.iter().map(StoreCall::unanswered).collect());
        calls
    }

    /// Runs the rest of the batch.
    fn finish(&mut self, store: &mut TestStore) -> Outcome {
        while self.batch().round().is_some() {
            self.step(store);
        }
        let Some(Batch::Finished(Finished { state, settled, edges, sweeps })) = self.batch.take() else {
            panic!("not finished")
        };
        self.state = Some(state);
        self.edges.extend(edges);
        self.sweeps
            .extend(sweeps.into_iter().filter(|(_, swept)| *swept != Swept::Ended).map(|(sweep, _)| sweep));
        let [Settled { outcome, .. }] = settled.try_into().unwrap();
        outcome
    }

    /// Executes the due sweeps: returns their calls.
    fn sweep(&mut self, store: &mut TestStore) -> Vec<String> {
        let sweeps = std::mem::take(&mut self.sweeps);
        let state = MoverState { sweeps, ..self.state.take().unwrap() };
        self.batch = Some(Batch::begin(state, Vec::new()));
        self.up_to(Round::Announce, store);
        let sent = in_short(&self.batch().calls());
        while self.batch().round().is_some() {
            self.step(store);
        }
        let Some(Batch::Finished(Finished { state, sweeps, .. })) = self.batch.take() else {
            panic!("not finished")
        };
        assert!(sweeps.iter().all(|(_, swept)| *swept == Swept::Ended), "{sweeps:?}");
        self.state = Some(state);
        sent.into_iter().filter(|call| call.starts_with("delete")).collect()
    }

    /// One entry from beginning to end.
    fn work(&mut self, store: &mut TestStore, entry: Entry) -> Outcome {
        self.begin(entry).finish(store)
    }

    /// Runs one entry, and again with its state as long as it returns to step 1.
    fn work_out(&mut self, store: &mut TestStore, mut entry: Entry) -> Outcome {
        for _ in 0..10 {
            match self.work(store, entry.clone()) {
                Outcome::Again { carry, .. } => entry.carry = carry,
                outcome => return outcome,
            }
        }
        panic!("the entry goes back to step 1 forever: {entry:?}");
    }

    /// Sends the pending clears.
    fn clear(&mut self, store: &mut TestStore) {
        let batch = Batch::begin(self.state.take().unwrap(), Vec::new());
        self.batch = Some(batch);
        while self.batch().round().is_some() {
            self.step(store);
        }
        let Some(Batch::Finished(finished)) = self.batch.take() else { panic!("not finished") };
        self.state = Some(finished.state);
    }
}

impl TestStore {
    /// Executes calls that were in flight.
    fn deliver(&mut self, late: Vec<StoreCall>) -> Vec<StoreAnswer> {
        late.iter().map(|call| self.call(call)).collect()
    }

    /// All of document `x`, in short: `5 b [a] | a@1 b@5`.
    fn x(&self) -> String {
        let view = self.view(&id("x"));
        let placement = view.placement.as_ref().map_or("none".to_owned(), placement_in_short);
        let copies: Vec<String> =
            view.copies.iter().map(|(shard, version)| format!("{shard}@{}", version.offset())).collect();
        format!("{placement} | {}", copies.join(" "))
    }

    /// The content of a copy of document `x`.
    fn text(&self, place: &str) -> String {
        String::from_utf8(self.content(&shard(place), &id("x")).unwrap().to_vec()).unwrap()
    }

    /// A store with a placement and copies of document `x`, each at place [`A`].
    fn with(placement: Option<Placement>, copies: &[(&str, i64)]) -> Self {
        let mut store = Self::default();
        if let Some(placement) = placement {
            store.exec(&BulkOp::Index {
                index: Index::Placements,
                id: id("x"),
                guard: WriteCondition::Absent,
                source: placement.to_json(),
            });
        }
        for (place, offset) in copies {
            store.exec(&BulkOp::Index {
                index: Index::Geoshard(shard(place)),
                id: id("x"),
                guard: WriteCondition::External(at(*offset)),
                source: doc(A, *offset).into(),
            });
        }
        store
    }
}

fn placed(offset: i64, place: Option<&str>, leftovers: &[&str]) -> Option<Placement> {
    Some(Placement::new(at(offset), place.map(shard), leftovers.iter().map(|id| shard(id))))
}

/// `5 b [a]`: position, geoshard or `deleted`, leftovers; `!` behind the position of what was refused.
fn placement_in_short(placement: &Placement) -> String {
    let leftovers: Vec<&str> = placement.leftovers.iter().map(ShardId::as_str).collect();
    format!(
        "{}{} {} [{}]",
        placement.pos.offset(),
        if placement.refused { "!" } else { "" },
        placement.shard.as_ref().map_or("deleted", ShardId::as_str),
        leftovers.join(" ")
    )
}

/// `get b`, `put b@5`, `delete a@5`, `place 5 b [a] if unchanged`.
fn call_in_short(call: &StoreCall) -> String {
    let index_name = |index: &Index| match index {
        Index::Placements => "placement".to_owned(),
        index => index.suffix().to_owned(),
    };
    match call {
        StoreCall::Get(get) => format!("get {}", index_name(&get.index)),
        StoreCall::Bulk(BulkOp::Delete { index, version, .. }) => {
            format!("delete {}@{}", index_name(index), version.offset())
        }
        StoreCall::Bulk(BulkOp::Index { index: Index::Placements, guard, source, .. }) => {
            let guard = match guard {
                WriteCondition::Absent => "if absent",
                WriteCondition::Unchanged(_) => "if unchanged",
                WriteCondition::External(_) | WriteCondition::ExternalOrEqual(_) => "by version",
            };
            format!("place {} {guard}", placement_in_short(&Placement::from_json(source).unwrap()))
        }
        StoreCall::Bulk(BulkOp::Index { index, guard: WriteCondition::External(version), .. }) => {
            format!("put {}@{}", index_name(index), version.offset())
        }
        StoreCall::Bulk(BulkOp::Index { index, guard: WriteCondition::ExternalOrEqual(version), .. }) => {
            format!("put {}@{} again", index_name(index), version.offset())
        }
        StoreCall::Bulk(BulkOp::Index { index, guard, .. }) => {
            format!("put {} by {guard:?}", index_name(index))
        }
        StoreCall::Bulk(BulkOp::Remove { index, .. }) => format!("remove {} if unchanged", index_name(index)),
    }
}

fn in_short(calls: &[StoreCall]) -> Vec<String> {
    calls.iter().map(call_in_short).collect()
}

/// `indexed`, `moved`, `deleted`, `already applied`, `dropped`, `nothing to place`, `parked until 5`, `again: …`, `dead letter: …`.
fn outcome_in_short(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Done(Done::Indexed { moved: false }) => "indexed".to_owned(),
        Outcome::Done(Done::Indexed { moved: true }) => "moved".to_owned(),
        Outcome::Done(Done::Deleted) => "deleted".to_owned(),
        Outcome::Done(Done::AlreadyApplied) => "already applied".to_owned(),
        Outcome::Done(Done::Dropped) => "dropped".to_owned(),
        Outcome::Done(Done::NothingToPlace) => "nothing to place".to_owned(),
        Outcome::DeadLetter(refusal) => format!("dead letter: {}", refusal.reason),
        Outcome::Fetch => "fetch".to_owned(),
        Outcome::Parked { until } => format!("parked until {}", until.offset()),
        Outcome::Again { reason, .. } => format!("again: {reason}"),
    }
}
