//! `[load]`

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Counting writes and searches by place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoadConfig {
    /// How often counts are added to the record in the meta index; nothing is counted if zero.
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
    /// S2 level of the cells.
    pub level: u8,
}

impl Default for LoadConfig {
    fn default() -> Self {
        Self { interval: Duration::from_secs(60), level: 7 }
    }
}

impl LoadConfig {
    /// Whether anything is counted.
    pub fn is_on(&self) -> bool {
        !self.interval.is_zero()
    }
}
