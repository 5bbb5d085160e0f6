//! What can be configured: one type for each section of the file, with its defaults.
//!
//! A missing key has the value that its section's `Default` gives it; `config/geofold.toml` says the same to people, and a
//! test holds the two together. Sections refuse unknown keys by themselves, but the loader finds them first and names
//! the nearest known one.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::audit::AuditConfig;
use super::byte_size::ByteSize;
use super::campaigns::CampaignsConfig;
use super::cloud_id::CloudId;
use super::counts::{CollectorConfig, DatabaseConfig, TallyConfig};
use super::documents::DocumentsConfig;
use super::load_section::LoadConfig;
use super::moves::MovesConfig;
use super::placements::PlacementsConfig;
use super::properties::{self, Properties};
use super::registry::{KeyForm, RecordFormat, SchemaRegistryConfig};
use super::route::RouteConfig;
use super::secret::Secret;
use super::server_url::ServerUrl;
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

/// `[kafka]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KafkaConfig {
    /// Bootstrap brokers, `host:port`. Required in the file.
    pub brokers: Vec<String>,
    /// The topic of document writes, keyed by document id. Required in the file.
    pub topic: String,
    /// How a record's value is written.
    pub format: RecordFormat,
    /// How a record's key holds the document's id.
    pub key: KeyForm,
    /// Form of a record's value.
    pub envelope: Envelope,
    /// Where producers put a key.
    pub partitioner: Partitioner,
    /// Handling of unread records that the topic no longer has.
    pub lost_records: LostRecords,
    /// The consumer group that all workers of one index share.
    pub group_id: String,
    /// Client id in brokers' logs.
    pub client_id: String,
    /// The rebalance protocol.
    pub group_protocol: GroupProtocol,
    /// How the members share the partitions out. Only with [`GroupProtocol::Classic`].
    pub partition_assignment_strategy: AssignmentStrategy,
    /// After this silence the group gives the member's partitions away. Only with [`GroupProtocol::Classic`].
    #[serde(with = "humantime_serde")]
    pub session_timeout: Duration,
    /// Time between signs of life. Only with [`GroupProtocol::Classic`].
    #[serde(with = "humantime_serde")]
    pub heartbeat_interval: Duration,
    /// The broker's assignor. Only with [`GroupProtocol::Consumer`].
    pub remote_assignor: RemoteAssignor,
    /// Encryption and authentication on the way to the brokers.
    pub security_protocol: SecurityProtocol,
    /// How the worker proves who it is. Required with the two SASL protocols.
    pub sasl_mechanism: Option<SaslMechanism>,
    /// User name for SASL.
    pub sasl_username: Option<String>,
    /// Password for SASL, given here or read from [`KafkaConfig::sasl_password_file`].
    pub sasl_password: Option<Secret>,
    /// File that holds the password for SASL.
    pub sasl_password_file: Option<PathBuf>,
    /// The token endpoint. Only with [`SaslMechanism::OauthBearer`], as the four below.
    pub oauth_token_url: Option<ServerUrl>,
    /// Client id for the token endpoint.
    pub oauth_client_id: Option<String>,
    /// Secret for the token endpoint, given here or read from [`KafkaConfig::oauth_client_secret_file`].
    pub oauth_client_secret: Option<Secret>,
    /// File that holds the secret for the token endpoint.
    pub oauth_client_secret_file: Option<PathBuf>,
    /// Scope of the tokens; the endpoint's default if not given.
    pub oauth_scope: Option<String>,
    /// Certificates of the authorities that may sign the token endpoint's certificate, PEM; the built-in ones if not given.
    pub oauth_ca_file: Option<PathBuf>,
    /// Region of the Amazon MSK cluster. Only with [`SaslMechanism::AwsMskIam`].
    pub aws_region: Option<String>,
    /// Certificates of the authorities that may sign a broker's certificate, PEM; the system's if not given.
    pub ssl_ca_file: Option<PathBuf>,
    /// More librdkafka settings for the consumer.
    pub properties: Properties,
    /// More librdkafka settings for the dead-letter producer.
    pub producer_properties: Properties,
}

impl Default for KafkaConfig {
    fn default() -> Self {
        Self {
            brokers: vec!["127.0.0.1:9092".to_owned()],
            topic: "documents".to_owned(),
            format: RecordFormat::Json,
            key: KeyForm::Text,
            envelope: Envelope::Plain,
            partitioner: Partitioner::Murmur2,
            lost_records: LostRecords::Stop,
            group_id: "geofold".to_owned(),
            client_id: "geofold".to_owned(),
            group_protocol: GroupProtocol::Classic,
            partition_assignment_strategy: AssignmentStrategy::CooperativeSticky,
            session_timeout: Duration::from_secs(45),
            heartbeat_interval: Duration::from_secs(3),
            remote_assignor: RemoteAssignor::Uniform,
            security_protocol: SecurityProtocol::Plaintext,
            sasl_mechanism: None,
            sasl_username: None,
            sasl_password: None,
            sasl_password_file: None,
            oauth_token_url: None,
            oauth_client_id: None,
            oauth_client_secret: None,
            oauth_client_secret_file: None,
            oauth_scope: None,
            oauth_ca_file: None,
            aws_region: None,
            ssl_ca_file: None,
            properties: Properties::default(),
            producer_properties: Properties::default(),
        }
    }
}

/// Who decides on the assignment of partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GroupProtocol {
    /// The members, one of them leading; every broker version.
    Classic,
    /// The broker (KIP-848); brokers from 4.0.
    Consumer,
}

impl GroupProtocol {
    /// Keys of `[kafka]` that have no meaning with this protocol.
    pub(super) fn foreign_keys(self) -> &'static [&'static str] {
        match self {
            Self::Classic => &["remote_assignor"],
            Self::Consumer => &["partition_assignment_strategy", "session_timeout", "heartbeat_interval"],
        }
    }
}

/// How classic members share the partitions out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AssignmentStrategy {
    /// Only partitions that change hands stop; the others go on through a rebalance.
    CooperativeSticky,
    /// Every partition stops at every rebalance.
    Range,
}

/// The broker's assignors under KIP-848.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RemoteAssignor {
    /// Even and sticky.
    Uniform,
    /// Contiguous ranges of partitions.
    Range,
}

/// Where those who write to the topic put a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Partitioner {
    /// As Java's clients.
    Murmur2,
    /// librdkafka's default.
    Crc32,
    /// As Sarama.
    Fnv1a,
    /// By a rule of their own.
    Custom,
}

/// Handling of unread records that the topic no longer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LostRecords {
    /// Their partition stops.
    Stop,
    /// Continue at the first remaining record.
    Accept,
}

/// Encryption and authentication on the way to the brokers; librdkafka's `security.protocol`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecurityProtocol {
    /// Neither.
    Plaintext,
    /// TLS.
    Ssl,
    /// SASL over an open connection.
    SaslPlaintext,
    /// SASL over TLS.
    SaslSsl,
}

impl SecurityProtocol {
    /// Whether the connection is encrypted.
    pub fn uses_tls(self) -> bool {
        matches!(self, Self::Ssl | Self::SaslSsl)
    }

    /// Whether the worker has to prove who it is.
    pub fn uses_sasl(self) -> bool {
        matches!(self, Self::SaslPlaintext | Self::SaslSsl)
    }
}

/// How a client proves who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub enum SaslMechanism {
    /// The password is sent unhashed.
    #[serde(rename = "PLAIN")]
    Plain,
    /// Salted challenge and response (RFC 5802) with SHA-256.
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    /// The same with SHA-512.
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
    /// A token of an OAuth token endpoint (RFC 7628).
    #[serde(rename = "OAUTHBEARER")]
    OauthBearer,
    /// A token signed with AWS credentials; on the wire it is OAUTHBEARER.
    #[serde(rename = "AWS_MSK_IAM")]
    AwsMskIam,
}

impl SaslMechanism {
    /// Whether it needs a name and a password.
    pub fn uses_password(self) -> bool {
        matches!(self, Self::Plain | Self::ScramSha256 | Self::ScramSha512)
    }
}

impl TryFrom<String> for SaslMechanism {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Ok(match name.as_str() {
            "PLAIN" => Self::Plain,
            "SCRAM-SHA-256" => Self::ScramSha256,
            "SCRAM-SHA-512" => Self::ScramSha512,
            "OAUTHBEARER" => Self::OauthBearer,
            "AWS_MSK_IAM" => Self::AwsMskIam,
            "GSSAPI" => return Err(properties::NO_KERBEROS.to_owned()),
            _ => return Err(format!("{name:?} is not supported; {}", properties::OTHER_MECHANISMS)),
        })
    }
}

/// `[elasticsearch]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ElasticsearchConfig {
    /// Nodes to send requests to. Required in the file, or [`ElasticsearchConfig::cloud_id`]; empty with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub urls: Vec<ServerUrl>,
    /// A deployment of Elastic Cloud, in place of the nodes.
    pub cloud_id: Option<CloudId>,
    /// User name for basic authentication.
    pub username: Option<String>,
    /// Password for basic authentication, given here or read from [`ElasticsearchConfig::password_file`].
    pub password: Option<Secret>,
    /// File that holds the password.
    pub password_file: Option<PathBuf>,
    /// API key (the `encoded` form), given here or read from [`ElasticsearchConfig::api_key_file`].
    pub api_key: Option<Secret>,
    /// File that holds the API key.
    pub api_key_file: Option<PathBuf>,
    /// The region of a domain of Amazon OpenSearch Service, for which requests are signed.
    pub aws_region: Option<String>,
    /// The service that requests are signed for. Only with [`ElasticsearchConfig::aws_region`].
    pub aws_service: AwsService,
    /// Certificates of the authorities that may sign the server's certificate, PEM; the built-in ones if not given.
    pub ca_file: Option<PathBuf>,
    /// Certificate by which geofold proves who it is, PEM, behind it those between it and its authority; none if not given.
    pub client_cert_file: Option<PathBuf>,
    /// Private key of the certificate, PEM.
    pub client_key_file: Option<PathBuf>,
    /// Start of every index name: `<prefix>-<geoshard>`, `<prefix>-placements`, `<prefix>-meta`.
    pub prefix: String,
    /// A request without an answer after this time has failed.
    #[serde(with = "humantime_serde")]
    pub request_timeout: Duration,
    /// Concurrent requests per worker, at most.
    pub max_in_flight: usize,
    /// Fewer while Elasticsearch is slow or rejects requests.
    pub adaptive_concurrency: bool,
    /// Write operations per second of a worker; any number if not given.
    pub max_operations_per_second: Option<NonZeroU32>,
    /// Operations in one request, at most.
    pub request_max_operations: usize,
    /// Bytes in one request, at most; before it is compressed.
    pub request_max_bytes: ByteSize,
    /// Whether requests are compressed.
    pub compress_requests: bool,
    /// How long Elasticsearch remembers the version of a deleted document (`index.gc_deletes`).
    #[serde(with = "humantime_serde")]
    pub gc_deletes: Duration,
}

impl Default for ElasticsearchConfig {
    fn default() -> Self {
        Self {
            urls: vec![ServerUrl::local(9200)],
            cloud_id: None,
            username: None,
            password: None,
            password_file: None,
            api_key: None,
            api_key_file: None,
            aws_region: None,
            aws_service: AwsService::Es,
            ca_file: None,
            client_cert_file: None,
            client_key_file: None,
            prefix: "geofold".to_owned(),
            request_timeout: Duration::from_secs(20),
            max_in_flight: 4,
            adaptive_concurrency: false,
            max_operations_per_second: None,
            request_max_operations: 2_000,
            request_max_bytes: ByteSize::mib(8),
            compress_requests: false,
            gc_deletes: Duration::from_secs(600),
        }
    }
}

/// Amazon's service name, part of the signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AwsService {
    /// Amazon OpenSearch Service: a domain.
    Es,
    /// Amazon OpenSearch Serverless: a collection.
    Aoss,
}

impl AwsService {
    /// Its name in a signature.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Es => "es",
            Self::Aoss => "aoss",
        }
    }
}

/// Who geofold is to Elasticsearch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElasticsearchCredentials<'a> {
    /// HTTP basic authentication.
    Basic {
        /// User name.
        username: &'a str,
        /// Its password.
        password: &'a Secret,
    },
    /// `Authorization: ApiKey …`, the `encoded` form that Elasticsearch gives out.
    ApiKey(&'a Secret),
    /// A signature of AWS for each request, with keys of the environment.
    Aws {
        /// The region.
        region: &'a str,
        /// The service.
        service: AwsService,
    },
}

impl ElasticsearchConfig {
    /// Where to send requests.
    pub fn nodes(&self) -> &[ServerUrl] {
        match &self.cloud_id {
            Some(id) => std::slice::from_ref(id.url()),
            None => &self.urls,
        }
    }

    /// The configured way to authenticate; `None` for a server without security.
    pub fn credentials(&self) -> Option<ElasticsearchCredentials<'_>> {
        if let Some(key) = &self.api_key {
            return Some(ElasticsearchCredentials::ApiKey(key));
        }
        if let Some(region) = &self.aws_region {
            return Some(ElasticsearchCredentials::Aws { region, service: self.aws_service });
        }
        Some(ElasticsearchCredentials::Basic {
            username: self.username.as_deref()?,
            password: self.password.as_ref()?,
        })
    }
}

impl Config {
    /// Handling of a patch of a missing document: as configured, else the default that fits.
    pub fn on_missing(&self) -> OnMissing {
        let has_source = self.source.kind.is_some();
        let fitting = if has_source { OnMissing::Refeed } else { OnMissing::DeadLetter };
        self.documents.on_missing.unwrap_or(fitting)
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
