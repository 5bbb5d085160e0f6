//! A batch of increments to merge: validated, and combined into one change. Pure.

use std::collections::{BTreeMap, HashMap};

use thiserror::Error;

use crate::base::position::Position;
use crate::core::counting::increment::{Edge, Increment};

/// A change by more documents than this in one edge is no edge: an edge is about one document.
const MAX_CHANGE: u64 = 1 << 20;
const MAX_FACET_BYTES: usize = 64;
/// Facet and value together have to fit a row of an index.
const MAX_VALUE_BYTES: usize = 2_000;

/// A partition of the increments' topic.
pub type IncrementsPartition = i32;

/// Where documents come from: a topic and one of its partitions.
pub type DocumentsPartition = (String, i32);

/// Why a record is no increment.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadIncrement {
    /// A record without a value.
    #[error("it has no value")]
    NoValue,
    /// Not the JSON of an increment.
    #[error("it is not the JSON of an increment: {0}")]
    NotJson(String),
    /// Its parts contradict each other, or are too large.
    #[error("{0}")]
    Contradiction(&'static str),
}

/// Reads a record's value, and judges it: what is merged cannot be taken back.
///
/// # Errors
/// See [`BadIncrement`].
pub fn read_increment(value: Option<&[u8]>) -> Result<Increment, BadIncrement> {
    let value = value.ok_or(BadIncrement::NoValue)?;
    let increment = Increment::from_json(value).map_err(|error| BadIncrement::NotJson(error.to_string()))?;
    let bad = |what| Err(BadIncrement::Contradiction(what));
    if increment.partition < 0 || increment.topic.is_empty() || increment.id.is_empty() {
        return bad("it names no id, topic or partition");
    }
    if increment.edges.iter().any(|edge| edge.pos >= increment.to) {
        return bad("an edge is not below its \"to\"");
    }
    if !increment.edges.is_sorted_by(|one, next| one.pos < next.pos) {
        return bad("its edges are not in the order of their positions");
    }
    for (facet, value, by) in increment.edges.iter().flat_map(|Edge { delta, .. }| delta.iter()) {
        if facet.is_empty() || facet.len() > MAX_FACET_BYTES || value.len() > MAX_VALUE_BYTES {
            return bad("a facet or a value is too long");
        }
        if by.unsigned_abs() > MAX_CHANGE {
            return bad("an edge counts more documents than one");
        }
    }
    Ok(increment)
}

/// Increments of one merge, in the order of their offsets within each partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IncrementBatch {
    /// The increments.
    pub increments: Vec<Increment>,
    /// For each partition that was read from: the offset where that began, and the one after its last record.
    pub read: BTreeMap<IncrementsPartition, (i64, i64)>,
    /// Bytes of the records.
    pub bytes: usize,
}

impl IncrementBatch {
    /// Takes in the record at `offset` of `partition`, or that it was passed over; `expected` is where reading stood.
    pub fn take(
        &mut self,
        partition: IncrementsPartition,
        expected: i64,
        offset: i64,
        increment: Option<Increment>,
    ) {
        let (_, next) = self.read.entry(partition).or_insert((expected, expected));
        *next = offset + 1;
        self.increments.extend(increment);
    }

    /// Nothing was read.
    pub fn is_empty(&self) -> bool {
        self.read.is_empty()
    }

    /// Where the documents of these increments come from, each once.
    pub fn sources(&self) -> Vec<DocumentsPartition> {
        let mut sources: Vec<DocumentsPartition> =
            self.increments.iter().map(|increment| (increment.topic.clone(), increment.partition)).collect();
        sources.sort();
        sources.dedup();
        sources
    }

    /// The batch's net change, given that every edge below `merged_to` of its source is counted.
    pub fn net(&self, mut merged_to: BTreeMap<DocumentsPartition, Position>) -> NetDelta {
        let mut net = NetDelta::default();
        // Borrowed texts: most values come up again and again, and each is copied once, at the end.
        let mut changes: HashMap<(&str, &str), i64, ahash::RandomState> = HashMap::default();
        for increment in &self.increments {
            let source = (increment.topic.clone(), increment.partition);
            let counted = merged_to.entry(source).or_insert(Position::from_version(0));
            for edge in &increment.edges {
                if edge.pos < *counted {
                    net.edges_skipped += 1;
                    continue;
                }
                net.edges_applied += 1;
                for (facet, value, by) in edge.delta.iter() {
                    let sum = changes.entry((facet, value)).or_default();
                    *sum = sum.saturating_add(by);
                }
            }
            *counted = increment.to.max(*counted);
        }
        net.merged_to = merged_to;
        // PostgreSQL keeps no NUL; two values that differ in it alone are counted as one.
        let mut sums: BTreeMap<(String, String), i64> = BTreeMap::new();
        for ((facet, value), by) in changes {
            *sums.entry((without_nul(facet), without_nul(value))).or_default() += by;
        }
        net.changes = sums
            .into_iter()
            .filter(|(_, by)| *by != 0)
            .map(|((facet, value), by)| (facet, value, by))
            .collect();
        net
    }
}

fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{FFFD}")
}

/// The net change of a batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetDelta {
    /// Facet, value, by how much: never 0, each value once, in order.
    pub changes: Vec<(String, String, i64)>,
    /// For each source: everything below is counted.
    pub merged_to: BTreeMap<DocumentsPartition, Position>,
    /// Edges that were counted.
    pub edges_applied: u64,
    /// Edges that had been counted before.
    pub edges_skipped: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::counting::increment::Delta;

    fn position(number: u64) -> Position {
        Position::from_version(number)
    }

    fn edge(pos: u64, changes: &[(&str, i64)]) -> Edge {
        let mut delta = Delta::default();
        changes.iter().for_each(|(value, by)| delta.add("tags", value, *by));
        Edge { pos: position(pos), delta }
    }

    fn increment(to: u64, edges: Vec<Edge>) -> Increment {
        Increment { id: format!("i{to}"), topic: "documents".into(), partition: 1, to: position(to), edges }
    }

    fn batch(increments: Vec<Increment>) -> IncrementBatch {
        IncrementBatch { increments, ..IncrementBatch::default() }
    }

    #[test]
    fn an_edge_counts_once_despite_duplicates_and_other_cuts() {
        let first = increment(5, vec![edge(2, &[("red", 1)]), edge(4, &[("red", 1)])]);
        let longer = increment(8, vec![edge(4, &[("red", 1)]), edge(7, &[("red", -1), ("blue", 1)])]);
        let obsolete = increment(3, vec![edge(2, &[("red", 1)])]);
        let net = batch(vec![first.clone(), longer.clone(), first.clone(), obsolete]).net(BTreeMap::new());
        let changes = [("tags".into(), "blue".into(), 1), ("tags".into(), "red".into(), 1)];
        assert_eq!(net.changes, changes);
        assert_eq!((net.edges_applied, net.edges_skipped), (3, 4));
        let source = ("documents".to_owned(), 1);
        assert_eq!(net.merged_to, BTreeMap::from([(source.clone(), position(8))]));

        let again = batch(vec![first, longer]).net(net.merged_to);
        assert_eq!((again.changes, again.edges_applied), (vec![], 0));
        assert_eq!(again.merged_to[&source], position(8), "never back");
    }

    #[test]
    fn changes_that_cancel_out_are_no_change() {
        let there = increment(5, vec![edge(2, &[("red", 1)])]);
        let back = increment(6, vec![edge(5, &[("red", -1)])]);
        let net = batch(vec![there, back]).net(BTreeMap::new());
        assert_eq!((net.changes, net.edges_applied), (vec![], 2));
    }

    #[test]
    fn sources_are_told_apart_and_a_nul_is_counted_as_what_can_be_kept() {
        let mut other = increment(9, vec![edge(2, &[("a\0b", 1), ("a\u{FFFD}b", 1)])]);
        other.partition = 2;
        let net = batch(vec![increment(5, vec![edge(2, &[("red", 1)])]), other]).net(BTreeMap::new());
        assert_eq!(net.changes[0], ("tags".into(), "a\u{FFFD}b".into(), 2));
        assert_eq!(net.changes[1], ("tags".into(), "red".into(), 1));
    }

    #[test]
    fn invalid_increment_is_reported_and_never_merged() {
        let good = increment(5, vec![edge(2, &[("red", 1)])]);
        assert_eq!(read_increment(Some(&good.to_json())).unwrap(), good);
        assert_eq!(read_increment(None), Err(BadIncrement::NoValue));
        for text in
            ["", "{}", "[]", "nonsense", r#"{"id":"a","topic":"t","partition":0,"to":1,"edges":[],"x":1}"#]
        {
            assert!(matches!(read_increment(Some(text.as_bytes())), Err(BadIncrement::NotJson(_))), "{text}");
        }
        let long = "x".repeat(2001);
        let bad = [
            increment(2, vec![edge(2, &[("red", 1)])]),
            increment(5, vec![edge(3, &[("red", 1)]), edge(2, &[("red", 1)])]),
            increment(5, vec![edge(3, &[("red", 1)]), edge(3, &[("red", 1)])]),
            increment(5, vec![edge(3, &[("red", i64::MIN)])]),
            increment(5, vec![edge(3, &[(&long, 1)])]),
            Increment { partition: -1, ..good.clone() },
            Increment { id: String::new(), ..good },
        ];
        for increment in bad {
            let judged = read_increment(Some(&increment.to_json()));
            assert!(matches!(judged, Err(BadIncrement::Contradiction(_))), "{increment:?}");
        }
    }
}
