//! What the autopilot has to remember: a document of the meta index. Pure, but for reading and writing it.
//!
//! ```text
//!   idle ──plan──▶ planned ──(the maps' record: begin … finish)──▶ ended: idle
//!                    │
//!                    ├── killed before the change began: forgotten, and its documents are not charged
//!                    └── called off by hand: forgotten, its documents stay charged
//! ```
//!
//! A change is noted here before it begins, so that a process that is killed in between leaves a plan that was never begun, and
//! never a change that nobody has planned. Which maps are in force is only in the maps' record ([`crate::io::maps`]).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::clock::Instant;
use crate::base::ids::DocId;
use crate::geoshard::balance::decide::BalanceHistory;
use crate::io::elastic::{Elastic, SeqNo};
use crate::io::maps::{MapChangeStage, MapsRecord, MapsState};
use crate::io::stored::{RecordError, StoredRecord, key};

/// The stored document.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct AutopilotRecord {
    /// Who acts by it.
    #[serde(default)]
    pub holder: Option<Holder>,
    /// It was stopped: nothing begins.
    #[serde(default)]
    pub stopped: Option<Stopped>,
    /// A change that was decided, until it has ended.
    #[serde(default)]
    pub planned: Option<Planned>,
    /// What was done before.
    #[serde(default)]
    pub history: BalanceHistory,
    /// The last decision.
    #[serde(default)]
    pub last: Option<Last>,
}

/// A process that holds the lease. It renews it by writing; one that is not renewed for `lease_ms` is taken over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// No other process has it.
    pub id: String,
    /// For people.
    pub name: String,
    /// How long it may be silent.
    pub lease_ms: u64,
    /// Counts renewals.
    pub beat: u64,
}

/// The stop switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {
    /// Who.
    pub by: String,
    /// When, in seconds since 1970.
    pub at: u64,
}

/// A decided change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    /// Fingerprint of its map.
    pub map: String,
    /// The generation of the maps' record before it.
    pub generation: u64,
    /// Documents that it moves.
    pub documents: f64,
    /// When it was decided, in seconds since 1970.
    pub at: u64,
}

/// A decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Last {
    /// When, in seconds since 1970.
    pub at: u64,
    /// In words.
    pub decision: String,
}

/// What is under way, by both records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnderWay {
    /// Nothing.
    Nothing,
    /// The planned change was never begun.
    NeverBegun,
    /// The planned change is to be gone on with.
    Own,
    /// The planned change is being called off: that is to be gone on with.
    OwnReturns,
    /// The planned change has ended.
    Ended,
    /// The planned change was called off.
    CalledOff,
    /// Somebody else's change.
    Foreign,
}

impl AutopilotRecord {
    /// What is under way.
    pub fn under_way(&self, maps: &MapsRecord) -> UnderWay {
        match (&self.planned, &maps.state) {
            (None, MapsState::One { .. }) => UnderWay::Nothing,
            (None, MapsState::Two { .. }) => UnderWay::Foreign,
            (Some(planned), MapsState::One { map, .. }) if map.fingerprint() == planned.map => {
                UnderWay::Ended
            }
            (Some(planned), MapsState::One { .. }) if maps.generation == planned.generation => {
                UnderWay::NeverBegun
            }
            (Some(_), MapsState::One { .. }) => UnderWay::CalledOff,
            (Some(planned), MapsState::Two { new, stage, .. }) if new.fingerprint() == planned.map => {
                if *stage == MapChangeStage::Returning {
                    UnderWay::OwnReturns
                } else {
                    UnderWay::Own
                }
            }
            (Some(_), MapsState::Two { .. }) => UnderWay::Foreign,
        }
    }

    /// Why no change may begin now, if so.
    pub fn why_blocked(&self, under_way: UnderWay) -> Option<String> {
        let why = match (&self.stopped, under_way) {
            (Some(Stopped { by, .. }), _) => {
                return Some(format!("stopped by {by}; `geofold shards autopilot --resume` goes on"));
            }
            (None, UnderWay::Foreign) => "another change of the map is under way: it is waited for",
            (None, UnderWay::Own | UnderWay::OwnReturns) => {
                "a change of the autopilot was interrupted: with --apply it is gone on with"
            }
            (None, UnderWay::Nothing | UnderWay::NeverBegun | UnderWay::Ended | UnderWay::CalledOff) => {
                return None;
            }
        };
        Some(why.to_owned())
    }

    /// Forgets a plan that is not under way any more. `now`: seconds since 1970.
    pub fn settle(&mut self, under_way: UnderWay, now: u64) {
        let planned = match under_way {
            UnderWay::Nothing | UnderWay::Own | UnderWay::OwnReturns => return,
            UnderWay::NeverBegun | UnderWay::Ended | UnderWay::CalledOff | UnderWay::Foreign => {
                self.planned.take()
            }
        };
        let Some(planned) = planned else { return };
        if under_way == UnderWay::NeverBegun {
            // Nothing was moved.
            self.history.moved.retain(|moved| moved.at != planned.at);
        } else {
            self.history.last_change = Some(now);
        }
    }

    /// Notes a change that is about to begin.
    pub fn plan(&mut self, planned: Planned) {
        self.history.begins(planned.at, planned.documents);
        self.planned = Some(planned);
    }

    /// Whether the process `id` holds the lease.
    pub fn is_held_by(&self, id: &str) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.id == id)
    }
}

/// What one process saw of another's lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedLease {
    holder: Holder,
    since: Instant,
}

impl WatchedLease {
    /// Whether the lease of `holder` may be taken: it was silent for as long as it may be, by this process's own clock.
    pub fn is_silent(watched: &mut Option<Self>, holder: &Holder, now: Instant) -> bool {
        match watched {
            Some(seen) if seen.holder == *holder => {
                now.since(seen.since) > Duration::from_millis(holder.lease_ms)
            }
            _ => {
                *watched = Some(Self { holder: holder.clone(), since: now });
                false
            }
        }
    }
}

/// The document of one topic.
pub struct AutopilotStore<'a> {
    elastic: &'a dyn Elastic,
    id: DocId,
    timeout: Duration,
}

impl<'a> AutopilotStore<'a> {
    /// Of `topic`; each request may take `timeout`.
    pub fn new(elastic: &'a dyn Elastic, topic: &str, timeout: Duration) -> Self {
        Self { elastic, id: key(format!("autopilot/{topic}")), timeout }
    }

    /// The document, or an empty one.
    pub async fn read(&self) -> Result<(AutopilotRecord, Option<SeqNo>), RecordError> {
        let (record, stamp) = self.stored().read_as().await?.unzip();
        Ok((record.unwrap_or_default(), stamp))
    }

    /// Changes the document; tries again if another process has changed it meanwhile. `change` gives `None` to leave it as it is.
    pub async fn update<T>(
        &self,
        mut change: impl FnMut(&mut AutopilotRecord) -> Option<T>,
    ) -> Result<Option<T>, RecordError> {
        let change = |record: Option<AutopilotRecord>| {
            let mut record = record.unwrap_or_default();
            let result = change(&mut record)?;
            Some((record, result))
        };
        self.stored().update(change).await
    }

    fn stored(&self) -> StoredRecord<'_> {
        StoredRecord::new(self.elastic, &self.id, self.timeout)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::ids::ShardId;
    use crate::base::position::Epoch;
    use crate::geoshard::GeoshardMap;
    use crate::io::maps::OffsetFloor;

    const NOW: u64 = 1_800_000_000;

    fn map(version: u64) -> Arc<GeoshardMap> {
        Arc::new(GeoshardMap::new(version, "m", vec![(0, ShardId::new("a").unwrap())]).unwrap())
    }

    fn maps() -> MapsRecord {
        MapsRecord::unwritten(map(1), Epoch::default())
    }

    fn planned(version: u64) -> AutopilotRecord {
        let mut record = AutopilotRecord::default();
        record.history.begins(NOW - 50, 7.0);
        record.plan(Planned { map: map(version).fingerprint(), generation: 0, documents: 30.0, at: NOW });
        record
    }

    #[test]
    fn wherever_a_change_is_its_plan_is_gone_on_with_or_forgotten() {
        let epoch = Epoch::default();
        let announced = maps().begin(map(2)).unwrap();
        let moving = announced.activate(epoch, OffsetFloor::new()).unwrap();
        let ended = moving.finish(epoch, OffsetFloor::new()).unwrap();
        let returning = moving.abort().unwrap();
        let called_off = returning.finish(epoch, OffsetFloor::new()).unwrap();
        let foreign = maps().begin(map(3)).unwrap();
        for (maps, expected, is_kept, moved, last) in [
            (maps(), UnderWay::NeverBegun, false, 7.0, None),
            (announced.clone(), UnderWay::Own, true, 37.0, None),
            (moving, UnderWay::Own, true, 37.0, None),
            (ended, UnderWay::Ended, false, 37.0, Some(NOW + 9)),
            (returning, UnderWay::OwnReturns, true, 37.0, None),
            (called_off, UnderWay::CalledOff, false, 37.0, Some(NOW + 9)),
            (announced.abort().unwrap(), UnderWay::CalledOff, false, 37.0, Some(NOW + 9)),
            (foreign.clone(), UnderWay::Foreign, false, 37.0, Some(NOW + 9)),
        ] {
            let mut record = planned(2);
            let under_way = record.under_way(&maps);
            assert_eq!(under_way, expected);
            record.settle(under_way, NOW + 9);
            assert_eq!(record.planned.is_some(), is_kept, "{expected:?}");
            assert_eq!(record.history.moved_today(NOW + 9), moved, "{expected:?}");
            assert_eq!(record.history.last_change, last, "{expected:?}");
        }
        let mut idle = AutopilotRecord::default();
        assert_eq!(
            (idle.under_way(&maps()), idle.under_way(&foreign)),
            (UnderWay::Nothing, UnderWay::Foreign)
        );
        idle.settle(UnderWay::Foreign, NOW);
        assert_eq!(idle, AutopilotRecord::default());
    }

    #[test]
    fn a_lease_is_taken_over_after_its_holder_was_silent_and_not_before() {
        let holder = |beat| Holder { id: "x".to_owned(), name: String::new(), lease_ms: 30_000, beat };
        let at = |seconds| Instant::from_start(Duration::from_secs(seconds));
        let mut watched = None;
        let mut silent = |beat, seconds| WatchedLease::is_silent(&mut watched, &holder(beat), at(seconds));
        assert!(!silent(1, 100));
        assert!(!silent(1, 130));
        assert!(!silent(2, 131), "it was renewed");
        assert!(!silent(2, 161));
        assert!(silent(2, 162));
    }

    #[test]
    fn a_change_begins_only_where_nothing_is_under_way_and_nobody_stopped_it() {
        use UnderWay::{CalledOff, Ended, Foreign, NeverBegun, Nothing, Own, OwnReturns};
        let running = AutopilotRecord::default();
        for (under_way, why) in [
            (Nothing, None),
            (NeverBegun, None),
            (Ended, None),
            (CalledOff, None),
            (Foreign, Some("another change")),
            (Own, Some("was interrupted")),
            (OwnReturns, Some("was interrupted")),
        ] {
            let said = running.why_blocked(under_way);
            assert_eq!(said.is_some(), why.is_some(), "{under_way:?}");
            assert!(said.unwrap_or_default().contains(why.unwrap_or_default()), "{under_way:?}");
            let stopped =
                AutopilotRecord { stopped: Some(Stopped { by: "x".to_owned(), at: NOW }), ..running.clone() };
            assert!(stopped.why_blocked(under_way).is_some_and(|said| said.contains("stopped by x")));
        }
    }
}
