//! `[route]`

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::byte_size::ByteSize;
use crate::support::tls::TlsFiles;

/// How `geofold route` answers searches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RouteConfig {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// For one search, from its request to its answer.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Searches that Elasticsearch works on at once.
    pub max_concurrent: usize,
    /// Searches that wait for a place.
    pub max_queued: usize,
    /// Bytes of a request's body, at most.
    pub request_max_bytes: ByteSize,
    /// Bytes of an answer, at most.
    pub response_max_bytes: ByteSize,
    /// What a search without a location asks.
    pub without_location: WithoutLocation,
    /// Whose credentials Elasticsearch sees.
    pub credentials: RouteCredentials,
    /// Where the load by cell is written now and then.
    pub load_file: Option<PathBuf>,
    /// A request to Elasticsearch without an answer for so long is sent to another node, too.
    #[serde(with = "humantime_serde")]
    pub hedge_after: Option<Duration>,
    /// PEM certificate chain: clients speak TLS.
    pub tls_certificate: Option<PathBuf>,
    /// PEM private key of the certificate.
    pub tls_key: Option<PathBuf>,
    /// PEM certificates of authorities: each client has to have a certificate of one of them.
    pub tls_client_ca_file: Option<PathBuf>,
}

impl Default for RouteConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9466)),
            timeout: Duration::from_secs(10),
            max_concurrent: 64,
            max_queued: 256,
            request_max_bytes: ByteSize::mib(1),
            response_max_bytes: ByteSize::mib(64),
            without_location: WithoutLocation::All,
            credentials: RouteCredentials::Own,
            load_file: None,
            hedge_after: None,
            tls_certificate: None,
            tls_key: None,
            tls_client_ca_file: None,
        }
    }
}

impl RouteConfig {
    /// TLS of the listener, if it is configured.
    pub fn tls_files(&self) -> Option<TlsFiles> {
        TlsFiles::of_listener([
            ("route.tls_certificate", &self.tls_certificate),
            ("route.tls_key", &self.tls_key),
            ("route.tls_client_ca_file", &self.tls_client_ca_file),
        ])
    }
}

/// What a search without a location asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WithoutLocation {
    /// All geoshards.
    All,
    /// Nothing: it is refused.
    Refuse,
}

/// Whose credentials Elasticsearch sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteCredentials {
    /// Those of `[elasticsearch]`.
    Own,
    /// The client's.
    Pass,
}
