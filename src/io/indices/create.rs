//! Finds indices, and creates missing ones.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use thiserror::Error;

use super::{FoundIndices, IndexDifference, WantedIndex, differences};
use crate::base::ids::ShardId;
use crate::base::progress::{Progress, Tell};
use crate::io::elastic::decode::reason;
use crate::io::elastic::{AdminCall, CallError, Elastic, Method};

/// Concurrent index creations. The master applies these cluster state updates one by one.
const SIDE_BY_SIDE: usize = 4;

/// Result of creating indices.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CreateReport {
    /// Indices that were made.
    pub created: Vec<String>,
    /// Indices that were there, and were not touched.
    pub existing: Vec<String>,
    /// Remaining differences of all wanted indices.
    pub differences: Vec<IndexDifference>,
}

/// A request about indices failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IndicesError {
    /// No usable answer.
    #[error("cannot {doing}: {error}")]
    Call {
        /// What was being done.
        doing: String,
        /// Why not.
        error: CallError,
    },
    /// Elasticsearch refused.
    #[error("cannot {doing}: elasticsearch answered {status}: {reason}")]
    Refused {
        /// What was being done.
        doing: String,
        /// HTTP status.
        status: u16,
        /// In its words.
        reason: String,
    },
}

/// The geoshards that have an index, of any map. Ignores names that no geoshard can have.
pub async fn geoshards(
    elastic: &dyn Elastic,
    prefix: &str,
    timeout: Duration,
) -> Result<Vec<ShardId>, IndicesError> {
    let found = find(elastic, prefix, timeout).await?;
    let start = format!("{prefix}-");
    Ok(found.names().filter_map(|name| ShardId::new(name.strip_prefix(&start)?).ok()).collect())
}

/// All indices named `prefix` and a hyphen, closed and hidden ones included.
pub async fn find(
    elastic: &dyn Elastic,
    prefix: &str,
    timeout: Duration,
) -> Result<FoundIndices, IndicesError> {
    // A wildcard, since the names of many geoshards would not fit the 4 KB of Elasticsearch's longest request line.
    let path = format!("/{prefix}-*?expand_wildcards=open,closed,hidden&flat_settings=true");
    let call = AdminCall { method: Method::Get, path, body: None };
    let doing = || format!("list the indices {prefix}-*");
    let answer =
        elastic.admin(call, timeout).await.map_err(|error| IndicesError::Call { doing: doing(), error })?;
    match answer.status {
        200 => Ok(FoundIndices::from_answer(answer.body)),
        // With some security plug-ins a wildcard that matches nothing is "not found".
        404 => Ok(FoundIndices::default()),
        status => Err(IndicesError::Refused { doing: doing(), status, reason: reason(&answer) }),
    }
}

/// Creates missing indices, never changes existing ones, and reports differences of all. After a failure some may exist; a
/// repetition continues from there.
pub async fn create_missing(
    elastic: &dyn Elastic,
    prefix: &str,
    wanted: &[WantedIndex],
    timeout: Duration,
    tell: Tell<'_>,
) -> Result<CreateReport, IndicesError> {
    let before = find(elastic, prefix, timeout).await?;
    let (existing, missing): (Vec<_>, Vec<_>) = wanted.iter().partition(|index| before.knows(&index.name));
    let mut report = CreateReport {
        existing: existing.iter().map(|index| index.name.clone()).collect(),
        ..Default::default()
    };
    let (done, of) = (AtomicU64::new(0), missing.len() as u64);
    let tell_all = |done| tell(Progress::Done { what: "indices created", done, of: Some(of) });
    tell_all(0);
    let made: Vec<bool> = stream::iter(&missing)
        .map(async |index| {
            let made = create(elastic, index, timeout).await?;
            tell_all(done.fetch_add(1, Ordering::Relaxed) + 1);
            Ok(made)
        })
        .buffered(SIDE_BY_SIDE)
        .try_collect()
        .await?;
    for (index, made_here) in missing.iter().zip(made) {
        let list = if made_here { &mut report.created } else { &mut report.existing };
        list.push(index.name.clone());
    }
    // Read again: another process may have been first, and cluster templates add settings.
    let after = if missing.is_empty() { before } else { find(elastic, prefix, timeout).await? };
    report.differences = differences(wanted, &after);
    Ok(report)
}

/// Creates one index; `false` if it is there already.
async fn create(elastic: &dyn Elastic, index: &WantedIndex, timeout: Duration) -> Result<bool, IndicesError> {
    let path = format!("/{}?wait_for_active_shards=1", index.name);
    let call = AdminCall { method: Method::Put, path, body: Some(index.body()) };
    let doing = || format!("create the index {}", index.name);
    let answer =
        elastic.admin(call, timeout).await.map_err(|error| IndicesError::Call { doing: doing(), error })?;
    match (answer.status, answer.body["error"]["type"].as_str()) {
        (200..=299, _) => Ok(true),
        (400, Some("resource_already_exists_exception")) => Ok(false),
        (status, _) => Err(IndicesError::Refused { doing: doing(), status, reason: reason(&answer) }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use serde_json::{Value, json};

    use super::super::{Layout, Problem, Template, wanted};
    use super::*;
    use crate::base::ids::ShardId;
    use crate::io::elastic::scripted::Scripted;
    use crate::support::config::PlacementsConfig;

    const SOON: Duration = Duration::from_secs(1);

    fn layout(shards: &[ShardId]) -> Layout<'_> {
        let (gc_deletes, placements) = (Duration::from_secs(600), PlacementsConfig::default());
        Layout { prefix: "p", shards, location: "at", gc_deletes, placements }
    }

    fn wanted_indices() -> Vec<WantedIndex> {
        let shards: Vec<_> = (0..9).map(|n| ShardId::new(&format!("s{n}")).unwrap()).collect();
        wanted(&layout(&shards), &Template::default()).unwrap()
    }

    /// A server that keeps indices; `hidden` ones exist although no list shows them.
    fn server(at_first: &[(&str, Value)], hidden: &[&str]) -> Scripted {
        let named = at_first.iter().map(|(name, index)| ((*name).to_owned(), index.clone()));
        let indices = Arc::new(Mutex::new(BTreeMap::from_iter(named)));
        let hidden: Vec<String> = hidden.iter().map(|&name| name.to_owned()).collect();
        let answer = move |line: &str, body: Option<&Value>| {
            let mut indices = indices.lock().unwrap();
            if line.starts_with("GET /p-*?") {
                return (200, json!(*indices));
            }
            let name = line.strip_prefix("PUT /").unwrap().strip_suffix("?wait_for_active_shards=1").unwrap();
            if hidden.iter().any(|taken| taken == name) {
                let kind = "resource_already_exists_exception";
                return (400, json!({"error": {"type": kind, "reason": "it exists"}, "status": 400}));
            }
            indices.insert(name.to_owned(), body.unwrap().clone());
            (200, json!({"acknowledged": true}))
        };
        Scripted { admin: Box::new(answer), ..Default::default() }
    }

    #[tokio::test]
    async fn create_is_idempotent() {
        let (wanted, server) = (wanted_indices(), server(&[], &[]));
        let told = Mutex::new(Vec::new());
        let tell = |progress: Progress<'_>| told.lock().unwrap().push(progress.line(Duration::ZERO));
        let first = create_missing(&server, "p", &wanted, SOON, &tell).await.unwrap();
        assert_eq!(first.created.len(), 11);
        let expected: Vec<_> = (0..=11).map(|done| format!("{done} of 11 indices created")).collect();
        assert_eq!(*told.lock().unwrap(), expected);
        assert_eq!((first.existing.len(), first.differences), (0, vec![]));

        server.calls.lock().unwrap().clear();
        let second = create_missing(&server, "p", &wanted, SOON, &|_| ()).await.unwrap();
        assert_eq!((second.created.len(), second.existing.len()), (0, 11));
        assert_eq!(server.calls.lock().unwrap().len(), 1, "one request sees all of them");
    }

    #[tokio::test]
    async fn existing_indices_are_reported_and_kept() {
        let server = server(&[("p-s3", json!({"settings": {}, "mappings": {}}))], &["p-s5"]);
        let report = create_missing(&server, "p", &wanted_indices(), SOON, &|_| ()).await.unwrap();
        assert_eq!(report.existing, ["p-s3", "p-s5"]);
        assert_eq!(report.created.len(), 9);
        assert!(!server.calls.lock().unwrap().iter().any(|call| call.starts_with("PUT /p-s3")));
        let about_s3 = report.differences.iter().filter(|difference| difference.index == "p-s3").count();
        assert_eq!(about_s3, 2, "gc_deletes and location");
        let unseen = IndexDifference { index: "p-s5".to_owned(), problem: Problem::Missing };
        assert!(report.differences.contains(&unseen), "{:?}", report.differences);
    }

    #[tokio::test]
    async fn differences_from_the_template_are_reported_not_changed() {
        let shards = [ShardId::new("s0").unwrap()];
        let wanted_by = |replicas: u8| {
            let template = json!({"settings": {"index.number_of_replicas": replicas}}).to_string();
            wanted(&layout(&shards), &Template::from_json(&template).unwrap()).unwrap()
        };
        let server = server(&[], &[]);
        let first = create_missing(&server, "p", &wanted_by(1), SOON, &|_| ()).await.unwrap();
        assert_eq!(first.differences, [], "what was just made is as wanted");
        server.calls.lock().unwrap().clear();

        let second = create_missing(&server, "p", &wanted_by(2), SOON, &|_| ()).await.unwrap();
        let problem = Problem::NotAsTemplate {
            what: "index.number_of_replicas".to_owned(),
            wanted: "2".to_owned(),
            found: Some("1".to_owned()),
        };
        assert_eq!(second.differences, [IndexDifference { index: "p-s0".to_owned(), problem }]);
        assert!(server.calls.lock().unwrap().iter().all(|call| call.starts_with("GET ")));
    }

    #[tokio::test]
    async fn a_refusal_names_the_index_and_the_cause() {
        let error = json!({"error": {
            "type": "mapper_parsing_exception", "reason": "failed to parse mapping",
            "caused_by": {"type": "illegal_argument_exception", "reason": "analyzer [x] not found"},
        }});
        let answer = move |line: &str, _: Option<&Value>| {
            if line.starts_with("GET") { (200, json!({})) } else { (400, error.clone()) }
        };
        let server = Scripted { admin: Box::new(answer), ..Default::default() };
        let refused = create_missing(&server, "p", &wanted_indices(), SOON, &|_| ()).await.unwrap_err();
        assert_eq!(
            refused.to_string(),
            "cannot create the index p-s0: elasticsearch answered 400: failed to parse mapping: analyzer [x] not found"
        );
    }
}
