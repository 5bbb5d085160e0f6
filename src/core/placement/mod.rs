//! Where a document is: the record in the placements index, and the owner's cache of such records.
//!
//! A placement names every geoshard that may hold a copy of its document (INV-1). It is written only by
//! compare-and-set against the record that was read, so each known placement carries the [`SeqNo`] of its state.

mod cache;

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use smallvec::SmallVec;

pub use self::cache::{CacheSlot, PlacementCache};
use crate::base::fnv::fnv1a;
use crate::base::ids::{DocId, ShardId};
use crate::base::position::{Epoch, Position};
use crate::base::requests::SeqNo;
use crate::core::counting::facets::Facets;
use crate::core::counting::version::FacetHistory;

/// Geoshards that may still hold an old copy. Nearly always none or one.
pub type Leftovers = SmallVec<[ShardId; 1]>;

/// The decision about a document's place, and its position.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Record")]
pub struct Placement {
    /// Position of the decision; never goes back (INV-4).
    pub pos: Position,
    /// The document's geoshard; `None` if it was deleted.
    pub shard: Option<ShardId>,
    /// Geoshards other than `shard` that may hold an old copy; sorted.
    pub leftovers: Leftovers,
    /// Elasticsearch permanently refused the document at `pos`: `shard` is where the last good copy stayed, if any, and
    /// an owner that meets the record at `pos` again dead-letters it instead of writing it there.
    pub refused: bool,
    /// The document decided at `pos`, while it may not be in `shard` yet. Only for fetched documents, which cannot be
    /// made again: the source may give another answer later (protocol, "Refeed"). Boxed, since it is rare.
    pub fetched: Option<Box<Bytes>>,
    /// The partition of the record at `pos`. `None` if no record decided (adopted, repaired), or an earlier build did.
    pub partition: Option<i32>,
    /// The document's facets, by positions up to `pos` (docs/tally.md). Empty if nothing is counted.
    pub versions: FacetHistory,
}

/// The JSON form of a placement for reading.
///
/// ⚠ An unknown field, from a later build, makes it unreadable: ignoring it would lose it with the next write.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    pos: Position,
    #[serde(default)]
    shard: Option<ShardId>,
    #[serde(default)]
    leftovers: Vec<ShardId>,
    #[serde(default)]
    deleted: bool,
    #[serde(default)]
    refused: bool,
    #[serde(default)]
    fetched: Option<Box<RawValue>>,
    #[serde(default)]
    partition: Option<i32>,
    #[serde(default)]
    versions: FacetHistory,
    /// Follows from the id.
    #[serde(default, rename = "key")]
    _key: IgnoredAny,
}

/// The JSON form for writing.
#[derive(Serialize)]
struct Written<'a> {
    pos: Position,
    #[serde(skip_serializing_if = "Option::is_none")]
    shard: Option<&'a ShardId>,
    #[serde(skip_serializing_if = "<[ShardId]>::is_empty")]
    leftovers: &'a [ShardId],
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    deleted: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    refused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    fetched: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<i32>,
    #[serde(skip_serializing_if = "FacetHistory::is_empty")]
    versions: &'a FacetHistory,
    /// Marks a plain placement.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<u32>,
}

impl TryFrom<Record> for Placement {
    type Error = &'static str;

    fn try_from(record: Record) -> Result<Self, Self::Error> {
        if record.deleted == record.shard.is_some() {
            return Err("a placement has either a shard or \"deleted\": true");
        }
        if record.versions.last_position() > Some(record.pos) {
            return Err("a placement's \"versions\" cannot be above its \"pos\"");
        }
        if record.fetched.is_some() && record.deleted {
            return Err("a placement with \"deleted\" has no \"fetched\" document");
        }
        Ok(Self {
            fetched: record.fetched.map(|document| Box::new(String::from(Box::<str>::from(document)).into())),
            pos: record.pos,
            shard: record.shard,
            leftovers: record.leftovers.into_iter().collect(),
            refused: record.refused,
            partition: record.partition,
            versions: record.versions,
        })
    }
}

impl Serialize for Placement {
    /// Without a key.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.written(None).serialize(serializer)
    }
}

/// What a search gives of a placement in place of its document's id, which it would take from stored fields: 31 bits of a hash.
/// Only documents that are asked for are told apart by it.
pub fn placement_key(id: &DocId) -> u32 {
    let hash = fnv1a(id.as_str().bytes());
    let [_, _, _, _, bytes @ ..] = (hash ^ (hash >> 32)).to_be_bytes();
    u32::from_be_bytes(bytes) >> 1
}

impl Placement {
    /// A placement with leftovers `may_hold` without `shard`, sorted and distinct; without a partition or a history of
    /// facets.
    pub fn new(pos: Position, shard: Option<ShardId>, may_hold: impl IntoIterator<Item = ShardId>) -> Self {
        let mut leftovers: Leftovers =
            may_hold.into_iter().filter(|other| Some(other) != shard.as_ref()).collect();
        leftovers.sort_unstable();
        leftovers.dedup();
        let (refused, fetched, partition) = (false, None, None);
        Self { pos, shard, leftovers, refused, fetched, partition, versions: FacetHistory::default() }
    }

    /// Sets the partition of its record.
    pub fn by_partition(self, partition: Option<i32>) -> Self {
        Self { partition, ..self }
    }

    /// Whether position, geoshard and partition are all there is to it.
    pub fn is_plain(&self) -> bool {
        let Self { pos: _, shard, leftovers, refused, fetched, partition: _, versions } = self;
        shard.is_some() && leftovers.is_empty() && !refused && fetched.is_none() && versions.is_empty()
    }

    /// The partition of the document's records in `epoch`, if known.
    pub fn partition_in(&self, epoch: Epoch) -> Option<i32> {
        self.partition.filter(|_| self.pos.epoch() == epoch)
    }

    /// Sets the history.
    pub fn with_history(self, versions: FacetHistory) -> Self {
        Self { versions, ..self }
    }

    /// Sets the fetched document.
    pub fn with_fetched(self, fetched: Option<Bytes>) -> Self {
        Self { fetched: fetched.filter(|_| self.shard.is_some()).map(Box::new), ..self }
    }

    /// The document's facets at `pos`; `None` if it was never counted.
    pub fn facets(&self) -> Option<&Facets> {
        self.versions.current()
    }

    /// Marks the document at `pos` as refused.
    pub fn after_refusal(self) -> Self {
        Self { refused: true, ..self }
    }

    /// Every geoshard that may hold a copy (INV-1).
    pub fn may_hold(&self) -> impl Iterator<Item = &ShardId> {
        self.shard.iter().chain(&self.leftovers)
    }

    /// The JSON stored in the placements index for the document `id`.
    pub fn stored(&self, id: &DocId) -> Bytes {
        let key = self.is_plain().then(|| placement_key(id));
        // Serializing plain strings and numbers into a Vec cannot fail.
        Bytes::from(serde_json::to_vec(&self.written(key)).unwrap_or_default())
    }

    /// The same without its key.
    pub fn to_json(&self) -> Bytes {
        Bytes::from(serde_json::to_vec(self).unwrap_or_default())
    }

    fn written(&self, key: Option<u32>) -> Written<'_> {
        let Self { pos, shard, leftovers, refused, fetched, partition, versions } = self;
        // Validated when it was fetched.
        let fetched = fetched.as_ref().and_then(|document| serde_json::from_slice(document).ok());
        let (deleted, shard) = (shard.is_none(), shard.as_ref());
        let (pos, refused, partition) = (*pos, *refused, *partition);
        Written { pos, shard, leftovers, deleted, refused, fetched, partition, versions, key }
    }

    /// Reads the JSON back.
    pub fn from_json(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

/// Lower bounds: positions never go back (INV-4), so anything below these is outdated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlacementFloor {
    /// Of the document's placement.
    pub pos: Position,
    /// Of its newest copy.
    pub version: Position,
}

/// A placement in the index, as known to its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownPlacement {
    /// The record.
    pub placement: Placement,
    /// Its state, for compare-and-set.
    pub stamp: SeqNo,
    /// This owner has deleted all leftovers at `placement.pos`; only the record is not cleared yet.
    pub swept: bool,
    /// The highest version of the document that this owner has written or read. A copy below it is outdated.
    pub at_least: Position,
    /// This owner has known a later one: the answer came from a node that is cut off.
    pub outdated: bool,
}

impl KnownPlacement {
    /// As just read or written.
    pub fn new(placement: Placement, stamp: SeqNo) -> Self {
        Self { placement, stamp, swept: false, at_least: Position::NONE, outdated: false }
    }

    /// Applies the owner's lower bounds.
    pub fn above(self, floor: PlacementFloor) -> Self {
        let outdated = self.placement.pos < floor.pos;
        Self { at_least: self.at_least.max(floor.version), outdated, ..self }
    }

    /// The leftovers that may really still hold a copy.
    pub fn unswept(&self) -> &[ShardId] {
        if self.swept { &[] } else { &self.placement.leftovers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::testing::shard;

    #[test]
    fn placement_survives_json() {
        let pos = Position::from_version(1 << 62);
        for placement in [
            Placement::new(pos, Some(shard("a")), []),
            Placement::new(pos, None, [shard("b"), shard("a")]),
            Placement { refused: true, ..Placement::new(pos, Some(shard("a")), [shard("b")]) },
            Placement::new(pos, Some(shard("a")), []).by_partition(Some(7)),
            Placement::new(pos, Some(shard("a")), []).with_fetched(Some(r#"{"n":1.10,"a":[]}"#.into())),
            Placement::new(pos, None, []).with_history(FacetHistory::default().with(
                pos,
                pos,
                Facets::default(),
            )),
        ] {
            assert_eq!(Placement::from_json(&placement.to_json()).unwrap(), placement);
        }
        assert!(Placement::from_json(br#"{"pos":1}"#).is_err(), "neither shard nor deleted");
        let ahead = br#"{"pos":1,"deleted":true,"versions":[[2,{}]]}"#;
        assert!(Placement::from_json(ahead).is_err(), "facets of a later record than the placement's");
    }

    #[test]
    fn only_a_plain_placement_has_a_key() {
        let plain = || Placement::new(Position::from_version(7), Some(shard("a")), []).by_partition(Some(3));
        let id = DocId::from_key(Some(b"foobar")).unwrap();
        let stored = plain().stored(&id);
        // FNV-1a of "foobar" is 85944171_f73967e8.
        let key = (0x8594_4171_u32 ^ 0xf739_67e8) >> 1;
        assert_eq!(stored, format!(r#"{{"pos":7,"shard":"a","partition":3,"key":{key}}}"#));
        assert_eq!(Placement::from_json(&stored).unwrap(), plain());
        for other in [
            Placement { shard: None, ..plain() },
            Placement { leftovers: [shard("b")].into_iter().collect(), ..plain() },
            plain().after_refusal(),
            plain().with_fetched(Some("{}".into())),
            plain().with_history(FacetHistory::default().with(plain().pos, plain().pos, Facets::default())),
        ] {
            assert!(!other.is_plain());
            assert_eq!(other.stored(&id), other.to_json());
        }
    }

    #[test]
    fn json_has_a_history_only_if_there_is_one() {
        let placement = Placement::new(Position::from_version(7), Some(shard("a")), []);
        let tagged: Facets = serde_json::from_str(r#"{"tags":["x","y"]}"#).unwrap();
        let history = FacetHistory::default().with(placement.pos, placement.pos, tagged);
        let counted = placement.with_history(history);
        assert_eq!(counted.to_json(), r#"{"pos":7,"shard":"a","versions":[[7,{"tags":["x","y"]}]]}"#);
        assert_eq!(Placement::from_json(&counted.to_json()).unwrap(), counted);
    }

    #[test]
    fn leftovers_exclude_the_shard_and_are_distinct() {
        let placement = Placement::new(
            Position::from_version(1),
            Some(shard("a")),
            [shard("c"), shard("a"), shard("b"), shard("c")],
        );
        assert_eq!(placement.leftovers.as_slice(), [shard("b"), shard("c")]);
    }
}
