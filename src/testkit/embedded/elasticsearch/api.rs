//! Maps requests to calls of the store, and results to responses. Synchronous: the listener runs it beside its own threads, so
//! that a large request does not block others.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::bulk::{self, WrittenObject};
use super::error::EsError;
use super::faults::FaultHandle;
use super::index::{Doc, StoredIndex};
use super::search::Searched;
use super::store::{IndexStore, read, write};
use super::{mapping, search};
use crate::core::filter_path::FilterPath;

/// The version reported: the one whose responses it imitates.
const VERSION: &str = "8.19.21";

/// A request, read to its end.
pub(super) struct Request {
    pub(super) method: String,
    /// Percent-encoded, without the query.
    pub(super) path: String,
    pub(super) query: HashMap<String, String>,
    pub(super) body: bytes::Bytes,
}

/// A response: status and JSON.
pub(super) struct HttpAnswer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

impl Request {
    fn is_set(&self, parameter: &str) -> bool {
        self.query.get(parameter).is_some_and(|value| value != "false")
    }

    fn json<'a, T: Deserialize<'a> + Default>(&'a self) -> Result<T, EsError> {
        if self.body.is_empty() {
            return Ok(T::default());
        }
        let malformed =
            |error: serde_json::Error| EsError::new(400, "x_content_parse_exception", error.to_string());
        serde_json::from_slice(&self.body).map_err(malformed)
    }

    fn filter(&self) -> Option<FilterPath> {
        self.query.get("filter_path").map(|patterns| FilterPath::new(patterns.split(',')))
    }
}

/// Answers one request.
pub(super) fn answer(store: &IndexStore, faults: &FaultHandle, request: &Request) -> HttpAnswer {
    match route(store, faults, request) {
        Ok(answer) => answer,
        Err(error) => HttpAnswer { status: error.status, body: error.body().to_string().into_bytes() },
    }
}

fn route(store: &IndexStore, faults: &FaultHandle, request: &Request) -> Result<HttpAnswer, EsError> {
    let segments: Vec<String> =
        request.path.split('/').filter(|segment| !segment.is_empty()).map(decoded).collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let value = match (request.method.as_str(), segments.as_slice()) {
        ("POST" | "PUT", ["_bulk"]) => return bulk(store, faults, request, None),
        ("POST" | "PUT", [index, "_bulk"]) => return bulk(store, faults, request, Some(index)),
        ("GET" | "POST", ["_mget"]) => return mget(store, request, None),
        ("GET" | "POST", [index, "_mget"]) => return mget(store, request, Some(index)),
        ("GET" | "HEAD", [index, "_doc", id]) => return get(store, index, id),
        ("GET" | "POST", ["_search"]) => return searched(store, request, "*"),
        ("GET" | "POST", [names, "_search"]) => return searched(store, request, names),
        ("GET" | "POST", ["_msearch"]) => return msearched(store, request),
        ("POST", [names, "_pit"]) => open_pit(store, request, names)?,
        ("DELETE", ["_pit"]) => close_pit(store, request)?,
        ("GET" | "POST", ["_count"]) => count(store, request, "*")?,
        ("GET" | "POST", [names, "_count"]) => count(store, request, names)?,
        ("GET" | "POST", ["_refresh"]) => refresh(store, request, "*")?,
        ("GET" | "POST", [names, "_refresh"]) => refresh(store, request, names)?,
        ("PUT", [name]) => create(store, request, name)?,
        ("DELETE", [names]) => {
            store.delete_indices(names)?;
            json!({"acknowledged": true})
        }
        ("GET", ["_cluster", "health"]) => health(store, "*")?,
        ("GET", ["_cluster", "health", names]) => health(store, names)?,
        ("GET", ["_cluster", "settings"]) => cluster_settings(store, request),
        ("PUT", ["_cluster", "settings"]) => change_cluster_settings(store, request)?,
        ("GET", ["_nodes", ..]) => {
            json!({"cluster_name": "geofold-standin", "nodes": {"standin": {"name": "standin", "version": VERSION,
                   "thread_pool": {"refresh": {"type": "scaling", "max": 1}}}}})
        }
        ("GET", ["_cat", "indices"]) => cat_indices(store, request, "*")?,
        ("GET", ["_cat", "indices", names]) => cat_indices(store, request, names)?,
        ("GET", ["_stats", ..]) => stats(store, "*")?,
        ("GET", [names, "_stats", ..]) => stats(store, names)?,
        ("GET" | "HEAD", []) => {
            json!({"name": "standin", "cluster_name": "geofold-standin", "version": {"number": VERSION},
                   "tagline": "You Know, for Search"})
        }
        ("GET" | "HEAD", [names]) if !names.starts_with('_') => {
            described(store, request, names, &["aliases", "mappings", "settings"])?
        }
        ("GET", [names, "_settings"]) => described(store, request, names, &["settings"])?,
        ("GET", [names, "_mapping"]) => described(store, request, names, &["mappings"])?,
        ("PUT", [names, "_settings"]) => change_settings(store, request, names)?,
        ("PUT" | "POST", [names, "_mapping"]) => change_mapping(store, request, names)?,
        ("POST", [names, "_close"]) => set_open(store, names, false)?,
        ("POST", [names, "_open"]) => set_open(store, names, true)?,
        (method, _) => {
            let error = format!("no handler found for uri [{}] and method [{method}]", request.path);
            return Ok(HttpAnswer { status: 400, body: json!({"error": error}).to_string().into_bytes() });
        }
    };
    let value = request.filter().map_or_else(|| value.clone(), |filter| filter.apply(&value));
    Ok(HttpAnswer { status: 200, body: value.to_string().into_bytes() })
}

/// A path segment without its percent-encoding.
fn decoded(segment: &str) -> String {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn bulk(
    store: &IndexStore,
    faults: &FaultHandle,
    request: &Request,
    index: Option<&str>,
) -> Result<HttpAnswer, EsError> {
    let filter = request.filter();
    let options = bulk::BulkOptions {
        default_index: index,
        filter: filter.as_ref(),
        refresh: request.is_set("refresh"),
        refuses: &|| faults.refuses_item(),
    };
    Ok(HttpAnswer { status: 200, body: bulk::bulk(store, &request.body, &options)? })
}

fn mget(store: &IndexStore, request: &Request, default_index: Option<&str>) -> Result<HttpAnswer, EsError> {
    #[derive(Deserialize, Default)]
    struct Body {
        #[serde(default)]
        docs: Vec<Address>,
    }
    #[derive(Deserialize)]
    struct Address {
        _index: Option<String>,
        _id: Option<String>,
    }
    let Body { docs } = request.json()?;
    let mut complaints = Vec::new();
    if docs.is_empty() {
        complaints.push("no documents to get".to_owned());
    }
    for (n, doc) in docs.iter().enumerate() {
        if doc._index.is_none() && default_index.is_none() {
            complaints.push(format!("index is missing for doc {n}"));
        }
        if doc._id.is_none() {
            complaints.push(format!("id is missing for doc {n}"));
        }
    }
    if !complaints.is_empty() {
        return Err(bulk::invalid(&complaints));
    }
    let mut out = b"{\"docs\":[".to_vec();
    for (n, doc) in docs.iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        let index = doc._index.as_deref().or(default_index).unwrap_or_default();
        let id = doc._id.as_deref().unwrap_or_default();
        match store.get(index, id) {
            Ok(found) => put_doc(&mut out, index, id, found.as_deref()),
            Err(error) => {
                let slot = json!({"_index": index, "_id": id, "error": error.with_root_cause()});
                out.extend_from_slice(slot.to_string().as_bytes());
            }
        }
    }
    out.extend_from_slice(b"]}");
    Ok(HttpAnswer { status: 200, body: out })
}

fn get(store: &IndexStore, index: &str, id: &str) -> Result<HttpAnswer, EsError> {
    let found = store.get(index, id)?;
    let mut body = Vec::new();
    put_doc(&mut body, index, id, found.as_deref());
    Ok(HttpAnswer { status: if found.is_some() { 200 } else { 404 }, body })
}

/// Writes a document as returned by a read by id, with its source unchanged.
fn put_doc(out: &mut Vec<u8>, index: &str, id: &str, found: Option<&Doc>) {
    let mut object = WrittenObject::begin(out);
    object.text("_index", index);
    object.text("_id", id);
    match found {
        None => object.raw("found", "false"),
        Some(doc) => {
            object.raw("_version", &doc.version.to_string());
            object.raw("_seq_no", &doc.seq_no.to_string());
            object.raw("_primary_term", &doc.primary_term.to_string());
            object.raw("found", "true");
            object.key("_source");
            object.out.extend_from_slice(&doc.source);
        }
    }
    object.end();
}

fn searched(store: &IndexStore, request: &Request, names: &str) -> Result<HttpAnswer, EsError> {
    let mut body: Value = request.json()?;
    if body.is_null() {
        body = json!({});
    }
    for name in ["size", "from"] {
        if let Some(number) = request.query.get(name).and_then(|text| text.parse::<i64>().ok()) {
            body[name] = json!(number);
        }
    }
    if request.query.contains_key("q") {
        return Err(EsError::illegal_argument("the stand-in takes queries in the body only"));
    }
    let pit_id = body["pit"]["id"].as_str();
    let indices = match pit_id {
        Some(id) => {
            store.pits().searched(id, keep_alive(body["pit"]["keep_alive"].as_str())?, store.now())?
        }
        None => {
            let indices = store.resolve(names, false, request.is_set("ignore_unavailable"))?;
            indices.into_iter().map(|index| Searched { index, snapshot: None }).collect()
        }
    };
    let is_whole = request.query.get("allow_partial_search_results").is_some_and(|value| value == "false");
    let body = search::search(&indices, &body, pit_id, is_whole)?;
    let filtered = request.filter().map(|filter| {
        let value = serde_json::from_slice(&body).unwrap_or_default();
        filter.apply(&value).to_string().into_bytes()
    });
    Ok(HttpAnswer { status: 200, body: filtered.unwrap_or(body) })
}

/// What else the line of the indices may have in a request with several searches: parameters of its search.
const MSEARCH_PARAMETERS: [&str; 9] = [
    "allow_no_indices",
    "allow_partial_search_results",
    "ccs_minimize_roundtrips",
    "expand_wildcards",
    "ignore_unavailable",
    "preference",
    "request_cache",
    "routing",
    "search_type",
];

/// Searches by pairs of lines: the indices with parameters of their search, and the body.
fn msearched(store: &IndexStore, request: &Request) -> Result<HttpAnswer, EsError> {
    let mut responses = Vec::new();
    let lines: Vec<&[u8]> = request.body.split(|&byte| byte == b'\n').collect();
    for pair in lines.chunks_exact(2) {
        let mut head: Map<String, Value> = serde_json::from_slice(pair[0]).unwrap_or_default();
        let names = match head.remove("index") {
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
            Some(Value::String(name)) => name,
            _ => "*".to_owned(),
        };
        if let Some(unknown) = head.keys().find(|name| !MSEARCH_PARAMETERS.contains(&name.as_str())) {
            let reason = format!("key [{unknown}] is not supported in the metadata section");
            return Err(EsError::illegal_argument(reason));
        }
        let parameters = head.into_iter().map(|(name, value)| (name, value.to_string().replace('"', "")));
        let one = Request {
            method: "POST".to_owned(),
            path: String::new(),
            query: parameters.collect(),
            body: bytes::Bytes::copy_from_slice(pair[1]),
        };
        let (status, body) = match searched(store, &one, &names) {
            Ok(answer) => (answer.status, serde_json::from_slice(&answer.body).unwrap_or_default()),
            Err(error) => (error.status, error.body()),
        };
        let mut response: Value = body;
        response["status"] = json!(status);
        responses.push(response);
    }
    let body = json!({"took": 0, "responses": responses});
    Ok(HttpAnswer { status: 200, body: body.to_string().into_bytes() })
}

/// How long a point in time is to be kept, if given.
fn keep_alive(text: Option<&str>) -> Result<Option<Duration>, EsError> {
    let Some(text) = text else { return Ok(None) };
    let time = crate::io::indices::parse_time(text);
    time.map(Some).ok_or_else(|| {
        EsError::illegal_argument(format!("failed to parse setting [keep_alive] with value [{text}]"))
    })
}

fn open_pit(store: &IndexStore, request: &Request, names: &str) -> Result<Value, EsError> {
    let Some(time) = keep_alive(request.query.get("keep_alive").map(String::as_str))? else {
        return Err(EsError::new(
            400,
            "action_request_validation_exception",
            "Validation Failed: 1: [keep_alive] is not specified;",
        ));
    };
    let indices = store.resolve(names, false, request.is_set("ignore_unavailable"))?;
    let shards = indices.len();
    let id = store.pits().open(&indices, time, store.now())?;
    let summary = json!({"total": shards, "successful": shards, "failed": 0, "skipped": 0});
    Ok(json!({"id": id, "_shards": summary}))
}

fn close_pit(store: &IndexStore, request: &Request) -> Result<Value, EsError> {
    let body: Value = request.json()?;
    let freed = store.pits().close(body["id"].as_str().unwrap_or_default());
    Ok(json!({"succeeded": true, "num_freed": freed}))
}

fn count(store: &IndexStore, request: &Request, names: &str) -> Result<Value, EsError> {
    search::count(&store.resolve(names, false, request.is_set("ignore_unavailable"))?, &request.json()?)
}

fn refresh(store: &IndexStore, request: &Request, names: &str) -> Result<Value, EsError> {
    let indices = store.resolve(names, false, request.is_set("ignore_unavailable"))?;
    indices.iter().try_for_each(|index| store.refresh(index))?;
    Ok(json!({"_shards": {"total": indices.len(), "successful": indices.len(), "failed": 0}}))
}

fn create(store: &IndexStore, request: &Request, name: &str) -> Result<Value, EsError> {
    let body: Map<String, Value> = request.json()?;
    let mut settings = BTreeMap::new();
    let mut mappings = Map::new();
    for (part, value) in body {
        match (part.as_str(), value) {
            ("settings", Value::Object(given)) => flatten("", given, &mut settings),
            ("mappings", Value::Object(given)) => mappings = given,
            ("aliases", Value::Object(given)) if given.is_empty() => {}
            ("aliases", _) => return Err(EsError::illegal_argument("the stand-in has no aliases")),
            (part, _) => {
                return Err(EsError::new(
                    400,
                    "parse_exception",
                    format!("unknown key [{part}] for create index"),
                ));
            }
        }
    }
    check_settings(&settings)?;
    check_types(&mappings)?;
    let settings = settings.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    store.create_index(name, settings, mappings)?;
    Ok(json!({"acknowledged": true, "shards_acknowledged": true, "index": name}))
}

/// Settings by their whole names, values as text, null as `None`.
fn flatten(prefix: &str, settings: Map<String, Value>, flat: &mut BTreeMap<String, Option<String>>) {
    for (key, value) in settings {
        let name = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
        let whole = || if name.starts_with("index.") { name.clone() } else { format!("index.{name}") };
        match value {
            Value::Object(inner) => flatten(&name, inner, flat),
            Value::Null => drop(flat.insert(whole(), None)),
            Value::String(text) => drop(flat.insert(whole(), Some(text))),
            other => drop(flat.insert(whole(), Some(other.to_string()))),
        }
    }
}

fn check_settings(settings: &BTreeMap<String, Option<String>>) -> Result<(), EsError> {
    for name in ["index.gc_deletes", "index.refresh_interval"] {
        if let Some(Some(text)) = settings.get(name)
            && text != "-1"
            && crate::io::indices::parse_time(text).is_none()
        {
            let reason = format!(
                "failed to parse setting [{name}] with value [{text}] as a time value: unit is missing or unrecognized"
            );
            return Err(EsError::illegal_argument(reason));
        }
    }
    Ok(())
}

/// Refuses field types that Elasticsearch does not have.
fn check_types(mapping: &Map<String, Value>) -> Result<(), EsError> {
    #[rustfmt::skip]
    const TYPES: [&str; 24] = [
        "alias", "binary", "boolean", "byte", "date", "date_nanos", "dense_vector", "double", "flattened", "float",
        "geo_point", "geo_shape", "half_float", "integer", "ip", "keyword", "long", "nested", "object", "short", "text",
        "unsigned_long", "version", "wildcard",
    ];
    let Some(Value::Object(fields)) = mapping.get("properties") else { return Ok(()) };
    for (name, field) in fields {
        let Value::Object(field) = field else { continue };
        let kind = mapping::kind(field);
        if !TYPES.contains(&kind) {
            let reason = format!(
                "The mapper type [{kind}] declared on field [{name}] does not exist. It might have been created within a future version or requires a plugin to be installed. Check the documentation."
            );
            let error =
                EsError::new(400, "mapper_parsing_exception", format!("Failed to parse mapping: {reason}"));
            return Err(error.caused_by("mapper_parsing_exception", reason));
        }
        check_types(field)?;
    }
    Ok(())
}

/// Whether a pattern also matches closed indices: `expand_wildcards`, open ones by default.
fn with_closed(request: &Request) -> bool {
    let expand = request.query.get("expand_wildcards").map_or("open", String::as_str);
    expand.split(',').any(|state| matches!(state, "closed" | "all"))
}

fn described(store: &IndexStore, request: &Request, names: &str, parts: &[&str]) -> Result<Value, EsError> {
    let indices = store.resolve(names, with_closed(request), request.is_set("ignore_unavailable"))?;
    let is_flat = request.is_set("flat_settings");
    let describe = |index: &StoredIndex| {
        let part = |name: &&str| match *name {
            "settings" => ((*name).to_owned(), index.settings_value(is_flat)),
            "mappings" => ((*name).to_owned(), Value::Object(index.mappings.clone())),
            _ => ((*name).to_owned(), json!({})),
        };
        (index.name.clone(), parts.iter().map(part).collect::<Value>())
    };
    Ok(indices.iter().map(|index| describe(&read(index))).collect())
}

fn change_settings(store: &IndexStore, request: &Request, names: &str) -> Result<Value, EsError> {
    let mut body: Map<String, Value> = request.json()?;
    if let Some(Value::Object(settings)) = body.remove("settings") {
        body = settings;
    }
    let mut changes = BTreeMap::new();
    flatten("", body, &mut changes);
    check_settings(&changes)?;
    let indices = store.resolve(names, true, false)?;
    indices.iter().try_for_each(|index| store.change_settings(index, changes.clone()))?;
    Ok(json!({"acknowledged": true}))
}

fn change_mapping(store: &IndexStore, request: &Request, names: &str) -> Result<Value, EsError> {
    let more: Map<String, Value> = request.json()?;
    check_types(&more)?;
    for index in store.resolve(names, true, false)? {
        let mut index = write(&index);
        let mut mappings = index.mappings.clone();
        mapping::merge(&mut mappings, &more, "")?;
        index.mappings = mappings;
    }
    Ok(json!({"acknowledged": true}))
}

fn set_open(store: &IndexStore, names: &str, is_open: bool) -> Result<Value, EsError> {
    let indices = store.resolve(names, true, false)?;
    let mut closed = Map::new();
    for index in &indices {
        store.set_open(index, is_open);
        closed.insert(read(index).name.clone(), json!({"closed": true}));
    }
    let mut answer = json!({"acknowledged": true, "shards_acknowledged": true});
    if !is_open {
        answer["indices"] = Value::Object(closed);
    }
    Ok(answer)
}

/// Yellow as soon as an index wants a replica: there is one node.
fn health_of(index: &StoredIndex) -> &'static str {
    let wants_replica =
        index.settings.get("index.number_of_replicas").is_some_and(|replicas| replicas != "0");
    if wants_replica { "yellow" } else { "green" }
}

fn health(store: &IndexStore, names: &str) -> Result<Value, EsError> {
    let indices = store.resolve(names, true, true)?;
    let yellow = indices.iter().filter(|index| health_of(&read(index)) == "yellow").count();
    let is_missing = indices.is_empty() && !names.contains('*');
    let status = if is_missing {
        "red"
    } else if yellow > 0 {
        "yellow"
    } else {
        "green"
    };
    Ok(json!({
        "cluster_name": "geofold-standin", "status": status, "timed_out": is_missing, "number_of_nodes": 1,
        "number_of_data_nodes": 1, "active_primary_shards": indices.len(), "active_shards": indices.len(),
        "unassigned_shards": yellow,
    }))
}

fn cluster_settings(store: &IndexStore, request: &Request) -> Value {
    let transient: Map<String, Value> =
        store.cluster_settings().into_iter().map(|(name, value)| (name, json!(value))).collect();
    let name = "action.auto_create_index";
    let mut defaults = Map::new();
    if !transient.contains_key(name) {
        defaults.insert(name.to_owned(), json!(store.auto_create_default()));
    }
    let shown = |settings: Map<String, Value>| {
        if request.is_set("flat_settings") { Value::Object(settings) } else { nested(settings) }
    };
    let mut answer = json!({"persistent": {}, "transient": shown(transient)});
    if request.is_set("include_defaults") {
        answer["defaults"] = shown(defaults);
    }
    answer
}

fn change_cluster_settings(store: &IndexStore, request: &Request) -> Result<Value, EsError> {
    let body: Map<String, Value> = request.json()?;
    let mut answer = json!({"acknowledged": true, "persistent": {}, "transient": {}});
    for (layer, settings) in body {
        let Value::Object(settings) = settings else { continue };
        let mut flat = BTreeMap::new();
        flatten("index", settings, &mut flat);
        let name = |name: String| name.trim_start_matches("index.").to_owned();
        let changes: BTreeMap<String, Option<String>> =
            flat.into_iter().map(|(whole, value)| (name(whole), value)).collect();
        if let Some(unknown) = changes.keys().find(|name| *name != "action.auto_create_index") {
            return Err(EsError::illegal_argument(format!("{layer} setting [{unknown}], not recognized")));
        }
        let set = changes.iter().filter_map(|(name, value)| Some((name.clone(), json!(value.as_ref()?))));
        answer[layer] = nested(set.collect());
        store.set_cluster_settings(changes);
    }
    Ok(answer)
}

/// Dotted names as objects in objects.
pub(super) fn nested(settings: Map<String, Value>) -> Value {
    let mut nested = json!({});
    for (name, value) in settings {
        let mut place = &mut nested;
        for part in name.split('.') {
            if !place.is_object() {
                *place = json!({});
            }
            place = &mut place[part];
        }
        *place = value;
    }
    nested
}

fn cat_indices(store: &IndexStore, request: &Request, names: &str) -> Result<Value, EsError> {
    let columns = request.query.get("h").map(|columns| columns.split(',').collect::<Vec<_>>());
    let row = |index: &StoredIndex| {
        let count = index.is_open.then(|| index.visible().len().to_string());
        let replicas = index.settings.get("index.number_of_replicas").cloned().unwrap_or_default();
        let mut row = json!({
            "health": health_of(index), "status": if index.is_open { "open" } else { "close" }, "index": index.name,
            "uuid": index.uuid, "pri": index.counted().len().to_string(), "rep": replicas, "docs.count": count, "docs.deleted": "0",
        });
        if let (Some(columns), Value::Object(members)) = (&columns, &mut row) {
            members.retain(|name, _| columns.contains(&name.as_str()));
        }
        row
    };
    Ok(store.resolve(names, true, false)?.iter().map(|index| row(&read(index))).collect())
}

fn stats(store: &IndexStore, names: &str) -> Result<Value, EsError> {
    let indices = store.resolve(names, false, false)?;
    let part = |docs: usize, bytes: usize| {
        let of_primaries = json!({"docs": {"count": docs}, "store": {"size_in_bytes": bytes}});
        json!({"primaries": of_primaries, "total": of_primaries})
    };
    let (mut docs, mut bytes, mut shards) = (0, 0, 0);
    let mut each = Map::new();
    for index in &indices {
        let index = read(index);
        let mut of_index = part(index.visible().len(), index.bytes());
        of_index["uuid"] = json!(index.uuid);
        let copy = |counted: u64| {
            let last = i64::try_from(counted).unwrap_or(i64::MAX) - 1;
            json!([{
                "routing": {"state": "STARTED", "primary": true, "node": "standin", "relocating_node": null},
                "refresh": {"external_total": index.refreshes()},
                "seq_no": {"max_seq_no": last, "local_checkpoint": last, "global_checkpoint": last},
            }])
        };
        let primaries = index.counted().iter().enumerate();
        of_index["shards"] = primaries.map(|(n, &counted)| (n.to_string(), copy(counted))).collect();
        shards += index.counted().len();
        docs += index.visible().len();
        bytes += index.bytes();
        each.insert(index.name.clone(), of_index);
    }
    Ok(json!({
        "_shards": {"total": shards, "successful": shards, "failed": 0},
        "_all": part(docs, bytes),
        "indices": each,
    }))
}
