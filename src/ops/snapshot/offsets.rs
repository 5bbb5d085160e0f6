//! The offsets that a group goes on from after a restore.

use std::collections::BTreeMap;
use std::ops::Range;

use thiserror::Error;

use super::SnapshotMark;
use crate::base::position::Epoch;
use crate::io::meta::{TopicFacts, Watermark};

/// The topic is not any more the one that the snapshot goes on from.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UnusableMark {
    /// Offsets have another meaning.
    #[error(
        "the snapshot is of epoch {marked}, and positions.epoch is {configured}: offsets changed their meaning since; rebuild instead (docs/runbooks.md, GeofoldElasticsearchPushesBack)"
    )]
    OtherEpoch {
        /// Of the snapshot.
        marked: Epoch,
        /// Configured.
        configured: Epoch,
    },
    /// Another topic.
    #[error(
        "the topic is another one than when the snapshot was taken (created anew, or partitions added): rebuild instead (docs/runbooks.md, GeofoldElasticsearchPushesBack)"
    )]
    OtherTopic,
    /// Records since are gone.
    #[error(
        "partition {partition} begins at offset {begins}, and the snapshot goes on from {offset}: what was between is deleted; take snapshots more often than the topic's retention, and rebuild now"
    )]
    RecordsGone {
        /// The partition.
        partition: i32,
        /// Its first offset.
        begins: i64,
        /// The snapshot's.
        offset: i64,
    },
    /// The log was truncated, or it is another one.
    #[error(
        "partition {partition} ends at offset {ends}, and the snapshot goes on from {offset}: the topic lost records; rebuild"
    )]
    BeyondTheEnd {
        /// The partition.
        partition: i32,
        /// Its end.
        ends: i64,
        /// The snapshot's.
        offset: i64,
    },
}

/// For each partition the offset to go on from. `remembered`: the commits that the snapshot's meta index knows of. One above the
/// mark was made while writes were blocked, so everything below it was done before.
///
/// # Errors
/// If `topic`, with the range of offsets of each partition, does not hold everything since.
pub(super) fn offsets(
    mark: &SnapshotMark,
    remembered: &BTreeMap<i32, Watermark>,
    topic: &TopicFacts,
    ranges: &BTreeMap<i32, Range<i64>>,
) -> Result<BTreeMap<i32, i64>, UnusableMark> {
    if mark.epoch != topic.epoch {
        return Err(UnusableMark::OtherEpoch { marked: mark.epoch, configured: topic.epoch });
    }
    let is_other = mark.topic_id.is_some() && topic.topic_id.is_some() && mark.topic_id != topic.topic_id;
    if is_other || !mark.offsets.keys().copied().eq(0..topic.partitions) {
        return Err(UnusableMark::OtherTopic);
    }
    let one = |(&partition, &marked): (&i32, &i64)| {
        let known = remembered.get(&partition).filter(|known| known.epoch == mark.epoch);
        let offset = known.map_or(marked, |known| known.offset.max(marked));
        let Range { start: begins, end: ends } = ranges.get(&partition).cloned().unwrap_or_default();
        if offset < begins {
            return Err(UnusableMark::RecordsGone { partition, begins, offset });
        }
        if offset > ends {
            return Err(UnusableMark::BeyondTheEnd { partition, ends, offset });
        }
        Ok((partition, offset))
    };
    mark.offsets.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(n: u32) -> Epoch {
        Epoch::new(n).unwrap()
    }

    fn mark() -> SnapshotMark {
        let (place, topic_id) = ("r/s".parse().unwrap(), Some("a".to_owned()));
        SnapshotMark { place, epoch: epoch(2), topic_id, offsets: [(0, 10), (1, 20)].into() }
    }

    fn topic(partitions: i32) -> TopicFacts {
        TopicFacts { epoch: epoch(2), topic_id: Some("a".to_owned()), partitions, map: None, added: None }
    }

    #[test]
    fn the_group_goes_on_from_the_mark_or_a_later_commit_of_the_same_epoch() {
        let ranges = [(0, 5..50), (1, 0..50)].into();
        let known = |partition, of, offset| (partition, Watermark { epoch: epoch(of), offset });
        let go = |remembered: [(i32, Watermark); 2]| offsets(&mark(), &remembered.into(), &topic(2), &ranges);
        assert_eq!(go([known(0, 2, 9), known(1, 2, 25)]), Ok([(0, 10), (1, 25)].into()));
        assert_eq!(go([known(0, 1, 40), known(1, 1, 40)]), Ok([(0, 10), (1, 20)].into()), "another epoch's");
        assert_eq!(go([known(0, 2, 50), known(1, 2, 50)]), Ok([(0, 50), (1, 50)].into()), "the ends");
    }

    #[test]
    fn a_topic_that_does_not_hold_everything_since_is_refused() {
        let nothing = BTreeMap::new();
        let ranges: BTreeMap<i32, Range<i64>> = [(0, 5..50), (1, 0..50), (2, 0..50), (3, 0..50)].into();
        let refused = |topic: &TopicFacts, ranges| offsets(&mark(), &nothing, topic, ranges).unwrap_err();
        assert_eq!(refused(&topic(4), &ranges), UnusableMark::OtherTopic);
        assert_eq!(refused(&topic(1), &ranges), UnusableMark::OtherTopic);
        let anew = TopicFacts { topic_id: Some("b".to_owned()), ..topic(2) };
        assert_eq!(refused(&anew, &ranges), UnusableMark::OtherTopic);
        let raised = TopicFacts { epoch: epoch(3), ..topic(2) };
        assert_eq!(
            refused(&raised, &ranges),
            UnusableMark::OtherEpoch { marked: epoch(2), configured: epoch(3) }
        );
        let gone = [(0, 11..50), (1, 0..50)].into();
        let expected = UnusableMark::RecordsGone { partition: 0, begins: 11, offset: 10 };
        assert_eq!(refused(&topic(2), &gone), expected);
        let short = [(0, 5..50), (1, 0..19)].into();
        let expected = UnusableMark::BeyondTheEnd { partition: 1, ends: 19, offset: 20 };
        assert_eq!(refused(&topic(2), &short), expected);
    }
}
