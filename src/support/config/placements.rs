//! `[placements]`: the index of placements, and how long those of deleted documents are kept.

use std::num::NonZeroU16;
use std::time::Duration;

use serde::{Deserialize, Serialize};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// `[placements]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlacementsConfig {
    /// How long the placement of a deleted document is kept, at least, before an audit may sweep it.
    #[serde(with = "humantime_serde")]
    pub deleted_retention: Duration,
    /// Primary shards of the index.
    pub primaries: NonZeroU16,
    /// Copies of each primary; Elasticsearch's default if not given.
    pub replicas: Option<u16>,
    /// Time from one refresh of the index by Elasticsearch to the next, zero for none; Elasticsearch's default if not given.
    #[serde(with = "humantime_serde::option")]
    pub refresh_interval: Option<Duration>,
}

impl Default for PlacementsConfig {
    fn default() -> Self {
        Self {
            deleted_retention: 7 * DAY,
            primaries: NonZeroU16::MIN,
            replicas: None,
            refresh_interval: None,
        }
    }
}
