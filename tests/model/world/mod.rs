//! The world as a transition system for stateright: one document, its script of records in a log, and the workers that
//! were assigned the partition one after the other. All but the last are zombies; they go on unchanged, but cannot
//! commit. A crashed worker is one that takes no further step.

mod judge;
mod possible;
mod tell;

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ahash::AHashMap;
use geofold::base::sabotage::Sabotage;
use geofold::core::invariants::inv_3_nothing_owed_is_committed;
use serde_json::Value;
use stateright::{Model, Property};

use self::judge::Violation;
use super::backup::{Backup, BackupStep};
use super::collector::{Collector, Counted, Sent};
use super::record::{Record, naive, rules};
use super::setting::{Searches, Setting, Weakening};
use super::store::{Names, Op, Reply, Store};
use super::worker::{Call, Event, Report, Workers};

/// Maximum number of workers, one after the other.
pub const WORKERS: usize = 3;

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
    broken: Option<Violation>,
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
    judged: AHashMap<(Store, Store), Option<Violation>>,
    judged_at_rest: AHashMap<Store, Option<Violation>>,
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

    fn event(&self, tables: &mut Tables, state: &mut State, worker: u8, event: Event) {
        let slot = &mut state.workers[usize::from(worker)];
        let (after, report) = {
            let Tables { workers, names, .. } = tables;
            workers.after(*slot, event, names)
        };
        *slot = after;
        let Report { gave_up_before, finished_recorded } = report;
        if worker != state.owner || state.broken.is_some() || self.refuses() {
            return;
        }
        let gave_up = gave_up_before.checked_sub(1).map(|last| self.setting.script[usize::from(last)]);
        let existed = gave_up.is_some_and(|last| last != Record::Hide)
            && !self.naive[usize::from(gave_up_before)].contains(&None);
        if existed {
            state.broken = Some(Violation::GivenUpThoughItExists);
        } else if finished_recorded && self.setting.compacted == 0 {
            state.broken = Some(Violation::TakenAsLost);
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

    fn refresh(&self, state: &mut State, shard: u8) {
        if self.setting.searches == Searches::Looking && !state.search.is_over {
            let is_there = state.store.copies[usize::from(shard)].content != 0;
            state.search.visible = state.search.visible & !(1 << shard) | u8::from(is_there) << shard;
        }
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
            broken: None,
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
        self.possible_steps(state, steps);
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
                    state.broken = Some(Violation::CommittedWhatIsOwed);
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
                    state.broken = Some(Violation::SearchMissed);
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
            Property::always(Self::HOLDS, |_, state: &State| state.broken.is_none()),
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
