//! The configuration: one TOML file, overridden by the environment, checked before anything runs.
//!
//! - [`types`]: a type for each section, with its defaults; [`byte_size`], [`secret`], [`server_url`], [`cloud_id`] are its values
//! - [`counts`]: the sections of live counts; [`database_url`] is one of their values
//! - [`kafka`], [`elasticsearch`], [`distribution`]: the sections of these names
//! - [`documents`]: the section of documents and their locations
//! - [`moves`]: the section of documents that move
//! - [`placements`]: the section of the placements index
//! - [`source`]: the section of the source of truth
//! - [`route`]: the section of the router
//! - [`load_section`]: the section of load by place
//! - [`registry`]: the section of the schema registry, and the forms of keys and values
//! - [`load`]: file and environment to [`Config`], refusing unknown keys; with `keys` (which there are) and `overlay`
//!   (what the environment changes)
//! - [`check`]: what is wrong between keys, all of it at once
//! - [`kafka_login`]: logins to Kafka with tokens
//! - [`follow`]: what a running worker follows when the file changes
//! - [`properties`]: what librdkafka is given, and what it may not be given
//! - `show`: the effective configuration, without secrets
//!
//! What reads a file, checks it and follows its changes belongs to the program (Cargo.toml, `program`).
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::path::Path;
//!
//! let text = r#"
//!     kafka.brokers = ["${KAFKA_HOST}:9092"]
//!     kafka.topic = "users"
//!     elasticsearch.urls = ["http://127.0.0.1:9200"]
//! "#;
//! let env = BTreeMap::from([
//!     ("KAFKA_HOST".to_owned(), "127.0.0.1".to_owned()),
//!     ("GEOFOLD_BATCH__LINGER".to_owned(), "50ms".to_owned()),
//! ]);
//! let config = geofold::support::config::Config::from_toml(text, Path::new("."), &env)?;
//! assert_eq!(config.kafka.brokers, ["127.0.0.1:9092"]);
//! assert_eq!(config.batch.linger.as_millis(), 50);
//! assert!(config.findings().is_empty());
//! # Ok::<(), geofold::support::config::ConfigError>(())
//! ```

pub mod audit;
pub mod byte_size;
pub mod campaigns;
#[cfg(feature = "program")]
pub mod check;
pub mod cloud_id;
pub mod counts;
pub mod database_url;
pub mod distribution;
pub mod documents;
pub mod elasticsearch;
#[cfg(feature = "program")]
pub mod follow;
pub mod kafka;
pub mod kafka_login;
#[cfg(feature = "program")]
mod keys;
#[cfg(feature = "program")]
pub mod load;
pub mod load_section;
pub mod moves;
#[cfg(feature = "program")]
mod overlay;
pub mod placements;
pub mod properties;
pub mod registry;
pub mod route;
pub mod secret;
pub mod server_url;
#[cfg(feature = "program")]
mod show;
pub mod source;
pub mod types;

pub use audit::AuditConfig;
pub use byte_size::ByteSize;
#[cfg(feature = "program")]
pub use check::{ConfigFinding, Severity};
pub use cloud_id::CloudId;
pub use counts::{CollectorConfig, DatabaseConfig, GEOSHARD_FACET, TallyConfig};
pub use database_url::DatabaseUrl;
pub use distribution::{DistributionConfig, DistributionJob, JobKind, RunStore};
pub use documents::{DocumentsConfig, LatLonFields, LocationFields};
pub use elasticsearch::{AwsService, ElasticsearchConfig, ElasticsearchCredentials};
pub use kafka::{
    AssignmentStrategy, GroupProtocol, KafkaConfig, LostRecords, Partitioner, RemoteAssignor, SaslMechanism,
    SecurityProtocol,
};
#[cfg(feature = "program")]
pub use load::{BadConfigKey, ConfigError, ValueOrigin};
pub use load_section::LoadConfig;
pub use moves::{MoveVisibility, MovesConfig};
pub use placements::PlacementsConfig;
pub use properties::Properties;
pub use registry::{KeyForm, RecordFormat, SchemaRegistryConfig};
pub use route::{RouteConfig, RouteCredentials, WithoutLocation};
pub use secret::Secret;
pub use server_url::ServerUrl;
pub use source::{SourceConfig, SourceKind, SourceUrl};
pub use types::*;

#[cfg(test)]
mod tests;
