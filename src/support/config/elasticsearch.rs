//! The section of Elasticsearch.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::byte_size::ByteSize;
use super::cloud_id::CloudId;
use super::secret::Secret;
use super::server_url::ServerUrl;

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
