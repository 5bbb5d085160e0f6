//! The decision about one entry, from its placement and, where the content needs them, the stored copies.

use bytes::Bytes;

use super::counting::{Contribution, Counting};
use super::{
    Done, Doubt, Entry, HISTORY_FULL, MoverState, NothingFound, OLDER_COPY, OnMissing, Outcome, REFUSED_FOLD,
    Refusal, RetryState, Rules, SourceAnswer,
};
use crate::base::ids::ShardId;
use crate::base::position::Position;
use crate::base::requests::{Found, SeqNo, WriteCondition};
use crate::base::sabotage::{self, Sabotage};
use crate::core::fold::{Base, Content, Fold, Target};
use crate::core::placement::{Known, Placement};

/// Number of reads that must find no copy, with an unchanged placement, before the document counts as missing (step 4).
/// A read is not atomic: it misses a copy that moves from a geoshard not yet read to one already read. Under one
/// placement another worker can complete two moves, that of a batch in flight and the one it resumes; and the placement
/// may change during the last read. Six covers two other workers, with one read to spare for a late request.
const LOOKS: u8 = 6;

/// A patch of a document that is not there: none of its fold is any better by itself.
const MISSING_DOCUMENT: &str = "missing_document";

/// How an entry relates to what is recorded of its document (protocol, step 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Relation {
    /// Recorded at a higher position that the fold may still reach.
    Behind(Position),
    /// Recorded by a later record that never comes: finish its decision.
    FinishRecorded,
    /// This entry was decided before: resume, decide nothing.
    Resume,
    /// Recorded by a record of another partition in the same epoch: the two positions have no order.
    OtherPartition(i32),
    /// Not decided yet.
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
        // Not stale: calling it done would lose patches. The record at `recorded` exists and will be folded in.
        Relation::Behind(recorded)
    }
}

/// The geoshards whose copies the decision needs (protocol, step 4); may be empty.
pub(super) fn copies_needed(desk: &MoverState, entry: &Entry, known: Option<&Known>) -> Vec<ShardId> {
    let Some(known) = known else { return Vec::new() };
    let rules = &desk.rules;
    let placement = &known.placement;
    let content_needs_copy = match entry.fold.content {
        Content::Patch { over, .. } => over == Base::Stored,
        Content::Touch => true,
        Content::Index { .. } | Content::Delete | Content::Refeed => false,
    };
    // A decision at the refeed's position or later used the source's answer; otherwise no copy is as new.
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

/// Whether, at an equal position, the placement names another geoshard than the fold's whole document belongs to: see
/// [`Decision::corrected_target`], which then checks whether the recorded decision was carried out.
fn is_decided_otherwise(rules: &Rules, entry: &Entry, placement: &Placement) -> bool {
    let Content::Index { at, .. } = entry.fold.content else { return false };
    let differs = |shard: &ShardId| rules.agreed(at).is_some_and(|agreed| agreed != *shard);
    !rules.announce_all && placement.shard.as_ref().is_some_and(differs)
}

/// The position of the refeed that the content rests on; or of the delete, if patches follow it and missing documents
/// are fetched.
fn refed_at(rules: &Rules, fold: &Fold) -> Option<Position> {
    let rests_on_it = match &fold.content {
        Content::Refeed | Content::Patch { over: Base::Refed, .. } => true,
        Content::Patch { over: Base::Nothing, .. } => rules.on_missing == OnMissing::Refeed,
        _ => false,
    };
    fold.whole_at.filter(|_| rests_on_it)
}

/// The newest copy among the geoshards read.
#[derive(Debug, Clone)]
pub(super) struct Copy {
    pub shard: ShardId,
    pub version: Position,
    pub source: Bytes,
    /// Taken from the placement's `fetched`; it may not be in its geoshard yet.
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

    /// The placement's `fetched`, if any.
    fn recorded(placement: &Placement) -> Option<Self> {
        let (source, shard) = (placement.fetched.clone()?, placement.shard.clone()?);
        Some(Self { shard, version: placement.pos, source, is_recorded: true })
    }
}

/// The plan for an entry.
#[derive(Debug)]
pub(super) enum Plan {
    /// Nothing more in this batch.
    Settle(Outcome),
    /// A dead letter that leaves the placement alone: it is another partition's.
    Reject(Refusal),
    /// The newest copy found is older than expected: rewrite it unchanged. Elasticsearch refuses that if a newer one
    /// exists.
    Confirm { copy: Copy, carry: RetryState },
    /// One document write and nothing else.
    InPlace { known: Known, task: Task },
    /// Write ahead, then carry out.
    WriteAhead { guard: WriteCondition, placement: Placement, task: Task },
    /// The decision is recorded: carry it out.
    CarryOut { known: Known, task: Task },
}

impl Plan {
    /// Whether the copy found is distrusted.
    pub(super) fn is_doubt(&self) -> bool {
        matches!(self, Self::Confirm { .. } | Self::Settle(Outcome::Again { reason: OLDER_COPY, .. }))
    }
}

/// The work left once the placement names the target.
#[derive(Debug, Clone)]
pub(super) struct Task {
    /// The document to write into the placement's shard at the fold's position; `None` if there is nothing to write.
    pub write: Option<Bytes>,
    /// The version at which copies in leftovers are deleted.
    pub sweep_at: Position,
    /// The outcome on success.
    pub then: Outcome,
}

/// The placement decided by this entry: at its position, naming its partition.
pub(super) fn new_placement(
    desk: &MoverState,
    entry: &Entry,
    shard: Option<ShardId>,
    may_hold: impl IntoIterator<Item = ShardId>,
) -> Placement {
    Placement::new(entry.fold.last, shard, may_hold).by_partition(desk.partition)
}

/// Decides one entry. `fresh`: the placement was read in this batch, not cached. `copy`: the newest copy among
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
    let decision = Decision { desk, rules: &desk.rules, counting: desk.counting(), entry, fresh };
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

/// The document that the entry yields, given the copy.
enum Wanted {
    /// Write this.
    Document(Bytes, Made),
    /// The copy found is at least as new, in the placement's own shard.
    Written(Copy),
    /// No document.
    Gone(Outcome),
    /// Cannot be decided now.
    Settle(Outcome),
}

/// The origin of a document's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Made {
    /// Records and stored copies: every worker with the same record makes the same document.
    Logged,
    /// The placement's `fetched`.
    Recorded,
    /// The source's answer, which may differ at the next request.
    Fetched,
}

/// Whether the source may be asked and its answer used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    MayBeAsked,
    /// The decision at the entry's position stands: a document from elsewhere would contradict it.
    IsNotAsked,
}

struct Decision<'a> {
    desk: &'a MoverState,
    rules: &'a Rules,
    counting: Counting<'a>,
    entry: &'a Entry,
    fresh: bool,
}

impl Decision<'_> {
    /// Step 4: a base older than expected comes from a node that is cut off, or the newer one is lost. It is read again
    /// from another node; after that only a copy that Elasticsearch accepts again is the newest. `None`: the copy is
    /// trusted.
    fn doubt(&self, known: &Known, copy: &Copy) -> Option<Plan> {
        let Known { placement, stamp, at_least, .. } = known;
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
        let doubt = Some(Doubt { at: *stamp, looks, at_least, newest: newest.cloned() });
        let carry = RetryState { doubt, ..self.entry.carry.clone() };
        // Older than a confirmed copy: certainly outdated.
        if before.is_none() || newest.is_some_and(|(_, version)| copy.version < *version) {
            return Some(Plan::Settle(again_outcome(OLDER_COPY, carry)));
        }
        Some(Plan::Confirm { copy: copy.clone(), carry })
    }

    /// Steps 2 and 3: no decision is recorded at this position.
    fn anew(&self, known: Option<Known>, copy: Option<Copy>) -> Plan {
        let fold = &self.entry.fold;
        let placed_in = known.as_ref().and_then(|known| known.placement.shard.clone());
        let wanted = self.wanted(known.as_ref(), placed_in.as_ref(), copy.clone(), Source::MayBeAsked);
        let wanted = match wanted {
            Ok(wanted) => wanted,
            Err(refusal) => return self.refuse(known, copy, refusal),
        };
        let mut fetched = None;
        let (target, write, then, counted) = match wanted {
            Wanted::Settle(outcome) => return Plan::Settle(outcome),
            Wanted::Gone(Outcome::DeadLetter(refusal))
                if refusal.reason != MISSING_DOCUMENT && self.may_be_separated(known.as_ref()) =>
            {
                return Plan::Settle(separated(refusal, known.as_ref()));
            }
            Wanted::Gone(outcome) => (None, None, outcome, Contribution::default()),
            // The owner that wrote it in place decided for this shard; deciding again might use another map.
            Wanted::Written(written) => {
                // Unless the entry is in place, a cached placement may be outdated: a zombie moved the document away
                // and back, and calling the entry done would leave those leftovers unswept forever. Nor, with counting,
                // is known what an owner with other fold boundaries may still record.
                let is_done = known.as_ref().is_some_and(|known| {
                    self.counting.is_off() && self.is_in_place(known, &written.shard)
                        || sabotage::is(Sabotage::WrittenIsDone) && known.placement.leftovers.is_empty()
                });
                if is_done {
                    return Plan::Settle(Outcome::Done(Done::AlreadyApplied));
                }
                let counted = Contribution::recorded(known.as_ref());
                (Some(written.shard), None, Outcome::Done(Done::AlreadyApplied), counted)
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
                let counted = self.counting.of_document(fold, &document, &target);
                let base = copy.as_ref().map(|copy| copy.version);
                let is_in_place = |known: &Known| {
                    made == Made::Logged
                        && self.is_in_place(known, &target)
                        && self.counting.keeps_recorded(&known.placement, fold, &counted, base)
                };
                if let Some(known) = known.as_ref().filter(|known| is_in_place(known)) {
                    let task = Task { write: Some(document), sweep_at: fold.last, then };
                    return Plan::InPlace { known: known.clone(), task };
                }
                if known.is_none() && sabotage::is(Sabotage::NoWriteAhead) {
                    return self.unannounced(target, document, then);
                }
                (Some(target), Some(document), then, counted)
            }
        };
        if known.as_ref().is_some_and(|known| self.counting.awaits_commit(&known.placement, fold)) {
            let carry = RetryState { awaits_commit: true, ..self.entry.carry.clone() };
            return Plan::Settle(again_outcome(HISTORY_FULL, carry));
        }
        let (guard, may_hold) = match &known {
            None => (WriteCondition::Absent, Vec::new()),
            Some(known) => {
                let may_hold = known.unswept().iter().chain(&known.placement.shard).cloned().collect();
                (WriteCondition::Unchanged(known.stamp), may_hold)
            }
        };
        let placement = new_placement(self.desk, self.entry, target, may_hold).with_fetched(fetched);
        Plan::WriteAhead {
            guard,
            placement: self.counting.record(placement, known.as_ref(), counted),
            task: Task { write, sweep_at: fold.last, then },
        }
    }

    /// Writes a new document as if it had a placement already: [`Sabotage::NoWriteAhead`].
    fn unannounced(&self, target: ShardId, document: Bytes, then: Outcome) -> Plan {
        let position = self.entry.fold.last;
        let placement = Placement::new(position, Some(target), []);
        let known = Known::new(placement, SeqNo { seq_no: 0, primary_term: 0 });
        Plan::InPlace { known, task: Task { write: Some(document), sweep_at: position, then } }
    }

    /// Step 1, equal position: carry out the recorded decision (the map may have changed since).
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
        // A touch that followed a delete and found nothing was placed with its fetched document; here both are one
        // fold.
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
            // Recorded with a shard, but there is no document: record that, then sweep.
            Ok(Wanted::Gone(then)) => {
                let may_hold: Vec<ShardId> = known.placement.may_hold().cloned().collect();
                let placement = new_placement(self.desk, self.entry, None, may_hold);
                Plan::WriteAhead {
                    guard: WriteCondition::Unchanged(known.stamp),
                    placement: self.counting.record(placement, Some(&known), Contribution::default()),
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
        let counted = self.counting.of_document(&self.entry.fold, &document, &target);
        let placement = new_placement(self.desk, self.entry, Some(target), may_hold);
        let then = Outcome::Done(Done::Indexed { moved: true });
        Plan::WriteAhead {
            guard: WriteCondition::Unchanged(known.stamp),
            placement: self.counting.record(placement, Some(&known), counted),
            task: Task { write: Some(document), sweep_at: position, then },
        }
    }

    /// Step 1, equal position, permanently refused there: the last good copy stays, the others are deleted.
    fn resume_refused(&self, known: Known, copy: Option<Copy>) -> Plan {
        if copy.is_none() && !self.is_surely_missing(Some(&known)) {
            return Plan::Settle(self.look_again(Some(&known)));
        }
        let refusal = self.entry.carry.refusal.clone().unwrap_or_else(|| Refusal {
            reason: "refused_by_elasticsearch",
            detail: "an earlier attempt at this position was permanently refused; its dead letter says why"
                .to_owned(),
        });
        match copy {
            Some(copy) if Some(&copy.shard) == known.placement.shard.as_ref() => {
                Plan::CarryOut { task: self.keep(copy, refusal), known }
            }
            copy => self.set_back(known, copy, refusal),
        }
    }

    /// The entry yields no document. If an earlier attempt recorded a target, another owner may be half-way.
    fn refuse(&self, known: Option<Known>, copy: Option<Copy>, refusal: Refusal) -> Plan {
        if self.may_be_separated(known.as_ref()) {
            return Plan::Settle(separated(refusal, known.as_ref()));
        }
        match known {
            Some(known) if !known.unswept().is_empty() || self.counting.records_refusals() => {
                self.set_back(known, copy, refusal)
            }
            _ => Plan::Settle(Outcome::DeadLetter(refusal)),
        }
    }

    fn may_be_separated(&self, known: Option<&Known>) -> bool {
        may_be_separated(self.desk, self.entry, known)
    }

    /// Records that the document stays where its last good copy is. Without one, nothing is changed or swept: a writer
    /// at a lower position may still write a copy into any named geoshard.
    fn set_back(&self, known: Known, copy: Option<Copy>, refusal: Refusal) -> Plan {
        let Some(copy) = copy else { return Plan::Settle(Outcome::DeadLetter(refusal)) };
        let may_hold: Vec<ShardId> = known.unswept().iter().chain(&known.placement.shard).cloned().collect();
        let placement = new_placement(self.desk, self.entry, Some(copy.shard.clone()), may_hold)
            .after_refusal()
            .with_fetched(copy.is_recorded.then(|| copy.source.clone()));
        Plan::WriteAhead {
            guard: WriteCondition::Unchanged(known.stamp),
            placement: self.counting.record_refusal(placement, &known),
            task: self.keep(copy, refusal),
        }
    }

    /// Raises the last good copy to the entry's position, unchanged: below it, a zombie that once moved the document
    /// elsewhere could delete it after the moved copy was swept.
    fn keep(&self, copy: Copy, refusal: Refusal) -> Task {
        let position = self.entry.fold.last;
        let write = (copy.version < position || copy.is_recorded).then_some(copy.source);
        Task { write, sweep_at: position, then: Outcome::DeadLetter(refusal) }
    }

    /// Step 1, recorded by a later record that never came (compacted or lost): finishes its decision. The document is
    /// written at the fold's own position, so that the lost record's true content would still win.
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
            // The fold was applied before the lost record moved the document: the copy moves unchanged.
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

    /// The document's content after this entry.
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
            // The delete before the patch stands even if the patch fails.
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
            // No decision since the refeed.
            Some(None) => return self.refed(source),
            // The earlier decision was made from the answer "gone".
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
            // The placement stays: no record has deleted the document, and a copy in flight relies on it. Unless the
            // source says "gone": an owner with another answer must not place the document by the recorded one.
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

    /// No copy was found. The document is missing if that repeats [`LOOKS`] times while the placement is unchanged
    /// (step 4).
    fn is_surely_missing(&self, known: Option<&Known>) -> bool {
        let looks = if sabotage::is(Sabotage::SecondLookIsBelieved) { 2 } else { LOOKS };
        let is_sure = match known {
            Some(known) if known.placement.shard.is_some() => self.looks_at(known).looks >= looks,
            _ => true,
        };
        self.fresh && is_sure
    }

    /// This read, which found nothing, and those before it.
    fn looks_at(&self, known: &Known) -> NothingFound {
        let before = self.entry.carry.nothing_found.filter(|before| before.at == known.stamp);
        NothingFound { at: known.stamp, looks: before.map_or(0, |before| before.looks).saturating_add(1) }
    }

    /// Back to step 1 with a fresh read of the placement.
    fn look_again(&self, known: Option<&Known>) -> Outcome {
        let nothing_found = known.map(|known| self.looks_at(known));
        again_outcome("nothing_found", RetryState { nothing_found, ..self.entry.carry.clone() })
    }

    /// Step 2: only records after the recorded position decide; the recording owner decided the older ones.
    fn target(&self, known: Option<&Known>, document: &[u8], made: Made) -> Result<ShardId, Refusal> {
        let fold = &self.entry.fold;
        // The earlier decision was about another document.
        if made != Made::Fetched
            && let Some(known) = known
            && let Some(stays) = &known.placement.shard
            // A placement that was set back names the last good copy, not the target of a record.
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

    /// Step 3: the one case without write-ahead.
    fn is_in_place(&self, known: &Known, target: &ShardId) -> bool {
        let placement = &known.placement;
        !self.rules.announce_all
            // Places of earlier records are not known by both maps.
            && (self.rules.other_map.is_none() || self.entry.fold.first >= self.desk.both_maps_since)
            // The write-ahead will fail, and the placement be read again.
            && !known.outdated
            // Otherwise a record in another partition would go unnoticed.
            && (self.desk.partition.is_none()
                || placement.partition_in(self.entry.fold.last.epoch()) == self.desk.partition)
            && placement.leftovers.is_empty()
            && placement.fetched.is_none()
            // There may be no copy: the next refusal must be recorded again.
            && !placement.refused
            && placement.shard.as_ref() == Some(target)
            // The owner of the record that wrote the placement may yet be refused, and set the placement back.
            && (placement.pos < self.entry.fold.first
                || sabotage::is(Sabotage::InPlaceOverItsOwnRecord)
                || sabotage::is(Sabotage::InPlaceHasNoEdges))
            // A fold A→B→A must write ahead: a zombie still at B would move the document away.
            && (self.entry.fold.targets.iter().all(|step| matches!(step, Target::Shard(shard) if shard == target))
                || sabotage::is(Sabotage::InPlaceDespiteTargets))
    }

    /// The fold's content over a stored document. Called only for folds that yield a document.
    fn applied_to(&self, stored: Option<&[u8]>) -> Result<Bytes, Refusal> {
        let content = &self.entry.fold.content;
        let applied = match content {
            // The patch applies to the source's document after the delete.
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

    /// The result of patches or touches of a missing document (protocol, "on_missing").
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

    /// The content of a refeed (protocol, "Refeed"): the source's document with later changes applied.
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
            // The delete before the patch stands.
            (Err(refusal), Content::Patch { over: Base::Nothing, .. }) => {
                Ok(Wanted::Gone(Outcome::DeadLetter(refusal)))
            }
            (wanted, _) => wanted,
        }
    }

    fn missing_outcome(&self) -> Outcome {
        // No write is lost: the producer of the touch did not know that the document is gone.
        if self.entry.fold.content == Content::Touch {
            return Outcome::Done(Done::NothingToPlace);
        }
        // The source confirms it: no write is lost.
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
