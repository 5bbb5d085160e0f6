//! `_search` and `_count`: the queries, sorts and pages that geofold and its demo use, on the documents visible since the last
//! refresh. Every document is tested; there is no inverted index.

mod query;
mod sort;

use std::cmp::Ordering;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::ops::Bound;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use self::query::{Candidate, Query};
use self::sort::{HitSort, Key, in_order};
use super::bulk::WrittenObject;
use super::error::EsError;
use super::index::Doc;
use super::pit::Snapshot;
use super::store::{Shared, read};
use crate::base::random::Random;
use crate::core::filter_path::FilterPath;

/// `index.max_result_window`.
const MAX_WINDOW: usize = 10_000;
/// Default of `track_total_hits`.
const COUNTED: usize = 10_000;

/// The body of a search.
struct Request {
    query: Query,
    size: usize,
    from: usize,
    sort: HitSort,
    after: Option<Vec<Value>>,
    version: bool,
    stamp: bool,
    counted: Option<usize>,
    source: Source,
    /// A random score for each document, from this seed.
    random: Option<u64>,
}

enum Source {
    All,
    Nothing,
    Part(FilterPath),
}

struct Hit {
    /// Place of the index in the search.
    shard: usize,
    name: Arc<str>,
    doc: Arc<Doc>,
    /// For a sort by distance, in its unit.
    metres: f64,
    /// For sorts by fields: their values.
    values: Vec<Value>,
}

/// An index to search, as the last refresh left it or as it once was.
pub(super) struct Searched {
    pub(super) index: Shared,
    /// The point in time's snapshot.
    pub(super) snapshot: Option<Snapshot>,
}

/// Searches indices; the bytes of the answer. `pit_id`: of the point in time of the snapshot. `is_whole`: no index may
/// fail.
pub(super) fn search(
    indices: &[Searched],
    body: &Value,
    pit_id: Option<&str>,
    is_whole: bool,
) -> Result<Vec<u8>, EsError> {
    let request = Request::parse(body)?;
    let mut hits = Vec::new();
    let mut total = 0;
    let mut failures = Vec::new();
    for (shard, searched) in indices.iter().enumerate() {
        let index = read(&searched.index);
        index.check_open()?;
        let outcome = request
            .check()
            .and_then(|()| request.query.check(&index))
            .and_then(|()| request.sort.check(&index));
        if let Err(error) = outcome {
            failures.push((index.name.clone(), error));
            continue;
        }
        let name: Arc<str> = index.name.as_str().into();
        if let Some(after) = request.scans() {
            // A scan's page needs no search: the documents are in its order already.
            let after = after.map_or(Bound::Unbounded, |(in_shard, order)| match shard.cmp(&in_shard) {
                Ordering::Less => Bound::Excluded(u64::MAX),
                Ordering::Equal => Bound::Excluded(order),
                Ordering::Greater => Bound::Unbounded,
            });
            let docs = searched.snapshot.as_deref().unwrap_or(index.visible());
            let page =
                docs.range((after, Bound::Unbounded)).take(request.size - hits.len().min(request.size));
            let hit = |(_, doc): (_, &Arc<Doc>)| Hit {
                shard,
                name: name.clone(),
                doc: doc.clone(),
                metres: 0.0,
                values: Vec::new(),
            };
            hits.extend(page.map(hit));
            continue;
        }
        for doc in searched.snapshot.as_deref().unwrap_or(index.visible()).values() {
            if !request.query.matches(&index, &Candidate::new(doc)) {
                continue;
            }
            total += 1;
            let metres = request.sort.metres(&index, doc);
            let values = request.sort.values(&index, doc);
            let hit = Hit { shard, name: name.clone(), doc: doc.clone(), metres, values };
            if request.size > 0 && request.is_after(&hit) {
                hits.push(hit);
            }
        }
    }
    if !failures.is_empty() && failures.len() == indices.len() {
        return Err(failed("all shards failed", &failures));
    }
    if !failures.is_empty() && is_whole {
        return Err(failed("Partial shards failure", &failures));
    }
    hits.sort_by(|a, b| request.compare(a, b));
    let page = hits.iter().skip(request.from).take(request.size);
    Ok(request.render(page, total, indices.len(), &failures, pit_id))
}

/// Counts the documents that match.
pub(super) fn count(indices: &[Shared], body: &Value) -> Result<Value, EsError> {
    let query = body.get("query").map_or(Ok(Query::All), Query::parse)?;
    let mut count = 0;
    for index in indices {
        let index = read(index);
        index.check_open()?;
        query.check(&index).map_err(|error| failed("all shards failed", &[(index.name.clone(), error)]))?;
        count += index.visible().values().filter(|doc| query.matches(&index, &Candidate::new(doc))).count();
    }
    let shards = indices.len();
    Ok(json!({"count": count, "_shards": {"total": shards, "successful": shards, "skipped": 0, "failed": 0}}))
}

fn parsing(reason: impl Into<String>) -> EsError {
    EsError::new(400, "parsing_exception", reason)
}

/// The error of a search that failed on every index, or on one of those that it may not do without.
fn failed(reason: &str, failures: &[(String, EsError)]) -> EsError {
    let mut error = EsError::new(400, "search_phase_execution_exception", reason);
    error.details.insert("phase".to_owned(), json!("query"));
    error.details.insert("grouped".to_owned(), json!(true));
    error.details.insert("failed_shards".to_owned(), failed_shards(failures));
    if let Some((_, first)) = failures.first() {
        error = error.caused_by(first.kind, first.reason.clone());
    }
    error
}

fn failed_shards(failures: &[(String, EsError)]) -> Value {
    let failed =
        |(index, error): &(String, EsError)| json!({"shard": 0, "index": index, "reason": error.to_value()});
    failures.iter().map(failed).collect()
}

impl Request {
    fn parse(body: &Value) -> Result<Self, EsError> {
        let empty = Map::new();
        let members = body.as_object().unwrap_or(&empty);
        let mut request = Self {
            query: Query::All,
            size: 10,
            from: 0,
            sort: HitSort::default(),
            after: None,
            version: false,
            stamp: false,
            counted: Some(COUNTED),
            source: Source::All,
            random: None,
        };
        for (name, value) in members {
            match name.as_str() {
                "query" => match value.get("function_score") {
                    Some(scored) => {
                        request.random = Some(random_seed(scored)?);
                        request.query = scored.get("query").map_or(Ok(Query::All), Query::parse)?;
                    }
                    None => request.query = Query::parse(value)?,
                },
                "size" => request.size = count_of("size", value)?,
                "from" => request.from = count_of("from", value)?,
                "sort" => request.sort = HitSort::parse(value)?,
                "search_after" => request.after = Some(value.as_array().cloned().unwrap_or_default()),
                "version" => request.version = value == true,
                "seq_no_primary_term" => request.stamp = value == true,
                "track_total_hits" => {
                    request.counted = match value {
                        Value::Bool(true) => Some(usize::MAX),
                        Value::Bool(false) => None,
                        number => Some(count_of("track_total_hits", number)?),
                    };
                }
                "_source" => request.source = Source::parse(value)?,
                "timeout" | "track_scores" | "pit" => {}
                _ => return Err(parsing(format!("Unknown key for a value in [{name}]."))),
            }
        }
        Ok(request)
    }

    /// Errors that Elasticsearch reports per shard.
    fn check(&self) -> Result<(), EsError> {
        let window = self.from.saturating_add(self.size);
        if window > MAX_WINDOW {
            return Err(EsError::illegal_argument(format!(
                "Result window is too large, from + size must be less than or equal to: [{MAX_WINDOW}] but was [{window}]. See the scroll api for a more efficient way to request large data sets. This limit can be set by changing the [index.max_result_window] index level setting."
            )));
        }
        let Some(after) = &self.after else { return Ok(()) };
        if self.sort.keys.is_empty() {
            return Err(EsError::illegal_argument("Sort must contain at least one field."));
        }
        if after.len() != self.sort.keys.len() {
            let (values, keys) = (after.len(), self.sort.keys.len());
            return Err(EsError::illegal_argument(format!(
                "search_after has {values} value(s) but sort has {keys}."
            )));
        }
        let fits = |((key, _), value): (&(Key, bool), &Value)| match key {
            Key::Index => value.is_string(),
            Key::Doc | Key::ShardDoc => value.is_u64(),
            Key::Distance | Key::Score => value.is_number(),
            Key::Field(_) => true,
        };
        if !self.sort.keys.iter().zip(after).all(fits) {
            return Err(EsError::illegal_argument("Failed to parse search_after value for field [null]."));
        }
        Ok(())
    }

    /// A hit's score; 1 without scoring.
    fn score(&self, hit: &Hit) -> f64 {
        let Some(seed) = self.random else { return 1.0 };
        let mut hasher = DefaultHasher::new();
        (seed, &*hit.name, hit.doc.order).hash(&mut hasher);
        Random::new(hasher.finish()).share()
    }

    fn compare(&self, a: &Hit, b: &Hit) -> Ordering {
        if self.random.is_some() && self.sort.keys.is_empty() {
            return self.score(b).total_cmp(&self.score(a)).then_with(|| a.shard_doc().cmp(&b.shard_doc()));
        }
        let by_keys = self.sort.keys.iter().map(|&(key, is_descending)| {
            let order = match key {
                Key::Index => a.name.cmp(&b.name),
                Key::Doc => a.doc.order.cmp(&b.doc.order),
                Key::ShardDoc => a.shard_doc().cmp(&b.shard_doc()),
                Key::Distance => a.metres.total_cmp(&b.metres),
                Key::Score => self.score(a).total_cmp(&self.score(b)),
                Key::Field(place) => return in_order(&a.values[place], &b.values[place], is_descending),
            };
            if is_descending { order.reverse() } else { order }
        });
        by_keys.fold(Ordering::Equal, Ordering::then).then_with(|| a.shard_doc().cmp(&b.shard_doc()))
    }

    /// Whether this is a scan of all documents in storage order without a total; returns the document to continue after.
    fn scans(&self) -> Option<Option<(usize, u64)>> {
        let is_scan = matches!(self.query, Query::All)
            && self.sort.keys == [(Key::ShardDoc, false)]
            && self.random.is_none()
            && self.counted.is_none();
        let after = self.after.as_ref().and_then(|after| after.first()?.as_u64());
        let place = |after: u64| (usize::try_from(after >> 32).unwrap_or(usize::MAX), after & 0xffff_ffff);
        (is_scan && self.from == 0).then_some(after.map(place))
    }

    fn is_after(&self, hit: &Hit) -> bool {
        let Some(after) = &self.after else { return true };
        for (&(key, is_descending), after) in self.sort.keys.iter().zip(after) {
            let order = match key {
                Key::Index => Some((*hit.name).cmp(after.as_str().unwrap_or_default())),
                Key::Doc => after.as_u64().map(|after| hit.doc.order.cmp(&after)),
                Key::ShardDoc => after.as_u64().map(|after| hit.shard_doc().cmp(&after)),
                Key::Distance => after.as_f64().map(|after| hit.metres.total_cmp(&after)),
                Key::Score => after.as_f64().map(|after| self.score(hit).total_cmp(&after)),
                // Turned round once more below.
                Key::Field(place) => {
                    let order = in_order(&hit.values[place], after, is_descending);
                    Some(if is_descending { order.reverse() } else { order })
                }
            };
            match order.map(|order| if is_descending { order.reverse() } else { order }) {
                Some(Ordering::Greater) => return true,
                Some(Ordering::Equal) => {}
                _ => return false,
            }
        }
        false
    }

    fn render<'h>(
        &self,
        hits: impl Iterator<Item = &'h Hit>,
        total: usize,
        shards: usize,
        failures: &[(String, EsError)],
        pit_id: Option<&str>,
    ) -> Vec<u8> {
        let mut out = Vec::new();
        let mut whole = WrittenObject::begin(&mut out);
        if let Some(id) = pit_id {
            whole.text("pit_id", id);
        }
        whole.raw("took", "0");
        whole.raw("timed_out", "false");
        let failed = failures.len();
        let mut summary =
            json!({"total": shards, "successful": shards - failed, "skipped": 0, "failed": failed});
        if failed > 0 {
            summary["failures"] = failed_shards(failures);
        }
        whole.raw("_shards", &summary.to_string());
        whole.key("hits");
        let mut found = WrittenObject::begin(whole.out);
        if let Some(counted) = self.counted {
            let (value, relation) = if total > counted { (counted, "gte") } else { (total, "eq") };
            found.raw("total", &json!({"value": value, "relation": relation}).to_string());
        }
        let mut hits = hits.peekable();
        let score = |hit: &Hit| match self.sort.keys.is_empty() {
            true => json!(self.score(hit)).to_string(),
            false => "null".to_owned(),
        };
        found.raw("max_score", &hits.peek().map_or("null".to_owned(), |first| score(first)));
        found.key("hits");
        found.out.push(b'[');
        for (n, hit) in hits.enumerate() {
            if n > 0 {
                found.out.push(b',');
            }
            self.render_hit(hit, &score(hit), found.out);
        }
        found.out.push(b']');
        found.end();
        whole.end();
        out
    }

    fn render_hit(&self, hit: &Hit, score: &str, out: &mut Vec<u8>) {
        let mut object = WrittenObject::begin(out);
        object.text("_index", &hit.name);
        object.text("_id", &hit.doc.id);
        if self.version {
            object.raw("_version", &hit.doc.version.to_string());
        }
        if self.stamp {
            object.raw("_seq_no", &hit.doc.seq_no.to_string());
            object.raw("_primary_term", &hit.doc.primary_term.to_string());
        }
        object.raw("_score", score);
        match &self.source {
            Source::All => {
                object.key("_source");
                object.out.extend_from_slice(&hit.doc.source);
            }
            Source::Nothing => {}
            Source::Part(filter) => {
                let source = serde_json::from_slice(&hit.doc.source).unwrap_or_default();
                object.raw("_source", &filter.apply(&source).to_string());
            }
        }
        if !self.sort.keys.is_empty() {
            let values = self.sort.keys.iter().map(|(key, _)| match key {
                Key::Index => json!(*hit.name),
                Key::Doc => json!(hit.doc.order),
                Key::ShardDoc => json!(hit.shard_doc()),
                Key::Score => json!(self.score(hit)),
                Key::Field(place) => hit.values[*place].clone(),
                Key::Distance if hit.metres.is_finite() => json!(hit.metres),
                Key::Distance => json!("Infinity"),
            });
            object.raw("sort", &values.collect::<Value>().to_string());
        }
        object.end();
    }
}

impl Hit {
    fn shard_doc(&self) -> u64 {
        (self.shard as u64) << 32 | self.doc.order
    }
}

fn count_of(name: &str, value: &Value) -> Result<usize, EsError> {
    let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
    count.ok_or_else(|| {
        EsError::illegal_argument(format!("[{name}] parameter cannot be negative, found [{value}]"))
    })
}

/// The one function that geofold uses: a random score of a seed and the sequence number, and nothing else.
fn random_seed(scored: &Value) -> Result<u64, EsError> {
    let random = &scored["random_score"];
    let is_known = scored["boost_mode"] == "replace" && random["field"] == "_seq_no";
    random["seed"].as_u64().filter(|_| is_known).ok_or_else(|| {
        parsing("the stand-in scores by [random_score] with [seed] and the field [_seq_no], [boost_mode] [replace]")
    })
}

impl Source {
    fn parse(value: &Value) -> Result<Self, EsError> {
        let strings = |value: &Value| match value {
            Value::String(one) => Some(vec![one.clone()]),
            Value::Array(items) => items.iter().map(|item| item.as_str().map(str::to_owned)).collect(),
            _ => None,
        };
        match value {
            Value::Bool(true) => Ok(Self::All),
            Value::Bool(false) => Ok(Self::Nothing),
            other => strings(other.get("includes").unwrap_or(other))
                .map(|names| Self::Part(FilterPath::new(names.iter().map(String::as_str))))
                .ok_or_else(|| parsing("the stand-in takes a boolean or a list of fields as [_source]")),
        }
    }
}
