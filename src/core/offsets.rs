//! Whether a partition still has the next offset to read. Pure.
//!
//! A worker that is away or paused for longer than the topic's retention would continue at the first record left, and
//! miss the others unnoticed. A truncated log (an unclean leader election) has other records at offsets already read.
//! Offsets missing only in the middle are no loss: compaction removes records, and transactions have markers.

use thiserror::Error;

use crate::base::position::Epoch;

/// The verdict on a partition's offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffsetVerdict {
    /// The next offset exists, or is still to be written.
    There,
    /// Nothing was ever read: reading begins at the first record.
    Begins,
    /// Records were deleted before they were read.
    Lost(Lost),
    /// The partition ends before the next offset.
    Truncated(Truncated),
}

/// Judges a partition with the offsets from `low` up to, but not including, `high`.
///
/// `next` is the next offset to read: after the last one read, or the commit; `None` if there is neither. `remembered`
/// is the commit of this epoch according to the meta index. It counts only without `next`: the group's offsets have
/// expired.
pub fn judge(next: Option<i64>, remembered: Option<i64>, low: i64, high: i64) -> OffsetVerdict {
    match (next, remembered) {
        (Some(next), _) if next > high => OffsetVerdict::Truncated(Truncated { next, end: Some(high) }),
        (Some(from), _) | (None, Some(from)) if from < low => OffsetVerdict::Lost(Lost { from, to: low }),
        (Some(_), _) => OffsetVerdict::There,
        // Below the remembered offset it is a rewind, which the first record shows ([`crate::io::meta`]).
        (None, _) => OffsetVerdict::Begins,
    }
}

/// Offsets that were deleted from the topic before they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "the records from offset {from} up to {} were deleted from the topic before they were read (by retention or on purpose): up to {} \
     writes are lost; write those documents again, then set the group's offset of this partition to {to}, or kafka.lost_records \
     to \"accept\", and restart",
    .to - 1, self.count()
)]
pub struct Lost {
    /// The first deleted offset.
    pub from: i64,
    /// The partition's first record.
    pub to: i64,
}

impl Lost {
    /// Number of offsets. Some may never have been records: transaction markers, or compacted ones.
    pub fn count(&self) -> u64 {
        u64::try_from(self.to - self.from).unwrap_or(0)
    }
}

/// The partition's log differs from what was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncated {
    /// The next offset to read.
    pub next: i64,
    /// Where the partition ends; `None`: beyond that, but with other records.
    pub end: Option<i64>,
}

/// Why a partition cannot be read further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum OffsetTrouble {
    /// Records are lost.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// Offsets have lost their meaning.
    #[error("{}", truncated(.0, *.1))]
    Truncated(Truncated, Epoch),
}

fn truncated(Truncated { next, end }: &Truncated, epoch: Epoch) -> String {
    let (found, back_to) = match end {
        Some(end) => (format!("the partition ends at offset {end}"), format!("{end} or below")),
        None => ("the partition has other records now below that".to_owned(), "below that".to_owned()),
    };
    format!(
        "everything up to offset {next} was read already, but {found}: the log was truncated (an unclean leader election), or the topic \
         was emptied, so offsets are used twice: stop all workers, set the group's offset of this partition to {back_to}, and raise \
         positions.epoch above {epoch}"
    )
}

impl OffsetTrouble {
    /// The unreadable offset.
    pub fn offset(&self) -> i64 {
        match self {
            Self::Lost(lost) => lost.from,
            Self::Truncated(truncated, _) => truncated.next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_and_remembered_offsets_are_checked_against_the_log() {
        let lost = |from, to| OffsetVerdict::Lost(Lost { from, to });
        let truncated = |next, end| OffsetVerdict::Truncated(Truncated { next, end: Some(end) });
        for (next, remembered, low, high, verdict) in [
            // With a commit or a read offset, only that counts.
            (Some(100), None, 0, 200, OffsetVerdict::There),
            (Some(100), Some(100), 100, 200, OffsetVerdict::There),
            (Some(100), Some(90), 100, 100, OffsetVerdict::There),
            (Some(100), None, 101, 200, lost(100, 101)),
            (Some(100), Some(90), 150, 150, lost(100, 150)),
            (Some(100), None, 0, 99, truncated(100, 99)),
            (Some(100), Some(100), 0, 0, truncated(100, 0)),
            (Some(0), None, 0, 0, OffsetVerdict::There),
            // Nothing is committed.
            (None, None, 0, 0, OffsetVerdict::Begins),
            (None, None, 70, 200, OffsetVerdict::Begins),
            (None, Some(70), 70, 200, OffsetVerdict::Begins),
            (None, Some(69), 70, 200, lost(69, 70)),
            (None, Some(100), 70, 90, OffsetVerdict::Begins),
        ] {
            assert_eq!(judge(next, remembered, low, high), verdict, "{next:?} {remembered:?} {low} {high}");
        }
        assert_eq!(Lost { from: 100, to: 150 }.count(), 50);
    }

    #[test]
    fn each_error_names_a_remedy() {
        let epoch = Epoch::new(3).unwrap();
        let lost = OffsetTrouble::from(Lost { from: 100, to: 150 });
        for words in [
            "from offset 100 up to 149",
            "up to 50 writes",
            "offset of this partition to 150",
            "kafka.lost_records",
        ] {
            assert!(lost.to_string().contains(words), "{lost}");
        }
        for (end, words) in [(Some(90), "to 90 or below"), (None, "other records now")] {
            let truncated = OffsetTrouble::Truncated(Truncated { next: 100, end }, epoch);
            let text = truncated.to_string();
            assert!(text.contains(words) && text.contains("positions.epoch above 3"), "{text}");
            assert_eq!(truncated.offset(), 100);
        }
    }
}
