//! The edges of one partition that are in no acknowledged increment yet. Pure.
//!
//! What an acknowledged increment covers can go: the next one of the same partition comes after it in the topic, so whoever
//! merges would skip those edges if they were sent once more.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::increment::Edge;
use crate::clock::Instant;
use crate::position::Position;

/// What an edge costs besides its JSON: the map's slot and the allocator's overhead, rounded up.
const OVERHEAD_BYTES: usize = 96;

/// What an edge's JSON has besides its delta: `{"pos":9223372036854775807,"delta":},`.
const FRAME_BYTES: usize = 40;

/// See the top of this file.
#[derive(Debug, Default)]
pub struct Edges {
    by_position: BTreeMap<Position, Held>,
    bytes: usize,
    /// Every edge below this is in an acknowledged increment.
    sent_to: Option<Position>,
}

/// A delta as the JSON that is sent: smaller than its trees, and its size is known.
#[derive(Debug)]
struct Held {
    delta: Box<RawValue>,
    since: Instant,
}

impl Held {
    fn bytes(&self) -> usize {
        self.delta.get().len() + OVERHEAD_BYTES
    }
}

/// Edges for one increment.
#[derive(Debug)]
pub struct Part<'a> {
    /// Every edge below this position is in this part or in an earlier one.
    pub to: Position,
    /// In the order of their positions.
    pub edges: Vec<PartEdge<'a>>,
}

/// An [`Edge`], as it is written.
#[derive(Debug, Serialize)]
pub struct PartEdge<'a> {
    pos: Position,
    delta: &'a RawValue,
}

impl Edges {
    /// Takes an edge, in place of the one at its position if there is one. Taking it again changes nothing, and nor does one
    /// that was sent: by then, the edge at a position is always the same.
    pub fn put(&mut self, edge: &Edge, now: Instant) {
        if self.sent_to.is_some_and(|sent_to| edge.pos < sent_to) {
            return;
        }
        let before = self.by_position.remove(&edge.pos);
        self.bytes -= before.as_ref().map_or(0, Held::bytes);
        // One that changes nothing is none. Serializing plain strings and numbers can not fail.
        if !edge.delta.is_empty()
            && let Ok(delta) = to_raw_value(&edge.delta)
        {
            let held = Held { delta, since: before.map_or(now, |before| before.since) };
            self.bytes += held.bytes();
            self.by_position.insert(edge.pos, held);
        }
    }

    /// The first edges below `below` whose JSON has about `max_bytes` together; at least one, if there is one.
    pub fn part(&self, below: Position, max_bytes: usize) -> Part<'_> {
        let mut part = Part { to: below, edges: Vec::new() };
        let mut bytes = 0;
        for (&pos, held) in self.by_position.range(..below) {
            bytes += held.delta.get().len() + FRAME_BYTES;
            if bytes > max_bytes && !part.edges.is_empty() {
                part.to = pos;
                break;
            }
            part.edges.push(PartEdge { pos, delta: &held.delta });
        }
        part
    }

    /// An increment with all edges below `to` was acknowledged.
    pub fn sent(&mut self, to: Position) {
        let left = self.by_position.split_off(&to);
        let gone = std::mem::replace(&mut self.by_position, left);
        self.bytes -= gone.values().map(Held::bytes).sum::<usize>();
        self.sent_to = self.sent_to.max(Some(to));
    }

    /// How many are held.
    pub fn len(&self) -> usize {
        self.by_position.len()
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.by_position.is_empty()
    }

    /// Bytes that they hold, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// When the one that waits for the longest time was taken.
    pub fn oldest(&self) -> Option<Instant> {
        self.by_position.values().map(|held| held.since).min()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::tally::increment::Delta;

    fn at(second: u64) -> Instant {
        Instant::from_start(Duration::from_secs(second))
    }

    fn pos(pos: u64) -> Position {
        Position::from_version(pos)
    }

    fn edge(at: u64, value: &str) -> Edge {
        let mut delta = Delta::default();
        delta.add("t", value, 1);
        Edge { pos: pos(at), delta }
    }

    fn positions(part: &Part<'_>) -> Vec<u64> {
        part.edges.iter().map(|edge| edge.pos.version()).collect()
    }

    #[test]
    fn an_edge_put_again_is_held_once_and_one_that_was_sent_is_not_held_again() {
        let mut edges = Edges::default();
        for second in [1, 2] {
            edges.put(&edge(7, "a"), at(second));
        }
        edges.put(&edge(8, "b"), at(1));
        edges.put(&Edge { pos: pos(8), delta: Delta::default() }, at(1));
        assert_eq!((edges.len(), edges.oldest()), (1, Some(at(1))), "an edge that changes nothing is none");
        edges.sent(pos(8));
        edges.put(&edge(7, "a"), at(2));
        assert!(edges.is_empty());
        assert_eq!((edges.bytes(), edges.oldest()), (0, None));
    }

    #[test]
    fn only_edges_below_the_watermark_are_sent_and_those_above_stay() {
        let mut edges = Edges::default();
        for (second, pos) in [(1, 9), (2, 3), (3, 5)] {
            edges.put(&edge(pos, "a"), at(second));
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
    fn a_part_ends_where_the_next_one_begins_and_has_one_edge_at_least() {
        let mut edges = Edges::default();
        for pos in [1, 2, 3] {
            edges.put(&edge(pos, "a"), at(1));
        }
        let two = 2 * (r#"{"t":{"a":1}}"#.len() + FRAME_BYTES);
        let part = edges.part(pos(10), two);
        assert_eq!((positions(&part), part.to), (vec![1, 2], pos(3)));
        let part = edges.part(pos(10), 1);
        assert_eq!((positions(&part), part.to), (vec![1], pos(2)));
        edges.sent(part.to);
        let part = edges.part(pos(10), two);
        assert_eq!((positions(&part), part.to), (vec![2, 3], pos(10)));
    }

    #[test]
    fn the_frame_of_an_edge_is_not_longer_than_it_is_counted() {
        let mut edges = Edges::default();
        edges.put(&edge(u64::MAX, "a"), at(1));
        let held = &edges.by_position[&pos(u64::MAX)];
        let json = serde_json::to_string(&PartEdge { pos: pos(u64::MAX), delta: &held.delta }).unwrap();
        assert!(json.len() < held.delta.get().len() + FRAME_BYTES);
    }
}
