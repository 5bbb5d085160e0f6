//! Database URLs. They never contain a password, because URLs are logged.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use url::Url;

/// How a connection to PostgreSQL is encrypted; libpq's `sslmode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SslMode {
    /// No TLS.
    Disable,
    /// TLS if the server offers it, otherwise plaintext; the default. An attacker can force plaintext.
    Prefer,
    /// TLS required; the server certificate is not verified.
    Require,
    /// TLS required; the certificate must be signed by a trusted CA.
    VerifyCa,
    /// As `VerifyCa`, and the certificate must match the host name.
    VerifyFull,
}

impl SslMode {
    const ALL: [(&'static str, Self); 5] = [
        ("disable", Self::Disable),
        ("prefer", Self::Prefer),
        ("require", Self::Require),
        ("verify-ca", Self::VerifyCa),
        ("verify-full", Self::VerifyFull),
    ];

    /// Whether unencrypted connections are refused.
    pub fn insists(self) -> bool {
        !matches!(self, Self::Disable | Self::Prefer)
    }
}

/// A database URL.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DatabaseUrl {
    /// `sqlite:<path>`
    Sqlite(PathBuf),
    /// `postgres://<user>@<host>:<port>/<database>?sslmode=<mode>`
    Postgres(PostgresUrl),
}

/// The URL of a PostgreSQL database: user, host and database, without password.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    url: Url,
    ssl_mode: SslMode,
}

/// Why a text is not a database URL. The messages never quote it, since it may contain a password.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadDatabaseUrl {
    /// `postgres://name:password@host/database`
    #[error("the URL contains a password: set it with password or password_file")]
    Password,
    /// Unknown kind of database, or an incomplete URL.
    #[error(
        "not a database URL: write \"sqlite:geofold.db\" or \
         \"postgres://user@host:5432/database\", with ?sslmode=verify-full for TLS"
    )]
    NotAnAddress,
    /// Unknown parameters.
    #[error(
        "the URL may end with ?sslmode=disable|prefer|require|verify-ca|verify-full and no other parameter"
    )]
    Parameter,
}

impl Default for DatabaseUrl {
    fn default() -> Self {
        Self::Sqlite(PathBuf::from("geofold.db"))
    }
}

impl DatabaseUrl {
    /// The same with a relative path starting at `folder`.
    pub(super) fn resolve(&mut self, folder: &Path) {
        if let Self::Sqlite(path) = self {
            *path = folder.join(&*path);
        }
    }
}

impl PostgresUrl {
    /// The server.
    pub fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.url.port().unwrap_or(5432)
    }

    /// Who geofold is to the server.
    pub fn user(&self) -> &str {
        self.url.username()
    }

    /// The database.
    pub fn database(&self) -> &str {
        self.url.path().trim_start_matches('/')
    }

    /// How the connection is encrypted.
    pub fn ssl_mode(&self) -> SslMode {
        self.ssl_mode
    }

    /// Whether the server is on this machine, so that traffic cannot be intercepted.
    pub fn is_loopback(&self) -> bool {
        let host = self.host();
        host == "localhost" || host.starts_with("127.") || host == "[::1]"
    }
}

impl FromStr for DatabaseUrl {
    type Err = BadDatabaseUrl;

    fn from_str(text: &str) -> Result<Self, BadDatabaseUrl> {
        if let Some(path) = text.strip_prefix("sqlite:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            let bad = path.is_empty() || path.starts_with(':') || path.contains('?');
            return if bad { Err(BadDatabaseUrl::NotAnAddress) } else { Ok(Self::Sqlite(path.into())) };
        }
        let url = Url::parse(text).map_err(|_| BadDatabaseUrl::NotAnAddress)?;
        if url.password().is_some() {
            return Err(BadDatabaseUrl::Password);
        }
        let plain = |part: &str| !part.is_empty() && !part.contains(['%', '/']);
        let complete = url.host_str().is_some_and(|host| !host.is_empty())
            && plain(url.username())
            && plain(url.path().trim_start_matches('/'));
        if !matches!(url.scheme(), "postgres" | "postgresql") || !complete || url.fragment().is_some() {
            return Err(BadDatabaseUrl::NotAnAddress);
        }
        let mut ssl_mode = SslMode::Prefer;
        for (key, value) in url.query_pairs() {
            let known = SslMode::ALL.iter().find(|(name, _)| key == "sslmode" && *name == value);
            ssl_mode = known.ok_or(BadDatabaseUrl::Parameter)?.1;
        }
        Ok(Self::Postgres(PostgresUrl { url, ssl_mode }))
    }
}

impl TryFrom<String> for DatabaseUrl {
    type Error = BadDatabaseUrl;

    fn try_from(text: String) -> Result<Self, BadDatabaseUrl> {
        text.parse()
    }
}

impl From<DatabaseUrl> for String {
    fn from(url: DatabaseUrl) -> String {
        url.to_string()
    }
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.url.as_str())
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.url.as_str())
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) => url.fmt(f),
        }
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_as_it_was_written() {
        for text in [
            "sqlite:geofold.db",
            "sqlite:/var/lib/geofold/counts.db",
            "postgres://geofold@127.0.0.1:5432/geofold",
            "postgresql://g@db.example.com/counts?sslmode=verify-full",
        ] {
            assert_eq!(text.parse::<DatabaseUrl>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn the_parts_of_a_server_s_address_have_their_usual_defaults() {
        let parse = |text: &str| match text.parse().unwrap() {
            DatabaseUrl::Postgres(url) => url,
            DatabaseUrl::Sqlite(path) => panic!("{path:?}"),
        };
        let url = parse("postgres://g@db.example.com/counts");
        assert_eq!(
            (url.user(), url.host(), url.port(), url.database()),
            ("g", "db.example.com", 5432, "counts")
        );
        assert_eq!((url.ssl_mode(), url.is_loopback()), (SslMode::Prefer, false));
        let url = parse("postgres://g@[::1]:6000/counts?sslmode=require");
        assert_eq!((url.port(), url.ssl_mode(), url.is_loopback()), (6000, SslMode::Require, true));
    }

    #[test]
    fn password_in_address_is_refused_and_never_echoed() {
        assert_eq!("postgres://g:hunter2@h/d".parse::<DatabaseUrl>(), Err(BadDatabaseUrl::Password));
        for text in [
            "",
            "sqlite:",
            "sqlite::memory:",
            "hunter2",
            "mysql://g@h/d",
            "postgres://h/d",
            "postgres://g@h",
            "postgres://g@h/",
            "postgres://g@h/a/b",
        ] {
            assert_eq!(text.parse::<DatabaseUrl>(), Err(BadDatabaseUrl::NotAnAddress), "{text}");
        }
        for query in ["sslmode=maybe", "password=hunter2", "sslrootcert=x"] {
            let url = format!("postgres://g@h/d?{query}");
            assert_eq!(url.parse::<DatabaseUrl>(), Err(BadDatabaseUrl::Parameter), "{url}");
        }
    }

    #[test]
    fn a_relative_file_starts_at_the_folder_it_is_given() {
        let mut url = DatabaseUrl::default();
        url.resolve(Path::new("/etc/geofold"));
        assert_eq!(url.to_string(), "sqlite:/etc/geofold/geofold.db");
        url.resolve(Path::new("/elsewhere"));
        assert_eq!(url.to_string(), "sqlite:/etc/geofold/geofold.db");
    }
}
