//! The owner's cache of placements.
//!
//! It has one entry per recently written document, a hundred thousand of them, which live long among short-lived
//! records. Separate allocations would keep otherwise empty pages of memory in use, so entries share one: ids up to a
//! length are inline, and rare fields are boxed.
//!
//! What makes room is found by the CLOCK algorithm: a hand goes around the entries, and the first that was not used since it came
//! by last is dropped. A list in order of use would touch two more entries at each use, which are seldom in the CPU's caches.

use std::fmt;
use std::num::NonZeroUsize;
use std::time::Duration;

use ahash::RandomState;
use bytes::Bytes;
use hashbrown::HashTable;
use slab::Slab;
use smallvec::SmallVec;

use super::{KnownPlacement, Leftovers, Placement, PlacementFloor};
use crate::base::clock::Instant;
use crate::base::ids::{DocId, ShardId};
use crate::base::position::Position;
use crate::base::requests::SeqNo;
use crate::base::sabotage::{self, Sabotage};
use crate::core::counting::version::FacetHistory;

/// Ids up to this length, UUIDs included, need no allocation.
const INLINE_ID_BYTES: usize = 40;
/// So many dropped placements that this owner may have changed are remembered one by one, in some 70 KB; of more, none.
const MAX_CHANGED: usize = 4096;
/// In place of a partition's number, which is not negative: an `Option` would take twice the memory.
const NO_PARTITION: i32 = -1;
/// In place of the state of a placement that must be read.
const FORGOTTEN: SeqNo = SeqNo { seq_no: u64::MAX, primary_term: u64::MAX };

/// Placements that this owner read or wrote since its partition was assigned.
///
/// One that survived into a later assignment would make two copies: the cache lives and dies with the partition task.
#[derive(Clone)]
pub struct PlacementCache {
    capacity: usize,
    entries: Slab<Entry>,
    /// Indices of the entries by the hashes of their ids.
    places: HashTable<u32>,
    /// Keyed at random: producers choose the ids.
    hasher: RandomState,
    /// Where the hand is.
    hand: usize,
    /// A placement without an entry has only been changed by others since then, unless it is in `changed`. `None`: nothing is known.
    since: Option<Instant>,
    /// Hashes of ids without an entry, whose placements this owner may have changed or seen changed since then.
    changed: HashTable<u64>,
}

/// Where a [`PlacementCache`] keeps an entry. Memory is slow, and finding an entry reads more of it than the entry itself: who comes
/// back to one keeps this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheSlot(u32);

#[derive(Clone)]
struct Entry {
    id: SmallVec<[u8; INLINE_ID_BYTES]>,
    pos: Position,
    stamp: SeqNo,
    shard: Option<ShardId>,
    /// Or [`NO_PARTITION`].
    partition: i32,
    at_least: Position,
    rare: Option<Box<Rare>>,
    /// Since the hand came by.
    is_used: bool,
    /// It may have changed since it could first be read: by this owner, or it was found changed.
    is_changed: bool,
}

/// Rare fields of a placement.
#[derive(Clone, Default)]
struct Rare {
    leftovers: Leftovers,
    refused: bool,
    fetched: Option<Box<Bytes>>,
    versions: FacetHistory,
    swept: bool,
}

impl Rare {
    fn is_nothing(&self) -> bool {
        let Self { leftovers, refused, fetched, versions, swept } = self;
        leftovers.is_empty() && !refused && fetched.is_none() && versions.is_empty() && !swept
    }
}

impl Entry {
    fn known(&self) -> KnownPlacement {
        let Rare { leftovers, refused, fetched, versions, swept } =
            self.rare.as_deref().cloned().unwrap_or_default();
        let (pos, shard) = (self.pos, self.shard.clone());
        let partition = (self.partition != NO_PARTITION).then_some(self.partition);
        let placement = Placement { pos, shard, leftovers, refused, fetched, partition, versions };
        let (stamp, at_least) = (self.stamp, self.at_least);
        KnownPlacement { placement, stamp, swept, at_least, outdated: false }
    }

    fn set(&mut self, known: KnownPlacement) {
        let KnownPlacement { placement, stamp, swept, at_least, .. } = known;
        let Placement { pos, shard, leftovers, refused, fetched, partition, versions } = placement;
        let rare = Rare { leftovers, refused, fetched, versions, swept };
        (self.pos, self.stamp, self.shard) = (pos, stamp, shard);
        self.partition = partition.unwrap_or(NO_PARTITION);
        self.at_least = self.at_least.max(at_least);
        match &mut self.rare {
            place if rare.is_nothing() => *place = None,
            Some(place) => **place = rare,
            place => *place = Some(Box::new(rare)),
        }
    }
}

impl PlacementCache {
    /// An empty cache of at most `capacity` placements. Memory grows with use.
    pub fn new(capacity: NonZeroUsize) -> Self {
        Self {
            // Indices have 32 bits.
            capacity: capacity.get().min(u32::MAX as usize),
            entries: Slab::new(),
            places: HashTable::new(),
            hasher: RandomState::new(),
            hand: 0,
            since: None,
            changed: HashTable::new(),
        }
    }

    /// Where all placements without an entry have to be read as of now, they may henceforth be read as of any moment since `now`.
    /// ⚠ Not while a batch is in flight.
    pub fn begin(&mut self, now: Instant) {
        let before = || Instant::from_start(Duration::ZERO);
        self.since.get_or_insert(if sabotage::is(Sabotage::ReadAsOfBefore) { before() } else { now });
    }

    /// The placement of `id`, which is not cached, may be read as of any moment since this one; `None`: as of now.
    pub fn readable_since(&self, id: &DocId) -> Option<Instant> {
        let hash = self.hasher.hash_one(id.as_str().as_bytes());
        let is_changed = self.changed.find(hash, |changed| *changed == hash).is_some();
        self.since.filter(|_| !is_changed && self.find(id).is_none())
    }

    /// Maximum number of placements.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes the capacity; drops excess entries and their memory.
    pub fn resize(&mut self, capacity: NonZeroUsize) {
        let mut resized = Self { hasher: self.hasher.clone(), ..Self::new(capacity) };
        // With the hand at the first slot, it comes by new entries last also in further slots.
        if self.len() <= resized.capacity && self.hand == 0 {
            self.capacity = resized.capacity;
            return;
        }
        let slots = self.len();
        while self.len() > resized.capacity {
            self.make_room(slots);
        }
        // In the order in which the hand would come by.
        for number in (self.hand..slots).chain(0..self.hand) {
            if let Some(entry) = self.entries.try_remove(number) {
                resized.insert(entry);
            }
        }
        (resized.since, resized.changed) = (self.since, std::mem::take(&mut self.changed));
        *self = resized;
    }

    /// The placement of `id`, if cached.
    pub fn get(&mut self, id: &DocId) -> Option<KnownPlacement> {
        self.get_at(self.slot(id)?)
    }

    /// Where the entry of `id` is, if there is one.
    pub fn slot(&self, id: &DocId) -> Option<CacheSlot> {
        self.find(id).map(CacheSlot)
    }

    /// The placement in this slot, if cached.
    pub fn get_at(&mut self, CacheSlot(number): CacheSlot) -> Option<KnownPlacement> {
        let entry = self.entries.get_mut(number as usize)?;
        if entry.stamp == FORGOTTEN {
            return None;
        }
        entry.is_used = true;
        Some(entry.known())
    }

    /// Caches a placement just read, unless it is outdated. Returns where.
    pub fn put_read(&mut self, id: &DocId, known: KnownPlacement) -> Option<CacheSlot> {
        self.put_as(id, known, false)
    }

    /// The same for one just written.
    pub fn put(&mut self, id: &DocId, known: KnownPlacement) -> Option<CacheSlot> {
        self.put_as(id, known, true)
    }

    fn put_as(&mut self, id: &DocId, known: KnownPlacement, is_changed: bool) -> Option<CacheSlot> {
        if known.outdated {
            return None;
        }
        if let Some(number) = self.find(id) {
            let entry = &mut self.entries[number as usize];
            entry.is_used = true;
            entry.is_changed |= is_changed;
            entry.set(known);
            return Some(CacheSlot(number));
        }
        if self.len() >= self.capacity {
            self.make_room(self.len());
        }
        let id = SmallVec::from_slice(id.as_str().as_bytes());
        let KnownPlacement { placement: Placement { pos, .. }, stamp, at_least, .. } = known;
        let (shard, partition, rare) = (None, NO_PARTITION, None);
        let mut entry =
            Entry { id, pos, stamp, shard, partition, at_least, rare, is_used: false, is_changed };
        entry.set(known);
        Some(self.insert(entry))
    }

    /// The known lower bounds for `id`, even after its placement was forgotten.
    pub fn floor(&self, id: &DocId) -> PlacementFloor {
        let Some(number) = self.find(id) else { return PlacementFloor::default() };
        let Entry { pos, at_least, .. } = self.entries[number as usize];
        PlacementFloor { pos, version: at_least }
    }

    /// Records a document version just written or read, if its placement is or was cached.
    pub fn saw(&mut self, id: &DocId, version: Position) {
        if let Some(number) = self.find(id) {
            let entry = &mut self.entries[number as usize];
            entry.at_least = entry.at_least.max(version);
        }
    }

    /// The same, if the entry was found in this slot earlier.
    pub fn saw_at(&mut self, CacheSlot(number): CacheSlot, id: &DocId, version: Position) {
        match self.entries.get_mut(number as usize) {
            Some(entry) if entry.id.as_slice() == id.as_str().as_bytes() => {
                entry.at_least = entry.at_least.max(version);
            }
            // Dropped, or elsewhere since.
            _ => self.saw(id, version),
        }
    }

    /// Drops the placement of `id`: the next entry reads it. Its lower bounds stay.
    pub fn forget(&mut self, id: &DocId) {
        if let Some(number) = self.find(id) {
            let entry = &mut self.entries[number as usize];
            entry.stamp = FORGOTTEN;
            (entry.shard, entry.partition, entry.rare) = (None, NO_PARTITION, None);
            entry.is_changed = true;
        } else {
            self.note_changed(self.hasher.hash_one(id.as_str().as_bytes()));
        }
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        *self = Self::new(NonZeroUsize::new(self.capacity).unwrap_or(NonZeroUsize::MIN));
    }

    /// Number of placements cached or known to be outdated.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn find(&self, id: &DocId) -> Option<u32> {
        let id = id.as_str().as_bytes();
        let is_it = |number: &u32| self.entries[*number as usize].id.as_slice() == id;
        self.places.find(self.hasher.hash_one(id), is_it).copied()
    }

    /// Adds an entry for a new id.
    fn insert(&mut self, entry: Entry) -> CacheSlot {
        let hash = self.hasher.hash_one(entry.id.as_slice());
        #[expect(
            clippy::cast_possible_truncation,
            reason = "numbers are below the capacity, which has 32 bits"
        )]
        let number = self.entries.insert(entry) as u32;
        let rehash = |number: &u32| self.hasher.hash_one(self.entries[*number as usize].id.as_slice());
        self.places.insert_unique(hash, number, rehash);
        CacheSlot(number)
    }

    /// Drops the first of these slots' entries that was not used since the hand came by. The next entry gets its slot.
    fn make_room(&mut self, slots: usize) {
        while !self.is_empty() {
            let number = self.hand;
            self.hand = (number + 1) % slots;
            match self.entries.get_mut(number) {
                Some(entry) if !entry.is_used => return self.remove(number),
                Some(entry) => entry.is_used = false,
                None => {}
            }
        }
    }

    fn remove(&mut self, number: usize) {
        let entry = self.entries.remove(number);
        let hash = self.hasher.hash_one(entry.id.as_slice());
        if let Ok(place) = self.places.find_entry(hash, |other| *other as usize == number) {
            place.remove();
        }
        if entry.is_changed {
            self.note_changed(hash);
        }
    }

    fn note_changed(&mut self, hash: u64) {
        if sabotage::is(Sabotage::ChangedIsForgotten) {
            return;
        }
        if self.changed.len() >= MAX_CHANGED {
            (self.since, self.changed) = (None, HashTable::new());
        }
        if self.since.is_some() {
            self.changed.entry(hash, |changed| *changed == hash, |changed| *changed).or_insert(hash);
        }
    }
}

impl fmt::Debug for PlacementCache {
    /// The content: while there is room, caches with equal output behave alike.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries.iter().map(|(_, entry)| (entry.id.escape_ascii(), entry.known()));
        f.debug_map().entries(entries).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet, VecDeque};

    use super::*;
    use crate::base::random::Random;
    use crate::core::counting::facets::Facets;

    fn id(number: u64) -> DocId {
        let long = if number.is_multiple_of(7) { "-".repeat(60) } else { String::new() };
        DocId::from_key(Some(format!("d{number}{long}").as_bytes())).unwrap()
    }

    fn known(number: u64) -> KnownPlacement {
        let pos = Position::from_version(number + 1);
        let shard = |name: u64| ShardId::new(&format!("s{name}")).unwrap();
        let mut placement = match number % 5 {
            0 => Placement::new(pos, None, [shard(1)]),
            1 => Placement::new(pos, Some(shard(number % 3)), [shard(7), shard(8)]).after_refusal(),
            2 => Placement::new(pos, Some(shard(number % 3)), []).with_fetched(Some("{}".into())),
            _ => Placement::new(pos, Some(shard(number % 3)), []).by_partition(Some(7)),
        };
        if number.is_multiple_of(11) {
            placement = placement.with_history(FacetHistory::default().with(pos, pos, Facets::default()));
        }
        let stamp = SeqNo { seq_no: number, primary_term: number / 2 };
        let at_least = Position::from_version(number % 17);
        KnownPlacement { swept: number % 5 == 1, at_least, ..KnownPlacement::new(placement, stamp) }
    }

    /// A simple reference: a queue in the order in which the hand comes by.
    #[derive(Default)]
    struct Model(VecDeque<Modelled>);

    struct Modelled {
        id: DocId,
        known: Option<KnownPlacement>,
        floor: PlacementFloor,
        is_used: bool,
    }

    impl Model {
        fn find(&mut self, id: &DocId) -> Option<&mut Modelled> {
            self.0.iter_mut().find(|entry| entry.id == *id)
        }

        fn cut(&mut self, capacity: usize) {
            while self.0.len() > capacity {
                let mut first = self.0.pop_front().unwrap();
                if std::mem::take(&mut first.is_used) {
                    self.0.push_back(first);
                }
            }
        }
    }

    #[test]
    fn cache_matches_a_simple_queue() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let mut capacity = 30;
            let mut cache = PlacementCache::new(NonZeroUsize::new(capacity).unwrap());
            let mut model = Model::default();
            // Where entries were once, and perhaps no longer are.
            let mut slots = HashMap::new();
            for step in 0..3_000 {
                let id = id(random.below(60));
                match random.below(20) {
                    0 => {
                        cache.forget(&id);
                        if let Some(entry) = model.find(&id) {
                            entry.known = None;
                        }
                    }
                    1 if random.below(10) == 0 => {
                        capacity = usize::try_from(1 + random.below(40)).unwrap();
                        cache.resize(NonZeroUsize::new(capacity).unwrap());
                        model.cut(capacity);
                    }
                    2 if random.below(50) == 0 => {
                        cache.clear();
                        model.0.clear();
                    }
                    3 => {
                        let version = Position::from_version(random.below(20));
                        match slots.get(&id) {
                            Some(slot) => cache.saw_at(*slot, &id, version),
                            None => cache.saw(&id, version),
                        }
                        if let Some(entry) = model.find(&id) {
                            entry.floor.version = entry.floor.version.max(version);
                        }
                    }
                    4..10 => {
                        let entry = model.find(&id);
                        let floor = entry.as_ref().map(|entry| entry.floor).unwrap_or_default();
                        assert_eq!(cache.floor(&id), floor);
                        let known = entry.and_then(|entry| {
                            entry.is_used |= entry.known.is_some();
                            Some(KnownPlacement { at_least: floor.version, ..entry.known.clone()? })
                        });
                        assert_eq!(cache.get(&id), known, "seed {seed}, step {step}");
                        slots.extend(cache.slot(&id).map(|slot| (id.clone(), slot)));
                    }
                    _ => {
                        let known = known(random.below(1_000));
                        let slot = cache.put(&id, known.clone());
                        assert_eq!(slot, cache.slot(&id), "seed {seed}, step {step}");
                        let (pos, version) = (known.placement.pos, known.at_least);
                        if let Some(entry) = model.find(&id) {
                            let version = entry.floor.version.max(version);
                            (entry.known, entry.is_used) = (Some(known), true);
                            entry.floor = PlacementFloor { pos, version };
                        } else {
                            model.cut(capacity - 1);
                            let floor = PlacementFloor { pos, version };
                            model.0.push_back(Modelled { id, known: Some(known), floor, is_used: false });
                        }
                    }
                }
                assert_eq!(cache.len(), model.0.len(), "seed {seed}, step {step}");
            }
            let ids: HashSet<_> = model.0.iter().map(|entry| entry.id.as_str().as_bytes()).collect();
            let all: HashSet<_> = cache.entries.iter().map(|(_, entry)| entry.id.as_slice()).collect();
            assert_eq!(all, ids, "seed {seed}");
            assert_eq!(cache.places.len(), all.len(), "seed {seed}");
        }
    }

    #[test]
    fn what_this_owner_changed_is_read_as_of_now() {
        let at = |secs| Instant::from_start(Duration::from_secs(secs));
        let since = |cache: &PlacementCache, numbers: [u64; 3]| numbers.map(|n| cache.readable_since(&id(n)));
        let mut cache = PlacementCache::new(NonZeroUsize::new(2).unwrap());
        assert_eq!(since(&cache, [1, 2, 3]), [None; 3]);
        cache.begin(at(7));
        assert_eq!(since(&cache, [1, 2, 3]), [Some(at(7)); 3]);
        // Read, written, and found changed where nothing was known; all must then make room.
        cache.put_read(&id(1), known(1));
        cache.put(&id(2), known(2));
        cache.forget(&id(3));
        assert_eq!(since(&cache, [1, 2, 3]), [None; 3]);
        cache.put_read(&id(11), known(11));
        cache.put_read(&id(12), known(12));
        assert_eq!(since(&cache, [1, 2, 3]), [Some(at(7)), None, None]);
        cache.resize(NonZeroUsize::MIN);
        assert_eq!(since(&cache, [1, 2, 3]), [Some(at(7)), None, None]);
        // Read, and written since.
        cache.put_read(&id(12), known(12));
        cache.put(&id(12), known(13));
        cache.put_read(&id(13), known(13));
        assert_eq!(cache.readable_since(&id(12)), None);
        // What is known to be outdated, and what was written and then read.
        cache.forget(&id(13));
        cache.put_read(&id(13), known(13));
        cache.put_read(&id(14), known(14));
        assert_eq!(cache.readable_since(&id(13)), None);

        // Nothing was forgotten.
        cache.begin(at(8));
        assert_eq!(since(&cache, [1, 2, 3]), [Some(at(7)), None, None]);
        cache.clear();
        assert_eq!(since(&cache, [1, 2, 3]), [None; 3]);
        cache.begin(at(9));
        assert_eq!(since(&cache, [1, 2, 3]), [Some(at(9)); 3]);
    }

    #[test]
    fn where_much_has_changed_all_is_read_as_of_now_until_the_next_beginning() {
        let at = |secs| Instant::from_start(Duration::from_secs(secs));
        let mut cache = PlacementCache::new(NonZeroUsize::MIN);
        cache.begin(at(7));
        for number in 0..=MAX_CHANGED as u64 {
            assert!(cache.changed.len() <= MAX_CHANGED);
            cache.put(&id(number), known(number));
        }
        assert_eq!(cache.readable_since(&id(0)), None);
        assert_eq!(cache.readable_since(&id(10_000)), Some(at(7)));
        cache.forget(&id(9_999));
        assert_eq!((cache.readable_since(&id(10_000)), cache.changed.len()), (None, 0));
        cache.begin(at(8));
        assert_eq!(cache.readable_since(&id(0)), Some(at(8)));
    }

    /// docs/operations.md, "Memory", relies on it.
    #[test]
    fn entry_takes_104_bytes_and_most_need_no_others() {
        assert_eq!(size_of::<Entry>(), 104);
        let mut cache = PlacementCache::new(NonZeroUsize::new(10).unwrap());
        for number in [3, 13] {
            cache.put(&id(number), known(18));
            assert!(cache.entries.iter().all(|(_, entry)| entry.rare.is_none() && !entry.id.spilled()));
        }
    }
}
