//! The round that writes documents whose placement is written, and the search for the last good copy of refused ones.

use super::clean_up::{CleanUp, SetBack};
use super::{BatchState, Placed, newest_copy};
use crate::base::ids::ShardId;
use crate::base::requests::{BulkOp, BulkOutcome, Get, GetOutcome, Index, WriteCondition};
use crate::base::sabotage::{self, Sabotage};
use crate::core::mover::decide::new_placement;
use crate::core::mover::{Done, Outcome, Refusal};

/// R3: writes the documents whose placement is written.
#[derive(Debug, Clone)]
pub struct WriteDocuments {
    batch: BatchState,
    writing: Vec<Placed>,
    /// Nothing to write: continue with the deletes.
    written: Vec<Placed>,
    /// Refused in place, with counting: continue with the last good copy.
    refused: Vec<(Placed, Refusal)>,
}

impl WriteDocuments {
    pub(super) fn new(batch: BatchState, mut placed: Vec<Placed>, refused: Vec<(Placed, Refusal)>) -> Self {
        let written = placed.extract_if(.., |placed| !placed.writes()).collect();
        Self { batch, writing: placed, written, refused }
    }

    /// One index operation per document to write.
    pub fn ops(&self) -> Vec<BulkOp> {
        let mut ops = Vec::with_capacity(self.writing.len());
        ops.extend(self.writing.iter().filter_map(Placed::document));
        ops
    }

    /// Takes one answer per operation, in order.
    pub fn answered(self, answers: Vec<BulkOutcome>) -> FindLastCopy {
        let Self { mut batch, writing, mut written, mut refused } = self;
        written.reserve(writing.len());
        for (mut placed, answer) in writing.into_iter().zip(answers) {
            if matches!(answer, BulkOutcome::Done { .. } | BulkOutcome::Conflict) {
                batch.saw(&placed);
            }
            match answer {
                BulkOutcome::Done { .. } => written.push(placed),
                // Perhaps a tombstone from the document's move, since this write was below the recorded position: a
                // leftover may hold the last copy. It stays named, and the next record handles it.
                BulkOutcome::Conflict
                    if placed.known.placement.pos > placed.entry.fold.last
                        && !sabotage::is(Sabotage::FinishingSweepsAnyway) =>
                {
                    placed.done(&mut batch, Outcome::Done(Done::AlreadyApplied));
                }
                BulkOutcome::Conflict => {
                    if let Outcome::Done(done) = &mut placed.task.then {
                        *done = Done::AlreadyApplied;
                    }
                    written.push(placed);
                }
                // The last good copy cannot be raised (its mapping has changed); it stays as it is.
                BulkOutcome::Refused(_) if placed.known.placement.refused => written.push(placed),
                // While a lost record's decision is being finished, this entry must not set the placement back.
                BulkOutcome::Refused(error) if placed.known.placement.pos > placed.entry.fold.last => {
                    placed.done(&mut batch, Outcome::DeadLetter(Refusal::by_elasticsearch(&error).into()));
                }
                BulkOutcome::Refused(error) => refused.push((placed, Refusal::by_elasticsearch(&error))),
                // The placement is recorded: the next attempt resumes it.
                BulkOutcome::NotFound | BulkOutcome::Unanswered => batch.unanswered(placed.entry),
            }
        }
        FindLastCopy { batch, written, refused }
    }
}

/// R3b, usually empty: finds the last good copy of a refused document.
#[derive(Debug, Clone)]
pub struct FindLastCopy {
    batch: BatchState,
    written: Vec<Placed>,
    refused: Vec<(Placed, Refusal)>,
}

impl FindLastCopy {
    /// The copies to look for.
    pub fn gets(&self) -> Vec<Get> {
        self.refused
            .iter()
            .flat_map(|(placed, _)| {
                let id = &placed.entry.id;
                let shards = placed.known.placement.may_hold();
                shards.map(move |shard| Get::realtime(Index::Geoshard(shard.clone()), id.clone()))
            })
            .collect()
    }

    /// Takes one answer per get, in order.
    pub fn answered(self, answers: Vec<GetOutcome>) -> CleanUp {
        let Self { mut batch, written, refused } = self;
        let mut answers = answers.into_iter();
        let mut set_backs = Vec::new();
        for (placed, refusal) in refused {
            let Placed { entry, known, .. } = placed;
            let shards: Vec<ShardId> = known.placement.may_hold().cloned().collect();
            let Some(copy) = newest_copy(shards.iter().cloned().zip(answers.by_ref())) else {
                batch.unanswered(entry);
                continue;
            };
            // Never to "deleted": a writer at a lower position that relies on this record may still write a copy.
            let stays_in = match copy {
                Some(copy) => Some(copy.shard),
                None if sabotage::is(Sabotage::RefusedIsDeleted) => None,
                None => known.placement.shard.clone(),
            };
            let placement = new_placement(&batch.state, &entry, stays_in, shards).after_refusal();
            let placement = batch.state.counting().record_refusal(placement, &known);
            set_backs.push(SetBack {
                entry,
                refusal,
                guard: WriteCondition::Unchanged(known.stamp),
                placement,
            });
        }
        CleanUp::new(batch, written, set_backs)
    }
}
