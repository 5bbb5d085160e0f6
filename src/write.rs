//! What records mean, and how several of one document become one.
//!
//! A [`Write`] is one record; a [`Fold`] is what the dirty set holds for a document: one or more records, as one.
//! Decoding a record into a write is `decode/`; what a fold does to Elasticsearch is `mover/`.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::geo::GeoPoint;
use crate::ids::{DocId, ShardId};
use crate::position::Position;

/// One decoded record.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// The document it is about.
    pub id: DocId,
    /// Its place in the partition.
    pub position: Position,
    /// What it asks for.
    pub body: Body,
}

/// What one record asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// The document, whole.
    Index {
        /// A JSON object without raw line breaks; otherwise the record's own bytes.
        doc: Bytes,
        /// Where it says it is.
        at: GeoPoint,
    },
    /// The document is gone.
    Delete,
    /// An RFC 7386 merge patch of the document.
    Patch {
        /// A JSON object without raw line breaks.
        patch: Bytes,
        /// What it does to the location.
        moves: PatchMove,
    },
    /// No change of content: place again under the current map.
    Touch,
}

/// What a merge patch does to the document's location.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PatchMove {
    /// It does not mention it.
    Stays,
    /// It sets a whole location: whatever the document was, it is here afterwards (or the merged document is refused).
    To(GeoPoint),
    /// It changes part of it (`{"location":{"lat":5}}`): only the merged document tells.
    Unclear,
}

/// Where one record of a fold sent the document.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// Into this geoshard.
    Shard(ShardId),
    /// Out of the index.
    Nowhere,
    /// Not to be told without the stored document.
    Unclear,
}

/// One or more records of a document, oldest first, folded into one.
#[derive(Debug, Clone, PartialEq)]
pub struct Fold {
    /// What all its records together ask for.
    pub content: Content,
    /// Position of its first record.
    pub first: Position,
    /// Position of its last record: the version of what it writes (protocol: `p`).
    pub last: Position,
    /// Position of its last record that carried a location or deleted (protocol: `located_at`).
    pub located_at: Option<Position>,
    /// Position of its last touch.
    pub touched_at: Option<Position>,
    /// The distinct targets of its records, under the map at the time each was read.
    pub targets: SmallVec<[Target; 1]>,
    /// How many records it holds.
    pub records: u32,
}

/// What a fold asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// The document, whole.
    Index {
        /// A JSON object without raw line breaks.
        doc: Bytes,
        /// Where it says it is.
        at: GeoPoint,
    },
    /// The document is gone.
    Delete,
    /// Merge patches, to be applied one after the other.
    Patch {
        /// What to.
        over: Base,
        /// Never empty. More than one only where composition is not exact.
        patches: Vec<Bytes>,
    },
    /// Place again under the current map.
    Touch,
}

/// What the patches of a fold are applied to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// The document as it is stored.
    Stored,
    /// Nothing: a delete came before, in the same fold.
    Nothing,
}
