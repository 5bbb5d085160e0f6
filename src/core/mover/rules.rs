//! What placing documents depends on besides the documents: the map, the location's path, the policy for what is missing.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Refusal;
use crate::base::geo::GeoPoint;
use crate::base::ids::ShardId;
use crate::core::counting::facets::FacetRules;
use crate::core::decode::LocationPath;
use crate::geoshard::GeoshardMap;

/// What to do with a patch of a document that is nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnMissing {
    /// Bad input.
    DeadLetter,
    /// Take the patch as the document, if it has a location; bad input otherwise.
    Create,
    /// Count it and forget it.
    Drop,
    /// Fetch the document from the source of truth, and patch that.
    Refeed,
}

/// How documents are placed. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Which geoshard a point belongs to.
    pub map: Arc<GeoshardMap>,
    /// Where in a document its location is.
    pub location: LocationPath,
    /// For patches and touches of documents that are not there.
    pub on_missing: OnMissing,
    /// Nothing is in place: every entry writes its placement. While two maps are live (protocol, "Changing the map"), and
    /// while a zombie may act on a record that this owner will never read (protocol, "Records that compaction took").
    pub announce_all: bool,
    /// What is counted of documents; `None` if nothing is (docs/tally.md).
    pub tally: Option<FacetRules>,
}

impl Rules {
    /// The geoshard of a point under the current map.
    pub(super) fn locate(&self, at: GeoPoint) -> ShardId {
        self.map.locate(at).clone()
    }

    /// The geoshard of a whole document under the current map.
    pub(super) fn locate_document(&self, document: &[u8]) -> Result<ShardId, Refusal> {
        match self.location.locate(document) {
            Ok(at) => Ok(self.locate(at)),
            Err(bad) => Err(Refusal { reason: "no_location_after_patch", detail: bad.to_string() }),
        }
    }
}
