//! Counting anew: what all documents come to, read from their indices, and where counts differ from that.
//!
//! It is exact while nothing is written: a document that is moving may be in two indices, and counts are of what is committed.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::base::ids::ShardId;
use crate::core::counting::facets::FacetRules;
use crate::io::elastic::Elastic;
use crate::io::elastic::scan::{IndexScan, ScanError, ScanOptions};

/// Documents of one request.
const PAGE: usize = 2_000;

/// Counts by facet and value.
pub type FacetCounts = BTreeMap<(String, String), i64>;

/// Counts the facets of all documents in these geoshards' indices, as searches see them. `fields` are the facets' paths;
/// `seen` receives the number of documents read so far. Memory holds a page, and a count for each value.
///
/// # Errors
/// If an index cannot be read to its end.
pub async fn recount(
    elastic: &dyn Elastic,
    prefix: &str,
    shards: &[ShardId],
    rules: &FacetRules,
    fields: &[String],
    timeout: Duration,
    mut seen: impl FnMut(u64),
) -> Result<FacetCounts, ScanError> {
    let mut counts = FacetCounts::new();
    let mut documents = 0;
    for shard in shards {
        // Without a field, all of a document would be asked for; an unknown one costs nothing.
        let fields = if fields.is_empty() { vec![NO_FIELD.to_owned()] } else { fields.to_vec() };
        let options = ScanOptions { page: PAGE, timeout, fields, query: None };
        let mut scan = IndexScan::open(elastic, &[format!("{prefix}-{shard}")], options).await?;
        let result = loop {
            let page = match scan.next().await {
                Ok(page) if page.is_empty() => break Ok(()),
                Ok(page) => page,
                Err(error) => break Err(error),
            };
            documents += page.len() as u64;
            for hit in &page {
                let facets = rules.facets(hit.source.to_string().as_bytes(), shard);
                for (facet, value) in facets.iter() {
                    *counts.entry((facet.to_owned(), value.to_owned())).or_default() += 1;
                }
            }
            seen(documents);
        };
        scan.close().await;
        result?;
    }
    Ok(counts)
}

/// No real field has this name.
const NO_FIELD: &str = "geofold-no-field";

/// A count that is not what the documents come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountDifference {
    /// The facet.
    pub facet: String,
    /// Its value.
    pub value: String,
    /// The count that is kept; 0 if there is none.
    pub counted: i64,
    /// How many documents have it.
    pub found: i64,
}

/// Every count that differs, in order.
pub fn differences(kept: &FacetCounts, found: &FacetCounts) -> Vec<CountDifference> {
    let of = |counts: &FacetCounts, key| counts.get(key).copied().unwrap_or_default();
    let keys = kept.keys().chain(found.keys().filter(|key| !kept.contains_key(*key)));
    let mut all: Vec<CountDifference> = keys
        .map(|key| CountDifference {
            facet: key.0.clone(),
            value: key.1.clone(),
            counted: of(kept, key),
            found: of(found, key),
        })
        .filter(|difference| difference.counted != difference.found)
        .collect();
    all.sort_by(|one, other| (&one.facet, &one.value).cmp(&(&other.facet, &other.value)));
    all
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::base::clock::BootClock;
    use crate::base::ids::DocId;
    use crate::core::counting::facets::FacetLimits;
    use crate::io::elastic::http::{HttpElastic, HttpOptions};
    use crate::io::elastic::{AdminCall, BulkOp, Index, Method, WriteCondition};
    use crate::testkit::embedded::elasticsearch::{Standin, StandinOptions};

    const SOON: Duration = Duration::from_secs(20);

    fn counts(all: &[(&str, &str, i64)]) -> FacetCounts {
        all.iter().map(|(facet, value, n)| (((*facet).to_owned(), (*value).to_owned()), *n)).collect()
    }

    #[tokio::test]
    async fn all_documents_are_counted_by_their_facets_and_their_geoshard() {
        let standin = Standin::start(StandinOptions::default()).await.unwrap();
        let options = HttpOptions::new(vec![standin.url().parse().unwrap()], "p", SOON);
        let elastic = HttpElastic::connect(&options, std::sync::Arc::new(BootClock)).unwrap();
        let shards = ["a", "b", "c"].map(|name| ShardId::new(name).unwrap());
        for shard in &shards {
            let path = format!("/p-{shard}");
            let call =
                AdminCall { method: Method::Put, path, body: Some(json!({"mappings": {"properties": {}}})) };
            assert!(elastic.admin(call, SOON).await.unwrap().status < 300);
        }
        let document = |shard: &ShardId, id: &str, source: Value| BulkOp::Index {
            index: Index::Geoshard(shard.clone()),
            id: DocId::from_key(Some(id.as_bytes())).unwrap(),
            guard: WriteCondition::Absent,
            source: source.to_string().into(),
        };
        let ops = [
            document(&shards[0], "1", json!({"tags": ["red", "blue", "red"], "x": {"g": true}})),
            document(&shards[0], "2", json!({"tags": "red", "x": {"g": false}})),
            document(&shards[1], "3", json!({"other": "red"})),
        ];
        for answer in elastic.bulk(&ops, SOON).await.unwrap() {
            assert_eq!(answer.status, 201, "{answer:?}");
        }
        elastic.refresh(&shards.clone().map(Index::Geoshard), SOON).await.unwrap();

        let paths = [("tags", "tags"), ("g", "x.g")];
        let limits = FacetLimits { max_value_bytes: 100, max_values: 10 };
        let fields = paths.map(|(_, path)| path.to_owned());
        let mut read = 0;
        let rules = FacetRules::new(true, paths, limits);
        let found = recount(&elastic, "p", &shards, &rules, &fields, SOON, |n| read = n).await.unwrap();
        let expected = counts(&[
            ("g", "false", 1),
            ("g", "true", 1),
            ("geoshard", "a", 2),
            ("geoshard", "b", 1),
            ("tags", "blue", 1),
            ("tags", "red", 2),
        ]);
        assert_eq!((found, read), (expected, 3));
        let rules = FacetRules::new(true, [], limits);
        let found = recount(&elastic, "p", &shards, &rules, &[], SOON, |_| ()).await.unwrap();
        assert_eq!(found, counts(&[("geoshard", "a", 2), ("geoshard", "b", 1)]));
    }

    #[test]
    fn differences_are_reported_in_both_directions() {
        let kept = counts(&[("t", "b", 2), ("t", "c", 3), ("t", "d", -1)]);
        let found = counts(&[("t", "a", 1), ("t", "b", 2), ("t", "c", 4)]);
        let difference = |value: &str, counted, found| CountDifference {
            facet: "t".to_owned(),
            value: value.to_owned(),
            counted,
            found,
        };
        let expected = [difference("a", 0, 1), difference("c", 3, 4), difference("d", -1, 0)];
        assert_eq!(differences(&kept, &found), expected);
        assert_eq!(differences(&kept, &kept), []);
    }
}
