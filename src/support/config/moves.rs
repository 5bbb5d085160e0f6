//! `[moves]`

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Guarantees for documents that move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MovesConfig {
    /// Who never misses a document that moves.
    pub visibility: MoveVisibility,
    /// How long a search may be under way from its first geoshard to its last.
    #[serde(with = "humantime_serde")]
    pub search_grace: Duration,
}

impl Default for MovesConfig {
    fn default() -> Self {
        Self { visibility: MoveVisibility::Search, search_grace: Duration::from_secs(1) }
    }
}

/// Who never misses a document that moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MoveVisibility {
    /// Searches, and reads by id.
    Search,
    /// For reads by id only: the old copy is deleted as soon as the new one is written.
    Realtime,
}
