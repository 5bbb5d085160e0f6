//! `[source]`: where documents can be fetched again by their id, the source of truth.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use url::Url;

use super::byte_size::ByteSize;
use super::database_url::{DatabaseUrl, PostgresUrl};
use super::secret::{REDACTED, Secret};
use super::server_url::is_loopback;

/// Placeholder of the id in a URL template.
pub const ID_PLACE: &str = "{id}";

/// `[source]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SourceConfig {
    /// Kind of source; none if unset.
    pub kind: Option<SourceKind>,
    /// Where it is: a template for [`SourceKind::Http`], an address for [`SourceKind::Postgresql`].
    pub url: Option<SourceUrl>,
    /// Headers of each request. Only with [`SourceKind::Http`].
    pub headers: BTreeMap<String, Secret>,
    /// User name for basic authentication. Only with [`SourceKind::Http`].
    pub username: Option<String>,
    /// Password, given here or read from [`SourceConfig::password_file`].
    pub password: Option<Secret>,
    /// File that holds the password.
    pub password_file: Option<PathBuf>,
    /// Bearer token, given here or read from [`SourceConfig::bearer_token_file`]. Only with [`SourceKind::Http`].
    pub bearer_token: Option<Secret>,
    /// File that holds the bearer token.
    pub bearer_token_file: Option<PathBuf>,
    /// Certificates of the authorities that may sign the server's certificate, PEM; the built-in ones if not given.
    pub ca_file: Option<PathBuf>,
    /// The query: `$1` is an array of ids; rows are an id and its document. Only with [`SourceKind::Postgresql`].
    pub query: Option<String>,
    /// Ids in one query, at most. Only with [`SourceKind::Postgresql`].
    pub batch_size: usize,
    /// Concurrent requests per worker.
    pub max_in_flight: usize,
    /// A request without its whole answer after this time has failed.
    #[serde(with = "humantime_serde")]
    pub request_timeout: Duration,
    /// Fetched documents that one worker holds until they are written; and, once more, those on their way.
    pub max_bytes: ByteSize,
    /// Id of an existing document. Another document counts as missing only if this one is found. Required with
    /// [`SourceKind::Http`].
    pub probe_id: Option<String>,
}

impl Default for SourceConfig {
    fn default() -> Self {
        Self {
            kind: None,
            url: None,
            headers: BTreeMap::new(),
            username: None,
            password: None,
            password_file: None,
            bearer_token: None,
            bearer_token_file: None,
            ca_file: None,
            query: None,
            batch_size: 500,
            max_in_flight: 4,
            request_timeout: Duration::from_secs(10),
            max_bytes: ByteSize::mib(32),
            probe_id: None,
        }
    }
}

/// Kind of source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    /// A web server, one document for each GET.
    Http,
    /// A database of a PostgreSQL server, many documents for each query.
    Postgresql,
}

/// Where a source is.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SourceUrl {
    /// `https://host/documents/{id}`
    Http(HttpTemplate),
    /// `postgres://user@host/database`
    Postgres(PostgresUrl),
}

/// An `http` or `https` address with one `{id}` in its path or query.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpTemplate {
    /// As written; the query string may hold a secret.
    text: Secret,
    /// The same, fit to be seen.
    shown: String,
    uses_tls: bool,
    is_loopback: bool,
}

/// Why a text is not the address of a source. Never quotes a text that may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadSourceUrl {
    /// `https://name:password@host/`
    #[error(
        "the address holds a user name or password: give them with username and password, or bearer_token"
    )]
    Credentials,
    /// A template without a place for the id, or with more than one.
    #[error(
        "the address must hold {{id}} once, behind the host's name: write it like \"https://host/documents/{{id}}\""
    )]
    IdPlace,
    /// An address of PostgreSQL that is not right.
    #[error(transparent)]
    Postgres(#[from] super::database_url::BadDatabaseUrl),
    /// Neither.
    #[error(
        "this is not the address of a source: write \"https://host/documents/{{id}}\" or \
         \"postgres://user@host:5432/database\""
    )]
    NotAnAddress,
}

impl FromStr for SourceUrl {
    type Err = BadSourceUrl;

    fn from_str(text: &str) -> Result<Self, BadSourceUrl> {
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            return match text.parse()? {
                DatabaseUrl::Postgres(url) => Ok(Self::Postgres(url)),
                DatabaseUrl::Sqlite(_) => Err(BadSourceUrl::NotAnAddress),
            };
        }
        HttpTemplate::parse(text).map(Self::Http)
    }
}

impl HttpTemplate {
    fn parse(text: &str) -> Result<Self, BadSourceUrl> {
        let host =
            text.split_once("://").map_or("", |(_, rest)| rest.split(['/', '?']).next().unwrap_or(rest));
        if host.contains('@') {
            return Err(BadSourceUrl::Credentials);
        }
        if host.contains(ID_PLACE) || text.matches(ID_PLACE).count() != 1 {
            return Err(BadSourceUrl::IdPlace);
        }
        let url = Url::parse(&text.replace(ID_PLACE, "id")).map_err(|_| BadSourceUrl::NotAnAddress)?;
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() || url.fragment().is_some() {
            return Err(BadSourceUrl::NotAnAddress);
        }
        Ok(Self {
            text: Secret::new(text),
            shown: shown(text),
            uses_tls: url.scheme() == "https",
            is_loopback: is_loopback(&url),
        })
    }

    /// The address of one document. `None` for an id that no path can hold: `.` and `..` mean another address.
    pub fn address_of(&self, id: &str) -> Option<Url> {
        let text = self.text.expose().replace(ID_PLACE, &encoded(id));
        let url = Url::parse(&text).ok()?;
        let probe = Url::parse(&self.text.expose().replace(ID_PLACE, "x")).ok()?;
        let depth = |url: &Url| url.path_segments().map(Iterator::count);
        (depth(&url) == depth(&probe) && !is_dots(id)).then_some(url)
    }

    /// Whether the connection is encrypted.
    pub fn uses_tls(&self) -> bool {
        self.uses_tls
    }

    /// Whether the server is on this machine, so that traffic cannot be intercepted.
    pub fn is_loopback(&self) -> bool {
        self.is_loopback
    }
}

fn is_dots(id: &str) -> bool {
    matches!(id, "." | "..")
}

/// All but letters, digits, `-`, `_`, `.` and `~` as `%` and two digits (RFC 3986, "unreserved").
fn encoded(id: &str) -> Cow<'_, str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    if id.bytes().all(plain) {
        return Cow::Borrowed(id);
    }
    let mut text = String::with_capacity(id.len() * 3);
    for byte in id.bytes() {
        if plain(byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    Cow::Owned(text)
}

/// The values in a query may be keys.
fn shown(text: &str) -> String {
    let Some((path, query)) = text.split_once('?') else { return text.to_owned() };
    let parameters = query.split('&').map(|parameter| match parameter.split_once('=') {
        Some((_, ID_PLACE)) => parameter.to_owned(),
        Some((name, _)) if !name.contains(ID_PLACE) => format!("{name}={REDACTED}"),
        _ => REDACTED.to_owned(),
    });
    format!("{path}?{}", parameters.collect::<Vec<_>>().join("&"))
}

impl TryFrom<String> for SourceUrl {
    type Error = BadSourceUrl;

    fn try_from(text: String) -> Result<Self, BadSourceUrl> {
        text.parse()
    }
}

impl From<SourceUrl> for String {
    fn from(url: SourceUrl) -> String {
        url.to_string()
    }
}

impl fmt::Display for SourceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(template) => f.write_str(&template.shown),
            Self::Postgres(url) => url.fmt(f),
        }
    }
}

impl fmt::Debug for SourceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

impl fmt::Debug for HttpTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(text: &str) -> HttpTemplate {
        match text.parse() {
            Ok(SourceUrl::Http(template)) => template,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn an_id_stands_percent_encoded_in_the_address_of_its_document() {
        let template = http("https://host/documents/{id}?fields=all");
        for (id, address) in [
            ("a-1_2.~", "https://host/documents/a-1_2.~?fields=all"),
            ("a/../b?c#d", "https://host/documents/a%2F..%2Fb%3Fc%23d?fields=all"),
            ("100%", "https://host/documents/100%25?fields=all"),
            ("ä b", "https://host/documents/%C3%A4%20b?fields=all"),
            ("{id}", "https://host/documents/%7Bid%7D?fields=all"),
        ] {
            assert_eq!(template.address_of(id).unwrap().as_str(), address, "{id}");
        }
        let query = http("http://127.0.0.1:80/?id={id}");
        assert_eq!(query.address_of("a&b=c+d").unwrap().as_str(), "http://127.0.0.1/?id=a%26b%3Dc%2Bd");
    }

    #[test]
    fn an_id_never_leads_to_another_address() {
        for template in ["https://host/documents/{id}", "https://host/d/{id}/whole"] {
            for id in [".", ".."] {
                assert_eq!(http(template).address_of(id), None, "{template} {id}");
            }
        }
        let padded = http("https://host/d/{id}.");
        assert_eq!(padded.address_of("."), None, "together they mean the folder above");
    }

    #[test]
    fn query_string_is_not_shown() {
        for (text, shown) in [
            ("https://h/d/{id}", "https://h/d/{id}"),
            ("https://h/d?id={id}&key=hunter2", "https://h/d?id={id}&key=***"),
            ("https://h/d/{id}?hunter2", "https://h/d/{id}?***"),
            ("https://h/d?q=hunter2{id}", "https://h/d?q=***"),
        ] {
            let url: SourceUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            let all = format!("{url:?} {}", toml::Value::try_from(&url).unwrap());
            assert!(!all.contains("hunter2"), "{all}");
        }
    }

    #[test]
    fn invalid_source_is_refused_and_not_echoed() {
        for (text, expected) in [
            ("https://u:hunter2@h/{id}", BadSourceUrl::Credentials),
            ("https://h/hunter2", BadSourceUrl::IdPlace),
            ("https://{id}.example.com/", BadSourceUrl::IdPlace),
            ("https://h/{id}/{id}", BadSourceUrl::IdPlace),
            ("ftp://h/{id}", BadSourceUrl::NotAnAddress),
            ("https://h/{id}#x", BadSourceUrl::NotAnAddress),
            ("sqlite:{id}", BadSourceUrl::NotAnAddress),
        ] {
            let error = text.parse::<SourceUrl>().unwrap_err();
            assert_eq!(error, expected, "{text}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        let error = "postgres://u:hunter2@h/d".parse::<SourceUrl>().unwrap_err();
        assert!(error.to_string().contains("password_file") && !error.to_string().contains("hunter2"));
    }
}
