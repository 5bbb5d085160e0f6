//! Protobuf: decodes a message by its file's text into JSON in the canonical mapping, with the field names of the file,
//! 64-bit numbers as numbers, and default values included.
//!
//! <https://protobuf.dev/programming-guides/json/>

use std::collections::HashMap;

use bytes::Bytes;
use prost_reflect::prost::encoding::decode_varint;
use prost_reflect::{DynamicMessage, FileDescriptor, MessageDescriptor, SerializeOptions};
use protox::file::{File, FileResolver, GoogleFileResolver};
use serde::{Serialize, Serializer};

use super::schema::{ConversionFailure, RegisteredSchema, written};

/// File name of the schema itself.
const MAIN: &str = "geofold-schema-of-the-record.proto";

/// Nesting limit of messages, as in `protoc`.
const MAX_DEPTH: u64 = 64;

/// Known to Confluent's registry without references, besides Google's files.
const BUILT_IN: [(&str, &str); 2] = [
    (
        "confluent/meta.proto",
        r#"syntax = "proto3";
        package confluent;
        import "google/protobuf/descriptor.proto";
        message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }
        extend google.protobuf.FileOptions { Meta file_meta = 1088; }
        extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
        extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
        extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
        extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }"#,
    ),
    (
        "confluent/type/decimal.proto",
        r#"syntax = "proto3";
        package confluent.type;
        message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }"#,
    ),
];

/// A file of messages.
#[derive(Debug)]
pub(super) struct Protobuf(FileDescriptor);

impl Protobuf {
    pub(super) fn compile(fetched: &RegisteredSchema) -> Result<Self, String> {
        let built_in = BUILT_IN.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        let references =
            fetched.references.iter().map(|reference| (reference.name.clone(), reference.text.clone()));
        let main = [(MAIN.to_owned(), fetched.text.clone())];
        let files = Files(built_in.chain(references).chain(main).collect());
        let mut compiler = protox::Compiler::with_file_resolver(files);
        compiler.open_file(MAIN).map_err(|error| error.to_string())?;
        let file = compiler.descriptor_pool().get_file_by_name(MAIN);
        file.map(Self).ok_or_else(|| "it has no messages".to_owned())
    }

    pub(super) fn json(&self, payload: &[u8], max_bytes: usize) -> Result<Bytes, ConversionFailure> {
        let mut rest = payload;
        let message = self.message(&mut rest).map_err(|why| ConversionFailure::Payload(why.to_owned()))?;
        let message = DynamicMessage::decode(message, rest)
            .map_err(|error| ConversionFailure::Payload(error.to_string()))?;
        written(&Json(message), max_bytes)
    }

    /// Takes the message's indexes (its place in the file and enclosing messages) off the payload, and resolves them.
    fn message(&self, payload: &mut &[u8]) -> Result<MessageDescriptor, &'static str> {
        const CUT: &str = "it ends within the indexes of its message";
        const NONE: &str = "its schema has no message at its indexes";
        let mut next = || decode_varint(payload).ok().map(zigzag).ok_or(CUT);
        let count = next()?;
        // The first message is so common that it has a short form.
        if count == 0 {
            return self.0.messages().next().ok_or(NONE);
        }
        if count > MAX_DEPTH {
            return Err(NONE);
        }
        let place = |index: u64| usize::try_from(index).map_err(|_| NONE);
        let mut message = self.0.messages().nth(place(next()?)?).ok_or(NONE)?;
        for _ in 1..count {
            // Map entry messages are not in the text, and are not counted.
            let index = place(next()?)?;
            let inner = message.child_messages().filter(|inner| !inner.is_map_entry()).nth(index);
            message = inner.ok_or(NONE)?;
        }
        Ok(message)
    }
}

/// Indexes are signed but never negative; a negative one becomes an index that matches nothing.
fn zigzag(varint: u64) -> u64 {
    if varint & 1 == 0 { varint >> 1 } else { u64::MAX }
}

struct Json(DynamicMessage);

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let options = SerializeOptions::new()
            .stringify_64_bit_integers(false)
            .use_proto_field_name(true)
            .skip_default_fields(false);
        self.0.serialize_with_options(to, &options)
    }
}

/// All available files.
struct Files(HashMap<String, String>);

impl FileResolver for Files {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        match self.0.get(name) {
            Some(text) => File::from_source(name, text),
            None => GoogleFileResolver::new().open_file(name),
        }
    }
}

#[cfg(test)]
mod tests;
