//! The decision about one entry, from its placement and, where the content needs them, the stored copies.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | step 1: how the entry relates to what is recorded; the plans |
//! | `new_decision.rs` | steps 2 and 3: nothing is recorded at its position |
//! | `recorded.rs` | step 1: a recorded decision is carried out |
//! | `refused.rs` | the entry yields no document, or Elasticsearch refused it |
//! | `content.rs` | the document that the entry yields |
//! | `copies.rs` | step 4: which copies are read, and whether they are trusted |

mod content;
mod copies;
mod new_decision;
mod recorded;
mod refused;

use bytes::Bytes;

pub(super) use self::copies::{NewestCopy, copies_needed};
pub(super) use self::refused::{may_be_separated, separated};
use super::counting::Counting;
use super::{Carry, Done, Entry, MoverState, OLDER_COPY, Outcome, Refusal, RetryState, Rules};
use crate::base::ids::ShardId;
use crate::base::position::Position;
use crate::base::requests::WriteCondition;
use crate::base::sabotage::{self, Sabotage};
use crate::core::placement::{KnownPlacement, Placement};

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
pub(super) fn relate(partition: Option<i32>, entry: &Entry, known: Option<&KnownPlacement>) -> Relation {
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

/// The plan for an entry.
#[derive(Debug)]
pub(super) enum EntryPlan {
    /// Nothing more in this batch.
    Settle(Outcome),
    /// A dead letter that leaves the placement alone: it is another partition's.
    Reject(Refusal),
    /// The newest copy found is older than expected: rewrite it unchanged. Elasticsearch refuses that if a newer one
    /// exists.
    Confirm { copy: NewestCopy, carry: Carry },
    /// One document write and nothing else.
    InPlace { known: KnownPlacement, task: WriteTask },
    /// Write ahead, then carry out.
    WriteAhead { guard: WriteCondition, placement: Placement, task: WriteTask },
    /// The decision is recorded: carry it out.
    CarryOut { known: KnownPlacement, task: WriteTask },
}

impl EntryPlan {
    /// Whether the copy found is distrusted.
    pub(super) fn is_doubt(&self) -> bool {
        matches!(self, Self::Confirm { .. } | Self::Settle(Outcome::Again { reason: OLDER_COPY, .. }))
    }
}

/// The work left once the placement names the target.
#[derive(Debug, Clone)]
pub(super) struct WriteTask {
    /// The document to write into the placement's shard at the fold's position; `None` if there is nothing to write.
    pub write: Option<Bytes>,
    /// The version at which copies in leftovers are deleted.
    pub sweep_at: Position,
    /// The outcome on success.
    pub then: Outcome,
}

/// The placement decided by this entry: at its position, naming its partition.
pub(super) fn new_placement(
    state: &MoverState,
    entry: &Entry,
    shard: Option<ShardId>,
    may_hold: impl IntoIterator<Item = ShardId>,
) -> Placement {
    Placement::new(entry.fold.last, shard, may_hold).by_partition(state.partition)
}

/// Decides one entry. `fresh`: the placement was read in this batch, not cached. `copy`: the newest copy among
/// [`copies_needed`].
pub(super) fn decide(
    state: &MoverState,
    entry: &Entry,
    known: Option<KnownPlacement>,
    fresh: bool,
    copy: Option<NewestCopy>,
) -> EntryPlan {
    let relation = relate(state.partition, entry, known.as_ref());
    let recorded = known.as_ref().and_then(|known| NewestCopy::recorded(&known.placement));
    let copy = match (copy, recorded) {
        (Some(copy), Some(recorded)) if copy.version < recorded.version => Some(recorded),
        (copy, recorded) => copy.or(recorded),
    };
    let decision = Decision { state, rules: &state.rules, counting: state.counting(), entry, fresh };
    if let (Some(known), Some(copy)) = (&known, &copy)
        && let Some(plan) = decision.doubt(known, copy)
    {
        return plan;
    }
    match (relation, known) {
        (Relation::Behind(_), _) if sabotage::is(Sabotage::StaleIsDone) => {
            EntryPlan::Settle(Outcome::Done(Done::AlreadyApplied))
        }
        (Relation::Behind(until), _) => EntryPlan::Settle(Outcome::Parked { until }),
        (Relation::OtherPartition(theirs), _) => {
            EntryPlan::Reject(in_two_partitions(state.partition, theirs))
        }
        (Relation::Resume, Some(known)) => decision.resume(known, copy),
        (Relation::FinishRecorded, Some(known)) => decision.finish_recorded(known, copy),
        (_, known) => decision.decide_new(known, copy),
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

struct Decision<'a> {
    state: &'a MoverState,
    rules: &'a Rules,
    counting: Counting<'a>,
    entry: &'a Entry,
    fresh: bool,
}

impl Decision<'_> {
    /// The state of earlier attempts.
    fn carried(&self) -> RetryState {
        RetryState::clone(&self.entry.carry)
    }
}

/// Back to step 1 in the next batch.
pub(super) fn again_outcome(reason: &'static str, carry: impl Into<Carry>) -> Outcome {
    Outcome::Again { reason, carry: carry.into() }
}
