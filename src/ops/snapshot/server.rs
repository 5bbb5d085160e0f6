//! What Elasticsearch is asked to do.

use std::time::Duration;

use serde_json::{Value, json};

use super::{SnapshotPlace, Snapshots};
use crate::base::ids::DocId;
use crate::io::elastic::{AdminCall, Index, Method};
use crate::io::indices::{self, IndicesError};

/// Minimum request timeout: deletes and blocks of many indices take long.
const MIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval of looks at what Elasticsearch does by itself.
pub(super) const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Names in one request line stay well below Elasticsearch's 4 KB.
const NAMES_BYTES: usize = 3000;
/// Tries to end a block: it must not stay because of one lost connection.
const UNBLOCK_TRIES: usize = 10;

impl Snapshots<'_> {
    pub(super) fn timeout(&self) -> Duration {
        self.config.elasticsearch.request_timeout.max(MIN_TIMEOUT)
    }

    async fn request(
        &self,
        method: Method,
        path: String,
        body: Option<Value>,
        doing: &str,
    ) -> Result<Value, IndicesError> {
        let call = AdminCall { method, path, body };
        let answer = self.elastic.admin(call, self.timeout()).await;
        let answer = answer.map_err(|error| IndicesError::Call { doing: doing.to_owned(), error })?;
        match answer.status {
            200..=299 => Ok(answer.body),
            status => {
                let reason = crate::io::elastic::decode::reason(&answer);
                Err(IndicesError::Refused { doing: doing.to_owned(), status, reason })
            }
        }
    }

    /// A request about what need not be there; `None` if it is not.
    pub(super) async fn find(
        &self,
        method: Method,
        path: String,
        doing: &str,
    ) -> Result<Option<Value>, IndicesError> {
        match self.request(method, path, None, doing).await {
            Err(IndicesError::Refused { status: 404, .. }) => Ok(None),
            found => found.map(Some),
        }
    }

    /// All indices of the prefix, sorted.
    pub(super) async fn indices(&self) -> Result<Vec<String>, IndicesError> {
        let prefix = &self.config.elasticsearch.prefix;
        let found = indices::find(self.elastic, prefix, self.timeout()).await?;
        let mut names: Vec<String> = found.names().map(str::to_owned).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Whether this is the meta index, which workers write all the time to keep their claims.
    pub(super) fn is_meta(&self, name: &str) -> bool {
        name == Index::Meta.name(&self.config.elasticsearch.prefix)
    }

    /// One request for as many of these names as fit a request line, after another.
    async fn each_group(
        &self,
        names: &[String],
        method: Method,
        end: &str,
        body: Option<&Value>,
        doing: &str,
    ) -> Result<(), IndicesError> {
        for group in groups(names) {
            self.request(method, format!("/{group}{end}"), body.cloned(), doing).await?;
        }
        Ok(())
    }

    /// Lets no write in any more. What was let in before has been carried out when this returns.
    pub(super) async fn block(&self, names: &[String]) -> Result<(), IndicesError> {
        self.each_group(names, Method::Put, "/_block/write", None, "block writes").await
    }

    pub(super) async fn unblock_indices(&self, names: &[String]) -> Result<(), IndicesError> {
        let body = json!({"index.blocks.write": null});
        let mut tries = 0;
        loop {
            let done = self.each_group(names, Method::Put, "/_settings", Some(&body), "unblock writes").await;
            tries += 1;
            match done {
                Err(IndicesError::Call { .. }) if tries < UNBLOCK_TRIES => {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                done => return done,
            }
        }
    }

    /// Those of the indices of the prefix whose writes are blocked.
    pub(super) async fn blocked(&self) -> Result<Vec<String>, IndicesError> {
        let prefix = &self.config.elasticsearch.prefix;
        let path = format!("/{prefix}-*/_settings/index.blocks.write?flat_settings=true");
        let settings = self.find(Method::Get, path, "ask which writes are blocked").await?;
        let settings = settings.as_ref().and_then(Value::as_object);
        let is_blocked = |setting: &Value| match &setting["settings"]["index.blocks.write"] {
            Value::Bool(is_blocked) => *is_blocked,
            other => other == "true",
        };
        let blocked = settings.into_iter().flatten().filter(|(_, setting)| is_blocked(setting));
        Ok(blocked.map(|(name, _)| name.clone()).collect())
    }

    pub(super) async fn delete_indices(&self, names: &[String]) -> Result<(), IndicesError> {
        self.each_group(names, Method::Delete, "", None, "delete the indices").await
    }

    /// Begins to copy these indices.
    pub(super) async fn begin_snapshot(
        &self,
        place: &SnapshotPlace,
        indices: &[String],
    ) -> Result<(), IndicesError> {
        let body = json!({"indices": indices.join(","), "include_global_state": false, "partial": false});
        self.request(Method::Put, path(place), Some(body), &format!("begin the snapshot {place}")).await?;
        Ok(())
    }

    /// What Elasticsearch says of a snapshot; `None` if there is none.
    pub(super) async fn snapshot(&self, place: &SnapshotPlace) -> Result<Option<Value>, IndicesError> {
        let doing = format!("look at the snapshot {place}");
        let found = self.find(Method::Get, path(place), &doing).await?;
        Ok(found.and_then(|mut found| found["snapshots"].get_mut(0).map(Value::take)))
    }

    /// Shards that were copied, of how many; `None` if it is not known.
    pub(super) async fn copied(&self, place: &SnapshotPlace) -> Option<(u64, u64)> {
        let path = format!("{}/_status", path(place));
        let status = self.find(Method::Get, path, "look at the snapshot").await.ok()??;
        let shards = &status["snapshots"][0]["shards_stats"];
        Some((shards["done"].as_u64()?, shards["total"].as_u64()?))
    }

    /// Deletes a snapshot, or ends one that is being taken.
    pub(super) async fn delete_snapshot(&self, place: &SnapshotPlace) -> Result<(), IndicesError> {
        self.find(Method::Delete, path(place), &format!("delete the snapshot {place}")).await?;
        Ok(())
    }

    /// Restores one index under another name and waits for it.
    pub(super) async fn restore_as(
        &self,
        place: &SnapshotPlace,
        index: &str,
        name: &str,
    ) -> Result<(), IndicesError> {
        let body = json!({
            "indices": index, "include_global_state": false, "include_aliases": false,
            "rename_pattern": ".+", "rename_replacement": name,
            "index_settings": {"index.number_of_replicas": 0},
        });
        let path = format!("{}/_restore?wait_for_completion=true", path(place));
        self.request(Method::Post, path, Some(body), "read the snapshot's meta index").await?;
        Ok(())
    }

    /// Begins to restore these indices.
    pub(super) async fn begin_restore(
        &self,
        place: &SnapshotPlace,
        indices: &[String],
    ) -> Result<(), IndicesError> {
        let body = json!({
            "indices": indices.join(","), "include_global_state": false,
            "ignore_index_settings": ["index.blocks.write"],
        });
        let path = format!("{}/_restore", path(place));
        self.request(Method::Post, path, Some(body), &format!("restore {place}")).await?;
        Ok(())
    }

    /// How many of these indices have no data yet, and whether any is being restored.
    pub(super) async fn missing(&self, names: &[String]) -> Result<(usize, bool), IndicesError> {
        let prefix = &self.config.elasticsearch.prefix;
        let path = format!("/_cluster/health/{prefix}-*?level=indices");
        let health = self.request(Method::Get, path, None, "look at the restored indices").await?;
        let is_there = |name: &&String| {
            let status = health["indices"][name.as_str()]["status"].as_str();
            status.is_some_and(|status| status != "red")
        };
        let missing = names.len() - names.iter().filter(is_there).count();
        Ok((missing, health["initializing_shards"].as_u64() != Some(0)))
    }

    /// Documents of an index that is no index of geofold's own name.
    pub(super) async fn documents(
        &self,
        index: &str,
        ids: &[DocId],
    ) -> Result<Vec<Option<Value>>, IndicesError> {
        let ids: Vec<&str> = ids.iter().map(DocId::as_str).collect();
        let path = format!("/{index}/_mget");
        let body = json!({"ids": ids});
        let mut answer =
            self.request(Method::Post, path, Some(body), "read the snapshot's meta index").await?;
        let docs = answer["docs"].as_array_mut().map(std::mem::take).unwrap_or_default();
        Ok(docs.into_iter().map(|mut doc| (doc["found"] == true).then(|| doc["_source"].take())).collect())
    }

    /// Waits a little; `false` if it is to end.
    pub(super) async fn pause(&self) -> bool {
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => true,
            () = self.stop.cancelled() => false,
        }
    }
}

fn path(place: &SnapshotPlace) -> String {
    format!("/_snapshot/{}/{}", place.repository, place.name)
}

/// Names joined by commas, each of a size that fits a request line.
fn groups(names: &[String]) -> Vec<String> {
    let mut groups: Vec<String> = Vec::new();
    for name in names {
        match groups.last_mut() {
            Some(group) if group.len() + name.len() < NAMES_BYTES => {
                group.push(',');
                group.push_str(name);
            }
            _ => groups.push(name.clone()),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_grouped_so_that_each_group_fits_a_request_line() {
        let names: Vec<String> = (0..100).map(|n| format!("{}-{n:03}", "x".repeat(60))).collect();
        let grouped = groups(&names);
        assert!(grouped.len() > 1 && grouped.iter().all(|group| group.len() <= NAMES_BYTES), "{grouped:?}");
        assert_eq!(grouped.join(","), names.join(","));
        assert!(groups(&[]).is_empty());
    }
}
