//! Increments after they are sent: a topic that keeps them in order, and a collector that merges each as docs/tally.md
//! says. Indistinguishable steps are one: a collector reads nothing but the topic, so an increment is merged as it
//! arrives.

use std::collections::BTreeMap;

use ahash::AHashMap;
use geofold::base::position::Position;
use geofold::core::counting::increment::Delta;

use super::record::position;
use super::setting::Weakening;
use super::store::Numbered;

/// Edges by position, as held by a worker.
pub type Edges = BTreeMap<Position, Delta>;

/// An increment, as it is sent: every edge below `to` is in it or in an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sent {
    /// An offset.
    pub to: u8,
    /// The number of its edges.
    edges: u8,
}

/// The counted state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Counted {
    /// An offset: everything below is counted.
    pub merged_to: u8,
    /// 0: nothing. Else the number of the counts.
    counts: u8,
}

/// Numbers for edges and counts, and the collector between them.
#[derive(Debug, Default)]
pub struct Collector {
    edges: Numbered<Edges>,
    counts: Numbered<Delta>,
    merged: AHashMap<(Counted, Sent), Counted>,
}

impl Collector {
    /// The increment of these edges up to an offset.
    pub fn increment(&mut self, edges: &Edges, to: u8) -> Sent {
        let below = edges.range(..position(to.into()));
        let edges = below.map(|(pos, delta)| (*pos, delta.clone())).collect();
        Sent { to, edges: self.edges.number(&edges) }
    }

    /// The counts after an increment was merged.
    pub fn merge(&mut self, counted: Counted, sent: Sent, weakening: Weakening) -> Counted {
        if let Some(merged) = self.merged.get(&(counted, sent)) {
            return *merged;
        }
        let merged_to = position(counted.merged_to.into());
        let mut counts = self.counts(counted);
        for (pos, delta) in self.edges.get(sent.edges) {
            let is_new = match weakening {
                Weakening::NothingIsRecognised => true,
                Weakening::WholeIncrementsAreRecognised => sent.to > counted.merged_to,
                _ => *pos >= merged_to,
            };
            if is_new {
                counts.merge(delta);
            }
        }
        let counts = if counts.is_empty() { 0 } else { self.counts.number(&counts) };
        let merged = Counted { merged_to: counted.merged_to.max(sent.to), counts };
        self.merged.insert((counted, sent), merged);
        merged
    }

    /// By facet and value.
    pub fn counts(&self, counted: Counted) -> Delta {
        if counted.counts == 0 { Delta::default() } else { self.counts.get(counted.counts).clone() }
    }

    /// Human-readable form.
    pub fn tell(&self, sent: Sent) -> String {
        format!("increment to {} of {:?}", sent.to, self.edges.get(sent.edges))
    }
}
