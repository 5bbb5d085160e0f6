//! The URL of a server, which never carries a password: URLs end up in logs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use url::{Host, Url};

/// An `http` or `https` address without user name and password.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServerUrl(Url);

/// Why a text is not the address of a server. Never quotes a text that may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadServerUrl {
    /// `http://name:password@host`
    #[error("the address holds a user name or password: give them with username and password, or api_key")]
    Credentials,
    /// Not an address, or not of a web server.
    #[error(
        "{0:?} is not the address of a server: write it with http:// or https://, as in \"http://host:9200\""
    )]
    NotAnAddress(String),
}

impl ServerUrl {
    /// `http://127.0.0.1:<port>`
    pub fn local(port: u16) -> Self {
        let mut url = Self::loopback();
        // Fails for addresses without a host only.
        let _ = url.set_port(Some(port));
        Self(url)
    }

    #[expect(clippy::expect_used, reason = "a constant that a test parses")]
    fn loopback() -> Url {
        Url::parse("http://127.0.0.1").expect("a legal address")
    }

    /// The address.
    pub fn as_url(&self) -> &Url {
        &self.0
    }

    /// Whether the connection is encrypted.
    pub fn uses_tls(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// Whether the server is on this machine, so that traffic cannot be intercepted.
    pub fn is_loopback(&self) -> bool {
        is_loopback(&self.0)
    }
}

/// Whether an address leads to this machine.
pub(super) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

impl FromStr for ServerUrl {
    type Err = BadServerUrl;

    fn from_str(text: &str) -> Result<Self, BadServerUrl> {
        if text.contains('@') {
            return Err(BadServerUrl::Credentials);
        }
        let not_an_address = || BadServerUrl::NotAnAddress(text.to_owned());
        let url = Url::parse(text).map_err(|_| not_an_address())?;
        let plain = url.query().is_none() && url.fragment().is_none();
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() || !plain {
            return Err(not_an_address());
        }
        Ok(Self(url))
    }
}

impl TryFrom<String> for ServerUrl {
    type Error = BadServerUrl;

    fn try_from(text: String) -> Result<Self, BadServerUrl> {
        text.parse()
    }
}

impl From<ServerUrl> for String {
    fn from(url: ServerUrl) -> String {
        url.to_string()
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `Url` shows an empty path as "/".
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_as_it_was_written() {
        for text in ["http://127.0.0.1:9200", "https://search.example.com", "https://example.com/proxy/es"] {
            assert_eq!(text.parse::<ServerUrl>().unwrap().to_string(), text);
        }
        assert_eq!(ServerUrl::local(9200).to_string(), "http://127.0.0.1:9200");
    }

    #[test]
    fn a_password_in_an_address_is_refused_and_not_repeated() {
        let error = "https://elastic:hunter2@example.com".parse::<ServerUrl>().unwrap_err();
        assert_eq!(error, BadServerUrl::Credentials);
        assert!(!error.to_string().contains("hunter2"));
    }

    #[test]
    fn only_web_servers_have_an_address_here() {
        for text in ["", "127.0.0.1:9200", "ftp://example.com", "http://", "http://example.com/?a=b"] {
            assert!(matches!(text.parse::<ServerUrl>(), Err(BadServerUrl::NotAnAddress(_))), "{text}");
        }
    }

    #[test]
    fn loopback_differs_from_network_addresses() {
        for (text, loopback) in [
            ("http://127.8.0.1:9200", true),
            ("http://[::1]:9200", true),
            ("http://localhost", true),
            ("http://registry.localhost", true),
            ("http://10.0.0.1", false),
            ("http://localhost.example.com", false),
        ] {
            assert_eq!(text.parse::<ServerUrl>().unwrap().is_loopback(), loopback, "{text}");
        }
    }
}
