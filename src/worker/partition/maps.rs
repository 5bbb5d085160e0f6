//! By which maps a partition acts, and that whoever changes them knows it (protocol, "Changing the map").

use std::sync::Arc;

use futures::future::{BoxFuture, Fuse, FusedFuture, FutureExt};

use super::Task;
use crate::maps::{Confirmation, MapsRecord};
use crate::meta::MemoryError;

/// Gives the generation that was confirmed.
pub(super) type Confirming = Fuse<BoxFuture<'static, Result<u64, MemoryError>>>;

impl Task {
    /// Acts by the maps as they are known now, as soon as no batch is under way that began under earlier ones, and has
    /// that confirmed (protocol, "Changing the map").
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
        if self.acting.generation > self.confirmed && self.confirming.is_terminated() {
            let (bench, number, lease) = (self.partition.bench.clone(), self.partition.number, self.lease());
            let deadline_ms = u64::try_from(bench.batching.deadline.as_millis()).unwrap_or(u64::MAX);
            let (generation, owner) = (self.acting.generation, bench.owner.to_string());
            let confirming = async move {
                let confirmation = Confirmation { generation, owner, deadline_ms };
                bench.memory.confirm(number, &confirmation, &lease).await.map(|()| generation)
            };
            self.confirming = confirming.boxed().fuse();
        }
    }

    pub(super) fn act_by(&mut self, record: Arc<MapsRecord>) {
        if let Some(desk) = &mut self.desk {
            desk.rules.map = record.deciding().clone();
            desk.two_maps = record.has_two();
        }
        self.ledger.place_by(record.deciding().clone());
        self.acting = record;
    }

    pub(super) fn maps_confirmed(&mut self, confirmed: Result<u64, MemoryError>) {
        match confirmed {
            Ok(generation) => self.confirmed = generation,
            Err(MemoryError::Halt(halt)) => self.halt(halt),
            // It is tried again at once; the attempt before it took a whole lease.
            Err(error) => {
                tracing::warn!(partition = self.partition.number, %error, "the maps in force could not be confirmed");
            }
        }
    }

    /// See [`MapsRecord::floor`].
    pub(super) fn floor(&self) -> i64 {
        self.acting.floor_of(self.partition.number, self.partition.bench.epoch)
    }

    /// Whether what is known of the maps allows a batch to be sent: it is recent, and the partition's owner is known to act
    /// by it.
    pub(super) fn may_send(&self) -> bool {
        let generation = self.acting.generation;
        self.maps.is_fresh()
            && self.maps.record().generation == generation
            && (generation == 0 || self.confirmed == generation)
            && self.ledger.watermark().is_none_or(|owed| owed >= self.floor())
    }
}
