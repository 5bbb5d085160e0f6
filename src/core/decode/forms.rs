//! Converts keys and values in other formats to an id and to JSON before they are decoded.

use std::collections::HashMap;

use bytes::Bytes;
use serde_json::value::RawValue;
use thiserror::Error;

use super::{BadRecord, KeyForm, Undecoded};
use crate::base::ids::{BadDocId, DocId};
use crate::core::schemas::{Lacking, Schemas, UnreadablePayload, split};

/// Maximum bytes of a key's JSON; an id has at most 512, and may be one field of several.
const MAX_KEY_BYTES: usize = 64 << 10;

/// Why a key yields no id in the configured form.
#[derive(Debug, Error)]
pub enum BadRecordKey {
    /// Neither JSON nor a value of its schema.
    #[error("the key cannot be read: {0}")]
    Unreadable(#[from] UnreadablePayload),
    /// With `json:FIELD`: larger than any key needs.
    #[error("the key has {0} bytes, and {MAX_KEY_BYTES} are allowed")]
    TooLarge(usize),
    /// Not a JSON object.
    #[error("the key is not a JSON object: {0}")]
    NotAnObject(serde_json::Error),
    /// The object lacks the field.
    #[error("the key has no field \"{0}\"; see kafka.key")]
    NoField(String),
    /// The id is an object, an array, a fraction, true, false or null.
    #[error("the key{0} is neither a string nor a whole number; a record needs kafka.key with a field")]
    NoId(String),
    /// Not a valid document id.
    #[error(transparent)]
    Id(#[from] BadDocId),
}

impl BadRecordKey {
    /// Machine-readable reason code.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unreadable(
                why @ (UnreadablePayload::UnknownSchema(_) | UnreadablePayload::BadSchema { .. }),
            ) => why.reason(),
            _ => "bad_key",
        }
    }
}

/// The id that `key` holds in this form.
pub(super) fn id_of_key(
    form: &KeyForm,
    key: Option<&[u8]>,
    schemas: &mut Schemas,
) -> Result<DocId, Undecoded> {
    let bad = |why: BadRecordKey| Undecoded::Bad(BadRecord::FormOfKey(why));
    let key = key.filter(|key| !key.is_empty());
    let id = match (form, key) {
        (KeyForm::Text, _) | (_, None) => {
            return DocId::from_key(key).map_err(|why| BadRecord::from(why).into());
        }
        (KeyForm::Json(_), Some(key)) if key.len() > MAX_KEY_BYTES => {
            return Err(bad(BadRecordKey::TooLarge(key.len())));
        }
        (KeyForm::Json(field), Some(key)) => text_of(key, Some(field)),
        (KeyForm::Registry(field), Some(key)) => {
            let json = json_of(&Bytes::copy_from_slice(key), MAX_KEY_BYTES, schemas);
            match json {
                Ok(json) => text_of(&json, field.as_deref()),
                Err(Lacking::Refused(why)) => Err(why.into()),
                Err(Lacking::NotAsked(id)) => return Err(Undecoded::Lacks(id)),
            }
        }
    };
    id.and_then(|id| Ok(DocId::from_key(Some(id.as_bytes()))?)).map_err(bad)
}

/// The JSON of a value in the wire format.
pub(super) fn json_of(value: &Bytes, max_bytes: usize, schemas: &mut Schemas) -> Result<Bytes, Lacking> {
    let (id, head) = split(value).map_err(Lacking::Refused)?;
    schemas.find(id)?.json(value, head, max_bytes).map_err(Lacking::Refused)
}

/// The text of a JSON value, or of a field of it; or of its `payload`, if a schema encloses it, as Kafka Connect writes
/// with `schemas.enable`.
fn text_of(json: &[u8], field: Option<&str>) -> Result<String, BadRecordKey> {
    let value: &RawValue = serde_json::from_slice(json).map_err(BadRecordKey::NotAnObject)?;
    let Some(field) = field else { return scalar(value).ok_or_else(|| BadRecordKey::NoId(String::new())) };
    let members = |value: &RawValue| -> Result<HashMap<String, Box<RawValue>>, BadRecordKey> {
        serde_json::from_str(value.get()).map_err(BadRecordKey::NotAnObject)
    };
    let mut object = members(value)?;
    if !object.contains_key(field)
        && object.contains_key("schema")
        && let Some(payload) = object.get("payload")
    {
        object = members(payload)?;
    }
    let value = object.get(field).ok_or_else(|| BadRecordKey::NoField(field.to_owned()))?;
    scalar(value).ok_or_else(|| BadRecordKey::NoId(format!("'s field \"{field}\"")))
}

/// A string, or the digits of a whole number.
fn scalar(value: &RawValue) -> Option<String> {
    let text = value.get();
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(text.to_owned());
    }
    serde_json::from_str(text).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::core::schemas::{Kind, RegisteredSchema, Schema, SchemaId};

    fn id(form: &str, key: &[u8], schemas: &mut Schemas) -> Result<String, String> {
        match id_of_key(&form.parse().unwrap(), Some(key), schemas) {
            Ok(id) => Ok(id.as_str().to_owned()),
            Err(Undecoded::Bad(bad)) => Err(format!("{}: {bad}", bad.reason())),
            Err(Undecoded::Lacks(id)) => Err(format!("lacks {id}")),
        }
    }

    #[test]
    fn id_is_a_field_of_a_json_key() {
        let mut none = Schemas::new();
        for (key, expected) in [
            (r#"{"id":7}"#, "7"),
            (r#"{"other":{},"id":"a\u0041"}"#, "aA"),
            (r#" {"id" : -18446744073709551616 } "#, "-18446744073709551616"),
            (r#"{"schema":{"type":"struct"},"payload":{"id":7}}"#, "7"),
            (r#"{"schema":1,"payload":{"id":7},"id":8}"#, "8"),
        ] {
            assert_eq!(id("json:id", key.as_bytes(), &mut none), Ok(expected.to_owned()), "{key}");
        }
        for (key, words) in [
            ("7", "not a JSON object"),
            ("{", "not a JSON object"),
            ("{\"id\":7} {}", "not a JSON object"),
            ("{}", "no field \"id\""),
            (r#"{"payload":{"id":7}}"#, "no field"),
            (r#"{"id":7.0}"#, "whole number"),
            (r#"{"id":null}"#, "whole number"),
            (r#"{"id":{"id":7}}"#, "whole number"),
            (r#"{"id":""}"#, "no key"),
        ] {
            let error = id("json:id", key.as_bytes(), &mut none).unwrap_err();
            assert!(error.starts_with("bad_key: ") && error.contains(words), "{key}: {error}");
        }
        let long = format!(r#"{{"id":7,"x":"{}"}}"#, "x".repeat(MAX_KEY_BYTES));
        assert!(id("json:id", long.as_bytes(), &mut none).unwrap_err().contains("allowed"));
    }

    #[test]
    fn id_is_an_avro_primitive_or_a_field_of_a_record() {
        let mut schemas = Schemas::new();
        let texts = [
            r#""string""#,
            r#""long""#,
            r#"{"type":"record","name":"Key","fields":[{"name":"id","type":"int"}]}"#,
        ];
        for (number, text) in (1..).zip(texts) {
            let id = SchemaId(number);
            let fetched =
                RegisteredSchema { kind: Kind::Avro, text: text.to_owned(), references: Vec::new() };
            schemas.learn(id, Ok(Arc::new(Schema::compile(id, &fetched).unwrap())));
        }
        assert_eq!(id("registry", b"\0\0\0\0\x01\x06abc", &mut schemas), Ok("abc".to_owned()));
        assert_eq!(id("registry", b"\0\0\0\0\x02\x0d", &mut schemas), Ok("-7".to_owned()));
        assert_eq!(id("registry:id", b"\0\0\0\0\x03\x0e", &mut schemas), Ok("7".to_owned()));
        assert_eq!(id("registry:id", b"\0\0\0\0\x04\x0e", &mut schemas), Err("lacks 4".to_owned()));
        for (form, key, words) in [
            ("registry", &b"abc"[..], "bad_key: the key cannot be read: it is not in the wire format"),
            ("registry", b"\0\0\0\0\x03\x0e", "kafka.key with a field"),
            ("registry:no", b"\0\0\0\0\x03\x0e", "no field \"no\""),
            ("registry", b"\0\0\0\0\x01\x06ab", "ends too early"),
            ("registry", b"", "no key"),
        ] {
            let error = id(form, key, &mut schemas).unwrap_err();
            assert!(error.starts_with("bad_key: ") && error.contains(words), "{error}");
        }
        let as_long_as_allowed = [&b"\0\0\0\0\x01\x80\x80\x08"[..], &[b'x'; MAX_KEY_BYTES]].concat();
        let error = id("registry", &as_long_as_allowed, &mut schemas).unwrap_err();
        assert!(error.contains("65536 bytes that are allowed"), "two quotes too many: {error}");
        schemas.learn(SchemaId(4), Err(UnreadablePayload::UnknownSchema(SchemaId(4))));
        let error = id("registry:id", b"\0\0\0\0\x04\x0e", &mut schemas).unwrap_err();
        assert!(error.starts_with("unknown_schema: "), "{error}");
    }
}
