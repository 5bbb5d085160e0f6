//! The section of Kafka.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::properties::{self, Properties};
use super::registry::{KeyForm, RecordFormat};
use super::secret::Secret;
use super::server_url::ServerUrl;
use crate::core::decode::Envelope;

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
