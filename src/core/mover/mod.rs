//! The move protocol as a state machine without I/O: entries and what was read go in, rounds of Elasticsearch
//! operations come out, answers go in, outcomes come out. The rules are docs/protocol.md; step numbers refer to it.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | what goes in and what comes out: [`Entry`], [`Outcome`], [`MoverState`] |
//! | `decide.rs` | steps 1, 2 and 4 for one entry: from what was read to a `decide::Plan` |
//! | `rounds.rs` | a batch as a chain of types, one per round; each gives its operations and takes their answers |
//! | `rules.rs` | what placing documents depends on |
//!
//! `worker/drive.rs` runs the chain against Elasticsearch.
//!
//! *Invariant:* nothing here knows a clock, a socket or a random number, so that the same code runs in production, in
//! the tables of `tests/`, and wherever histories are explored.

mod decide;
mod rounds;
mod rules;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;

use crate::base::ids::{DocId, ShardId};
use crate::base::position::Position;
use crate::base::requests::{ItemError, SeqNo};
use crate::core::placement::{Known, Placement, PlacementCache};
use crate::core::write::Fold;

pub use rounds::{
    Announce, CleanUp, FindLastCopy, Finished, ReadDocuments, ReadPlacements, Unread, WriteDocuments,
};
pub use rules::{OnMissing, Rules};

/// What the dirty set hands out for one document.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The document.
    pub id: DocId,
    /// Its records since the last hand-out that was done, as one; shared with the dirty set.
    pub fold: Arc<Fold>,
    /// What an earlier attempt at this entry found out.
    pub carry: RetryState,
    /// What the source of truth said, if it was asked.
    pub fetched: Option<Box<Fetched>>,
}

/// An answer of the source of truth.
#[derive(Debug, Clone, PartialEq)]
pub struct Fetched {
    /// It was asked after the record at this position was taken in.
    pub after: Position,
    /// What it said.
    pub said: SourceAnswer,
}

/// What the source of truth said of a document.
#[derive(Debug, Clone, PartialEq)]
pub enum SourceAnswer {
    /// A JSON object without raw line breaks, with a location.
    Document(Bytes),
    /// There is no such document.
    Gone,
    /// One that cannot be placed.
    Unusable(Refusal),
}

/// What an entry that goes back to step 1 takes along.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RetryState {
    /// The partition was read past the recorded position without meeting its record: finish what is recorded.
    pub finish_recorded: bool,
    /// No copy was found, so far.
    pub nothing_found: Option<NothingFound>,
    /// A copy was found that should not be the newest.
    pub doubt: Option<Doubt>,
    /// Elasticsearch refused the document at this entry's position.
    pub refusal: Option<Refusal>,
    /// The history of its document's facets is full: it waits until more is committed.
    pub awaits_commit: bool,
    /// Of a fold that is to be taken apart: its records up to this position were decided as one, and stay one.
    pub decided_to: Option<Position>,
}

/// How often no copy was found while the placement was in one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NothingFound {
    /// The placement's state at each look.
    pub at: SeqNo,
    /// How many looks.
    pub looks: u8,
}

/// A copy was found that is older than it should be, while the placement was in one state (protocol, step 4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    /// The placement's state at each look.
    pub at: SeqNo,
    /// How many looks.
    pub looks: u8,
    /// The version that the newest copy should have, or a higher one.
    pub at_least: Position,
    /// This copy was written again as it is: it is the newest in its geoshard.
    pub newest: Option<(ShardId, Position)>,
}

impl RetryState {
    /// How often its document was looked for before, in vain: the next look is at another node.
    pub(crate) fn looks(&self) -> usize {
        let doubted = self.doubt.as_ref().map_or(0, |doubt| doubt.looks);
        self.nothing_found.map_or(0, |nothing| nothing.looks).max(doubted).into()
    }
}

/// Why a fold goes to the dead-letter topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// One word for headers and metrics.
    pub reason: &'static str,
    /// For a person.
    pub detail: String,
}

impl Refusal {
    pub(crate) fn by_elasticsearch(error: &ItemError) -> Self {
        let reason =
            if error.status == 413 { "too_large_for_elasticsearch" } else { "refused_by_elasticsearch" };
        Self { reason, detail: error.to_string() }
    }
}

/// What became of an entry in a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The index is as the fold wants it: commit it to the dirty set.
    Done(Done),
    /// It cannot be carried out, ever: commit it once it is in the dead-letter topic.
    DeadLetter(Refusal),
    /// An earlier owner had folded further: wait until the fold reaches this position (protocol, step 1).
    Parked {
        /// The recorded position.
        until: Position,
    },
    /// The source of truth has to be asked: it joins a batch once that has answered, from step 1.
    Fetch,
    /// It joins the next batch, from step 1.
    Again {
        /// One word for metrics.
        reason: &'static str,
        /// What it takes along.
        carry: RetryState,
    },
}

/// The reason of an [`Outcome::Again`] whose placement was set back after a refusal.
pub const SET_BACK: &str = "set_back";

/// The reason of an [`Outcome::Again`] whose fold was refused before anything was recorded for its last record: so those that the placement
/// does not know may be tried one by one. Only where [`MoverState::separates`] says so.
pub const REFUSED_FOLD: &str = "refused_fold";

/// The reason of an [`Outcome::Again`] that waits until more of its partition is committed.
pub const HISTORY_FULL: &str = "history_full";

/// So many versions of a document's facets, at or above what is known to be committed, a placement may have before its next
/// entry waits for a commit. A document whose facets change with every batch is written so often between two commits.
pub const MAX_VERSIONS: usize = 32;

/// The reason of an [`Outcome::Again`] whose base is older than it should be: it is read again, from another node.
pub const OLDER_COPY: &str = "older_copy";

/// The reason of an [`Outcome::Again`] whose base is surely out of date: a newer copy was there when it was written again.
pub const STALE_COPY: &str = "stale_copy";

/// The reason of an [`Outcome::Again`] whose base is older than it should be, and the newest that there is.
pub const CONFIRMED_COPY: &str = "confirmed_copy";

/// The reason of an [`Outcome::Again`] that no answer came for in time.
pub const UNANSWERED: &str = "unanswered";

/// How an entry was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// A copy at the fold's position was written.
    Indexed {
        /// It left another geoshard.
        moved: bool,
    },
    /// The document is gone.
    Deleted,
    /// A copy at least as new was there already.
    AlreadyApplied,
    /// Nothing to change, and the configuration says to drop it (`on_missing = "drop"`).
    Dropped,
    /// A touch of a document that is not there: nothing to place.
    NothingToPlace,
}

/// An entry with its outcome.
#[derive(Debug, Clone, PartialEq)]
pub struct Settled {
    /// As it was handed in.
    pub entry: Entry,
    /// What became of it.
    pub outcome: Outcome,
    /// Where it changed anything.
    pub touched: AffectedShards,
}

/// The geoshards that an entry changed, or may have changed by an attempt whose answer was lost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AffectedShards {
    /// Where the document is now, if it is anywhere.
    pub target: Option<ShardId>,
    /// Where it was deleted.
    pub sources: Vec<ShardId>,
}

impl AffectedShards {
    fn by(known: &Known) -> Self {
        Self { target: known.placement.shard.clone(), sources: known.unswept().to_vec() }
    }
}

/// Old copies of a document that is written in its new place: what is left of its entry (steps 6 and 7). Several of one document may
/// be owed at once, and be made in any order: each delete carries the position of its own entry, so that a later copy is not its to
/// remove.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    /// The document.
    pub id: DocId,
    /// The placement that names the old copies.
    pub known: Known,
    /// The version of the deletes.
    pub at: Position,
    /// The entry's records: position of the first and of the last.
    pub records: (Position, Position),
}

impl Sweep {
    /// `None` if there is nothing to delete.
    fn after(entry: &Entry, known: &Known, at: Position) -> Option<Self> {
        if known.unswept().is_empty() {
            return None;
        }
        let mut known = known.clone();
        // It is in its geoshard by now.
        known.placement.fetched = None;
        Some(Self { id: entry.id.clone(), known, at, records: (entry.fold.first, entry.fold.last) })
    }

    /// Where searches must find the new copy before; `None` if the document is gone.
    pub fn must_be_seen_in(&self) -> Option<&ShardId> {
        self.known.placement.shard.as_ref()
    }

    /// Where the old copies are.
    pub fn leftovers(&self) -> &[ShardId] {
        self.known.unswept()
    }
}

/// What became of a [`Sweep`] in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swept {
    /// It is owed, and waits until searches find the new copy.
    Waits,
    /// It is owed: not all of its deletes were answered.
    Unanswered,
    /// Nothing is left to do.
    Ended,
}

/// A placement whose leftovers are gone, waiting to say so in the next bulk (step 7). It may be late, or never come.
#[derive(Debug, Clone, PartialEq)]
pub struct Clear {
    /// The document.
    pub id: DocId,
    /// The placement without leftovers.
    pub placement: Placement,
    /// The state that it may replace.
    pub stamp: SeqNo,
}

/// What an owner keeps from batch to batch. It is born with an assignment and dies with it.
#[derive(Debug, Clone)]
pub struct MoverState {
    /// How documents are placed.
    pub rules: Rules,
    /// Records from here on were read when both maps were known, if two are live.
    pub both_maps_since: Position,
    /// Placements read or written since the assignment.
    pub cache: PlacementCache,
    /// Clears that ride on the next bulk.
    pub clears: Vec<Clear>,
    /// The position up to which the owner knows its partition committed: where its assignment began, then its own acknowledged
    /// commits. Only the tally needs it; with 0, nothing is known, and nothing is dropped of any history.
    pub committed: Position,
    /// See [`MAX_VERSIONS`].
    pub max_versions: usize,
    /// Old copies whose time has come, from earlier batches: they go with the next one.
    pub sweeps: Vec<Sweep>,
    /// Searches must find what moved before it is deleted elsewhere.
    pub searches_are_served: bool,
    /// The partition whose records are worked on; `None`: none is recorded or compared.
    pub partition: Option<i32>,
    /// Whether the records of a refused fold can be read again.
    pub separates: bool,
    /// Bytes of copies that one slice of a batch may read, about. A batch whose patches need more goes through its rounds slice by slice,
    /// so that it does not hold the copies of all its documents at once.
    pub max_copy_bytes: usize,
    /// What a copy is expected to take.
    pub copy_size: CopySize,
    /// How many placements were found in the cache, and how many had to be read, since the assignment.
    pub lookups: Lookups,
}

/// Running mean of the sizes of copies that were read, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopySize(usize);

impl Default for CopySize {
    /// More than most documents have: too small a first slice costs little.
    fn default() -> Self {
        Self(64 << 10)
    }
}

impl CopySize {
    /// A copy of `bytes` was read.
    fn saw(&mut self, bytes: usize) {
        self.0 = (self.0.saturating_mul(15).saturating_add(bytes) / 16).max(1);
    }

    /// What `copies` are expected to take.
    fn of(self, copies: usize) -> usize {
        self.0.saturating_mul(copies)
    }
}

/// Counts of placement lookups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lookups {
    /// Found in the cache.
    pub hits: u64,
    /// Read from the placements index.
    pub misses: u64,
}

impl MoverState {
    /// A desk with nothing on it.
    pub fn new(rules: Rules, cache: PlacementCache) -> Self {
        Self {
            rules,
            both_maps_since: Position::NONE,
            cache,
            clears: Vec::new(),
            committed: Position::from_version(0),
            max_versions: MAX_VERSIONS,
            sweeps: Vec::new(),
            searches_are_served: false,
            partition: None,
            separates: false,
            max_copy_bytes: usize::MAX,
            copy_size: CopySize::default(),
            lookups: Lookups::default(),
        }
    }
}
