//! The request to Elasticsearch: one for all geoshards of a round, however many they are.
//!
//! One request, since Elasticsearch then merges what the geoshards found, fetches only the documents of the page, and can score all
//! of them by common statistics. Names of many indices do not fit a request line; then the same search goes as the only one of an
//! `_msearch`, which takes them in its body.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use elasticsearch::http::headers::{AUTHORIZATION, HeaderMap, HeaderValue};
use futures::future::{Either, select};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::error::{RouterRefusal, SearchFailure};
use super::hedge::{Hedging, is_final};
use crate::base::ids::ShardId;
use crate::io::elastic::http::{Forward, Forwarded, HttpElastic, Node};
use crate::io::elastic::{CallError, Index, Method};
use crate::support::telemetry::families::Counters;
use crate::support::telemetry::route::{Hedged, Retried, RouteMetrics, SentLabel};
use crate::support::telemetry::traces::RequestTrace;

/// Bytes of index names in a request line: Elasticsearch takes lines of 4 KiB.
const NAMES_BYTES: usize = 3000;

/// How searches are sent.
pub struct Upstream {
    /// With the credentials that searches have.
    pub elastic: HttpElastic,
    /// The client's header takes the place of the configured credentials.
    pub passes_credentials: bool,
    /// Bytes of an answer, at most.
    pub max_bytes: usize,
    /// Slow requests are sent twice.
    pub hedging: Option<Hedging>,
    /// What is counted.
    pub metrics: Arc<RouteMetrics>,
}

/// Who asks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Caller<'a> {
    /// The client's `Authorization` header.
    pub authorization: Option<&'a HeaderValue>,
    /// The trace of its request.
    pub trace: Option<&'a RequestTrace>,
}

/// One request to Elasticsearch, which may be sent several times.
struct Call<'a> {
    method: Method,
    path: &'a str,
    content_type: &'static str,
    body: Option<Bytes>,
    /// Of its span.
    name: &'static str,
    caller: Caller<'a>,
    deadline: Instant,
    timeout: Duration,
}

/// What is sent to the geoshards of one round.
pub struct UpstreamSearch<'a> {
    /// Whom.
    pub shards: &'a [ShardId],
    /// Parameters of the query string.
    pub parameters: Vec<(&'static str, Cow<'a, str>)>,
    /// The body of the search.
    pub body: Vec<u8>,
}

impl UpstreamSearch<'_> {
    /// The path and the body, and whether it is an `_msearch`.
    fn encode(self, prefix: &str) -> (String, Bytes, bool) {
        let names: Vec<String> =
            self.shards.iter().map(|shard| Index::Geoshard(shard.clone()).name(prefix)).collect();
        let bytes: usize = names.iter().map(|name| name.len() + 1).sum();
        if bytes <= NAMES_BYTES {
            let mut path = format!("/{}/_search", names.join(","));
            for (n, (name, value)) in self.parameters.iter().enumerate() {
                path.push(if n == 0 { '?' } else { '&' });
                path.push_str(name);
                path.push('=');
                path.extend(url::form_urlencoded::byte_serialize(value.as_bytes()));
            }
            return (path, self.body.into(), false);
        }
        // The others only tune how Elasticsearch works, and have no place there.
        const IN_HEAD: [&str; 4] =
            ["search_type", "preference", "request_cache", "allow_partial_search_results"];
        let known = self.parameters.iter().filter(|(name, _)| IN_HEAD.contains(name));
        let mut head: Map<String, Value> =
            known.map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        head.insert("index".to_owned(), json!(names));
        let mut body = Value::Object(head).to_string().into_bytes();
        body.push(b'\n');
        body.extend_from_slice(&self.body);
        body.push(b'\n');
        ("/_msearch".to_owned(), body.into(), true)
    }
}

impl Upstream {
    /// The body of a successful answer.
    pub async fn search(
        &self,
        outgoing: UpstreamSearch<'_>,
        caller: Caller<'_>,
        timeout: Duration,
    ) -> Result<Bytes, SearchFailure> {
        let (path, body, is_msearch) = outgoing.encode(self.elastic.prefix());
        let call = Call {
            method: Method::Post,
            path: &path,
            content_type: if is_msearch { "application/x-ndjson" } else { "application/json" },
            body: Some(body),
            name: if is_msearch { "msearch" } else { "search" },
            caller,
            deadline: Instant::now() + timeout,
            timeout,
        };
        let answer = self.hedged(&call).await.map_err(refusal)?;
        if answer.body.len() > self.max_bytes {
            return Err(too_large(answer.body.len(), self.max_bytes).into());
        }
        let answer = if is_msearch && answer.status == 200 { only_answer(&answer)? } else { answer };
        match answer.status {
            200 => Ok(answer.body),
            status => Err(SearchFailure::Upstream {
                status,
                retry_after: answer.retry_after.map(|after| after.as_secs()),
                body: answer.body,
            }),
        }
    }

    /// What Elasticsearch says of itself, whatever its status.
    pub async fn info(&self, caller: Caller<'_>, timeout: Duration) -> Result<Forwarded, RouterRefusal> {
        let call = Call {
            method: Method::Get,
            path: "/",
            content_type: "application/json",
            body: None,
            name: "info",
            caller,
            deadline: Instant::now() + timeout,
            timeout,
        };
        self.repeated(&call, self.elastic.node(None)).await.map_err(refusal)
    }

    /// Sends a request that takes long to another node, too: the first usable answer counts, and the other request is dropped,
    /// which cancels it in Elasticsearch.
    async fn hedged(&self, call: &Call<'_>) -> Result<Forwarded, CallError> {
        let node = self.elastic.node(None);
        let Some(hedging) = &self.hedging else { return self.repeated(call, node).await };
        hedging.earn();
        let mut first = std::pin::pin!(self.repeated(call, node));
        if let Ok(answer) = tokio::time::timeout(hedging.after, &mut first).await {
            return answer;
        }
        if !hedging.spend() {
            self.metrics.hedges.of(Hedged::OverBudget).inc();
            return first.await;
        }
        self.metrics.hedges.of(Hedged::Sent).inc();
        let second = std::pin::pin!(self.attempt(call, self.elastic.node(Some(node))));
        let is_usable = |answer: &Result<Forwarded, CallError>| {
            answer.as_ref().is_ok_and(|answer| is_final(answer.status))
        };
        let (answer, is_won) = match select(first, second).await {
            Either::Left((answer, _)) if is_usable(&answer) => (answer, false),
            Either::Left((answer, second)) => match second.await {
                other if is_usable(&other) => (other, true),
                _ => (answer, false),
            },
            Either::Right((answer, _)) if is_usable(&answer) => (answer, true),
            Either::Right((_, first)) => (first.await, false),
        };
        if is_won {
            self.metrics.hedges.of(Hedged::Won).inc();
        }
        answer
    }

    /// Asks another node once if one does not answer: a search may be repeated.
    async fn repeated(&self, call: &Call<'_>, node: Node) -> Result<Forwarded, CallError> {
        match self.attempt(call, node).await {
            Err(CallError::Connection(_)) if Instant::now() < call.deadline => {
                self.metrics.retried.of(Retried::Node).inc();
                self.attempt(call, self.elastic.node(None)).await
            }
            other => other,
        }
    }

    async fn attempt(&self, call: &Call<'_>, node: Node) -> Result<Forwarded, CallError> {
        let left = call.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(CallError::Timeout(call.timeout));
        }
        let trace = call.caller.trace.map(|trace| trace.upstream(call.name));
        let mut headers = trace.as_ref().map_or_else(HeaderMap::new, |trace| trace.headers());
        if let Some(authorization) = call.caller.authorization.filter(|_| self.passes_credentials) {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let request = Forward {
            method: call.method,
            path: call.path,
            content_type: call.content_type,
            body: call.body.clone(),
            headers,
        };
        let answer = self.elastic.forward(node, request, left).await;
        count(&self.metrics.upstream, answer.is_ok());
        if let Some(trace) = trace {
            trace.ended(answer.as_ref().ok().map(|answer| answer.status));
        }
        answer
    }
}

fn count(counters: &Counters<SentLabel>, is_answered: bool) {
    counters.of(if is_answered { SentLabel::Answered } else { SentLabel::Failed }).inc();
}

fn refusal(error: CallError) -> RouterRefusal {
    match error {
        CallError::Timeout(_) => {
            RouterRefusal::timeout(format!("{error}; raise route.timeout, or ask for less"))
        }
        CallError::TooLarge { bytes, most } => too_large(
            usize::try_from(bytes).unwrap_or(usize::MAX),
            usize::try_from(most).unwrap_or(usize::MAX),
        ),
        CallError::Connection(_) | CallError::Unsigned(_) => RouterRefusal::unavailable(error.to_string()),
        CallError::Status { .. } | CallError::Undecodable(_) => bad_gateway(error.to_string()),
    }
}

fn too_large(bytes: usize, most: usize) -> RouterRefusal {
    bad_gateway(format!(
        "elasticsearch's answer has {bytes} bytes, and no more than {most} are passed on (route.response_max_bytes); ask \
         for fewer hits, or for less of their _source"
    ))
}

/// An answer that cannot be used.
pub fn bad_gateway(reason: String) -> RouterRefusal {
    RouterRefusal { status: 502, kind: "bad_gateway_exception", reason }
}

/// Of an `_msearch` with one search, its answer.
fn only_answer(answer: &Forwarded) -> Result<Forwarded, SearchFailure> {
    #[derive(Deserialize)]
    struct Body<'a> {
        #[serde(borrow)]
        responses: Vec<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Status {
        #[serde(default)]
        status: Option<u16>,
    }
    let unusable =
        |error: serde_json::Error| bad_gateway(format!("elasticsearch's answer cannot be used: {error}"));
    let body: Body<'_> = serde_json::from_slice(&answer.body).map_err(unusable)?;
    let [only] = body.responses.as_slice() else {
        return Err(bad_gateway("elasticsearch's answer has not one response".to_owned()).into());
    };
    let Status { status } = serde_json::from_str(only.get()).map_err(unusable)?;
    Ok(Forwarded {
        status: status.unwrap_or(200),
        retry_after: answer.retry_after,
        body: answer.body.slice_ref(only.get().as_bytes()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outgoing(shards: &[ShardId]) -> UpstreamSearch<'_> {
        UpstreamSearch {
            shards,
            parameters: vec![("preference", "a b&c".into()), ("request_cache", "true".into())],
            body: b"{}".to_vec(),
        }
    }

    #[test]
    fn names_go_into_the_request_line_while_they_fit_it() {
        let few = ["a", "b"].map(|id| ShardId::new(id).unwrap());
        let (path, body, is_msearch) = outgoing(&few).encode("p");
        assert_eq!(path, "/p-a,p-b/_search?preference=a+b%26c&request_cache=true");
        assert!(!is_msearch && body == "{}");
        let many: Vec<ShardId> = (0..400).map(|n| ShardId::new(&format!("shard{n}")).unwrap()).collect();
        let (path, body, is_msearch) = outgoing(&many).encode("p");
        assert!(is_msearch && path == "/_msearch");
        let lines: Vec<&[u8]> = body.split(|&byte| byte == b'\n').collect();
        let head: Value = serde_json::from_slice(lines[0]).unwrap();
        assert_eq!((head["index"].as_array().unwrap().len(), &head["preference"]), (400, &json!("a b&c")));
        assert_eq!((lines[1], lines[2]), (&b"{}"[..], &b""[..]));
    }

    #[test]
    fn the_only_answer_of_many_is_taken_out() {
        let forwarded = |body: &'static str| Forwarded { status: 200, retry_after: None, body: body.into() };
        let answer = only_answer(&forwarded(r#"{"took":1,"responses":[{"took":7,"status":404}]}"#)).unwrap();
        assert_eq!((answer.status, &answer.body[..]), (404, &br#"{"took":7,"status":404}"#[..]));
        for body in ["{}", r#"{"responses":[]}"#, r#"{"responses":[{},{}]}"#] {
            assert_eq!(only_answer(&forwarded(body)).unwrap_err().status(), 502, "{body}");
        }
    }
}
