//! The move protocol as a state machine without I/O. It takes entries and reads, returns rounds of
//! Elasticsearch operations, takes their answers, and returns outcomes. Rules and step numbers: docs/protocol.md.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | inputs and outputs: [`Entry`], [`Outcome`], [`MoverState`] |
//! | `decide/` | steps 1 to 4 for one entry: from reads to a `decide::EntryPlan` |
//! | `rounds/` | a batch as a chain of types, one per round; each returns its operations and takes their answers |
//! | `new_documents.rs` | whether placements are created without being read before |
//! | `rules.rs` | the inputs of placement |
//! | `counting.rs` | the hook of counting |
//!
//! `worker/drive.rs` runs the chain against Elasticsearch.
//!
//! *Invariant:* nothing here uses a clock, a socket or randomness, so that the same code runs in production, in
//! the tables of `tests/`, and in model checking.

mod counting;
mod decide;
mod new_documents;
mod rounds;
mod rules;
#[cfg(test)]
mod tests;

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytes::Bytes;

use crate::base::ids::{DocId, ShardId};
use crate::base::position::Position;
use crate::base::requests::{ItemError, SeqNo};
use crate::base::sabotage::{self, Sabotage};
use crate::core::fold::Fold;
use crate::core::placement::{KnownPlacement, Leftovers, Placement, PlacementCache};

pub use counting::CountChange;
use counting::FacetHistory;
pub use new_documents::NewDocuments;
pub use rounds::{
    Announce, CleanUp, FindLastCopy, Finished, ReadDocuments, ReadPlacements, Unread, WriteDocuments,
};
pub use rules::{OnMissing, Rules};

/// The dirty set's unit of work for one document.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The document.
    pub id: DocId,
    /// The fold of its records since the last finished hand-out; shared with the dirty set.
    pub fold: Arc<Fold>,
    /// State of earlier attempts at this entry.
    pub carry: Carry,
    /// The source's answer, if it was asked.
    pub fetched: Option<Box<FetchedDocument>>,
}

impl Entry {
    /// The source's answer, unless a later record replaces the whole document or requests a new fetch.
    pub(super) fn source_answer(&self) -> Option<&SourceAnswer> {
        let fetched = self.fetched.as_deref()?;
        let is_recent = self.fold.whole_at.is_none_or(|whole_at| whole_at <= fetched.after);
        (is_recent || sabotage::is(Sabotage::OldAnswerIsBelieved)).then_some(&fetched.answer)
    }

    /// The version of its writes (protocol: `p`).
    pub fn position(&self) -> Position {
        self.fold.last
    }
}

/// An answer of the source of truth.
#[derive(Debug, Clone, PartialEq)]
pub struct FetchedDocument {
    /// It was requested after the record at this position was taken.
    pub after: Position,
    /// The answer.
    pub answer: SourceAnswer,
}

/// The source's answer for a document.
#[derive(Debug, Clone, PartialEq)]
pub enum SourceAnswer {
    /// A JSON object with a location, without raw line breaks.
    Document(Bytes),
    /// There is no such document.
    Gone,
    /// A document that cannot be placed.
    Unusable(Refusal),
}

/// The state of earlier attempts at an entry, if there is any: hardly ever, so it takes one word.
#[derive(Debug, Clone, Default)]
pub struct Carry(Option<Box<RetryState>>);

impl Deref for Carry {
    type Target = RetryState;

    fn deref(&self) -> &RetryState {
        self.0.as_deref().unwrap_or(const { &RetryState::NOTHING })
    }
}

impl DerefMut for Carry {
    fn deref_mut(&mut self) -> &mut RetryState {
        self.0.get_or_insert_default()
    }
}

impl PartialEq for Carry {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl From<RetryState> for Carry {
    fn from(state: RetryState) -> Self {
        Self((state != RetryState::NOTHING).then(|| Box::new(state)))
    }
}

/// State of an entry that returns to step 1.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryState {
    /// The read position passed the recorded one without its record: finish the recorded decision.
    pub finish_recorded: bool,
    /// No copy was found so far.
    pub nothing_found: Option<NothingFound>,
    /// A copy was found that should not be the newest.
    pub doubt: Option<Doubt>,
    /// Elasticsearch refused the document at this entry's position.
    pub refusal: Option<Refusal>,
    /// The document's facet history is full: the entry waits for a commit.
    pub awaits_commit: bool,
    /// Its placement exists or may exist, although the document was taken for new: it is read.
    pub read_placement: bool,
    /// Of a fold that is to be taken apart: what is decided of it.
    pub decided: Option<DecidedPart>,
}

/// The first records of a fold that is to be taken apart: they were decided as one, and stay one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecidedPart {
    /// The position of the last of them.
    pub to: Position,
    /// The document that they change, if the owner that decided must have made dead letters of some: of those that leave no
    /// location in it.
    pub base: Option<Bytes>,
}

/// Reads that found no copy while the placement was unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NothingFound {
    /// The placement's state at each read.
    pub at: SeqNo,
    /// Number of such reads.
    pub looks: u8,
}

/// A copy older than expected was found while the placement was unchanged (protocol, step 4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    /// The placement's state at each read.
    pub at: SeqNo,
    /// Number of such reads.
    pub looks: u8,
    /// The lowest version that the newest copy should have.
    pub at_least: Position,
    /// This copy was rewritten unchanged, which proves it the newest in its geoshard.
    pub newest: Option<(ShardId, Position)>,
}

impl RetryState {
    /// Of a first attempt.
    const NOTHING: Self = Self {
        finish_recorded: false,
        nothing_found: None,
        doubt: None,
        refusal: None,
        awaits_commit: false,
        read_placement: false,
        decided: None,
    };

    /// Number of reads without a trusted copy: the next one goes to another node.
    pub(crate) fn looks(&self) -> usize {
        let doubted = self.doubt.as_ref().map_or(0, |doubt| doubt.looks);
        self.nothing_found.map_or(0, |nothing| nothing.looks).max(doubted).into()
    }
}

impl Default for RetryState {
    fn default() -> Self {
        Self::NOTHING
    }
}

/// Why a fold is dead-lettered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Reason code for headers and metrics.
    pub reason: &'static str,
    /// Human-readable detail.
    pub detail: String,
}

impl Refusal {
    pub(crate) fn by_elasticsearch(error: &ItemError) -> Self {
        let reason =
            if error.status == 413 { "too_large_for_elasticsearch" } else { "refused_by_elasticsearch" };
        Self { reason, detail: error.to_string() }
    }
}

/// The outcome of an entry in a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The fold is applied: remove it from the dirty set.
    Done(Done),
    /// Permanently refused: remove it once it is in the dead-letter topic. Boxed, since it is rare.
    DeadLetter(Box<Refusal>),
    /// An earlier owner had folded further: wait until the fold reaches this position (protocol, step 1).
    Parked {
        /// The recorded position.
        until: Position,
    },
    /// The source must be asked: after its answer the entry joins a batch from step 1.
    Fetch,
    /// Retried from step 1: in the next batch if there was no answer, otherwise after a pause (`worker/ledger/apart.rs`).
    Again {
        /// Reason code for metrics.
        reason: &'static str,
        /// State for the next attempt.
        carry: Carry,
    },
}

/// Reason of an [`Outcome::Again`]: the placement was set back after a refusal.
pub const SET_BACK: &str = "set_back";

/// Reason of an [`Outcome::Again`]: the fold was refused before its last position was recorded, so the records beyond the placement's
/// position may be tried one by one. Only where [`MoverState::separates`] says so.
pub const REFUSED_FOLD: &str = "refused_fold";

/// Reason of an [`Outcome::Again`]: waits until more of its partition is committed.
pub const HISTORY_FULL: &str = "history_full";

/// Versions of a document's facets at or above the known commit that a placement may hold before its next entry waits
/// for a commit. Reached by a document whose facets change with every batch.
pub const MAX_VERSIONS: usize = 32;

/// Reason of an [`Outcome::Again`]: the base is older than expected and is read again from another node.
pub const OLDER_COPY: &str = "older_copy";

/// Reason of an [`Outcome::Again`]: the base is outdated; rewriting it met a newer copy.
pub const STALE_COPY: &str = "stale_copy";

/// Reason of an [`Outcome::Again`]: the base is older than expected but proved to be the newest.
pub const CONFIRMED_COPY: &str = "confirmed_copy";

/// Reason of an [`Outcome::Again`]: the document was taken for new, but is not.
pub const NOT_NEW: &str = "not_new";

/// Reason of an [`Outcome::Again`]: no answer came in time.
pub const UNANSWERED: &str = "unanswered";

/// How an entry was finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// A copy at the fold's position was written.
    Indexed {
        /// It left another geoshard.
        moved: bool,
    },
    /// The document is gone.
    Deleted,
    /// A copy at least as new existed.
    AlreadyApplied,
    /// Nothing to change, and dropped by configuration (`on_missing = "drop"`).
    Dropped,
    /// A touch of a missing document.
    NothingToPlace,
}

/// An entry with its outcome.
#[derive(Debug, Clone, PartialEq)]
pub struct Settled {
    /// The entry as handed in.
    pub entry: Entry,
    /// Its outcome.
    pub outcome: Outcome,
    /// The geoshards it changed.
    pub touched: AffectedShards,
}

/// The geoshards that an entry changed, or may have changed in an attempt whose answer was lost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AffectedShards {
    /// The document's geoshard, if it exists.
    pub target: Option<ShardId>,
    /// Where it was deleted.
    pub sources: Vec<ShardId>,
}

impl AffectedShards {
    fn by(known: &KnownPlacement) -> Self {
        Self { target: known.placement.shard.clone(), sources: known.unswept().to_vec() }
    }
}

/// Old copies of a document that is written in its target: the rest of its entry (steps 6 and 7). A document may have
/// several sweeps, executed in any order: each deletes at its own entry's position, and so never removes a later copy.
///
/// Many may wait at once, so it holds what it needs of the placement instead of a whole one.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    /// The document.
    pub id: DocId,
    /// The version of the deletes.
    pub at: Position,
    /// Positions of the entry's first and last record.
    pub records: (Position, Position),
    /// The state of the placement that names the old copies.
    stamp: SeqNo,
    target: Option<ShardId>,
    leftovers: Leftovers,
    pos: Position,
    partition: Option<i32>,
    refused: bool,
    versions: FacetHistory,
}

impl Sweep {
    /// `None` if there is nothing to delete.
    fn after(entry: &Entry, known: &KnownPlacement, at: Position) -> Option<Self> {
        let records = (entry.fold.first, entry.fold.last);
        (!known.unswept().is_empty()).then(|| Self::new(&entry.id, known, at, records))
    }

    /// Of all leftovers of a placement.
    pub fn new(id: &DocId, known: &KnownPlacement, at: Position, records: (Position, Position)) -> Self {
        let KnownPlacement { stamp, placement, .. } = known;
        Self {
            id: id.clone(),
            at,
            records,
            stamp: *stamp,
            target: placement.shard.clone(),
            leftovers: placement.leftovers.clone(),
            pos: placement.pos,
            partition: placement.partition,
            refused: placement.refused,
            versions: placement.versions.clone(),
        }
    }

    /// The geoshard in which searches must find the new copy first; `None` if the document is deleted.
    pub fn must_be_seen_in(&self) -> Option<&ShardId> {
        self.target.as_ref()
    }

    /// The geoshards of the old copies.
    pub fn leftovers(&self) -> &[ShardId] {
        &self.leftovers
    }

    /// Heap bytes that are its own: names of geoshards are shared.
    pub fn heap_bytes(&self) -> usize {
        self.id.as_str().len() + self.versions.bytes()
    }

    /// Whether this is still the placement.
    fn is_of(&self, known: &KnownPlacement) -> bool {
        known.stamp == self.stamp
    }

    /// What clears the placement. A fetched document need not be carried any more: it is in its geoshard.
    fn clear(&self) -> Clear {
        let placement = Placement {
            pos: self.pos,
            shard: self.target.clone(),
            leftovers: Leftovers::default(),
            refused: self.refused,
            fetched: None,
            partition: self.partition,
            versions: self.versions.clone(),
        };
        Clear { id: self.id.clone(), placement, stamp: self.stamp }
    }
}

/// The state of a [`Sweep`] after a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swept {
    /// Owed: waits until searches find the new copy.
    Waits,
    /// Owed: not all of its deletes were answered.
    Unanswered,
    /// Done.
    Ended,
}

/// A placement to be cleared of its swept leftovers in the next bulk (step 7). It may be late, or never happen.
#[derive(Debug, Clone, PartialEq)]
pub struct Clear {
    /// The document.
    pub id: DocId,
    /// The placement without leftovers.
    pub placement: Placement,
    /// The state it may replace.
    pub stamp: SeqNo,
}

/// An owner's state across batches. Lives exactly as long as the assignment.
#[derive(Debug, Clone)]
pub struct MoverState {
    /// Placement rules.
    pub rules: Rules,
    /// Records from here on were read when both maps were known, if two are live.
    pub both_maps_since: Position,
    /// Placements read or written since the assignment.
    pub cache: PlacementCache,
    /// Clears to send with the next bulk.
    pub clears: Vec<Clear>,
    /// The known committed position of the partition: the start of the assignment, then acknowledged commits. Used only
    /// by the tally; with 0 no version of any history is dropped.
    pub committed: Position,
    /// See [`MAX_VERSIONS`].
    pub max_versions: usize,
    /// Due sweeps of earlier batches, sent with the next one.
    pub sweeps: Vec<Sweep>,
    /// A moved document's old copy stays until searches find the new one.
    pub searches_are_served: bool,
    /// The partition of the records; `None`: partitions are neither recorded nor compared.
    pub partition: Option<i32>,
    /// Whether the records of a refused fold can be read again.
    pub separates: bool,
    /// Approximate bytes of copies that one slice of a batch reads. A batch that needs more runs in slices, so that it
    /// does not hold the copies of all its documents at once.
    pub max_copy_bytes: usize,
    /// Expected size of a copy.
    pub copy_size: CopySize,
    /// Cache hits and misses since the assignment.
    pub lookups: Lookups,
    /// Whether placements that are not cached are created without being read before.
    pub new_documents: NewDocuments,
}

/// Running mean size of copies read, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopySize(usize);

impl Default for CopySize {
    /// Larger than most documents: too small a first slice costs little.
    fn default() -> Self {
        Self(64 << 10)
    }
}

impl CopySize {
    /// Adds the size of a copy read.
    fn saw(&mut self, bytes: usize) {
        self.0 = (self.0.saturating_mul(15).saturating_add(bytes) / 16).max(1);
    }

    /// Expected bytes of `copies` copies.
    fn of(self, copies: usize) -> usize {
        self.0.saturating_mul(copies)
    }
}

/// Counts of placement lookups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lookups {
    /// Found in the cache.
    pub hits: u64,
    /// Read from the placements index, or created in it.
    pub misses: u64,
}

impl MoverState {
    /// The state at the start of an assignment.
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
            new_documents: NewDocuments::default(),
        }
    }
}
