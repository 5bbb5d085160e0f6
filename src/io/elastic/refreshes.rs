//! How often Elasticsearch has refreshed the copies of a geoshard: `refresh.external_total` of `_stats`.
//!
//! A copy ends one refresh before it begins the next, and counts it at its end. So of two more refreshes than were counted
//! after a write, the second began after the write, and searches of this copy find it.

use std::collections::BTreeMap;

use serde_json::Value;

/// Refreshes so far of each copy that searches may ask, by the number of its shard and its node. Empty: not known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RefreshCounts(BTreeMap<String, u64>);

impl RefreshCounts {
    /// Of these copies.
    pub fn of<const N: usize>(copies: [(&str, u64); N]) -> Self {
        Self(copies.into_iter().map(|(copy, refreshes)| (copy.to_owned(), refreshes)).collect())
    }

    /// Not known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether every copy has ended two more refreshes than at `baseline`, and there is no other copy now.
    pub fn show_what_was_written_before(&self, baseline: &Self) -> bool {
        self.continue_from(baseline) && self.more_than(baseline) >= 2
    }

    /// Whether the copies are still those of `baseline`.
    pub fn continue_from(&self, baseline: &Self) -> bool {
        self.0.keys().eq(baseline.0.keys())
            && self.0.values().zip(baseline.0.values()).all(|(now, then)| now >= then)
    }

    /// How many refreshes more each copy of both has ended, at least. 0 without such a copy.
    pub fn more_than(&self, baseline: &Self) -> u64 {
        let more = self.0.iter().filter_map(|(copy, now)| Some(now.saturating_sub(*baseline.0.get(copy)?)));
        more.min().unwrap_or(0)
    }
}

/// Path of the request that counts the refreshes of these indices.
pub fn path(names: &[String]) -> String {
    format!(
        "/{}/_stats/refresh?level=shards&filter_path=_shards.failed,indices.*.shards.*.routing.state,\
         indices.*.shards.*.routing.node,indices.*.shards.*.refresh.external_total",
        names.join(",")
    )
}

/// The counts of one index of its answer. Empty if a copy did not answer or something is missing: then nothing is known.
pub fn read(answer: &Value, name: &str) -> RefreshCounts {
    let is_whole = answer["_shards"]["failed"].as_u64() == Some(0);
    RefreshCounts(is_whole.then(|| copies(&answer["indices"][name])).flatten().unwrap_or_default())
}

fn copies(index: &Value) -> Option<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for (number, copies) in index["shards"].as_object()? {
        for copy in copies.as_array()? {
            // Before, searches do not ask it.
            if matches!(copy["routing"]["state"].as_str()?, "STARTED" | "RELOCATING") {
                let node = copy["routing"]["node"].as_str()?;
                counts.insert(format!("{number} {node}"), copy["refresh"]["external_total"].as_u64()?);
            }
        }
    }
    Some(counts)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn copy(state: &str, node: &str, refreshes: u64) -> Value {
        json!({"routing": {"state": state, "node": node}, "refresh": {"external_total": refreshes}})
    }

    #[test]
    fn copies_that_searches_ask_are_counted() {
        let answer = json!({"_shards": {"failed": 0}, "indices": {
            "places-a": {"shards": {"0": [copy("STARTED", "x", 5), copy("INITIALIZING", "y", 1)],
                                    "1": [copy("RELOCATING", "x", 6)]}},
            "places-b": {"shards": {"0": [copy("INITIALIZING", "y", 1)]}},
        }});
        assert_eq!(read(&answer, "places-a"), RefreshCounts::of([("0 x", 5), ("1 x", 6)]));
        assert!(read(&answer, "places-b").is_empty());
        assert!(read(&answer, "places-c").is_empty());
    }

    #[test]
    fn an_answer_with_gaps_says_nothing() {
        let whole =
            json!({"_shards": {"failed": 0}, "indices": {"a": {"shards": {"0": [copy("STARTED", "x", 5)]}}}});
        assert!(!read(&whole, "a").is_empty());
        let mut failed = whole.clone();
        failed["_shards"]["failed"] = json!(1);
        assert!(read(&failed, "a").is_empty());
        // As a server answers that does not count them.
        let mut other = whole.clone();
        other["indices"]["a"]["shards"]["0"][0]["refresh"] = json!({"total": 9});
        assert!(read(&other, "a").is_empty());
        assert!(read(&Value::Null, "a").is_empty());
    }

    #[test]
    fn two_more_refreshes_of_every_copy_are_enough() {
        let both = |first, second| RefreshCounts::of([("0 x", first), ("0 y", second)]);
        let baseline = both(5, 7);
        for (counts, expected) in [
            (both(7, 9), true),
            (both(6, 9), false),
            (both(7, 7), false),
            (both(9, 6), false),
            (RefreshCounts::of([("0 x", 9)]), false),
            (RefreshCounts::of([("0 x", 9), ("0 z", 9)]), false),
            (RefreshCounts::default(), false),
        ] {
            assert_eq!(counts.show_what_was_written_before(&baseline), expected, "{counts:?}");
        }
        assert!(!RefreshCounts::default().show_what_was_written_before(&RefreshCounts::default()));
    }
}
