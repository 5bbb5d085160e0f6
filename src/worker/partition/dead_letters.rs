//! Dead letters of a partition on their way to the broker. The ledger holds the watermark until each is acknowledged.

use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{FuturesUnordered, StreamExt};

use crate::base::ids::DocId;
use crate::core::decode::BadRecord;
use crate::core::mover::Refusal;
use crate::worker::dead_letter::{DeadLetter, DeadLetterSink, Origin};
use crate::worker::ledger::Undeliverable;
use crate::worker::record::Record;

/// The dead letters in flight.
pub(super) struct DeadLettersInFlight {
    /// `None`: no dead-letter topic is configured.
    sink: Option<Arc<dyn DeadLetterSink>>,
    topic: Arc<str>,
    partition: i32,
    in_flight: FuturesUnordered<BoxFuture<'static, Delivered>>,
    bytes: usize,
}

/// The records of an acknowledged dead letter.
#[derive(Debug)]
pub(super) struct Delivered {
    pub first_offset: i64,
    pub last_offset: i64,
    pub records: u32,
    bytes: usize,
    pub reason: &'static str,
    pub detail: String,
    /// The document, unless its record could not be decoded.
    pub id: Option<DocId>,
}

/// What to do where a record stops its partition.
const ADVICE: &str = "set dead_letter.policy = \"topic\" and restart, or stop all workers and skip it with geofold dead-letters skip";

/// No dead-letter topic is configured, so that this refusal stops the partition.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoTopic {
    pub offset: i64,
    pub reason: String,
}

impl DeadLettersInFlight {
    pub(super) fn new(sink: Option<Arc<dyn DeadLetterSink>>, topic: Arc<str>, partition: i32) -> Self {
        Self { sink, topic, partition, in_flight: FuturesUnordered::new(), bytes: 0 }
    }

    /// Sends a record that cannot be decoded.
    pub(super) fn send_record(&mut self, record: Record, bad: &BadRecord) -> Result<(), NoTopic> {
        let (offset, bytes) = (record.offset, record.bytes());
        let Some(sink) = self.sink.clone() else {
            let reason = format!("bad record, and no dead-letter topic configured: {bad}; {ADVICE}");
            return Err(NoTopic { offset, reason });
        };
        let letter = self.letter(record, bad.reason(), bad.stage(), bad.to_string());
        let delivered = Delivered {
            first_offset: offset,
            last_offset: offset,
            records: 1,
            bytes,
            reason: letter.reason,
            detail: letter.detail.clone(),
            id: None,
        };
        self.send(sink, vec![letter], delivered);
        Ok(())
    }

    /// Sends a refused write: as the record that it is, if it is a single one read again; else as the folded write.
    pub(super) fn send_write(&mut self, refused: Undeliverable) -> Result<(), NoTopic> {
        let bytes = refused.bytes();
        let Undeliverable { id, fold, refusal, stage, record } = refused;
        let Some(sink) = self.sink.clone() else {
            let detail = refusal.detail;
            let reason =
                format!("a write was refused, and no dead-letter topic is configured: {detail}; {ADVICE}");
            return Err(NoTopic { offset: fold.first.offset(), reason });
        };
        let Refusal { reason, detail } = &refusal;
        let letters = match record {
            Some(record) => vec![self.letter(Record::clone(&record), reason, stage, detail.clone())],
            None => DeadLetter::for_fold(&id, &fold, &refusal, stage, self.topic.clone(), self.partition),
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
        self.send(sink, letters, delivered);
        Ok(())
    }

    /// The dead letter of one record, as it was in the topic.
    fn letter(
        &self,
        record: Record,
        reason: &'static str,
        stage: &'static str,
        detail: String,
    ) -> DeadLetter {
        let Record { offset, key, value, headers } = record;
        DeadLetter {
            key,
            value,
            headers: headers.unwrap_or_default(),
            reason,
            stage,
            detail,
            origin: Origin {
                topic: self.topic.clone(),
                partition: self.partition,
                first_offset: offset,
                last_offset: offset,
            },
        }
    }

    fn send(&mut self, sink: Arc<dyn DeadLetterSink>, letters: Vec<DeadLetter>, delivered: Delivered) {
        self.bytes += delivered.bytes;
        let delivery = async move {
            sink.deliver(letters).await;
            delivered
        };
        self.in_flight.push(delivery.boxed());
    }

    /// The next acknowledged one; pending while none is in flight.
    pub(super) async fn delivered(&mut self) -> Delivered {
        let Some(delivered) = self.in_flight.next().await else { return std::future::pending().await };
        self.bytes -= delivered.bytes;
        delivered
    }

    /// Whether none is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Bytes held by those in flight.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::sync::watch;

    use super::*;
    use crate::core::fold::Fold;
    use crate::core::write::{Body, Write};
    use crate::testkit::testing::{at, id};

    /// Keeps dead letters; acknowledges them only while open.
    struct Kept {
        letters: Mutex<Vec<DeadLetter>>,
        is_open: watch::Sender<bool>,
    }

    impl DeadLetterSink for Kept {
        fn deliver(&self, letters: Vec<DeadLetter>) -> BoxFuture<'_, ()> {
            self.letters.lock().unwrap().extend(letters);
            let mut is_open = self.is_open.subscribe();
            async move {
                let _ = is_open.wait_for(|is_open| *is_open).await;
            }
            .boxed()
        }
    }

    fn record(offset: i64) -> Record {
        Record { offset, key: Some("a".into()), value: Some("[]".into()), headers: None }
    }

    fn refused(record: Option<Record>) -> Undeliverable {
        let (id, fold) = Fold::from_write(
            Write { id: id("a"), position: at(7), body: Body::Delete },
            |_| -> crate::base::ids::ShardId { unreachable!() },
        );
        let refusal = Refusal { reason: "too_large", detail: "by a byte".into() };
        Undeliverable { id, fold, refusal, stage: "write", record: record.map(Arc::new) }
    }

    fn letters(is_open: bool) -> (DeadLettersInFlight, Arc<Kept>) {
        let kept = Arc::new(Kept { letters: Mutex::default(), is_open: watch::Sender::new(is_open) });
        (DeadLettersInFlight::new(Some(kept.clone()), "topic".into(), 3), kept)
    }

    #[test]
    fn bytes_are_held_until_the_acknowledgement() {
        let (mut letters, kept) = letters(false);
        assert!(letters.delivered().now_or_never().is_none());
        let bytes = record(5).bytes();
        letters.send_record(record(5), &BadRecord::NotAnObject).unwrap();
        assert!(letters.delivered().now_or_never().is_none());
        assert_eq!((letters.bytes(), letters.is_empty()), (bytes, false));
        kept.is_open.send_replace(true);
        let delivered = letters.delivered().now_or_never().unwrap();
        assert_eq!((delivered.first_offset, delivered.records, delivered.id), (5, 1, None));
        assert_eq!((letters.bytes(), letters.is_empty()), (0, true));
        let sent = kept.letters.lock().unwrap().remove(0);
        assert_eq!((sent.value, sent.stage, sent.origin.partition), (Some("[]".into()), "decode", 3));
    }

    #[test]
    fn refused_write_is_sent_as_its_record_if_there_is_one() {
        let (mut letters, kept) = letters(true);
        letters.send_write(refused(None)).unwrap();
        letters.send_write(refused(Some(record(7)))).unwrap();
        for _ in 0..2 {
            let delivered = letters.delivered().now_or_never().unwrap();
            assert_eq!(
                (delivered.first_offset, delivered.id, delivered.reason),
                (7, Some(id("a")), "too_large")
            );
        }
        let values: Vec<_> = kept.letters.lock().unwrap().iter().map(|letter| letter.value.clone()).collect();
        assert_eq!(values, [None, Some("[]".into())], "a delete, and the record as it was");
    }

    #[test]
    fn without_a_topic_a_refusal_names_its_offset() {
        let mut letters = DeadLettersInFlight::new(None, "topic".into(), 3);
        let no_topic = letters.send_record(record(5), &BadRecord::NotAnObject).unwrap_err();
        assert_eq!(no_topic.offset, 5);
        assert!(no_topic.reason.starts_with("bad record, and no dead-letter topic configured"));
        assert!(no_topic.reason.ends_with("geofold dead-letters skip"), "{}", no_topic.reason);
        let no_topic = letters.send_write(refused(None)).unwrap_err();
        assert_eq!((no_topic.offset, no_topic.reason.contains("by a byte")), (7, true));
        assert!(letters.is_empty());
    }
}
