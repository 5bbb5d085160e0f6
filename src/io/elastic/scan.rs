//! Reads all documents of some indices, a page at a time: points in time, and `search_after` behind the last hit.
//!
//! Elasticsearch has one point in time for all indices, and sorts by the place in it (`_shard_doc`). OpenSearch has points in time
//! at other paths, and its `_shard_doc` does not tell documents of several indices apart (seen with 3.8): pages would leave
//! some out. So there each shard has its own, sorted by `_seq_no`, which no two documents of a shard share.
//!
//! What is seen is what searches saw when the scan was opened; a refresh before that makes it all that was written. Memory
//! is bounded by a page. A scan that is not closed is let go of by the server after [`KEEP_ALIVE`].

use std::borrow::Cow;
use std::collections::VecDeque;
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

/// How a server does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Elasticsearch,
    OpenSearch,
}

impl Dialect {
    /// Opens a point in time; `shard` is the only one that it holds.
    fn open(self, names: &str, shard: u64) -> AdminCall {
        let path = match self {
            Self::Elasticsearch => format!("/{names}/_pit?keep_alive={KEEP_ALIVE}"),
            Self::OpenSearch => format!(
                "/{names}/_search/point_in_time?keep_alive={KEEP_ALIVE}&preference=_shards:{shard}&allow_partial_pit_creation=false"
            ),
        };
        AdminCall { method: Method::Post, path, body: None }
    }

    /// The field of the answer to that.
    fn id(self) -> &'static str {
        match self {
            Self::Elasticsearch => "id",
            Self::OpenSearch => "pit_id",
        }
    }

    fn close(self, ids: &[String]) -> AdminCall {
        let (path, body) = match self {
            Self::Elasticsearch => ("/_pit", json!({"id": ids.first()})),
            Self::OpenSearch => ("/_search/point_in_time", json!({"pit_id": ids})),
        };
        AdminCall { method: Method::Delete, path: path.to_owned(), body: Some(body) }
    }

    /// No two documents of a point in time are equal in it.
    fn order(self) -> &'static str {
        match self {
            Self::Elasticsearch => "_shard_doc",
            Self::OpenSearch => "_seq_no",
        }
    }
}

/// A scan under way.
pub struct IndexScan<'a> {
    elastic: &'a dyn Elastic,
    options: ScanOptions,
    names: String,
    dialect: Dialect,
    /// The points in time that are still to be read; the first one is read now.
    points: VecDeque<String>,
    /// Where the next page of the first one begins.
    after: Option<Value>,
}

impl<'a> IndexScan<'a> {
    /// Opens points in time over `indices`, by their whole names. They must exist.
    pub async fn open(
        elastic: &'a dyn Elastic,
        indices: &[String],
        options: ScanOptions,
    ) -> Result<Self, ScanError> {
        let mut scan = Self {
            elastic,
            options,
            names: indices.join(","),
            dialect: Dialect::Elasticsearch,
            points: VecDeque::new(),
            after: None,
        };
        let call = scan.dialect.open(&scan.names, 0);
        match elastic.admin(call, scan.options.timeout).await {
            Ok(answer) if has_no_such_path(&answer) => scan.dialect = Dialect::OpenSearch,
            answer => {
                let answer = accepted(&scan.names, answer)?;
                scan.points.push_back(scan.point(&answer)?);
                return Ok(scan);
            }
        }
        match scan.open_each_shard().await {
            Ok(()) => Ok(scan),
            Err(error) => {
                scan.close().await;
                Err(error)
            }
        }
    }

    /// A point in time for each shard of OpenSearch.
    async fn open_each_shard(&mut self) -> Result<(), ScanError> {
        let path = format!("/{}/_settings/index.number_of_shards", self.names);
        let settings = self.ask(AdminCall { method: Method::Get, path, body: None }).await?;
        let settings = settings.as_object().ok_or_else(|| self.undecodable("the list of indices"))?;
        for (index, of_index) in settings {
            let shards = of_index["settings"]["index"]["number_of_shards"].as_str();
            let shards: u64 = shards
                .and_then(|shards| shards.parse().ok())
                .ok_or_else(|| self.undecodable("the number of shards"))?;
            for shard in 0..shards {
                let answer = self.ask(self.dialect.open(index, shard)).await?;
                self.points.push_back(self.point(&answer)?);
            }
        }
        Ok(())
    }

    fn point(&self, answer: &Value) -> Result<String, ScanError> {
        let id = answer[self.dialect.id()].as_str().map(str::to_owned);
        id.ok_or_else(|| self.undecodable("the id of the point in time"))
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
        loop {
            let Some(point) = self.points.front().cloned() else { return Ok(false) };
            if self.page_of(&point, &mut each).await? {
                return Ok(true);
            }
            let read = self.points.pop_front();
            self.let_go(read.into_iter().collect()).await;
        }
    }

    /// The next page of one point in time. `false`: it has no more.
    async fn page_of(
        &mut self,
        point: &str,
        each: &mut impl FnMut(RawHit<'_>) -> Result<(), ScanError>,
    ) -> Result<bool, ScanError> {
        let mut body = json!({
            "size": self.options.page,
            "pit": {"id": point, "keep_alive": KEEP_ALIVE},
            "sort": [{self.dialect.order(): "asc"}],
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
        let renamed = answer.pit_id.map(Cow::into_owned);
        self.after = after.map_err(|_| self.undecodable("where a page ends"))?;
        let is_over = last.is_none();
        if !is_over && self.after.is_none() {
            return Err(self.undecodable("where a page ends"));
        }
        answer.hits.hits.into_iter().try_for_each(each)?;
        if let (Some(renamed), Some(point)) = (renamed, self.points.front_mut()) {
            *point = renamed;
        }
        Ok(!is_over)
    }

    /// Lets the server let go of it.
    pub async fn close(mut self) {
        let points = std::mem::take(&mut self.points);
        if !points.is_empty() {
            self.let_go(points.into()).await;
        }
    }

    async fn let_go(&self, points: Vec<String>) {
        if let Err(error) = self.ask(self.dialect.close(&points)).await {
            tracing::debug!(%error, "a point in time could not be closed; it closes itself");
        }
    }

    async fn ask(&self, call: AdminCall) -> Result<Value, ScanError> {
        ask(self.elastic, &self.names, call, self.options.timeout).await
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
    accepted(names, elastic.admin(call, timeout).await)
}

fn accepted(names: &str, answer: Result<AdminAnswer, CallError>) -> Result<Value, ScanError> {
    match answer {
        Ok(AdminAnswer { status: 200, body }) => Ok(body),
        Ok(answer) => Err(refused(names, &answer)),
        Err(error) => Err(ScanError::Call { names: names.to_owned(), error }),
    }
}

fn refused(names: &str, answer: &AdminAnswer) -> ScanError {
    ScanError::Refused {
        names: names.to_owned(),
        status: answer.status,
        reason: super::decode::reason(answer),
    }
}

/// In OpenSearch's words.
fn has_no_such_path(answer: &AdminAnswer) -> bool {
    answer.status == 400 && super::decode::reason(answer).starts_with("no handler found for uri")
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::elastic::scripted::Scripted;

    /// An OpenSearch with an index of two shards and one of one shard, each shard with one document.
    fn opensearch() -> Scripted {
        let admin = |call: &str, body: Option<&Value>| {
            let body = body.unwrap_or(&Value::Null);
            let shards = |number: &str| json!({"settings": {"index": {"number_of_shards": number}}});
            if call.contains("_pit?") {
                let error = "no handler found for uri [/a,b/_pit?keep_alive=5m] and method [POST]";
                return (400, json!({ "error": error }));
            }
            if call.starts_with("GET /a,b/_settings") {
                return (200, json!({"a": shards("2"), "b": shards("1")}));
            }
            if let Some((index, rest)) =
                call.strip_prefix("POST /").and_then(|call| call.split_once("/_search/"))
            {
                let (_, shard) = rest.split_once("preference=_shards:").unwrap();
                let (shard, _) = shard.split_once('&').unwrap();
                return (200, json!({"pit_id": format!("{index}{shard}")}));
            }
            if call == "DELETE /_search/point_in_time" {
                return (200, json!({}));
            }
            assert_eq!((call, &body["sort"]), ("POST /_search", &json!([{"_seq_no": "asc"}])));
            let id = body["pit"]["id"].as_str().unwrap();
            // The same number in each shard.
            let hit = json!({"_index": &id[..1], "_id": id, "_version": 1, "sort": [0]});
            let hits = if body["search_after"].is_null() { vec![hit] } else { Vec::new() };
            (200, json!({"pit_id": id, "timed_out": false, "_shards": {"failed": 0}, "hits": {"hits": hits}}))
        };
        Scripted { admin: Box::new(admin), ..Scripted::default() }
    }

    fn options() -> ScanOptions {
        ScanOptions { page: 1, timeout: Duration::ZERO, fields: Vec::new(), query: None }
    }

    #[tokio::test]
    async fn each_shard_of_an_opensearch_is_read_and_let_go_of() {
        let elastic = opensearch();
        let names = ["a", "b"].map(str::to_owned);
        let mut scan = IndexScan::open(&elastic, &names, options()).await.unwrap();
        assert_eq!(scan.points, ["a0", "a1", "b0"], "all are open before the first is read");
        let mut seen = Vec::new();
        while let [hit] = &scan.next().await.unwrap()[..] {
            seen.push(hit.id.as_str().to_owned());
        }
        assert_eq!(seen, ["a0", "a1", "b0"]);
        assert!(scan.next().await.unwrap().is_empty());
        scan.close().await;
        let closed = |elastic: &Scripted| {
            let calls = elastic.calls.lock().unwrap();
            calls.iter().filter(|call| call.starts_with("DELETE")).count()
        };
        assert_eq!(closed(&elastic), 3);

        let elastic = opensearch();
        let mut scan = IndexScan::open(&elastic, &names, options()).await.unwrap();
        scan.next().await.unwrap();
        scan.close().await;
        assert_eq!(closed(&elastic), 1, "what was not read is let go of at once");
    }
}
