//! What must hold of every transition and every state.

use std::fmt;

use geofold::base::position::Position;
use geofold::core::invariants::{
    inv_1_every_copy_is_named, inv_2_a_document_that_exists_has_a_copy, inv_3_what_is_committed_can_be_seen,
    inv_4_nothing_goes_back, inv_5_at_rest_there_is_one_copy, inv_7_counted_exactly_once,
};
use serde_json::Value;

use super::{State, Tables, World};
use crate::record::{Record, belongs, facet_rules, number_of, position};
use crate::setting::Weakening;
use crate::store::{Names, Store};
use crate::worker::Event;

/// What must never happen, and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Violation {
    UnnamedCopy,
    NoCopyLeft,
    CommittedWhatIsOwed,
    CommittedAndNotShown,
    WentBack,
    CopiesElsewhere,
    OtherContent,
    InNoMap,
    GivenUpThoughItExists,
    TakenAsLost,
    OwedAndNothingToDo,
    NoRest,
    Miscounted,
    SearchMissed,
    Unlocated,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnnamedCopy => "INV-1: a copy that no placement names",
            Self::NoCopyLeft => "INV-2: the last copy is gone",
            Self::CommittedWhatIsOwed => "INV-3: committed above what is not done",
            Self::CommittedAndNotShown => "INV-3: committed, and nothing shows it",
            Self::WentBack => "INV-4: something went back",
            Self::CopiesElsewhere => "INV-5: at rest, copies are not just where they belong",
            Self::OtherContent => "at rest, the content is not what the records made",
            Self::InNoMap => "at rest, the copy is where no map has it",
            Self::GivenUpThoughItExists => "a write of a document that exists was given up",
            Self::TakenAsLost => "a record that was there was taken as lost",
            Self::OwedAndNothingToDo => "nothing is left to do, and something is owed",
            Self::NoRest => "an owner that is left alone does not come to rest",
            Self::Miscounted => "INV-7: at rest, the counts are not what the documents say",
            Self::SearchMissed => {
                "INV-8: a search has found no copy of a document that was there all the time"
            }
            Self::Unlocated => "a document without a location was written",
        })
    }
}

impl World {
    /// Refused content depends on how records were folded; the invariants do not.
    pub(super) fn refuses(&self) -> bool {
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

    /// Invariants of a transition.
    pub(super) fn judge(&self, tables: &mut Tables, before: Store, after: Store) -> Option<Violation> {
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
            Some(Violation::UnnamedCopy)
        } else if inv_2_a_document_that_exists_has_a_copy(&is, exists).is_err() {
            Some(Violation::NoCopyLeft)
        } else if inv_4_nothing_goes_back(&was, &is).is_err()
            && self.setting.weakening != Weakening::TombstonesAreForgotten
            && !(self.setting.sweeps && is.placement.is_none())
        {
            Some(Violation::WentBack)
        } else if after.copies.iter().any(|copy| copy.content != 0 && !tables.names.is_located(copy.content))
        {
            Some(Violation::Unlocated)
        } else {
            None
        };
        tables.judged.insert((before, after), judged);
        judged
    }

    /// Invariants once the owner has nothing left to do, even if zombies may still act.
    fn judge_at_rest(&self, tables: &mut Tables, store: Store) -> Option<Violation> {
        if let Some(judged) = tables.judged_at_rest.get(&store) {
            return *judged;
        }
        let view = store.view(&tables.names);
        let is_placed = view.placement.as_ref().is_some_and(|placement| placement.shard.is_some());
        let judged = if self.refuses() {
            // Known limits: the remains of a refused document depend on how it was folded. It stays named, and is
            // correct where its placement says that it is.
            if !is_placed && !view.copies.is_empty() {
                Some(Violation::CopiesElsewhere)
            } else if self.is_misplaced(&tables.names, store) {
                Some(Violation::InNoMap)
            } else {
                None
            }
        } else if inv_5_at_rest_there_is_one_copy(&view).is_err() {
            Some(Violation::CopiesElsewhere)
        } else {
            let expected = &self.naive[self.setting.script.len()];
            let copy = store.copies.iter().position(|copy| copy.content != 0);
            let content = copy.map(|n| {
                let content = tables.names.content(store.copies[n].content);
                serde_json::from_slice::<Value>(content).unwrap()
            });
            if !expected.contains(&content) {
                Some(Violation::OtherContent)
            } else if self.is_misplaced(&tables.names, store) {
                Some(Violation::InNoMap)
            } else {
                None
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
    pub(super) fn judge_state(&self, tables: &mut Tables, state: &mut State) {
        if state.broken.is_some() {
            return;
        }
        let is_expected = state.committed > 0 && !self.refuses();
        if is_expected && !self.is_shown(tables, state.store, state.committed) {
            state.broken = Some(Violation::CommittedAndNotShown);
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
                state.broken = Some(Violation::OwedAndNothingToDo);
            } else {
                state.broken = self.judge_at_rest(tables, state.store);
                if state.broken.is_none() && self.setting.tally && !self.is_counted(tables, state) {
                    state.broken = Some(Violation::Miscounted);
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

    /// The owner goes on alone: it comes to rest.
    pub(super) fn judge_left_alone(&self, tables: &mut Tables, mut state: State) -> Option<Violation> {
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
                return None;
            }
            if state.broken.is_some() {
                // Explored at its own time.
                return None;
            }
        }
        Some(Violation::NoRest)
    }
}
