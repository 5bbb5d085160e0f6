//! The sections of live counts: `[tally]`, what is counted; `[database]`, where the counts are; `[collector]`, who brings
//! them there.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::byte_size::ByteSize;
use super::database_url::DatabaseUrl;
use super::kafka::KafkaConfig;
use super::secret::Secret;
use super::types::Config;
pub use crate::core::counting::facets::GEOSHARD_FACET;
use crate::core::counting::facets::{FacetLimits, FacetRules};
use crate::support::tls::TlsFiles;

/// `[tally]`: what workers count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TallyConfig {
    /// Facets by name, each with the dotted path of a scalar or an array of scalars in a document.
    pub facets: BTreeMap<String, String>,
    /// Count documents by geoshard too, as the facet [`GEOSHARD_FACET`].
    pub geoshard: bool,
    /// The topic of increments; see [`Config::increments_topic`].
    pub topic: Option<String>,
    /// Maximum interval between increments of a partition.
    #[serde(with = "humantime_serde")]
    pub emit_interval: Duration,
    /// Values that one document adds to one facet, at most.
    pub max_values: usize,
    /// Bytes of a value that is counted, at most.
    pub max_value_bytes: ByteSize,
}

impl Default for TallyConfig {
    fn default() -> Self {
        Self {
            facets: BTreeMap::new(),
            geoshard: false,
            topic: None,
            emit_interval: Duration::from_secs(1),
            max_values: 100,
            max_value_bytes: ByteSize::new(256),
        }
    }
}

impl TallyConfig {
    /// Whether anything is counted.
    pub fn is_on(&self) -> bool {
        self.geoshard || !self.facets.is_empty()
    }
}

impl FacetRules {
    /// The configured counting; `None` if nothing is counted.
    pub fn configured(tally: &TallyConfig) -> Option<Self> {
        let facets = tally.facets.iter().map(|(name, path)| (name.as_str(), path.as_str()));
        let limits =
            FacetLimits { max_value_bytes: tally.max_value_bytes.as_usize(), max_values: tally.max_values };
        tally.is_on().then(|| Self::new(tally.geoshard, facets, limits))
    }
}

/// `[database]`: where counts are kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DatabaseConfig {
    /// A file of SQLite, or a database of a PostgreSQL server.
    pub url: DatabaseUrl,
    /// Password for PostgreSQL, given here or read from [`DatabaseConfig::password_file`].
    pub password: Option<Secret>,
    /// File that holds the password.
    pub password_file: Option<PathBuf>,
    /// Certificates of the authorities that may sign the server's certificate, PEM; the built-in ones if not given.
    pub ca_file: Option<PathBuf>,
    /// A connection that is not there after this time has failed, and so has a statement without an answer.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Connections of one process, at most.
    pub max_connections: u32,
}

impl Default for DatabaseConfig {
    fn default() -> Self {
        Self {
            url: DatabaseUrl::default(),
            password: None,
            password_file: None,
            ca_file: None,
            timeout: Duration::from_secs(10),
            max_connections: 4,
        }
    }
}

/// `[collector]`: how increments become counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CollectorConfig {
    /// The consumer group under which merged offsets are shown to Kafka's tools; see [`Config::collector_group`].
    pub group_id: Option<String>,
    /// Time between two merges.
    #[serde(with = "humantime_serde")]
    pub merge_interval: Duration,
    /// Increments in one merge, at most.
    pub max_increments: usize,
    /// Bytes of increments in one merge, at most.
    pub max_bytes: ByteSize,
    /// A collector that has not merged for this long is replaced by a standby.
    #[serde(with = "humantime_serde")]
    pub takeover_timeout: Duration,
    /// Values of each facet in the cloud.
    pub top: usize,
    /// Versions whose row, cloud and increment ids are kept.
    pub keep_versions: u32,
    /// The topic for a record about each version.
    pub notify_topic: Option<String>,
    /// Address of the collector's HTTP server.
    pub listen: SocketAddr,
    /// PEM certificate chain: clients speak TLS.
    pub tls_certificate: Option<PathBuf>,
    /// PEM private key of the certificate.
    pub tls_key: Option<PathBuf>,
    /// PEM certificates of authorities: each client has to have a certificate of one of them.
    pub tls_client_ca_file: Option<PathBuf>,
}

impl CollectorConfig {
    /// TLS of the listener, if it is configured.
    pub fn tls_files(&self) -> Option<TlsFiles> {
        TlsFiles::of_listener([
            ("collector.tls_certificate", &self.tls_certificate),
            ("collector.tls_key", &self.tls_key),
            ("collector.tls_client_ca_file", &self.tls_client_ca_file),
        ])
    }
}

impl Default for CollectorConfig {
    fn default() -> Self {
        Self {
            group_id: None,
            merge_interval: Duration::from_secs(1),
            max_increments: 1_000,
            max_bytes: ByteSize::mib(32),
            takeover_timeout: Duration::from_secs(3),
            top: 100,
            keep_versions: 1_000,
            notify_topic: None,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9465)),
            tls_certificate: None,
            tls_key: None,
            tls_client_ca_file: None,
        }
    }
}

impl Config {
    /// The topic through which increments go from workers to collectors: the configured one, or the topic of documents
    /// with `-increments` at its end.
    pub fn increments_topic(&self) -> String {
        let KafkaConfig { topic, .. } = &self.kafka;
        self.tally.topic.clone().unwrap_or_else(|| format!("{topic}-increments"))
    }

    /// The consumer group of collectors: the configured one, or the workers' with `-collector` at its end.
    pub fn collector_group(&self) -> String {
        let KafkaConfig { group_id, .. } = &self.kafka;
        self.collector.group_id.clone().unwrap_or_else(|| format!("{group_id}-collector"))
    }
}
