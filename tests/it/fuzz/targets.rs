//! What is fuzzed: everything that reads foreign bytes. Each target takes any bytes, must not panic,
//! and holds what it gets against a plain reference where there is one.
//!
//! `main.rs` runs the same functions over the corpus and mutations of it in the ordinary tests; `dev/fuzz` runs
//! libFuzzer.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use geofold::base::geo::GeoPoint;
use geofold::base::ids::ShardId;
use geofold::base::position::Epoch;
use geofold::core::decode::{BadRecord, Decoder, LocationPath, RawRecord, Undecoded, merge_patch};
use geofold::core::fold::Fold;
use geofold::core::placement::Placement;
use geofold::core::schemas::{Kind, RegisteredSchema, Schema, SchemaId, Schemas};
use geofold::core::write::{Body, Write};
use geofold::geoshard::GeoshardMap;
use geofold::geoshard::cell::{self, Leaf};
use geofold::io::elastic::decode as answers;
use geofold::io::send::{LineRules, parse_line};
use geofold::support::config::{Config, Envelope};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// A target: takes any input, and panics where something is wrong.
pub type Target = fn(&[u8]);

/// Every target by name.
pub const TARGETS: &[(&str, Target)] = &[
    ("record", record),
    ("patch", patch),
    ("fold", fold),
    ("answer", answer),
    ("map", map),
    ("config", config),
    ("line", line),
    ("placement", placement),
    ("event", event),
    ("framed", framed),
    ("schema", schema),
];

const MAX_BYTES: usize = 1 << 16;
const OPS: [Option<&[u8]>; 6] =
    [None, Some(b"index"), Some(b"patch"), Some(b"delete"), Some(b"touch"), Some(b"upsert")];

/// A record: the operation, then the value.
pub fn record(data: &[u8]) {
    let Some((op, value)) = data.split_first() else { return };
    let op = OPS[usize::from(*op) % OPS.len()];
    completed(value);
    let decoded = decode(op, value, 7);
    let Some(plain) = plain_location(value).filter(|_| matches!(op, None | Some(b"index"))) else {
        let Ok(write) = decoded else { return };
        if let Body::Index { doc, .. } | Body::Patch { patch: doc, .. } = &write.body {
            assert!(!doc.contains(&b'\n') && !doc.contains(&b'\r'), "a line break would end the bulk's line");
            assert_eq!(json(doc), json(value), "the value was changed");
        }
        return;
    };
    let write = decoded.unwrap_or_else(|bad| panic!("a plain document is refused: {bad}"));
    assert!(matches!(write.body, Body::Index { at, .. } if at == plain.into()), "{write:?}");
}

/// A document with its location in two fields, or in one in any form: it is refused, or gets one more field, which has the same
/// location, and is otherwise unchanged.
fn completed(document: &[u8]) {
    const POINT: &str = "name";
    let one = LocationPath::new("location").and_then(|path| path.with_point(POINT));
    let pair = LocationPath::pair("location.lat", "location.lon", Some(POINT));
    let point = LocationPath::new(POINT).expect("a plain path");
    let without = |document: &[u8]| match json(document)? {
        Value::Object(mut members) => {
            members.remove(POINT);
            Some(members)
        }
        _ => None,
    };
    for path in [one, pair] {
        let path = path.expect("plain paths");
        let Ok((completed, at)) = path.complete(Bytes::copy_from_slice(document)) else { continue };
        assert_eq!(point.locate(&completed).expect("the field is a location"), at);
        assert_eq!(path.complete(completed.clone()).expect("it has a location"), (completed.clone(), at));
        if let (Some(before), Some(after)) = (without(document), without(&completed)) {
            assert_eq!(before, after, "the rest was changed");
        }
    }
}

/// Base, first and second patch, a line each.
pub fn patch(data: &[u8]) {
    let mut parts = data.split(|byte| *byte == b'\n');
    let (Some(base), Some(first), Some(second)) = (parts.next(), parts.next(), parts.next()) else { return };
    let composed = merge_patch::compose(first, second);
    let Ok(once) = merge_patch::apply(Some(base), first) else { return };
    let (Some(base_value), Some(first_value)) = (json(base), json(first)) else { return };
    let once_value = merged(Some(base_value), &first_value);
    assert_eq!(json(&once).as_ref(), Some(&once_value));
    let (Ok(twice), Some(second_value)) = (merge_patch::apply(Some(&once), second), json(second)) else {
        return;
    };
    let twice_value = merged(Some(once_value), &second_value);
    assert_eq!(json(&twice).as_ref(), Some(&twice_value));
    if let Some(composed) = composed {
        let at_once = merge_patch::apply(Some(base), &composed).expect("a composed patch can be applied");
        assert_eq!(json(&at_once), Some(twice_value), "{}", String::from_utf8_lossy(&composed));
    }
}

/// Records of one document, a line each: the first byte is the operation.
pub fn fold(data: &[u8]) {
    let path = LocationPath::new("location").expect("a plain path");
    let writes: Vec<Write> = data
        .split(|byte| *byte == b'\n')
        .filter_map(|record| record.split_first())
        .zip(1..)
        .filter_map(|((op, value), offset)| decode(OPS[usize::from(*op) % OPS.len()], value, offset).ok())
        .collect();
    let stored: &[u8] = br#"{"location":[1,2],"a":{"b":1}}"#;
    let mut one_by_one: Option<Bytes> = Some(Bytes::from_static(stored));
    let mut folded: Option<Fold> = None;
    for write in writes {
        let (_, next) = Fold::from_write(write, shard);
        let Ok(after) = next.content.apply_to(one_by_one.as_deref(), &path) else { return };
        one_by_one = after;
        match &mut folded {
            None => folded = Some(next),
            // Refused on its own: then the effect depends on where a fold begins, and the protocol says so.
            Some(fold) => {
                if fold.absorb(next, &path).is_err() {
                    return;
                }
            }
        }
    }
    let Some(folded) = folded else { return };
    assert!(folded.bytes() <= 4 * data.len() + 1024, "{} bytes of {}", folded.bytes(), data.len());
    if let Ok(at_once) = folded.content.apply_to(Some(stored), &path) {
        assert_eq!(at_once.as_deref().map(json), one_by_one.as_deref().map(json));
    }
}

/// An answer of Elasticsearch: how many items are expected, then the body.
pub fn answer(data: &[u8]) {
    let Some((expected, body)) = data.split_first() else { return };
    let expected = usize::from(*expected);
    if let Ok(items) = answers::bulk_answer(body, expected) {
        assert_eq!(items.len(), expected);
    }
    if let Ok(items) = answers::mget_answer(body, expected) {
        assert_eq!(items.len(), expected);
    }
    answers::error_body(body);
}

/// A map file.
pub fn map(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(map) = GeoshardMap::from_json(text) else { return };
    let again = GeoshardMap::from_json(&map.to_json()).expect("what was written can be read");
    assert_eq!(again.fingerprint(), map.fingerprint());
    for (lat, lon) in [(0.0, 0.0), (90.0, 0.0), (-90.0, 180.0), (48.8, 2.3), (-33.9, -180.0)] {
        let at = GeoPoint::new(lat, lon).expect("a point on Earth");
        assert!(map.shards().contains(map.locate(at)));
    }
}

/// A configuration file.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // What it names is not read: no device, no pipe.
    if text.contains("_file") {
        return;
    }
    match Config::from_toml(text, Path::new("/nonexistent"), &BTreeMap::new()) {
        Ok(config) => {
            config.findings();
            let shown = config.to_redacted_toml();
            assert!(shown.parse::<toml::Table>().is_ok(), "{shown}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A line for `geofold send`.
pub fn line(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let rules = LineRules { id_field: "id".to_owned(), op: None };
    if let Ok(Some(record)) = parse_line(text, 1, &rules) {
        assert!(!record.key.is_empty() && record.key.len() <= 512);
        if let Some(value) = record.value {
            serde_json::from_str::<BTreeMap<String, Box<RawValue>>>(value).expect("an object");
        }
    }
}

/// A change event: it is refused, or its row means what the same row means by itself.
pub fn event(data: &[u8]) {
    let path = LocationPath::new("location").expect("a plain path");
    let decoder =
        Decoder::new(path, Epoch::new(1).expect("a small number"), MAX_BYTES).in_envelope(Envelope::Debezium);
    let value = Some(Bytes::copy_from_slice(data));
    let record = RawRecord { partition: 0, offset: 1, key: Some(b"id"), value, op: None };
    let Ok(write) = decoder.decode(record, &mut Schemas::new()) else {
        return;
    };
    let Body::Index { doc, at } = write.body else { return };
    let Ok(Write { body: Body::Index { at: by_itself, .. }, .. }) = decode(None, &doc, 1) else {
        panic!("a row is a document by itself")
    };
    assert_eq!(at, by_itself);
}

/// The first schemas of a registry: what they are written in, and their text.
const SCHEMAS: [(Kind, &str); 2] = [
    (
        Kind::Avro,
        r#"{"type":"record","name":"R","fields":[
            {"name":"location","type":["null","string",{"type":"array","items":"double"}]},
            {"name":"m","type":{"type":"map","values":{"type":"array","items":["null","bytes","boolean"]}}},
            {"name":"d","type":{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}},
            {"name":"t","type":["null",{"type":"long","logicalType":"timestamp-micros"},{"type":"int","logicalType":"date"}]},
            {"name":"e","type":{"type":"enum","name":"E","symbols":["A","B"]}}]}"#,
    ),
    (
        Kind::Protobuf,
        r#"syntax = "proto3"; import "google/protobuf/struct.proto"; import "google/protobuf/timestamp.proto";
        message R {
            message Inner { repeated R more = 1; map<string, Inner> by_name = 2; }
            string location = 1; Inner inner = 2; google.protobuf.Value any = 3; google.protobuf.Timestamp at = 4;
            repeated sint64 packed = 5; oneof one { bytes raw = 6; float f = 7; }
        }"#,
    ),
];

/// These schemas, ready to read by.
static READY: LazyLock<Vec<Arc<Schema>>> = LazyLock::new(|| {
    let compile = |(id, (kind, text)): (u32, &(Kind, &str))| {
        let fetched = RegisteredSchema { kind: *kind, text: (*text).to_owned(), references: Vec::new() };
        Arc::new(Schema::compile(SchemaId(id), &fetched).expect("a schema"))
    };
    (0..).zip(&SCHEMAS).map(compile).collect()
});

/// A value in the wire format: it is refused, or its JSON is valid and within its bound.
pub fn framed(data: &[u8]) {
    let Ok((id, head)) = geofold::core::schemas::split(data) else { return };
    let Some(schema) = usize::try_from(id.0).ok().and_then(|id| READY.get(id)) else { return };
    if let Ok(json) = schema.json(&Bytes::copy_from_slice(data), head, MAX_BYTES) {
        assert!(json.len() <= MAX_BYTES);
        serde_json::from_slice::<serde::de::IgnoredAny>(&json).expect("JSON");
    }
}

/// The text of a schema, behind a byte that says what it is written in: it is refused, or something can be read by it.
pub fn schema(data: &[u8]) {
    let Some((kind, text)) = data.split_first() else { return };
    let kind = if kind % 2 == 0 { Kind::Avro } else { Kind::Protobuf };
    let fetched =
        RegisteredSchema { kind, text: String::from_utf8_lossy(text).into_owned(), references: Vec::new() };
    let Ok(schema) = Schema::compile(SchemaId(1), &fetched) else { return };
    let _ = schema.json(&Bytes::copy_from_slice(data), 0, MAX_BYTES);
}

/// A record of the placements index.
pub fn placement(data: &[u8]) {
    let Ok(placement) = Placement::from_json(data) else { return };
    let again = Placement::from_json(&placement.to_json()).expect("what was written can be read");
    assert_eq!(again, placement);
}

fn decode(op: Option<&[u8]>, value: &[u8], offset: i64) -> Result<Write, BadRecord> {
    let path = LocationPath::new("location").expect("a plain path");
    let epoch = Epoch::new(1).expect("a small number");
    let value = Some(Bytes::copy_from_slice(value));
    let record = RawRecord { partition: 0, offset, key: Some(b"id"), value, op };
    Decoder::new(path, epoch, MAX_BYTES).decode(record, &mut Schemas::new()).map_err(|why| match why {
        Undecoded::Bad(bad) => bad,
        Undecoded::Lacks(id) => panic!("JSON needs no schema, and not {id}"),
    })
}

fn shard(at: Leaf) -> ShardId {
    let middle = cell::middle(s2::cellid::CellID(at.id())).expect("a cell");
    ShardId::new(if middle.lat() < 0.0 { "south" } else { "north" }).expect("a plain name")
}

/// The location of a document of which no reader could doubt it: an object without a key twice, its location an object of
/// two numbers in range.
fn plain_location(document: &[u8]) -> Option<GeoPoint> {
    if document.len() > MAX_BYTES {
        return None;
    }
    let Some(Value::Object(value)) = json(document) else { return None };
    let Some(Value::Object(location)) = value.get("location") else { return None };
    let (lat, lon) = (location.get("lat")?, location.get("lon")?);
    if location.len() != 2 || !lat.is_number() || !lon.is_number() {
        return None;
    }
    GeoPoint::new(lat.as_f64()?, lon.as_f64()?).ok()
}

/// As a value; `None` if it is none, if a number is beyond `f64`, or if an object has a key twice: of those a parser that
/// keeps one may keep another than the code under test.
fn json(text: &[u8]) -> Option<Value> {
    serde_json::from_slice(text).ok().map(|Strict(value)| value)
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Self)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(Strict(item)) = items.next_element()? {
            array.push(item);
        }
        Ok(array.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((key, Strict(value))) = members.next_entry::<String, _>()? {
            if object.insert(key, value).is_some() {
                return Err(serde::de::Error::custom("a key twice"));
            }
        }
        Ok(object.into())
    }
}

/// RFC 7386, word by word.
fn merged(target: Option<Value>, patch: &Value) -> Value {
    let Value::Object(patch) = patch else { return patch.clone() };
    let mut object = match target {
        Some(Value::Object(object)) => object,
        _ => Map::new(),
    };
    for (key, value) in patch {
        if value.is_null() {
            object.remove(key);
        } else {
            let merged = merged(object.remove(key), value);
            object.insert(key.clone(), merged);
        }
    }
    Value::Object(object)
}
