//! Dead letters of a partition. The ledger holds the watermark until a letter is acknowledged.

use std::sync::Arc;

use futures::future::FutureExt;

use super::Task;
use crate::base::ids::DocId;
use crate::core::decode::BadRecord;
use crate::core::mover::Refusal;
use crate::support::telemetry::events::DeadLettered;
use crate::support::telemetry::metrics::Outcome as Counted;
use crate::worker::dead_letter::{DeadLetterSink, Letter, Origin};
use crate::worker::ledger::Undeliverable;
use crate::worker::record::Record;

/// The subject of an acknowledged dead letter.
pub(super) struct Delivered {
    first_offset: i64,
    last_offset: i64,
    records: u32,
    bytes: usize,
    reason: &'static str,
    detail: String,
    id: Option<DocId>,
}

impl Task {
    /// Dead-letters a record that cannot be decoded.
    pub(super) fn refuse(&mut self, record: Record, bad: &BadRecord) {
        let (offset, bytes) = (record.offset, record.bytes());
        let Some(dead_letters) = self.partition.bench.dead_letters.clone() else {
            // The record is never handled: its offset holds the watermark.
            self.ledger.dead_letter_queued(offset);
            return self
                .stop(Some(offset), &format!("bad record, and no dead-letter topic configured: {bad}"));
        };
        let letter = Letter {
            key: record.key,
            value: record.value,
            headers: record.headers.unwrap_or_default(),
            reason: bad.reason(),
            stage: bad.stage(),
            detail: bad.to_string(),
            origin: Origin {
                topic: self.partition.bench.topic.clone(),
                partition: self.partition.number,
                first_offset: offset,
                last_offset: offset,
            },
        };
        self.ledger.dead_letter_queued(offset);
        self.ledger.read_up_to(offset + 1);
        let delivered = Delivered {
            first_offset: offset,
            last_offset: offset,
            records: 1,
            bytes,
            reason: letter.reason,
            detail: letter.detail.clone(),
            id: None,
        };
        self.deliver(dead_letters, vec![letter], delivered);
    }

    pub(super) fn send_rejected(&mut self) {
        let rejected = self.ledger.take_rejected();
        self.send_undeliverable(rejected);
    }

    pub(super) fn send_undeliverable(&mut self, undeliverable: Vec<Undeliverable>) {
        for letter in undeliverable {
            let bytes = letter.bytes();
            let Undeliverable { id, fold, refusal, stage, record } = letter;
            let Some(dead_letters) = self.partition.bench.dead_letters.clone() else {
                let reason = format!(
                    "a write was refused, and no dead-letter topic is configured: {}",
                    refusal.detail
                );
                self.stop(Some(fold.first.offset()), &reason);
                continue;
            };
            let topic = self.partition.bench.topic.clone();
            let letters = match record {
                Some(record) => vec![self.letter_of(&record, &refusal, stage)],
                None => Letter::for_fold(&id, &fold, &refusal, stage, topic, self.partition.number),
            };
            let delivered = Delivered {
                first_offset: fold.first.offset(),
                last_offset: fold.last.offset(),
                records: fold.records,
                bytes,
                reason: refusal.reason,
                detail: refusal.detail,
                id: Some(id),
            };
            self.deliver(dead_letters, letters, delivered);
        }
    }

    /// The dead letter of one record, as it was in the topic.
    fn letter_of(&self, record: &Record, refusal: &Refusal, stage: &'static str) -> Letter {
        let Record { offset, key, value, headers } = record.clone();
        Letter {
            key,
            value,
            headers: headers.unwrap_or_default(),
            reason: refusal.reason,
            stage,
            detail: refusal.detail.clone(),
            origin: Origin {
                topic: self.partition.bench.topic.clone(),
                partition: self.partition.number,
                first_offset: offset,
                last_offset: offset,
            },
        }
    }

    /// Sends dead letters about the records from `first` to `last`; the outcome arrives as [`Delivered`].
    pub(super) fn deliver(
        &mut self,
        dead_letters: Arc<dyn DeadLetterSink>,
        letters: Vec<Letter>,
        delivered: Delivered,
    ) {
        self.letter_bytes += delivered.bytes;
        let delivery = async move {
            dead_letters.deliver(letters).await;
            delivered
        };
        self.deliveries.push(delivery.boxed());
    }

    pub(super) fn letter_delivered(&mut self, delivered: &Delivered) {
        let Delivered { first_offset, last_offset, records, bytes, reason, detail, id } = delivered;
        self.ledger.delivered(*first_offset, id.as_ref());
        self.send_rejected();
        self.letter_bytes -= bytes;
        self.count_held();
        self.metrics.record_done(Counted::DeadLettered, 1);
        self.metrics.record_done(Counted::Folded, u64::from(*records) - 1);
        DeadLettered {
            partition: self.partition.number,
            first_offset: *first_offset,
            last_offset: *last_offset,
            reason,
            detail,
            id: id.as_ref(),
        }
        .emit(&self.partition.bench.metrics);
    }
}
