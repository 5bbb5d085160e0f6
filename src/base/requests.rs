//! Requests to Elasticsearch and their answers as types, and observers of sending.
//!
//! Core decisions use these without the client, which is in `io/elastic/`.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::base::clock::Instant;
use crate::base::ids::{DocId, ShardId};
use crate::base::position::Position;

/// The longest index prefix: with a hyphen and the longest geoshard id it stays well below Elasticsearch's 255 bytes.
pub const MAX_PREFIX_BYTES: usize = 64;

/// One of the indices that geofold reads and writes; its name is the configured prefix, `-`, and this.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Index {
    /// The documents of one region.
    Geoshard(ShardId),
    /// The placements, by document id.
    Placements,
    /// Remembered state of topic and partitions.
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

    /// The full index name.
    pub fn name(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.suffix())
    }
}

/// The version of one document for compare-and-set (`if_seq_no`, `if_primary_term`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SeqNo {
    /// `_seq_no`.
    pub seq_no: u64,
    /// `_primary_term`.
    pub primary_term: u64,
}

/// The condition of an index operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteCondition {
    /// `version_type=external`: only over a copy (or tombstone) of a strictly lower version.
    External(Position),
    /// `version_type=external_gte`: over a copy of a lower or equal version.
    ExternalOrEqual(Position),
    /// `op_type=create`: only if the document does not exist.
    Absent,
    /// Compare-and-set: only if the document is still in this state.
    Unchanged(SeqNo),
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
        guard: WriteCondition,
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
    /// Remove the document by compare-and-set. Only for placements of deleted documents.
    Remove {
        /// Where.
        index: Index,
        /// `_id`.
        id: DocId,
        /// Its state.
        stamp: SeqNo,
    },
}

impl BulkOp {
    /// The document's id.
    pub fn id(&self) -> &DocId {
        self.address().1
    }

    /// The document's index and id.
    pub fn address(&self) -> (&Index, &DocId) {
        match self {
            Self::Index { index, id, .. }
            | Self::Delete { index, id, .. }
            | Self::Remove { index, id, .. } => (index, id),
        }
    }
}

/// A document to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Get {
    /// Where.
    pub index: Index,
    /// `_id`.
    pub id: DocId,
    /// The answer may be the document as of any moment since then. `None`: as of now.
    pub since: Option<Instant>,
}

impl Get {
    /// Reads the document as of now.
    pub fn realtime(index: Index, id: DocId) -> Self {
        Self { index, id, since: None }
    }
}

/// A document as read.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundDocument {
    /// `_version`: for copies that geofold wrote, their position. 0 of a placement that a search gave.
    pub version: u64,
    /// For compare-and-set.
    pub stamp: SeqNo,
    /// `_source`, byte for byte except that line breaks between tokens are spaces: it can be written back unchanged.
    pub source: Bytes,
}

/// One raw slot of an `_mget` answer.
#[derive(Debug, Clone, PartialEq)]
pub enum GetAnswer {
    /// The document exists.
    Found(FoundDocument),
    /// The index exists, the document does not.
    Missing,
    /// The slot has an error. Never treated as [`GetAnswer::Missing`].
    Failed(ItemError),
}

/// One raw item of a `_bulk` answer.
#[derive(Debug, Clone, PartialEq)]
pub struct BulkAnswer {
    /// HTTP status of the item.
    pub status: u16,
    /// The resulting state; present on success if requested.
    pub stamp: Option<SeqNo>,
    /// Boxed, since it is rare.
    pub error: Option<Box<ItemError>>,
}

/// Why Elasticsearch did not execute an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemError {
    /// HTTP status of the item; 0 for an `_mget` slot, which has none.
    pub status: u16,
    /// `error.type`, for example `document_parsing_exception`.
    pub kind: String,
    /// `error.reason` and the reason of its cause, truncated.
    pub reason: String,
}

impl fmt::Display for ItemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.kind, self.status, self.reason)
    }
}

/// The outcome of a bulk operation. See [`BulkVerdict`](crate::io::elastic::answer::BulkVerdict).
#[derive(Debug, Clone, PartialEq)]
pub enum BulkOutcome {
    /// Carried out.
    Done {
        /// The resulting state, for placements.
        stamp: Option<SeqNo>,
    },
    /// 409: the condition does not hold.
    Conflict,
    /// A delete found nothing.
    NotFound,
    /// The document was refused.
    Refused(ItemError),
    /// The deadline passed first. It may or may not have been executed.
    Unanswered,
}

/// The outcome of a get. See [`GetVerdict`](crate::io::elastic::answer::GetVerdict).
#[derive(Debug, Clone, PartialEq)]
pub enum GetOutcome {
    /// The document exists.
    Found(FoundDocument),
    /// The document does not exist.
    Missing,
    /// The deadline passed first.
    Unanswered,
}

/// The kind of a request, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// `_mget`.
    Mget,
    /// `_bulk`.
    Bulk,
}

/// Observes requests; its calls must be quick.
pub trait RoundsObserver: Send + Sync {
    /// A request ended. `bytes`: upper bound of its body; `ok`: every item has an answer of any kind.
    fn request(&self, kind: RequestKind, items: usize, bytes: usize, took: Duration, ok: bool);
    /// Operations of one batch were answered: by a request of their own, or after some time in a queue by requests that they
    /// shared with others. The arguments are as for a request.
    fn answered(&self, kind: RequestKind, items: usize, bytes: usize, took: Duration, ok: bool);
    /// `items` items will be retried for this reason (a label as of
    /// [`CallError::label`](crate::io::elastic::CallError::label)).
    fn retry(&self, label: &'static str, items: usize);
    /// One more (1) or one less (-1) request waits for a permit or its next attempt.
    fn waiting(&self, delta: i64);
    /// A request has waited so long for the ceiling of operations.
    fn throttled(&self, waited: Duration);
}

/// Observes the server's state; its calls must be quick.
pub trait ServerObserver: Send + Sync {
    /// Credentials are refused for this reason, and only one request at a time is sent; `None`: accepted again.
    fn credentials_refused(&self, reason: Option<&str>);
    /// An index refuses every document, for example with this error, so the documents are not to blame; `None`: it has
    /// accepted one.
    fn index_at_fault(&self, index: &Index, error: Option<&ItemError>);
}

/// Ignores every event.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unobserved;

impl RoundsObserver for Unobserved {
    fn request(&self, _: RequestKind, _: usize, _: usize, _: Duration, _: bool) {}
    fn answered(&self, _: RequestKind, _: usize, _: usize, _: Duration, _: bool) {}
    fn retry(&self, _: &'static str, _: usize) {}
    fn waiting(&self, _: i64) {}
    fn throttled(&self, _: Duration) {}
}

impl ServerObserver for Unobserved {
    fn credentials_refused(&self, _: Option<&str>) {}
    fn index_at_fault(&self, _: &Index, _: Option<&ItemError>) {}
}

/// Notified of every change in the number of responsive nodes.
pub trait NodesObserver: Send + Sync {
    /// Nodes whose last request was answered (or that were not used yet), and the others.
    fn nodes(&self, up: usize, down: usize);
}
