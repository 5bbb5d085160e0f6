//! Elasticsearch as geofold sees it: a handful of calls, behind one trait.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the seam: errors, admin calls, the [`Elastic`] trait; operations and answers are `base/requests.rs` |
//! | `answer.rs` | pure classification: what a status means to the protocol, and whether to try again |
//! | `condition.rs` | Elasticsearch's rules for versions: what is carried out, and which version follows |
//! | `compress.rs` | bodies of requests, compressed |
//! | `encode.rs`, `decode.rs` | `_bulk` and `_mget` bodies and answers, as pure functions over bytes |
//! | `http/` | the trait over HTTP, on the `elasticsearch` crate |
//! | `aws/` | requests signed for Amazon OpenSearch Service |
//! | `nodes.rs` | which node to ask next: round robin, with a rest for the dead |
//! | `plain_placements.rs` | reads many placements at less cost to Elasticsearch |
//! | `refreshes.rs` | how often Elasticsearch refreshed by itself, and what that shows |
//! | `repeat.rs` | reads that are repeated while the server is busy, for commands that read for long |
//! | `scan.rs` | reads all documents of some indices, a page at a time |
//! | `slices.rs` | reads documents of unknown size, so many at a time that their answer can be read |
//! | `scripted.rs` | the trait by script, for tests |
//! | `rounds/` | sends a round of operations: cut by count and bytes, side by side, small ones of several partitions together, failed items again until the deadline |

pub mod answer;
pub mod aws;
mod compress;
pub mod condition;
pub mod decode;
pub mod encode;
pub mod http;
pub mod nodes;
mod plain_placements;
pub mod refreshes;
pub mod repeat;
pub mod rounds;
pub mod scan;
#[cfg(test)]
pub(crate) mod scripted;
pub mod slices;

use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use serde_json::Value;
use thiserror::Error;

use self::refreshes::RefreshCounts;
pub use crate::base::requests::{
    BulkAnswer, BulkOp, FoundDocument, Get, GetAnswer, Index, ItemError, SeqNo, WriteCondition,
};

/// A whole request that brought no usable answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CallError {
    /// A response with an HTTP status other than success.
    #[error("elasticsearch answered {status}: {reason}{}", advice(*status))]
    Status {
        /// The HTTP status.
        status: u16,
        /// `error.type` where the body is Elasticsearch's own error object; empty where a proxy answered.
        kind: String,
        /// The body's error, shortened.
        reason: String,
        /// The `Retry-After` header, if it was there.
        retry_after: Option<Duration>,
    },
    /// No answer: refused, reset, unreachable, TLS failure.
    #[error("no connection to elasticsearch: {0}")]
    Connection(String),
    /// No answer in time; the request may or may not have been carried out.
    #[error("elasticsearch did not answer within {0:?}")]
    Timeout(Duration),
    /// Not sent: no credentials to sign it with.
    #[error("the request to elasticsearch could not be signed: {0}")]
    Unsigned(String),
    /// An answer that was not read because of its size. The same request would bring the same answer again; its halves
    /// bring smaller ones.
    #[error(
        "elasticsearch's answer has {bytes} bytes, and no more than {most} are read; ask for fewer documents at once"
    )]
    TooLarge {
        /// The announced `Content-Length`.
        bytes: u64,
        /// The bound.
        most: u64,
    },
    /// A response of another shape or item count than requested.
    #[error("unusable answer from elasticsearch: {0}")]
    Undecodable(String),
}

/// What to do about a status, as the end of its error.
fn advice(status: u16) -> &'static str {
    match status {
        401 => "; check elasticsearch.username and password, or api_key, or aws_region, or client_cert_file",
        _ => "",
    }
}

/// HTTP method of an [`AdminCall`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// GET.
    Get,
    /// HEAD.
    Head,
    /// PUT.
    Put,
    /// POST.
    Post,
    /// DELETE.
    Delete,
}

/// A call outside the hot path: settings, mappings, health, refresh, search.
#[derive(Debug, Clone)]
pub struct AdminCall {
    /// HTTP method.
    pub method: Method,
    /// Path with query, beginning with `/`; its parts already percent-encoded.
    pub path: String,
    /// JSON body.
    pub body: Option<Value>,
}

/// Response to an [`AdminCall`], with any status that the server itself sent.
#[derive(Debug, Clone)]
pub struct AdminAnswer {
    /// HTTP status.
    pub status: u16,
    /// The body; `Null` if missing or no JSON.
    pub body: Value,
}

/// The search server. One implementation speaks HTTP, one is a store in memory for tests; both are held to the same suite.
pub trait Elastic: Send + Sync {
    /// Reads documents, each as of now or as its get says; one answer per get, in order.
    fn mget<'a>(
        &'a self,
        gets: &'a [Get],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<GetAnswer>, CallError>>;

    /// Repeats a read, for the `look`th time, each time on another node until all were used. 0: any node.
    fn mget_again<'a>(
        &'a self,
        gets: &'a [Get],
        look: usize,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<GetAnswer>, CallError>> {
        let _ = look;
        self.mget(gets, timeout)
    }

    /// Carries out operations; one answer per operation, in order. Items succeed or fail one by one.
    fn bulk_refs<'a>(
        &'a self,
        ops: &'a [&'a BulkOp],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<BulkAnswer>, CallError>>;

    /// The same with operations that are together already.
    fn bulk<'a>(
        &'a self,
        ops: &'a [BulkOp],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<BulkAnswer>, CallError>> {
        Box::pin(async move {
            let ops: Vec<&BulkOp> = ops.iter().collect();
            self.bulk_refs(&ops, timeout).await
        })
    }

    /// Makes all that was written to these indices visible to searches.
    fn refresh<'a>(&'a self, indices: &'a [Index], timeout: Duration)
    -> BoxFuture<'a, Result<(), CallError>>;

    /// How often each of these indices was refreshed so far, in order. Empty where that is not known.
    fn count_refreshes<'a>(
        &'a self,
        indices: &'a [Index],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<RefreshCounts>, CallError>> {
        let _ = timeout;
        Box::pin(async move { Ok(vec![RefreshCounts::default(); indices.len()]) })
    }

    /// Anything else. Statuses of 400 and above are answers, not errors; only no answer at all is one.
    fn admin<'a>(
        &'a self,
        call: AdminCall,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<AdminAnswer, CallError>>;

    /// The same with the body as it came, for answers that are too large to make a tree of.
    fn admin_bytes<'a>(
        &'a self,
        call: AdminCall,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<(u16, Bytes), CallError>> {
        Box::pin(async move {
            let AdminAnswer { status, body } = self.admin(call, timeout).await?;
            Ok((status, body.to_string().into()))
        })
    }
}
