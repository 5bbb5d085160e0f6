//! Requests to Elasticsearch and their answers, as types; and what may be observed of sending them.
//!
//! The decisions about documents need these, and none of the client, which is `io/elastic/`.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::base::ids::{DocId, ShardId};
use crate::base::position::Position;

/// The longest index prefix: with a hyphen and the longest geoshard id it stays well below Elasticsearch's 255 bytes.
pub const MAX_PREFIX_BYTES: usize = 64;

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
pub struct SeqNo {
    /// `_seq_no`.
    pub seq_no: u64,
    /// `_primary_term`.
    pub primary_term: u64,
}

/// Under which condition an index operation may be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteCondition {
    /// `version_type=external`: only over a copy (or tombstone) of a strictly lower version.
    External(Position),
    /// `version_type=external_gte`: over a copy of a lower or equal version.
    ExternalOrEqual(Position),
    /// `op_type=create`: only if there is none.
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
    /// Remove the document by compare-and-set: only if it is still in this state. For placements of deleted documents alone.
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
    pub stamp: SeqNo,
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
    pub stamp: Option<SeqNo>,
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

/// What became of a bulk operation. See [`BulkVerdict`](crate::io::elastic::answer::BulkVerdict).
#[derive(Debug, Clone, PartialEq)]
pub enum BulkOutcome {
    /// Carried out.
    Done {
        /// The state it left, if it is a placement's.
        stamp: Option<SeqNo>,
    },
    /// 409: the condition does not hold.
    Conflict,
    /// A delete found nothing.
    NotFound,
    /// The document is not acceptable.
    Refused(ItemError),
    /// The lease ended first. It may or may not have been carried out.
    Unanswered,
}

/// What became of a get. See [`GetVerdict`](crate::io::elastic::answer::GetVerdict).
#[derive(Debug, Clone, PartialEq)]
pub enum GetOutcome {
    /// It is there.
    Found(Found),
    /// It is not there.
    Missing,
    /// The lease ended first.
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

/// Is told what happens; its calls must be quick.
pub trait RoundsObserver: Send + Sync {
    /// A request ended. `bytes`: of its body, as an upper bound; `ok`: with an answer for each item, whatever it says.
    fn request(&self, kind: RequestKind, items: usize, bytes: usize, took: Duration, ok: bool);
    /// So many items will be sent again, for this reason (a label as of [`CallError::label`](crate::io::elastic::CallError::label)).
    fn retry(&self, label: &'static str, items: usize);
    /// One more (1) or one less (-1) request waits: for a permit, or for its next attempt.
    fn waiting(&self, delta: i64);
}

/// Is told how the server stands; its calls must be quick.
pub trait ServerObserver: Send + Sync {
    /// Credentials are refused, for this reason, and nothing is sent but one request at a time; `None`: no more.
    fn credentials_refused(&self, reason: Option<&str>);
    /// An index refuses whatever it is given, such as with this error, which is not put down to the documents; `None`: it has
    /// taken one.
    fn index_at_fault(&self, index: &Index, error: Option<&ItemError>);
}

/// Looks away.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unobserved;

impl RoundsObserver for Unobserved {
    fn request(&self, _: RequestKind, _: usize, _: usize, _: Duration, _: bool) {}
    fn retry(&self, _: &'static str, _: usize) {}
    fn waiting(&self, _: i64) {}
}

impl ServerObserver for Unobserved {
    fn credentials_refused(&self, _: Option<&str>) {}
    fn index_at_fault(&self, _: &Index, _: Option<&ItemError>) {}
}

/// Told how many nodes answer, each time that changes.
pub trait NodesObserver: Send + Sync {
    /// Nodes whose last request was answered (or that were not asked yet), and the others.
    fn nodes(&self, up: usize, down: usize);
}
