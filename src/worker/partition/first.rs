//! How a partition begins: at its first record, if that is where it left off.

use futures::future::Fuse;

use super::{Mode, Task};
use crate::meta::{EpochNeeded, MemoryError};
use crate::position::Position;
use crate::worker::record::Record;

impl Task {
    /// Waits for the first record, so that an idle partition costs no read of the meta index.
    /// The maps are followed meanwhile: whoever changes them waits for every partition. No record is taken before they are
    /// known: its targets would be those of the configured map, which may be another one.
    pub(super) async fn first_record(&mut self) -> Option<Record> {
        loop {
            if *self.partition.mode.borrow_and_update() != Mode::Run {
                return None;
            }
            self.follow_maps();
            tokio::select! {
                // Not by chance, here and elsewhere: what happened must be possible to replay.
                biased;
                changed = self.partition.mode.changed() => if changed.is_err() { return None },
                confirmed = &mut self.confirming => self.maps_confirmed(confirmed),
                () = self.maps.read_again() => {}
                record = self.partition.records.recv(), if self.maps.is_known() => return record,
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
            let remembered = bench.memory.watermark(number, &lease);
            tokio::pin!(remembered);
            let remembered = loop {
                tokio::select! {
                    // An answer first would be fatal: past its end a lease gives none without ever waiting.
                    biased;
                    // Nothing is dirty yet, so whatever else is wanted now is done by ending.
                    _ = self.partition.mode.changed() => return false,
                    // It may hold the very permit that the answer waits for.
                    confirmed = &mut self.confirming => self.maps_confirmed(confirmed),
                    remembered = &mut remembered => break remembered,
                }
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

    /// A stopped partition holds its place until it is revoked or the worker ends. It holds nothing else: not the permit
    /// of a confirmation that is under way.
    pub(super) async fn wait_to_be_dismissed(&mut self) {
        self.confirming = Fuse::terminated();
        while *self.partition.mode.borrow_and_update() == Mode::Run {
            if self.partition.mode.changed().await.is_err() {
                break;
            }
        }
    }
}
