//! What can be configured: one type for each section of the file, with its defaults; large sections have a file beside this one.
//!
//! A missing key has the value that its section's `Default` gives it; `config/geofold.toml` says the same to people, and a
//! test holds the two together. Sections refuse unknown keys by themselves, but the loader finds them first and names
//! the nearest known one.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::audit::AuditConfig;
use super::byte_size::ByteSize;
use super::campaigns::CampaignsConfig;
use super::counts::{CollectorConfig, DatabaseConfig, TallyConfig};
use super::distribution::DistributionConfig;
use super::documents::DocumentsConfig;
use super::elasticsearch::ElasticsearchConfig;
use super::kafka::KafkaConfig;
use super::load_section::LoadConfig;
use super::moves::MovesConfig;
use super::placements::PlacementsConfig;
use super::registry::{KeyForm, RecordFormat, SchemaRegistryConfig};
use super::route::RouteConfig;
use super::source::SourceConfig;
use crate::base::position::Epoch;
use crate::base::retry::RetryPolicy;
pub use crate::core::decode::Envelope;
pub use crate::core::mover::OnMissing;

/// The whole configuration. Load it with [`Config::load`]; the default is a worker for services on this machine.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The topic, the consumer group, and the way to the brokers.
    pub kafka: KafkaConfig,
    /// Where the schemas of records are.
    pub schema_registry: SchemaRegistryConfig,
    /// The search server that holds the geoshards.
    pub elasticsearch: ElasticsearchConfig,
    /// Shape of documents.
    pub documents: DocumentsConfig,
    /// The order of records across topic re-creations.
    pub positions: PositionsConfig,
    /// Where the geoshards are.
    pub geoshards: GeoshardsConfig,
    /// When folded writes go out.
    pub batch: BatchConfig,
    /// Guarantees for documents that move.
    pub moves: MovesConfig,
    /// Bounds of memory.
    pub memory: MemoryConfig,
    /// Waiting between attempts.
    pub retry: RetryConfig,
    /// Committing offsets.
    pub commit: CommitConfig,
    /// Handling of records that cannot be applied.
    pub dead_letter: DeadLetterConfig,
    /// Jobs after changes of a geoshard.
    pub distribution: DistributionConfig,
    /// Where documents can be fetched again.
    pub source: SourceConfig,
    /// What is counted.
    pub tally: TallyConfig,
    /// How searches are answered.
    pub route: RouteConfig,
    /// Counting writes and searches by place.
    pub load: LoadConfig,
    /// Where counts are kept.
    pub database: DatabaseConfig,
    /// How increments become counts.
    pub collector: CollectorConfig,
    /// Batch jobs that apply one action to a list of document ids.
    pub campaigns: CampaignsConfig,
    /// The index of placements.
    pub placements: PlacementsConfig,
    /// The audit that a worker runs by itself.
    pub audit: AuditConfig,
    /// Orderly shutdown.
    pub shutdown: ShutdownConfig,
    /// The HTTP server for metrics, health and tools.
    pub admin: AdminConfig,
    /// Logging.
    pub log: LogConfig,
    /// How a running worker follows this file.
    pub reload: ReloadConfig,
}

impl Config {
    /// Handling of a patch of a missing document: as configured, else the default that fits.
    pub fn on_missing(&self) -> OnMissing {
        let has_source = self.source.kind.is_some();
        let fitting = if has_source { OnMissing::Refeed } else { OnMissing::DeadLetter };
        self.documents.on_missing.unwrap_or(fitting)
    }

    /// Whether keys or values are read by the schema registry.
    pub fn reads_registry(&self) -> bool {
        self.kafka.format == RecordFormat::Registry || matches!(self.kafka.key, KeyForm::Registry(_))
    }
}

/// `[positions]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PositionsConfig {
    /// Generation of offsets; raised when they start over.
    pub epoch: Epoch,
}

impl Default for PositionsConfig {
    fn default() -> Self {
        Self { epoch: Epoch::new(1).unwrap_or_default() }
    }
}

/// `[geoshards]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GeoshardsConfig {
    /// The map file.
    pub map: PathBuf,
    /// JSON file with the settings and mappings of a geoshard's index.
    pub index_template: Option<PathBuf>,
}

impl Default for GeoshardsConfig {
    fn default() -> Self {
        Self { map: PathBuf::from("map-55.json"), index_template: None }
    }
}

/// `[batch]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BatchConfig {
    /// Documents in one batch, at most.
    pub max_documents: usize,
    /// Bytes of folded writes in one batch, at most.
    pub max_bytes: ByteSize,
    /// Interval of the worker-wide tick at which partitions flush.
    #[serde(with = "humantime_serde")]
    pub linger: Duration,
    /// A document is written at least this often, however hot it is; while its partition is read ahead, a third as often.
    #[serde(with = "humantime_serde")]
    pub max_dirty_age: Duration,
    /// A batch sends nothing after this time (protocol, "The envelope of trust"); the rest starts over in a new batch.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
}

impl Default for BatchConfig {
    fn default() -> Self {
        Self {
            max_documents: 5_000,
            max_bytes: ByteSize::mib(8),
            linger: Duration::from_millis(200),
            max_dirty_age: Duration::from_secs(10),
            timeout: Duration::from_secs(60),
        }
    }
}

/// `[memory]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryConfig {
    /// Records and folds that one worker holds, in bytes; fetching pauses above it.
    pub total: ByteSize,
    /// The same for one partition.
    pub per_partition: ByteSize,
    /// Placements that one worker remembers.
    pub cached_placements: usize,
    /// Records that a partition far behind is read ahead, to write only the last of a document's; 0: none.
    pub look_ahead: u64,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self {
            total: ByteSize::mib(24),
            per_partition: ByteSize::mib(16),
            cached_placements: 200_000,
            look_ahead: 1_000_000,
        }
    }
}

/// `[retry]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryConfig {
    /// Longest wait before the second attempt.
    #[serde(with = "humantime_serde")]
    pub initial_backoff: Duration,
    /// Longest wait between two attempts.
    #[serde(with = "humantime_serde")]
    pub max_backoff: Duration,
    /// Elasticsearch answers 401 or 403 for so long, and the worker stops.
    #[serde(with = "humantime_serde")]
    pub unauthorized_timeout: Duration,
}

impl RetryConfig {
    /// The pauses between attempts.
    pub fn policy(&self) -> RetryPolicy {
        RetryPolicy { initial: self.initial_backoff, max: self.max_backoff }
    }
}

impl Default for RetryConfig {
    fn default() -> Self {
        Self {
            initial_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(10),
            unauthorized_timeout: Duration::from_secs(30),
        }
    }
}

/// `[commit]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CommitConfig {
    /// Time between two commits of a partition's watermark.
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
}

impl Default for CommitConfig {
    fn default() -> Self {
        Self { interval: Duration::from_secs(1) }
    }
}

/// `[dead_letter]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeadLetterConfig {
    /// Destination of bad input.
    pub policy: DeadLetterPolicy,
    /// The topic for it. Required with [`DeadLetterPolicy::Topic`].
    pub topic: Option<String>,
    /// A geoshard that refuses this many different documents with the same error, and accepts none in between, is at fault;
    /// 0: never.
    pub index_failure_threshold: usize,
}

impl Default for DeadLetterConfig {
    fn default() -> Self {
        Self { policy: DeadLetterPolicy::Stop, topic: None, index_failure_threshold: 50 }
    }
}

/// Destination of bad input. No policy skips it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeadLetterPolicy {
    /// A topic, with the reason in headers; the partition continues.
    Topic,
    /// Nowhere: the partition stops at it.
    Stop,
}

/// `[shutdown]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShutdownConfig {
    /// Time for the batches in flight after a signal to stop.
    #[serde(with = "humantime_serde")]
    pub drain_timeout: Duration,
    /// Time for the batch in flight of a partition that is being taken away.
    #[serde(with = "humantime_serde")]
    pub revoke_timeout: Duration,
}

impl Default for ShutdownConfig {
    fn default() -> Self {
        Self { drain_timeout: Duration::from_secs(25), revoke_timeout: Duration::from_secs(10) }
    }
}

/// `[admin]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdminConfig {
    /// Address to listen on.
    pub listen: SocketAddr,
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9464)) }
    }
}

/// `[log]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// The form of a line.
    pub format: LogFormat,
    /// Which events are logged; the syntax of `tracing_subscriber::EnvFilter`.
    pub filter: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { format: LogFormat::Text, filter: "info".to_owned() }
    }
}

/// `[reload]`
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReloadConfig {
    /// Interval of checks of the file; unset: only SIGHUP reloads.
    #[serde(with = "humantime_serde::option")]
    pub interval: Option<Duration>,
}

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For humans; coloured on a terminal.
    Text,
    /// One JSON object per line, an event's fields at its top level.
    Json,
}
