//! The protocol's invariants, each defined once as a function of one document's observable state.
//!
//! The observer (an in-memory store, an audit over searches) fills in a [`DocumentState`]; a violation is returned as a
//! sentence. Nothing here knows how the state came about, which makes these functions independent judges.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::base::ids::{DocId, ShardId};
use crate::base::position::Position;
use crate::core::counting::facets::Facets;
use crate::core::counting::increment::Delta;
use crate::core::placement::Placement;

/// The stored state of one document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DocumentState {
    /// Its record in the placements index.
    pub placement: Option<Placement>,
    /// The geoshards that hold a copy, and the copy's version.
    pub copies: BTreeMap<ShardId, Position>,
}

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{invariant} is broken: {what}")]
pub struct BrokenInvariant {
    /// Its name in the protocol.
    pub invariant: &'static str,
    /// The violation.
    pub what: String,
}

fn hold(holds: bool, invariant: &'static str, what: impl FnOnce() -> String) -> Result<(), BrokenInvariant> {
    if holds { Ok(()) } else { Err(BrokenInvariant { invariant, what: what() }) }
}

/// INV-1: every geoshard that holds a copy is named by the placement, as `shard` or among `leftovers`. Holds at every
/// moment.
pub fn inv_1_every_copy_is_named(view: &DocumentState) -> Result<(), BrokenInvariant> {
    let named: BTreeSet<&ShardId> = view.placement.iter().flat_map(Placement::may_hold).collect();
    let unnamed: Vec<&ShardId> = view.copies.keys().filter(|shard| !named.contains(shard)).collect();
    hold(unnamed.is_empty(), "INV-1", || {
        format!("the placement does not name the copies in {unnamed:?}: {view}")
    })
}

/// INV-2: a document that `exists` has a copy. Holds at every moment between its first copy and the record that
/// deletes it, moves included.
pub fn inv_2_a_document_that_exists_has_a_copy(
    view: &DocumentState,
    exists: bool,
) -> Result<(), BrokenInvariant> {
    hold(!exists || !view.copies.is_empty(), "INV-2", || format!("the document's last copy is gone: {view}"))
}

/// INV-3, first half: the committed offset is not above the first offset of any unfinished work.
pub fn inv_3_nothing_owed_is_committed(
    committed: i64,
    owed: impl IntoIterator<Item = i64>,
) -> Result<(), BrokenInvariant> {
    let oldest = owed.into_iter().min();
    hold(oldest.is_none_or(|oldest| committed <= oldest), "INV-3", || {
        format!("offset {committed} is committed, but offset {oldest:?} is not done")
    })
}

/// INV-3, second half: the effect of the document's records up to `last`, its last committed one, is visible: a copy at
/// least that new, a placement that says deleted, or one of a later record, which covers it. Does not hold for
/// dead-lettered or dropped records.
pub fn inv_3_what_is_committed_can_be_seen(
    view: &DocumentState,
    last: Position,
) -> Result<(), BrokenInvariant> {
    let written = view.copies.values().any(|version| *version >= last);
    let recorded = view.placement.as_ref().is_some_and(|placement| {
        placement.pos > last || (placement.pos == last && placement.shard.is_none())
    });
    hold(written || recorded, "INV-3", || format!("{last} is committed, but nothing shows it: {view}"))
}

/// INV-4: over time, neither the placement's position nor any copy's version goes back, and a placement is never
/// removed. (Elasticsearch's tombstones keep a removed copy from returning older.)
pub fn inv_4_nothing_goes_back(before: &DocumentState, after: &DocumentState) -> Result<(), BrokenInvariant> {
    let position = |view: &DocumentState| view.placement.as_ref().map(|placement| placement.pos);
    hold(position(before) <= position(after), "INV-4", || {
        format!("the placement went back: {before}, then {after}")
    })?;
    for (shard, version) in &before.copies {
        let later = after.copies.get(shard);
        hold(later.is_none_or(|later| later >= version), "INV-4", || {
            format!("the copy in {shard} went back: {before}, then {after}")
        })?;
    }
    Ok(())
}

/// INV-5: exactly one copy, in the placement's geoshard, or none if the document is deleted or never existed. A refused
/// document may have none, or one that arrived late in a named geoshard. Holds with nothing in flight and nothing owed.
pub fn inv_5_at_rest_there_is_one_copy(view: &DocumentState) -> Result<(), BrokenInvariant> {
    let belongs: BTreeSet<&ShardId> =
        view.placement.iter().filter_map(|placement| placement.shard.as_ref()).collect();
    let stored: BTreeSet<&ShardId> = view.copies.keys().collect();
    let is_refused = view.placement.as_ref().is_some_and(|placement| placement.refused);
    hold(belongs == stored || (is_refused && stored.len() <= 1), "INV-5", || {
        format!("copies are not just where they belong: {view}")
    })
}

/// INV-6: at most one entry of a document is in work.
pub fn inv_6_one_entry_of_a_document<'a>(
    in_work: impl IntoIterator<Item = &'a DocId>,
) -> Result<(), BrokenInvariant> {
    let mut seen = BTreeSet::new();
    let twice = in_work.into_iter().find(|id| !seen.insert(*id));
    hold(twice.is_none(), "INV-6", || "two entries of one document are in work".to_owned())
}

/// INV-7: every document is counted exactly once: the counts equal a recount (docs/tally.md). Holds with nothing in
/// flight and nothing owed, once every increment is merged.
pub fn inv_7_counted_exactly_once<'a>(
    counts: &Delta,
    documents: impl IntoIterator<Item = &'a Facets>,
) -> Result<(), BrokenInvariant> {
    let nothing = Facets::default();
    let mut recount = Delta::default();
    for facets in documents {
        recount.merge(&facets.delta_since(&nothing));
    }
    hold(*counts == recount, "INV-7", || {
        format!("the counts are {counts:?}, but the documents say {recount:?}")
    })
}

impl fmt::Display for DocumentState {
    /// `placement 0:5 in b, leftovers [a]; copies a at 0:1, b at 0:5`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.placement {
            None => f.write_str("no placement; copies")?,
            Some(Placement { pos, shard, leftovers, refused, .. }) => {
                write!(f, "placement {pos} ")?;
                match shard {
                    Some(shard) => write!(f, "in {shard}")?,
                    None => f.write_str("deleted")?,
                }
                write!(f, "{}, leftovers {leftovers:?}; copies", if *refused { ", refused" } else { "" })?;
            }
        }
        if self.copies.is_empty() {
            return f.write_str(" none");
        }
        for (n, (shard, version)) in self.copies.iter().enumerate() {
            write!(f, "{} {shard} at {version}", if n == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::testing::{at, shard};

    fn view(placement: Option<Placement>, copies: &[(&str, i64)]) -> DocumentState {
        let copies = copies.iter().map(|(id, offset)| (shard(id), at(*offset))).collect();
        DocumentState { placement, copies }
    }

    fn placed(offset: i64, place: Option<&str>, leftovers: &[&str]) -> Option<Placement> {
        Some(Placement::new(at(offset), place.map(shard), leftovers.iter().map(|id| shard(id))))
    }

    #[test]
    fn each_invariant_accepts_valid_and_rejects_invalid_states() {
        let moving = view(placed(5, Some("b"), &["a"]), &[("a", 1)]);
        let moved = view(placed(5, Some("b"), &["a"]), &[("b", 5)]);
        let orphan = view(placed(5, Some("b"), &[]), &[("a", 1), ("b", 5)]);
        let deleted = view(placed(5, None, &["a"]), &[]);

        assert!(inv_1_every_copy_is_named(&moving).is_ok());
        assert!(inv_1_every_copy_is_named(&orphan).is_err());
        assert!(inv_1_every_copy_is_named(&view(None, &[("a", 1)])).is_err());

        assert!(inv_2_a_document_that_exists_has_a_copy(&deleted, false).is_ok());
        assert!(inv_2_a_document_that_exists_has_a_copy(&deleted, true).is_err());

        assert!(inv_3_nothing_owed_is_committed(4, [4, 7]).is_ok());
        assert!(inv_3_nothing_owed_is_committed(5, [4, 7]).is_err());
        assert!(inv_3_what_is_committed_can_be_seen(&moved, at(5)).is_ok());
        assert!(inv_3_what_is_committed_can_be_seen(&deleted, at(5)).is_ok());
        assert!(inv_3_what_is_committed_can_be_seen(&moving, at(5)).is_err());

        assert!(inv_4_nothing_goes_back(&moving, &moved).is_ok());
        assert!(inv_4_nothing_goes_back(&moved, &view(placed(4, Some("b"), &["a"]), &[("b", 5)])).is_err());
        assert!(inv_4_nothing_goes_back(&moved, &view(placed(5, Some("b"), &["a"]), &[("b", 4)])).is_err());
        assert!(inv_4_nothing_goes_back(&moved, &DocumentState::default()).is_err());

        assert!(inv_5_at_rest_there_is_one_copy(&moved).is_ok());
        assert!(inv_5_at_rest_there_is_one_copy(&deleted).is_ok());
        assert!(inv_5_at_rest_there_is_one_copy(&DocumentState::default()).is_ok());
        let refused = placed(5, Some("b"), &[]).map(Placement::after_refusal);
        assert!(inv_5_at_rest_there_is_one_copy(&view(refused.clone(), &[])).is_ok());
        assert!(inv_5_at_rest_there_is_one_copy(&view(refused, &[("a", 1), ("b", 2)])).is_err());
        assert!(inv_5_at_rest_there_is_one_copy(&moving).is_err());
        assert!(inv_5_at_rest_there_is_one_copy(&orphan).is_err());

        let red: Facets = serde_json::from_str(r#"{"tag":["red"]}"#).unwrap();
        let mut counts = Delta::default();
        counts.add("tag", "red", 2);
        assert!(inv_7_counted_exactly_once(&counts, [&red, &red, &Facets::default()]).is_ok());
        assert!(inv_7_counted_exactly_once(&counts, [&red]).is_err());
        assert!(inv_7_counted_exactly_once(&Delta::default(), []).is_ok());

        let ids = ["x", "y", "x"].map(|id| DocId::from_key(Some(id.as_bytes())).unwrap());
        assert!(inv_6_one_entry_of_a_document(&ids[..2]).is_ok());
        assert!(inv_6_one_entry_of_a_document(&ids).is_err());
    }

    #[test]
    fn violation_shows_the_whole_stored_state() {
        let orphan = view(placed(5, Some("b"), &[]), &[("a", 1), ("b", 5)]);
        assert_eq!(
            inv_1_every_copy_is_named(&orphan).unwrap_err().to_string(),
            "INV-1 is broken: the placement does not name the copies in [\"a\"]: \
             placement 0:5 in b, leftovers [\"b\"]; copies a at 0:1, b at 0:5"
                .replace("[\"b\"]", "[]")
        );
        assert_eq!(
            view(placed(5, None, &["a"]), &[]).to_string(),
            "placement 0:5 deleted, leftovers [\"a\"]; copies none"
        );
    }
}
