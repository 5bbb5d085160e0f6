//! Whether a partition still has what is to be read next. Pure.
//!
//! A worker that is away for longer than the topic keeps its records, or stands still for so long, would go on at the first record
//! that is left, and never know of the others. A log that was truncated (an unclean leader election) has other records at offsets
//! that were read already. Offsets that are only missing in the middle are no loss: compaction takes records, and transactions have
//! markers.

use thiserror::Error;

use crate::base::position::Epoch;

/// What a partition's offsets say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// What comes next is there, or is still to be written.
    There,
    /// Nothing was ever read: it begins at its first record.
    Begins,
    /// Records were deleted before they were read.
    Lost(Lost),
    /// The partition ends before what was read already.
    Truncated(Truncated),
}

/// Judges a partition that has the offsets from `low` up to, but not including, `high`.
///
/// `next` is the offset to be read next: the one after what was read last, or what is committed; `None` if nothing is. `remembered` is what the
/// meta index says was committed in this epoch. It counts only without `next`: the group's offsets have expired.
pub fn judge(next: Option<i64>, remembered: Option<i64>, low: i64, high: i64) -> Verdict {
    match (next, remembered) {
        (Some(next), _) if next > high => Verdict::Truncated(Truncated { next, end: Some(high) }),
        (Some(from), _) | (None, Some(from)) if from < low => Verdict::Lost(Lost { from, to: low }),
        (Some(_), _) => Verdict::There,
        // Below what is remembered it is a rewind, which the first record shows ([`crate::io::meta`]).
        (None, _) => Verdict::Begins,
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
    /// The first one.
    pub from: i64,
    /// The one after the last: the partition's first record.
    pub to: i64,
}

impl Lost {
    /// How many offsets. Some may never have been a record: what compaction took, and the markers of transactions.
    pub fn count(&self) -> u64 {
        u64::try_from(self.to - self.from).unwrap_or(0)
    }
}

/// The partition's log is another one than was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncated {
    /// The offset to be read next.
    pub next: i64,
    /// Where the partition ends; `None`: beyond that, but with other records.
    pub end: Option<i64>,
}

/// Why a partition cannot be read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Trouble {
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

impl Trouble {
    /// The offset that cannot be read.
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
    fn what_is_committed_and_remembered_is_held_against_where_the_partition_begins_and_ends() {
        let lost = |from, to| Verdict::Lost(Lost { from, to });
        let truncated = |next, end| Verdict::Truncated(Truncated { next, end: Some(end) });
        for (next, remembered, low, high, verdict) in [
            // Something is committed, or was read: that alone counts.
            (Some(100), None, 0, 200, Verdict::There),
            (Some(100), Some(100), 100, 200, Verdict::There),
            (Some(100), Some(90), 100, 100, Verdict::There),
            (Some(100), None, 101, 200, lost(100, 101)),
            (Some(100), Some(90), 150, 150, lost(100, 150)),
            (Some(100), None, 0, 99, truncated(100, 99)),
            (Some(100), Some(100), 0, 0, truncated(100, 0)),
            (Some(0), None, 0, 0, Verdict::There),
            // Nothing is committed.
            (None, None, 0, 0, Verdict::Begins),
            (None, None, 70, 200, Verdict::Begins),
            (None, Some(70), 70, 200, Verdict::Begins),
            (None, Some(69), 70, 200, lost(69, 70)),
            (None, Some(100), 70, 90, Verdict::Begins),
        ] {
            assert_eq!(judge(next, remembered, low, high), verdict, "{next:?} {remembered:?} {low} {high}");
        }
        assert_eq!(Lost { from: 100, to: 150 }.count(), 50);
    }

    #[test]
    fn what_is_wrong_says_what_to_do() {
        let epoch = Epoch::new(3).unwrap();
        let lost = Trouble::from(Lost { from: 100, to: 150 });
        for words in [
            "from offset 100 up to 149",
            "up to 50 writes",
            "offset of this partition to 150",
            "kafka.lost_records",
        ] {
            assert!(lost.to_string().contains(words), "{lost}");
        }
        for (end, words) in [(Some(90), "to 90 or below"), (None, "other records now")] {
            let truncated = Trouble::Truncated(Truncated { next: 100, end }, epoch);
            let text = truncated.to_string();
            assert!(text.contains(words) && text.contains("positions.epoch above 3"), "{text}");
            assert_eq!(truncated.offset(), 100);
        }
    }
}
