//! Avro: decodes a datum by its writer's schema into JSON.
//!
//! | Avro | JSON |
//! |---|---|
//! | `record`, `map`, `array` | object, object (members by name), array |
//! | a union | the value by itself, without its type's name |
//! | `enum`, `string`, `uuid` | string |
//! | `int`, `long`, `float`, `double`, `boolean`, `null` | as they are; a number that is not finite is `null` |
//! | `decimal`, `big-decimal` | a number with all its digits |
//! | `bytes`, `fixed` | base64 |
//! | `date`, `time-…`, `timestamp-…`, `local-timestamp-…` | RFC 3339: `2026-11-21`, `08:00:00.5`, with a `Z`, without |
//! | `duration` | ISO 8601: `P1M2DT3.004S` |
//!
//! The library allocates what lengths in a datum claim, follows recursive types as deep as a datum says, and reads
//! missing bytes at the end as null. So a schema is refused if a short datum could take much memory or stack, and a
//! datum is refused if it is too short or too long.

use std::io::{self, Read};

use apache_avro::reader::datum::GenericDatumReader;
use apache_avro::schema::{
    ArraySchema, DecimalSchema, InnerDecimalSchema, MapSchema, NamesRef, NamespaceRef, RecordSchema,
    ResolvedSchema, UnionSchema, UuidSchema,
};
use apache_avro::types::Value;
use apache_avro::{BigDecimal, Schema};
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use prost_reflect::prost_types::Timestamp;
use serde::ser::{Error as _, SerializeMap};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::schema::{ConversionFailure, RegisteredSchema, written};

/// Limit on one length in a datum; several times the largest document.
const MAX_CLAIM: usize = 256 << 20;

/// Limit on types per schema, counted once per reference.
const MAX_TYPES: usize = 10_000;

/// Nesting limit of types.
const MAX_DEPTH: usize = 64;

/// Limit on types without bytes per schema: the amplification per byte of a datum.
const MAX_EMPTY_TYPES: usize = 16;

/// Maximum bytes of a `fixed`.
const MAX_FIXED: usize = 1 << 20;

/// Maximum decimal places, and about a quarter of a decimal's maximum digits.
const MAX_SCALE: i64 = 1_000;

/// Maximum bits of a decimal's digits.
const MAX_DECIMAL_BITS: u64 = 16_384;

const DAY: i64 = 86_400;

/// A schema without references.
#[derive(Debug)]
pub(super) struct Avro(Schema);

impl Avro {
    pub(super) fn compile(fetched: &RegisteredSchema) -> Result<Self, String> {
        apache_avro::util::max_allocation_bytes(MAX_CLAIM);
        let references = fetched.references.iter().map(|reference| &reference.text);
        let (schema, references) =
            Schema::parse_str_with_list(&fetched.text, references).map_err(|error| error.to_string())?;
        let all = references.iter().chain([&schema]).collect();
        let resolved = ResolvedSchema::new_with_schemata(all).map_err(|error| error.to_string())?;
        let mut flat = Flat { names: resolved.get_names(), types: 0, empty: 0, within: Vec::new() };
        flat.without_references(&schema, None, 0).map(Self)
    }

    pub(super) fn json(&self, payload: &[u8], max_bytes: usize) -> Result<Bytes, ConversionFailure> {
        let failed = |error: apache_avro::Error| ConversionFailure::Payload(error.to_string());
        // Nothing needs resolving; by default the library would walk the schema for each record.
        let nothing = ResolvedSchema::new_with_schemata(Vec::new()).map_err(failed)?;
        let reader =
            GenericDatumReader::builder(&self.0).resolved_writer_schemata(nothing).build().map_err(failed)?;
        let mut rest = Rest { bytes: payload, ran_out: false };
        let value = reader.read_value(&mut rest);
        if rest.ran_out {
            return Err(ConversionFailure::Payload("it ends too early".to_owned()));
        }
        let value = value.map_err(failed)?;
        if !rest.bytes.is_empty() {
            return Err(ConversionFailure::Payload(format!(
                "{} bytes are left over at its end",
                rest.bytes.len()
            )));
        }
        written(&Json { value: &value, schema: &self.0 }, max_bytes)
    }
}

/// The rest of a datum, and whether a read exceeded it.
struct Rest<'a> {
    bytes: &'a [u8],
    ran_out: bool,
}

impl Read for Rest<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.ran_out |= self.bytes.len() < into.len();
        self.bytes.read(into)
    }
}

/// Inlines references into a schema.
struct Flat<'a> {
    names: &'a NamesRef<'a>,
    types: usize,
    empty: usize,
    /// The enclosing records.
    within: Vec<String>,
}

impl Flat<'_> {
    fn without_references(
        &mut self,
        schema: &Schema,
        namespace: NamespaceRef<'_>,
        depth: usize,
    ) -> Result<Schema, String> {
        self.types += 1;
        if self.types > MAX_TYPES || depth > MAX_DEPTH {
            return Err(format!(
                "it has more than {MAX_TYPES} types, or types within types deeper than {MAX_DEPTH}"
            ));
        }
        let flat = match schema {
            Schema::Ref { name } => {
                let name = name.fully_qualified_name(namespace);
                let full = name.fullname(None);
                if self.within.contains(&full) {
                    return Err(format!("the type {full} contains itself, which is not read"));
                }
                let named =
                    self.names.get(&name).copied().ok_or_else(|| format!("there is no type {full}"))?;
                return self.without_references(named, name.namespace(), depth + 1);
            }
            Schema::Record(record) => {
                let name = record.name.fully_qualified_name(namespace).into_owned();
                self.within.push(name.fullname(None));
                let mut record: RecordSchema = record.clone();
                for field in &mut record.fields {
                    field.schema = self.without_references(&field.schema, name.namespace(), depth + 1)?;
                }
                self.within.pop();
                Schema::Record(record)
            }
            Schema::Array(array) => {
                let items = self.without_references(&array.items, namespace, depth + 1)?;
                if is_empty(&items) {
                    return Err("it has an array of items that take no bytes, which is not read".to_owned());
                }
                Schema::Array(ArraySchema { items: Box::new(items), attributes: array.attributes.clone() })
            }
            Schema::Map(map) => {
                let types = Box::new(self.without_references(&map.types, namespace, depth + 1)?);
                Schema::Map(MapSchema { types, attributes: map.attributes.clone() })
            }
            Schema::Union(union) => {
                let empty = self.empty;
                let mut variants = Vec::with_capacity(union.variants().len());
                for variant in union.variants() {
                    variants.push(self.without_references(variant, namespace, depth + 1)?);
                }
                // The null of an optional field takes the byte of its branch.
                self.empty = empty;
                Schema::Union(UnionSchema::new(variants).map_err(|error| error.to_string())?)
            }
            other => other.clone(),
        };
        check_sizes(&flat)?;
        self.empty += usize::from(is_empty(&flat));
        if self.empty > MAX_EMPTY_TYPES {
            return Err(format!("it has more than {MAX_EMPTY_TYPES} types that take no bytes"));
        }
        Ok(flat)
    }
}

fn check_sizes(schema: &Schema) -> Result<(), String> {
    let fixed = match schema {
        Schema::Fixed(fixed) | Schema::Duration(fixed) | Schema::Uuid(UuidSchema::Fixed(fixed)) => {
            Some(fixed)
        }
        Schema::Decimal(DecimalSchema { scale, inner, .. }) => {
            if i64::try_from(*scale).map_or(true, |scale| scale > MAX_SCALE) {
                return Err(format!("it has a decimal with more than {MAX_SCALE} digits behind its point"));
            }
            match inner {
                InnerDecimalSchema::Fixed(fixed) => Some(fixed),
                InnerDecimalSchema::Bytes => None,
            }
        }
        _ => None,
    };
    match fixed {
        Some(fixed) if fixed.size > MAX_FIXED => {
            Err(format!("it has a fixed of more than {MAX_FIXED} bytes"))
        }
        _ => Ok(()),
    }
}

/// Whether a datum of this type has no bytes.
fn is_empty(schema: &Schema) -> bool {
    match schema {
        Schema::Null => true,
        Schema::Fixed(fixed) => fixed.size == 0,
        Schema::Record(record) => record.fields.iter().all(|field| is_empty(&field.schema)),
        _ => false,
    }
}

/// A value and its type.
struct Json<'a> {
    value: &'a Value,
    schema: &'a Schema,
}

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self { value, schema } = self;
        match (value, schema) {
            (Value::Null, _) => to.serialize_unit(),
            (Value::Boolean(value), _) => to.serialize_bool(*value),
            (Value::Int(value), _) => to.serialize_i32(*value),
            (Value::Long(value), _) => to.serialize_i64(*value),
            (Value::Float(value), _) => to.serialize_f32(*value),
            (Value::Double(value), _) => to.serialize_f64(*value),
            (Value::Bytes(bytes) | Value::Fixed(_, bytes), _) => {
                to.collect_str(&Base64Display::new(bytes, &STANDARD))
            }
            (Value::String(text) | Value::Enum(_, text), _) => to.serialize_str(text),
            (Value::Uuid(uuid), _) => to.collect_str(uuid),
            (Value::Decimal(decimal), Schema::Decimal(DecimalSchema { scale, .. })) => {
                let scale = i64::try_from(*scale).map_err(S::Error::custom)?;
                number(&BigDecimal::new(decimal.clone().into(), scale), to)
            }
            (Value::BigDecimal(decimal), _) => number(decimal, to),
            (Value::Record(fields), Schema::Record(record)) => {
                let mut map = to.serialize_map(Some(fields.len()))?;
                for ((name, value), field) in fields.iter().zip(&record.fields) {
                    map.serialize_entry(name, &Json { value, schema: &field.schema })?;
                }
                map.end()
            }
            (Value::Array(items), Schema::Array(array)) => {
                to.collect_seq(items.iter().map(|value| Json { value, schema: &array.items }))
            }
            (Value::Map(members), Schema::Map(map)) => {
                // Sorted, so that each read of the record gives the same JSON.
                let mut members: Vec<_> = members.iter().collect();
                members.sort_unstable_by_key(|(name, _)| *name);
                to.collect_map(
                    members.into_iter().map(|(name, value)| (name, Json { value, schema: &map.types })),
                )
            }
            (Value::Union(place, value), Schema::Union(union)) => {
                let schema = usize::try_from(*place).ok().and_then(|place| union.variants().get(place));
                let schema = schema.ok_or_else(|| S::Error::custom("a union has no such type"))?;
                Json { value, schema }.serialize(to)
            }
            (time, _) => match text_of_time(time) {
                Some(text) => to.serialize_str(&text),
                None => Err(S::Error::custom("a value cannot be written as JSON, or is out of its range")),
            },
        }
    }
}

/// All digits, without an exponent.
fn number<S: Serializer>(decimal: &BigDecimal, to: S) -> Result<S::Ok, S::Error> {
    let (digits, scale) = decimal.as_bigint_and_exponent();
    if digits.bits() > MAX_DECIMAL_BITS || !(-MAX_SCALE..=MAX_SCALE).contains(&scale) {
        return Err(S::Error::custom("a decimal has too many digits"));
    }
    RawValue::from_string(decimal.to_plain_string()).map_err(S::Error::custom)?.serialize(to)
}

/// `None` if it is not a time, or out of range.
fn text_of_time(value: &Value) -> Option<String> {
    const UTC: &str = "Z";
    let instant = |ticks: i64, per_second: i64| {
        let nanos = ticks.rem_euclid(per_second) * (1_000_000_000 / per_second);
        let at = Timestamp { seconds: ticks.div_euclid(per_second), nanos: i32::try_from(nanos).ok()? };
        Some(at.to_string())
    };
    let local =
        |ticks, per_second| instant(ticks, per_second).map(|text| text.trim_end_matches(UTC).to_owned());
    let of_day = |ticks: i64, per_second: i64| {
        let text = local(ticks, per_second).filter(|_| (0..DAY * per_second).contains(&ticks))?;
        Some(text.split_once('T')?.1.to_owned())
    };
    match *value {
        Value::Date(days) => Some(local(i64::from(days) * DAY, 1)?.split_once('T')?.0.to_owned()),
        Value::TimeMillis(ticks) => of_day(i64::from(ticks), 1_000),
        Value::TimeMicros(ticks) => of_day(ticks, 1_000_000),
        Value::TimestampMillis(ticks) => instant(ticks, 1_000),
        Value::TimestampMicros(ticks) => instant(ticks, 1_000_000),
        Value::TimestampNanos(ticks) => instant(ticks, 1_000_000_000),
        Value::LocalTimestampMillis(ticks) => local(ticks, 1_000),
        Value::LocalTimestampMicros(ticks) => local(ticks, 1_000_000),
        Value::LocalTimestampNanos(ticks) => local(ticks, 1_000_000_000),
        Value::Duration(duration) => {
            let (months, days) = (u32::from(duration.months()), u32::from(duration.days()));
            let millis = u32::from(duration.millis());
            Some(format!("P{months}M{days}DT{}.{:03}S", millis / 1_000, millis % 1_000))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
