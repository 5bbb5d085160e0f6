//! Document counts of geoshards.
//!
//! The answer is `_cat/indices`' `docs.count`: what the last refresh made visible, hidden documents of nested fields
//! included. Exact enough to see which geoshard is too full; `geofold` itself never acts on it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::viewed::{TIMEOUT, Viewed};
use crate::base::ids::ShardId;
use crate::io::elastic::decode::reason;
use crate::io::elastic::{AdminCall, Elastic, Method};

/// Interval of requests to Elasticsearch.
pub const COUNT_INTERVAL: Duration = Duration::from_secs(15);

/// How many documents each geoshard holds; one that Elasticsearch did not name is not there.
pub type DocumentCounts = Viewed<BTreeMap<ShardId, u64>>;

impl DocumentCounts {
    /// Requests counts of the indices that begin with `prefix`, while the page is viewed, until `stop`.
    pub async fn keep_counting(
        self: Arc<Self>,
        elastic: Arc<dyn Elastic>,
        prefix: String,
        stop: CancellationToken,
    ) {
        self.keep_asking(COUNT_INTERVAL, || count(&*elastic, &prefix), stop).await;
    }
}

async fn count(elastic: &dyn Elastic, prefix: &str) -> Result<BTreeMap<ShardId, u64>, String> {
    let path = format!("/_cat/indices/{prefix}-*?format=json&h=index,docs.count&bytes=b");
    let call = AdminCall { method: Method::Get, path, body: None };
    let answer = elastic.admin(call, TIMEOUT).await.map_err(|error| error.to_string())?;
    match answer.status {
        200 => Ok(documents(&answer.body, prefix)),
        status => Err(format!("elasticsearch answered {status}: {}", reason(&answer))),
    }
}

/// By geoshard, from the rows of `_cat/indices`. An index whose shards are not assigned has no count.
fn documents(rows: &Value, prefix: &str) -> BTreeMap<ShardId, u64> {
    let row = |row: &Value| {
        let suffix = row["index"].as_str()?.strip_prefix(prefix)?.strip_prefix('-')?;
        let shard = ShardId::new(suffix).ok()?;
        Some((shard, row["docs.count"].as_str()?.parse().ok()?))
    };
    rows.as_array().into_iter().flatten().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use serde_json::json;

    use super::*;
    use crate::io::elastic::scripted::Scripted;
    use crate::support::telemetry::health::tests::HandClock;
    use crate::testkit::testing::shard;

    const CALL: &str = "GET /_cat/indices/geofold-*?format=json&h=index,docs.count&bytes=b";

    #[test]
    fn only_indices_with_a_count_and_the_name_of_a_geoshard_are_counted() {
        let rows = json!([
            {"index": "geofold-s00", "docs.count": "12"},
            {"index": "geofold-s01", "docs.count": null},
            {"index": "geofold-placements", "docs.count": "99"},
            {"index": "other-s02", "docs.count": "5"},
        ]);
        assert_eq!(documents(&rows, "geofold"), BTreeMap::from([(shard("s00"), 12)]));
        assert_eq!(documents(&json!({"error": "no"}), "geofold"), BTreeMap::new());
    }

    #[tokio::test(start_paused = true)]
    async fn elasticsearch_is_queried_only_while_the_page_is_viewed() {
        let clock = Arc::new(HandClock::default());
        let counts = DocumentCounts::new(clock.clone());
        let answer =
            |_: &str, _: Option<&Value>| (200, json!([{"index": "geofold-s00", "docs.count": "12"}]));
        let elastic = Arc::new(Scripted { admin: Box::new(answer), ..Default::default() });
        let stop = CancellationToken::new();
        let task =
            tokio::spawn(counts.clone().keep_counting(elastic.clone(), "geofold".to_owned(), stop.clone()));
        let asked = || elastic.calls.lock().unwrap().len();

        tokio::time::sleep(COUNT_INTERVAL * 10).await;
        assert_eq!(asked(), 0);

        assert_eq!(counts.look().last, None);
        tokio::time::sleep(COUNT_INTERVAL * 2 + Duration::from_secs(1)).await;
        assert_eq!(asked(), 3);
        assert_eq!(elastic.calls.lock().unwrap()[0], CALL);
        assert_eq!(counts.look().last.unwrap().1[&shard("s00")], 12);

        clock.0.store(61, Ordering::Relaxed);
        let before = asked();
        tokio::time::sleep(COUNT_INTERVAL * 10).await;
        assert!(asked() <= before + 1, "nobody looks");
        stop.cancel();
        task.await.unwrap();
    }

    #[tokio::test]
    async fn a_refusal_is_told_and_earlier_figures_stay() {
        let counts = DocumentCounts::new(Arc::new(HandClock::default()));
        counts.take(Ok(BTreeMap::from([(shard("s00"), 12)])));
        let answer = |_: &str, _: Option<&Value>| (403, json!({"error": {"reason": "not allowed"}}));
        counts.take(count(&Scripted { admin: Box::new(answer), ..Default::default() }, "geofold").await);
        let counted = counts.look();
        assert_eq!(counted.problem.as_deref(), Some("elasticsearch answered 403: not allowed"));
        assert!(counted.last.is_some());
    }
}
