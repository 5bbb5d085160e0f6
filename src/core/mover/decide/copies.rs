//! The stored copies of a document: which are read, and whether the newest one found is trusted (step 4).

use bytes::Bytes;

use super::content::refed_at;
use super::{Decision, EntryPlan, Relation, again_outcome, relate};
use crate::base::ids::ShardId;
use crate::base::position::Position;
use crate::base::requests::FoundDocument;
use crate::base::sabotage::{self, Sabotage};
use crate::core::fold::{Base, Content};
use crate::core::mover::{Doubt, Entry, MoverState, NothingFound, OLDER_COPY, Outcome, RetryState, Rules};
use crate::core::placement::{KnownPlacement, Placement};

/// Number of reads that must find no copy, with an unchanged placement, before the document counts as missing (step 4).
/// A read is not atomic: it misses a copy that moves from a geoshard not yet read to one already read. Under one
/// placement another worker can complete two moves, that of a batch in flight and the one it resumes; and the placement
/// may change during the last read. Six covers two other workers, with one read to spare for a late request.
const LOOKS: u8 = 6;

/// The geoshards whose copies the decision needs (protocol, step 4); may be empty.
pub(in crate::core::mover) fn copies_needed(
    state: &MoverState,
    entry: &Entry,
    known: Option<&KnownPlacement>,
) -> Vec<ShardId> {
    let Some(known) = known else { return Vec::new() };
    let rules = &state.rules;
    let placement = &known.placement;
    let content_needs_copy = match entry.fold.content {
        Content::Patch { over, .. } => over == Base::Stored,
        Content::Touch => true,
        Content::Index { .. } | Content::Delete | Content::Refeed => false,
    };
    // A decision at the refeed's position or later used the source's answer; otherwise no copy is as new.
    let content_needs_copy =
        content_needs_copy || refed_at(rules, &entry.fold).is_some_and(|refed_at| placement.pos >= refed_at);
    let needs_copy = match relate(state.partition, entry, Some(known)) {
        Relation::Behind(_) | Relation::OtherPartition(_) => false,
        Relation::Resume if placement.refused || is_decided_otherwise(rules, entry, placement) => true,
        _ => content_needs_copy && placement.shard.is_some(),
    };
    if !needs_copy {
        return Vec::new();
    }
    placement.shard.iter().chain(known.unswept()).cloned().collect()
}

/// Whether, at an equal position, the placement names another geoshard than the fold's whole document belongs to: see
/// [`Decision::corrected_target`], which then checks whether the recorded decision was carried out.
fn is_decided_otherwise(rules: &Rules, entry: &Entry, placement: &Placement) -> bool {
    let Content::Index { at, .. } = entry.fold.content else { return false };
    let differs = |shard: &ShardId| rules.agreed(at).is_some_and(|agreed| agreed != *shard);
    !rules.announce_all && placement.shard.as_ref().is_some_and(differs)
}

/// The newest copy among the geoshards read.
#[derive(Debug, Clone)]
pub(in crate::core::mover) struct NewestCopy {
    pub shard: ShardId,
    pub version: Position,
    pub source: Bytes,
    /// Taken from the placement's `fetched`; it may not be in its geoshard yet.
    pub is_recorded: bool,
}

impl NewestCopy {
    pub(in crate::core::mover) fn new(shard: ShardId, found: FoundDocument) -> Self {
        Self {
            shard,
            version: Position::from_version(found.version),
            source: found.source,
            is_recorded: false,
        }
    }

    /// The placement's `fetched`, if any.
    pub(in crate::core::mover) fn recorded(placement: &Placement) -> Option<Self> {
        let (source, shard) = (placement.fetched.as_deref().cloned()?, placement.shard.clone()?);
        Some(Self { shard, version: placement.pos, source, is_recorded: true })
    }
}

impl Decision<'_> {
    /// Step 4: a base older than expected comes from a node that is cut off, or the newer one is lost. It is read again
    /// from another node; after that only a copy that Elasticsearch accepts again is the newest. `None`: the copy is
    /// trusted.
    pub(super) fn doubt(&self, known: &KnownPlacement, copy: &NewestCopy) -> Option<EntryPlan> {
        let KnownPlacement { placement, stamp, at_least, .. } = known;
        // The owner that recorded `pos` finished its record before the document's next one, unless it was refused.
        let doubted = self.entry.carry.doubt.as_ref();
        let is_done = placement.pos < self.entry.fold.first && !placement.refused;
        let recorded = if is_done { placement.pos } else { Position::NONE };
        let at_least = recorded.max(*at_least).max(doubted.map_or(Position::NONE, |before| before.at_least));
        let before = doubted.filter(|before| before.at == *stamp);
        let newest = before.and_then(|before| before.newest.as_ref());
        let is_confirmed =
            newest.is_some_and(|(shard, version)| (shard, version) == (&copy.shard, &copy.version));
        if copy.version >= at_least || is_confirmed || sabotage::is(Sabotage::StaleBaseIsBelieved) {
            return None;
        }
        let looks = doubted.map_or(0, |before| before.looks).saturating_add(1);
        let doubt = Doubt { at: *stamp, looks, at_least, newest: newest.cloned() };
        let carry = RetryState { doubt: Some(doubt), ..self.carried() }.into();
        // Older than a confirmed copy: certainly outdated.
        if before.is_none() || newest.is_some_and(|(_, version)| copy.version < *version) {
            return Some(EntryPlan::Settle(again_outcome(OLDER_COPY, carry)));
        }
        Some(EntryPlan::Confirm { copy: copy.clone(), carry })
    }

    /// No copy was found. The document is missing if that repeats [`LOOKS`] times while the placement is unchanged
    /// (step 4).
    pub(super) fn is_surely_missing(&self, known: Option<&KnownPlacement>) -> bool {
        let looks = if sabotage::is(Sabotage::SecondLookIsBelieved) { 2 } else { LOOKS };
        let is_sure = match known {
            Some(known) if known.placement.shard.is_some() => self.looks_at(known).looks >= looks,
            _ => true,
        };
        self.fresh && is_sure
    }

    /// This read, which found nothing, and those before it.
    fn looks_at(&self, known: &KnownPlacement) -> NothingFound {
        let before = self.entry.carry.nothing_found.filter(|before| before.at == known.stamp);
        NothingFound { at: known.stamp, looks: before.map_or(0, |before| before.looks).saturating_add(1) }
    }

    /// Back to step 1 with a fresh read of the placement.
    pub(super) fn look_again(&self, known: Option<&KnownPlacement>) -> Outcome {
        let nothing_found = known.map(|known| self.looks_at(known));
        again_outcome("nothing_found", RetryState { nothing_found, ..self.carried() })
    }
}
