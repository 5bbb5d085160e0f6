//! How a partition begins: at its first record, if that is where it left off.

use super::{Mode, Task};
use crate::meta::{EpochNeeded, MemoryError};
use crate::position::Position;
use crate::worker::record::Record;

impl Task {
    /// Waits for the first record, so that an idle partition costs no read of the meta index.
    /// The maps are followed meanwhile: whoever changes them waits for every partition. No record is taken before they are
    /// known: its targets would be those of the configured map, which may be another one.
    pub(super) async fn first_record(&mut self) -> Option<Record> {
        // Asked for here and not with the assignment: a look that began before `assigned_at` would not count, and the next one
        // comes only after its interval.
        self.topic.look_again();
        loop {
            if *self.partition.mode.borrow_and_update() != Mode::Run {
                return None;
            }
            self.follow_claim();
            self.follow_topic();
            if self.stopped {
                self.wait_to_be_dismissed().await;
                return None;
            }
            self.follow_maps();
            // A record of another topic, or of a key that was in another partition, would be taken for what it is not.
            let may_take = self.maps.is_known() && self.topic.has_looked_since(self.assigned_at);
            tokio::select! {
                // Not by chance, here and elsewhere: what happened must be possible to replay.
                biased;
                changed = self.partition.mode.changed() => if changed.is_err() { return None },
                () = self.claim.changed() => {}
                () = self.maps.read_again() => {}
                () = self.topic.looked() => {}
                record = self.partition.records.recv(), if may_take => return record,
            }
        }
    }

    /// Compares where reading starts with what was committed before (see [`crate::meta`]).
    pub(super) async fn may_start_at(&mut self, offset: i64) -> bool {
        let bench = self.partition.bench.clone();
        let number = self.partition.number;
        if number >= bench.partitions {
            let (remembered, found, epoch) = (bench.partitions, number + 1, bench.epoch);
            self.stop(Some(offset), &EpochNeeded::OtherPartitions { remembered, found, epoch }.to_string());
            return false;
        }
        loop {
            let lease = self.lease();
            let remembered = tokio::select! {
                // An answer first would be fatal: past its end a lease gives none without ever waiting.
                biased;
                // Nothing is dirty yet, so whatever else is wanted now is done by ending.
                _ = self.partition.mode.changed() => return false,
                remembered = bench.memory.watermark(number, &lease) => remembered,
            };
            match remembered {
                Ok(None) => {
                    if offset != 0 {
                        self.note_gap();
                    }
                    return true;
                }
                Ok(Some(remembered)) => match remembered.allows(bench.epoch, offset) {
                    Ok(()) => {
                        if offset != remembered.offset {
                            self.note_gap();
                        }
                        // Committed by now, and perhaps more.
                        self.committed_before = Position::new(remembered.epoch, remembered.offset)
                            .unwrap_or(self.committed_before);
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

    /// A stopped partition holds its place until it is revoked or the worker ends.
    pub(super) async fn wait_to_be_dismissed(&mut self) {
        while *self.partition.mode.borrow_and_update() == Mode::Run {
            if self.partition.mode.changed().await.is_err() {
                break;
            }
        }
    }
}
