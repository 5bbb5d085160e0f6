//! Records in Avro, JSON Schema and Protobuf, by the schemas of a Confluent-compatible registry.
//!
//! | file | what it holds |
//! |---|---|
//! | `frame.rs` | the wire format: which schema a record is written by (pure) |
//! | `schema.rs` | one schema, and the JSON that it makes of a payload (pure) |
//! | `avro/`, `protobuf/` | what the two formats need for that (pure) |
//! | `known.rs` | the schemas that one reader has used lately (pure) |
//! | `client/` | one question to the registry |
//! | `cache/` | the schemas that a process has, each fetched once |
//!
//! *Invariant:* a record is decoded without I/O. What lacks a schema is handed back with the schema's id ([`Lacking`]); who reads
//! records fetches it and decodes again. A registry that does not answer makes nobody refuse a record: only one that says
//! that there is no such schema does.

mod cache;
mod client;

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

pub use self::cache::{Looked, Registry};
pub use self::client::OpenError;
pub use crate::core::schemas::frame::{is_framed, split};
pub use crate::core::schemas::known::{Lacking, Schemas};
pub use crate::core::schemas::schema::{Fetched, Kind, Reference, Schema};
pub use crate::core::schemas::{SchemaId, Unreadable};

/// Why nothing was learnt of a schema. Its text says what was being done, and what to do; it never holds a secret.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct Trouble {
    reason: Arc<str>,
    /// The registry asks not to be asked before.
    pub retry_after: Option<Duration>,
}

impl Trouble {
    fn new(reason: impl Into<Arc<str>>) -> Self {
        Self { reason: reason.into(), retry_after: None }
    }

    /// There is nobody to ask.
    pub(crate) fn not_configured() -> Self {
        Self::new("no schema registry is configured: set schema_registry.urls")
    }
}
