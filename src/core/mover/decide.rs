//! One entry's decision: from its placement, and the copies where content needs them, to what shall be done.

use bytes::Bytes;

use super::{
    Done, Doubt, Entry, HISTORY_FULL, MoverState, NothingFound, OLDER_COPY, OnMissing, Outcome, REFUSED_FOLD,
    Refusal, RetryState, Rules, SourceAnswer,
};
use crate::base::ids::ShardId;
use crate::base::position::Position;
use crate::base::requests::{Found, SeqNo, WriteCondition};
use crate::base::sabotage::{self, Sabotage};
use crate::core::counting::facets::{FacetRules, Facets};
use crate::core::counting::steps::Steps;
use crate::core::counting::version::History;
use crate::core::placement::{Known, Placement};
use crate::core::write::{Base, Content, Fold, Target};

/// How often no copy must be found, while the placement does not change, before there is none (step 4). A look is not one
/// moment: it misses a copy that moves from a geoshard not yet read to one read already. Under one placement another worker
/// can complete two moves, that of a batch it had under way and that which it resumes; and the placement may change during
/// the last look. This is enough for two other workers, with one to spare for a late request.
const LOOKS: u8 = 6;

/// A patch of a document that is not there: none of its fold is any better by itself.
const MISSING_DOCUMENT: &str = "missing_document";

/// How an entry relates to what is recorded of its document (protocol, step 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Relation {
    /// Recorded further on, and the fold may still get there.
    Behind(Position),
    /// Recorded further on, by a record that will not come any more: finish what it decided.
    FinishRecorded,
    /// This very entry was decided before: resume, decide nothing.
    Resume,
    /// Recorded by a record of another partition, in the same epoch: positions of the two have no order.
    OtherPartition(i32),
    /// To be decided.
    Decide,
}

/// Compares the entry with the placement (protocol, step 1).
pub(super) fn relate(partition: Option<i32>, entry: &Entry, known: Option<&Known>) -> Relation {
    let Some(known) = known else { return Relation::Decide };
    let recorded = known.placement.pos;
    if let (Some(ours), Some(theirs)) = (partition, known.placement.partition_in(entry.fold.last.epoch()))
        && ours != theirs
        && !sabotage::is(Sabotage::PartitionsAreComparable)
    {
        return Relation::OtherPartition(theirs);
    }
    if recorded < entry.fold.last {
        Relation::Decide
    } else if recorded == entry.fold.last {
        if sabotage::is(Sabotage::DecideAgainAtEqualPosition) { Relation::Decide } else { Relation::Resume }
    } else if entry.carry.finish_recorded {
        Relation::FinishRecorded
    } else {
        // Not stale: calling it done would lose patches. The record at `recorded` exists, and will be folded in.
        Relation::Behind(recorded)
    }
}

/// The geoshards whose copies must be read before the entry can be decided (protocol, step 4). Empty if none.
pub(super) fn copies_needed(desk: &MoverState, entry: &Entry, known: Option<&Known>) -> Vec<ShardId> {
    let Some(known) = known else { return Vec::new() };
    let rules = &desk.rules;
    let placement = &known.placement;
    let content_needs_copy = match entry.fold.content {
        Content::Patch { over, .. } => over == Base::Stored,
        Content::Touch => true,
        Content::Index { .. } | Content::Delete | Content::Refeed => false,
    };
    // What was decided at the refeed's position or later knows what the source said; no copy is as new otherwise.
    let content_needs_copy =
        content_needs_copy || refed_at(rules, &entry.fold).is_some_and(|refed_at| placement.pos >= refed_at);
    let needs_copy = match relate(desk.partition, entry, Some(known)) {
        Relation::Behind(_) | Relation::OtherPartition(_) => false,
        Relation::Resume if placement.refused || is_decided_otherwise(rules, entry, placement) => true,
        _ => content_needs_copy && placement.shard.is_some(),
    };
    if !needs_copy {
        return Vec::new();
    }
    placement.shard.iter().chain(known.unswept()).cloned().collect()
}

/// Whether, at an equal position, another geoshard is recorded than the fold's whole document belongs to: see
/// [`Decision::corrected_target`], which then asks whether the recorded decision was carried out.
fn is_decided_otherwise(rules: &Rules, entry: &Entry, placement: &Placement) -> bool {
    let Content::Index { at, .. } = entry.fold.content else { return false };
    let differs = |shard: &ShardId| rules.agreed(at).is_some_and(|agreed| agreed != *shard);
    !rules.announce_all && placement.shard.as_ref().is_some_and(differs)
}

/// The refeed that the fold's content rests on; or the delete, if patches came after it and what is missing is fetched.
fn refed_at(rules: &Rules, fold: &Fold) -> Option<Position> {
    let rests_on_it = match &fold.content {
        Content::Refeed | Content::Patch { over: Base::Refed, .. } => true,
        Content::Patch { over: Base::Nothing, .. } => rules.on_missing == OnMissing::Refeed,
        _ => false,
    };
    fold.whole_at.filter(|_| rests_on_it)
}

/// The newest copy of a document among the geoshards that were read.
#[derive(Debug, Clone)]
pub(super) struct Copy {
    pub shard: ShardId,
    pub version: Position,
    pub source: Bytes,
    /// It is the one that the placement carries, and may not be in its geoshard yet.
    pub is_recorded: bool,
}

impl Copy {
    pub(super) fn new(shard: ShardId, found: Found) -> Self {
        Self {
            shard,
            version: Position::from_version(found.version),
            source: found.source,
            is_recorded: false,
        }
    }

    /// The one that the placement carries, if it carries one.
    fn recorded(placement: &Placement) -> Option<Self> {
        let (source, shard) = (placement.fetched.clone()?, placement.shard.clone()?);
        Some(Self { shard, version: placement.pos, source, is_recorded: true })
    }
}

/// What to do with an entry.
#[derive(Debug)]
pub(super) enum Plan {
    /// Nothing more in this batch.
    Settle(Outcome),
    /// A dead letter, and nothing that concerns the placement: it is another partition's.
    Reject(Refusal),
    /// The newest copy found is older than it should be: write it again as it is. Elasticsearch refuses that where a newer one is.
    Confirm { copy: Copy, carry: RetryState },
    /// One document write and nothing else.
    InPlace { known: Known, task: Task },
    /// Write ahead, then carry out.
    WriteAhead { guard: WriteCondition, placement: Placement, task: Task },
    /// The decision is recorded already: carry it out.
    CarryOut { known: Known, task: Task },
}

impl Plan {
    /// Whether the copy that was found is not believed.
    pub(super) fn is_doubt(&self) -> bool {
        matches!(self, Self::Confirm { .. } | Self::Settle(Outcome::Again { reason: OLDER_COPY, .. }))
    }
}

/// What is left to do once the placement says where the document belongs.
#[derive(Debug, Clone)]
pub(super) struct Task {
    /// The document to write into the placement's shard at the fold's position; `None` if there is nothing to write.
    pub write: Option<Bytes>,
    /// The version at which copies in leftovers are deleted.
    pub sweep_at: Position,
    /// The outcome when all went well.
    pub then: Outcome,
}

/// The history of a placement that is written at `pos`, after that of `known`; what the document contributes from there on
/// is asked only if anything is counted. Otherwise a history stays as it was found.
pub(super) fn history(
    desk: &MoverState,
    known: Option<&Known>,
    pos: Position,
    facets: impl FnOnce(&FacetRules) -> Facets,
) -> History {
    let before = known.map(|known| known.placement.versions.clone()).unwrap_or_default();
    match &desk.rules.tally {
        Some(rules) => before.with(desk.committed, pos, facets(rules)),
        None => before,
    }
}

/// The history of a placement that is set back: what is refused at `pos` changes no facets. So whoever has that record in a
/// fold that is in place records the same (docs/tally.md, "Refused documents").
pub(super) fn refused_history(desk: &MoverState, known: &Known, pos: Position) -> History {
    let before = known.placement.versions.below(pos).cloned().unwrap_or_default();
    history(desk, Some(known), pos, |_| before)
}

/// A placement that is decided by this entry: at its position, and naming the partition of its records.
pub(super) fn new_placement(
    desk: &MoverState,
    entry: &Entry,
    shard: Option<ShardId>,
    may_hold: impl IntoIterator<Item = ShardId>,
) -> Placement {
    Placement::new(entry.fold.last, shard, may_hold).by_partition(desk.partition)
}

/// Decides one entry. `fresh`: the placement was read in this batch, not taken from the cache. `copy`: the newest copy among
/// [`copies_needed`].
pub(super) fn decide(
    desk: &MoverState,
    entry: &Entry,
    known: Option<Known>,
    fresh: bool,
    copy: Option<Copy>,
) -> Plan {
    let relation = relate(desk.partition, entry, known.as_ref());
    let recorded = known.as_ref().and_then(|known| Copy::recorded(&known.placement));
    let copy = match (copy, recorded) {
        (Some(copy), Some(recorded)) if copy.version < recorded.version => Some(recorded),
        (copy, recorded) => copy.or(recorded),
    };
    let decision = Decision { desk, rules: &desk.rules, entry, fresh };
    if let (Some(known), Some(copy)) = (&known, &copy)
        && let Some(plan) = decision.doubt(known, copy)
    {
        return plan;
    }
    match (relation, known) {
        (Relation::Behind(_), _) if sabotage::is(Sabotage::StaleIsDone) => {
            Plan::Settle(Outcome::Done(Done::AlreadyApplied))
        }
        (Relation::Behind(until), _) => Plan::Settle(Outcome::Parked { until }),
        (Relation::OtherPartition(theirs), _) => Plan::Reject(in_two_partitions(desk.partition, theirs)),
        (Relation::Resume, Some(known)) => decision.resume(known, copy),
        (Relation::FinishRecorded, Some(known)) => decision.finish_recorded(known, copy),
        (_, known) => decision.anew(known, copy),
    }
}

fn in_two_partitions(ours: Option<i32>, theirs: i32) -> Refusal {
    let ours = ours.unwrap_or_default();
    Refusal {
        reason: "key_in_two_partitions",
        detail: format!(
            "the key has records in partition {theirs} and in partition {ours}, which have no order between them: let all who write \
             to the topic use one partitioner, the one that kafka.partitioner names, and write the document again"
        ),
    }
}

/// The document that the entry wants, as far as the copy tells.
enum Wanted {
    /// Write this.
    Document(Bytes, Made),
    /// The copy found is at least as new, in the placement's own shard.
    Written(Copy),
    /// No document.
    Gone(Outcome),
    /// Nothing can be decided now.
    Settle(Outcome),
}

/// What a document is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Made {
    /// Of records and stored copies: whoever has the same record makes the same.
    Logged,
    /// Over a document that the placement carries.
    Recorded,
    /// Of what the source of truth said, which may say something else to the next who asks.
    Fetched,
}

/// Whether the source of truth may be asked, and its answer be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    MayBeAsked,
    /// What was decided at the entry's position stands: a document from elsewhere would not belong where that says.
    IsNotAsked,
}

struct Decision<'a> {
    desk: &'a MoverState,
    rules: &'a Rules,
    entry: &'a Entry,
    fresh: bool,
}

impl Decision<'_> {
    /// Step 4: a base that is older than it should be is from a node that does not know it is cut off, or the newer one is lost. It is
    /// looked for once more, elsewhere, and then only what Elasticsearch takes again is the newest. `None`: it is believed.
    fn doubt(&self, known: &Known, copy: &Copy) -> Option<Plan> {
        let Known { placement, stamp, at_least, .. } = known;
        // Whoever recorded `pos` has done its record before another one of the document is begun, unless it was refused.
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
        let doubt = Some(Doubt { at: *stamp, looks, at_least, newest: newest.cloned() });
        let carry = RetryState { doubt, ..self.entry.carry.clone() };
        // One that is older than what was confirmed needs no question.
        if before.is_none() || newest.is_some_and(|(_, version)| copy.version < *version) {
            return Some(Plan::Settle(again_outcome(OLDER_COPY, carry)));
        }
        Some(Plan::Confirm { copy: copy.clone(), carry })
    }

    /// Steps 2 and 3: no decision about this position is recorded.
    fn anew(&self, known: Option<Known>, copy: Option<Copy>) -> Plan {
        let fold = &self.entry.fold;
        let placed_in = known.as_ref().and_then(|known| known.placement.shard.clone());
        let wanted = self.wanted(known.as_ref(), placed_in.as_ref(), copy.clone(), Source::MayBeAsked);
        let wanted = match wanted {
            Ok(wanted) => wanted,
            Err(refusal) => return self.refuse(known, copy, refusal),
        };
        let mut fetched = None;
        let (target, write, then, facets) = match wanted {
            Wanted::Settle(outcome) => return Plan::Settle(outcome),
            Wanted::Gone(Outcome::DeadLetter(refusal))
                if refusal.reason != MISSING_DOCUMENT && self.may_be_separated(known.as_ref()) =>
            {
                return Plan::Settle(separated(refusal, known.as_ref()));
            }
            Wanted::Gone(outcome) => (None, None, outcome, None),
            // Whoever wrote it in place decided for this shard; nothing is decided again, perhaps under another map.
            Wanted::Written(written) => {
                // Unless it was in place, a cached placement may be out of date: somebody moved the document away and back,
                // and the leftovers of that are swept by nobody if the entry is called done.
                // Nor are facets known that somebody with other fold boundaries may yet record (docs/tally.md, "In place").
                let is_done = known.as_ref().is_some_and(|known| {
                    self.rules.tally.is_none() && self.is_in_place(known, &written.shard)
                        || sabotage::is(Sabotage::WrittenIsDone) && known.placement.leftovers.is_empty()
                });
                if is_done {
                    return Plan::Settle(Outcome::Done(Done::AlreadyApplied));
                }
                let facets = known.as_ref().and_then(|known| known.placement.facets().cloned());
                (Some(written.shard), None, Outcome::Done(Done::AlreadyApplied), facets)
            }
            Wanted::Document(document, made) => {
                let target = match self.target(known.as_ref(), &document, made) {
                    Ok(target) => target,
                    Err(refusal) => return self.refuse(known, copy, refusal),
                };
                let is_recorded = made != Made::Logged && !sabotage::is(Sabotage::FetchedIsNotRecorded);
                fetched = is_recorded.then(|| document.clone());
                let moved = placed_in.as_ref().is_some_and(|from| *from != target);
                let then = Outcome::Done(Done::Indexed { moved });
                let facets = self.rules.tally.as_ref().map(|rules| self.facets(rules, &document, &target));
                let is_in_place = |known: &Known| {
                    made == Made::Logged
                        && self.is_in_place(known, &target)
                        && facets
                            .as_ref()
                            .is_none_or(|facets| self.keeps(&known.placement, facets, copy.as_ref()))
                };
                if let Some(known) = known.as_ref().filter(|known| is_in_place(known)) {
                    let task = Task { write: Some(document), sweep_at: fold.last, then };
                    return Plan::InPlace { known: known.clone(), task };
                }
                if known.is_none() && sabotage::is(Sabotage::NoWriteAhead) {
                    return self.unannounced(target, document, then);
                }
                (Some(target), Some(document), then, facets)
            }
        };
        if known.as_ref().is_some_and(|known| self.is_full(&known.placement)) {
            let carry = RetryState { awaits_commit: true, ..self.entry.carry.clone() };
            return Plan::Settle(again_outcome(HISTORY_FULL, carry));
        }
        let versions = self.history(known.as_ref(), |_| facets.unwrap_or_default());
        let (guard, may_hold) = match known {
            None => (WriteCondition::Absent, Vec::new()),
            Some(known) => {
                let may_hold = known.unswept().iter().chain(&known.placement.shard).cloned().collect();
                (WriteCondition::Unchanged(known.stamp), may_hold)
            }
        };
        Plan::WriteAhead {
            guard,
            placement: new_placement(self.desk, self.entry, target, may_hold)
                .with_fetched(fetched)
                .with_history(versions),
            task: Task { write, sweep_at: fold.last, then },
        }
    }

    /// No more is written ahead before a commit lets the history be cut. ⚠ Only if the entry came after all that is recorded:
    /// then a commit up to the entry itself is enough, and nothing but the commit is waited for. An entry that an earlier
    /// owner had folded further, or less, would wait for itself.
    fn is_full(&self, placement: &Placement) -> bool {
        self.rules.tally.is_some()
            && placement.pos < self.entry.fold.first
            && placement.versions.count_from(self.desk.committed) >= self.desk.max_versions
    }

    /// The history of a placement that this entry writes.
    fn history(&self, known: Option<&Known>, facets: impl FnOnce(&FacetRules) -> Facets) -> History {
        history(self.desk, known, self.entry.fold.last, facets)
    }

    /// What the document contributes in `target`.
    fn facets(&self, rules: &FacetRules, document: &[u8], target: &ShardId) -> Facets {
        let Fold { steps, targets, .. } = &*self.entry.fold;
        match (steps, targets.as_slice()) {
            // Found when the record was read, under a map that says the same.
            (Steps::All(facets), [Target::Shard(shard)]) if shard == target => facets.clone(),
            _ => rules.facets(document, target),
        }
    }

    /// In place as far as facets go: each record of the fold leaves them as they are recorded, so that whoever records one of
    /// them yet, with other fold boundaries, changes nothing in the counts.
    fn keeps(&self, placement: &Placement, facets: &Facets, copy: Option<&Copy>) -> bool {
        let Fold { steps, first, last, content, .. } = &*self.entry.fold;
        let recorded = placement.facets();
        let are_kept = |facets: &Facets| recorded.map_or(facets.is_empty(), |recorded| recorded == facets);
        if sabotage::is(Sabotage::InPlaceDespiteFacets) {
            return are_kept(facets);
        }
        // A copy that has records of the fold already says nothing of what they did.
        let is_base = copy.is_none_or(|copy| copy.version < *first);
        let kept_by_each = match steps {
            Steps::Untouched => true,
            Steps::All(step) => are_kept(step),
            // One patch over what was read: what it did is what came of it.
            Steps::Unclear => first == last && matches!(content, Content::Patch { over: Base::Stored, .. }),
        };
        is_base && kept_by_each && are_kept(facets)
    }

    /// Writes a new document as if it had a placement already: [`Sabotage::NoWriteAhead`].
    fn unannounced(&self, target: ShardId, document: Bytes, then: Outcome) -> Plan {
        let position = self.entry.fold.last;
        let placement = Placement::new(position, Some(target), []);
        let known = Known::new(placement, SeqNo { seq_no: 0, primary_term: 0 });
        Plan::InPlace { known, task: Task { write: Some(document), sweep_at: position, then } }
    }

    /// Step 1, equal position: carry out what is recorded, decide nothing (a map may have changed since).
    fn resume(&self, known: Known, copy: Option<Copy>) -> Plan {
        let sweep_at = self.entry.fold.last;
        if known.placement.refused {
            return self.resume_refused(known, copy);
        }
        let Some(shard) = known.placement.shard.clone() else {
            let then = match self.entry.fold.content {
                Content::Delete | Content::Refeed => Outcome::Done(Done::Deleted),
                _ => self.missing_outcome(),
            };
            return Plan::CarryOut { known, task: Task { write: None, sweep_at, then } };
        };
        // A touch that came after a delete and met nothing was placed with what was fetched for it; here both are one fold.
        if self.entry.fold.content == Content::Delete {
            let write = copy.filter(|copy| copy.is_recorded).map(|copy| copy.source);
            let then = Outcome::Done(Done::AlreadyApplied);
            return Plan::CarryOut { known, task: Task { write, sweep_at, then } };
        }
        let source = match sabotage::is(Sabotage::FetchedIsNotRecorded) {
            true => Source::MayBeAsked,
            false => Source::IsNotAsked,
        };
        match self.wanted(Some(&known), Some(&shard), copy.clone(), source) {
            Ok(Wanted::Settle(outcome)) => Plan::Settle(outcome),
            Ok(Wanted::Written(_)) => Plan::CarryOut {
                known,
                task: Task { write: None, sweep_at, then: Outcome::Done(Done::AlreadyApplied) },
            },
            Ok(Wanted::Document(document, made)) => {
                if let Some(target) = self.corrected_target(&known.placement, copy.as_ref(), &document, made)
                {
                    return self.correct(known, target, document);
                }
                let moved = !known.placement.leftovers.is_empty();
                let then = Outcome::Done(Done::Indexed { moved });
                Plan::CarryOut { known, task: Task { write: Some(document), sweep_at, then } }
            }
            // Recorded with a shard, but there is no document to put there: say so, then sweep what may be left.
            Ok(Wanted::Gone(then)) => {
                let may_hold: Vec<ShardId> = known.placement.may_hold().cloned().collect();
                let versions = self.history(Some(&known), |_| Facets::default());
                let placement = new_placement(self.desk, self.entry, None, may_hold).with_history(versions);
                Plan::WriteAhead {
                    guard: WriteCondition::Unchanged(known.stamp),
                    placement,
                    task: Task { write: None, sweep_at, then },
                }
            }
            Err(refusal) => self.refuse(Some(known), copy, refusal),
        }
    }

    /// Where the document belongs by every live map, if another geoshard is recorded at the entry's position, and no copy is
    /// there yet. Where the maps agree, all workers decide alike at a position, unless Elasticsearch refuses a document that a
    /// patch mends: one worker folds both, another has given up the refused record and has only the patch.
    fn corrected_target(
        &self,
        placement: &Placement,
        copy: Option<&Copy>,
        document: &[u8],
        made: Made,
    ) -> Option<ShardId> {
        let Fold { content, last, .. } = &*self.entry.fold;
        let recorded = placement.shard.as_ref()?;
        let is_written = copy.is_some_and(|copy| copy.shard == *recorded && copy.version >= *last);
        if self.rules.announce_all
            || made != Made::Logged
            || is_written
            || sabotage::is(Sabotage::MisplacedIsResumed)
        {
            return None;
        }
        let target = match content {
            Content::Index { at, .. } => self.rules.agreed(*at)?,
            _ => self.rules.agreed_document(document)?,
        };
        (target != *recorded).then_some(target)
    }

    /// Records another geoshard at the entry's own position, and writes the document there.
    fn correct(&self, known: Known, target: ShardId, document: Bytes) -> Plan {
        let position = self.entry.fold.last;
        let may_hold: Vec<ShardId> = known.placement.may_hold().cloned().collect();
        let versions = self.history(Some(&known), |rules| self.facets(rules, &document, &target));
        let then = Outcome::Done(Done::Indexed { moved: true });
        Plan::WriteAhead {
            guard: WriteCondition::Unchanged(known.stamp),
            placement: new_placement(self.desk, self.entry, Some(target), may_hold).with_history(versions),
            task: Task { write: Some(document), sweep_at: position, then },
        }
    }

    /// Step 1, equal position, refused there for good: the last good copy stays, the others go.
    fn resume_refused(&self, known: Known, copy: Option<Copy>) -> Plan {
        if copy.is_none() && !self.is_surely_missing(Some(&known)) {
            return Plan::Settle(self.look_again(Some(&known)));
        }
        let refusal = self.entry.carry.refusal.clone().unwrap_or_else(|| Refusal {
            reason: "refused_by_elasticsearch",
            detail: "an earlier attempt at this position was refused for good; its own dead letter says why"
                .to_owned(),
        });
        match copy {
            Some(copy) if Some(&copy.shard) == known.placement.shard.as_ref() => {
                Plan::CarryOut { task: self.keep(copy, refusal), known }
            }
            copy => self.set_back(known, copy, refusal),
        }
    }

    /// The entry makes no document. Where an earlier attempt has recorded a way for it, somebody may be half-way.
    fn refuse(&self, known: Option<Known>, copy: Option<Copy>, refusal: Refusal) -> Plan {
        if self.may_be_separated(known.as_ref()) {
            return Plan::Settle(separated(refusal, known.as_ref()));
        }
        match known {
            // Where something is counted, its position is recorded in any case (docs/tally.md, "Refused documents").
            Some(known) if !known.unswept().is_empty() || self.records_refusals() => {
                self.set_back(known, copy, refusal)
            }
            _ => Plan::Settle(Outcome::DeadLetter(refusal)),
        }
    }

    fn may_be_separated(&self, known: Option<&Known>) -> bool {
        may_be_separated(self.desk, self.entry, known)
    }

    fn records_refusals(&self) -> bool {
        self.rules.tally.is_some() && !sabotage::is(Sabotage::RefusedInPlaceIsNotRecorded)
    }

    /// Records that the document stays where its last good copy is. If there is none, nothing is changed, and nothing
    /// swept: a copy may be on its way from somebody at a lower position, into any geoshard that is named.
    fn set_back(&self, known: Known, copy: Option<Copy>, refusal: Refusal) -> Plan {
        let Some(copy) = copy else { return Plan::Settle(Outcome::DeadLetter(refusal)) };
        let may_hold: Vec<ShardId> = known.unswept().iter().chain(&known.placement.shard).cloned().collect();
        let versions = refused_history(self.desk, &known, self.entry.fold.last);
        Plan::WriteAhead {
            guard: WriteCondition::Unchanged(known.stamp),
            placement: new_placement(self.desk, self.entry, Some(copy.shard.clone()), may_hold)
                .after_refusal()
                .with_fetched(copy.is_recorded.then(|| copy.source.clone()))
                .with_history(versions),
            task: self.keep(copy, refusal),
        }
    }

    /// Lifts the last good copy to the entry's position, unchanged: below it, a zombie that once moved the document
    /// elsewhere could still delete it, after the copy that it had moved to was swept.
    fn keep(&self, copy: Copy, refusal: Refusal) -> Task {
        let position = self.entry.fold.last;
        let write = (copy.version < position || copy.is_recorded).then_some(copy.source);
        Task { write, sweep_at: position, then: Outcome::DeadLetter(refusal) }
    }

    /// Step 1, recorded further on by a record that never came (compacted away, or lost): finish what it decided.
    /// The document is written at the fold's own position, so that the lost record's true content would still win.
    fn finish_recorded(&self, known: Known, copy: Option<Copy>) -> Plan {
        let recorded = known.placement.pos;
        let finish = |known, write: Option<Bytes>, then| Plan::CarryOut {
            known,
            task: Task { write, sweep_at: recorded, then },
        };
        let applied = Outcome::Done(Done::AlreadyApplied);
        let Some(shard) = known.placement.shard.clone() else { return finish(known, None, applied) };
        if let Some(copy) = &copy
            && copy.shard != shard
            && (self.entry.fold.last..recorded).contains(&copy.version)
        {
            // The fold was written before the lost record moved the document on: the copy goes along as it is.
            let source = copy.source.clone();
            return finish(known, Some(source), Outcome::Done(Done::Indexed { moved: true }));
        }
        match self.wanted(Some(&known), Some(&shard), copy, Source::IsNotAsked) {
            Ok(Wanted::Document(document, _)) => {
                finish(known, Some(document), Outcome::Done(Done::Indexed { moved: false }))
            }
            Ok(Wanted::Written(_)) => finish(known, None, applied),
            Ok(Wanted::Gone(outcome)) => finish(known, None, outcome),
            Ok(Wanted::Settle(Outcome::Again { reason, mut carry })) => {
                carry.finish_recorded = true;
                Plan::Settle(Outcome::Again { reason, carry })
            }
            Ok(Wanted::Settle(outcome)) => Plan::Settle(outcome),
            Err(refusal) => Plan::Settle(Outcome::DeadLetter(refusal)),
        }
    }

    /// The document that shall be in the index after this entry.
    fn wanted(
        &self,
        known: Option<&Known>,
        placed_in: Option<&ShardId>,
        copy: Option<Copy>,
        source: Source,
    ) -> Result<Wanted, Refusal> {
        let fold = &self.entry.fold;
        match &fold.content {
            Content::Index { doc, .. } => return Ok(Wanted::Document(doc.clone(), Made::Logged)),
            Content::Delete => return Ok(Wanted::Gone(Outcome::Done(Done::Deleted))),
            // The delete that came before the patch stands, whatever becomes of the patch.
            Content::Patch { over: Base::Nothing, .. } if self.rules.on_missing != OnMissing::Refeed => {
                return self.made_of_nothing(source);
            }
            Content::Patch { .. } | Content::Touch | Content::Refeed => {}
        }
        let refed_at = refed_at(self.rules, fold);
        if let Some(copy) = copy.filter(|copy| refed_at.is_none_or(|refed_at| copy.version >= refed_at)) {
            let is_elsewhere = Some(&copy.shard) != placed_in;
            let ignores_newer = is_elsewhere && sabotage::is(Sabotage::IgnoreNewerLeftover);
            if copy.version < fold.last || ignores_newer {
                let made = if copy.is_recorded { Made::Recorded } else { Made::Logged };
                let document = self.applied_to(Some(&copy.source))?;
                return Ok(Wanted::Document(document, made));
            }
            if copy.is_recorded {
                return Ok(Wanted::Document(copy.source, Made::Recorded));
            }
            if !is_elsewhere {
                return Ok(Wanted::Written(copy));
            }
            return Ok(Wanted::Settle(again_outcome("newer_copy_elsewhere", RetryState::default())));
        }
        let since = refed_at.map(|refed_at| known.filter(|known| known.placement.pos >= refed_at));
        match since {
            // Nobody has decided since the refeed.
            Some(None) => return self.refed(source),
            // Who did was told that the document is gone.
            Some(Some(known)) if known.placement.shard.is_none() => {
                return match fold.content {
                    Content::Refeed => Ok(Wanted::Gone(Outcome::Done(Done::Deleted))),
                    _ => self.made_of_nothing(source),
                };
            }
            _ => {}
        }
        if !self.is_surely_missing(known) {
            if sabotage::is(Sabotage::NothingFoundIsDone) {
                return Ok(Wanted::Settle(Outcome::Done(Done::AlreadyApplied)));
            }
            return Ok(Wanted::Settle(self.look_again(known)));
        }
        if refed_at.is_some() {
            return self.refed(source);
        }
        Ok(match self.made_of_nothing(source)? {
            // The placement stays as it is: no record has deleted the document, and a copy that is on its way goes by it.
            // Unless the source of truth says so: somebody who was told otherwise must not place it by what is recorded.
            Wanted::Gone(outcome)
                if self.rules.on_missing != OnMissing::Refeed
                    && !sabotage::is(Sabotage::MissingIsDeleted)
                    || sabotage::is(Sabotage::GoneIsNotRecorded) =>
            {
                Wanted::Settle(outcome)
            }
            wanted => wanted,
        })
    }

    /// No copy was found. There is none if none was found so often before, while the placement did not change (step 4).
    fn is_surely_missing(&self, known: Option<&Known>) -> bool {
        let looks = if sabotage::is(Sabotage::SecondLookIsBelieved) { 2 } else { LOOKS };
        let is_sure = match known {
            Some(known) if known.placement.shard.is_some() => self.looks_at(known).looks >= looks,
            _ => true,
        };
        self.fresh && is_sure
    }

    /// This look, in which nothing was found, and those before it.
    fn looks_at(&self, known: &Known) -> NothingFound {
        let before = self.entry.carry.nothing_found.filter(|before| before.at == known.stamp);
        NothingFound { at: known.stamp, looks: before.map_or(0, |before| before.looks).saturating_add(1) }
    }

    /// Back to step 1, with a fresh read of the placement.
    fn look_again(&self, known: Option<&Known>) -> Outcome {
        let nothing_found = known.map(|known| self.looks_at(known));
        again_outcome("nothing_found", RetryState { nothing_found, ..self.entry.carry.clone() })
    }

    /// Step 2: only records after the recorded position decide; older ones were decided by whoever recorded it.
    fn target(&self, known: Option<&Known>, document: &[u8], made: Made) -> Result<ShardId, Refusal> {
        let fold = &self.entry.fold;
        // Whoever decided before decided about another document.
        if made != Made::Fetched
            && let Some(known) = known
            && let Some(stays) = &known.placement.shard
            // A placement that was set back says where the last good copy is, not where a record has put the document.
            && (!known.placement.refused || sabotage::is(Sabotage::RefusedStays))
            && fold.located_at.max(fold.touched_at) <= Some(known.placement.pos)
            && !sabotage::is(Sabotage::OldRecordsDecide)
            && !sabotage::is(Sabotage::DecideAgainAtEqualPosition)
        {
            return Ok(stays.clone());
        }
        match fold.content {
            Content::Index { at, .. } => Ok(self.rules.locate(at)),
            _ => self.rules.locate_document(document),
        }
    }

    /// Step 3: the one case in which nothing needs to be written ahead.
    fn is_in_place(&self, known: &Known, target: &ShardId) -> bool {
        let placement = &known.placement;
        !self.rules.announce_all
            // Places of earlier records are not known by both maps.
            && (self.rules.other_map.is_none() || self.entry.fold.first >= self.desk.both_maps_since)
            // The write-ahead will fail, and the placement be read again.
            && !known.outdated
            // Otherwise a record in another partition would not be noticed.
            && (self.desk.partition.is_none()
                || placement.partition_in(self.entry.fold.last.epoch()) == self.desk.partition)
            && placement.leftovers.is_empty()
            && placement.fetched.is_none()
            // There may be no copy: whoever is refused next must say so again.
            && !placement.refused
            && placement.shard.as_ref() == Some(target)
            // The owner of the record that the placement was written for may yet be refused, and set the placement back.
            && (placement.pos < self.entry.fold.first
                || sabotage::is(Sabotage::InPlaceOverItsOwnRecord)
                || sabotage::is(Sabotage::InPlaceHasNoEdges))
            // A fold A→B→A must write: a zombie still at its B step would move the document away from under it.
            && (self.entry.fold.targets.iter().all(|step| matches!(step, Target::Shard(shard) if shard == target))
                || sabotage::is(Sabotage::InPlaceDespiteTargets))
    }

    /// The fold's content over a stored document. Only folds that want a document ask.
    fn applied_to(&self, stored: Option<&[u8]>) -> Result<Bytes, Refusal> {
        let content = &self.entry.fold.content;
        let applied = match content {
            // What the source has after the delete is patched.
            Content::Patch { over: Base::Nothing, patches } if self.rules.on_missing == OnMissing::Refeed => {
                Content::Patch { over: Base::Refed, patches: patches.clone() }.apply_to(stored)
            }
            _ => content.apply_to(stored),
        };
        match applied {
            Ok(Some(document)) => Ok(document),
            Ok(None) => {
                Err(Refusal { reason: "no_document", detail: "nothing is left of the document".to_owned() })
            }
            Err(error) => Err(Refusal { reason: error.reason(), detail: error.to_string() }),
        }
    }

    /// What patches or touches of a document that is not there leave (protocol, "on_missing").
    fn made_of_nothing(&self, source: Source) -> Result<Wanted, Refusal> {
        match self.rules.on_missing {
            OnMissing::Refeed => self.refed(source),
            OnMissing::Create if self.entry.fold.content != Content::Touch => {
                Ok(self.made_of_patches(Made::Logged))
            }
            _ => Ok(Wanted::Gone(self.missing_outcome())),
        }
    }

    fn made_of_patches(&self, made: Made) -> Wanted {
        let document = self.applied_to(None).and_then(|document| {
            self.rules.locate_document(&document)?;
            Ok(document)
        });
        match document {
            Ok(document) => Wanted::Document(document, made),
            Err(refusal) => Wanted::Gone(Outcome::DeadLetter(refusal)),
        }
    }

    /// What the source of truth makes of it (protocol, "Refeed"): its document, with what came after the refeed over that.
    fn refed(&self, source: Source) -> Result<Wanted, Refusal> {
        if source == Source::IsNotAsked {
            return Ok(Wanted::Settle(Outcome::DeadLetter(Refusal {
                reason: MISSING_DOCUMENT,
                detail: "the document was fetched and placed at this position, and removed since by something else than \
                         geofold; refeed it again"
                    .to_owned(),
            })));
        }
        let Some(said) = self.entry.said() else { return Ok(Wanted::Settle(Outcome::Fetch)) };
        let content = &self.entry.fold.content;
        let wanted = match (said, content) {
            (SourceAnswer::Document(document), _) => self.applied_to(Some(document)).and_then(|document| {
                self.rules.locate_document(&document)?;
                Ok(Wanted::Document(document, Made::Fetched))
            }),
            (SourceAnswer::Unusable(refusal), _) => Err(refusal.clone()),
            (SourceAnswer::Gone, Content::Refeed) => Ok(Wanted::Gone(Outcome::Done(Done::Deleted))),
            (SourceAnswer::Gone, Content::Patch { over: Base::Refed, .. })
                if self.rules.on_missing == OnMissing::Create =>
            {
                Ok(self.made_of_patches(Made::Fetched))
            }
            (SourceAnswer::Gone, _) => Ok(Wanted::Gone(self.missing_outcome())),
        };
        match (wanted, content) {
            // The delete that came before the patch stands.
            (Err(refusal), Content::Patch { over: Base::Nothing, .. }) => {
                Ok(Wanted::Gone(Outcome::DeadLetter(refusal)))
            }
            (wanted, _) => wanted,
        }
    }

    fn missing_outcome(&self) -> Outcome {
        // No write is lost: whoever asked for the document to be placed did not know that it is gone.
        if self.entry.fold.content == Content::Touch {
            return Outcome::Done(Done::NothingToPlace);
        }
        // The source of truth says so too: then it is no write that is lost.
        if matches!(self.rules.on_missing, OnMissing::Drop | OnMissing::Refeed) {
            return Outcome::Done(Done::Dropped);
        }
        Outcome::DeadLetter(Refusal {
            reason: MISSING_DOCUMENT,
            detail: "a patch of a document that is not in the index".to_owned(),
        })
    }
}

/// Whether a fold that cannot be carried out may be tried record by record: nobody has recorded a decision about the last of them, so that
/// those beyond what is recorded may be cut into folds in any way (protocol, "A fold that is refused ...").
pub(super) fn may_be_separated(desk: &MoverState, entry: &Entry, known: Option<&Known>) -> bool {
    let recorded = known.map_or(Position::NONE, |known| known.placement.pos);
    let Fold { first, last, .. } = *entry.fold;
    let is_of_the_fold = |offsets: Vec<i64>| recorded < first || offsets.contains(&recorded.offset());
    desk.separates && recorded < last && entry.fold.separable().is_some_and(is_of_the_fold)
}

/// What becomes of such a fold.
pub(super) fn separated(refusal: Refusal, known: Option<&Known>) -> Outcome {
    let decided_to = known.map(|known| known.placement.pos);
    again_outcome(REFUSED_FOLD, RetryState { refusal: Some(refusal), decided_to, ..RetryState::default() })
}

/// Back to step 1 in the next batch.
pub(super) fn again_outcome(reason: &'static str, carry: RetryState) -> Outcome {
    Outcome::Again { reason, carry }
}
