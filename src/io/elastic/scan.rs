//! Reads all documents of some indices, a page at a time: a point in time, and `search_after` behind the last hit.
//!
//! What is seen is what searches saw when the scan was opened; a refresh before that makes it all that was written. Memory
//! is bounded by a page. A scan that is not closed is let go of by the server after [`KEEP_ALIVE`].

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use thiserror::Error;

use super::{AdminAnswer, AdminCall, CallError, Elastic, Method};
use crate::base::ids::DocId;

/// How long the server keeps the point in time from one page to the next.
pub const KEEP_ALIVE: &str = "5m";

/// Options of a scan.
#[derive(Debug, Clone)]
pub struct ScanOptions {
    /// Documents of one page, 10,000 at most.
    pub page: usize,
    /// How long each request may take.
    pub timeout: Duration,
    /// The only fields of each document to read, as dotted paths; all of it if there are none.
    pub fields: Vec<String>,
    /// Query that selects the documents; all if `None`.
    pub query: Option<Value>,
}

/// One document, as the scan saw it.
#[derive(Debug, Clone, PartialEq)]
pub struct ScannedDocument {
    /// The whole name of its index.
    pub index: String,
    /// `_id`.
    pub id: DocId,
    /// `_version`.
    pub version: u64,
    /// `_source`, or the requested fields.
    pub source: Value,
}

/// A scan could not go on.
#[derive(Debug, Error)]
pub enum ScanError {
    /// No usable answer.
    #[error("cannot scan {names}: {error}")]
    Call {
        /// What was to be scanned.
        names: String,
        /// Why not.
        error: CallError,
    },
    /// Elasticsearch refused.
    #[error("cannot scan {names}: elasticsearch answered {status}: {reason}")]
    Refused {
        /// What was to be scanned.
        names: String,
        /// HTTP status.
        status: u16,
        /// In its words.
        reason: String,
    },
    /// An OpenSearch: its points in time are at other paths, and its `_shard_doc` does not distinguish documents of several
    /// indices apart, so that pages would leave some out (seen with 3.8).
    #[error(
        "cannot scan {names}: this server has no point in time as Elasticsearch has it; what scans indices (shards migrate, \
         shards plan --from-index) needs an Elasticsearch"
    )]
    NoPointInTime {
        /// What was to be scanned.
        names: String,
    },
    /// The answer is not complete: some shards did not answer.
    #[error("cannot scan {names}: {failed} shards did not answer")]
    Incomplete {
        /// What was to be scanned.
        names: String,
        /// How many.
        failed: u64,
    },
    /// The answer has another form than a search's.
    #[error("cannot scan {names}: {what} in the answer cannot be used")]
    Undecodable {
        /// What was to be scanned.
        names: String,
        /// The part in question.
        what: &'static str,
    },
}

/// A scan under way.
pub struct IndexScan<'a> {
    elastic: &'a dyn Elastic,
    options: ScanOptions,
    names: String,
    pit: String,
    after: Option<Value>,
    is_over: bool,
}

impl<'a> IndexScan<'a> {
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
    pub async fn next(&mut self) -> Result<Vec<ScannedDocument>, ScanError> {
        let names = self.names.clone();
        let undecodable = |what| ScanError::Undecodable { names: names.clone(), what };
        let mut page = Vec::new();
        let each = |hit: RawHit<'_>| {
            let source = hit.source.map_or(Ok(Value::Null), |source| serde_json::from_str(source.get()));
            page.push(ScannedDocument {
                index: hit.index.into_owned(),
                id: DocId::from_key(Some(hit.id.as_bytes())).map_err(|_| undecodable("an id"))?,
                version: hit.version,
                source: source.map_err(|_| undecodable("a document"))?,
            });
            Ok(())
        };
        self.next_page(each).await?;
        Ok(page)
    }

    /// Passes the raw documents of the next page to `each`. `false`: end of the scan.
    pub async fn next_page(
        &mut self,
        mut each: impl FnMut(RawHit<'_>) -> Result<(), ScanError>,
    ) -> Result<bool, ScanError> {
        if self.is_over {
            return Ok(false);
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
        let call = AdminCall { method: Method::Post, path: "/_search".to_owned(), body: Some(body) };
        let page = match self.elastic.admin_bytes(call, self.options.timeout).await {
            Ok((200, page)) => page,
            Ok((status, body)) => {
                let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
                return Err(refused(&self.names, &AdminAnswer { status, body }));
            }
            Err(error) => return Err(ScanError::Call { names: self.names.clone(), error }),
        };
        let answer: RawAnswer<'_> =
            serde_json::from_slice(&page).map_err(|_| self.undecodable("the list of hits"))?;
        // A skipped shard would look like an empty one.
        if answer.shards.failed > 0 || answer.timed_out {
            return Err(ScanError::Incomplete { names: self.names.clone(), failed: answer.shards.failed });
        }
        let last = answer.hits.hits.last();
        let after = last.and_then(|hit| hit.sort).map(|sort| serde_json::from_str(sort.get())).transpose();
        let pit = answer.pit_id.map(Cow::into_owned);
        self.is_over = last.is_none();
        self.after = after.map_err(|_| self.undecodable("where a page ends"))?;
        if last.is_some() && self.after.is_none() {
            return Err(self.undecodable("where a page ends"));
        }
        answer.hits.hits.into_iter().try_for_each(&mut each)?;
        if let Some(pit) = pit {
            self.pit = pit;
        }
        Ok(!self.is_over)
    }

    /// Lets the server let go of it.
    pub async fn close(self) {
        if let Err(error) = self.ask(Method::Delete, "/_pit".to_owned(), Some(json!({"id": self.pit}))).await
        {
            tracing::debug!(%error, "a point in time could not be closed; it closes itself");
        }
    }

    async fn ask(&self, method: Method, path: String, body: Option<Value>) -> Result<Value, ScanError> {
        ask(self.elastic, &self.names, AdminCall { method, path, body }, self.options.timeout).await
    }

    fn text(&self, value: &Value, what: &'static str) -> Result<String, ScanError> {
        value.as_str().map(str::to_owned).ok_or_else(|| self.undecodable(what))
    }

    fn undecodable(&self, what: &'static str) -> ScanError {
        ScanError::Undecodable { names: self.names.clone(), what }
    }
}

async fn ask(
    elastic: &dyn Elastic,
    names: &str,
    call: AdminCall,
    timeout: Duration,
) -> Result<Value, ScanError> {
    match elastic.admin(call, timeout).await {
        Ok(AdminAnswer { status: 200, body }) => Ok(body),
        Ok(answer) => Err(refused(names, &answer)),
        Err(error) => Err(ScanError::Call { names: names.to_owned(), error }),
    }
}

fn refused(names: &str, answer: &AdminAnswer) -> ScanError {
    let (names, reason) = (names.to_owned(), super::decode::reason(answer));
    // OpenSearch's words for a path that it does not have.
    if answer.status == 400 && reason.starts_with("no handler found for uri") {
        return ScanError::NoPointInTime { names };
    }
    ScanError::Refused { names, status: answer.status, reason }
}

/// One document of a page, as it came.
#[derive(Debug, Deserialize)]
pub struct RawHit<'a> {
    /// The whole name of its index.
    #[serde(rename = "_index", borrow)]
    pub index: Cow<'a, str>,
    /// `_id`.
    #[serde(rename = "_id", borrow)]
    pub id: Cow<'a, str>,
    /// `_version`.
    #[serde(rename = "_version")]
    pub version: u64,
    /// `_source`, or the requested fields.
    #[serde(rename = "_source", borrow, default)]
    pub source: Option<&'a RawValue>,
    #[serde(borrow, default)]
    sort: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawAnswer<'a> {
    #[serde(borrow, default)]
    pit_id: Option<Cow<'a, str>>,
    #[serde(default)]
    timed_out: bool,
    #[serde(rename = "_shards")]
    shards: RawShards,
    #[serde(borrow)]
    hits: RawHits<'a>,
}

#[derive(Deserialize)]
struct RawShards {
    failed: u64,
}

#[derive(Deserialize)]
struct RawHits<'a> {
    #[serde(borrow)]
    hits: Vec<RawHit<'a>>,
}

/// Refuses partial results: a skipped shard would look like an empty one.
fn whole(answer: &Value, names: &str) -> Result<(), ScanError> {
    let failed = answer["_shards"]["failed"].as_u64().unwrap_or(1);
    if failed > 0 || answer["timed_out"] == true {
        return Err(ScanError::Incomplete { names: names.to_owned(), failed });
    }
    Ok(())
}

/// How many documents of these indices match `query`, all without one.
pub async fn count(
    elastic: &dyn Elastic,
    indices: &[String],
    query: Option<&Value>,
    timeout: Duration,
) -> Result<u64, ScanError> {
    let mut sum = 0;
    for chunk in indices.chunks(INDICES_AT_ONCE) {
        let names = chunk.join(",");
        let body = query.map(|query| json!({"query": query}));
        let call = AdminCall { method: Method::Post, path: format!("/{names}/_count"), body };
        let answer = ask(elastic, &names, call, timeout).await?;
        whole(&answer, &names)?;
        let undecodable = || ScanError::Undecodable { names, what: "the number of documents" };
        sum += answer["count"].as_u64().ok_or_else(undecodable)?;
    }
    Ok(sum)
}

/// Documents of one [`draw`], at most: the window of a search.
pub const MOST_DRAWN: usize = 10_000;

/// Maximum indices per request: their names must fit a request line.
const INDICES_AT_ONCE: usize = 20;

/// Documents drawn at random.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// How many there are to draw from.
    pub of: u64,
    /// Those drawn. One that has copies in several indices may be drawn several times.
    pub ids: Vec<DocId>,
}

/// Samples documents of some indices uniformly without scanning: the server scores each document at random, and the highest
/// scores are taken. At most `size`, and [`MOST_DRAWN`].
pub async fn draw(
    elastic: &dyn Elastic,
    indices: &[String],
    size: usize,
    seed: u32,
    timeout: Duration,
) -> Result<Drawn, ScanError> {
    let size = size.min(MOST_DRAWN);
    let mut of = 0;
    let mut drawn: Vec<(f64, DocId)> = Vec::new();
    for chunk in indices.chunks(INDICES_AT_ONCE) {
        let names = chunk.join(",");
        let body = json!({
            "size": size,
            "_source": false,
            "track_total_hits": true,
            "query": {"function_score": {
                "query": {"match_all": {}},
                "random_score": {"seed": seed, "field": "_seq_no"},
                "boost_mode": "replace",
            }},
        });
        let call = AdminCall { method: Method::Post, path: format!("/{names}/_search"), body: Some(body) };
        let answer = ask(elastic, &names, call, timeout).await?;
        whole(&answer, &names)?;
        let undecodable = |what| ScanError::Undecodable { names: names.clone(), what };
        of += answer["hits"]["total"]["value"].as_u64().ok_or_else(|| undecodable("the number of hits"))?;
        for hit in answer["hits"]["hits"].as_array().into_iter().flatten() {
            let score = hit["_score"].as_f64().ok_or_else(|| undecodable("a score"))?;
            let id = DocId::from_key(hit["_id"].as_str().map(str::as_bytes));
            drawn.push((score, id.map_err(|_| undecodable("an id"))?));
        }
        // The scores of all indices are drawn alike: the highest of all are a sample of all.
        drawn.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        drawn.truncate(size);
    }
    Ok(Drawn { of, ids: drawn.into_iter().map(|(_, id)| id).collect() })
}
