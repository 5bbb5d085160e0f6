//! The client of a Confluent-compatible schema registry.
//!
//! | file | what it holds |
//! |---|---|
//! | `client/` | one question to the registry |
//! | `cache/` | the schemas that a process has, each fetched once |
//!
//! What schemas make of records is `core/schemas/`. *Invariant:* an unreachable registry never causes a record to be refused: only one that says
//! that there is no such schema does.

mod cache;
mod client;

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

pub use self::cache::{CachedSchema, Registry};
pub use self::client::RegistryOpenError;

/// Why a schema could not be fetched. The text says what was being done and what to do; it never holds a secret.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct SchemaFetchError {
    reason: Arc<str>,
    /// The registry's `Retry-After`.
    pub retry_after: Option<Duration>,
}

impl SchemaFetchError {
    fn new(reason: impl Into<Arc<str>>) -> Self {
        Self { reason: reason.into(), retry_after: None }
    }

    /// No registry is configured.
    pub(crate) fn not_configured() -> Self {
        Self::new("no schema registry is configured: set schema_registry.urls")
    }
}
