//! The configured map against the record of the maps in force (protocol, "Changing the map").

use super::{CheckFinding, CheckTarget};
use crate::io::elastic::{CallError, Elastic};
use crate::io::maps::{MapsRecord, MapsState, MapsStore, Stored};
use crate::io::meta::EpochNeeded;
use crate::io::stored::RecordError;

const MAP: &str = "map";

/// The record of the maps, if there is one.
pub(super) async fn read(
    target: &CheckTarget,
    elastic: &dyn Elastic,
) -> Result<Option<Stored>, CheckFinding> {
    let store = MapsStore::new(elastic, &target.topic, target.timeout);
    store.read().await.map_err(|error| finding(&error))
}

/// Whether a worker with the configured map may follow `record`.
pub(super) fn judge(record: &MapsRecord, target: &CheckTarget) -> CheckFinding {
    let (configured, in_force) = (target.map.fingerprint(), record.deciding().fingerprint());
    if record.knows(&configured) {
        return match &record.state {
            MapsState::Two { new, .. } => CheckFinding::ok(
                MAP,
                format_args!("is being changed to {}; both maps are live", new.fingerprint()),
            ),
            MapsState::One { map, .. } if **map != *target.map => CheckFinding::warning(
                MAP,
                format_args!(
                    "{in_force} is in force, and geoshards.map still holds {configured}, an earlier one: put the new map there"
                ),
            ),
            MapsState::One { .. } => CheckFinding::ok(MAP, format_args!("{in_force} is in force")),
        };
    }
    if takes_over(record, target) {
        return CheckFinding::ok(
            MAP,
            format_args!("a new epoch begins, with map {configured} instead of {in_force}"),
        );
    }
    let (remembered, found, epoch) = (in_force, configured, record.epoch);
    CheckFinding::error(MAP, EpochNeeded::OtherMap { remembered, found, epoch })
}

/// Makes the configured map the one in force, where a new epoch begins with it.
pub(super) async fn replace(
    target: &CheckTarget,
    elastic: &dyn Elastic,
    stored: &Stored,
) -> Result<(), CheckFinding> {
    let is_known = stored.record.knows(&target.map.fingerprint());
    if is_known || !takes_over(&stored.record, target) {
        return Ok(());
    }
    let next = stored.record.replaced(target.map.clone(), target.epoch);
    let store = MapsStore::new(elastic, &target.topic, target.timeout);
    store.write(&next, Some(stored.stamp)).await.map_err(|error| finding(&error))
}

/// All workers were stopped to raise the epoch, and every position is new.
fn takes_over(record: &MapsRecord, target: &CheckTarget) -> bool {
    target.epoch > record.epoch && !record.has_two()
}

fn finding(error: &RecordError) -> CheckFinding {
    match error {
        // Another worker was faster: check again.
        RecordError::Conflict { .. } | RecordError::Refused { .. } => CheckFinding::unreachable(MAP, error),
        RecordError::Call { error: CallError::Connection(_) | CallError::Timeout(_), .. }
        | RecordError::Call {
            error: CallError::Status { status: 429 | 500 | 502 | 503 | 504, .. }, ..
        } => CheckFinding::unreachable(MAP, error),
        RecordError::Call { .. } | RecordError::Unreadable { .. } => CheckFinding::error(MAP, error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{CheckLevel, tests::target};
    use super::*;
    use crate::base::ids::ShardId;
    use crate::base::position::Epoch;
    use crate::geoshard::GeoshardMap;
    use crate::io::maps::OffsetFloor;

    fn map(version: u64) -> Arc<GeoshardMap> {
        Arc::new(GeoshardMap::new(version, "x", vec![(0, ShardId::new("all").unwrap())]).unwrap())
    }

    #[test]
    fn record_overrides_the_file_and_unknown_maps_are_refused() {
        let target = target();
        let epoch = target.epoch;
        let announced = MapsRecord::unwritten(target.map.clone(), epoch).begin(map(8)).unwrap();
        assert_eq!(judge(&announced, &target).level, CheckLevel::Ok);
        let done =
            announced.activate(epoch, OffsetFloor::new()).unwrap().finish(epoch, OffsetFloor::new()).unwrap();
        let old_file = judge(&done, &target);
        assert_eq!(old_file.level, CheckLevel::Warning);
        assert!(old_file.message.contains("put the new map there"), "{old_file}");
        let new_file = CheckTarget { map: map(8), ..target.clone() };
        assert_eq!(judge(&done, &new_file).level, CheckLevel::Ok);
        let other_file = CheckTarget { map: map(9), ..target.clone() };
        assert!(judge(&done, &other_file).is_error() && judge(&announced, &other_file).is_error());
        let raised = CheckTarget { epoch: Epoch::new(epoch.get() + 1).unwrap(), ..other_file };
        assert_eq!(judge(&done, &raised).level, CheckLevel::Ok);
        assert!(judge(&announced, &raised).is_error(), "not in the middle of a change");
    }

    #[test]
    fn indices_of_all_live_maps_are_required() {
        let target = target();
        let names = |target: &CheckTarget| -> Vec<String> {
            target.indices.iter().map(|index| index.name.trim_start_matches("geofold-").to_owned()).collect()
        };
        let record = MapsRecord::unwritten(target.map.clone(), target.epoch).begin(map(8)).unwrap();
        assert_eq!(names(&target.by_record(Some(&record))), ["all", "eu", "us", "placements", "meta"]);
        let record = record.activate(target.epoch, OffsetFloor::new()).unwrap();
        let record = record.finish(target.epoch, OffsetFloor::new()).unwrap();
        assert_eq!(names(&target.by_record(Some(&record))), ["all", "placements", "meta"]);
        assert_eq!(names(&target.by_record(None)), ["eu", "us", "placements", "meta"]);
    }
}
