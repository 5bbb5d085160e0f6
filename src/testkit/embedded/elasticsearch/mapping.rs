//! What a mapping asks of a document: JSON without a key twice, fields of the right type, and new fields that are mapped by
//! what they look like. The mapping stays the JSON that it was created from, since that is how it is asked for.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json};

use super::error::EsError;
use super::geo::{self, StoredPoint};

/// New fields beyond this many are refused (`index.mapping.total_fields.limit`).
const MAX_FIELDS: usize = 1_000;

/// Names that a document's own fields may not have.
const METADATA: [&str; 7] = ["_id", "_index", "_source", "_routing", "_seq_no", "_version", "_field_names"];

/// Result of checking a document.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// Its points, with the paths of their fields.
    pub(super) points: Vec<(String, StoredPoint)>,
    /// Fields that the mapping does not have yet: path and definition.
    new_fields: Vec<(String, Value)>,
}

/// A document as JSON; a key twice, or anything but an object, is refused.
pub(super) fn parse(source: &[u8]) -> Result<Value, EsError> {
    let refused = |reason: String| EsError::new(400, "document_parsing_exception", reason);
    match serde_json::from_slice::<Strict>(source) {
        Ok(Strict(document @ Value::Object(_))) => Ok(document),
        Ok(_) => Err(refused("Malformed content, must start with an object".to_owned())),
        Err(error) => {
            let at = format!("[{}:{}]", error.line(), error.column());
            Err(refused(format!("{at} failed to parse: {error}"))
                .caused_by("json_parse_exception", error.to_string()))
        }
    }
}

/// Checks a document against the mapping.
pub(super) fn check(mapping: &Map<String, Value>, document: &Value) -> Result<Checked, EsError> {
    let mut checked = Checked::default();
    if let Value::Object(members) = document
        && !is_disabled(mapping)
    {
        let walk = Walk { checked: &mut checked };
        walk.object(members, Some(mapping), "", dynamic(mapping, Dynamic::Yes))?;
    }
    Ok(checked)
}

/// Adds the fields that a document brought.
pub(super) fn add_new_fields(mapping: &mut Map<String, Value>, checked: &mut Checked) -> Result<(), EsError> {
    let new = std::mem::take(&mut checked.new_fields);
    if new.is_empty() {
        return Ok(());
    }
    if count_fields(mapping) + new.len() > MAX_FIELDS {
        let reason = format!(
            "Limit of total fields [{MAX_FIELDS}] has been exceeded while adding new fields [{}]",
            new.len()
        );
        return Err(EsError::new(400, "document_parsing_exception", reason.clone())
            .caused_by("illegal_argument_exception", reason));
    }
    for (path, definition) in new {
        let nested = path.rsplit('.').fold(definition, |inner, name| json!({"properties": {name: inner}}));
        if let Value::Object(nested) = nested {
            merge(mapping, &nested, "")?;
        }
    }
    Ok(())
}

/// Adds fields to a mapping; a field's type cannot be changed.
pub(super) fn merge(
    mapping: &mut Map<String, Value>,
    more: &Map<String, Value>,
    path: &str,
) -> Result<(), EsError> {
    for (key, value) in more {
        let Value::Object(fields) = value else {
            mapping.insert(key.clone(), value.clone());
            continue;
        };
        if key != "properties" {
            mapping.insert(key.clone(), value.clone());
            continue;
        }
        let Value::Object(existing) = mapping.entry("properties").or_insert_with(|| json!({})) else {
            continue;
        };
        for (name, definition) in fields {
            let path = joined(path, name);
            match (existing.get_mut(name), definition) {
                (Some(Value::Object(old)), Value::Object(new)) => {
                    let (from, to) = (kind(old), kind(new));
                    if from != to {
                        let reason =
                            format!("mapper [{path}] cannot be changed from type [{from}] to [{to}]");
                        return Err(EsError::illegal_argument(reason));
                    }
                    merge(old, new, &path)?;
                }
                _ => drop(existing.insert(name.clone(), definition.clone())),
            }
        }
    }
    Ok(())
}

/// The definition of the field at a dotted path.
pub(super) fn field<'m>(mapping: &'m Map<String, Value>, path: &str) -> Option<&'m Map<String, Value>> {
    let Some(Value::Object(fields)) = mapping.get("properties") else { return None };
    if let Some(Value::Object(found)) = fields.get(path) {
        return Some(found);
    }
    let (first, rest) = path.split_once('.')?;
    match fields.get(first) {
        Some(Value::Object(inner)) => field(inner, rest),
        _ => None,
    }
}

/// A field's type; `object` if unset.
pub(super) fn kind(definition: &Map<String, Value>) -> &str {
    definition.get("type").and_then(Value::as_str).unwrap_or("object")
}

fn count_fields(mapping: &Map<String, Value>) -> usize {
    let Some(Value::Object(fields)) = mapping.get("properties") else { return 0 };
    fields.values().filter_map(Value::as_object).map(|field| 1 + count_fields(field)).sum()
}

fn is_disabled(mapping: &Map<String, Value>) -> bool {
    mapping.get("enabled").is_some_and(|enabled| enabled == false || enabled == "false")
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Dynamic {
    Yes,
    No,
    Strict,
}

fn dynamic(mapping: &Map<String, Value>, inherited: Dynamic) -> Dynamic {
    match mapping.get("dynamic") {
        Some(Value::Bool(false)) => Dynamic::No,
        Some(Value::String(text)) if text == "false" || text == "runtime" => Dynamic::No,
        Some(Value::String(text)) if text == "strict" => Dynamic::Strict,
        Some(_) => Dynamic::Yes,
        None => inherited,
    }
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// One document on its way through the mapping.
struct Walk<'c> {
    checked: &'c mut Checked,
}

impl Walk<'_> {
    /// `mapping` is the object's definition, `None` if it is new.
    fn object(
        self,
        members: &Map<String, Value>,
        mapping: Option<&Map<String, Value>>,
        path: &str,
        dynamic_here: Dynamic,
    ) -> Result<(), EsError> {
        for (name, value) in members {
            if name.is_empty() || name.split('.').any(|part| part.trim().is_empty()) {
                let reason =
                    format!("field name cannot be an empty string or contain only whitespace: ['{name}']");
                return Err(EsError::new(400, "document_parsing_exception", reason));
            }
            if path.is_empty() && METADATA.contains(&name.as_str()) {
                return Err(not_of_type(name, name).caused_by(
                    "document_parsing_exception",
                    format!("Field [{name}] is a metadata field and cannot be added inside a document."),
                ));
            }
            let path = joined(path, name);
            let walk = Walk { checked: &mut *self.checked };
            match mapping.and_then(|mapping| field(mapping, name)) {
                Some(definition) => walk.known(value, definition, &path, dynamic_here)?,
                None => walk.unknown(value, &path, dynamic_here)?,
            }
        }
        Ok(())
    }

    fn known(
        self,
        value: &Value,
        definition: &Map<String, Value>,
        path: &str,
        inherited: Dynamic,
    ) -> Result<(), EsError> {
        let kind = kind(definition);
        if is_disabled(definition) || value.is_null() {
            return Ok(());
        }
        if kind == "geo_point" {
            return self.geo_point(value, definition, path);
        }
        if let Value::Array(items) = value {
            return items.iter().try_for_each(|item| {
                Walk { checked: &mut *self.checked }.known(item, definition, path, inherited)
            });
        }
        if matches!(kind, "object" | "nested") {
            let Value::Object(members) = value else {
                let reason = format!(
                    "object mapping for [{path}] tried to parse field [{path}] as object, but found a concrete value"
                );
                return Err(EsError::new(400, "document_parsing_exception", reason));
            };
            return self.object(members, Some(definition), path, dynamic(definition, inherited));
        }
        if fits(kind, value) || definition.get("ignore_malformed") == Some(&Value::Bool(true)) {
            return Ok(());
        }
        Err(not_of_type(path, kind)
            .caused_by("illegal_argument_exception", format!("can not be read: {value}")))
    }

    fn geo_point(self, value: &Value, definition: &Map<String, Value>, path: &str) -> Result<(), EsError> {
        match geo::points(value) {
            Ok(points) => {
                self.checked.points.extend(points.into_iter().map(|point| (path.to_owned(), point)))
            }
            Err(_) if definition.get("ignore_malformed") == Some(&Value::Bool(true)) => {}
            Err((kind, reason)) => return Err(not_of_type(path, "geo_point").caused_by(kind, reason)),
        }
        Ok(())
    }

    fn unknown(self, value: &Value, path: &str, dynamic: Dynamic) -> Result<(), EsError> {
        match dynamic {
            Dynamic::No => return Ok(()),
            Dynamic::Strict => {
                let reason = format!(
                    "mapping set to strict, dynamic introduction of [{path}] within [_doc] is not allowed"
                );
                return Err(EsError::new(400, "strict_dynamic_mapping_exception", reason));
            }
            Dynamic::Yes => {}
        }
        match value {
            Value::Object(members) => self.object(members, None, path, dynamic),
            Value::Array(items) => items
                .iter()
                .try_for_each(|item| Walk { checked: &mut *self.checked }.unknown(item, path, dynamic)),
            scalar => {
                // The first value of a list decides.
                let is_new = self.checked.new_fields.iter().all(|(other, _)| other != path);
                if is_new && let Some(definition) = guessed(scalar) {
                    self.checked.new_fields.push((path.to_owned(), definition));
                }
                Ok(())
            }
        }
    }
}

fn not_of_type(path: &str, kind: &str) -> EsError {
    let reason = format!("failed to parse field [{path}] of type [{kind}]");
    EsError::new(400, "document_parsing_exception", reason)
}

/// Whether a single value is acceptable for a field of a type.
fn fits(kind: &str, value: &Value) -> bool {
    match (kind, value) {
        ("byte" | "short" | "integer" | "long", Value::Number(number)) => {
            number.is_i64() || number.as_f64().is_some_and(|number| number.abs() < 9.223_372_036_854_775e18)
        }
        ("byte" | "short" | "integer" | "long" | "float" | "double" | "half_float", Value::String(text)) => {
            text.trim().parse::<f64>().is_ok_and(f64::is_finite)
        }
        ("float" | "double" | "half_float", Value::Number(_)) => true,
        ("boolean", Value::Bool(_)) => true,
        ("boolean", Value::String(text)) => matches!(text.as_str(), "true" | "false" | ""),
        ("date", Value::Number(_)) => true,
        ("date", Value::String(text)) => looks_like_a_date(text) || text.parse::<i64>().is_ok(),
        (
            "byte" | "short" | "integer" | "long" | "float" | "double" | "half_float" | "boolean" | "date",
            _,
        ) => false,
        ("keyword" | "text", value) => !value.is_object(),
        // Types that the stand-in does not know are taken as they come.
        _ => true,
    }
}

/// How Elasticsearch maps a new field by its first value.
fn guessed(value: &Value) -> Option<Value> {
    Some(match value {
        Value::Bool(_) => json!({"type": "boolean"}),
        Value::Number(number) if number.is_f64() => json!({"type": "float"}),
        Value::Number(_) => json!({"type": "long"}),
        Value::String(text) if looks_like_a_date(text) => json!({"type": "date"}),
        Value::String(_) => {
            json!({"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}})
        }
        _ => return None,
    })
}

/// `2026-11-21`, alone or with a time after it.
fn looks_like_a_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    let digits = |range: std::ops::Range<usize>| bytes[range].iter().all(u8::is_ascii_digit);
    bytes.len() >= 10
        && digits(0..4)
        && digits(5..7)
        && digits(8..10)
        && matches!((bytes[4], bytes[7]), (b'-', b'-'))
        && bytes.get(10).is_none_or(|&byte| byte == b'T')
}

/// JSON in which no object has a key twice.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Strict)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
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
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((key, Strict(value))) = members.next_entry::<String, _>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!("Duplicate field '{key}'")));
            }
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}
