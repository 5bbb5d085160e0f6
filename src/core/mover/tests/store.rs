//! An in-memory Elasticsearch as far as the mover uses it, with the semantics of the real one: external versions
//! compared with tombstones too, compare-and-set by sequence number, creation only if absent, realtime reads. Each call
//! is executed atomically, as by a shard's primary.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::base::ids::{DocId, ShardId};
use crate::base::position::Position;
use crate::base::sabotage::{self, Sabotage};
use crate::core::invariants::DocumentState;
use crate::core::placement::Placement;
use crate::io::elastic::condition::VersionCondition;
use crate::io::elastic::rounds::{BulkOutcome, GetOutcome};
use crate::io::elastic::{BulkOp, FoundDocument, Get, Index, ItemError, SeqNo, WriteCondition};

/// A document whose text contains this is refused by a geoshard's mapping.
pub(super) const UNACCEPTABLE: &str = "unacceptable";

/// One call to the store.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum StoreCall {
    Get(Get),
    Bulk(BulkOp),
}

/// The answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum StoreAnswer {
    Get(GetOutcome),
    Bulk(BulkOutcome),
}

impl StoreCall {
    /// What the caller sees without an answer in time.
    pub(super) fn unanswered(&self) -> StoreAnswer {
        match self {
            Self::Get(_) => StoreAnswer::Get(GetOutcome::Unanswered),
            Self::Bulk(_) => StoreAnswer::Bulk(BulkOutcome::Unanswered),
        }
    }

    pub(super) fn id(&self) -> &DocId {
        match self {
            Self::Get(Get { id, .. }) => id,
            Self::Bulk(op) => op.id(),
        }
    }
}

/// One document of one index, or its tombstone.
#[derive(Debug, Clone)]
struct Slot {
    version: u64,
    stamp: SeqNo,
    /// `None`: deleted; the version stays.
    source: Option<Bytes>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct TestStore {
    slots: BTreeMap<(Index, DocId), Slot>,
    next_seq_no: u64,
}

impl TestStore {
    pub(super) fn call(&mut self, call: &StoreCall) -> StoreAnswer {
        match call {
            StoreCall::Get(get) => StoreAnswer::Get(self.read(get)),
            StoreCall::Bulk(op) => StoreAnswer::Bulk(self.exec(op)),
        }
    }

    pub(super) fn read(&self, get: &Get) -> GetOutcome {
        match self.slots.get(&(get.index.clone(), get.id.clone())) {
            Some(Slot { version, stamp, source: Some(source) }) => {
                GetOutcome::Found(FoundDocument { version: *version, stamp: *stamp, source: source.clone() })
            }
            _ => GetOutcome::Missing,
        }
    }

    pub(super) fn exec(&mut self, op: &BulkOp) -> BulkOutcome {
        match op {
            BulkOp::Index { index, id, guard, source } => {
                if matches!(index, Index::Geoshard(_)) && is_unacceptable(source) {
                    return BulkOutcome::Refused(refusal());
                }
                let slot = self.slots.get(&(index.clone(), id.clone()));
                let live = slot.filter(|slot| slot.source.is_some()).map(|slot| slot.stamp);
                match VersionCondition::from(guard).next_version(slot.map(|slot| slot.version), live) {
                    Some(version) => self.put(index, id, version, Some(source.clone())),
                    None => BulkOutcome::Conflict,
                }
            }
            BulkOp::Delete { index, id, version } => {
                let slot = self.slots.get(&(index.clone(), id.clone()));
                // The real client omits the version from the request, which this store does not see.
                let is_guarded = !sabotage::is(Sabotage::DeleteWithoutVersion);
                let condition = VersionCondition::from(op);
                if is_guarded && !condition.allows(slot.map(|slot| slot.version), slot.map(|slot| slot.stamp))
                {
                    return BulkOutcome::Conflict;
                }
                let was_there = slot.is_some_and(|slot| slot.source.is_some());
                // A tombstone stays in either case.
                let done = self.put(index, id, version.version(), None);
                if was_there { done } else { BulkOutcome::NotFound }
            }
            BulkOp::Remove { .. } => unreachable!("the mover removes no placement"),
        }
    }

    fn put(&mut self, index: &Index, id: &DocId, version: u64, source: Option<Bytes>) -> BulkOutcome {
        let stamp = SeqNo { seq_no: self.next_seq_no, primary_term: 1 };
        self.next_seq_no += 1;
        self.slots.insert((index.clone(), id.clone()), Slot { version, stamp, source });
        // The real client asks for stamps of placements only.
        BulkOutcome::Done { stamp: (*index == Index::Placements).then_some(stamp) }
    }

    /// The placement of document `x` on another node.
    pub(super) fn take_placement_of(&mut self, other: &Self) {
        let key = (Index::Placements, super::id("x"));
        let slot = other.slots.get(&key).cloned();
        self.slots.extend(slot.map(|slot| (key, slot)));
    }

    /// The stored state of a document.
    pub(super) fn view(&self, id: &DocId) -> DocumentState {
        let mut view = DocumentState::default();
        for ((index, of), Slot { version, source, .. }) in &self.slots {
            let (true, Some(source)) = (of == id, source) else { continue };
            match index {
                Index::Geoshard(shard) => {
                    view.copies.insert(shard.clone(), Position::from_version(*version));
                }
                Index::Placements => view.placement = Some(Placement::from_json(source).unwrap()),
                Index::Meta => {}
            }
        }
        view
    }

    /// The content of a copy.
    pub(super) fn content(&self, shard: &ShardId, id: &DocId) -> Option<Bytes> {
        self.slots.get(&(Index::Geoshard(shard.clone()), id.clone()))?.source.clone()
    }
}

fn is_unacceptable(source: &[u8]) -> bool {
    source.windows(UNACCEPTABLE.len()).any(|part| part == UNACCEPTABLE.as_bytes())
}

pub(super) fn refusal() -> ItemError {
    ItemError { status: 400, kind: "document_parsing_exception".to_owned(), reason: "a test".to_owned() }
}

mod tests {
    use super::super::{at, id, shard};
    use super::*;

    fn index(place: &str, guard: WriteCondition) -> BulkOp {
        BulkOp::Index { index: Index::Geoshard(shard(place)), id: id("x"), guard, source: "{}".into() }
    }

    fn delete(version: i64) -> BulkOp {
        BulkOp::Delete { index: Index::Geoshard(shard("a")), id: id("x"), version: at(version) }
    }

    #[test]
    fn external_versions_compare_with_copies_and_tombstones() {
        let mut store = TestStore::default();
        let external = |offset| index("a", WriteCondition::External(at(offset)));
        let or_equal = |offset| index("a", WriteCondition::ExternalOrEqual(at(offset)));
        let done = BulkOutcome::Done { stamp: None };
        for (op, outcome) in [
            (delete(3), BulkOutcome::NotFound),
            (external(3), BulkOutcome::Conflict),
            (external(4), done.clone()),
            (external(4), BulkOutcome::Conflict),
            (or_equal(4), done.clone()),
            (delete(4), BulkOutcome::Conflict),
            (delete(5), done.clone()),
            (delete(5), BulkOutcome::Conflict),
            (external(5), BulkOutcome::Conflict),
            (or_equal(5), done.clone()),
            (external(6), done),
        ] {
            assert_eq!(store.exec(&op), outcome, "{op:?}");
        }
    }

    #[test]
    fn compare_and_set_requires_the_exact_state_read() {
        let mut store = TestStore::default();
        let placement =
            |guard| BulkOp::Index { index: Index::Placements, id: id("x"), guard, source: "{}".into() };
        let BulkOutcome::Done { stamp: Some(first) } = store.exec(&placement(WriteCondition::Absent)) else {
            panic!()
        };
        assert_eq!(store.exec(&placement(WriteCondition::Absent)), BulkOutcome::Conflict);
        let BulkOutcome::Done { stamp: Some(second) } =
            store.exec(&placement(WriteCondition::Unchanged(first)))
        else {
            panic!()
        };
        assert_eq!(store.exec(&placement(WriteCondition::Unchanged(first))), BulkOutcome::Conflict);
        assert_ne!(first, second);
        let nowhere = BulkOp::Index {
            index: Index::Placements,
            id: id("y"),
            guard: WriteCondition::Unchanged(second),
            source: "{}".into(),
        };
        assert_eq!(store.exec(&nowhere), BulkOutcome::Conflict);
    }
}
