//! The history of a document's facets, as its placement carries it, and the edges that follow from it.
//!
//! One base in place of the history was tried on paper, and histories of a fixed length: both lose count when a zombie's
//! increment is merged and the owner folds further (docs/tally.md, "The history").

use serde::{Deserialize, Serialize, Serializer};
use smallvec::SmallVec;

use super::facets::Facets;
use super::increment::CountChange;
use crate::base::position::Position;
use crate::base::sabotage::{self, Sabotage};

/// One entry of a placement's history: the document's facets since a position.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "(Position, Facets)")]
pub struct FacetVersion {
    /// The position of the record that set them.
    pub pos: Position,
    /// The facets from there on; empty if there are none.
    pub facets: Facets,
}

impl From<(Position, Facets)> for FacetVersion {
    fn from((pos, facets): (Position, Facets)) -> Self {
        Self { pos, facets }
    }
}

/// A document's facets by position: ascending, the last one current. Empty and free if nothing is counted.
#[derive(Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "Vec<FacetVersion>")]
pub struct FacetHistory(SmallVec<[FacetVersion; 1]>);

impl Clone for FacetHistory {
    fn clone(&self) -> Self {
        // The usual case, in which the vector would still prepare itself for what comes.
        if self.is_empty() { Self::default() } else { Self(self.0.clone()) }
    }
}

impl TryFrom<Vec<FacetVersion>> for FacetHistory {
    type Error = &'static str;

    fn try_from(versions: Vec<FacetVersion>) -> Result<Self, Self::Error> {
        if versions.is_sorted_by(|a, b| a.pos < b.pos) {
            Ok(Self(versions.into()))
        } else {
            Err("the positions of a placement's \"versions\" must ascend")
        }
    }
}

impl Serialize for FacetHistory {
    /// Pairs: `[[2,{"tag":["a"]}],[4,{"tag":["b"]}]]`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|version| (version.pos, &version.facets)))
    }
}

impl FacetHistory {
    /// Whether nothing was counted yet.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Oldest first.
    pub fn versions(&self) -> &[FacetVersion] {
        &self.0
    }

    /// The current facets; `None` without a history.
    pub fn current(&self) -> Option<&Facets> {
        self.0.last().map(|version| &version.facets)
    }

    /// The position since which the current facets hold.
    pub fn last_position(&self) -> Option<Position> {
        self.0.last().map(|version| version.pos)
    }

    /// `F(P, w)`: the facets after the records below `at`; `None` if unknown.
    pub fn below(&self, at: Position) -> Option<&Facets> {
        self.0.iter().rev().find(|version| version.pos < at).map(|version| &version.facets)
    }

    /// Number of versions at or above a position.
    pub fn count_from(&self, at: Position) -> usize {
        self.0.iter().rev().take_while(|version| version.pos >= at).count()
    }

    /// The history after the record at `pos` set these facets.
    ///
    /// ⚠ Of the versions below `committed`, the known committed position of the partition, all but the last are
    /// dropped; no other is ever dropped. A version at `pos` is replaced: it was decided again, by compare-and-set,
    /// before any owner was done with it.
    pub fn with(&self, committed: Position, pos: Position, facets: Facets) -> Self {
        let before = self.0.len() - self.0.iter().rev().take_while(|version| version.pos >= pos).count();
        let before = &self.0[..before];
        let obsolete = before.iter().take_while(|version| version.pos < committed).count().saturating_sub(1);
        let mut kept: SmallVec<[FacetVersion; 1]> = before[obsolete..].iter().cloned().collect();
        if sabotage::is(Sabotage::HistoryIsCutToOne) {
            kept.clear();
        }
        if sabotage::is(Sabotage::HistoryIsCutToTwo) {
            kept.drain(..kept.len().saturating_sub(1));
        }
        if sabotage::is(Sabotage::HistoryIsOneBase) {
            kept.truncate(1);
        }
        kept.push(FacetVersion { pos, facets });
        Self(kept)
    }

    /// The edges that may not be counted yet: one per version at or above `committed`, against the one before it. An
    /// edge without change is included: it replaces one sent before at its position.
    pub fn edges(&self, committed: Position) -> impl Iterator<Item = CountChange> {
        let new = self.0.len() - self.count_from(committed);
        (new..self.0.len()).map(move |n| {
            let before = n.checked_sub(1).map(|before| self.0[before].facets.clone());
            let FacetVersion { pos, facets } = &self.0[n];
            CountChange { pos: *pos, before: before.unwrap_or_default(), after: facets.clone() }
        })
    }

    /// Approximate heap bytes.
    pub fn bytes(&self) -> usize {
        let spilled = if self.0.spilled() { self.0.capacity() * size_of::<FacetVersion>() } else { 0 };
        spilled + self.0.iter().map(|version| version.facets.bytes()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::testing::at;

    fn tagged(tag: &str) -> Facets {
        serde_json::from_value(serde_json::json!({ "tag": [tag] })).unwrap()
    }

    fn history(versions: &[(i64, &str)]) -> FacetHistory {
        let versions =
            versions.iter().map(|(offset, tag)| FacetVersion { pos: at(*offset), facets: tagged(tag) });
        FacetHistory::try_from(versions.collect::<Vec<_>>()).unwrap()
    }

    /// `4 tag red -1, 4 tag blue +1`.
    fn in_short(edges: impl Iterator<Item = CountChange>) -> Vec<String> {
        let changes = |edge: CountChange| {
            let offset = edge.pos.offset();
            let changes: Vec<String> =
                edge.delta().iter().map(|(_, value, by)| format!("{value} {by:+}")).collect();
            format!("{offset}: {}", changes.join(", "))
        };
        edges.map(changes).collect()
    }

    #[test]
    fn only_the_last_version_below_the_commit_is_kept() {
        let before = history(&[(1, "a"), (3, "b"), (5, "c"), (7, "d")]);
        assert_eq!(
            before.with(at(5), at(9), tagged("e")),
            history(&[(3, "b"), (5, "c"), (7, "d"), (9, "e")])
        );
        assert_eq!(before.with(at(8), at(9), tagged("e")), history(&[(7, "d"), (9, "e")]));
        let none_dropped = before.with(at(0), at(9), tagged("e"));
        assert_eq!(none_dropped.versions().len(), 5);
        assert_eq!(FacetHistory::default().with(at(5), at(9), tagged("e")), history(&[(9, "e")]));
    }

    #[test]
    fn version_at_the_same_position_is_replaced() {
        let before = history(&[(1, "a"), (3, "b")]);
        assert_eq!(before.with(at(2), at(3), tagged("c")), history(&[(1, "a"), (3, "c")]));
    }

    #[test]
    fn edge_is_the_difference_between_two_versions() {
        let history = history(&[(1, "a"), (3, "b"), (5, "b"), (7, "a")]);
        assert_eq!(in_short(history.edges(at(3))), ["3: a -1, b +1", "5: ", "7: a +1, b -1"]);
        assert_eq!(in_short(history.edges(at(0)))[0], "1: a +1");
        assert_eq!(in_short(history.edges(at(8))), [""; 0]);
        assert_eq!(history.below(at(3)), Some(&tagged("a")));
        assert_eq!(history.below(at(1)), None);
    }

    #[test]
    fn history_is_ascending_pairs_in_json() {
        let history = history(&[(1, "a"), (3, "b")]);
        let json = serde_json::to_string(&history).unwrap();
        assert_eq!(json, r#"[[2,{"tag":["a"]}],[4,{"tag":["b"]}]]"#);
        assert_eq!(serde_json::from_str::<FacetHistory>(&json).unwrap(), history);
        assert!(serde_json::from_str::<FacetHistory>("[[2,{}],[2,{}]]").is_err());
    }
}
