//! The maps that a partition acts by (protocol, "Changing the map").

use std::sync::Arc;

use crate::base::position::Epoch;
use crate::io::maps::{MapsReader, MapsRecord};

/// The maps record in force for one partition. It follows the known one between two batches.
pub(super) struct MapsInForce {
    known: MapsReader,
    record: Arc<MapsRecord>,
    partition: i32,
    epoch: Epoch,
}

impl MapsInForce {
    pub(super) fn new(known: MapsReader, partition: i32, epoch: Epoch) -> Self {
        Self { record: known.record(), known, partition, epoch }
    }

    /// The record in force.
    pub(super) fn record(&self) -> &Arc<MapsRecord> {
        &self.record
    }

    /// Its generation.
    pub(super) fn generation(&self) -> u64 {
        self.record.generation
    }

    /// The known record, if it is of another generation.
    pub(super) fn newer(&self) -> Option<Arc<MapsRecord>> {
        let known = self.known.record();
        (known.generation != self.record.generation).then_some(known)
    }

    /// Puts a record in force.
    pub(super) fn act_by(&mut self, record: Arc<MapsRecord>) {
        self.record = record;
    }

    /// Whether the record was read at all.
    pub(super) fn are_known(&self) -> bool {
        self.known.is_known()
    }

    /// Whether a batch may be sent by these maps: they are the known ones, and those were read recently.
    pub(super) fn are_current(&self) -> bool {
        self.known.is_fresh() && self.newer().is_none()
    }

    /// Whether an owner may still work on what is owed from this offset on. See [`MapsRecord::floor_of`].
    pub(super) fn allow(&self, owed: Option<i64>) -> bool {
        owed.is_none_or(|owed| owed >= self.record.floor_of(self.partition, self.epoch))
    }

    /// Waits until the record was read again.
    pub(super) async fn read_again(&mut self) {
        self.known.read_again().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::maps::OffsetFloor;
    use crate::testkit::testing::{TokioClock, rules};

    #[test]
    fn nothing_below_the_floor_of_the_record_in_force_is_allowed() {
        let map = rules().map;
        let known = MapsReader::fixed(map.clone(), Arc::new(TokioClock::new()));
        let mut maps = MapsInForce::new(known, 3, Epoch::default());
        assert!(maps.allow(Some(0)) && maps.are_known() && maps.are_current() && maps.newer().is_none());
        let record = MapsRecord::unwritten(map, Epoch::default());
        let floor = OffsetFloor::from([(2, 99), (3, 10)]);
        maps.act_by(Arc::new(MapsRecord { generation: 1, floor, ..record }));
        assert_eq!([None, Some(10), Some(9)].map(|owed| maps.allow(owed)), [true, true, false]);
        assert!(!maps.are_current(), "the known record is of another generation");
        assert_eq!(maps.newer().map(|record| record.generation), Some(0));
    }
}
