//! A batch of entries as a chain of types, one per round. Each returns the operations of its round; taking their
//! answers yields the next type. A batch that is all in place has no operations after [`Announce`].
//!
//! [`ReadPlacements`] → [`ReadDocuments`] → [`Announce`] → [`WriteDocuments`] → [`FindLastCopy`] → [`CleanUp`] →
//! [`Finished`]
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | what a batch carries from round to round |
//! | `read.rs` | reads of placements and copies |
//! | `announce.rs` | placements written ahead, documents in place, clears, due deletes of old copies |
//! | `write.rs` | documents whose placement is written; the last good copy of refused ones |
//! | `clean_up.rs` | deletes of old copies that need not wait, placements set back |

mod announce;
mod clean_up;
mod read;
mod write;

pub use self::announce::Announce;
pub use self::clean_up::CleanUp;
pub use self::read::{ReadDocuments, ReadPlacements, Unread};
pub use self::write::{FindLastCopy, WriteDocuments};
use super::counting::{CountChange, FacetHistory};
use super::decide::{NewestCopy, WriteTask, again_outcome};
use super::{AffectedShards, Carry, Entry, MoverState, Outcome, Settled, Sweep, Swept, UNANSWERED};
use crate::base::ids::{DocId, ShardId};
use crate::base::position::Position;
use crate::base::requests::{BulkOp, GetOutcome, Index, WriteCondition};
use crate::core::placement::{CacheSlot, KnownPlacement, Placement};

/// State that a batch carries through its rounds.
#[derive(Debug, Clone)]
struct BatchState {
    state: MoverState,
    settled: Vec<Settled>,
    edges: Vec<CountChange>,
    sweeps: Vec<(Sweep, Swept)>,
}

impl BatchState {
    fn settle(&mut self, entry: Entry, outcome: Outcome, touched: AffectedShards) {
        self.settled.push(Settled { entry, outcome, touched });
    }

    /// Finishes an entry, whose document's placement has this history.
    fn done(&mut self, entry: Entry, outcome: Outcome, versions: &FacetHistory, touched: AffectedShards) {
        self.edges.extend(self.state.counting().edges(versions));
        self.settle(entry, outcome, touched);
    }

    /// A copy at the entry's position exists.
    fn saw(&mut self, placed: &Placed) {
        let (id, version) = (&placed.entry.id, placed.entry.fold.last);
        let cache = &mut self.state.cache;
        match placed.slot {
            Some(slot) => cache.saw_at(slot, id, version),
            None => cache.saw(id, version),
        }
    }

    /// Back to step 1 with a fresh read of the placement.
    fn start_over(&mut self, entry: Entry, reason: &'static str, carry: impl Into<Carry>) {
        self.state.cache.forget(&entry.id);
        self.settle(entry, again_outcome(reason, carry), AffectedShards::default());
    }

    fn unanswered(&mut self, entry: Entry) {
        // Nothing was learnt: the next attempt keeps its state.
        let carry = entry.carry.clone();
        self.settle(entry, again_outcome(UNANSWERED, carry), AffectedShards::default());
    }

    /// The same, where the placement may have been written, or may be out of date.
    fn unanswered_placement(&mut self, entry: Entry) {
        self.state.cache.forget(&entry.id);
        self.unanswered(entry);
    }
}

/// An entry with a written placement.
#[derive(Debug, Clone)]
struct Placed {
    entry: Entry,
    known: KnownPlacement,
    task: WriteTask,
    /// Where its placement is cached, if it is.
    slot: Option<CacheSlot>,
}

// Each partition has a batch of thousands of these at a time. The smaller they are, the more of them stay in the CPU's caches.
const _: () = assert!(size_of::<Entry>() <= 40 && size_of::<Placed>() <= 248 && size_of::<Settled>() <= 104);

impl Placed {
    /// Whether there is a document to write.
    fn writes(&self) -> bool {
        self.task.write.is_some() && self.known.placement.shard.is_some()
    }

    fn document(&self) -> Option<BulkOp> {
        document(&self.entry.id, self.entry.fold.last, &self.known.placement, &self.task)
    }

    fn done(self, batch: &mut BatchState, outcome: Outcome) {
        batch.done(self.entry, outcome, &self.known.placement.versions, AffectedShards::by(&self.known));
    }
}

/// Writes the document into the placement's geoshard; `None` if there is nothing to write.
fn document(id: &DocId, at: Position, placement: &Placement, task: &WriteTask) -> Option<BulkOp> {
    Some(BulkOp::Index {
        index: Index::Geoshard(placement.shard.clone()?),
        id: id.clone(),
        guard: WriteCondition::External(at),
        source: task.write.clone()?,
    })
}

/// One delete per geoshard.
fn deletes(id: &DocId, shards: &[ShardId], version: Position) -> impl Iterator<Item = BulkOp> {
    shards.iter().map(move |shard| BulkOp::Delete {
        index: Index::Geoshard(shard.clone()),
        id: id.clone(),
        version,
    })
}

fn sweep_deletes(sweep: &Sweep) -> impl Iterator<Item = BulkOp> {
    deletes(&sweep.id, sweep.leftovers(), sweep.at)
}

/// The newest copy found; `None` if a read was not answered.
fn newest_copy(copies: impl Iterator<Item = (ShardId, GetOutcome)>) -> Option<Option<NewestCopy>> {
    let mut newest: Option<NewestCopy> = None;
    let mut all_answered = true;
    for (shard, answer) in copies {
        match answer {
            GetOutcome::Unanswered => all_answered = false,
            GetOutcome::Missing => {}
            GetOutcome::Found(found) => {
                let copy = NewestCopy::new(shard, found);
                if newest.as_ref().is_none_or(|best| best.version < copy.version) {
                    newest = Some(copy);
                }
            }
        }
    }
    all_answered.then_some(newest)
}

/// The end of a batch.
#[derive(Debug, Clone)]
pub struct Finished {
    /// The owner's state.
    pub state: MoverState,
    /// Every entry of the batch, once.
    pub settled: Vec<Settled>,
    /// Changes of the counts by entries that are done or dead-lettered: for the partition's map of edges, where each
    /// replaces the one at its position. Empty if nothing is counted. An edge without change still replaces another. An
    /// edge may be at or above the watermark; it joins an increment once it is below.
    pub edges: Vec<CountChange>,
    /// Old copies still to delete, or deleted.
    pub sweeps: Vec<(Sweep, Swept)>,
}
