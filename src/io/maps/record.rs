//! The record of the maps in force, and every way in which it may change. Pure.
//!
//! It goes through these stages, one compare-and-set each; the letters are who decides where a document belongs:
//!
//! ```text
//!   One(A) ──begin──▶ Announced(A) ──activate──▶ Moving(B) ──finish──▶ One(B)
//!                          │                        │
//!                        abort                    abort
//!                          ▼                        ▼
//!                        One(A) ◀──finish── Returning(A)
//! ```
//!
//! In the three stages in the middle both maps are live: every entry writes its placement, and a reader has to look where
//! either map says. What must have happened before each step is `ops/migrate/`'s to see to; here is only what follows what.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::base::ids::ShardId;
use crate::base::position::Epoch;
use crate::geoshard::{GeoshardMap, LiveMaps};

/// Earlier maps that are remembered; workers whose file is older are refused.
const MAX_EARLIER: usize = 1000;

/// For each partition the offset below which no owner has anything left to do.
pub type OffsetFloor = BTreeMap<i32, i64>;

/// The stored record about the maps of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapsRecord {
    /// Counts the changes of this record, from 1.
    pub generation: u64,
    /// The epoch of the offsets in `floor`.
    pub epoch: Epoch,
    /// An owner that still holds a record below this has lost its partition and does not know it yet: that record was
    /// done under an earlier generation. Such an owner sends nothing.
    #[serde(default)]
    pub floor: OffsetFloor,
    /// Fingerprints of the maps that were in force before, the latest last: a worker's file may still hold one of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<String>,
    /// Which maps there are.
    #[serde(flatten)]
    pub state: MapsState,
}

/// One map, or two on the way from one to the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum MapsState {
    /// The usual state.
    One {
        /// The map.
        map: Arc<GeoshardMap>,
        /// Fingerprint of the map that was live beside it before: a worker's file may still hold that one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before: Option<String>,
        /// Geoshards that only earlier maps have, and `--retire` did not delete. Their indices are empty.
        #[serde(default)]
        unused: Vec<ShardId>,
    },
    /// A change is going on.
    Two {
        /// The map before the change.
        old: Arc<GeoshardMap>,
        /// The map after it.
        new: Arc<GeoshardMap>,
        /// How far it is.
        stage: MapChangeStage,
        /// Geoshards that neither map has, as in [`MapsState::One`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        unused: Vec<ShardId>,
    },
}

/// How far a change is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MapChangeStage {
    /// Both maps are known; the old one decides.
    Announced,
    /// The new one decides, and documents move.
    Moving,
    /// The change was called off: the old one decides again, and documents move back.
    Returning,
}

/// A step that does not follow from where the record is.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadStep {
    /// Another change is going on.
    #[error("a change to map {going_on} is in progress; finish it with that map, or abort it with --abort")]
    AnotherChange {
        /// Fingerprint of its new map.
        going_on: String,
    },
    /// The change is being called off.
    #[error("the change to map {going_on} is being aborted; let --abort complete first")]
    BeingCalledOff {
        /// Fingerprint of its new map.
        going_on: String,
    },
    /// The map is in force already.
    #[error("map {0} is already in force")]
    InForce(String),
    /// Two maps that differ need two versions.
    #[error(
        "the new map has version {new}, the one in force {old}; plan the new one with --after and the file of the \
         one in force, or give it a higher version"
    )]
    Version {
        /// Of the map in force.
        old: u64,
        /// Of the new map.
        new: u64,
    },
    /// No change is in progress.
    #[error("no change of the map is in progress")]
    NoChange,
    /// Not in this stage.
    #[error("not possible in the stage {0:?} of the change")]
    Stage(MapChangeStage),
}

impl MapsRecord {
    /// The state without a record: `map` is in force, by configuration.
    pub fn unwritten(map: Arc<GeoshardMap>, epoch: Epoch) -> Self {
        let state = MapsState::One { map, before: None, unused: Vec::new() };
        Self { generation: 0, epoch, floor: OffsetFloor::new(), earlier: Vec::new(), state }
    }

    /// Starts a change; both maps are then on record. With the `new` of the change in progress, returns that one.
    pub fn begin(&self, new: Arc<GeoshardMap>) -> Result<Self, BadStep> {
        match &self.state {
            MapsState::One { map, .. } if **map == *new => Err(BadStep::InForce(map.fingerprint())),
            MapsState::One { map, .. } if new.version() <= map.version() => {
                Err(BadStep::Version { old: map.version(), new: new.version() })
            }
            MapsState::One { map, unused, .. } => {
                let unused = unused.iter().filter(|shard| !has(&new, shard)).cloned().collect();
                let (old, stage) = (map.clone(), MapChangeStage::Announced);
                Ok(self.next(MapsState::Two { old, new, stage, unused }))
            }
            MapsState::Two { new: going_on, stage: MapChangeStage::Returning, .. } => {
                Err(BadStep::BeingCalledOff { going_on: going_on.fingerprint() })
            }
            MapsState::Two { new: going_on, .. } if **going_on == *new => Ok(self.clone()),
            MapsState::Two { new: going_on, .. } => {
                Err(BadStep::AnotherChange { going_on: going_on.fingerprint() })
            }
        }
    }

    /// The new map decides from now on. All partitions have confirmed that both are known, no batch is under way that
    /// began before that, and everything below `floor` is committed.
    pub fn activate(&self, epoch: Epoch, floor: OffsetFloor) -> Result<Self, BadStep> {
        match &self.state {
            MapsState::Two { stage: MapChangeStage::Announced, .. } => {
                Ok(Self { epoch, floor, ..self.next(self.in_stage(MapChangeStage::Moving)) })
            }
            MapsState::Two { stage, .. } => Err(BadStep::Stage(*stage)),
            MapsState::One { .. } => Err(BadStep::NoChange),
        }
    }

    /// The map that decides is the only one from now on. All partitions have confirmed that it decides, no batch is under
    /// way that began before that, every document is where it says, and everything below `floor` is committed.
    pub fn finish(&self, epoch: Epoch, floor: OffsetFloor) -> Result<Self, BadStep> {
        let (stays, goes, unused) = match &self.state {
            MapsState::Two { old, new, stage: MapChangeStage::Moving, unused } => (new, old, unused),
            MapsState::Two { old, new, stage: MapChangeStage::Returning, unused } => (old, new, unused),
            MapsState::Two { stage, .. } => return Err(BadStep::Stage(*stage)),
            MapsState::One { .. } => return Err(BadStep::NoChange),
        };
        let mut next = Self { epoch, floor, ..self.next(one_of_two(stays, goes, unused)) };
        if stays.version() > goes.version() {
            next.earlier.retain(|earlier| *earlier != stays.fingerprint());
            next.earlier.push(goes.fingerprint());
            next.earlier.drain(..next.earlier.len().saturating_sub(MAX_EARLIER));
        }
        Ok(next)
    }

    /// The change is aborted. If no document was placed by the new map yet, it ends; otherwise documents move back.
    pub fn abort(&self) -> Result<Self, BadStep> {
        match &self.state {
            MapsState::Two { old, new, stage: MapChangeStage::Announced, unused } => {
                Ok(self.next(one_of_two(old, new, unused)))
            }
            MapsState::Two { stage: MapChangeStage::Moving, .. } => {
                Ok(self.next(self.in_stage(MapChangeStage::Returning)))
            }
            MapsState::Two { stage: MapChangeStage::Returning, .. } => Ok(self.clone()),
            MapsState::One { .. } => Err(BadStep::NoChange),
        }
    }

    /// A new epoch began with another map: all workers were stopped, and every position is new.
    pub fn replaced(&self, map: Arc<GeoshardMap>, epoch: Epoch) -> Self {
        let state = MapsState::One { map, before: None, unused: Vec::new() };
        Self { epoch, floor: OffsetFloor::new(), earlier: Vec::new(), ..self.next(state) }
    }

    /// Records that the indices of these geoshards are deleted.
    pub fn retired(&self) -> Result<Self, BadStep> {
        match &self.state {
            MapsState::One { map, before, .. } => {
                Ok(self.next(MapsState::One { map: map.clone(), before: before.clone(), unused: Vec::new() }))
            }
            MapsState::Two { stage, .. } => Err(BadStep::Stage(*stage)),
        }
    }

    /// The state with another stage, if a change is going on.
    fn in_stage(&self, to: MapChangeStage) -> MapsState {
        let mut state = self.state.clone();
        if let MapsState::Two { stage, .. } = &mut state {
            *stage = to;
        }
        state
    }

    fn next(&self, state: MapsState) -> Self {
        let (generation, floor) = (self.generation + 1, self.floor.clone());
        Self { generation, epoch: self.epoch, floor, earlier: self.earlier.clone(), state }
    }

    /// The map that decides where a document belongs.
    pub fn deciding(&self) -> &Arc<GeoshardMap> {
        match &self.state {
            MapsState::One { map, .. } => map,
            MapsState::Two { new, stage: MapChangeStage::Moving, .. } => new,
            MapsState::Two { old, .. } => old,
        }
    }

    /// The map that is live beside the deciding one.
    pub fn other(&self) -> Option<&Arc<GeoshardMap>> {
        match &self.state {
            MapsState::One { .. } => None,
            MapsState::Two { old, stage: MapChangeStage::Moving, .. } => Some(old),
            MapsState::Two { new, .. } => Some(new),
        }
    }

    /// The maps that readers have to ask.
    pub fn live(&self) -> LiveMaps {
        match &self.state {
            MapsState::One { map, .. } => LiveMaps::One(map.clone()),
            MapsState::Two { old, new, .. } => LiveMaps::Two { old: old.clone(), new: new.clone() },
        }
    }

    /// Whether two maps are live.
    pub fn has_two(&self) -> bool {
        matches!(self.state, MapsState::Two { .. })
    }

    /// Whether a worker whose file holds the map with this fingerprint may follow this record.
    pub fn knows(&self, fingerprint: &str) -> bool {
        let before = match &self.state {
            MapsState::One { before, .. } => before.as_deref(),
            MapsState::Two { .. } => None,
        };
        before == Some(fingerprint)
            || self.earlier.iter().any(|earlier| earlier == fingerprint)
            || self.live().iter().any(|map| map.fingerprint() == fingerprint)
    }

    /// The offset below which the owner of `partition` has nothing left to do; offsets of other epochs say nothing.
    pub fn floor_of(&self, partition: i32, epoch: Epoch) -> i64 {
        if epoch != self.epoch {
            return 0;
        }
        self.floor.get(&partition).copied().unwrap_or(0)
    }
}

fn one_of_two(stays: &Arc<GeoshardMap>, goes: &GeoshardMap, unused: &[ShardId]) -> MapsState {
    let unused = goes.shards().iter().chain(unused).filter(|shard| !has(stays, shard)).cloned().collect();
    MapsState::One { map: stays.clone(), before: Some(goes.fingerprint()), unused }
}

fn has(map: &GeoshardMap, shard: &ShardId) -> bool {
    map.shards().binary_search(shard).is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn map(version: u64, shards: &[&str]) -> Arc<GeoshardMap> {
        let ranges = shards.iter().enumerate().map(|(n, id)| {
            let from = if n == 0 { 0 } else { (n as u64) << 60 | 1 };
            (from, ShardId::new(id).unwrap())
        });
        Arc::new(GeoshardMap::new(version, "test", ranges.collect()).unwrap())
    }

    fn a() -> Arc<GeoshardMap> {
        map(1, &["x", "y"])
    }

    fn b() -> Arc<GeoshardMap> {
        map(2, &["y", "z"])
    }

    fn start() -> MapsRecord {
        MapsRecord::unwritten(a(), Epoch::new(1).unwrap())
    }

    /// Every record that steps can lead to, with how it was reached; each step that may be taken is taken.
    fn all() -> Vec<(String, MapsRecord)> {
        let (epoch, floor) = (Epoch::new(1).unwrap(), || OffsetFloor::from([(0, 7)]));
        let mut known = vec![("start".to_owned(), start())];
        let mut at = 0;
        while let Some((way, record)) = known.get(at).cloned() {
            at += 1;
            let steps = [
                ("begin", record.begin(b())),
                ("activate", record.activate(epoch, floor())),
                ("finish", record.finish(epoch, floor())),
                ("abort", record.abort()),
                ("retired", record.retired()),
            ];
            for (step, next) in steps {
                let Ok(next) = next else { continue };
                if !known.iter().any(|(_, known)| known.state == next.state) {
                    known.push((format!("{way} {step}"), next));
                }
            }
        }
        known
    }

    #[test]
    fn a_change_goes_forward_or_back_and_every_way_ends_with_one_map() {
        let ways: Vec<String> = all().into_iter().map(|(way, _)| way).collect();
        assert_eq!(
            ways,
            [
                "start",
                "start begin",
                "start begin activate",
                "start begin abort",
                "start begin activate finish",
                "start begin activate abort",
                "start begin abort retired",
                "start begin activate finish retired",
            ]
        );
        for (way, record) in all() {
            match &record.state {
                MapsState::One { map, .. } => assert!(**map == *a() || **map == *b(), "{way}"),
                MapsState::Two { stage, .. } => {
                    let ends = match stage {
                        MapChangeStage::Announced => record.abort(),
                        _ => record.finish(record.epoch, OffsetFloor::new()),
                    };
                    assert!(!ends.unwrap().has_two(), "{way}");
                }
            }
        }
    }

    #[test]
    fn adjacent_steps_with_two_placing_maps_have_both_live() {
        let (epoch, floor) = (Epoch::new(1).unwrap(), OffsetFloor::new());
        for (way, record) in all() {
            for next in [
                record.begin(b()),
                record.activate(epoch, floor.clone()),
                record.finish(epoch, floor.clone()),
                record.abort(),
                record.retired(),
            ] {
                let Ok(next) = next else { continue };
                if next.deciding() != record.deciding() {
                    assert!(record.has_two() && next.has_two(), "{way}: {next:?}");
                }
                // Readers query at least every map by which the previous step may have placed a document.
                assert!(next.live().iter().any(|map| map == next.deciding()), "{way}");
                assert!(record.live().iter().any(|map| map == next.deciding()) || !next.has_two(), "{way}");
                assert!(next.generation == record.generation + 1 || next == record, "{way}");
            }
        }
    }

    #[test]
    fn step_taken_before_a_crash_is_not_repeated() {
        let announced = start().begin(b()).unwrap();
        assert_eq!(announced.begin(b()).unwrap(), announced, "the same change goes on");
        let moving = announced.activate(announced.epoch, OffsetFloor::new()).unwrap();
        assert_eq!(moving.begin(b()).unwrap(), moving);
        assert_eq!(
            moving.activate(moving.epoch, OffsetFloor::new()),
            Err(BadStep::Stage(MapChangeStage::Moving))
        );
        let returning = moving.abort().unwrap();
        assert_eq!(returning.abort().unwrap(), returning);
        assert!(matches!(returning.begin(b()), Err(BadStep::BeingCalledOff { .. })));
        let done = moving.finish(moving.epoch, OffsetFloor::new()).unwrap();
        assert!(matches!(done.begin(b()), Err(BadStep::InForce(_))));
        assert_eq!(done.finish(done.epoch, OffsetFloor::new()), Err(BadStep::NoChange));
        assert_eq!(done.abort(), Err(BadStep::NoChange));
    }

    #[test]
    fn other_or_older_map_is_refused() {
        let announced = start().begin(b()).unwrap();
        let other = map(3, &["q"]);
        assert!(matches!(announced.begin(other), Err(BadStep::AnotherChange { .. })));
        assert_eq!(start().begin(map(1, &["z"])), Err(BadStep::Version { old: 1, new: 1 }));
    }

    #[test]
    fn worker_may_keep_the_old_map_for_a_while() {
        let (a, b) = (a().fingerprint(), b().fingerprint());
        let announced = start().begin(self::b()).unwrap();
        let moving = announced.activate(announced.epoch, OffsetFloor::new()).unwrap();
        let done = moving.finish(moving.epoch, OffsetFloor::from([(3, 9)])).unwrap();
        for record in [&announced, &moving, &done] {
            assert!(record.knows(&a) && record.knows(&b) && !record.knows("9-other"), "{record:?}");
        }
        assert!(start().knows(&a) && !start().knows(&b));
        let MapsState::One { unused, .. } = &done.state else { panic!("{done:?}") };
        assert_eq!(unused.iter().map(ShardId::as_str).collect::<Vec<_>>(), ["x"]);
        assert_eq!((done.floor_of(3, done.epoch), done.floor_of(4, done.epoch)), (9, 0));
        assert_eq!(done.floor_of(3, Epoch::new(2).unwrap()), 0, "offsets of another epoch");
    }

    #[test]
    fn what_is_not_retired_stays_unused_until_a_map_uses_it_again() {
        let (epoch, floor) = (Epoch::new(1).unwrap(), OffsetFloor::new);
        let unused = |record: &MapsRecord| {
            let MapsState::One { unused, .. } = &record.state else { panic!("{record:?}") };
            unused.iter().map(|shard| shard.as_str().to_owned()).collect::<BTreeSet<_>>()
        };
        let set = |shards: &[&str]| shards.iter().map(|&shard| shard.to_owned()).collect::<BTreeSet<_>>();
        let begun = |record: &MapsRecord, next: &Arc<GeoshardMap>| record.begin(next.clone()).unwrap();
        let moving = |record: &MapsRecord, next: &Arc<GeoshardMap>| {
            begun(record, next).activate(epoch, floor()).unwrap()
        };
        let done = moving(&start(), &b()).finish(epoch, floor()).unwrap();
        assert_eq!(unused(&done), set(&["x"]));
        for (next, forward, back) in [
            (map(3, &["q"]), set(&["x", "y", "z"]), set(&["q", "x"])),
            (map(3, &["x", "y"]), set(&["z"]), set(&["x"])),
        ] {
            assert_eq!(unused(&moving(&done, &next).finish(epoch, floor()).unwrap()), forward);
            let returned = moving(&done, &next).abort().unwrap().finish(epoch, floor()).unwrap();
            assert_eq!(unused(&returned), back);
            assert_eq!(unused(&begun(&done, &next).abort().unwrap()), back);
        }
        assert_eq!(unused(&done.retired().unwrap()), set(&[]));
    }

    #[test]
    fn worker_may_keep_a_map_that_was_in_force_many_changes_ago() {
        let (epoch, maps) = (Epoch::new(1).unwrap(), (1..=5).map(|version| map(version, &["x", "y"])));
        let maps: Vec<_> = maps.collect();
        let mut record = MapsRecord::unwritten(maps[0].clone(), epoch);
        for next in &maps[1..] {
            let called_off =
                record.begin(map(9, &["q"])).unwrap().activate(epoch, OffsetFloor::new()).unwrap();
            record = called_off.abort().unwrap().finish(epoch, OffsetFloor::new()).unwrap();
            record = record.begin(next.clone()).unwrap().activate(epoch, OffsetFloor::new()).unwrap();
            assert!(
                maps.iter()
                    .filter(|map| map.version() <= next.version())
                    .all(|map| record.knows(&map.fingerprint()))
            );
            record = record.finish(epoch, OffsetFloor::new()).unwrap();
        }
        assert!(maps.iter().all(|map| record.knows(&map.fingerprint())));
        assert!(!record.knows(&map(9, &["q"]).fingerprint()), "it never was the only one");
        assert_eq!(record.earlier.len(), 4);
        assert!(!record.replaced(a(), epoch).knows(&maps[2].fingerprint()), "every position is new");
    }

    #[test]
    fn a_record_written_and_read_again_is_the_same() {
        for (way, record) in all() {
            let json = serde_json::to_string(&record).unwrap();
            assert!(!json.contains('\n'));
            assert_eq!(serde_json::from_str::<MapsRecord>(&json).unwrap(), record, "{way}");
        }
    }
}
