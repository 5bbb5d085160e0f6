//! The inputs of placement besides the documents: the map, the location's path, the policy for missing documents.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::Refusal;
use super::counting::{self, FacetRules};
use crate::base::ids::{DocId, ShardId};
use crate::base::sabotage::{self, Sabotage};
use crate::core::decode::LocationPath;
use crate::core::fold::{Fold, Target};
use crate::core::write::Write;
use crate::geoshard::GeoshardMap;
use crate::geoshard::cell::Leaf;

/// Policy for a patch of a missing document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnMissing {
    /// Dead-letter it.
    DeadLetter,
    /// Take the patch as the document if it has a location; dead-letter it otherwise.
    Create,
    /// Count it and drop it.
    Drop,
    /// Fetch the document from the source of truth and patch that.
    Refeed,
}

/// Placement rules. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The geoshard map.
    pub map: Arc<GeoshardMap>,
    /// The map that is live beside it, by which others may still decide, or decide already (protocol, "Changing the map").
    pub other_map: Option<Arc<GeoshardMap>>,
    /// Where in a document its location is.
    pub location: LocationPath,
    /// Policy for patches and touches of missing documents.
    pub on_missing: OnMissing,
    /// Nothing is in place: every entry writes its placement. While a zombie may act on a record that this owner will never
    /// read (protocol, "Records that compaction took").
    pub announce_all: bool,
    /// The counted facets; `None` if nothing is counted (docs/tally.md).
    pub tally: Option<FacetRules>,
}

impl Rules {
    /// One record as a fold, with its target under the live maps and its effect on the counts.
    pub fn fold(&self, write: Write) -> (DocId, Fold) {
        let (id, mut fold) = Fold::from_write(write, |at| self.target(at));
        if let Some(tally) = &self.tally {
            fold.steps = counting::steps(&fold, tally);
        }
        (id, fold)
    }

    /// Applies one record to a document; one that leaves no location in it is refused, and changes nothing.
    ///
    /// # Errors
    /// The reason.
    pub fn change(&self, document: &mut Bytes, record: &Fold) -> Result<(), Refusal> {
        let changed = record
            .content
            .apply_to(Some(document), &self.location)
            .map_err(|error| Refusal { reason: error.reason(), detail: error.to_string() })?;
        if let Some(changed) = changed {
            self.locate_document(&changed)?;
            *document = changed;
        }
        Ok(())
    }

    /// The geoshard of a point under the current map.
    pub(super) fn locate(&self, at: Leaf) -> ShardId {
        self.map.locate(at).clone()
    }

    /// The geoshard that every live map gives a point to; `None` where they differ.
    pub fn agreed(&self, at: Leaf) -> Option<ShardId> {
        let decided = self.map.locate(at);
        let is_agreed = self.other_map.as_ref().is_none_or(|other| other.locate(at) == decided)
            || sabotage::is(Sabotage::InPlaceWithTwoMaps);
        is_agreed.then(|| decided.clone())
    }

    /// Where a record points to that says this location. A place that live maps give to different geoshards is unclear: it
    /// depends on who decides.
    pub fn target(&self, at: Leaf) -> Target {
        self.agreed(at).map_or(Target::Unclear, Target::Shard)
    }

    /// The geoshard that every live map gives a whole document to.
    pub(super) fn agreed_document(&self, document: &[u8]) -> Option<ShardId> {
        self.location.locate(document).ok().and_then(|at| self.agreed(at.into()))
    }

    /// The geoshard of a whole document under the current map.
    pub(super) fn locate_document(&self, document: &[u8]) -> Result<ShardId, Refusal> {
        match self.location.locate(document) {
            Ok(at) => Ok(self.locate(at.into())),
            Err(bad) => Err(Refusal { reason: "no_location_after_patch", detail: bad.to_string() }),
        }
    }
}
