//! The router's HTTP: Elasticsearch's paths for searches of one index, health, metrics, and the load by cell.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::error::{RouterRefusal, SearchFailure, quoted};
use super::request::{CountRequest, SearchRequest, parse_body};
use super::service::{SearchResult, Service};
use super::upstream::Caller;
use crate::support::telemetry::health::Health;
use crate::support::telemetry::probes::probe_routes;
use crate::support::telemetry::route::{Answered, Operation};
use crate::support::telemetry::traces::{RequestTrace, Traces};

/// Searches of one `_msearch`.
const MAX_SEARCHES: usize = 100;
/// Searches of one `_msearch` at once.
const SEARCHES_AT_ONCE: usize = 5;

const ASKED: HeaderName = HeaderName::from_static("x-geofold-geoshards-asked");
const TOTAL: HeaderName = HeaderName::from_static("x-geofold-geoshards-total");
const PRODUCT: HeaderName = HeaderName::from_static("x-elastic-product");

/// What the routes answer from.
#[derive(Clone)]
pub struct RouteState {
    /// Answers searches.
    pub service: Arc<Service>,
    /// The index prefix: the name that clients search.
    pub prefix: Arc<str>,
    /// For probes.
    pub health: Arc<Health>,
    /// Traces of requests.
    pub traces: Traces,
    /// Set when no further request is taken.
    pub is_draining: Arc<AtomicBool>,
    /// Requests under way.
    pub under_way: TaskTracker,
}

/// The router's routes.
pub fn routes(state: RouteState) -> Router {
    let metrics = state.service.metrics.clone();
    Router::new()
        .route("/", get(root))
        .route("/_search", any(search_all))
        .route("/_msearch", any(msearch_all))
        .route("/{index}/_search", any(search))
        .route("/{index}/_count", any(count))
        .route("/{index}/_msearch", any(msearch))
        .route("/load.json", get(load))
        .merge(probe_routes(state.health.clone(), "the router has made no progress", move || {
            metrics.render()
        }))
        .fallback(unknown)
        .method_not_allowed_fallback(unknown)
        .with_state(state)
        .layer(map_response(with_product))
}

/// Official clients speak to no server without this header.
async fn with_product(mut response: Response) -> Response {
    response.headers_mut().insert(PRODUCT, HeaderValue::from_static("Elasticsearch"));
    response
}

/// Names and values, as in a query string.
type Parameters = Vec<(String, String)>;

/// What a request brings besides its path.
struct Asked {
    body: Bytes,
    parameters: Parameters,
    authorization: Option<HeaderValue>,
}

impl Asked {
    fn caller<'a>(&'a self, trace: &'a RequestTrace) -> Caller<'a> {
        Caller { authorization: self.authorization.as_ref(), trace: Some(trace) }
    }
}

/// The content type of answers to a client that accepts this.
fn content_type(headers: &HeaderMap) -> HeaderValue {
    let accepted = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let compatible = accepted.split(',').find_map(|kind| {
        let (_, version) =
            kind.trim().strip_prefix("application/vnd.elasticsearch+json")?.split_once("compatible-with=")?;
        version.trim().parse::<u8>().ok()
    });
    match compatible {
        None => HeaderValue::from_static("application/json"),
        Some(version) => {
            let kind = format!("application/vnd.elasticsearch+json;compatible-with={version}");
            HeaderValue::from_str(&kind).unwrap_or(HeaderValue::from_static("application/json"))
        }
    }
}

fn reply(status: u16, content_type: HeaderValue, body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn failed(failure: &SearchFailure, content_type: HeaderValue) -> Response {
    let mut response = reply(failure.status(), content_type, failure.body());
    if let Some(after) = failure.retry_after() {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(after));
    }
    response
}

fn found(found: SearchResult, content_type: HeaderValue) -> Response {
    let mut response = reply(200, content_type, found.body);
    response.headers_mut().insert(ASKED, HeaderValue::from(found.asked));
    response.headers_mut().insert(TOTAL, HeaderValue::from(found.total));
    response
}

/// Measures one request, and counts it even if its client leaves before the answer.
struct Measured<'a> {
    state: &'a RouteState,
    operation: Operation,
    began: Instant,
    outcome: Answered,
}

impl<'a> Measured<'a> {
    fn new(state: &'a RouteState, operation: Operation) -> Self {
        Self { state, operation, began: Instant::now(), outcome: Answered::Left }
    }

    fn ended(&mut self, failure: Option<&SearchFailure>) {
        self.outcome = match failure.map(SearchFailure::status) {
            None => Answered::Ok,
            Some(429) => Answered::Busy,
            Some(400..=499) => Answered::Refused,
            Some(_) => Answered::Failed,
        };
    }
}

impl Drop for Measured<'_> {
    fn drop(&mut self) {
        self.state.service.metrics.ended(self.operation, self.outcome, self.began.elapsed());
    }
}

/// Notes how a request ended, and answers it.
fn respond(
    result: Result<SearchResult, SearchFailure>,
    mut measured: Measured<'_>,
    trace: RequestTrace,
    content_type: HeaderValue,
) -> Response {
    measured.ended(result.as_ref().err());
    trace.ended(result.as_ref().map_or_else(SearchFailure::status, |_| 200));
    match result {
        Ok(answer) => found(answer, content_type),
        Err(failure) => failed(&failure, content_type),
    }
}

impl RouteState {
    /// Reads a request that is to be answered. The index has to be the prefix.
    async fn take(&self, index: Option<&str>, request: Request) -> Result<Asked, SearchFailure> {
        if self.is_draining.load(Ordering::Relaxed) {
            return Err(RouterRefusal::unavailable("the router is stopping; ask another one").into());
        }
        if let Some(index) = index {
            self.check_index(index)?;
        }
        let (head, body) = request.into_parts();
        if head.method != Method::GET && head.method != Method::POST {
            return Err(method_not_allowed(&head.method).into());
        }
        let most = self.service.options.request_max_bytes.as_usize();
        let too_large = || RouterRefusal {
            status: 413,
            kind: "content_too_long_exception",
            reason: format!(
                "the body has more than {most} bytes; send less, or raise route.request_max_bytes"
            ),
        };
        let announced =
            head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if announced.is_some_and(|bytes| bytes > most) {
            return Err(too_large().into());
        }
        if head.headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
            let reason = "a compressed body is not read; send it as it is".to_owned();
            return Err(
                RouterRefusal { status: 415, kind: "unsupported_media_type_exception", reason }.into()
            );
        }
        let body = tokio::time::timeout(self.service.options.timeout, to_bytes(body, most))
            .await
            .map_err(|_| RouterRefusal {
                status: 408,
                kind: "timeout_exception",
                reason: "the body of the request did not come in time".to_owned(),
            })?
            .map_err(|_| too_large())?;
        let query = head.uri.query().unwrap_or_default();
        Ok(Asked {
            body,
            parameters: url::form_urlencoded::parse(query.as_bytes()).into_owned().collect(),
            authorization: head.headers.get(AUTHORIZATION).cloned(),
        })
    }

    fn check_index(&self, index: &str) -> Result<(), RouterRefusal> {
        if index == &*self.prefix {
            return Ok(());
        }
        Err(RouterRefusal {
            status: 404,
            kind: "index_not_found_exception",
            reason: format!("no such index [{}]; geofold route serves [{}]", quoted(index), self.prefix),
        })
    }

    async fn search(&self, index: Option<&str>, request: Request) -> Response {
        let _under_way = self.under_way.token();
        let measured = Measured::new(self, Operation::Search);
        let trace = self.traces.request("route search", request.headers());
        let kind = content_type(request.headers());
        let result = async {
            let asked = self.take(index, request).await?;
            let search =
                SearchRequest::new(parse_body(&asked.body)?, &asked.parameters, &self.service.location)?;
            self.service.search(&search, asked.caller(&trace)).await
        };
        respond(result.await, measured, trace, kind)
    }

    async fn count(&self, index: &str, request: Request) -> Response {
        let _under_way = self.under_way.token();
        let measured = Measured::new(self, Operation::Count);
        let trace = self.traces.request("route count", request.headers());
        let kind = content_type(request.headers());
        let result = async {
            let asked = self.take(Some(index), request).await?;
            let count =
                CountRequest::new(parse_body(&asked.body)?, &asked.parameters, &self.service.location)?;
            self.service.count(&count, asked.caller(&trace)).await
        };
        respond(result.await, measured, trace, kind)
    }

    async fn msearch(&self, index: Option<&str>, request: Request) -> Response {
        let _under_way = self.under_way.token();
        let kind = content_type(request.headers());
        let trace = self.traces.request("route msearch", request.headers());
        let result = self.msearch_items(index, request, &trace).await;
        trace.ended(result.as_ref().map_or_else(SearchFailure::status, |_| 200));
        match result {
            Ok((asked, total, body)) => found(SearchResult { body, asked, total }, kind),
            Err(failure) => {
                Measured::new(self, Operation::Msearch).ended(Some(&failure));
                failed(&failure, kind)
            }
        }
    }

    /// The searches of one `_msearch`, each answered by itself.
    async fn msearch_items(
        &self,
        index: Option<&str>,
        request: Request,
        trace: &RequestTrace,
    ) -> Result<(usize, usize, Bytes), SearchFailure> {
        let began = Instant::now();
        let asked = self.take(index, request).await?;
        let mut at_once = SEARCHES_AT_ONCE;
        let mut parameters = Vec::new();
        for (name, value) in &asked.parameters {
            match name.as_str() {
                "max_concurrent_searches" => {
                    at_once = value
                        .parse()
                        .ok()
                        .filter(|&most: &usize| most > 0)
                        .map_or(at_once, |most| most.min(at_once));
                }
                _ => parameters.push((name.clone(), value.clone())),
            }
        }
        let items = split(&asked.body)?;
        let searches = items.into_iter().map(|(head, body)| {
            let (parameters, caller) = (&parameters, asked.caller(trace));
            async move {
                let mut measured = Measured::new(self, Operation::Msearch);
                let result = self.msearch_item(index, &head, &body, parameters, caller).await;
                measured.ended(result.as_ref().err());
                result
            }
        });
        let results: Vec<Result<SearchResult, SearchFailure>> =
            stream::iter(searches).buffered(at_once).collect().await;
        let most = self.service.options.response_max_bytes.as_usize();
        let mut out = Vec::new();
        let (mut shards, mut total) = (0, 0);
        for (n, result) in results.into_iter().enumerate() {
            out.extend_from_slice(if n > 0 { b"," } else { b"" });
            match result {
                Ok(found) => {
                    shards += found.asked;
                    total = total.max(found.total);
                    // The answer is an object: its status becomes the last member.
                    out.extend_from_slice(found.body.strip_suffix(b"}").unwrap_or(&found.body));
                    out.extend_from_slice(if found.body.len() > 2 {
                        b",\"status\":200}"
                    } else {
                        b"\"status\":200}"
                    });
                }
                Err(failure) => out.extend_from_slice(&failure.body()),
            }
            if out.len() > most {
                let reason = format!(
                    "the answers have more than {most} bytes together; send fewer searches, or raise \
                     route.response_max_bytes"
                );
                return Err(super::upstream::bad_gateway(reason).into());
            }
        }
        let took = began.elapsed().as_millis();
        let mut body = format!("{{\"took\":{took},\"responses\":[").into_bytes();
        body.append(&mut out);
        body.extend_from_slice(b"]}");
        Ok((shards, total, body.into()))
    }

    async fn msearch_item(
        &self,
        index: Option<&str>,
        head: &[u8],
        body: &[u8],
        parameters: &[(String, String)],
        caller: Caller<'_>,
    ) -> Result<SearchResult, SearchFailure> {
        let head = parse_body(head)?;
        let (names, own) = header_line(head)?;
        match (index, names) {
            (_, Some(names)) => self.check_index(&names)?,
            (Some(_), None) => {}
            (None, None) => {
                let reason = format!("a search of an _msearch without index; name [{}]", self.prefix);
                return Err(RouterRefusal::bad(reason).into());
            }
        }
        let parameters: Parameters = parameters.iter().cloned().chain(own).collect();
        let search = SearchRequest::new(parse_body(body)?, &parameters, &self.service.location)?;
        self.service.search(&search, caller).await
    }
}

/// The name of the index in a header line of an `_msearch`, and its other members as parameters.
fn header_line(head: Map<String, Value>) -> Result<(Option<String>, Parameters), RouterRefusal> {
    let mut names = None;
    let mut parameters = Vec::new();
    for (name, value) in head {
        let text = match value {
            Value::String(text) => text,
            Value::Array(items) => {
                let texts: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
                texts
                    .ok_or_else(|| RouterRefusal::parsing(format!("[{}] is a list of texts", quoted(&name))))?
                    .join(",")
            }
            Value::Null => continue,
            other => other.to_string(),
        };
        match name.as_str() {
            "index" | "indices" => names = Some(text),
            _ => parameters.push((name, text)),
        }
    }
    Ok((names, parameters))
}

/// The pairs of lines of an `_msearch`.
fn split(body: &Bytes) -> Result<Vec<(Bytes, Bytes)>, RouterRefusal> {
    let mut lines: Vec<&[u8]> = body.split(|&byte| byte == b'\n').collect();
    if lines.last().is_some_and(|last| last.iter().all(u8::is_ascii_whitespace)) {
        lines.pop();
    }
    if lines.is_empty() {
        return Err(RouterRefusal::parsing(
            "an _msearch has at least one search: a line about it, and a line with its body",
        ));
    }
    if lines.len() % 2 == 1 {
        return Err(RouterRefusal::parsing(
            "an _msearch has two lines for each search, one about it and one with its body; one line is missing",
        ));
    }
    if lines.len() / 2 > MAX_SEARCHES {
        return Err(RouterRefusal::bad(format!(
            "the _msearch has {} searches, and {MAX_SEARCHES} are taken; send several",
            lines.len() / 2
        )));
    }
    Ok(lines.chunks_exact(2).map(|pair| (body.slice_ref(pair[0]), body.slice_ref(pair[1]))).collect())
}

fn method_not_allowed(method: &Method) -> RouterRefusal {
    let reason = format!("Incorrect HTTP method [{}], allowed: [GET, POST]", quoted(method.as_str()));
    RouterRefusal { status: 405, kind: "method_not_allowed_exception", reason }
}

async fn search(State(state): State<RouteState>, Path(index): Path<String>, request: Request) -> Response {
    state.search(Some(&index), request).await
}

async fn count(State(state): State<RouteState>, Path(index): Path<String>, request: Request) -> Response {
    state.count(&index, request).await
}

async fn msearch(State(state): State<RouteState>, Path(index): Path<String>, request: Request) -> Response {
    state.msearch(Some(&index), request).await
}

async fn msearch_all(State(state): State<RouteState>, request: Request) -> Response {
    state.msearch(None, request).await
}

/// Of all indices: the router knows one.
async fn search_all(State(state): State<RouteState>, request: Request) -> Response {
    let refusal = RouterRefusal::bad(format!("name the index: /{}/_search", state.prefix));
    failed(&refusal.into(), content_type(request.headers()))
}

async fn unknown(State(state): State<RouteState>, request: Request) -> Response {
    let (method, path) = (request.method().as_str(), request.uri().path());
    let refusal = RouterRefusal::bad(format!(
        "no handler found for uri [{}] and method [{}]; geofold route answers /{}/_search, /{}/_count and _msearch, and passes \
         on nothing else",
        quoted(path),
        quoted(method),
        state.prefix,
        state.prefix
    ));
    failed(&refusal.into(), content_type(request.headers()))
}

/// What official clients ask before all else: Elasticsearch's own answer.
async fn root(State(state): State<RouteState>, request: Request) -> Response {
    let kind = content_type(request.headers());
    if request.method() == Method::HEAD {
        return reply(200, kind, Bytes::new());
    }
    let authorization = request.headers().get(AUTHORIZATION);
    let caller = Caller { authorization, trace: None };
    match state.service.upstream.info(caller, state.service.options.timeout).await {
        Ok(answer) => match serde_json::from_slice::<Map<String, Value>>(&answer.body) {
            Ok(mut body) => {
                if answer.status == 200 {
                    body.insert("name".to_owned(), json!("geofold-route"));
                }
                reply(answer.status, kind, Value::Object(body).to_string().into())
            }
            Err(_) => {
                let says = format!("elasticsearch answered {} without JSON", answer.status);
                failed(&RouterRefusal::unavailable(says).into(), kind)
            }
        },
        Err(refusal) => failed(&refusal.into(), kind),
    }
}

async fn load(State(state): State<RouteState>) -> Response {
    let cells = state.service.load.cells(state.service.clock.now());
    axum::Json(json!({"half_life_seconds": 3600, "cells": cells})).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_the_content_type_that_they_accept() {
        let kind = |accept: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            content_type(&headers).to_str().unwrap().to_owned()
        };
        assert_eq!(
            kind("application/vnd.elasticsearch+json; compatible-with=8"),
            "application/vnd.elasticsearch+json;compatible-with=8"
        );
        assert_eq!(
            kind("text/plain, application/vnd.elasticsearch+json;compatible-with=9"),
            "application/vnd.elasticsearch+json;compatible-with=9"
        );
        for other in ["*/*", "application/json", "application/vnd.elasticsearch+json; compatible-with=x"] {
            assert_eq!(kind(other), "application/json");
        }
    }

    #[test]
    fn an_msearch_is_pairs_of_lines() {
        let pairs = |text: &str| {
            let pairs = split(&Bytes::from(text.to_owned()))?;
            Ok::<Vec<Bytes>, RouterRefusal>(pairs.into_iter().flat_map(|(head, body)| [head, body]).collect())
        };
        assert_eq!(pairs("{}\n{\"a\":1}\n\n{}\n").unwrap(), ["{}", "{\"a\":1}", "", "{}"]);
        assert_eq!(pairs("{}\n{}").unwrap().len(), 2);
        assert!(pairs("").unwrap_err().reason.contains("at least one"));
        assert!(pairs("{}\n{}\n{}\n").unwrap_err().reason.contains("one line is missing"));
        assert!(pairs(&"{}\n".repeat(202)).unwrap_err().reason.contains("101 searches"));
        let Value::Object(head) =
            json!({"index": ["a", "b"], "preference": "x", "request_cache": true, "routing": null})
        else {
            unreachable!()
        };
        let (names, parameters) = header_line(head).unwrap();
        assert_eq!(names.as_deref(), Some("a,b"));
        let expected =
            [("preference", "x"), ("request_cache", "true")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(parameters, expected);
    }
}
