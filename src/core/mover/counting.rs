//! The hook of counting in the move protocol: the only file of the mover that knows what is counted (docs/tally.md).
//!
//! The mover asks it wherever it writes a placement, leaves one as it is, or is done with an entry. If nothing is
//! counted, histories stay empty and every answer is the one without counting: the protocol can be read without it.

use super::MoverState;
use crate::base::ids::ShardId;
use crate::base::position::Position;
use crate::base::sabotage::{self, Sabotage};
pub(super) use crate::core::counting::facets::FacetRules;
use crate::core::counting::facets::Facets;
pub use crate::core::counting::increment::CountChange;
use crate::core::counting::steps::Steps;
pub(super) use crate::core::counting::version::FacetHistory;
use crate::core::fold::{Base, Content, Fold, Target};
use crate::core::placement::{KnownPlacement, Placement};

/// What one document contributes to the counts: its facets. Nothing if nothing is counted.
#[derive(Debug, Clone, Default)]
pub(super) struct Contribution(Option<Facets>);

impl Contribution {
    /// What is recorded as the document's contribution.
    pub(super) fn recorded(known: Option<&KnownPlacement>) -> Self {
        Self(known.and_then(|known| known.placement.facets().cloned()))
    }
}

/// Counting as one owner does it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counting<'a> {
    /// `None`: nothing is counted.
    rules: Option<&'a FacetRules>,
    /// See [`MoverState::committed`].
    committed: Position,
    /// See [`MoverState::max_versions`].
    max_versions: usize,
}

impl MoverState {
    /// The hook.
    pub(super) fn counting(&self) -> Counting<'_> {
        let Self { rules, committed, max_versions, .. } = self;
        Counting { rules: rules.tally.as_ref(), committed: *committed, max_versions: *max_versions }
    }
}

/// The effect of a single record on its document's facets.
pub(super) fn steps(record: &Fold, rules: &FacetRules) -> Steps {
    debug_assert_eq!(record.records, 1, "a fold is counted record by record");
    match (&record.content, record.targets.first()) {
        (Content::Index { doc, .. }, Some(Target::Shard(shard))) => Steps::All(rules.facets(doc, shard)),
        (Content::Patch { patches, .. }, _)
            if !patches.iter().any(|patch| rules.is_touched_by_patch(patch)) =>
        {
            Steps::Untouched
        }
        _ => Steps::Unclear,
    }
}

impl<'a> Counting<'a> {
    /// Whether nothing is counted.
    pub(super) fn is_off(&self) -> bool {
        self.rules.is_none()
    }

    /// What `document` contributes in `target`, after this fold.
    pub(super) fn of_document(&self, fold: &Fold, document: &[u8], target: &ShardId) -> Contribution {
        Contribution(self.rules.map(|rules| match (&fold.steps, fold.targets.as_slice()) {
            // Computed when the record was read, under a map with the same result.
            (Steps::All(facets), [Target::Shard(shard)]) if shard == target => facets.clone(),
            _ => rules.facets(document, target),
        }))
    }

    /// In place as far as facets go: no record of the fold changes the recorded ones, so an owner that records one of
    /// them under other fold boundaries changes no count (docs/tally.md, "In place"). `base` is the version of the copy
    /// read, if any.
    pub(super) fn keeps_recorded(
        &self,
        placement: &Placement,
        fold: &Fold,
        after: &Contribution,
        base: Option<Position>,
    ) -> bool {
        let Some(facets) = &after.0 else { return true };
        let recorded = placement.facets();
        let are_kept = |facets: &Facets| recorded.map_or(facets.is_empty(), |recorded| recorded == facets);
        if sabotage::is(Sabotage::InPlaceDespiteFacets) {
            return are_kept(facets);
        }
        let Fold { steps, first, last, content, .. } = fold;
        // A copy that already includes records of the fold does not show their individual effects.
        let is_base = base.is_none_or(|version| version < *first);
        let kept_by_each = match steps {
            Steps::Untouched => true,
            Steps::All(step) => are_kept(step),
            // One patch over the copy read: its effect is the result.
            Steps::Unclear => first == last && matches!(content, Content::Patch { over: Base::Stored, .. }),
        };
        is_base && kept_by_each && are_kept(facets)
    }

    /// A full history blocks write-aheads until a commit lets it be cut. ⚠ Only if the entry is above everything
    /// recorded: then a commit up to the entry is enough, and only the commit is awaited. An entry that an earlier
    /// owner folded differently would wait for itself.
    pub(super) fn awaits_commit(&self, placement: &Placement, fold: &Fold) -> bool {
        self.rules.is_some()
            && placement.pos < fold.first
            && placement.versions.count_from(self.committed) >= self.max_versions
    }

    /// Whether a refused position is recorded in any case: another owner may record one of the fold's positions, and
    /// count it (docs/tally.md, "Refused documents").
    pub(super) fn records_refusals(&self) -> bool {
        self.rules.is_some() && !sabotage::is(Sabotage::RefusedInPlaceIsNotRecorded)
    }

    /// Adds the history that follows that of `known`: the document contributes this from the placement's position on.
    pub(super) fn record(
        &self,
        placement: Placement,
        known: Option<&KnownPlacement>,
        after: Contribution,
    ) -> Placement {
        self.with_facets(placement, known, || after.0.unwrap_or_default())
    }

    /// The same for a placement that is set back: a write refused at its position changes no facets. So an owner with
    /// that record in an in-place fold records the same (docs/tally.md, "Refused documents").
    pub(super) fn record_refusal(&self, placement: Placement, known: &KnownPlacement) -> Placement {
        let pos = placement.pos;
        let before = || known.placement.versions.below(pos).cloned().unwrap_or_default();
        self.with_facets(placement, Some(known), before)
    }

    /// If nothing is counted, the history stays unchanged.
    fn with_facets(
        &self,
        placement: Placement,
        known: Option<&KnownPlacement>,
        facets: impl FnOnce() -> Facets,
    ) -> Placement {
        let before = known.map(|known| known.placement.versions.clone()).unwrap_or_default();
        let versions = match self.rules {
            Some(_) => before.with(self.committed, placement.pos, facets()),
            None => before,
        };
        placement.with_history(versions)
    }

    /// The changes of a finished entry: versions of its document's history that may not be counted yet, including those
    /// of other owners, which may have died (docs/tally.md, "Edges").
    pub(super) fn edges<'h>(
        &self,
        versions: &'h FacetHistory,
    ) -> impl Iterator<Item = CountChange> + use<'h> {
        self.rules.map(|_| versions.edges(self.committed)).into_iter().flatten()
    }
}
