//! `[schema_registry]`.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::secret::Secret;
use super::server_url::ServerUrl;
pub use crate::core::decode::{BadKeyForm, KeyForm, RecordFormat};

/// `[schema_registry]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchemaRegistryConfig {
    /// URLs of the registry, tried in turn. Required with the form `registry`.
    pub urls: Vec<ServerUrl>,
    /// User name for basic authentication.
    pub username: Option<String>,
    /// Password, given here or read from [`SchemaRegistryConfig::password_file`].
    pub password: Option<Secret>,
    /// File that holds the password.
    pub password_file: Option<PathBuf>,
    /// Bearer token, given here or read from [`SchemaRegistryConfig::bearer_token_file`].
    pub bearer_token: Option<Secret>,
    /// File that holds the bearer token.
    pub bearer_token_file: Option<PathBuf>,
    /// Certificates of the authorities that may sign the server's certificate, PEM; the built-in ones if not given.
    pub ca_file: Option<PathBuf>,
    /// A request without its whole answer after this time has failed.
    #[serde(with = "humantime_serde")]
    pub request_timeout: Duration,
    /// Maximum cached schemas per worker; the least recently used is evicted.
    pub cached_schemas: usize,
}

impl Default for SchemaRegistryConfig {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            username: None,
            password: None,
            password_file: None,
            bearer_token: None,
            bearer_token_file: None,
            ca_file: None,
            request_timeout: Duration::from_secs(10),
            cached_schemas: 1_000,
        }
    }
}
