//! `_search` and `_count`: the queries, sorts and pages that geofold and its demo use, on the documents visible since the last
//! refresh. Every document is tested; there is no inverted index.

use std::cell::OnceCell;
use std::cmp::Ordering;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::ops::Bound;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::bulk::WrittenObject;
use super::error::EsError;
use super::geo::{QueryBox as GeoBox, QueryCircle};
use super::index::{Doc, StoredIndex};
use super::mapping;
use super::pit::Snapshot;
use super::store::{Shared, read};
use crate::base::geo::Distance;
use crate::base::random::Random;
use crate::core::filter_path::FilterPath;

/// `index.max_result_window`.
const MAX_WINDOW: usize = 10_000;
/// Default of `track_total_hits`.
const COUNTED: usize = 10_000;

enum Query {
    All,
    None,
    Ids(Vec<String>),
    /// The field has one of these terms.
    Terms(String, Vec<Value>),
    Exists(String),
    Within(String, Area),
    Bool {
        all: Vec<Query>,
        none: Vec<Query>,
        some: Vec<Query>,
        at_least: usize,
    },
}

enum Area {
    Circle(QueryCircle),
    Box(GeoBox),
}

#[derive(Clone, Copy, PartialEq)]
enum Key {
    Index,
    Doc,
    ShardDoc,
    Distance,
    Score,
    /// The field at this place of [`Sort::fields`].
    Field(usize),
}

/// The parsed `sort`.
#[derive(Default)]
struct Sort {
    /// Each with whether it is descending.
    keys: Vec<(Key, bool)>,
    /// The field and the point that distances are measured to: a circle around it.
    near: Option<(String, QueryCircle)>,
    /// Metres of the unit of reported distances.
    unit: Option<f64>,
    /// Distances are on a plane, not on the globe.
    is_planar: bool,
    /// Fields of documents that are sorted by.
    fields: Vec<String>,
}

/// The body of a search.
struct Request {
    query: Query,
    size: usize,
    from: usize,
    sort: Sort,
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
            sort: Sort::default(),
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
                "sort" => request.sort = Sort::parse(value)?,
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

/// The one function that geofold uses: a random score of a seed and the sequence number, and nothing else.
fn random_seed(scored: &Value) -> Result<u64, EsError> {
    let random = &scored["random_score"];
    let is_known = scored["boost_mode"] == "replace" && random["field"] == "_seq_no";
    random["seed"].as_u64().filter(|_| is_known).ok_or_else(|| {
        parsing("the stand-in scores by [random_score] with [seed] and the field [_seq_no], [boost_mode] [replace]")
    })
}

fn count_of(name: &str, value: &Value) -> Result<usize, EsError> {
    let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
    count.ok_or_else(|| {
        EsError::illegal_argument(format!("[{name}] parameter cannot be negative, found [{value}]"))
    })
}

impl Sort {
    fn parse(value: &Value) -> Result<Self, EsError> {
        let items = match value {
            Value::Array(items) => items.as_slice(),
            one => std::slice::from_ref(one),
        };
        let mut sort = Self::default();
        for item in items {
            let key = match item {
                Value::String(name) => (sort.key(name)?, name == "_score"),
                Value::Object(members) if members.len() == 1 => {
                    let (name, order) = members.iter().next().unzip();
                    let order = order.unwrap_or(&Value::Null);
                    let key = match name.map_or("", String::as_str) {
                        "_geo_distance" => sort.take_near(order)?,
                        name => sort.key(name)?,
                    };
                    let order = order.get("order").unwrap_or(order);
                    (key, order == "desc" || (key == Key::Score && order != "asc"))
                }
                _ => return Err(parsing("malformed sort format")),
            };
            sort.keys.push(key);
        }
        Ok(sort)
    }

    fn key(&mut self, name: &str) -> Result<Key, EsError> {
        Ok(match name {
            "_index" => Key::Index,
            "_doc" => Key::Doc,
            "_shard_doc" => Key::ShardDoc,
            "_score" => Key::Score,
            field if !field.starts_with('_') => {
                self.fields.push(field.to_owned());
                Key::Field(self.fields.len() - 1)
            }
            _ => return Err(EsError::illegal_argument(format!("the stand-in does not sort by [{name}]"))),
        })
    }

    /// From the body of `_geo_distance`: one point, and a unit.
    fn take_near(&mut self, body: &Value) -> Result<Key, EsError> {
        const OPTIONS: [&str; 3] = ["order", "unit", "distance_type"];
        let fields = body.as_object().into_iter().flatten();
        let mut fields = fields.filter(|(name, _)| !OPTIONS.contains(&name.as_str()));
        let (Some((field, centre)), None) = (fields.next(), fields.next()) else {
            return Err(parsing(
                "the stand-in sorts by the distance to one point, with [order], [unit] and [distance_type] alone",
            ));
        };
        if let Some(unit) = body.get("unit") {
            let unit = unit.as_str().and_then(|unit| format!("1{unit}").parse::<Distance>().ok());
            self.unit = Some(unit.ok_or_else(|| parsing("No distance unit match"))?.metres());
        }
        // The nearest first, in metres, are measured on the globe, whatever is asked for.
        let is_on_globe = body["order"] != "desc" && self.unit.is_none_or(|metres| metres == 1.0);
        self.is_planar = match body.get("distance_type").map(|kind| kind.as_str().unwrap_or_default()) {
            None | Some("arc") => false,
            Some("plane") => !is_on_globe,
            Some(other) => {
                return Err(EsError::illegal_argument(format!(
                    "No geo distance for [{}]",
                    other.to_lowercase()
                )));
            }
        };
        let circle =
            QueryCircle::new(&json!(0), centre).ok_or_else(|| parsing("[_geo_distance] has no point"))?;
        self.near = Some((field.clone(), circle));
        Ok(Key::Distance)
    }

    /// Errors that depend on the index's mapping.
    fn check(&self, index: &StoredIndex) -> Result<(), EsError> {
        for field in &self.fields {
            if mapping::field(&index.mappings, field).is_none() {
                let reason = format!("No mapping found for [{field}] in order to sort on");
                let error = EsError::new(400, "query_shard_exception", reason);
                return Err(error.with("index_uuid", &index.uuid).with("index", &index.name));
            }
        }
        match &self.near {
            Some((field, _)) if mapping::field(&index.mappings, field).is_none() => {
                Err(EsError::illegal_argument(format!(
                    "failed to find mapper for [{field}] for geo distance based sort"
                )))
            }
            _ => Ok(()),
        }
    }

    /// How far the nearest of a document's points is.
    fn metres(&self, index: &StoredIndex, doc: &Doc) -> f64 {
        let Some((field, circle)) = &self.near else { return 0.0 };
        let number = index.geo_field_number(field);
        let points = doc.points.iter().filter(|(field, _)| Some(*field) == number);
        let to = if self.is_planar { QueryCircle::planar_metres_to } else { QueryCircle::metres_to };
        let metres = points.map(|(_, point)| to(circle, *point)).fold(f64::INFINITY, f64::min);
        self.unit.map_or(metres, |unit| metres / unit)
    }

    /// The value of each field that is sorted by: of several the first, null for none.
    fn values(&self, index: &StoredIndex, doc: &Doc) -> Vec<Value> {
        if self.fields.is_empty() {
            return Vec::new();
        }
        let candidate = Candidate::new(doc);
        let value = |field: &String| {
            let value = candidate.values(field).first().map_or(Value::Null, |value| (*value).clone());
            let is_number = mapping::field(&index.mappings, field)
                .is_some_and(|field| !matches!(mapping::kind(field), "keyword" | "text"));
            // Elasticsearch sorts a missing number as the highest value.
            match (&value, is_number, self.is_descending(field)) {
                (Value::Null, true, false) => json!(i64::MAX),
                (Value::Null, true, true) => json!(i64::MIN),
                _ => value,
            }
        };
        self.fields.iter().map(value).collect()
    }

    fn is_descending(&self, field: &str) -> bool {
        let is_it = |key: &Key| matches!(key, Key::Field(place) if self.fields[*place] == field);
        self.keys.iter().any(|(key, is_descending)| is_it(key) && *is_descending)
    }
}

/// Of two values of a field; null is last either way.
fn in_order(a: &Value, b: &Value, is_descending: bool) -> Ordering {
    let order = match (a, b) {
        (Value::Null, Value::Null) => return Ordering::Equal,
        (Value::Null, _) => return Ordering::Greater,
        (_, Value::Null) => return Ordering::Less,
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (a, b) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => a.as_f64().unwrap_or(f64::NAN).total_cmp(&b.as_f64().unwrap_or(f64::NAN)),
        },
    };
    if is_descending { order.reverse() } else { order }
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

impl Query {
    fn parse(value: &Value) -> Result<Self, EsError> {
        let Some((name, body)) =
            value.as_object().filter(|query| query.len() == 1).and_then(|q| q.iter().next())
        else {
            return Err(parsing("[_na] query malformed, it must be an object with one query"));
        };
        let malformed = || parsing(format!("[{name}] query malformed"));
        // The field of queries that have one, beside parameters of the query itself.
        let field = |parameters: &[&str]| {
            let mut fields = body.as_object().into_iter().flatten();
            fields.find(|(key, _)| !parameters.contains(&key.as_str())).ok_or_else(malformed)
        };
        Ok(match name.as_str() {
            "match_all" => Self::All,
            "match_none" => Self::None,
            "ids" => {
                let values = body.get("values").and_then(Value::as_array).ok_or_else(malformed)?;
                Self::Ids(values.iter().filter_map(Value::as_str).map(str::to_owned).collect())
            }
            "term" => {
                let (field, term) = field(&["boost", "_name"])?;
                Self::Terms(field.clone(), vec![term.get("value").unwrap_or(term).clone()])
            }
            "terms" => {
                let (field, terms) = field(&["boost", "_name"])?;
                Self::Terms(field.clone(), terms.as_array().ok_or_else(malformed)?.clone())
            }
            "exists" => {
                Self::Exists(body.get("field").and_then(Value::as_str).ok_or_else(malformed)?.to_owned())
            }
            "geo_distance" => {
                let (field, centre) =
                    field(&["distance", "distance_type", "validation_method", "boost", "_name"])?;
                let circle = QueryCircle::new(body.get("distance").unwrap_or(&Value::Null), centre);
                Self::Within(field.clone(), Area::Circle(circle.ok_or_else(malformed)?))
            }
            "geo_bounding_box" => {
                let (field, corners) = field(&["type", "validation_method", "boost", "_name"])?;
                Self::Within(field.clone(), Area::Box(GeoBox::new(corners).ok_or_else(malformed)?))
            }
            "bool" => {
                let clauses = |name: &str| match body.get(name) {
                    None => Ok(Vec::new()),
                    Some(Value::Array(items)) => items.iter().map(Self::parse).collect(),
                    Some(one) => Ok(vec![Self::parse(one)?]),
                };
                let mut all = clauses("filter")?;
                all.extend(clauses("must")?);
                let (none, some) = (clauses("must_not")?, clauses("should")?);
                let default = usize::from(all.is_empty() && !some.is_empty());
                let at_least = body
                    .get("minimum_should_match")
                    .map_or(Ok(default), |n| count_of("minimum_should_match", n))?;
                Self::Bool { all, none, some, at_least }
            }
            _ => return Err(parsing(format!("unknown query [{name}]"))),
        })
    }

    /// Errors that depend on the index's mapping.
    fn check(&self, index: &StoredIndex) -> Result<(), EsError> {
        match self {
            Self::Within(path, area) => {
                let query = match area {
                    Area::Circle(_) => "geo_distance",
                    Area::Box(_) => "geo_bounding_box",
                };
                let reason = match mapping::field(&index.mappings, path).map(mapping::kind) {
                    Some("geo_point") => return Ok(()),
                    Some(kind) => {
                        format!("Field [{path}] is of unsupported type [{kind}] for [{query}] query")
                    }
                    None => format!("failed to find geo field [{path}]"),
                };
                let error = EsError::new(400, "query_shard_exception", reason);
                Err(error.with("index_uuid", &index.uuid).with("index", &index.name))
            }
            Self::Bool { all, none, some, .. } => {
                all.iter().chain(none).chain(some).try_for_each(|query| query.check(index))
            }
            _ => Ok(()),
        }
    }

    fn matches(&self, index: &StoredIndex, candidate: &Candidate<'_>) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Ids(ids) => ids.iter().any(|id| **id == *candidate.doc.id),
            Self::Terms(path, terms) if path == "_id" => {
                terms.iter().any(|term| term.as_str() == Some(&candidate.doc.id))
            }
            Self::Terms(path, terms) => candidate.has_term(index, path, terms),
            Self::Exists(path) => candidate.has_field(index, path),
            Self::Within(path, area) => {
                let Some(number) = index.geo_field_number(path) else { return false };
                let mut points = candidate.doc.points.iter().filter(|(field, _)| *field == number);
                points.any(|(_, point)| match area {
                    Area::Circle(circle) => circle.contains(*point),
                    Area::Box(sides) => sides.contains(*point),
                })
            }
            Self::Bool { all, none, some, at_least } => {
                all.iter().all(|query| query.matches(index, candidate))
                    && !none.iter().any(|query| query.matches(index, candidate))
                    && some.iter().filter(|query| query.matches(index, candidate)).count() >= *at_least
            }
        }
    }
}

/// A document to test; its source is parsed at most once.
struct Candidate<'d> {
    doc: &'d Doc,
    source: OnceCell<Value>,
}

impl<'d> Candidate<'d> {
    fn new(doc: &'d Doc) -> Self {
        Self { doc, source: OnceCell::new() }
    }

    fn values(&self, path: &str) -> Vec<&Value> {
        let source = self.source.get_or_init(|| serde_json::from_slice(&self.doc.source).unwrap_or_default());
        let mut found = Vec::new();
        collect(source, path, &mut found);
        found
    }

    fn has_term(&self, index: &StoredIndex, path: &str, terms: &[Value]) -> bool {
        // A keyword beside a text, as Elasticsearch maps new strings.
        let beside = path.rsplit_once('.').filter(|(parent, name)| {
            mapping::field(&index.mappings, path).is_none()
                && mapping::field(&index.mappings, parent)
                    .is_some_and(|field| field.get("fields").is_some_and(|fields| fields.get(name).is_some()))
        });
        let mapped = beside.map_or(path, |(parent, _)| parent);
        let Some(field) = mapping::field(&index.mappings, mapped) else { return false };
        let is_text = beside.is_none() && mapping::kind(field) == "text";
        let fits = |value: &Value, term: &Value| match value {
            Value::String(text) if is_text => {
                let mut words = text.split(|c: char| !c.is_alphanumeric());
                words.any(|word| !word.is_empty() && term.as_str() == Some(&word.to_lowercase()))
            }
            _ => same(value, term),
        };
        self.values(mapped).into_iter().any(|value| terms.iter().any(|term| fits(value, term)))
    }

    fn has_field(&self, index: &StoredIndex, path: &str) -> bool {
        match mapping::field(&index.mappings, path) {
            None => false,
            Some(field) if mapping::kind(field) == "geo_point" => index
                .geo_field_number(path)
                .is_some_and(|n| self.doc.points.iter().any(|(field, _)| *field == n)),
            Some(_) => !self.values(path).is_empty(),
        }
    }
}

/// Single values of a field; lists are taken apart.
fn collect<'v>(value: &'v Value, path: &str, found: &mut Vec<&'v Value>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, path, found)),
        Value::Null => {}
        value if path.is_empty() => found.push(value),
        Value::Object(members) => {
            if let Some(member) = members.get(path) {
                collect(member, "", found);
            } else if let Some((first, rest)) = path.split_once('.')
                && let Some(member) = members.get(first)
            {
                collect(member, rest, found);
            }
        }
        _ => {}
    }
}

/// Whether a value is a term: numbers and booleans may be written as text.
fn same(value: &Value, term: &Value) -> bool {
    let number = |value: &Value| match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match value {
        Value::Number(_) => number(value) == number(term),
        _ => text(value) == text(term),
    }
}
