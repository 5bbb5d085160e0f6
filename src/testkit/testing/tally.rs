//! Counts as a collector would have them, and as a recount does.

use std::collections::BTreeMap;

use crate::base::ids::ShardId;
use crate::base::position::Position;
use crate::core::counting::facets::{FacetRules, Facets};
use crate::core::counting::increment::{Delta, Increment};

/// Merges increments in the order of their topic: each edge once, by its position.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    /// Up to where, by key.
    pub(crate) merged_to: BTreeMap<String, Position>,
    pub(crate) counts: Delta,
}

impl Merger {
    pub(crate) fn merge(&mut self, increment: &Increment) {
        let start = Position::from_version(0);
        let merged_to = self.merged_to.entry(increment.key()).or_insert(start);
        for edge in increment.edges.iter().filter(|edge| edge.pos >= *merged_to) {
            self.counts.merge(&edge.delta);
        }
        *merged_to = increment.to.max(*merged_to);
    }
}

/// What these documents come to.
pub(crate) fn recount(rules: &FacetRules, documents: impl IntoIterator<Item = (ShardId, String)>) -> Delta {
    let mut counts = Delta::default();
    for (shard, document) in documents {
        counts.merge(&rules.facets(document.as_bytes(), &shard).delta_since(&Facets::default()));
    }
    counts
}
