//! Reads all documents of some indices, a page at a time: a point in time, and `search_after` behind the last hit.
//!
//! What is seen is what searches saw when the scan was opened; a refresh before that makes it all that was written. Memory
//! is bounded by a page. A scan that is not closed is let go of by the server after [`KEEP_ALIVE`].

use std::time::Duration;

use serde_json::{Value, json};
use thiserror::Error;

use super::{AdminAnswer, AdminCall, CallError, Elastic, Method};
use crate::ids::DocId;

/// How long the server keeps the point in time from one page to the next.
pub const KEEP_ALIVE: &str = "5m";

/// What to read, and how.
#[derive(Debug, Clone)]
pub struct ScanOptions {
    /// Documents of one page, 10,000 at most.
    pub page: usize,
    /// How long each request may take.
    pub timeout: Duration,
    /// The only fields of each document to read, as dotted paths; all of it if there are none.
    pub fields: Vec<String>,
    /// The only documents to read, as a query of Elasticsearch; all of them if there is none.
    pub query: Option<Value>,
}

/// One document, as the scan saw it.
#[derive(Debug, Clone, PartialEq)]
pub struct Hit {
    /// The whole name of its index.
    pub index: String,
    /// `_id`.
    pub id: DocId,
    /// `_version`.
    pub version: u64,
    /// `_source`, or the fields that were asked for.
    pub source: Value,
}

/// A scan could not go on.
#[derive(Debug, Error)]
pub enum ScanError {
    /// No usable answer.
    #[error("can not scan {names}: {error}")]
    Call {
        /// What was to be scanned.
        names: String,
        /// Why not.
        error: CallError,
    },
    /// Elasticsearch said no.
    #[error("can not scan {names}: elasticsearch answered {status}: {reason}")]
    Refused {
        /// What was to be scanned.
        names: String,
        /// HTTP status.
        status: u16,
        /// In its words.
        reason: String,
    },
    /// An OpenSearch: its points in time are at other paths, and its `_shard_doc` does not tell documents of several
    /// indices apart, so that pages would leave some out (seen with 3.8).
    #[error(
        "can not scan {names}: this server has no point in time as Elasticsearch has it; what scans indices (shards migrate, \
         shards plan --from-index) needs an Elasticsearch"
    )]
    NoPointInTime {
        /// What was to be scanned.
        names: String,
    },
    /// The answer is not complete: some shards did not answer.
    #[error("can not scan {names}: {failed} shards did not answer")]
    Incomplete {
        /// What was to be scanned.
        names: String,
        /// How many.
        failed: u64,
    },
    /// The answer has another form than a search's.
    #[error("can not scan {names}: {what} in the answer can not be used")]
    Undecodable {
        /// What was to be scanned.
        names: String,
        /// The part in question.
        what: &'static str,
    },
}

/// A scan under way.
pub struct Scan<'a> {
    elastic: &'a dyn Elastic,
    options: ScanOptions,
    names: String,
    pit: String,
    after: Option<Value>,
    is_over: bool,
}

impl<'a> Scan<'a> {
    /// Opens a point in time over `indices`, by their whole names. They must exist.
    pub async fn open(
        elastic: &'a dyn Elastic,
        indices: &[String],
        options: ScanOptions,
    ) -> Result<Self, ScanError> {
        let names = indices.join(",");
        let path = format!("/{names}/_pit?keep_alive={KEEP_ALIVE}");
        let mut scan = Self { elastic, options, names, pit: String::new(), after: None, is_over: false };
        let answer = scan.ask(Method::Post, path, None).await?;
        scan.pit = scan.text(&answer["id"], "the id of the point in time")?;
        Ok(scan)
    }

    /// The next page; empty at the end.
    pub async fn next(&mut self) -> Result<Vec<Hit>, ScanError> {
        if self.is_over {
            return Ok(Vec::new());
        }
        let mut body = json!({
            "size": self.options.page,
            "pit": {"id": self.pit, "keep_alive": KEEP_ALIVE},
            "sort": [{"_shard_doc": "asc"}],
            "track_total_hits": false,
            "version": true,
        });
        if !self.options.fields.is_empty() {
            body["_source"] = json!(self.options.fields);
        }
        if let Some(query) = &self.options.query {
            body["query"] = query.clone();
        }
        if let Some(after) = self.after.take() {
            body["search_after"] = after;
        }
        let mut answer = self.ask(Method::Post, "/_search".to_owned(), Some(body)).await?;
        // A shard that is passed over would look like a shard without documents.
        let failed = answer["_shards"]["failed"].as_u64().unwrap_or(1);
        if failed > 0 || answer["timed_out"] == true {
            return Err(ScanError::Incomplete { names: self.names.clone(), failed });
        }
        if let Some(id) = answer["pit_id"].as_str() {
            self.pit = id.to_owned();
        }
        let Value::Array(hits) = answer["hits"]["hits"].take() else {
            return Err(self.undecodable("the list of hits"));
        };
        self.after = hits.last().map(|hit| hit["sort"].clone());
        self.is_over = hits.is_empty();
        hits.into_iter().map(|hit| self.hit(hit)).collect()
    }

    /// Lets the server let go of it.
    pub async fn close(self) {
        if let Err(error) = self.ask(Method::Delete, "/_pit".to_owned(), Some(json!({"id": self.pit}))).await
        {
            tracing::debug!(%error, "a point in time could not be closed; it closes itself");
        }
    }

    fn hit(&self, mut hit: Value) -> Result<Hit, ScanError> {
        let id = DocId::from_key(hit["_id"].as_str().map(str::as_bytes));
        Ok(Hit {
            index: self.text(&hit["_index"], "an index")?,
            id: id.map_err(|_| self.undecodable("an id"))?,
            version: hit["_version"].as_u64().ok_or_else(|| self.undecodable("a version"))?,
            source: hit["_source"].take(),
        })
    }

    async fn ask(&self, method: Method, path: String, body: Option<Value>) -> Result<Value, ScanError> {
        let names = || self.names.clone();
        let call = AdminCall { method, path, body };
        match self.elastic.admin(call, self.options.timeout).await {
            Ok(AdminAnswer { status: 200, body }) => Ok(body),
            Ok(answer) => {
                let reason = crate::indices::reason(&answer);
                // OpenSearch's words for a path that it does not have.
                if answer.status == 400 && reason.starts_with("no handler found for uri") {
                    return Err(ScanError::NoPointInTime { names: names() });
                }
                Err(ScanError::Refused { names: names(), status: answer.status, reason })
            }
            Err(error) => Err(ScanError::Call { names: names(), error }),
        }
    }

    fn text(&self, value: &Value, what: &'static str) -> Result<String, ScanError> {
        value.as_str().map(str::to_owned).ok_or_else(|| self.undecodable(what))
    }

    fn undecodable(&self, what: &'static str) -> ScanError {
        ScanError::Undecodable { names: self.names.clone(), what }
    }
}
