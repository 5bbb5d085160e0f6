//! The request to Elasticsearch: one for all geoshards of a round, however many they are.
//!
//! One request, since Elasticsearch then merges what the geoshards found, fetches only the documents of the page, and can score all
//! of them by common statistics. Names of many indices do not fit a request line; then the same search goes as the only one of an
//! `_msearch`, which takes them in its body.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use elasticsearch::http::headers::HeaderValue;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::error::{Failure, Refusal};
use crate::base::ids::ShardId;
use crate::io::elastic::http::{Forwarded, HttpElastic};
use crate::io::elastic::{CallError, Index};
use crate::support::telemetry::families::Counters;
use crate::support::telemetry::route::{Retried, RouteMetrics, Sent};

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
    /// What is counted.
    pub metrics: Arc<RouteMetrics>,
}

/// What is sent to the geoshards of one round.
pub struct Outgoing<'a> {
    /// Whom.
    pub shards: &'a [ShardId],
    /// Parameters of the query string.
    pub parameters: Vec<(&'static str, Cow<'a, str>)>,
    /// The body of the search.
    pub body: Vec<u8>,
}

impl Outgoing<'_> {
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
    /// The body of a successful answer. Asks another node once if one does not answer: a search may be repeated.
    pub async fn search(
        &self,
        outgoing: Outgoing<'_>,
        authorization: Option<&HeaderValue>,
        timeout: Duration,
    ) -> Result<Bytes, Failure> {
        let began = tokio::time::Instant::now();
        let (path, body, is_msearch) = outgoing.encode(self.elastic.prefix());
        let kind = if is_msearch { "application/x-ndjson" } else { "application/json" };
        let authorization = authorization.filter(|_| self.passes_credentials);
        let mut attempt = 0;
        let answer = loop {
            attempt += 1;
            let left = timeout.saturating_sub(began.elapsed());
            let sent = self.elastic.forward(&path, kind, body.clone(), authorization, left).await;
            count(&self.metrics.upstream, sent.is_ok());
            match sent {
                Err(CallError::Connection(_)) if attempt == 1 && began.elapsed() < timeout => {
                    self.metrics.retried.of(Retried::Node).inc();
                }
                other => break other.map_err(refusal)?,
            }
        };
        if answer.body.len() > self.max_bytes {
            return Err(too_large(answer.body.len(), self.max_bytes).into());
        }
        let answer = if is_msearch && answer.status == 200 { only_answer(&answer)? } else { answer };
        match answer.status {
            200 => Ok(answer.body),
            status => Err(Failure::Upstream {
                status,
                retry_after: answer.retry_after.map(|after| after.as_secs()),
                body: answer.body,
            }),
        }
    }
}

fn count(counters: &Counters<Sent>, is_answered: bool) {
    counters.of(if is_answered { Sent::Answered } else { Sent::Failed }).inc();
}

fn refusal(error: CallError) -> Refusal {
    match error {
        CallError::Timeout(_) => Refusal::timeout(format!("{error}; raise route.timeout, or ask for less")),
        CallError::TooLarge { bytes, most } => too_large(
            usize::try_from(bytes).unwrap_or(usize::MAX),
            usize::try_from(most).unwrap_or(usize::MAX),
        ),
        CallError::Connection(_) | CallError::Unsigned(_) => Refusal::unavailable(error.to_string()),
        CallError::Status { .. } | CallError::Undecodable(_) => bad_gateway(error.to_string()),
    }
}

fn too_large(bytes: usize, most: usize) -> Refusal {
    bad_gateway(format!(
        "elasticsearch's answer has {bytes} bytes, and no more than {most} are passed on (route.response_max_bytes); ask \
         for fewer hits, or for less of their _source"
    ))
}

/// An answer that cannot be used.
pub fn bad_gateway(reason: String) -> Refusal {
    Refusal { status: 502, kind: "bad_gateway_exception", reason }
}

/// Of an `_msearch` with one search, its answer.
fn only_answer(answer: &Forwarded) -> Result<Forwarded, Failure> {
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

    fn outgoing(shards: &[ShardId]) -> Outgoing<'_> {
        Outgoing {
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
