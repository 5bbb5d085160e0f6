//! Several records of one document, folded into one write: the dirty set's value for a document.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | a [`Fold`]: what its records do, where they point, and their positions |
//! | `content.rs` | their combined operation, and its result for a stored document |
//! | `rejected.rs` | folds that could not be absorbed |
//!
//! `core/mover/` applies a fold to Elasticsearch.

mod content;
mod rejected;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use smallvec::{SmallVec, smallvec};

pub use self::content::{Base, Content};
pub use self::rejected::{BadMerge, Rejected};
use crate::base::ids::{DocId, ShardId};
use crate::base::position::Position;
use crate::core::counting::steps::Steps;
use crate::core::decode::LocationPath;
use crate::core::write::{Body, PatchMove, Write};
use crate::geoshard::cell::Leaf;

/// The place to which one record of a fold points.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// This geoshard.
    Shard(ShardId),
    /// Out of the index.
    Nowhere,
    /// Unknown without the stored document.
    Unclear,
}

impl From<ShardId> for Target {
    fn from(shard: ShardId) -> Self {
        Self::Shard(shard)
    }
}

/// One or more records of a document, oldest first, folded into one.
#[derive(Debug, Clone, PartialEq)]
pub struct Fold {
    /// The combined operation.
    pub content: Content,
    /// Position of its first record.
    pub first: Position,
    /// Position of its last record: the version of what it writes (protocol: `p`).
    pub last: Position,
    /// Position of its last record that carried a location or deleted (protocol: `located_at`).
    pub located_at: Option<Position>,
    /// Position of its last touch.
    pub touched_at: Option<Position>,
    /// Position of its last record that replaces the whole document: an index, a delete, a refeed.
    pub whole_at: Option<Position>,
    /// The distinct targets of its records, in order, under the maps that were live when each was read.
    pub targets: SmallVec<[Target; 1]>,
    /// What its records do to the counts; nothing if nothing is counted.
    pub steps: Steps,
    /// Number of records, without those left out.
    pub records: u32,
    /// Positions of its records after the first, in order; at most [`MAX_SEPARABLE`].
    pub later: Vec<Position>,
}

/// Maximum records of a fold that can be split again if it cannot be carried out.
pub const MAX_SEPARABLE: usize = 256;

impl Fold {
    /// One record as a fold. `locate` tells where a point is under the live maps.
    pub fn from_write<T: Into<Target>>(write: Write, locate: impl FnOnce(Leaf) -> T) -> (DocId, Self) {
        let Write { id, position, body } = write;
        let target = match &body {
            Body::Index { at, .. } | Body::Patch { moves: PatchMove::To(at), .. } => Some(locate(*at).into()),
            Body::Delete => Some(Target::Nowhere),
            Body::Patch { moves: PatchMove::Unclear, .. } | Body::Touch | Body::Refeed => {
                Some(Target::Unclear)
            }
            Body::Patch { moves: PatchMove::Stays, .. } => None,
        };
        let is_touch = matches!(body, Body::Touch);
        let is_whole = matches!(body, Body::Index { .. } | Body::Delete | Body::Refeed);
        let fold = Self {
            content: body.into(),
            first: position,
            last: position,
            located_at: (target.is_some() && !is_touch).then_some(position),
            touched_at: is_touch.then_some(position),
            whole_at: is_whole.then_some(position),
            targets: target.map_or_else(SmallVec::new, |target| smallvec![target]),
            steps: Steps::default(),
            records: 1,
            later: Vec::new(),
        };
        (id, fold)
    }

    /// Adds a later fold of the same document (protocol, "Folding"). Unless some are rejected, the effect does not
    /// depend on how a sequence of records is cut into folds.
    ///
    /// Patches over a whole document are merged at once, and its location is read again if they mention it. If it has
    /// none, or none that Elasticsearch accepts, the later fold is [`Rejected`], and this one is unchanged.
    pub fn absorb(&mut self, newer: Self, path: &LocationPath) -> Result<(), Box<Rejected>> {
        debug_assert!(self.last < newer.first, "{} is folded over {}", newer.first, self.last);
        // Every record that mentions the location leaves a target.
        let may_move = !newer.targets.is_empty();
        if let Err(why) = self.content.absorb(&newer.content, may_move, path) {
            return Err(Box::new(Rejected { fold: newer, why }));
        }
        self.pass(&newer);
        self.located_at = self.located_at.max(newer.located_at);
        self.records = self.records.saturating_add(newer.records);
        let room = MAX_SEPARABLE.saturating_sub(self.later.len() + 1);
        self.later.extend(std::iter::once(newer.first).chain(newer.later).take(room));
        Ok(())
    }

    /// Leaves out a later fold, which is a dead letter: the content and the number of records stay, but the last
    /// position advances, since the records are consumed, and so do the targets, since a zombie with other fold
    /// boundaries may have followed them.
    pub fn pass(&mut self, newer: &Self) {
        self.last = newer.last;
        self.touched_at = self.touched_at.max(newer.touched_at);
        self.whole_at = self.whole_at.max(newer.whole_at);
        for target in &newer.targets {
            if let Err(place) = self.targets.binary_search(target) {
                self.targets.insert(place, target.clone());
            }
        }
        self.steps.absorb(newer.steps.clone());
    }

    /// Stands for `records` earlier ones as well, from `first` on, which it supersedes; `target`: where they placed the document.
    pub fn stand_for(&mut self, first: Position, records: u32, target: Option<Target>) {
        debug_assert!(
            first < self.first && self.whole_at == Some(self.first),
            "{first} is superseded by {}",
            self.first
        );
        self.first = first;
        self.records = self.records.saturating_add(records);
        if let Some(target) = target
            && let Err(place) = self.targets.binary_search(&target)
        {
            self.targets.insert(place, target);
        }
    }

    /// Leaves out its only record, which is a dead letter, before it is folded with others: what is left changes nothing but the
    /// position.
    pub fn leave_out(&mut self) {
        self.content = Content::Touch;
        self.touched_at = Some(self.last);
        self.records = 0;
    }

    /// The offsets of its records, oldest first, if there are at least two and at most [`MAX_SEPARABLE`].
    pub fn separable(&self) -> Option<Vec<i64>> {
        let offsets: Vec<i64> =
            std::iter::once(&self.first).chain(&self.later).map(|at| at.offset()).collect();
        let is_complete = usize::try_from(self.records).is_ok_and(|records| records == offsets.len());
        (is_complete && offsets.len() > 1).then_some(offsets)
    }

    /// Approximate heap bytes.
    pub fn bytes(&self) -> usize {
        let targets = if self.targets.spilled() { self.targets.capacity() * size_of::<Target>() } else { 0 };
        let content = match &self.content {
            Content::Index { doc, .. } => doc.len(),
            Content::Patch { patches, .. } => {
                patches.capacity() * size_of::<Bytes>() + patches.iter().map(Bytes::len).sum::<usize>()
            }
            Content::Delete | Content::Touch | Content::Refeed => 0,
        };
        let later = self.later.capacity() * size_of::<Position>();
        targets + content + later + self.steps.bytes()
    }
}
