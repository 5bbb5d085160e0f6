//! Increments as workers would send them, generated from a seed: repeated, overlapping, obsolete ones, and those of zombies;
//! and their expected counts. For tests and measurements.

use std::collections::BTreeMap;

use crate::base::position::{Epoch, Position};
use crate::base::random::Random;
use crate::core::counting::increment::{Delta, Edge, Increment};

/// The documents of one topic, their changes, and the increments sent about them.
#[derive(Debug)]
pub struct SimulatedHistory {
    topic: String,
    random: Random,
    sources: Vec<Source>,
    values: u64,
    sent: u64,
}

#[derive(Debug, Default)]
struct Source {
    /// Every edge of the partition, in order.
    edges: Vec<Edge>,
    /// The value of each document, if it is there.
    documents: BTreeMap<u64, String>,
    /// The offset of the next record.
    next: i64,
    /// Everything below was acknowledged once: no worker begins behind it.
    acknowledged: i64,
}

fn position(offset: i64) -> Position {
    Position::new(Epoch::default(), offset).unwrap_or(Position::from_version(0))
}

impl SimulatedHistory {
    /// With this number of partitions of `topic` and of distinct values.
    pub fn new(seed: u64, topic: &str, partitions: usize, values: u64) -> Self {
        let sources = (0..partitions).map(|_| Source::default()).collect();
        Self { topic: topic.to_owned(), random: Random::new(seed), sources, values, sent: 0 }
    }

    /// Creates, changes and deletes some documents; then their worker, or a zombie, sends an increment.
    pub fn next_increment(&mut self, changes: u64) -> Increment {
        let number = usize::try_from(self.random.below(self.sources.len() as u64)).unwrap_or(0);
        let source = &mut self.sources[number];
        for _ in 0..changes {
            let document = self.random.below(200);
            let value = format!("v{}", self.random.below(self.values));
            let after = (self.random.below(5) > 0).then_some(value);
            let mut delta = Delta::default();
            for (value, by) in [(source.documents.get(&document), -1), (after.as_ref(), 1)] {
                if let Some(value) = value {
                    delta.add("tags", value, by);
                    delta.add("geoshard", &format!("s{}", value.len()), by);
                }
            }
            if !delta.is_empty() {
                source.edges.push(Edge { pos: position(source.next), delta });
            }
            source.documents.remove(&document);
            source.documents.extend(after.map(|value| (document, value)));
            source.next += 1 + i64::try_from(self.random.below(3)).unwrap_or(0);
        }
        let below =
            |random: &mut Random, to: i64| i64::try_from(random.below(to.unsigned_abs() + 1)).unwrap_or(0);
        // Most go on where the last one ended. Some did not hear that it arrived; some are from long ago.
        let (from, to) = match self.random.below(10) {
            0..=5 => (source.acknowledged, source.next),
            6 | 7 => (below(&mut self.random, source.acknowledged), source.next),
            8 => {
                let from = below(&mut self.random, source.acknowledged);
                (from, from + below(&mut self.random, source.next - from))
            }
            _ => (
                source.acknowledged,
                source.acknowledged + below(&mut self.random, source.next - source.acknowledged),
            ),
        };
        source.acknowledged = source.acknowledged.max(to);
        self.sent += 1;
        let wanted = source.edges.iter().filter(|edge| edge.pos >= position(from) && edge.pos < position(to));
        Increment {
            id: format!("i{}", self.sent),
            topic: self.topic.clone(),
            partition: i32::try_from(number).unwrap_or(0),
            to: position(to),
            edges: wanted.cloned().collect(),
        }
    }

    /// The final increment of each partition.
    pub fn last_increments(&mut self) -> Vec<Increment> {
        let mut last = Vec::new();
        for (number, source) in (0..).zip(&mut self.sources) {
            self.sent += 1;
            last.push(Increment {
                id: format!("i{}", self.sent),
                topic: self.topic.clone(),
                partition: number,
                to: position(source.next),
                edges: source
                    .edges
                    .iter()
                    .filter(|edge| edge.pos >= position(source.acknowledged))
                    .cloned()
                    .collect(),
            });
            source.acknowledged = source.next;
        }
        last
    }

    /// The counts of the documents as they are: facet, value, count, in order.
    pub fn counts(&self) -> Vec<(String, String, i64)> {
        let mut counts: BTreeMap<(String, String), i64> = BTreeMap::new();
        for value in self.sources.iter().flat_map(|source| source.documents.values()) {
            *counts.entry(("tags".to_owned(), value.clone())).or_default() += 1;
            *counts.entry(("geoshard".to_owned(), format!("s{}", value.len()))).or_default() += 1;
        }
        counts.into_iter().map(|((facet, value), count)| (facet, value, count)).collect()
    }
}
