//! Where Elasticsearch is, how to speak to it, and what can be wrong with that.

use std::fmt;
use std::time::Duration;

use elasticsearch::auth::Credentials;
use thiserror::Error;
use url::Url;

use crate::io::aws::credentials::KeySource;
use crate::io::elastic::encode::MAX_PREFIX_BYTES;
use crate::support::tls::ClientIdentity;

/// How geofold proves who it is. Never shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub enum Auth {
    /// Not at all.
    None,
    /// Basic authentication.
    Basic {
        /// User name.
        user: String,
        /// Password.
        password: String,
    },
    /// An API key: encoded, as Elasticsearch gives it out, or as `id:secret`.
    ApiKey(String),
    /// Each request is signed, as Amazon OpenSearch Service wants it.
    Aws {
        /// The region of the domain.
        region: String,
        /// The service's name in a signature: `es`, `aoss`.
        service: &'static str,
        /// Where the keys come from.
        source: KeySource,
    },
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Basic { .. } => "Basic(redacted)",
            Self::ApiKey(_) => "ApiKey(redacted)",
            Self::Aws { .. } => "Aws(redacted)",
        })
    }
}

/// Where Elasticsearch is, and how to speak to it.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// One address for each node, `http` or `https`, without user name or password. A path is kept as a prefix.
    pub urls: Vec<Url>,
    /// Credentials, the same for all nodes.
    pub auth: Auth,
    /// PEM certificates of authorities to trust besides the public ones.
    pub ca_pem: Option<Vec<u8>>,
    /// Certificate and key for servers that demand one, beside the credentials.
    pub identity: Option<ClientIdentity>,
    /// Whether bodies of requests are compressed, except small ones.
    pub compress_requests: bool,
    /// Prefix of all index names; 1 to [`MAX_PREFIX_BYTES`] bytes.
    pub prefix: String,
    /// Limit for a request that is given none; each call brings its own.
    pub request_timeout: Duration,
}

impl HttpOptions {
    /// Without credentials, and with the public authorities; uncompressed.
    pub fn new(urls: Vec<Url>, prefix: impl Into<String>, request_timeout: Duration) -> Self {
        Self {
            urls,
            auth: Auth::None,
            ca_pem: None,
            identity: None,
            compress_requests: false,
            prefix: prefix.into(),
            request_timeout,
        }
    }
}

/// Why a client cannot be made of [`HttpOptions`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConnectError {
    /// Nowhere to connect to.
    #[error("elasticsearch.urls is empty; give the address of at least one node")]
    NoUrl,
    /// An address that cannot be used. The address is shown without user name and password.
    #[error("elasticsearch.urls: {url} cannot be used: {reason}")]
    Url {
        /// The address.
        url: String,
        /// The problem, and what to do.
        reason: &'static str,
    },
    /// The index prefix cannot begin an index name.
    #[error(
        "the index prefix {0:?} cannot begin an index name; use 1 to 64 lower-case letters, digits, '-', '_' and '.', and begin with a letter or digit"
    )]
    Prefix(String),
    /// The API key cannot be sent in a header.
    #[error("elasticsearch.api_key has characters that no API key has; check for spaces and line breaks")]
    ApiKey,
    /// The certificates cannot be read.
    #[error("elasticsearch.ca_file does not hold a PEM certificate that can be used: {0}")]
    Ca(String),
    /// The HTTP client cannot be made.
    #[error("could not set up the http client for elasticsearch: {0}")]
    Client(String),
}

/// The address without user name and password, if it can be used.
pub(super) fn check_url(url: &Url) -> Result<Url, ConnectError> {
    let mut shown = url.clone();
    let has_user = !url.username().is_empty() || url.password().is_some();
    let stripped = shown.set_username("").is_ok() && shown.set_password(None).is_ok();
    let bad = |reason| {
        let url = if stripped || !has_user { shown.to_string() } else { format!("{}:…", url.scheme()) };
        Err(ConnectError::Url { url, reason })
    };
    if !matches!(url.scheme(), "http" | "https") {
        return bad("it must begin with http:// or https://");
    }
    if has_user {
        return bad("a user name or password in an address ends up in logs; use elasticsearch.username and \
                    elasticsearch.password");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return bad("it must have neither '?' nor '#'");
    }
    Ok(shown)
}

/// The rules for index names that concern their beginning.
pub(super) fn check_prefix(prefix: &str) -> Result<(), ConnectError> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let fits = prefix.len() <= MAX_PREFIX_BYTES
        && prefix.bytes().next().is_some_and(plain)
        && prefix.bytes().all(|byte| plain(byte) || b"-_.".contains(&byte));
    if fits { Ok(()) } else { Err(ConnectError::Prefix(prefix.to_owned())) }
}

/// What the crate is given; it does not sign.
pub(super) fn credentials(auth: &Auth) -> Result<Option<Credentials>, ConnectError> {
    Ok(match auth {
        Auth::None | Auth::Aws { .. } => None,
        Auth::Basic { user, password } => Some(Credentials::Basic(user.clone(), password.clone())),
        // The crate panics on a key that cannot be sent in a header.
        Auth::ApiKey(key) if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) => {
            return Err(ConnectError::ApiKey);
        }
        Auth::ApiKey(key) => Some(match key.split_once(':') {
            Some((id, secret)) => Credentials::ApiKey(id.to_owned(), secret.to_owned()),
            None => Credentials::EncodedApiKey(key.clone()),
        }),
    })
}
