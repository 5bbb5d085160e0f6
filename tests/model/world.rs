//! The world as a transition system for stateright: one document, its script of records in a log, and the workers that
//! were assigned the partition one after the other. All but the last are zombies; they go on unchanged, but cannot
//! commit. A crashed worker is one that takes no further step.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ahash::AHashMap;
use geofold::base::position::Position;
use geofold::base::sabotage::Sabotage;
use geofold::core::invariants::{
    inv_1_every_copy_is_named, inv_2_a_document_that_exists_has_a_copy, inv_3_nothing_owed_is_committed,
    inv_3_what_is_committed_can_be_seen, inv_4_nothing_goes_back, inv_5_at_rest_there_is_one_copy,
    inv_7_counted_exactly_once,
};
use geofold::core::mover::{MAX_VERSIONS, OnMissing};
use serde_json::Value;
use stateright::{Model, Property};

use super::backup::{Backup, BackupStep};
use super::collector::{Collector, Counted, Sent};
use super::record::{Maps, Record, answers, belongs, facet_rules, naive, number_of, position, rules};
use super::store::{Names, Op, Reply, Store};
use super::worker::{Call, Event, Report, Workers};

/// Maximum number of workers, one after the other.
pub const WORKERS: usize = 3;

/// Bounds and conditions of one exploration.
#[derive(Debug, Clone)]
pub struct Setting {
    pub script: Vec<Record>,
    /// Number of workers.
    pub workers: u8,
    /// How many calls may be executed without an answer, or after their sender has given up.
    pub losses: u8,
    /// How many batches may end at their deadline.
    pub deadlines: u8,
    /// Where two are live, each worker goes by one or the other.
    pub maps: Maps,
    /// Bits: the records that compaction takes before the second worker reads.
    pub compacted: u8,
    pub on_missing: OnMissing,
    /// Every call may be sent again, any number of times.
    pub resends: bool,
    /// Workers create placements of whole documents without reading them before.
    pub expects_new: bool,
    /// Whether documents are counted.
    pub tally: bool,
    /// Versions of a document's facets before an entry waits for a commit.
    pub max_versions: usize,
    /// The placement of a deleted document may be swept.
    pub sweeps: bool,
    /// Tombstones are forgotten once no zombie can act (`gc_deletes`), however far behind the owner is.
    pub forgets: bool,
    /// Batch deadlines pass after the takeover. A batch ends within one, a zombie begins none after one, since its
    /// claim is lost, and a tombstone is forgotten after two.
    pub timed: bool,
    pub searches: Searches,
    /// Indices are copied, and replaced by these copies before the last worker begins.
    pub restores: bool,
    pub weakening: Weakening,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            script: Vec::new(),
            workers: 2,
            losses: 0,
            deadlines: 0,
            maps: Maps::One,
            compacted: 0,
            on_missing: OnMissing::DeadLetter,
            resends: false,
            expects_new: false,
            tally: false,
            max_versions: MAX_VERSIONS,
            sweeps: false,
            forgets: false,
            timed: false,
            searches: Searches::Served,
            restores: false,
            weakening: Weakening::None,
        }
    }
}

/// The guarantee for searches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Searches {
    /// None: old copies are deleted at once.
    NotServed,
    /// Old copies stay until searches find the new one, whenever that is.
    Served,
    /// As `Served`, with one search that visits the geoshards in any order, at any times. Elasticsearch refreshes at
    /// any time. Not for documents that are deleted.
    Looking,
}

/// The search.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Search {
    /// The geoshards in which a search would find the document now, as bits.
    visible: u8,
    /// The geoshards that the search visited without a hit, as bits.
    asked: u8,
    is_over: bool,
}

impl Search {
    const EVERYWHERE: u8 = 0b111;

    fn is_under_way(self) -> bool {
        self.asked != 0
    }
}

/// A disabled rule of the code or of its environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weakening {
    None,
    /// See `src/base/sabotage.rs`.
    Code(Sabotage),
    /// The third worker is the first one with its cache.
    CacheIsKept,
    /// A worker begins where its predecessor has read to, while that is still working.
    TwoEntriesAtOnce,
    /// Tombstones are forgotten while requests live.
    TombstonesAreForgotten,
    /// The owner keeps what it cached while zombies could act.
    CacheOutlivesZombies,
    /// The owner empties its cache when zombies no longer act, but not before.
    CacheIsEmptiedOnce,
    /// A worker that has lost its claim begins batches all the same.
    LostClaimsAreUsed,
    /// Clears are never sent: harmless.
    ClearsAreLost,
    /// Two maps are live, and workers that know only one write in place.
    OneMapIsKnown,
    /// Compaction removes records while a zombie acts on them, and the owner writes in place.
    InPlaceDespiteCompaction,
    /// Histories are cut at the watermark before it is committed.
    HistoryIsCutUncommitted,
    /// Offsets are committed before their increment is acknowledged.
    CommitsBeforeIncrements,
    /// The collector counts every edge it receives.
    NothingIsRecognised,
    /// The collector skips an increment without news, but no edges of another.
    WholeIncrementsAreRecognised,
    /// Old copies are deleted as soon as searches find the new ones, without the grace for running searches.
    NoGrace,
    /// The sweep removes a placement without comparing.
    SweepsWithoutComparing,
    /// The sweep does not wait until no worker acts on the state before the delete.
    SweepsTooEarly,
    /// The sweep does not check that the delete stayed committed all the time.
    SweepsUncommitted,
    /// Workers write while indices are copied.
    WritesGoOnDuringTheBackup,
    /// The group goes on from what it has committed since.
    OffsetsAreNotSetBack,
    /// Workers and requests live on while indices are replaced.
    RestoresTooEarly,
}

/// The state of the sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Sweep {
    /// The last write at its mark, and the highest offset read by any worker.
    mark: Option<(u8, u8)>,
    /// `deleted_retention` has passed since the mark.
    is_ripe: bool,
    /// Workers below this number are gone.
    gone: u8,
    /// It read the placement in this state, and is about to remove it.
    seen: Option<u8>,
}

/// Batch deadlines since the takeover, as far as they matter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Time {
    now: u8,
    /// When each worker's current batch began.
    began: [u8; WORKERS],
    /// When each geoshard's tombstone was made.
    buried: [u8; 3],
    /// The owner empties its cache before its next batch.
    empties: bool,
}

impl Time {
    /// When no worker can act any more on the state before the takeover.
    const ZOMBIES_END: u8 = 2;
    /// Later times make no difference.
    const END: u8 = 4;
}

/// Violations by number; 0 is none.
const BROKEN: [&str; 16] = [
    "",
    "INV-1: a copy that no placement names",
    "INV-2: the last copy is gone",
    "INV-3: committed above what is not done",
    "INV-3: committed, and nothing shows it",
    "INV-4: something went back",
    "INV-5: at rest, copies are not just where they belong",
    "at rest, the content is not what the records made",
    "at rest, the copy is where no map has it",
    "a write of a document that exists was given up",
    "a record that was there was taken as lost",
    "nothing is left to do, and something is owed",
    "an owner that is left alone does not come to rest",
    "INV-7: at rest, the counts are not what the documents say",
    "INV-8: a search has found no copy of a document that was there all the time",
    "a document without a location was written",
];

/// A state of the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct State {
    store: Store,
    workers: [u32; WORKERS],
    owner: u8,
    committed: u8,
    losses: u8,
    deadlines: u8,
    /// Abandoned calls that may still be executed; sorted.
    late: [Option<Op>; 2],
    counted: Counted,
    /// An abandoned increment; it may arrive at any time, and again.
    late_increment: Option<Sent>,
    sweep: Sweep,
    time: Time,
    search: Search,
    backup: Backup,
    broken: u8,
}

/// A transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A worker reads `records` records and begins a batch; its first call is executed.
    Begin { worker: u8, records: u8 },
    /// A call is executed and answered.
    Call { worker: u8, call: u8 },
    /// A call is executed and its answer lost: it is sent again.
    Lost { worker: u8, call: u8 },
    /// A call exceeds its timeout: it is sent again, and executed twice.
    Late { worker: u8, call: u8 },
    /// A batch passes its deadline.
    Deadline { worker: u8 },
    /// The source answers a worker: any answer at any time.
    Fetched { worker: u8, answer: u8 },
    /// A late call is executed.
    Arrive(u8),
    /// A worker's increment arrives and is acknowledged.
    Send { worker: u8 },
    /// It arrives, and the acknowledgement is lost.
    SendLost { worker: u8 },
    /// It exceeds the worker's timeout.
    SendLate { worker: u8 },
    /// The late increment arrives.
    ArriveIncrement,
    /// The owner commits its watermark; with counting, as far as increments are acknowledged. If not `known`, the
    /// answer is lost.
    Commit { known: bool },
    /// The partition is assigned to the next worker, with the old map or the new one.
    TakeOver { by_new_map: bool },
    /// A batch deadline has passed since the assignment: zombies' requests are over. The owner empties its cache before
    /// its next batch.
    ZombiesEnd,
    /// Tombstones are forgotten.
    Forget,
    /// A batch deadline passes.
    Tick,
    /// A geoshard forgets its tombstone two deadlines after it was made.
    Expire { shard: u8 },
    /// The sweep records the state of placements and partitions.
    Mark,
    /// `deleted_retention` passes: zombies' requests are over, and they know that they are zombies.
    Ripen,
    /// The sweep reads the placement. Tombstones are forgotten.
    SeeGrave,
    /// The sweep removes it.
    Sweep,
    /// A geoshard is refreshed for a worker, which is notified.
    Refresh { worker: u8, shard: u8 },
    /// Elasticsearch refreshes a geoshard by itself.
    RefreshByItself { shard: u8 },
    /// The search visits a geoshard.
    Ask { shard: u8 },
    /// A snapshot and its restoring.
    Backup(BackupStep),
}

pub struct World {
    pub setting: Setting,
    /// After each number of records: all possible documents.
    naive: Vec<Vec<Option<Value>>>,
    tables: Mutex<Tables>,
}

#[derive(Debug)]
struct Tables {
    workers: Workers,
    names: Names,
    judged: AHashMap<(Store, Store), u8>,
    judged_at_rest: AHashMap<Store, u8>,
    seen: AHashMap<(Store, u8), bool>,
    collector: Collector,
    recounted: AHashMap<(Store, Counted), bool>,
}

impl World {
    /// The property that must always hold.
    pub const HOLDS: &'static str = "the protocol holds";
    /// Must occur at least once, or nothing was explored.
    pub const COMES_TO_REST: &'static str = "the last owner comes to rest";

    pub fn new(setting: Setting) -> Self {
        let script = &setting.script;
        let log = |compacted: u8| {
            let kept = |offset: usize| (compacted >> offset) & 1 == 0;
            let write = |(offset, record): (usize, &Record)| kept(offset).then(|| record.write(offset));
            script.iter().enumerate().map(write).collect::<Vec<_>>()
        };
        let rules = |is_first: bool, by_new_map| {
            let knows_both = setting.weakening != Weakening::OneMapIsKnown;
            // An owner that finds records missing writes every placement (protocol, "Records that compaction took").
            let misses_some = !is_first
                && setting.compacted != 0
                && setting.weakening != Weakening::InPlaceDespiteCompaction;
            rules(setting.maps, by_new_map, knows_both, misses_some, setting.on_missing, setting.tally)
        };
        let classes = [(true, false), (true, true), (false, false), (false, true)];
        let classes = classes.map(|(is_first, by_new_map)| {
            (log(if is_first { 0 } else { setting.compacted }), rules(is_first, by_new_map))
        });
        let sabotage = match setting.weakening {
            Weakening::Code(sabotage) => Some(sabotage),
            _ => None,
        };
        let tables = Tables {
            workers: Workers::new(
                classes.into(),
                sabotage,
                setting.searches != Searches::NotServed,
                setting.weakening == Weakening::ClearsAreLost,
                setting.weakening == Weakening::HistoryIsCutUncommitted,
                setting.max_versions,
                setting.expects_new,
            ),
            names: Names::default(),
            judged: AHashMap::new(),
            judged_at_rest: AHashMap::new(),
            seen: AHashMap::new(),
            collector: Collector::default(),
            recounted: AHashMap::new(),
        };
        let naive = (0..=script.len()).map(|end| naive(script, end, setting.on_missing)).collect();
        Self { naive, tables: Mutex::new(tables), setting }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of distinct workers met.
    pub fn workers_met(&self) -> usize {
        self.tables().workers.len()
    }

    /// The number of records in the log.
    fn records(&self) -> u8 {
        u8::try_from(self.setting.script.len()).unwrap()
    }

    /// Refused content depends on how records were folded; the invariants do not.
    fn refuses(&self) -> bool {
        self.setting
            .script
            .iter()
            .any(|record| matches!(record, Record::Bad(_) | Record::Spoil(_) | Record::Part))
    }

    fn is_delete_at(&self, position: Position) -> bool {
        usize::try_from(position.offset()).is_ok_and(|offset| {
            matches!(self.setting.script.get(offset), Some(Record::Delete | Record::Refeed))
        })
    }

    fn carry_out(&self, tables: &mut Tables, state: &mut State, op: Op) -> Reply {
        let before = state.store;
        let delete_anything = self.setting.weakening == Weakening::Code(Sabotage::DeleteWithoutVersion);
        let reply = state.store.carry_out(op, &tables.names, delete_anything);
        if let (true, Op::Delete { shard, .. }, Reply::Done | Reply::NotFound) =
            (self.setting.timed, op, reply)
        {
            state.time.buried[usize::from(shard)] = state.time.now;
        }
        if state.store != before {
            state.broken = self.judge(tables, before, state.store);
        }
        reply
    }

    /// Invariants of a transition.
    fn judge(&self, tables: &mut Tables, before: Store, after: Store) -> u8 {
        if let Some(judged) = tables.judged.get(&(before, after)) {
            return *judged;
        }
        let (was, is) = (before.view(&tables.names), after.view(&tables.names));
        let exists =
            was.copies.values().max().zip(is.placement.as_ref()).is_some_and(|(newest, placement)| {
                let positions = newest.version()..=placement.pos.version();
                let was_deleted =
                    positions.into_iter().any(|version| self.is_delete_at(Position::from_version(version)));
                !was_deleted
            });
        let judged = if inv_1_every_copy_is_named(&is).is_err() {
            1
        } else if inv_2_a_document_that_exists_has_a_copy(&is, exists).is_err() {
            2
        } else if inv_4_nothing_goes_back(&was, &is).is_err()
            && self.setting.weakening != Weakening::TombstonesAreForgotten
            && !(self.setting.sweeps && is.placement.is_none())
        {
            5
        } else if after.copies.iter().any(|copy| copy.content != 0 && !tables.names.is_located(copy.content))
        {
            15
        } else {
            0
        };
        tables.judged.insert((before, after), judged);
        judged
    }

    /// Invariants once the owner has nothing left to do, even if zombies may still act.
    fn judge_at_rest(&self, tables: &mut Tables, store: Store) -> u8 {
        if let Some(judged) = tables.judged_at_rest.get(&store) {
            return *judged;
        }
        let view = store.view(&tables.names);
        let is_placed = view.placement.as_ref().is_some_and(|placement| placement.shard.is_some());
        let judged = if self.refuses() {
            // Known limits: the remains of a refused document depend on how it was folded. It stays named, and is
            // correct where its placement says that it is.
            if !is_placed && !view.copies.is_empty() {
                6
            } else if self.is_misplaced(&tables.names, store) {
                8
            } else {
                0
            }
        } else if inv_5_at_rest_there_is_one_copy(&view).is_err() {
            6
        } else {
            let expected = &self.naive[self.setting.script.len()];
            let copy = store.copies.iter().position(|copy| copy.content != 0);
            let content = copy.map(|n| {
                let content = tables.names.content(store.copies[n].content);
                serde_json::from_slice::<Value>(content).unwrap()
            });
            if !expected.contains(&content) {
                7
            } else if self.is_misplaced(&tables.names, store) {
                8
            } else {
                0
            }
        };
        tables.judged_at_rest.insert(store, judged);
        judged
    }

    /// Whether the copy in its placement's geoshard is misplaced by every live map.
    fn is_misplaced(&self, names: &Names, store: Store) -> bool {
        let placement = store.view(names).placement;
        let Some(shard) = placement.and_then(|placement| placement.shard.as_ref().map(number_of)) else {
            return false;
        };
        let copy = store.copies[usize::from(shard)];
        if copy.content == 0 {
            return false;
        }
        let content = serde_json::from_slice(names.content(copy.content)).unwrap();
        let places = belongs(&content, self.setting.maps);
        // What a refused record leaves misplaced where the maps differ is found by the scan, and touched.
        let is_found = self.refuses() && places[0] != places[1];
        !is_found && !places.contains(&usize::from(shard))
    }

    /// Checks that follow a step.
    fn judge_state(&self, tables: &mut Tables, state: &mut State) {
        if state.broken != 0 {
            return;
        }
        let is_expected = state.committed > 0 && !self.refuses();
        if is_expected && !self.is_shown(tables, state.store, state.committed) {
            state.broken = 4;
            return;
        }
        let owner = tables.workers.get(state.workers[usize::from(state.owner)]);
        // If the work is divided, all workers must have done their part.
        let others_are_done = self.setting.weakening != Weakening::TwoEntriesAtOnce
            || (0..state.owner).all(|worker| {
                let known = tables.workers.get(state.workers[usize::from(worker)]);
                known.is_idle && !known.has_work && !known.owes_sweeps && known.read_to > 0
            });
        let has_work = owner.has_work || owner.is_fetching || owner.owes_sweeps;
        if owner.is_idle && !has_work && owner.read_to == self.records() && others_are_done {
            if owner.owes {
                state.broken = 11;
            } else {
                state.broken = self.judge_at_rest(tables, state.store);
                if state.broken == 0 && self.setting.tally && !self.is_counted(tables, state) {
                    state.broken = 13;
                }
            }
        }
    }

    /// INV-7, once the owner's last increment is merged. For refused documents the counts follow the placement.
    fn is_counted(&self, tables: &mut Tables, state: &State) -> bool {
        let counted = match self.increment(tables, state, state.owner) {
            Some(sent) => tables.collector.merge(state.counted, sent, self.setting.weakening),
            None => state.counted,
        };
        if let Some(is_counted) = tables.recounted.get(&(state.store, counted)) {
            return *is_counted;
        }
        let documents = if self.refuses() {
            let placement = state.store.view(&tables.names).placement;
            placement.and_then(|placement| placement.facets().cloned()).into_iter().collect()
        } else {
            state.store.recount(&facet_rules(), &tables.names)
        };
        let is_counted = inv_7_counted_exactly_once(&tables.collector.counts(counted), &documents).is_ok();
        tables.recounted.insert((state.store, counted), is_counted);
        is_counted
    }

    /// The increment that a worker has to send.
    fn increment(&self, tables: &mut Tables, state: &State, worker: u8) -> Option<Sent> {
        let known = tables.workers.get(state.workers[usize::from(worker)]);
        let to = known.watermark.filter(|to| *to > known.acknowledged)?;
        Some(tables.collector.increment(known.edges(), to))
    }

    /// The offset that the owner may commit.
    fn may_commit(&self, tables: &Tables, state: &State) -> Option<u8> {
        let owner = tables.workers.get(state.workers[usize::from(state.owner)]);
        if self.setting.tally && self.setting.weakening != Weakening::CommitsBeforeIncrements {
            return Some(owner.acknowledged);
        }
        owner.watermark
    }

    /// INV-3: what was done up to here is visible.
    fn is_shown(&self, tables: &mut Tables, store: Store, committed: u8) -> bool {
        if self.naive[usize::from(committed)].contains(&None) {
            return true;
        }
        let is_kept = |offset: &u8| {
            (self.setting.compacted >> offset) & 1 == 0
                && self.setting.script[usize::from(*offset)] != Record::Hide
        };
        let kept = (0..committed).rev().find(is_kept);
        let Some(last) = kept else { return true };
        let Tables { seen, names, .. } = tables;
        *seen.entry((store, committed)).or_insert_with(|| {
            let last = position(usize::from(last));
            inv_3_what_is_committed_can_be_seen(&store.view(names), last).is_ok()
        })
    }

    fn event(&self, tables: &mut Tables, state: &mut State, worker: u8, event: Event) {
        let slot = &mut state.workers[usize::from(worker)];
        let (after, report) = {
            let Tables { workers, names, .. } = tables;
            workers.after(*slot, event, names)
        };
        *slot = after;
        let Report { gave_up_before, finished_recorded } = report;
        if worker != state.owner || state.broken != 0 || self.refuses() {
            return;
        }
        let gave_up = gave_up_before.checked_sub(1).map(|last| self.setting.script[usize::from(last)]);
        let existed = gave_up.is_some_and(|last| last != Record::Hide)
            && !self.naive[usize::from(gave_up_before)].contains(&None);
        if existed {
            state.broken = 9;
        } else if finished_recorded && self.setting.compacted == 0 {
            state.broken = 10;
        }
    }

    fn call(&self, tables: &mut Tables, state: &mut State, worker: u8, call: u8) {
        let Call { op, .. } = tables.workers.get(state.workers[usize::from(worker)]).calls[usize::from(call)];
        let reply = self.carry_out(tables, state, op);
        self.event(tables, state, worker, Event::Answer { call, reply });
    }

    fn assign(&self, tables: &mut Tables, state: &mut State, by_new_map: bool) {
        let class = u8::from(state.owner > 0) * 2 + u8::from(by_new_map);
        let cache_of = match self.setting.weakening {
            Weakening::CacheIsKept if state.owner == 2 => Some(state.workers[0]),
            _ => None,
        };
        let from = match self.setting.weakening {
            Weakening::TwoEntriesAtOnce if state.owner > 0 => {
                tables.workers.get(state.workers[usize::from(state.owner) - 1]).read_to
            }
            _ => state.committed,
        };
        state.workers[usize::from(state.owner)] = tables.workers.assigned(class, from, cache_of);
    }

    /// Possible transitions if deadlines pass.
    fn timed_actions(&self, tables: &Tables, state: &State, steps: &mut Vec<Step>) {
        let Time { now, began, buried, .. } = state.time;
        let known = |worker: u8| tables.workers.get(state.workers[usize::from(worker)]);
        let is_late = |worker: &u8| !known(*worker).is_idle && began[usize::from(*worker)] < now;
        let late = (0..=state.owner).filter(is_late);
        steps.extend(late.clone().map(|worker| Step::Deadline { worker }));
        if state.owner + 1 == self.setting.workers && now < Time::END && late.count() == 0 {
            steps.push(Step::Tick);
        }
        for shard in 0..3 {
            let n = usize::from(shard);
            let is_tombstone = state.store.copies[n].version != 0 && state.store.copies[n].content == 0;
            if is_tombstone && now >= buried[n] + 2 {
                steps.push(Step::Expire { shard });
            }
        }
    }

    /// Whether a worker's claim allows it to begin a batch: a lost one was last confirmed just before the takeover.
    fn may_begin(&self, state: &State, worker: u8) -> bool {
        !self.setting.timed
            || worker == state.owner
            || state.time.now == 0
            || self.setting.weakening == Weakening::LostClaimsAreUsed
    }

    /// Possible transitions of the sweep (protocol, "Deleted documents").
    fn sweep_actions(&self, tables: &Tables, state: &State, steps: &mut Vec<Step>) {
        let Sweep { mark, is_ripe, seen, .. } = state.sweep;
        if seen.is_some() {
            steps.push(Step::Sweep);
        }
        let Some(stamp) = state.store.grave(&tables.names).filter(|_| seen.is_none()) else { return };
        let is_early = self.setting.weakening == Weakening::SweepsTooEarly;
        let asks = self.setting.weakening != Weakening::SweepsUncommitted;
        match mark {
            None => steps.push(Step::Mark),
            Some((marked, end)) => {
                // Batches and requests end at their deadline. Later assignments begin above.
                let owner = tables.workers.get(state.workers[usize::from(state.owner)]);
                let is_committed = state.committed >= end || !asks;
                if !is_ripe && is_committed && owner.is_idle && state.late == [None; 2] {
                    steps.push(Step::Ripen);
                }
                if (is_ripe || is_early && is_committed) && stamp <= marked {
                    steps.push(Step::SeeGrave);
                }
            }
        }
    }

    /// Possible transitions of a snapshot.
    fn backup_actions(&self, state: &State, steps: &mut Vec<Step>) {
        let is_early = self.setting.weakening == Weakening::RestoresTooEarly;
        let may_restore = state.owner + 1 < self.setting.workers && (state.late == [None; 2] || is_early);
        let is_possible = |step: &BackupStep| *step != BackupStep::Restore || may_restore;
        steps.extend(state.backup.step().filter(is_possible).map(Step::Backup));
    }

    fn back_up(&self, tables: &mut Tables, state: &mut State, step: BackupStep) -> Option<()> {
        let is = |weakening| self.setting.weakening == weakening;
        match step {
            BackupStep::Block if is(Weakening::WritesGoOnDuringTheBackup) => state.backup.copy(&state.store),
            BackupStep::Block => state.backup.is_blocked = true,
            BackupStep::Copy => state.backup.copy(&state.store),
            BackupStep::Unblock => state.backup.unblock(state.committed),
            BackupStep::Restore => {
                let (store, committed) = state.backup.restore()?;
                state.store = store;
                if !is(Weakening::OffsetsAreNotSetBack) {
                    state.committed = committed;
                }
                state.owner += 1;
                if !is(Weakening::RestoresTooEarly) {
                    state.sweep.gone = state.owner;
                }
                self.assign(tables, state, false);
                state.broken = self.judge_left_alone(tables, *state);
            }
        }
        Some(())
    }

    /// Possible transitions of searches and their refreshes.
    fn search_actions(&self, tables: &Tables, state: &State, steps: &mut Vec<Step>) {
        for worker in state.sweep.gone..=state.owner {
            let unseen = tables.workers.get(state.workers[usize::from(worker)]).unseen;
            let shards = (0..3).filter(|shard| unseen >> shard & 1 == 1);
            steps.extend(shards.map(|shard| Step::Refresh { worker, shard }));
        }
        let Search { visible, asked, is_over } = state.search;
        if self.setting.searches != Searches::Looking || is_over {
            return;
        }
        for shard in 0..3 {
            if (visible >> shard & 1 == 1) != (state.store.copies[usize::from(shard)].content != 0) {
                steps.push(Step::RefreshByItself { shard });
            }
            // Nothing is guaranteed before the document can be found anywhere.
            if (visible != 0 || asked != 0) && asked >> shard & 1 == 0 {
                steps.push(Step::Ask { shard });
            }
        }
    }

    fn refresh(&self, state: &mut State, shard: u8) {
        if self.setting.searches == Searches::Looking && !state.search.is_over {
            let is_there = state.store.copies[usize::from(shard)].content != 0;
            state.search.visible = state.search.visible & !(1 << shard) | u8::from(is_there) << shard;
        }
    }

    /// The owner goes on alone: it comes to rest.
    fn judge_left_alone(&self, tables: &mut Tables, mut state: State) -> u8 {
        let worker = state.owner;
        for _ in 0..100 {
            let owner = tables.workers.get(state.workers[usize::from(worker)]);
            if let Some(call) = owner.calls.iter().position(|call| call.reply.is_none()) {
                self.call(tables, &mut state, worker, u8::try_from(call).unwrap());
            } else if owner.is_fetching {
                self.event(tables, &mut state, worker, Event::Fetched { answer: 0 });
            } else if owner.unseen != 0 {
                let shard = u8::try_from(owner.unseen.trailing_zeros()).unwrap();
                self.event(tables, &mut state, worker, Event::Seen { shard, with_grace: false });
            } else if owner.has_work || owner.sweeps_are_due[1] || owner.read_to < self.records() {
                // It may wait for that, and for nothing else.
                if self.setting.tally {
                    self.count_and_commit(tables, &mut state);
                }
                let owner = tables.workers.get(state.workers[usize::from(worker)]);
                let records = self.records() - owner.read_to;
                let begin = Event::Begin { records, grace_is_over: true };
                self.event(tables, &mut state, worker, begin);
            } else {
                return 0;
            }
            if state.broken != 0 {
                // Explored at its own time.
                return 0;
            }
        }
        12
    }

    /// The owner sends its increments and commits.
    fn count_and_commit(&self, tables: &mut Tables, state: &mut State) {
        let owner = state.owner;
        if let Some(sent) = self.increment(tables, state, owner) {
            self.event(tables, state, owner, Event::Acknowledged { to: sent.to });
        }
        if let Some(to) = self.may_commit(tables, state).filter(|to| *to > state.committed) {
            state.committed = to;
            self.event(tables, state, owner, Event::Committed { to });
        }
    }

    /// A counterexample, step by step.
    pub fn tell(&self, path: Vec<(State, Option<Step>)>) -> String {
        let mut tables = self.tables();
        let mut text = format!("{:?}\n", self.setting);
        for (state, step) in path {
            text += &self.tell_step(&mut tables, &state, step);
            text += "\n";
        }
        text
    }

    fn tell_step(&self, tables: &mut Tables, state: &State, step: Option<Step>) -> String {
        let calls = |tables: &Tables, worker: u8, n: u8| {
            let known = tables.workers.get(state.workers[usize::from(worker)]);
            known.calls.get(usize::from(n)).map(|call| tell_op(&tables.names, call.op))
        };
        let store = state.store.view(&tables.names).to_string();
        let what = match step {
            None if self.setting.tally => {
                let counts = tables.collector.counts(state.counted);
                let last = self.increment(tables, state, state.owner).map(|sent| tables.collector.tell(sent));
                let placement = state.store.view(&tables.names).placement;
                return format!(
                    "{store}; counted to {}: {counts:?}; to be sent: {last:?}; {placement:?}\n=> {}",
                    state.counted.merged_to,
                    BROKEN[usize::from(state.broken)]
                );
            }
            None => return format!("{store}\n=> {}", BROKEN[usize::from(state.broken)]),
            Some(Step::Call { worker, call }) => format!("{worker}: {:?}", calls(tables, worker, call)),
            Some(Step::Lost { worker, call }) => {
                format!("{worker}: {:?}, the answer is lost", calls(tables, worker, call))
            }
            Some(Step::Late { worker, call }) => {
                format!("{worker}: {:?} is late", calls(tables, worker, call))
            }
            Some(Step::Arrive(n)) => {
                format!("arrives: {:?}", state.late[usize::from(n)].map(|op| tell_op(&tables.names, op)))
            }
            Some(Step::ArriveIncrement) => {
                format!("arrives: {:?}", state.late_increment.map(|sent| tables.collector.tell(sent)))
            }
            Some(step @ (Step::Send { worker } | Step::SendLost { worker } | Step::SendLate { worker })) => {
                let sent = self.increment(tables, state, worker);
                format!("{step:?}: {:?}", sent.map(|sent| tables.collector.tell(sent)))
            }
            Some(step) => format!("{step:?}"),
        };
        if self.setting.tally {
            let counts = tables.collector.counts(state.counted);
            return format!("{store}; counted to {}: {counts:?}\n    {what}", state.counted.merged_to);
        }
        format!("{store}\n    {what}")
    }
}

fn tell_op(names: &Names, op: Op) -> String {
    match op {
        Op::Place(condition, placement) => format!("place {:?} if {condition:?}", names.placement(placement)),
        op => format!("{op:?}"),
    }
}

impl State {
    fn push_late(&mut self, op: Op) -> bool {
        let Some(free) = self.late.iter_mut().find(|slot| slot.is_none()) else { return false };
        *free = Some(op);
        self.late.sort_unstable();
        true
    }
}

impl Model for World {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let state = State {
            store: Store::default(),
            workers: [0; WORKERS],
            owner: 0,
            committed: 0,
            losses: self.setting.losses,
            deadlines: self.setting.deadlines,
            late: [None; 2],
            counted: Counted::default(),
            late_increment: None,
            sweep: Sweep::default(),
            time: Time::default(),
            search: Search::default(),
            backup: Backup::default(),
            broken: 0,
        };
        let maps: &[bool] = if self.setting.maps.are_two() { &[false, true] } else { &[false] };
        let mut tables = self.tables();
        let assigned = maps.iter().map(|by_new_map| {
            let mut state = state;
            self.assign(&mut tables, &mut state, *by_new_map);
            state
        });
        assigned.collect()
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.broken != 0 {
            return;
        }
        let tables = self.tables();
        if self.setting.sweeps {
            self.sweep_actions(&tables, state, steps);
        }
        if self.setting.timed {
            self.timed_actions(&tables, state, steps);
        }
        if self.setting.searches != Searches::NotServed {
            self.search_actions(&tables, state, steps);
        }
        if self.setting.restores {
            self.backup_actions(state, steps);
        }
        for worker in state.sweep.gone..=state.owner {
            let known = tables.workers.get(state.workers[usize::from(worker)]);
            if self.setting.tally && known.watermark.is_some_and(|watermark| watermark > known.acknowledged) {
                steps.push(Step::Send { worker });
                if state.losses > 0 {
                    steps.push(Step::SendLost { worker });
                }
                if state.losses > 0 && state.late_increment.is_none() {
                    steps.push(Step::SendLate { worker });
                }
            }
            if known.is_fetching {
                let answers = u8::try_from(answers().len()).unwrap();
                steps.extend((0..answers).map(|answer| Step::Fetched { worker, answer }));
            }
            if known.is_idle && !self.may_begin(state, worker) {
                continue;
            }
            if known.is_idle {
                let sweeps_are_due = known.sweeps_are_due[usize::from(state.search.is_over)];
                for records in 0..=self.records() - known.read_to {
                    if records > 0 || known.has_work || known.has_clears || sweeps_are_due {
                        steps.push(Step::Begin { worker, records });
                    }
                }
                continue;
            }
            for (n, call) in known.calls.iter().enumerate() {
                if call.reply.is_some() {
                    continue;
                }
                let n = u8::try_from(n).unwrap();
                if state.backup.is_blocked && !call.op.is_read() {
                    continue;
                }
                steps.push(Step::Call { worker, call: n });
                if call.op.is_read() {
                    continue;
                }
                if state.losses > 0 || self.setting.resends {
                    steps.push(Step::Lost { worker, call: n });
                }
                if state.losses > 0 {
                    steps.push(Step::Late { worker, call: n });
                }
            }
            if state.deadlines > 0 {
                steps.push(Step::Deadline { worker });
            }
        }
        for (n, late) in state.late.iter().enumerate() {
            if late.is_some() && !state.backup.is_blocked {
                steps.push(Step::Arrive(u8::try_from(n).unwrap()));
            }
        }
        if state.late_increment.is_some() {
            steps.push(Step::ArriveIncrement);
        }
        if self.may_commit(&tables, state).is_some_and(|offset| offset > state.committed) {
            steps.push(Step::Commit { known: true });
            if self.setting.tally && state.losses > 0 {
                steps.push(Step::Commit { known: false });
            }
        }
        // The last one is for what is restored.
        let is_left = self.setting.restores && !state.backup.is_restored;
        if state.owner + 1 + u8::from(is_left) < self.setting.workers {
            steps.push(Step::TakeOver { by_new_map: false });
            if self.setting.maps.are_two() {
                steps.push(Step::TakeOver { by_new_map: true });
            }
        }
        let owner = tables.workers.get(state.workers[usize::from(state.owner)]);
        let nothing_is_late = state.late == [None; 2];
        if self.setting.forgets && nothing_is_late && state.sweep.gone < state.owner && owner.is_idle {
            steps.push(Step::ZombiesEnd);
        }
        let may_forget = self.setting.forgets && nothing_is_late && state.sweep.gone == state.owner;
        if may_forget || self.setting.weakening == Weakening::TombstonesAreForgotten {
            steps.push(Step::Forget);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = *last;
        let tables = &mut *self.tables();
        match step {
            Step::Begin { worker, records } => {
                state.time.began[usize::from(worker)] = state.time.now;
                if worker == state.owner && std::mem::take(&mut state.time.empties) {
                    self.event(tables, &mut state, worker, Event::ForgetCached);
                }
                let grace_is_over = state.search.is_over;
                self.event(tables, &mut state, worker, Event::Begin { records, grace_is_over });
                let known = tables.workers.get(state.workers[usize::from(worker)]);
                // If deadlines pass or writes are blocked, the time matters.
                if known.calls.len() == 1 && !self.setting.timed && !state.backup.is_blocked {
                    self.call(tables, &mut state, worker, 0);
                }
            }
            Step::Call { worker, call } => self.call(tables, &mut state, worker, call),
            Step::Lost { worker, call } => {
                let known = tables.workers.get(state.workers[usize::from(worker)]);
                let op = known.calls[usize::from(call)].op;
                self.carry_out(tables, &mut state, op);
                state.losses -= u8::from(!self.setting.resends);
            }
            Step::Late { worker, call } => {
                let known = tables.workers.get(state.workers[usize::from(worker)]);
                let op = known.calls[usize::from(call)].op;
                if !state.push_late(op) {
                    return None;
                }
                state.losses -= 1;
            }
            Step::Deadline { worker } => {
                let known = tables.workers.get(state.workers[usize::from(worker)]);
                let open = known.calls.iter().filter(|call| call.reply.is_none() && !call.op.is_read());
                let open: Vec<Op> = open.map(|call| call.op).collect();
                // If deadlines pass, requests do not outlive them.
                for op in open.into_iter().filter(|_| !self.setting.timed) {
                    if !state.push_late(op) {
                        return None;
                    }
                }
                self.event(tables, &mut state, worker, Event::Deadline);
                state.deadlines -= u8::from(!self.setting.timed);
            }
            Step::Fetched { worker, answer } => {
                self.event(tables, &mut state, worker, Event::Fetched { answer });
            }
            Step::Arrive(n) => {
                let op = state.late[usize::from(n)].take()?;
                state.late.sort_unstable();
                self.carry_out(tables, &mut state, op);
            }
            Step::Send { worker } => {
                let sent = self.increment(tables, &state, worker)?;
                state.counted = tables.collector.merge(state.counted, sent, self.setting.weakening);
                self.event(tables, &mut state, worker, Event::Acknowledged { to: sent.to });
            }
            Step::SendLost { worker } => {
                let sent = self.increment(tables, &state, worker)?;
                state.counted = tables.collector.merge(state.counted, sent, self.setting.weakening);
                state.losses -= 1;
            }
            Step::SendLate { worker } => {
                state.late_increment = Some(self.increment(tables, &state, worker)?);
                state.losses -= 1;
            }
            Step::ArriveIncrement => {
                let sent = state.late_increment?;
                state.counted = tables.collector.merge(state.counted, sent, self.setting.weakening);
            }
            Step::Commit { known } => {
                let watermark = self.may_commit(tables, &state)?;
                let owner = tables.workers.get(state.workers[usize::from(state.owner)]);
                let undone = (0..8).filter(|offset| (owner.undone >> offset) & 1 == 1);
                if inv_3_nothing_owed_is_committed(watermark.into(), undone).is_err() {
                    state.broken = 3;
                }
                state.committed = watermark;
                if !known {
                    state.losses -= 1;
                } else if self.setting.tally {
                    self.event(tables, &mut state, last.owner, Event::Committed { to: watermark });
                }
            }
            Step::TakeOver { by_new_map } => {
                state.owner += 1;
                self.assign(tables, &mut state, by_new_map);
                state.broken = self.judge_left_alone(tables, state);
            }
            Step::ZombiesEnd => {
                state.sweep.gone = state.owner;
                if self.setting.weakening != Weakening::CacheOutlivesZombies {
                    self.event(tables, &mut state, last.owner, Event::ForgetCached);
                }
            }
            Step::Tick => {
                state.time.now += 1;
                let is_end = state.time.now == Time::ZOMBIES_END;
                state.time.empties |= match self.setting.weakening {
                    Weakening::CacheOutlivesZombies => false,
                    Weakening::CacheIsEmptiedOnce => is_end,
                    _ => state.time.now <= Time::ZOMBIES_END,
                };
            }
            Step::Expire { shard } => {
                state.store.forget_tombstone(shard);
            }
            Step::Forget => {
                if !state.store.forget_tombstones() {
                    return None;
                }
            }
            Step::Mark => {
                let read = (0..=state.owner)
                    .map(|worker| tables.workers.get(state.workers[usize::from(worker)]).read_to);
                state.sweep.mark = Some((state.store.grave(&tables.names)?, read.max()?));
            }
            Step::Ripen => {
                state.sweep.is_ripe = true;
                state.sweep.gone = state.owner;
            }
            Step::Refresh { worker, shard } => {
                self.refresh(&mut state, shard);
                let with_grace = state.search.is_under_way() && self.setting.weakening != Weakening::NoGrace;
                self.event(tables, &mut state, worker, Event::Seen { shard, with_grace });
            }
            Step::RefreshByItself { shard } => self.refresh(&mut state, shard),
            Step::Ask { shard } if state.search.visible >> shard & 1 == 1 => {
                state.search = Search { visible: 0, asked: 0, is_over: true };
            }
            Step::Ask { shard } => {
                state.search.asked |= 1 << shard;
                if state.search.asked == Search::EVERYWHERE {
                    state.broken = 14;
                }
            }
            Step::SeeGrave => {
                // Long ago by now. An owner that is further behind than that: `forgets`.
                state.store.forget_tombstones();
                state.sweep.seen = state.store.grave(&tables.names);
            }
            Step::Backup(step) => self.back_up(tables, &mut state, step)?,
            Step::Sweep => {
                let seen = state.sweep.seen.take();
                let compares = self.setting.weakening != Weakening::SweepsWithoutComparing;
                let op = Op::Remove { unchanged_since: seen.filter(|_| compares) };
                self.carry_out(tables, &mut state, op);
            }
        }
        self.judge_state(tables, &mut state);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(Self::HOLDS, |_, state: &State| state.broken == 0),
            Property::sometimes(Self::COMES_TO_REST, |world: &Self, state: &State| {
                let tables = world.tables();
                let owner = tables.workers.get(state.workers[usize::from(state.owner)]);
                let is_last = state.owner + 1 == world.setting.workers;
                is_last && owner.is_idle && owner.read_to == world.records()
            }),
        ]
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.setting.fmt(f)
    }
}
