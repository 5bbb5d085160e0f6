//! Where a partition starts reading, and the checks on its offsets.

use super::Mode;
use super::task::PartitionTask;
use crate::base::position::Position;
use crate::core::offsets::{OffsetVerdict, judge};
use crate::io::meta::{EpochNeeded, MemoryError, Watermark};
use crate::support::config::LostRecords;
use crate::support::telemetry::events::RecordsLost;
use crate::worker::record::Record;

/// The first position read.
pub(super) enum First {
    /// A record.
    Record(Record),
    /// No record yet; the offsets below this end are not records.
    End(i64),
}

impl First {
    /// The first offset known to be reached.
    pub(super) fn offset(&self) -> i64 {
        match self {
            Self::Record(record) => record.offset,
            Self::End(offset) => *offset,
        }
    }
}

impl PartitionTask {
    /// Waits for the first record, so that an idle partition never reads the meta index. Follows map changes meanwhile,
    /// since a change waits for every partition. Takes no record before the maps are known: its targets would come from
    /// the configured map, which may be outdated.
    pub(super) async fn first(&mut self) -> Option<First> {
        // Requested here and not at assignment: a look that began before `assigned_at` does not count, and the next one
        // would come only after the interval.
        self.topic.look_again();
        loop {
            if *self.partition.mode.borrow_and_update() != Mode::Run {
                return None;
            }
            self.follow_claim();
            self.follow_topic();
            let end = self.all_is_read_to();
            if self.is_stopped {
                self.wait_for_revocation().await;
                return None;
            }
            self.follow_maps();
            // Otherwise a record of a re-created topic, or of a key that changed partition, would be misread.
            let may_take = self.maps.are_known() && self.topic.has_looked_since(self.ownership.assigned_at());
            if let Some(end) = end.filter(|_| may_take) {
                return Some(First::End(end));
            }
            tokio::select! {
                // Biased, here and elsewhere, so that runs can be replayed.
                biased;
                changed = self.partition.mode.changed() => if changed.is_err() { return None },
                () = self.ownership.changed() => {}
                () = self.maps.read_again() => {}
                () = self.topic.looked() => {}
                _ = self.known.changed() => {}
                record = self.partition.records.recv(), if may_take => return record.map(First::Record),
            }
        }
    }

    /// Compares the starting offset with the offset committed before (see [`crate::io::meta`]).
    pub(super) async fn may_start_at(&mut self, offset: i64) -> bool {
        let context = self.partition.context.clone();
        let number = self.partition.number;
        if number >= context.partitions {
            let (remembered, epoch) = (context.partitions, context.epoch);
            let new = EpochNeeded::NewPartition { partition: number, remembered, epoch };
            self.stop(Some(offset), &new.to_string());
            return false;
        }
        loop {
            let deadline = self.deadline();
            let remembered = tokio::select! {
                // An answer polled first would be fatal: an expired deadline fails without waiting.
                biased;
                // Nothing is dirty yet, so ending satisfies every other mode.
                _ = self.partition.mode.changed() => return false,
                remembered = context.memory.watermark(number, &deadline) => remembered,
            };
            match remembered {
                Ok(None) => {
                    if offset != 0 {
                        self.note_gap();
                    }
                    return true;
                }
                Ok(Some(remembered)) => match remembered.allows(context.epoch, offset) {
                    Ok(()) if self.is_lost_since(remembered) => return false,
                    Ok(()) => {
                        if offset != remembered.offset {
                            self.note_gap();
                        }
                        // At least this is committed by now.
                        if let Some(position) = Position::new(remembered.epoch, remembered.offset) {
                            self.sequence.committed_at_least(position);
                        }
                        return true;
                    }
                    Err(refused) => {
                        self.stop(Some(offset), &refused.to_string());
                        return false;
                    }
                },
                Err(MemoryError::Unanswered) => {}
                Err(MemoryError::Halt(halt)) => {
                    self.halt(halt);
                    return false;
                }
                Err(error @ MemoryError::Unreadable { .. }) => {
                    self.stop(Some(offset), &error.to_string());
                    return false;
                }
            }
        }
    }

    /// Stops the partition if records after the remembered commit are gone. The poll thread detects this from committed
    /// offsets; this check covers a group whose offsets have expired.
    fn is_lost_since(&mut self, remembered: Watermark) -> bool {
        let context = self.partition.context.clone();
        let Some(first) = self.known.borrow().first.filter(|_| remembered.epoch == context.epoch) else {
            return false;
        };
        let OffsetVerdict::Lost(lost) = judge(None, Some(remembered.offset), first, i64::MAX) else {
            return false;
        };
        let accepted = context.lost_records == LostRecords::Accept;
        RecordsLost { topic: &context.topic, partition: self.partition.number, lost, accepted }
            .emit(&context.metrics);
        if !accepted {
            self.stop(Some(lost.from), &lost.to_string());
        }
        !accepted
    }

    /// A stopped partition stays assigned until it is revoked or the worker ends.
    pub(super) async fn wait_for_revocation(&mut self) {
        while *self.partition.mode.borrow_and_update() == Mode::Run {
            if self.partition.mode.changed().await.is_err() {
                break;
            }
        }
    }
}
