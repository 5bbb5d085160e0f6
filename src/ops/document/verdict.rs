//! What is right or wrong about one document, in one sentence. Pure.

use std::fmt;

use serde::Serialize;

use super::LastRecord;
use crate::base::position::{Epoch, Position};
use crate::core::defect::{Defect, Observation, ObservedPlacement, judge};

/// What is known of the partition of the document's records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PartitionProgress {
    /// The group's committed offset, read before the document; `None` if nothing is committed or it is not known.
    pub committed: Option<i64>,
    /// The partition's end, read before the document.
    pub end: Option<i64>,
}

/// The judgement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum DocumentVerdict {
    /// One copy, where it belongs, as new as its placement and the topic.
    InPlace {
        /// Its geoshard.
        geoshard: String,
    },
    /// Deleted, without a copy.
    Deleted,
    /// Neither the index nor the topic, as far as it was read, has it.
    Absent,
    /// Elasticsearch refused its last record; the last good copy stays.
    Refused,
    /// The new copy is written; the old one is deleted once searches find the new one.
    WaitsForVisibility {
        /// Geoshards with an old copy.
        old: Vec<String>,
    },
    /// A worker is writing it, or stopped in the middle; its record is not committed.
    Moving,
    /// Its last record is not processed yet.
    Behind {
        /// Records from the committed offset to its last one, both included.
        records: i64,
        /// Offset of the last one.
        offset: i64,
    },
    /// Its last record is committed, but the index does not have it.
    NotApplied {
        /// Offset of the record.
        offset: i64,
    },
    /// Something that does not end by itself.
    Wrong {
        /// See `geofold audit`.
        defects: Vec<Defect>,
    },
}

impl DocumentVerdict {
    /// Whether there is nothing to report: exit code 0.
    pub fn is_right(&self) -> bool {
        matches!(self, Self::InPlace { .. } | Self::Deleted | Self::Absent | Self::Refused)
    }
}

impl fmt::Display for DocumentVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InPlace { geoshard } => write!(f, "in place: one copy, in {geoshard}, as its placement and its location say"),
            Self::Deleted => f.write_str("deleted: its placement says so, and no geoshard has a copy"),
            Self::Absent => f.write_str("unknown: no placement and no copy"),
            Self::Refused => f.write_str(
                "refused: Elasticsearch did not accept its last record, which is a dead letter; the last good copy, if any, stays",
            ),
            Self::WaitsForVisibility { old } => write!(
                f,
                "moving: the new copy is written; the old one in {} is deleted once searches find the new one",
                old.join(", ")
            ),
            Self::Moving => f.write_str(
                "moving: a worker has decided its place and its record is not committed yet; if this stays, see geofold status",
            ),
            Self::Behind { records: 1, offset } => {
                write!(f, "behind by 1 record: its last record, at offset {offset}, is the next one to process")
            }
            Self::Behind { records, offset } => write!(
                f,
                "behind by {records} records: its last record, at offset {offset}, is not processed yet; see geofold status for the lag"
            ),
            Self::NotApplied { offset } => write!(
                f,
                "not applied: the record at offset {offset} is committed, but the index is older: it was dropped, or is a dead letter \
                 (geofold dead-letters list)"
            ),
            Self::Wrong { defects } => {
                let names: Vec<&str> = defects.iter().map(|defect| defect.name()).collect();
                write!(
                    f,
                    "wrong ({}): run geofold audit, and geofold audit --repair for what it can repair",
                    names.join(", ")
                )
            }
        }
    }
}

/// The judgement of a document's stored state, the last record of its key and the group's progress.
///
/// ⚠ `progress` must have been read before the document: what was committed then was executed before.
pub fn verdict(
    stored: &Observation,
    last: Option<&LastRecord>,
    progress: PartitionProgress,
    epoch: Epoch,
) -> DocumentVerdict {
    let newest = newest(stored);
    let position = |offset| Position::new(epoch, offset);
    if let Some(last) = last
        && !last.leaves_content()
        && position(last.offset) > newest
    {
        let offset = last.offset;
        return match progress.committed {
            Some(committed) if committed > offset => {
                let is_gone = *stored == nothing() && last.deletes();
                if is_gone { DocumentVerdict::Deleted } else { DocumentVerdict::NotApplied { offset } }
            }
            committed => {
                DocumentVerdict::Behind { records: offset - committed.unwrap_or(0).max(0) + 1, offset }
            }
        };
    }
    let mut defects = judge(stored, epoch);
    let is_owed = is_owed(stored, progress.committed, epoch);
    if is_owed && !defects.is_empty() && defects.iter().all(|defect| defect.ends_with_its_record()) {
        return match (&stored.placed, defects.as_slice()) {
            (ObservedPlacement::At(placement), [Defect::OldCopy]) => {
                let old = placement.leftovers.iter().filter(|shard| stored.copies.contains_key(*shard));
                DocumentVerdict::WaitsForVisibility { old: old.map(ToString::to_string).collect() }
            }
            _ => DocumentVerdict::Moving,
        };
    }
    if is_owed {
        defects.retain(|defect| !defect.ends_with_its_record());
    }
    if !defects.is_empty() {
        return DocumentVerdict::Wrong { defects };
    }
    match &stored.placed {
        ObservedPlacement::At(placement) if placement.refused => DocumentVerdict::Refused,
        ObservedPlacement::At(placement) => match &placement.shard {
            Some(shard) => DocumentVerdict::InPlace { geoshard: shard.to_string() },
            None => DocumentVerdict::Deleted,
        },
        ObservedPlacement::Nowhere | ObservedPlacement::Unreadable => DocumentVerdict::Absent,
    }
}

/// The highest position that the index has of the document.
pub(super) fn newest(stored: &Observation) -> Option<Position> {
    let placed =
        if let ObservedPlacement::At(placement) = &stored.placed { Some(placement.pos) } else { None };
    stored.copies.values().map(|copy| copy.version).chain(placed).max()
}

fn nothing() -> Observation {
    Observation { placed: ObservedPlacement::Nowhere, stamp: None, copies: std::collections::BTreeMap::new() }
}

/// Whether the placement's record may be uncommitted, as an audit judges it.
fn is_owed(stored: &Observation, committed: Option<i64>, epoch: Epoch) -> bool {
    let ObservedPlacement::At(placement) = &stored.placed else { return false };
    // No record decided an adopted or repaired placement.
    placement.partition.is_some()
        && committed.is_none_or(|committed| {
            placement.pos.epoch() > epoch
                || placement.pos.epoch() == epoch && placement.pos.offset() >= committed
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::defect::{Fit, ObservedCopy};
    use crate::core::placement::Placement;
    use crate::testkit::testing::{at, shard};

    fn stored(placed: Option<(i64, Option<&str>, &[&str])>, copies: &[(&str, i64, Fit)]) -> Observation {
        let placed = placed.map_or(ObservedPlacement::Nowhere, |(offset, place, old)| {
            let old = old.iter().map(|id| shard(id));
            ObservedPlacement::At(Placement::new(at(offset), place.map(shard), old).by_partition(Some(0)))
        });
        let copies = copies
            .iter()
            .map(|(id, offset, fit)| (shard(id), ObservedCopy { version: at(*offset), fit: *fit }));
        Observation { placed, stamp: None, copies: copies.collect() }
    }

    fn last(offset: i64, op: &str) -> LastRecord {
        LastRecord { offset, op: op.to_owned(), time_ms: None, value_bytes: None }
    }

    #[test]
    fn each_state_has_its_verdict() {
        use Fit::{Elsewhere, Here};
        let in_b = || stored(Some((5, Some("b"), &[])), &[("b", 5, Here)]);
        let old = || stored(Some((5, Some("b"), &["a"])), &[("a", 1, Here), ("b", 5, Here)]);
        let place = |id: &str| DocumentVerdict::InPlace { geoshard: id.to_owned() };
        let wrong = |defect| DocumentVerdict::Wrong { defects: vec![defect] };
        let cases = [
            (in_b(), None, Some(6), place("b")),
            (in_b(), Some(last(5, "index")), Some(6), place("b")),
            (in_b(), Some(last(9, "index")), Some(6), DocumentVerdict::Behind { records: 4, offset: 9 }),
            (in_b(), Some(last(9, "index")), None, DocumentVerdict::Behind { records: 10, offset: 9 }),
            (in_b(), Some(last(9, "patch")), Some(10), DocumentVerdict::NotApplied { offset: 9 }),
            (in_b(), Some(last(9, "touch")), Some(10), place("b")),
            (in_b(), Some(last(9, "touch")), Some(9), place("b")),
            (old(), None, Some(5), DocumentVerdict::WaitsForVisibility { old: vec!["a".to_owned()] }),
            (old(), None, None, DocumentVerdict::WaitsForVisibility { old: vec!["a".to_owned()] }),
            (old(), None, Some(6), wrong(Defect::OldCopy)),
            (stored(Some((5, Some("b"), &["a"])), &[("a", 1, Here)]), None, Some(5), DocumentVerdict::Moving),
            (
                stored(Some((5, Some("b"), &[])), &[("b", 5, Elsewhere)]),
                None,
                Some(5),
                wrong(Defect::WrongGeoshard),
            ),
            (
                stored(Some((5, Some("b"), &[])), &[("b", 5, Here), ("c", 1, Here)]),
                None,
                Some(9),
                wrong(Defect::UnnamedCopy),
            ),
            (stored(None, &[("a", 1, Here)]), None, Some(9), wrong(Defect::NoPlacement)),
            (stored(Some((5, None, &[])), &[]), Some(last(5, "delete")), Some(9), DocumentVerdict::Deleted),
            (stored(None, &[]), None, Some(9), DocumentVerdict::Absent),
            (stored(None, &[]), Some(last(5, "delete")), Some(9), DocumentVerdict::Deleted),
            (stored(None, &[]), Some(last(5, "index")), Some(9), DocumentVerdict::NotApplied { offset: 5 }),
            (
                stored(None, &[]),
                Some(last(5, "index")),
                Some(5),
                DocumentVerdict::Behind { records: 1, offset: 5 },
            ),
        ];
        for (stored, last, committed, expected) in cases {
            let progress = PartitionProgress { committed, end: Some(20) };
            let found = verdict(&stored, last.as_ref(), progress, Epoch::default());
            assert_eq!(found, expected, "{stored}, {last:?}, {committed:?}");
            assert!(!found.to_string().contains('\n'));
        }
    }

    #[test]
    fn refused_document_is_not_wrong() {
        let mut refused = stored(Some((5, Some("a"), &[])), &[("a", 1, Fit::Here)]);
        let ObservedPlacement::At(placement) = refused.placed else { unreachable!() };
        refused.placed = ObservedPlacement::At(placement.after_refusal());
        let progress = PartitionProgress { committed: Some(6), end: None };
        assert_eq!(verdict(&refused, None, progress, Epoch::default()), DocumentVerdict::Refused);
    }

    #[test]
    fn only_states_that_need_nobody_are_right() {
        let right = [
            DocumentVerdict::InPlace { geoshard: "b".to_owned() },
            DocumentVerdict::Deleted,
            DocumentVerdict::Absent,
            DocumentVerdict::Refused,
        ];
        assert!(right.iter().all(DocumentVerdict::is_right));
        let others = [
            DocumentVerdict::Moving,
            DocumentVerdict::NotApplied { offset: 1 },
            DocumentVerdict::Behind { records: 2, offset: 3 },
        ];
        assert!(!others.iter().any(DocumentVerdict::is_right));
    }
}
