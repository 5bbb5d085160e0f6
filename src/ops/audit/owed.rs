//! Which documents a worker is not done with, however often they look the same: their record is not committed. A worker may be slow, and a
//! leftover stays until searches find the new copy (protocol, "What searches find").

use std::collections::BTreeMap;

use super::{Audit, AuditError};
use crate::base::position::Position;
use crate::core::defect::{Observation, ObservedPlacement};
use crate::io::elastic::{Get, GetAnswer, Index};
use crate::io::meta::Watermark;

/// The position below which all is committed, of each partition of which that is remembered.
pub(super) type Committed = BTreeMap<i32, Position>;

impl Audit<'_> {
    /// The stored committed offsets of these partitions. They may lag the group by seconds.
    pub(super) async fn committed(
        &self,
        partitions: impl Iterator<Item = i32>,
    ) -> Result<Committed, AuditError> {
        let mut partitions: Vec<i32> = partitions.collect();
        partitions.sort_unstable();
        partitions.dedup();
        let key = |partition| Watermark::key(self.topic, partition);
        let gets: Vec<Get> =
            partitions.iter().map(|&partition| Get::realtime(Index::Meta, key(partition))).collect();
        let answers = self.read(&gets).await?;
        let mut committed = Committed::new();
        for (partition, answer) in partitions.into_iter().zip(answers) {
            let GetAnswer::Found(found) = answer else { continue };
            let watermark: Watermark = serde_json::from_slice(&found.source).map_err(|error| {
                let doing = "read what is remembered as committed";
                AuditError::Item { doing, reason: error.to_string() }
            })?;
            committed.extend(watermark.position().map(|position| (partition, position)));
        }
        Ok(committed)
    }
}

/// Whether this placement's record may be uncommitted. ⚠ `committed` was read before the document: committed records were
/// executed before.
pub(super) fn is_owed(sight: &Observation, committed: &Committed) -> bool {
    let ObservedPlacement::At(placement) = &sight.placed else { return false };
    partition(sight).is_some_and(|partition| {
        committed.get(&partition).is_none_or(|committed| placement.pos >= *committed)
    })
}

/// The partition of the record that the placement is of; `None` where no record decided.
pub(super) fn partition(sight: &Observation) -> Option<i32> {
    if let ObservedPlacement::At(placement) = &sight.placed { placement.partition } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::placement::Placement;
    use crate::testkit::testing::{at, shard};

    #[test]
    fn a_record_is_owed_until_the_offset_after_it_is_committed() {
        let sight = |partition| {
            let placement = Placement::new(at(5), Some(shard("b")), [shard("a")]).by_partition(partition);
            Observation { placed: ObservedPlacement::At(placement), stamp: None, copies: BTreeMap::new() }
        };
        let committed = Committed::from([(0, at(5)), (1, at(6))]);
        assert!(is_owed(&sight(Some(0)), &committed), "5 is the next to be read");
        assert!(!is_owed(&sight(Some(1)), &committed));
        assert!(is_owed(&sight(Some(2)), &committed), "of its partition nothing is remembered");
        assert!(!is_owed(&sight(None), &committed), "no record decided: nobody owes anything");
    }
}
