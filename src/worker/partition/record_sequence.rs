//! Whether the records of a partition follow one another: repeated or missing offsets, keys in the wrong partition. Pure.

use super::key_check::KeyCheck;
use crate::base::position::{Epoch, Position};
use crate::io::kafka::partitioner::OtherPartitioner;
use crate::worker::record::Record;

/// The records read so far.
pub(super) struct RecordSequence {
    epoch: Epoch,
    keys: KeyCheck,
    last_read: Option<LastRead>,
    /// Offsets are missing between the committed and the read ones (compaction or transaction markers).
    saw_gap: bool,
    /// The committed position at assignment, if known.
    committed_before: Position,
}

/// The last record read, to compare it with one that comes at the same offset.
enum LastRead {
    Record(Record),
    Digest { offset: i64, digest: u64 },
}

impl LastRead {
    fn is(&self, record: &Record) -> bool {
        match self {
            Self::Record(last) => last == record,
            Self::Digest { offset, digest } => *offset == record.offset && *digest == record.digest(),
        }
    }
}

/// How a record follows those read before.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The last one again. On a rebalance librdkafka returns to its last stored position while another thread hands out
    /// the record. The offsets are fine: it is the same record.
    Repeated,
    /// Below this offset, which is the next one: offsets have lost their meaning.
    Backwards { next: i64 },
    /// It is next, except for offsets that are not records or no longer there.
    Next { is_after_gap: bool },
}

impl RecordSequence {
    pub(super) fn new(epoch: Epoch, keys: KeyCheck) -> Self {
        let committed_before = Position::from_version(0);
        Self { epoch, keys, last_read: None, saw_gap: false, committed_before }
    }

    /// Compares a record with the last one, and with the offset after it, if any was read.
    pub(super) fn order(&self, record: &Record, next: Option<i64>) -> Order {
        if self.last_read.as_ref().is_some_and(|last| last.is(record)) {
            return Order::Repeated;
        }
        let offset = record.offset;
        match next {
            Some(next) if offset < next => Order::Backwards { next },
            next => Order::Next { is_after_gap: next.is_some_and(|next| offset > next) },
        }
    }

    /// Adds the key of a record; returns another partitioner if that one explains the keys so far.
    pub(super) fn other_partitioner(&mut self, key: Option<&[u8]>) -> Option<OtherPartitioner> {
        self.keys.add(key)
    }

    /// A record was read.
    pub(super) fn read(&mut self, record: Record) {
        self.last_read = Some(LastRead::Record(record));
    }

    /// No more records are at hand: keeps only a digest of the last one, whose memory no limit counts any more.
    pub(super) fn pause(&mut self) {
        if let Some(LastRead::Record(last)) = &self.last_read {
            self.last_read = Some(LastRead::Digest { offset: last.offset, digest: last.digest() });
        }
    }

    /// Takes note of missing offsets. Whether they are the first of this assignment.
    pub(super) fn note_gap(&mut self) -> bool {
        !std::mem::replace(&mut self.saw_gap, true)
    }

    /// Whether offsets were missing.
    pub(super) fn saw_gap(&self) -> bool {
        self.saw_gap
    }

    /// At least this was committed when the partition was assigned.
    pub(super) fn committed_at_least(&mut self, position: Position) {
        self.committed_before = position;
    }

    /// The committed position: the one at assignment or a later one acknowledged by the broker.
    pub(super) fn committed(&self, acknowledged: Option<i64>) -> Position {
        let acknowledged = acknowledged.and_then(|offset| Position::new(self.epoch, offset));
        acknowledged.map_or(self.committed_before, |acknowledged| acknowledged.max(self.committed_before))
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::message::{Header, OwnedHeaders};

    use super::*;
    use crate::support::config::Partitioner;

    fn record(offset: i64, value: &'static str) -> Record {
        Record { offset, key: Some("k".into()), value: Some(value.into()), headers: None }
    }

    fn sequence() -> RecordSequence {
        RecordSequence::new(Epoch::default(), KeyCheck::new(Partitioner::Custom, 0, 1))
    }

    #[test]
    fn only_the_last_record_may_come_twice() {
        let mut sequence = sequence();
        let next = |is_after_gap| Order::Next { is_after_gap };
        assert_eq!(sequence.order(&record(7, "a"), None), next(false));
        sequence.read(record(7, "a"));
        let order = |record: Record| sequence.order(&record, Some(8));
        assert_eq!(order(record(7, "a")), Order::Repeated);
        assert_eq!(order(record(6, "a")), Order::Backwards { next: 8 });
        assert_eq!(order(record(8, "a")), next(false));
        assert_eq!(order(record(9, "a")), next(true));

        let header = |key| OwnedHeaders::new().insert(Header { key, value: Some("1") });
        let last = Record { headers: Some(header("a")), ..record(7, "a") };
        let others = [
            record(7, "a"),
            Record { headers: Some(header("b")), ..record(7, "a") },
            Record { headers: Some(header("a")), ..record(7, "b") },
            Record { headers: Some(header("a")), value: None, ..record(7, "a") },
            Record { headers: Some(header("a")), key: None, ..record(7, "a") },
        ];
        let check = |sequence: &RecordSequence| {
            assert_eq!(sequence.order(&last, Some(8)), Order::Repeated);
            for other in &others {
                assert_eq!(sequence.order(other, Some(8)), Order::Backwards { next: 8 }, "{other:?}");
            }
        };
        sequence.read(last.clone());
        check(&sequence);
        sequence.pause();
        check(&sequence);
    }

    #[test]
    fn committed_is_the_higher_of_both_and_a_gap_is_noted_once() {
        let mut sequence = sequence();
        let at = |offset| Position::new(Epoch::default(), offset).unwrap();
        assert_eq!(sequence.committed(None), Position::from_version(0));
        sequence.committed_at_least(at(5));
        assert_eq!([None, Some(3), Some(9)].map(|offset| sequence.committed(offset)), [at(5), at(5), at(9)]);
        assert!(!sequence.saw_gap());
        assert!(sequence.note_gap());
        assert!(!sequence.note_gap() && sequence.saw_gap());
    }
}
