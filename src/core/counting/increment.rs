//! An increment: the changes of one partition's documents since its last committed offset, as sent through Kafka.
//!
//! Increments are sent at least once. Merging recognises an edge by its position and skips those below what is merged
//! already (docs/tally.md, "Merging").

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::facets::Facets;
use crate::base::position::Position;

/// Changes of document counts: facet, then value, then change. Never 0.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Delta(BTreeMap<String, BTreeMap<String, i64>>);

impl Delta {
    /// Adds to one value's change; drops a change of 0. Saturates.
    pub fn add(&mut self, facet: &str, value: &str, by: i64) {
        if by == 0 {
            return;
        }
        // Copies a name only if it is new.
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

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The change of one document's facets at a position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edge {
    /// The position of the record that changed them.
    pub pos: Position,
    /// The change.
    pub delta: Delta,
}

/// An edge before it is sent, as the facets it is computed from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountChange {
    /// The position of the record that changed them.
    pub pos: Position,
    /// The facets of the version before it.
    pub before: Facets,
    /// The facets since then.
    pub after: Facets,
}

impl CountChange {
    /// Its wire form.
    pub fn delta(&self) -> Delta {
        self.after.delta_since(&self.before)
    }
}

/// The edges of one partition below `to` that its owner does not know to be committed. A record's key is its topic's
/// name, a `/`, and the partition number, which keeps a partition's increments in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Increment {
    /// Unique: identifies the increments in a version of the counts.
    pub id: String,
    /// The topic of documents.
    pub topic: String,
    /// Its partition.
    pub partition: i32,
    /// Every edge below this position is in this increment or in an earlier one of the same partition.
    pub to: Position,
    /// In order of position.
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
    fn delta_drops_zeros_and_increment_survives_json() {
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
