//! One increment: what changed in one partition's documents since its last committed offset, as it goes through Kafka.
//!
//! Increments are sent at least once. An edge is recognised by its position where increments are merged: those below what
//! is merged already are skipped (docs/tally.md, "Merging").

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::facets::Facets;
use crate::base::position::Position;

/// By how much the number of documents with a value of a facet changes: facet, then value, then how much. Never 0.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Delta(BTreeMap<String, BTreeMap<String, i64>>);

impl Delta {
    /// Adds to one value's change; what comes to 0 is dropped. Saturates.
    pub fn add(&mut self, facet: &str, value: &str, by: i64) {
        if by == 0 {
            return;
        }
        // A name is copied only where it is not there yet.
        let Some(values) = self.0.get_mut(facet) else {
            self.0.insert(facet.to_owned(), BTreeMap::from([(value.to_owned(), by)]));
            return;
        };
        let Some(sum) = values.get_mut(value) else {
            values.insert(value.to_owned(), by);
            return;
        };
        *sum = sum.saturating_add(by);
        if *sum == 0 {
            values.remove(value);
            if values.is_empty() {
                self.0.remove(facet);
            }
        }
    }

    /// Adds all of another delta.
    pub fn merge(&mut self, other: &Self) {
        for (facet, value, by) in other.iter() {
            self.add(facet, value, by);
        }
    }

    /// Facet, value, change.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, i64)> {
        self.0.iter().flat_map(|(facet, values)| {
            values.iter().map(move |(value, by)| (facet.as_str(), value.as_str(), *by))
        })
    }

    /// Nothing changes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What the facets of one document became at a position, minus what they were before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edge {
    /// The position of the record that changed them.
    pub pos: Position,
    /// The change.
    pub delta: Delta,
}

/// An edge before it is sent: the facets that it comes from, which are at hand anyway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The position of the record that changed them.
    pub pos: Position,
    /// The facets of the version before it.
    pub before: Facets,
    /// Those since then.
    pub after: Facets,
}

impl Change {
    /// What is sent of it.
    pub fn delta(&self) -> Delta {
        self.after.delta_since(&self.before)
    }
}

/// The edges of one partition below `to` that its owner has not seen committed yet. A record's key is its topic's name, a
/// `/`, and the partition's number, so that those of one partition keep their order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Increment {
    /// Unique: whoever counts can say which increments are in a version of the counts.
    pub id: String,
    /// The topic of documents.
    pub topic: String,
    /// Its partition.
    pub partition: i32,
    /// Every edge below this position is in this increment or in an earlier one of the same partition.
    pub to: Position,
    /// In the order of their positions.
    pub edges: Vec<Edge>,
}

impl Increment {
    /// The record's key.
    pub fn key(&self) -> String {
        format!("{}/{}", self.topic, self.partition)
    }

    /// The record's value.
    pub fn to_json(&self) -> Vec<u8> {
        // Serializing plain strings and numbers into a Vec cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads a record's value.
    pub fn from_json(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::position::Epoch;

    #[test]
    fn a_delta_keeps_no_zeros_and_an_increment_reads_back_as_it_was() {
        let mut delta = Delta::default();
        delta.add("tags", "red", 1);
        delta.add("tags", "red", -1);
        assert!(delta.is_empty());
        delta.add("tags", "blue", 2);
        let mut other = Delta::default();
        other.add("geoshard", "3", -1);
        delta.merge(&other);
        assert_eq!(delta.iter().collect::<Vec<_>>(), [("geoshard", "3", -1), ("tags", "blue", 2)]);

        let pos = Position::new(Epoch::default(), 6).unwrap();
        let to = Position::new(Epoch::default(), 9).unwrap();
        let edges = vec![Edge { pos, delta }];
        let increment = Increment { id: "w1-1".into(), topic: "documents".into(), partition: 3, to, edges };
        let json = increment.to_json();
        assert_eq!(
            String::from_utf8(json.clone()).unwrap(),
            r#"{"id":"w1-1","topic":"documents","partition":3,"to":10,"edges":[{"pos":7,"delta":{"geoshard":{"3":-1},"tags":{"blue":2}}}]}"#
        );
        assert_eq!(Increment::from_json(&json).unwrap(), increment);
        assert_eq!(increment.key(), "documents/3");
    }
}
