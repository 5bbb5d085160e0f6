//! The [`Elastic`] trait over HTTP, on the `elasticsearch` crate.
//!
//! One transport for each node. The crate's own pools are not used: they neither notice dead nodes nor survive a failed
//! sniff; [`Nodes`] chooses instead. Nothing is tried again here; that is `rounds/`. Bodies are passed to the crate as
//! finished `Bytes`, which it sends without a copy. Proxy variables of the environment are respected.

use std::error::Error as _;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use elasticsearch::auth::{ClientCertificate, Credentials};
use elasticsearch::cert::{Certificate, CertificateValidation};
use elasticsearch::http::Method as HttpMethod;
use elasticsearch::http::headers::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER,
};
use elasticsearch::http::transport::{SingleNodeConnectionPool, Transport, TransportBuilder};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;
use thiserror::Error;
use url::Url;

use super::aws::{self, RequestToSign, Signer};
use super::encode::MAX_PREFIX_BYTES;
use super::nodes::{Nodes, NodesObserver};
use super::plain_placements::{self, PlacementSearch, PlacementSearches};
use super::refreshes::RefreshCounts;
use super::{
    AdminAnswer, AdminCall, BulkAnswer, BulkOp, CallError, Elastic, Get, GetAnswer, Index, Method, compress,
    decode, encode, refreshes,
};
use crate::base::clock::Clock;
use crate::io::aws::credentials::KeySource;
use crate::support::tls;
use crate::support::tls::ClientIdentity;

/// Indices named in one request to refresh them or to count their refreshes: with the longest prefix and the longest ids they fit a request line.
const NAMED_AT_ONCE: usize = 20;

/// An answer that announces more than this is not read.
const MAX_ANSWER_BYTES: u64 = 256 << 20;

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

/// Elasticsearch, over HTTP.
pub struct HttpElastic {
    targets: Vec<Target>,
    nodes: Mutex<Nodes>,
    signer: Option<Signer>,
    compress_requests: bool,
    observer: Option<Arc<dyn NodesObserver>>,
    prefix: String,
    clock: Arc<dyn Clock>,
    placements: PlacementSearches,
}

struct Target {
    /// Ends with a slash.
    url: Url,
    transport: Transport,
}

/// A node's response, with any status.
struct Answer {
    status: u16,
    retry_after: Option<Duration>,
    body: Bytes,
}

/// A request of a client that is passed on.
#[derive(Debug, Clone)]
pub struct Forward<'a> {
    /// Method.
    pub method: Method,
    /// Path and query.
    pub path: &'a str,
    /// Content type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: Option<Bytes>,
    /// Further headers. `Authorization` takes the place of the configured credentials.
    pub headers: HeaderMap,
}

/// A node of the cluster, by its place in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node(usize);

/// What came back from [`HttpElastic::forward`].
#[derive(Debug, Clone)]
pub struct Forwarded {
    /// HTTP status.
    pub status: u16,
    /// The `Retry-After` header, if it was there.
    pub retry_after: Option<Duration>,
    /// The body.
    pub body: Bytes,
}

impl Answer {
    /// The body; an error for a status other than success.
    fn success(self) -> Result<Bytes, CallError> {
        if (200..300).contains(&self.status) {
            return Ok(self.body);
        }
        let (kind, reason) = decode::error_body(&self.body);
        Err(CallError::Status { status: self.status, kind, reason, retry_after: self.retry_after })
    }
}

impl fmt::Debug for HttpElastic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A transport would show its credentials.
        let urls: Vec<_> = self.targets.iter().map(|target| target.url.as_str()).collect();
        f.debug_struct("HttpElastic")
            .field("urls", &urls)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl HttpElastic {
    /// Checks the options and makes a client of them. No connection is opened yet.
    pub fn connect(options: &HttpOptions, clock: Arc<dyn Clock>) -> Result<Self, ConnectError> {
        if options.urls.is_empty() {
            return Err(ConnectError::NoUrl);
        }
        check_prefix(&options.prefix)?;
        let credentials = credentials(&options.auth)?;
        let signer = match &options.auth {
            Auth::Aws { region, service, source } => {
                Some(Signer::new(region.clone(), service, source.clone()).map_err(ConnectError::Client)?)
            }
            Auth::None | Auth::Basic { .. } | Auth::ApiKey(_) => None,
        };
        let targets = options
            .urls
            .iter()
            .map(|url| Target::new(url, credentials.clone(), options))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            nodes: Mutex::new(Nodes::new(targets.len())),
            targets,
            signer,
            compress_requests: options.compress_requests,
            observer: None,
            prefix: options.prefix.clone(),
            clock,
            placements: PlacementSearches::default(),
        })
    }

    /// Reports to `observer` how many nodes answer: now, and on every change.
    #[must_use]
    pub fn observed_by(mut self, observer: Arc<dyn NodesObserver>) -> Self {
        let (up, down) = self.nodes().up_and_down();
        observer.nodes(up, down);
        self.observer = Some(observer);
        self
    }

    /// Prefix of all index names.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The node for a request: whose turn it is; or, if node `first` has the request already, another one if there is one.
    pub fn node(&self, first: Option<Node>) -> Node {
        let now = self.clock.now();
        let mut nodes = self.nodes();
        Node(match first {
            None => nodes.pick(now),
            Some(Node(first)) => nodes.pick_besides(first, now),
        })
    }

    /// Sends a client's request to a node of [`HttpElastic::node`] and gives what came back, whatever its status.
    pub async fn forward(
        &self,
        Node(node): Node,
        request: Forward<'_>,
        timeout: Duration,
    ) -> Result<Forwarded, CallError> {
        let Forward { method, path, content_type, body, headers: more } = request;
        let mut headers = Target::headers(content_type);
        headers.extend(more);
        if let Some(authorization) = headers.get_mut(AUTHORIZATION) {
            authorization.set_sensitive(true);
        }
        let answer = self.send_to(node, method.into(), path, headers, body, timeout).await?;
        Ok(Forwarded { status: answer.status, retry_after: answer.retry_after, body: answer.body })
    }

    /// Sends one request to the node whose turn it is.
    async fn send(
        &self,
        method: HttpMethod,
        path: &str,
        content_type: &'static str,
        body: Option<Bytes>,
        timeout: Duration,
    ) -> Result<Answer, CallError> {
        let node = self.nodes().pick(self.clock.now());
        self.send_to(node, method, path, Target::headers(content_type), body, timeout).await
    }

    async fn send_to(
        &self,
        node: usize,
        method: HttpMethod,
        path: &str,
        mut headers: HeaderMap,
        mut body: Option<Bytes>,
        timeout: Duration,
    ) -> Result<Answer, CallError> {
        let target = &self.targets[node];
        // What it takes to compress and to have keys is no longer there: nothing may be under way after its time.
        let began = (self.compress_requests || self.signer.is_some()).then(|| self.clock.now());
        let left = || began.map_or(timeout, |began| timeout.saturating_sub(self.clock.now().since(began)));
        if self.compress_requests
            && let Some(whole) = &body
            && let Some(compressed) = compress::gzip(whole).await
        {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            body = Some(compressed);
        }
        if let Some(signer) = &self.signer {
            target.sign(signer, method, path, &mut headers, &body, left()).await?;
        }
        let left = left();
        if left.is_zero() {
            return Err(match &self.signer {
                Some(_) => CallError::Unsigned(format!("it took all of {timeout:?} to have keys")),
                None => CallError::Timeout(timeout),
            });
        }
        let mut answer = target.send(method, path, headers, body, left).await;
        if let (Some(_), Ok(answer)) = (&self.signer, &mut answer)
            && let Some((status, body)) = aws::explain(answer.status, &answer.body)
        {
            *answer = Answer { status, body, ..*answer };
        }
        let failure = match &answer {
            Ok(answer) if matches!(answer.status, 502 | 503) && !is_about_shards(&answer.body) => {
                Some(format!("it answered {}", answer.status))
            }
            Err(error @ (CallError::Connection(_) | CallError::Timeout(_))) => Some(error.to_string()),
            Ok(_) | Err(_) => None,
        };
        self.note(node, failure);
        answer
    }

    /// Records how a node's request ended; logs changes.
    fn note(&self, node: usize, failure: Option<String>) {
        let url = &self.targets[node].url;
        let mut nodes = self.nodes();
        let is_news = match failure {
            None => {
                let is_news = nodes.succeeded(node);
                if is_news {
                    tracing::info!(%url, "an elasticsearch node answers again");
                }
                is_news
            }
            Some(failure) => {
                let rest = nodes.failed(node, self.clock.now());
                if let Some(rest) = rest {
                    tracing::warn!(%url, ?rest, "an elasticsearch node does not answer and is skipped: {failure}");
                }
                rest.is_some()
            }
        };
        if let Some(observer) = self.observer.as_ref().filter(|_| is_news) {
            let (up, down) = nodes.up_and_down();
            // Under the lock, so that observers see states in order.
            observer.nodes(up, down);
        }
    }

    /// Like [`HttpElastic::send`]; a status other than success is an error.
    async fn post(
        &self,
        path: &str,
        content_type: &'static str,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, CallError> {
        self.send(HttpMethod::Post, path, content_type, Some(body), timeout).await?.success()
    }

    /// Reads placements as `plain_placements.rs` says.
    async fn mget_placements(
        &self,
        gets: &[Get],
        search: &PlacementSearch,
        timeout: Duration,
    ) -> Result<Vec<GetAnswer>, CallError> {
        const JSON: &str = "application/json";
        let now = || self.clock.now();
        let until = now() + timeout;
        let left = || until.since(now());
        let refresh = async { self.refresh(&[Index::Placements], left()).await };
        let mut answers = vec![None; gets.len()];
        if self.placements.are_since(search.since, now, refresh).await {
            let (path, body) = (plain_placements::search_path(&self.prefix), search.body(gets));
            let found = self.post(&path, JSON, body, left()).await.and_then(|answer| search.answer(&answer));
            let found = found.unwrap_or_else(|error| {
                tracing::debug!(%error, "no placements by search; they are read one by one");
                Vec::new()
            });
            self.placements.note(search, found.len(), now());
            for (place, document) in found {
                answers[place] = Some(GetAnswer::Found(document));
            }
        }
        let rest: Vec<Get> = gets
            .iter()
            .zip(&answers)
            .filter(|(_, answer)| answer.is_none())
            .map(|(get, _)| get.clone())
            .collect();
        let mut read = Vec::new();
        if !rest.is_empty() {
            let body = encode::mget_body(&rest, &self.prefix);
            let answer = self.post(encode::MGET_PATH, JSON, body, left()).await?;
            read = decode::mget_answer(&answer, rest.len())?;
        }
        let mut read = read.into_iter();
        Ok(answers.into_iter().filter_map(|answer| answer.or_else(|| read.next())).collect())
    }

    fn nodes(&self) -> std::sync::MutexGuard<'_, Nodes> {
        // No code that holds the lock can leave the nodes half changed.
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Elastic for HttpElastic {
    fn mget<'a>(
        &'a self,
        gets: &'a [Get],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<GetAnswer>, CallError>> {
        self.mget_again(gets, 0, timeout)
    }

    fn mget_again<'a>(
        &'a self,
        gets: &'a [Get],
        look: usize,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<GetAnswer>, CallError>> {
        async move {
            if look == 0
                && let Some(search) = PlacementSearch::of(gets)
                && self.placements.are_on(self.clock.now())
            {
                return self.mget_placements(gets, &search, timeout).await;
            }
            let body = Some(encode::mget_body(gets, &self.prefix));
            let node = self.nodes().pick_for(look, self.clock.now());
            let headers = Target::headers("application/json");
            let answer =
                self.send_to(node, HttpMethod::Post, encode::MGET_PATH, headers, body, timeout).await?;
            decode::mget_answer(&answer.success()?, gets.len())
        }
        .boxed()
    }

    fn bulk_refs<'a>(
        &'a self,
        ops: &'a [&'a BulkOp],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<BulkAnswer>, CallError>> {
        async move {
            let body = encode::bulk_body(ops, &self.prefix);
            let path = encode::bulk_path(ops, timeout);
            let answer = self.post(&path, "application/x-ndjson", body, timeout).await?;
            decode::bulk_answer(&answer, ops.len())
        }
        .boxed()
    }

    fn refresh<'a>(
        &'a self,
        indices: &'a [Index],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<(), CallError>> {
        async move {
            // Elasticsearch's longest request line has 4 KB.
            for some in indices.chunks(NAMED_AT_ONCE) {
                let names: Vec<String> = some.iter().map(|index| index.name(&self.prefix)).collect();
                let path = format!("/{}/_refresh", names.join(","));
                let answer = self.post(&path, "application/json", Bytes::new(), timeout).await?;
                let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
                if answer["_shards"]["failed"].as_u64() != Some(0) {
                    return Err(CallError::Undecodable("not every shard was refreshed".to_owned()));
                }
            }
            Ok(())
        }
        .boxed()
    }

    fn count_refreshes<'a>(
        &'a self,
        indices: &'a [Index],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<RefreshCounts>, CallError>> {
        async move {
            let mut counts = Vec::with_capacity(indices.len());
            for some in indices.chunks(NAMED_AT_ONCE) {
                let names: Vec<String> = some.iter().map(|index| index.name(&self.prefix)).collect();
                let (path, no_body) = (refreshes::path(&names), None);
                let answer = self.send(HttpMethod::Get, &path, "application/json", no_body, timeout).await?;
                let answer: Value = serde_json::from_slice(&answer.success()?).unwrap_or_default();
                counts.extend(names.iter().map(|name| refreshes::read(&answer, name)));
            }
            Ok(counts)
        }
        .boxed()
    }

    fn admin<'a>(
        &'a self,
        call: AdminCall,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<AdminAnswer, CallError>> {
        async move {
            let (status, body) = self.admin_bytes(call, timeout).await?;
            Ok(AdminAnswer { status, body: serde_json::from_slice(&body).unwrap_or(Value::Null) })
        }
        .boxed()
    }

    fn admin_bytes<'a>(
        &'a self,
        call: AdminCall,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<(u16, Bytes), CallError>> {
        async move {
            let body = call.body.map(|body| Bytes::from(body.to_string()));
            let answer = self.send(call.method.into(), &call.path, "application/json", body, timeout).await?;
            Ok((answer.status, answer.body))
        }
        .boxed()
    }
}

impl From<Method> for HttpMethod {
    fn from(method: Method) -> Self {
        match method {
            Method::Get => Self::Get,
            Method::Head => Self::Head,
            Method::Put => Self::Put,
            Method::Post => Self::Post,
            Method::Delete => Self::Delete,
        }
    }
}

impl Target {
    fn new(url: &Url, credentials: Option<Credentials>, options: &HttpOptions) -> Result<Self, ConnectError> {
        let mut url = check_url(url)?;
        if !url.path().ends_with('/') {
            url.set_path(&format!("{}/", url.path()));
        }
        let mut builder = TransportBuilder::new(SingleNodeConnectionPool::new(url.clone()))
            .timeout(options.request_timeout);
        if let Some(identity) = &options.identity {
            let pem = ClientCertificate::Pem(identity.pem().to_vec());
            builder = builder.auth(Credentials::Certificate(pem));
        }
        if let Some(pem) = &options.ca_pem {
            let certificates = Certificate::from_pem(pem).map_err(|error| ConnectError::Ca(chain(&error)))?;
            builder = builder.cert_validation(CertificateValidation::Full(certificates));
        }
        let transport = builder.build().map_err(|error| ConnectError::Client(error.to_string()))?;
        // The crate's builder takes either these or a certificate, and the client that it has built keeps the certificate.
        if let Some(credentials) = credentials {
            transport.set_auth(credentials);
        }
        Ok(Self { url, transport })
    }

    fn headers(content_type: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        // Responses are small or forwarded at once: compression would cost the server more than it saves, and hide their
        // length.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers
    }

    /// Adds the signature of a request with these headers and this body, as they are sent: the transport changes neither.
    async fn sign(
        &self,
        signer: &Signer,
        method: HttpMethod,
        path: &str,
        headers: &mut HeaderMap,
        body: &Option<Bytes>,
        timeout: Duration,
    ) -> Result<(), CallError> {
        // As the transport will make it.
        let url = self.url.join(path.trim_start_matches('/'));
        let url = &url.map_err(|error| CallError::Unsigned(error.to_string()))?;
        let method = match method {
            HttpMethod::Get => "GET",
            HttpMethod::Put => "PUT",
            HttpMethod::Post => "POST",
            HttpMethod::Delete => "DELETE",
            HttpMethod::Head => "HEAD",
        };
        let request = RequestToSign { method, url, body: body.as_deref().unwrap_or_default() };
        signer.sign(&request, headers, timeout).await.map_err(CallError::Unsigned)
    }

    async fn send(
        &self,
        method: HttpMethod,
        path: &str,
        headers: HeaderMap,
        body: Option<Bytes>,
        timeout: Duration,
    ) -> Result<Answer, CallError> {
        let failure = |error| self.failure(&error, timeout);
        let response = self
            .transport
            .send(method, path, headers, None::<&()>, body, Some(timeout))
            .await
            .map_err(failure)?;
        // The client follows redirects, and makes a GET of a POST on the way.
        if self.url.join(path.trim_start_matches('/')).is_ok_and(|asked| asked != *response.url()) {
            return Err(CallError::Undecodable(format!(
                "{} redirects to another address; set elasticsearch.urls to that of elasticsearch itself",
                self.url
            )));
        }
        if let Some(bytes) = response.content_length().filter(|&bytes| bytes > MAX_ANSWER_BYTES) {
            return Err(CallError::TooLarge { bytes, most: MAX_ANSWER_BYTES });
        }
        let status = response.status_code().as_u16();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(retry_after);
        let body = response.bytes().await.map_err(failure)?;
        Ok(Answer { status, retry_after, body })
    }

    fn failure(&self, error: &elasticsearch::Error, timeout: Duration) -> CallError {
        if error.is_timeout() {
            return CallError::Timeout(timeout);
        }
        let cause = chain(error);
        let advice = advice(&cause);
        CallError::Connection(format!("{}: {}{advice}", self.url, decode::shorten(&cause, 300)))
    }
}

/// Whether an error is about shards that could not be searched, not about the node that answered.
fn is_about_shards(body: &[u8]) -> bool {
    decode::error_body(body).0 == "search_phase_execution_exception"
}

/// What an operator can do about a connection error, as the end of a sentence.
fn advice(cause: &str) -> &'static str {
    // An alert is about the certificate of this side.
    if let Some((_, alert)) = cause.split_once("received fatal alert: ") {
        if alert.starts_with("CertificateRequired") {
            "; the server demands a client certificate: set elasticsearch.client_cert_file and client_key_file"
        } else if alert.contains("Certificate") || alert.starts_with("UnknownCA") {
            "; the server refuses the client certificate, or demands one: look at elasticsearch.client_cert_file"
        } else {
            ""
        }
    } else if tls::is_untrusted(cause) {
        "; the server's certificate is not trusted: set elasticsearch.ca_file"
    } else if cause.contains("NotValidForName") || cause.contains("not valid for name") {
        "; the server's certificate is for another host name: use that name in elasticsearch.urls"
    } else if cause.contains("Expired") || cause.contains("certificate expired") {
        "; the server's certificate has expired: renew it"
    } else if cause.contains("InvalidContentType") {
        "; the server does not speak TLS there: use http:// in elasticsearch.urls, or another port"
    } else {
        ""
    }
}

/// The causes of an error, outermost first. The client's own line, which would repeat the whole address, is left out.
fn chain(error: &elasticsearch::Error) -> String {
    let mut causes = Vec::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !text.starts_with("error sending request") && !text.starts_with("client error") {
            causes.push(text);
        }
        cause = error.source();
    }
    if causes.is_empty() { error.to_string() } else { causes.join(": ") }
}

/// Seconds; Elasticsearch and the usual proxies send no dates.
fn retry_after(value: &HeaderValue) -> Option<Duration> {
    value.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

fn check_url(url: &Url) -> Result<Url, ConnectError> {
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
fn check_prefix(prefix: &str) -> Result<(), ConnectError> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let fits = prefix.len() <= MAX_PREFIX_BYTES
        && prefix.bytes().next().is_some_and(plain)
        && prefix.bytes().all(|byte| plain(byte) || b"-_.".contains(&byte));
    if fits { Ok(()) } else { Err(ConnectError::Prefix(prefix.to_owned())) }
}

fn credentials(auth: &Auth) -> Result<Option<Credentials>, ConnectError> {
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

#[cfg(test)]
mod tests;
