//! Records from the queue: their order, their keys, their schema, and what they decode to.

use super::dead_letters::NoTopic;
use super::record_sequence::Order;
use super::task::PartitionTask;
use crate::base::clock::Instant;
use crate::base::ids::DocId;
use crate::core::decode::{BadRecord, Undecoded};
use crate::core::schemas::SchemaId;
use crate::core::write::Write;
use crate::io::registry::CachedSchema;
use crate::support::telemetry::events::GapWhileCounting;
use crate::worker::record::Record;

/// Records taken from the queue in one go before the batch in flight is polled again.
const RECORDS_AT_ONCE: usize = 512;

impl PartitionTask {
    /// Takes this record, and those that are queued behind it.
    pub(super) fn take_many(&mut self, record: Record) {
        let now = self.now();
        self.take(record, now);
        for _ in 1..RECORDS_AT_ONCE {
            if self.is_stopped || self.schema_wait.is_waiting() {
                break;
            }
            match self.partition.records.try_recv() {
                Ok(record) => self.take(record, now),
                Err(_) => break,
            }
        }
    }

    /// Tells the budget what was taken: not with each record, since all partitions share it.
    pub(super) fn report_taken_bytes(&mut self) {
        self.sequence.pause();
        if self.taken_bytes > 0 {
            self.partition.meter.dequeued(std::mem::take(&mut self.taken_bytes));
            self.update_held_bytes();
        }
    }

    pub(super) fn take(&mut self, record: Record, now: Instant) {
        let offset = record.offset;
        let is_after_gap = match self.sequence.order(&record, self.ledger.next_offset()) {
            Order::Repeated => {
                tracing::debug!(partition = self.partition.number, offset, "read twice in a row");
                return self.partition.meter.dequeued(record.bytes());
            }
            Order::Backwards { next } => {
                self.partition.meter.dequeued(record.bytes());
                let reason = format!(
                    "offset {offset} was read after offset {}: the partition lost records, or the topic was created anew, so \
                     offsets start over; raise positions.epoch above {}",
                    next - 1,
                    self.partition.context.epoch
                );
                return self.stop(Some(offset), &reason);
            }
            Order::Next { is_after_gap } => is_after_gap,
        };
        if let Some(other) = self.sequence.other_partitioner(record.key.as_deref()) {
            self.partition.meter.dequeued(record.bytes());
            return self.stop(Some(offset), &other.to_string());
        }
        if is_after_gap {
            self.note_gap();
        }
        self.metrics.record_in();
        self.decode(record, now);
    }

    /// Decodes a record into its write or its defect; holds it back while its schema is unknown.
    fn decode(&mut self, record: Record, now: Instant) {
        let cost = record.bytes();
        match self.partition.context.decoder.decode(record.raw(self.partition.number), &mut self.schemas) {
            Ok(write) => {
                let offset = record.offset;
                self.traces.note(&write.id, record.headers.as_ref(), offset);
                // Drops the one before. Now: that waits for all stores so far, and storing the write makes many.
                self.sequence.read(record);
                let max_age = self.max_dirty_age();
                if let Err(lost) = self.ledger.take_or_pass_over(write, max_age, now) {
                    self.stop(Some(offset), &lost.to_string());
                }
                self.send_rejected();
            }
            Err(Undecoded::Bad(bad)) => {
                self.sequence.read(record.clone());
                self.refuse(record, &bad);
            }
            Err(Undecoded::Lacks(schema)) => return self.wait_for_schema(record, schema),
        }
        self.taken_bytes += cost;
    }

    /// Dead-letters a record that cannot be decoded.
    fn refuse(&mut self, record: Record, bad: &BadRecord) {
        let offset = record.offset;
        self.ledger.dead_letter_queued(offset);
        match self.dead_letters.send_record(record, bad) {
            Ok(()) => self.ledger.read_up_to(offset + 1),
            // The record is never handled: its offset holds the watermark.
            Err(NoTopic { offset, reason }) => self.stop(Some(offset), &reason),
        }
    }

    /// Reports missing offsets, once per assignment.
    pub(super) fn note_gap(&mut self) {
        if self.sequence.note_gap() && self.increments.are_sent() {
            GapWhileCounting { partition: self.partition.number }.emit(&self.partition.context.metrics);
        }
    }

    /// Passes offsets at the end that are not records; stops if the partition cannot be read further.
    pub(super) fn follow_offsets(&mut self) {
        if let Some(end) = self.all_is_read_to()
            && self.ledger.next_offset().is_none_or(|next| next < end)
        {
            self.note_gap();
            self.ledger.read_up_to(end);
        }
    }

    /// The offset up to which everything was taken, as reported by the poll thread.
    pub(super) fn all_is_read_to(&mut self) -> Option<i64> {
        let known = *self.known.borrow_and_update();
        if let Some(trouble) = known.trouble
            && !self.is_stopped
        {
            self.stop(Some(trouble.offset()), &trouble.to_string());
        }
        // Checked after `read_to`: records below it are queued or taken.
        let is_queue_empty = self.partition.records.is_empty();
        let all_is_taken = is_queue_empty && !self.schema_wait.is_waiting() && !self.is_stopped;
        known.read_to.filter(|_| all_is_taken)
    }

    fn wait_for_schema(&mut self, record: Record, id: SchemaId) {
        if let Err(record) = self.schema_wait.hold_back(record, id) {
            self.partition.meter.dequeued(record.bytes());
            self.stop(
                Some(record.offset),
                "a record needs a schema, and this worker has no registry; set [schema_registry]",
            );
        }
    }

    pub(super) fn take_schema(&mut self, id: SchemaId, looked: CachedSchema) {
        self.schemas.learn(id, looked);
        if let Some(record) = self.schema_wait.take() {
            self.decode(record, self.now());
        }
    }

    pub(super) fn decode_again(&mut self, id: &DocId, record: &Record) -> Result<Write, String> {
        let offset = record.offset;
        match self.partition.context.decoder.decode(record.raw(self.partition.number), &mut self.schemas) {
            Ok(write) if write.id == *id => Ok(write),
            Ok(_) => Err(format!("offset {offset} now holds another document")),
            Err(Undecoded::Bad(bad)) => Err(format!("offset {offset} can no longer be decoded: {bad}")),
            Err(Undecoded::Lacks(_)) => Err(format!("the schema of offset {offset} is no longer available")),
        }
    }
}
