//! Elasticsearch's rules for one document, small enough to be part of a state: external versions compared with
//! tombstones too, compare-and-set, realtime reads. Each operation is executed atomically, as by a shard's primary.

use std::collections::HashMap;
use std::hash::Hash;

use bytes::Bytes;
use geofold::base::position::Position;
use geofold::core::counting::facets::{FacetRules, Facets};
use geofold::core::invariants::DocumentState;
use geofold::core::placement::Placement;
use geofold::io::elastic::condition::VersionCondition;
use geofold::io::elastic::rounds::{BulkOutcome, GetOutcome};
use geofold::io::elastic::{BulkOp, FoundDocument, Get, Index, ItemError, SeqNo, WriteCondition};

use super::record::{UNACCEPTABLE, number_of, path, shard, version_of};

/// A copy, a tombstone, or nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Slot {
    /// 0: never a copy, or a forgotten tombstone.
    pub version: u8,
    /// 0: no copy. Else its content's number plus one.
    pub content: u8,
}

impl Slot {
    /// Whether a write of this external version is carried out.
    fn is_below(self, version: u8) -> bool {
        let known = (self.version > 0).then_some(self.version);
        VersionCondition::External(version).allows(known, (self.content != 0).then_some(()))
    }
}

/// The stored state of the document.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Store {
    /// 0: none. Else its number plus one.
    placement: u8,
    /// How often it was written: its `_seq_no`.
    stamp: u8,
    pub copies: [Slot; 3],
}

/// The condition of a placement write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum If {
    Absent,
    Unchanged(u8),
    Newer,
}

/// One operation on the document. Placements and contents are numbers given by [`Names`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    ReadPlacement,
    ReadCopy(u8),
    Place(If, u8),
    Put {
        shard: u8,
        version: u8,
        content: u8,
    },
    /// Rewrites a copy unchanged.
    PutAgain {
        shard: u8,
        version: u8,
        content: u8,
    },
    Delete {
        shard: u8,
        version: u8,
    },
    /// The sweep's: if the placement was not written since. `None`, a weakening: unconditionally.
    Remove {
        unchanged_since: Option<u8>,
    },
}

/// What comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reply {
    Missing,
    Placement { placement: u8, stamp: u8 },
    Copy { version: u8, content: u8 },
    Placed { stamp: u8 },
    Done,
    Conflict,
    NotFound,
    Refused,
    Unanswered,
}

impl Op {
    pub fn is_read(self) -> bool {
        matches!(self, Self::ReadPlacement | Self::ReadCopy(_))
    }
}

/// Numbers for placements and contents.
#[derive(Debug, Default)]
pub struct Names {
    placements: Numbered<Placement>,
    contents: Numbered<Bytes>,
}

#[derive(Debug)]
pub struct Numbered<T> {
    all: Vec<T>,
    numbers: HashMap<String, u8>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self { all: Vec::new(), numbers: HashMap::new() }
    }
}

impl<T: std::fmt::Debug + Clone> Numbered<T> {
    /// From 1.
    pub fn number(&mut self, value: &T) -> u8 {
        *self.numbers.entry(format!("{value:?}")).or_insert_with(|| {
            self.all.push(value.clone());
            u8::try_from(self.all.len()).expect("fewer than 256 of a kind in one script")
        })
    }

    pub fn get(&self, number: u8) -> &T {
        &self.all[usize::from(number) - 1]
    }
}

impl Names {
    /// The mover's operation in short form.
    pub fn op(&mut self, op: &BulkOp) -> Op {
        match op {
            BulkOp::Index { index: Index::Placements, guard, source, .. } => {
                let placement = Placement::from_json(source).unwrap();
                let condition = match guard {
                    WriteCondition::Absent => If::Absent,
                    WriteCondition::Unchanged(stamp) => If::Unchanged(u8::try_from(stamp.seq_no).unwrap()),
                    WriteCondition::External(_) | WriteCondition::ExternalOrEqual(_) => If::Newer,
                };
                Op::Place(condition, self.placements.number(&placement))
            }
            BulkOp::Index {
                index: Index::Geoshard(shard),
                guard: WriteCondition::External(at),
                source,
                ..
            } => Op::Put {
                shard: number_of(shard),
                version: version_of(*at),
                content: self.contents.number(source),
            },
            BulkOp::Index {
                index: Index::Geoshard(shard),
                guard: WriteCondition::ExternalOrEqual(at),
                source,
                ..
            } => Op::PutAgain {
                shard: number_of(shard),
                version: version_of(*at),
                content: self.contents.number(source),
            },
            BulkOp::Delete { index: Index::Geoshard(shard), version, .. } => {
                Op::Delete { shard: number_of(shard), version: version_of(*version) }
            }
            other => panic!("the mover does not do this: {other:?}"),
        }
    }

    pub fn get(get: &Get) -> Op {
        match &get.index {
            Index::Geoshard(shard) => Op::ReadCopy(number_of(shard)),
            _ => Op::ReadPlacement,
        }
    }

    /// The answer to a get, as the mover takes it.
    pub fn found(&self, reply: Reply) -> GetOutcome {
        match reply {
            Reply::Placement { placement, stamp } => GetOutcome::Found(FoundDocument {
                version: 1,
                stamp: stamp_of(stamp),
                source: self.placements.get(placement).to_json(),
            }),
            Reply::Copy { version, content } => GetOutcome::Found(FoundDocument {
                version: version.into(),
                stamp: stamp_of(0),
                source: self.contents.get(content).clone(),
            }),
            Reply::Unanswered => GetOutcome::Unanswered,
            _ => GetOutcome::Missing,
        }
    }

    pub fn content(&self, number: u8) -> &Bytes {
        self.contents.get(number)
    }

    /// Whether a document has both parts of its location.
    pub fn is_located(&self, number: u8) -> bool {
        path().locate(self.content(number)).is_ok()
    }

    pub fn placement(&self, number: u8) -> &Placement {
        self.placements.get(number)
    }

    fn is_unacceptable(&self, content: u8) -> bool {
        let text = self.contents.get(content);
        text.windows(UNACCEPTABLE.len()).any(|part| part == UNACCEPTABLE.as_bytes())
    }
}

/// The answer to a bulk operation, as the mover takes it.
pub fn outcome(reply: Reply) -> BulkOutcome {
    match reply {
        Reply::Placed { stamp } => BulkOutcome::Done { stamp: Some(stamp_of(stamp)) },
        Reply::Done => BulkOutcome::Done { stamp: None },
        Reply::NotFound => BulkOutcome::NotFound,
        Reply::Refused => BulkOutcome::Refused(ItemError {
            status: 400,
            kind: "document_parsing_exception".to_owned(),
            reason: "a test".to_owned(),
        }),
        Reply::Unanswered => BulkOutcome::Unanswered,
        _ => BulkOutcome::Conflict,
    }
}

fn stamp_of(number: u8) -> SeqNo {
    SeqNo { seq_no: number.into(), primary_term: 1 }
}

impl Store {
    /// Executes one operation. `delete_anything`, a weakening: ignores a delete's version.
    pub fn carry_out(&mut self, op: Op, names: &Names, delete_anything: bool) -> Reply {
        match op {
            Op::ReadPlacement if self.placement == 0 => Reply::Missing,
            Op::ReadPlacement => Reply::Placement { placement: self.placement, stamp: self.stamp },
            Op::ReadCopy(shard) => match self.copies[usize::from(shard)] {
                Slot { content: 0, .. } => Reply::Missing,
                Slot { version, content } => Reply::Copy { version, content },
            },
            Op::Place(condition, placement) => {
                let pos = |number| names.placement(number).pos;
                let live = (self.placement != 0).then_some(self.stamp);
                let condition = match condition {
                    If::Absent => VersionCondition::Absent,
                    If::Unchanged(stamp) => VersionCondition::Unchanged(stamp),
                    If::Newer => VersionCondition::External(pos(placement)),
                };
                if !condition.allows(live.map(|_| pos(self.placement)), live) {
                    return Reply::Conflict;
                }
                self.placement = placement;
                self.stamp += 1;
                Reply::Placed { stamp: self.stamp }
            }
            Op::Remove { unchanged_since } => {
                let is_unchanged = unchanged_since.is_none_or(|stamp| stamp == self.stamp);
                if self.placement == 0 || !is_unchanged {
                    return Reply::Conflict;
                }
                self.placement = 0;
                self.stamp += 1;
                Reply::Done
            }
            Op::Put { content, .. } | Op::PutAgain { content, .. } if names.is_unacceptable(content) => {
                Reply::Refused
            }
            Op::PutAgain { shard, version, content } => {
                let slot = &mut self.copies[usize::from(shard)];
                if slot.version > version {
                    return Reply::Conflict;
                }
                *slot = Slot { version, content };
                Reply::Done
            }
            Op::Put { shard, version, content } => {
                let slot = &mut self.copies[usize::from(shard)];
                if !slot.is_below(version) {
                    return Reply::Conflict;
                }
                *slot = Slot { version, content };
                Reply::Done
            }
            Op::Delete { shard, version } => {
                let slot = &mut self.copies[usize::from(shard)];
                if !slot.is_below(version) && !delete_anything {
                    return Reply::Conflict;
                }
                let was_there = slot.content != 0;
                *slot = Slot { version, content: 0 };
                if was_there { Reply::Done } else { Reply::NotFound }
            }
        }
    }

    /// The stamp of a placement that a sweep without concurrent writers would remove: deleted, and without copies.
    pub fn grave(&self, names: &Names) -> Option<u8> {
        let placement = (self.placement != 0).then(|| names.placement(self.placement))?;
        let is_empty = self.copies.iter().all(|copy| copy.content == 0);
        (placement.shard.is_none() && !placement.refused && is_empty).then_some(self.stamp)
    }

    /// Takes over the placement of another.
    pub fn copy_placement(&mut self, from: &Self) {
        (self.placement, self.stamp) = (from.placement, from.stamp);
    }

    /// A geoshard forgets its tombstone.
    pub fn forget_tombstone(&mut self, shard: u8) {
        self.copies[usize::from(shard)] = Slot::default();
    }

    /// Forgets every tombstone; whether there was one.
    pub fn forget_tombstones(&mut self) -> bool {
        let mut forgot = false;
        for slot in &mut self.copies {
            if slot.content == 0 && slot.version != 0 {
                *slot = Slot::default();
                forgot = true;
            }
        }
        forgot
    }

    /// The copies' contribution to the counts.
    pub fn recount(&self, rules: &FacetRules, names: &Names) -> Vec<Facets> {
        let copies = self.copies.iter().enumerate().filter(|(_, slot)| slot.content != 0);
        copies.map(|(n, slot)| rules.facets(names.content(slot.content), &shard(n))).collect()
    }

    /// The view for the invariants.
    pub fn view(&self, names: &Names) -> DocumentState {
        let placement = (self.placement != 0).then(|| names.placement(self.placement).clone());
        let copies = self.copies.iter().enumerate().filter(|(_, slot)| slot.content != 0);
        let copies =
            copies.map(|(n, slot)| (shard(n), Position::from_version(slot.version.into()))).collect();
        DocumentState { placement, copies }
    }
}
