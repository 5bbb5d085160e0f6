//! The maps a partition acts by, and their confirmation (protocol, "Changing the map").

use std::sync::Arc;

use super::{Promise, Task};
use crate::io::maps::MapsRecord;

impl Task {
    /// Switches to the latest known maps once no batch begun under earlier ones is in flight, and has the switch
    /// confirmed (protocol, "Changing the map").
    pub(super) fn follow_maps(&mut self) {
        let known = self.maps.record();
        if self.desk.is_some() && known.generation != self.acting.generation {
            self.act_by(known);
        }
        if let Some(owed) = self.ledger.watermark()
            && owed < self.floor()
        {
            let reason = "the map was changed meanwhile, and this record was done before that: another worker must own the \
                          partition; it is not worked on here until it is assigned anew";
            self.stop(Some(owed), reason);
        }
    }

    pub(super) fn act_by(&mut self, record: Arc<MapsRecord>) {
        let (map, other) = (record.deciding().clone(), record.other().cloned());
        let since = self.ledger.place_by(map.clone(), other.clone());
        if let Some(desk) = &mut self.desk {
            (desk.rules.map, desk.rules.other_map, desk.both_maps_since) = (map, other, since);
            // While two maps are live, readers ask the indices of both in any case.
            let moves = self.partition.bench.moves.visibility;
            desk.searches_are_served = moves == Promise::Search || record.has_two();
        }
        self.claim.act_by(record.generation);
        self.acting = record;
    }

    /// See [`MapsRecord::floor`].
    pub(super) fn floor(&self) -> i64 {
        self.acting.floor_of(self.partition.number, self.partition.bench.epoch)
    }

    /// Whether a batch may be sent: the known maps are recent, and so is the confirmation of the claim by an owner
    /// acting by them.
    pub(super) fn may_send(&self) -> bool {
        let generation = self.acting.generation;
        self.maps.is_fresh()
            && self.maps.record().generation == generation
            && self.claim.is_confirmed(self.ownership.taken(), generation)
            && self.ledger.watermark().is_none_or(|owed| owed >= self.floor())
    }
}
