//! Records in Avro, JSON Schema and Protobuf: from bytes to JSON, by known schemas. Pure.
//!
//! | file | what it holds |
//! |---|---|
//! | `frame.rs` | the wire format: the schema id of a record |
//! | `schema.rs` | one schema, and its conversion of payloads to JSON |
//! | `avro/`, `protobuf/` | the two binary formats |
//! | `known.rs` | a reader's recently used schemas |
//!
//! *Invariant:* a record is decoded without I/O. A missing schema is reported by its id ([`Lacking`]); the
//! reader fetches it (`io/registry/`) and decodes again.

mod avro;
mod frame;
mod known;
mod protobuf;
mod schema;

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

pub use self::frame::{is_framed, split};
pub use self::known::{Lacking, Schemas};
pub use self::schema::{Kind, Reference, RegisteredSchema, Schema};

/// A schema's id in the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SchemaId(pub u32);

impl fmt::Display for SchemaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why bytes can never become JSON.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UnreadablePayload {
    /// Not in the wire format.
    #[error(
        "it is not in the wire format of a schema registry, which is a byte 0, four bytes of a schema's id, and the payload; \
         it begins with {0}"
    )]
    NoFrame(String),
    /// The registry has no such schema.
    #[error("the schema registry has no schema {0}")]
    UnknownSchema(SchemaId),
    /// The registry's schema is unusable.
    #[error("the schema {id} cannot be used: {why}")]
    BadSchema {
        /// The schema.
        id: SchemaId,
        /// Its defect.
        why: Arc<str>,
    },
    /// The payload does not match the schema.
    #[error("it does not match its schema {id}: {why}")]
    Payload {
        /// The schema.
        id: SchemaId,
        /// The mismatch.
        why: String,
    },
    /// Its JSON has more bytes than allowed.
    #[error("its JSON has more than the {0} bytes that are allowed")]
    TooLarge(usize),
}

impl UnreadablePayload {
    /// Machine-readable reason code.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoFrame(_) => "bad_frame",
            Self::UnknownSchema(_) => "unknown_schema",
            Self::BadSchema { .. } => "bad_schema",
            Self::Payload { .. } => "bad_payload",
            Self::TooLarge(_) => "too_large",
        }
    }
}
