//! Records in Avro, JSON Schema and Protobuf: from bytes to JSON, by schemas that are at hand. Pure.
//!
//! | file | what it holds |
//! |---|---|
//! | `frame.rs` | the wire format: which schema a record is written by |
//! | `schema.rs` | one schema, and the JSON that it makes of a payload |
//! | `avro/`, `protobuf/` | what the two formats need for that |
//! | `known.rs` | the schemas that one reader has used lately |
//!
//! *Invariant:* a record is decoded without I/O. What lacks a schema is handed back with the schema's id ([`Lacking`]); who
//! reads records fetches it (`io/registry/`) and decodes again.

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
pub use self::schema::{Fetched, Kind, Reference, Schema};

/// The number that a registry gave a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SchemaId(pub u32);

impl fmt::Display for SchemaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why bytes can not become JSON: they never will.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unreadable {
    /// They do not begin as the wire format does.
    #[error(
        "it is not in the wire format of a schema registry, which is a byte 0, four bytes of a schema's id, and the payload; \
         it begins with {0}"
    )]
    NoFrame(String),
    /// The registry says so.
    #[error("the schema registry has no schema {0}")]
    UnknownSchema(SchemaId),
    /// The registry has it, and it is of no use.
    #[error("the schema {id} can not be used: {why}")]
    BadSchema {
        /// Which.
        id: SchemaId,
        /// What is wrong with it.
        why: Arc<str>,
    },
    /// The payload is not of the schema.
    #[error("it is not of its schema {id}: {why}")]
    Payload {
        /// By which schema.
        id: SchemaId,
        /// What is wrong with it.
        why: String,
    },
    /// Its JSON has more bytes than allowed.
    #[error("its JSON has more than the {0} bytes that are allowed")]
    TooLarge(usize),
}

impl Unreadable {
    /// One word for a program.
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
