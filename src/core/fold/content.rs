//! The operation of a fold: the newest whole document, or what is left to do to the stored one.

use bytes::Bytes;

use super::BadMerge;
use crate::core::decode::{BadObject, LocationPath, merge_patch, on_one_line};
use crate::core::write::Body;
use crate::geoshard::cell::Leaf;

/// The operation of a fold.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// The whole document.
    Index {
        /// A JSON object without raw line breaks.
        doc: Bytes,
        /// Its location.
        at: Leaf,
    },
    /// The document is deleted.
    Delete,
    /// Merge patches to be applied in order.
    Patch {
        /// Their base.
        over: Base,
        /// Never empty. More than one only where composition is not exact.
        patches: Vec<Bytes>,
    },
    /// Place it again under the current map.
    Touch,
    /// The source of truth's document, requested after [`super::Fold::whole_at`].
    Refeed,
}

/// The base of a fold's patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// The stored document.
    Stored,
    /// Nothing: a delete precedes in the same fold.
    Nothing,
    /// The source's document: a refeed precedes in the same fold.
    Refed,
}

impl From<Body> for Content {
    fn from(body: Body) -> Self {
        match body {
            Body::Index { doc, at } => Self::Index { doc, at },
            Body::Delete => Self::Delete,
            Body::Patch { patch, .. } => Self::Patch { over: Base::Stored, patches: vec![patch] },
            Body::Touch => Self::Touch,
            Body::Refeed => Self::Refeed,
        }
    }
}

impl Content {
    /// The resulting document for the base `stored`; `None` if there is none. For a refeed, and for patches over one,
    /// `stored` is the source's document.
    ///
    /// Patches without a base make a document of themselves: the caller decides whether that is wanted (protocol,
    /// "on_missing"). The document has no raw line breaks, and the field of `documents.point` that fits its location.
    ///
    /// # Errors
    /// If `stored` is not a JSON object, or has a duplicate key where a patch descends.
    pub fn apply_to(&self, stored: Option<&[u8]>, path: &LocationPath) -> Result<Option<Bytes>, BadObject> {
        let document = match self {
            Self::Index { doc, .. } => return Ok(Some(doc.clone())),
            Self::Delete => None,
            Self::Touch | Self::Refeed => stored.map(Bytes::copy_from_slice),
            Self::Patch { over, patches } => apply_all(stored.filter(|_| *over != Base::Nothing), patches)?,
        };
        Ok(document.map(|document| path.completed(on_one_line(document))))
    }

    /// Unchanged if it fails.
    pub(super) fn absorb(
        &mut self,
        newer: &Self,
        may_move: bool,
        path: &LocationPath,
    ) -> Result<(), BadMerge> {
        let Self::Patch { over: Base::Stored, patches: later } = newer else {
            if *newer != Self::Touch {
                *self = newer.clone();
            }
            return Ok(());
        };
        match self {
            Self::Index { doc, at } => {
                let Some(mut merged) = apply_all(Some(doc), later)? else { return Ok(()) };
                // A patch may also mention the added field.
                if may_move || path.adds_point() {
                    let (complete, moved_to) = path.complete(merged)?;
                    (merged, *at) = (complete, moved_to.into());
                }
                *doc = merged;
            }
            Self::Delete => *self = Self::Patch { over: Base::Nothing, patches: later.clone() },
            Self::Refeed => *self = Self::Patch { over: Base::Refed, patches: later.clone() },
            Self::Touch => *self = newer.clone(),
            Self::Patch { patches, .. } => later.iter().for_each(|patch| push_patch(patches, patch)),
        }
        Ok(())
    }
}

/// `base` with all patches applied; `None` only without both.
fn apply_all(base: Option<&[u8]>, patches: &[Bytes]) -> Result<Option<Bytes>, BadObject> {
    let mut merged: Option<Bytes> = None;
    for patch in patches {
        merged = Some(merge_patch::apply(merged.as_deref().or(base), patch)?);
    }
    Ok(merged)
}

/// Composes from the end of the list as far as it is exact, so a list never holds two neighbours that one patch could
/// replace: a field that alternates between scalar and object does not make it grow.
fn push_patch(patches: &mut Vec<Bytes>, patch: &Bytes) {
    let mut last = patch.clone();
    while let Some(before) = patches.last()
        && let Some(composed) = merge_patch::compose(before, &last)
    {
        patches.pop();
        last = composed;
    }
    patches.push(last);
}
