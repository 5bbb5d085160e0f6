//! `[campaigns]`: how lists of documents are worked through, and those that are made every so often.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::byte_size::ByteSize;
use super::secret::Secret;
use crate::base::ids::ShardId;

/// Ids in one chunk, at most.
pub const MAX_IDS: u32 = 10_000;

/// Maximum ids per second.
pub const MAX_RATE: u32 = 10_000_000;

/// `[campaigns]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CampaignsConfig {
    /// A runner that gives no sign of life for so long loses its chunk to another.
    #[serde(with = "humantime_serde")]
    pub lease_duration: Duration,
    /// Ids in one chunk.
    pub chunk_size: u32,
    /// Campaigns that `geofold campaign watch` makes and runs every so often.
    pub periodic: Vec<PeriodicCampaign>,
    /// Bearer token of requests to a collector's `/campaigns`, given here or read from [`CampaignsConfig::bearer_token_file`].
    /// Without it there is no such path.
    pub bearer_token: Option<Secret>,
    /// File with the token.
    pub bearer_token_file: Option<PathBuf>,
    /// Of a list in a request.
    pub request_max_bytes: ByteSize,
}

impl Default for CampaignsConfig {
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_secs(30),
            chunk_size: 1_000,
            periodic: Vec::new(),
            bearer_token: None,
            bearer_token_file: None,
            request_max_bytes: ByteSize::mib(64),
        }
    }
}

/// One of `[[campaigns.periodic]]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeriodicCampaign {
    /// Name; each period has one campaign of this name.
    pub name: String,
    /// The period.
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
    /// Action for each document.
    pub action: CampaignAction,
    /// Selection of documents.
    pub what: CampaignDocuments,
    /// Ids per second, at most.
    pub rate: Option<u32>,
}

/// Which documents a periodic campaign is about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CampaignDocuments {
    /// `"all"`: all that are not deleted.
    All,
    /// `{ shard = "eu-1" }`: those that belong to this geoshard.
    Shard(ShardId),
    /// `{ query = "query.json" }`: those that the query in this file finds.
    Query(PathBuf),
}

/// Action of a campaign for each of its documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CampaignAction {
    /// It is placed again.
    Touch,
    /// It is read again from the source of truth.
    Refeed,
    /// It is deleted.
    Delete,
}

impl CampaignAction {
    /// Every action.
    pub const ALL: [Self; 3] = [Self::Touch, Self::Refeed, Self::Delete];

    /// The value in the record's header and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Touch => "touch",
            Self::Refeed => "refeed",
            Self::Delete => "delete",
        }
    }
}
