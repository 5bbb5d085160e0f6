//! The [`Elastic`] trait over HTTP, on the `elasticsearch` crate.
//!
//! One transport for each node. The crate's own pools are not used: they neither notice dead nodes nor survive a failed
//! sniff; [`Nodes`] chooses instead. Nothing is tried again here; that is `rounds/`. Bodies are passed to the crate as
//! finished `Bytes`, which it sends without a copy. Proxy variables of the environment are respected.

mod node_client;
mod options;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use elasticsearch::http::Method as HttpMethod;
use elasticsearch::http::headers::{AUTHORIZATION, CONTENT_ENCODING, HeaderMap, HeaderValue};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;

use self::node_client::{Answer, NodeClient};
pub use self::options::{Auth, ConnectError, HttpOptions};
use self::options::{check_prefix, credentials};
use super::aws::{self, Signer};
use super::nodes::{Nodes, NodesObserver};
use super::plain_placements::{self, PlacementRequests, PlacementSearch, PlacementSearches};
use super::refreshes::RefreshCounts;
use super::{
    AdminAnswer, AdminCall, BulkAnswer, BulkOp, CallError, Elastic, Get, GetAnswer, Index, Method, compress,
    decode, encode, refreshes,
};
use crate::base::clock::Clock;

/// Indices named in one request to refresh them or to count their refreshes: with the longest prefix and the longest ids they fit a request line.
const NAMED_AT_ONCE: usize = 20;

/// Elasticsearch, over HTTP.
pub struct HttpElastic {
    clients: Vec<NodeClient>,
    nodes: Mutex<Nodes>,
    signer: Option<Signer>,
    compress_requests: bool,
    observer: Option<Arc<dyn NodesObserver>>,
    prefix: String,
    clock: Arc<dyn Clock>,
    placements: PlacementSearches,
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

impl fmt::Debug for HttpElastic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A transport would show its credentials.
        let urls: Vec<_> = self.clients.iter().map(|client| client.url.as_str()).collect();
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
        let clients = options
            .urls
            .iter()
            .map(|url| NodeClient::new(url, credentials.clone(), options))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            nodes: Mutex::new(Nodes::new(clients.len())),
            clients,
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
        let mut headers = NodeClient::headers(content_type);
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
        self.send_to(node, method, path, NodeClient::headers(content_type), body, timeout).await
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
        let client = &self.clients[node];
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
            client.sign(signer, method, path, &mut headers, &body, left()).await?;
        }
        let left = left();
        if left.is_zero() {
            return Err(match &self.signer {
                Some(_) => CallError::Unsigned(format!("it took all of {timeout:?} to have keys")),
                None => CallError::Timeout(timeout),
            });
        }
        let mut answer = client.send(method, path, headers, body, left).await;
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
        let url = &self.clients[node].url;
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

    fn nodes(&self) -> std::sync::MutexGuard<'_, Nodes> {
        // No code that holds the lock can leave the nodes half changed.
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The requests for many placements.
struct OfPlacements<'a>(&'a HttpElastic);

impl PlacementRequests for OfPlacements<'_> {
    async fn refresh(&self, most: Duration) -> Result<(), CallError> {
        self.0.refresh(&[Index::Placements], most).await
    }

    async fn search(&self, body: Bytes, most: Duration) -> Result<Bytes, CallError> {
        let path = plain_placements::search_path(&self.0.prefix);
        self.0.post(&path, "application/json", body, most).await
    }

    async fn mget(&self, gets: &[Get], most: Duration) -> Result<Vec<GetAnswer>, CallError> {
        let body = encode::mget_body(gets, &self.0.prefix);
        let answer = self.0.post(encode::MGET_PATH, "application/json", body, most).await?;
        decode::mget_answer(&answer, gets.len())
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
                let now = || self.clock.now();
                return self.placements.read(gets, &search, timeout, now, &OfPlacements(self)).await;
            }
            let body = Some(encode::mget_body(gets, &self.prefix));
            let node = self.nodes().pick_for(look, self.clock.now());
            let headers = NodeClient::headers("application/json");
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

/// Whether an error is about shards that could not be searched, not about the node that answered.
fn is_about_shards(body: &[u8]) -> bool {
    decode::error_body(body).0 == "search_phase_execution_exception"
}

#[cfg(test)]
mod tests;
