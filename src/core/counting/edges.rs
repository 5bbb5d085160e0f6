//! A partition's edges that are in no acknowledged increment yet. Pure.
//!
//! Edges of an acknowledged increment can be dropped: the partition's next increment follows it in the topic, so
//! merging would skip those edges if they were sent again.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde::{Serialize, Serializer};

use super::facets::Facets;
use super::increment::CountChange;
use crate::base::clock::Instant;
use crate::base::position::Position;

/// Memory cost of an edge besides its facets: the map's slot and the allocator's overhead, rounded up.
const OVERHEAD_BYTES: usize = 96;

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Edges {
    by_position: BTreeMap<Position, Held>,
    bytes: usize,
    /// Number of edges taken at each time.
    taken: BTreeMap<Instant, usize>,
    /// Every edge below this is in an acknowledged increment.
    sent_to: Option<Position>,
}

/// Facets rather than a delta: they are shared with the known placement, and putting the same edge again, as each entry
/// of its document does until the next commit, costs only a comparison.
#[derive(Debug)]
struct Held {
    before: Facets,
    after: Facets,
    since: Instant,
}

impl Held {
    fn bytes(&self) -> usize {
        self.before.bytes() + self.after.bytes() + OVERHEAD_BYTES
    }
}

/// Edges for one increment.
#[derive(Debug)]
pub struct IncrementPart {
    /// Every edge below this position is in this part or in an earlier one.
    pub to: Position,
    /// Number of edges.
    pub edges: usize,
    /// [`Edge`](super::increment::Edge)s in order of position, comma-separated.
    pub json: Vec<u8>,
}

/// The wire format of an [`Edge`](super::increment::Edge).
#[derive(Serialize)]
struct PartEdge<'a> {
    pos: Position,
    delta: Written<'a>,
}

struct Written<'a>(&'a Held);

impl Serialize for Written<'_> {
    /// In the format of a [`Delta`](super::increment::Delta).
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let changes = self.0.after.changes_since(&self.0.before);
        serializer.collect_map(changes.map(|(facet, changes)| (facet, Pairs(changes))))
    }
}

struct Pairs<I>(I);

impl<'a, I: Iterator<Item = (&'a str, i64)> + Clone> Serialize for Pairs<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.clone())
    }
}

impl Edges {
    /// Takes an edge, replacing the one at its position. Taking it again changes nothing, and neither does a sent one:
    /// by then the edge at a position is final.
    pub fn put(&mut self, edge: CountChange, now: Instant) {
        let CountChange { pos, before, after } = edge;
        if self.sent_to.is_some_and(|sent_to| pos < sent_to) {
            return;
        }
        // An edge without change is none.
        if before == after {
            if let Some(held) = self.by_position.remove(&pos) {
                self.let_go(&held);
            }
            return;
        }
        match self.by_position.entry(pos) {
            Entry::Occupied(mut held) => {
                let held = held.get_mut();
                self.bytes -= held.bytes();
                (held.before, held.after) = (before, after);
                self.bytes += held.bytes();
            }
            Entry::Vacant(place) => {
                self.bytes += place.insert(Held { before, after, since: now }).bytes();
                *self.taken.entry(now).or_default() += 1;
            }
        }
    }

    /// The first edges below `below` with at most `max_bytes` of JSON; at least one, if there is one.
    pub fn part(&self, below: Position, max_bytes: usize) -> IncrementPart {
        let mut part = IncrementPart { to: below, edges: 0, json: Vec::new() };
        for (&pos, held) in self.by_position.range(..below) {
            let end = part.json.len();
            if end > 0 {
                part.json.push(b',');
            }
            // Serializing plain strings and numbers into a Vec cannot fail.
            let _ = serde_json::to_writer(&mut part.json, &PartEdge { pos, delta: Written(held) });
            if part.json.len() > max_bytes && end > 0 {
                part.json.truncate(end);
                part.to = pos;
                break;
            }
            part.edges += 1;
        }
        part
    }

    /// An increment with all edges below `to` was acknowledged.
    pub fn sent(&mut self, to: Position) {
        let left = self.by_position.split_off(&to);
        for held in std::mem::replace(&mut self.by_position, left).values() {
            self.let_go(held);
        }
        self.sent_to = self.sent_to.max(Some(to));
    }

    /// Subtracts a released edge.
    fn let_go(&mut self, held: &Held) {
        self.bytes -= held.bytes();
        if let Some(taken) = self.taken.get_mut(&held.since) {
            *taken -= 1;
            if *taken == 0 {
                self.taken.remove(&held.since);
            }
        }
    }

    /// Number of edges held.
    pub fn len(&self) -> usize {
        self.by_position.len()
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.by_position.is_empty()
    }

    /// Approximate bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// When the oldest edge was taken.
    pub fn oldest(&self) -> Option<Instant> {
        self.taken.first_key_value().map(|(taken, _)| *taken)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::core::counting::increment::Edge;

    fn at(second: u64) -> Instant {
        Instant::from_start(Duration::from_secs(second))
    }

    fn pos(pos: u64) -> Position {
        Position::from_version(pos)
    }

    fn edge(at: u64, value: &str) -> CountChange {
        CountChange { pos: pos(at), before: Facets::default(), after: tagged(value) }
    }

    fn tagged(value: &str) -> Facets {
        serde_json::from_value(serde_json::json!({ "t": [value] })).unwrap()
    }

    fn read(part: &IncrementPart) -> Vec<Edge> {
        let edges: Vec<Edge> = serde_json::from_slice(&[b"[", part.json.as_slice(), b"]"].concat()).unwrap();
        assert_eq!(edges.len(), part.edges);
        edges
    }

    fn positions(part: &IncrementPart) -> Vec<u64> {
        read(part).iter().map(|edge| edge.pos.version()).collect()
    }

    #[test]
    fn repeated_edge_is_held_once_and_a_sent_one_not_again() {
        let mut edges = Edges::default();
        for second in [1, 2] {
            edges.put(edge(7, "a"), at(second));
        }
        edges.put(edge(8, "b"), at(1));
        edges.put(CountChange { after: Facets::default(), ..edge(8, "b") }, at(1));
        assert_eq!((edges.len(), edges.oldest()), (1, Some(at(1))), "an edge that changes nothing is none");
        edges.sent(pos(8));
        edges.put(edge(7, "a"), at(2));
        assert!(edges.is_empty());
        assert_eq!((edges.bytes(), edges.oldest()), (0, None));
    }

    #[test]
    fn only_edges_below_the_watermark_are_sent() {
        let mut edges = Edges::default();
        for (second, pos) in [(1, 9), (2, 3), (3, 5)] {
            edges.put(edge(pos, "a"), at(second));
        }
        let all = edges.bytes();
        let part = edges.part(pos(9), usize::MAX);
        assert_eq!((positions(&part), part.to), (vec![3, 5], pos(9)));
        assert_eq!(edges.oldest(), Some(at(1)));
        edges.sent(pos(5));
        assert_eq!(positions(&edges.part(pos(6), usize::MAX)), [5]);
        edges.sent(pos(6));
        assert_eq!((edges.len(), edges.bytes()), (1, all / 3));
        assert_eq!(positions(&edges.part(pos(9), usize::MAX)), [0_u64; 0]);
    }

    #[test]
    fn part_ends_where_the_next_begins_and_is_not_empty() {
        let mut edges = Edges::default();
        for pos in [1, 2, 3] {
            edges.put(edge(pos, "a"), at(1));
        }
        let two = r#"{"pos":1,"delta":{"t":{"a":1}}},{"pos":2,"delta":{"t":{"a":1}}}"#.len();
        let part = edges.part(pos(10), two);
        assert_eq!((positions(&part), part.to), (vec![1, 2], pos(3)));
        let part = edges.part(pos(10), 1);
        assert_eq!((positions(&part), part.to), (vec![1], pos(2)));
        edges.sent(part.to);
        let part = edges.part(pos(10), two);
        assert_eq!((positions(&part), part.to), (vec![2, 3], pos(10)));
    }

    #[test]
    fn edge_is_written_as_its_change_and_replaced_by_position() {
        let facets = |json: &str| serde_json::from_str::<Facets>(json).unwrap();
        let before = facets(r#"{"a":["1"],"geoshard":["3"],"q":["\"é\n"],"t":["b","d","e"]}"#);
        let after = facets(r#"{"geoshard":["4"],"q":["\"é\n"],"t":["a","b","c","e"],"u":["","\""]}"#);
        let mut edges = Edges::default();
        edges.put(edge(5, "x"), at(1));
        let change = CountChange { pos: pos(5), before, after };
        for second in [2, 3] {
            edges.put(change.clone(), at(second));
        }
        let part = edges.part(pos(9), 1);
        assert_eq!(
            String::from_utf8(part.json.clone()).unwrap(),
            r#"{"pos":5,"delta":{"a":{"1":-1},"geoshard":{"3":-1,"4":1},"t":{"a":1,"c":1,"d":-1},"u":{"":1,"\"":1}}}"#
        );
        assert_eq!(read(&part), [Edge { pos: pos(5), delta: change.delta() }]);
        assert_eq!(edges.oldest(), Some(at(1)));
        edges.sent(pos(6));
        assert_eq!((edges.bytes(), edges.oldest()), (0, None));
    }
}
