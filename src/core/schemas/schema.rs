//! A schema and its conversion of payloads to JSON.

use std::io;

use bytes::Bytes;
use serde::Serialize;

use super::avro::Avro;
use super::protobuf::Protobuf;
use super::{SchemaId, UnreadablePayload};

/// Characters of a library's message that are passed on.
const SHOWN_CHARS: usize = 300;

/// The schema language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Avro, <https://avro.apache.org/docs/1.12.0/specification/>.
    Avro,
    /// JSON Schema.
    Json,
    /// Protobuf, versions 2 and 3.
    Protobuf,
}

/// A schema as registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisteredSchema {
    /// Its language.
    pub kind: Kind,
    /// Its text.
    pub text: String,
    /// Its direct and indirect references; a referenced schema precedes its users.
    pub references: Vec<Reference>,
}

/// A referenced schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The referenced name: a type in Avro, a file in Protobuf.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// A compiled schema.
#[derive(Debug)]
pub struct Schema {
    id: SchemaId,
    form: Form,
}

#[derive(Debug)]
enum Form {
    Avro(Avro),
    /// The payload is JSON already. It is not validated against the schema: that is the producer's task.
    Json,
    Protobuf(Protobuf),
}

/// Why a payload cannot be converted.
#[derive(Debug)]
pub(super) enum ConversionFailure {
    /// A mismatch.
    Payload(String),
    /// Larger than the limit.
    TooLarge,
}

impl Schema {
    /// Compiles a registered schema.
    ///
    /// # Errors
    /// [`UnreadablePayload::BadSchema`].
    pub fn compile(id: SchemaId, fetched: &RegisteredSchema) -> Result<Self, UnreadablePayload> {
        let form = match fetched.kind {
            Kind::Json => Ok(Form::Json),
            Kind::Avro => Avro::compile(fetched).map(Form::Avro),
            Kind::Protobuf => Protobuf::compile(fetched).map(Form::Protobuf),
        };
        match form {
            Ok(form) => Ok(Self { id, form }),
            Err(why) => Err(UnreadablePayload::BadSchema { id, why: shortened(&why).into() }),
        }
    }

    /// The JSON of the payload behind the first `head` bytes of `framed`, at most `max_bytes`. No copy if it is JSON
    /// already.
    ///
    /// # Errors
    /// [`UnreadablePayload::Payload`] and [`UnreadablePayload::TooLarge`].
    pub fn json(&self, framed: &Bytes, head: usize, max_bytes: usize) -> Result<Bytes, UnreadablePayload> {
        let payload = framed.get(head..).unwrap_or_default();
        let read = match &self.form {
            Form::Json => Ok(framed.slice(framed.len() - payload.len()..)),
            Form::Avro(avro) => avro.json(payload, max_bytes),
            Form::Protobuf(protobuf) => protobuf.json(payload, max_bytes),
        };
        match read {
            Ok(json) if json.len() > max_bytes => Err(UnreadablePayload::TooLarge(max_bytes)),
            Ok(json) => Ok(json),
            Err(ConversionFailure::TooLarge) => Err(UnreadablePayload::TooLarge(max_bytes)),
            Err(ConversionFailure::Payload(why)) => {
                Err(UnreadablePayload::Payload { id: self.id, why: shortened(&why) })
            }
        }
    }
}

/// `value` as JSON of at most `max_bytes`: a short payload may be a long JSON, since names are in the schema.
pub(super) fn written(value: &impl Serialize, max_bytes: usize) -> Result<Bytes, ConversionFailure> {
    let mut out = Bounded { bytes: Vec::new(), max_bytes, is_full: false };
    match serde_json::to_writer(&mut out, value) {
        Ok(()) => Ok(out.bytes.into()),
        Err(_) if out.is_full => Err(ConversionFailure::TooLarge),
        Err(error) => Err(ConversionFailure::Payload(error.to_string())),
    }
}

struct Bounded {
    bytes: Vec<u8>,
    max_bytes: usize,
    is_full: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        if self.bytes.len().saturating_add(more.len()) > self.max_bytes {
            self.is_full = true;
            return Err(io::Error::other("no room"));
        }
        self.bytes.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// On one line, truncated.
fn shortened(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(SHOWN_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_passes_without_copy_or_parsing() {
        let fetched = RegisteredSchema { kind: Kind::Json, text: "{}".into(), references: Vec::new() };
        let schema = Schema::compile(SchemaId(1), &fetched).unwrap();
        let framed = Bytes::from_static(b"\0\0\0\0\x01{ \"n\": 1.10 }");
        let json = schema.json(&framed, 5, 14).unwrap();
        assert_eq!((&*json, json.as_ptr()), (&b"{ \"n\": 1.10 }"[..], framed[5..].as_ptr()));
        assert_eq!(schema.json(&framed, 5, 12), Err(UnreadablePayload::TooLarge(12)));
        assert_eq!(schema.json(&framed.slice(..5), 5, 12).unwrap(), Bytes::new());
    }

    #[test]
    fn json_is_written_up_to_its_limit() {
        let long = vec!["x"; 1000];
        assert_eq!(written(&long, 4001).unwrap().len(), 4001);
        assert!(matches!(written(&long, 4000), Err(ConversionFailure::TooLarge)));
    }
}
