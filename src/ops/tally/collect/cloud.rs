//! The cloud: the most frequent values of each facet, kept up to date from the counts that change.
//!
//! A facet's list holds more values than are requested, and a *threshold*: every value not on the list ranks at it or below. So
//! a value whose count changed is placed by its new count alone. The counts are read again, by one indexed query, only when so
//! many values fell off that the list is too short.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A value's rank: those with more documents first, then by value.
fn rank(value: &str, count: i64) -> (Reverse<i64>, &str) {
    (Reverse(count), value)
}

/// The most frequent values of all facets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cloud(BTreeMap<String, TopN>);

/// The best values of one facet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopN {
    /// In descending order; all counts are above 0.
    values: Vec<(String, i64)>,
    /// The rank of the best value not on the list; `None` if all are on it.
    #[serde(rename = "floor")] // Stored so since the first version.
    threshold: Option<(String, i64)>,
}

impl TopN {
    /// From all counted values, or the best `capacity + 1`, in descending order.
    pub fn from_counts(mut best: Vec<(String, i64)>, capacity: usize) -> Self {
        let threshold = best.get(capacity).cloned();
        best.truncate(capacity);
        Self { values: best, threshold }
    }

    /// Whether the best `top` are all known.
    pub fn reaches(&self, top: usize) -> bool {
        self.threshold.is_none() || self.values.len() >= top
    }

    /// The best `top`, the best first.
    pub fn best(&self, top: usize) -> &[(String, i64)] {
        &self.values[..top.min(self.values.len())]
    }

    fn is_above_threshold(&self, value: &str, count: i64) -> bool {
        let below = |(threshold, at): &(String, i64)| rank(value, count) < rank(threshold, *at);
        count > 0 && self.threshold.as_ref().is_none_or(below)
    }

    /// The count of `value` changed from `before` to `count`.
    fn place(&mut self, value: &str, before: i64, count: i64, capacity: usize) {
        if self.is_above_threshold(value, before) {
            let before = rank(value, before);
            let at = self.values.partition_point(|(value, count)| rank(value, *count) < before);
            if self.values.get(at).is_some_and(|(known, _)| known == value) {
                self.values.remove(at);
            }
        }
        if !self.is_above_threshold(value, count) {
            return;
        }
        let now = rank(value, count);
        let at = self.values.partition_point(|(value, count)| rank(value, *count) < now);
        self.values.insert(at, (value.to_owned(), count));
        if self.values.len() > capacity {
            self.threshold = self.values.pop();
        }
    }
}

impl Cloud {
    /// Maximum length of a list for the best `top`.
    pub fn capacity(top: usize) -> usize {
        top.saturating_mul(2).max(top.saturating_add(10))
    }

    /// Facets with a list.
    pub fn facets(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The list of a facet.
    pub fn top_of(&self, facet: &str) -> Option<&TopN> {
        self.0.get(facet)
    }

    /// Replaces a facet's top-N list by one read from the database.
    pub fn set_top(&mut self, facet: &str, list: TopN) {
        self.0.insert(facet.to_owned(), list);
    }

    /// These counts changed: facet, value, count before, count now. A facet that was not known yet has no other values.
    pub fn place<'a>(&mut self, counts: impl Iterator<Item = (&'a str, &'a str, i64, i64)>, top: usize) {
        let capacity = Self::capacity(top);
        for (facet, value, before, count) in counts {
            if !self.0.contains_key(facet) {
                self.0.insert(facet.to_owned(), TopN::default());
            }
            if let Some(list) = self.0.get_mut(facet) {
                list.place(value, before, count, capacity);
            }
        }
    }

    /// The facets whose list no longer covers the best `top`, and must be read again.
    pub fn short(&self, top: usize) -> Vec<String> {
        let short = self.0.iter().filter(|(_, list)| !list.reaches(top));
        short.map(|(facet, _)| facet.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// All values that count, the best first.
    fn recomputed(counts: &BTreeMap<String, i64>) -> Vec<(String, i64)> {
        let mut all: Vec<_> = counts
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(value, count)| (value.clone(), *count))
            .collect();
        all.sort_by(|(one, more), (other, less)| rank(one, *more).cmp(&rank(other, *less)));
        all
    }

    proptest! {
        #[test]
        fn the_cloud_kept_by_changes_is_the_cloud_of_all_counts(
            top in 1usize..6,
            batches in prop::collection::vec(prop::collection::vec((0u8..60, 0i64..9), 1..25), 1..60),
        ) {
            let mut counts: BTreeMap<String, i64> = BTreeMap::new();
            let mut cloud = Cloud::default();
            for batch in batches {
                let before = counts.clone();
                // When many counts drop to 0, a list must be read again.
                for (value, count) in batch {
                    counts.insert(format!("v{value}"), (count - 3).max(-1));
                }
                let count = |counts: &BTreeMap<String, i64>, value| counts.get(value).copied().unwrap_or_default();
                let changed = counts.keys().map(|value| ("tags", value.as_str(), count(&before, value), counts[value]));
                cloud.place(changed, top);
                // Stored and read back between any two versions, as another collector would.
                cloud = serde_json::from_slice(&serde_json::to_vec(&cloud).unwrap()).unwrap();
                let all = recomputed(&counts);
                for facet in cloud.short(top) {
                    let capacity = Cloud::capacity(top);
                    let best = all.iter().take(capacity + 1).cloned().collect();
                    cloud.set_top(&facet, TopN::from_counts(best, capacity));
                }
                let list = cloud.top_of("tags").unwrap();
                prop_assert_eq!(list.best(top), &all[..top.min(all.len())]);
                prop_assert!(list.values.len() <= Cloud::capacity(top));
            }
        }
    }

    #[test]
    fn a_board_is_read_anew_only_when_it_fell_short() {
        let top = 2;
        let mut cloud = Cloud::default();
        let names: Vec<String> = (0..20).map(|n| format!("v{n:02}")).collect();
        cloud.place(names.iter().map(|name| ("tags", name.as_str(), 0, 5)), top);
        assert_eq!(cloud.top_of("tags").unwrap().values.len(), Cloud::capacity(top));
        let mut readings = 0;
        for name in &names {
            cloud.place([("tags", name.as_str(), 5, 0)].into_iter(), top);
            readings += usize::from(!cloud.short(top).is_empty());
            if !cloud.short(top).is_empty() {
                break;
            }
        }
        assert_eq!(readings, 1);
        assert_eq!(cloud.top_of("tags").unwrap().best(9).len(), 1);
    }
}
