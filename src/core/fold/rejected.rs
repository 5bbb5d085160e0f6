//! Folds that could not be absorbed.

use thiserror::Error;

use super::Fold;
use crate::core::decode::{BadLocation, BadObject};

/// A fold that could not be absorbed: its patches yield no document that can be placed. Its records are dead-lettered
/// as the folded write, with its first and last position.
#[derive(Debug, Error)]
#[error("the patch {span} cannot be applied to the document written before it: {why}", span = span(.fold))]
pub struct Rejected {
    /// The fold to be absorbed, unchanged.
    pub fold: Fold,
    /// The defect of the resulting document.
    pub why: BadMerge,
}

/// Why patches cannot be applied to a document.
#[derive(Debug, Error)]
pub enum BadMerge {
    /// The document or a patch cannot be merged.
    #[error("they cannot be merged: {0}")]
    Merge(#[from] BadObject),
    /// The merged document has no usable location.
    #[error("the location of the merged document cannot be used: {0}")]
    Location(#[from] BadLocation),
}

impl Rejected {
    /// The step that refused the records: `geofold-error-stage` of a dead letter.
    pub fn stage(&self) -> &'static str {
        "fold"
    }

    /// Reason code: `geofold-error-reason` of a dead letter.
    pub fn reason(&self) -> &'static str {
        match &self.why {
            BadMerge::Merge(why) | BadMerge::Location(BadLocation::Json(why)) => why.reason(),
            BadMerge::Location(BadLocation::Missing | BadLocation::Null) => "location_removed",
            BadMerge::Location(BadLocation::Twice | BadLocation::Form(_)) => "bad_location",
        }
    }
}

fn span(fold: &Fold) -> String {
    if fold.first == fold.last {
        format!("at {}", fold.last)
    } else {
        format!("from {} to {}", fold.first, fold.last)
    }
}
