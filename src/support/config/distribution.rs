//! The section of distribution jobs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::secret::Secret;
use super::server_url::ServerUrl;

/// `[distribution]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DistributionConfig {
    /// Where workers share their last runs.
    pub run_store: RunStore,
    /// The memcached, `host:port`. Required with [`RunStore::Memcached`].
    pub memcached: Option<String>,
    /// For how long memcached is waited for.
    #[serde(with = "humantime_serde")]
    pub memcached_timeout: Duration,
    /// Prefix of keys in memcached; distinct for each installation that shares it.
    pub namespace: String,
    /// The jobs.
    pub jobs: Vec<DistributionJob>,
}

impl Default for DistributionConfig {
    fn default() -> Self {
        Self {
            run_store: RunStore::Memory,
            memcached: None,
            memcached_timeout: Duration::from_millis(100),
            namespace: "geofold".to_owned(),
            jobs: Vec::new(),
        }
    }
}

/// Where workers share their last runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunStore {
    /// Not shared: each worker knows only its own runs.
    Memory,
    /// In a memcached.
    Memcached,
}

/// One of `[[distribution.jobs]]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DistributionJob {
    /// Name.
    pub name: String,
    /// Kind of job.
    pub kind: JobKind,
    /// Whether offsets wait for it; by default, for all but refreshes.
    pub gate: Option<bool>,
    /// How long a change waits for others.
    #[serde(default = "job_interval", with = "humantime_serde")]
    pub interval: Duration,
    /// How long one attempt may take.
    #[serde(default = "job_timeout", with = "humantime_serde")]
    pub timeout: Duration,
    /// After this long without success it is given up. Only with [`JobKind::Webhook`].
    #[serde(default, with = "humantime_serde")]
    pub give_up_after: Option<Duration>,
    /// Where to POST. Required with [`JobKind::Webhook`].
    pub url: Option<ServerUrl>,
    /// Headers of the POST.
    #[serde(default)]
    pub headers: BTreeMap<String, Secret>,
    /// Certificates of authorities to trust besides the public ones, PEM. Only with [`JobKind::Webhook`].
    pub ca_file: Option<PathBuf>,
    /// The topic to write to. Required with [`JobKind::Topic`].
    pub topic: Option<String>,
}

fn job_interval() -> Duration {
    Duration::from_millis(400)
}

fn job_timeout() -> Duration {
    Duration::from_secs(10)
}

impl DistributionJob {
    /// A webhook that has not succeeded for this long is given up.
    pub const GIVE_UP_AFTER: Duration = Duration::from_secs(3600);

    /// Whether offsets wait for it.
    pub fn has_gate(&self) -> bool {
        self.gate.unwrap_or(self.kind != JobKind::Refresh)
    }
}

/// Kinds of distribution jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobKind {
    /// Elasticsearch's `_refresh` of the geoshard's index.
    Refresh,
    /// An HTTP POST.
    Webhook,
    /// A Kafka record.
    Topic,
}
