//! `[audit]`: a worker's background job that finds and cleans up inconsistencies.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// `[audit]`: the audit that a worker runs by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditConfig {
    /// Time from the end of one audit to the next; none at all if not given.
    #[serde(with = "humantime_serde::option")]
    pub interval: Option<Duration>,
    /// Copies and placements read per second, at most.
    pub rate: NonZeroU32,
    /// Whether to repair what needs no guessing.
    pub repair: bool,
    /// Where temporary files go; the system's folder for them if not given.
    pub temp_dir: Option<PathBuf>,
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self {
            interval: None,
            rate: NonZeroU32::new(5_000).unwrap_or(NonZeroU32::MIN),
            repair: false,
            temp_dir: None,
        }
    }
}
