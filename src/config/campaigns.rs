//! `[campaigns]`: how lists of documents are worked through, and those that are made every so often.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::campaign::Action;
use crate::ids::ShardId;

/// `[campaigns]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Campaigns {
    /// A runner that gives no sign of life for so long loses its chunk to another.
    #[serde(with = "humantime_serde")]
    pub lease: Duration,
    /// Ids in one chunk.
    pub chunk: u32,
    /// Campaigns that `geofold campaign watch` makes and runs every so often.
    pub periodic: Vec<PeriodicCampaign>,
}

impl Default for Campaigns {
    fn default() -> Self {
        Self { lease: Duration::from_secs(30), chunk: 1_000, periodic: Vec::new() }
    }
}

/// One of `[[campaigns.periodic]]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeriodicCampaign {
    /// What it is called; in each period there is one campaign of this name.
    pub name: String,
    /// The period.
    #[serde(with = "humantime_serde")]
    pub every: Duration,
    /// What it does to each document.
    pub action: Action,
    /// Which documents.
    pub what: Which,
    /// Ids per second, at most.
    pub rate: Option<u32>,
}

/// Which documents a periodic campaign is about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Which {
    /// `"all"`: all that are not deleted.
    All,
    /// `{ shard = "eu-1" }`: those that belong to this geoshard.
    Shard(ShardId),
    /// `{ query = "query.json" }`: those that the query in this file finds.
    Query(PathBuf),
}
