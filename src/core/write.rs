//! The meaning of one record. `core/decode/` decodes a record into a [`Write`]; `core/fold/` folds several of one document.

use bytes::Bytes;

use crate::base::ids::DocId;
use crate::base::position::Position;
use crate::geoshard::cell::Leaf;

/// One decoded record.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// Its document.
    pub id: DocId,
    /// Its position in the partition.
    pub position: Position,
    /// Its operation.
    pub body: Body,
}

/// The operation of one record.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// The whole document.
    Index {
        /// A JSON object without raw line breaks; otherwise the record's own bytes.
        doc: Bytes,
        /// Its location.
        at: Leaf,
    },
    /// The document is deleted.
    Delete,
    /// An RFC 7386 merge patch of the document.
    Patch {
        /// A JSON object without raw line breaks.
        patch: Bytes,
        /// Its effect on the location.
        moves: PatchMove,
    },
    /// No change of content: place it again under the current map.
    Touch,
    /// The document is replaced by the source of truth's.
    Refeed,
}

/// The effect of a merge patch on the location.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PatchMove {
    /// It does not mention it.
    Stays,
    /// It sets a whole location, which holds for any base (or the merged document is refused).
    To(Leaf),
    /// It changes part of it (`{"location":{"lat":5}}`): only the merged document decides.
    Unclear,
}
