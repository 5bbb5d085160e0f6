//! Elasticsearch as geofold sees it: a handful of calls, behind one trait.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the seam: operations, answers, errors, the [`Elastic`] trait |
//! | `answer.rs` | pure classification: what a status means to the protocol, and whether to try again |
//! | `encode.rs`, `decode.rs` | `_bulk` and `_mget` bodies and answers, as pure functions over bytes |
//! | `http.rs` | the trait over HTTP, on the `elasticsearch` crate |
//! | `aws.rs` | requests signed for Amazon OpenSearch Service, and where the keys come from |
//! | `nodes.rs` | which node to ask next: round robin, with a rest for the dead |
//! | `scan.rs` | reads all documents of some indices, a page at a time |
//! | `slices.rs` | reads documents of unknown size, so many at a time that their answer can be read |
//! | `scripted.rs` | the trait by script, for tests |
//! | `rounds/` | sends a round of operations: cut by count and bytes, side by side, small ones of several partitions together, failed items again until the deadline |

pub mod answer;
pub mod aws;
pub mod condition;
pub mod decode;
pub mod encode;
pub mod http;
pub mod nodes;
pub mod rounds;
pub mod scan;
#[cfg(test)]
pub(crate) mod scripted;
pub mod slices;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use serde_json::Value;
use thiserror::Error;

use crate::ids::{DocId, ShardId};
use crate::position::Position;

/// One of the indices that geofold reads and writes; its name is the configured prefix, `-`, and this.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Index {
    /// The documents of one region of the globe.
    Geoshard(ShardId),
    /// Where each document is, by its id.
    Placements,
    /// What geofold remembers about topic and partitions.
    Meta,
}

impl Index {
    /// The index name's part after prefix and hyphen.
    pub fn suffix(&self) -> &str {
        match self {
            Self::Geoshard(shard) => shard.as_str(),
            Self::Placements => ShardId::RESERVED[0],
            Self::Meta => ShardId::RESERVED[1],
        }
    }

    /// The whole name, as Elasticsearch knows it.
    pub fn name(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.suffix())
    }
}

/// Elasticsearch's name for one state of one document, used for compare-and-set (`if_seq_no`, `if_primary_term`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// `_seq_no`.
    pub seq_no: u64,
    /// `_primary_term`.
    pub primary_term: u64,
}

/// Under which condition an index operation may be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// `version_type=external`: only over a copy (or tombstone) of a strictly lower version.
    External(Position),
    /// `version_type=external_gte`: over a copy of a lower or equal version.
    ExternalOrEqual(Position),
    /// `op_type=create`: only if there is none.
    Absent,
    /// Compare-and-set: only if the document is still in this state.
    Unchanged(Stamp),
}

/// One operation of a `_bulk` request.
#[derive(Debug, Clone, PartialEq)]
pub enum BulkOp {
    /// Write `source` as the document's content.
    Index {
        /// Where.
        index: Index,
        /// `_id`.
        id: DocId,
        /// The condition.
        guard: Guard,
        /// One JSON object without raw line breaks, sent as it is.
        source: Bytes,
    },
    /// Remove the copy at `version_type=external`.
    Delete {
        /// Where.
        index: Index,
        /// `_id`.
        id: DocId,
        /// Only a copy of a strictly lower version is removed; a tombstone of this version stays.
        version: Position,
    },
    /// Remove the document by compare-and-set: only if it is still in this state. For placements of deleted documents alone.
    Remove {
        /// Where.
        index: Index,
        /// `_id`.
        id: DocId,
        /// Its state.
        stamp: Stamp,
    },
}

impl BulkOp {
    /// The document that it is about.
    pub fn id(&self) -> &DocId {
        self.address().1
    }

    /// Index and id of that document.
    pub fn address(&self) -> (&Index, &DocId) {
        match self {
            Self::Index { index, id, .. }
            | Self::Delete { index, id, .. }
            | Self::Remove { index, id, .. } => (index, id),
        }
    }
}

/// One document of an `_mget` request; always realtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Get {
    /// Where.
    pub index: Index,
    /// `_id`.
    pub id: DocId,
}

/// A document as read.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// `_version`: for copies that geofold wrote, their position.
    pub version: u64,
    /// For compare-and-set.
    pub stamp: Stamp,
    /// `_source`, byte for byte but for line breaks between tokens, which are spaces: it may be written back as it is.
    pub source: Bytes,
}

/// One slot of an `_mget` answer, as Elasticsearch gave it.
#[derive(Debug, Clone, PartialEq)]
pub enum GetAnswer {
    /// It is there.
    Found(Found),
    /// The index is there, the document is not.
    Missing,
    /// This slot could not be answered. Never the same as [`GetAnswer::Missing`].
    Failed(ItemError),
}

/// One item of a `_bulk` answer, as Elasticsearch gave it.
#[derive(Debug, Clone, PartialEq)]
pub struct BulkAnswer {
    /// HTTP status of the item.
    pub status: u16,
    /// The state that the operation left; there on success if the request asked for it.
    pub stamp: Option<Stamp>,
    /// Boxed, since nearly all items have none.
    pub error: Option<Box<ItemError>>,
}

/// Why Elasticsearch did not carry out one item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemError {
    /// HTTP status of the item; 0 for an `_mget` slot, which has none.
    pub status: u16,
    /// `error.type`, for example `document_parsing_exception`.
    pub kind: String,
    /// `error.reason`, with the reason of its cause, shortened to a bounded length.
    pub reason: String,
}

impl fmt::Display for ItemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.kind, self.status, self.reason)
    }
}

/// A whole request that brought no usable answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CallError {
    /// An answer with an HTTP status other than success.
    #[error("elasticsearch answered {status}: {reason}")]
    Status {
        /// The HTTP status.
        status: u16,
        /// `error.type` where the body is Elasticsearch's own error object; empty where a proxy answered.
        kind: String,
        /// What the body says, shortened.
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
    /// Not sent: there are no credentials to sign it with.
    #[error("the request to elasticsearch could not be signed: {0}")]
    Unsigned(String),
    /// An answer that was not read because of its size. The same request would bring the same answer again; its halves
    /// bring smaller ones.
    #[error(
        "elasticsearch's answer has {bytes} bytes, and no more than {most} are read; ask for fewer documents at once"
    )]
    TooLarge {
        /// What the server announced.
        bytes: u64,
        /// The bound.
        most: u64,
    },
    /// An answer of another shape than asked for, or with another number of items.
    #[error("elasticsearch's answer can not be used: {0}")]
    Undecodable(String),
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

/// What came back from an [`AdminCall`]: any status that the server itself gave.
#[derive(Debug, Clone)]
pub struct AdminAnswer {
    /// HTTP status.
    pub status: u16,
    /// The body; `Null` where there is none or it is no JSON.
    pub body: Value,
}

/// The search server. One implementation speaks HTTP, one is a store in memory for tests; both are held to the same suite.
pub trait Elastic: Send + Sync {
    /// Reads documents, realtime; one answer per get, in order.
    fn mget<'a>(
        &'a self,
        gets: &'a [Get],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<GetAnswer>, CallError>>;

    /// Reads the same again, for the `look`th time: each time from another node, until all were asked. 0: from any.
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
    fn bulk<'a>(
        &'a self,
        ops: &'a [BulkOp],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<BulkAnswer>, CallError>>;

    /// Makes all that was written to these indices visible to searches.
    fn refresh<'a>(&'a self, indices: &'a [Index], timeout: Duration)
    -> BoxFuture<'a, Result<(), CallError>>;

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
