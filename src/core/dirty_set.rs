//! The dirty set: a queue of keys that folds what is added twice and hands out in two phases.
//!
//! To write it again from nothing: there are two maps from key to (score, value). The *pending* set holds what is
//! dirty and not handed out; the *in-flight* set holds what was handed out and is not committed. A key may be in
//! both at once, with different scores: it was dirtied again while it was being worked on. Order is always
//! ascending by (score, key). [`add`](DirtySet::add) touches pending alone: a new key is inserted; a key that is
//! there keeps the lower of both scores, and its value absorbs the added one.
//! [`reserve(n)`](DirtySet::reserve) tops the in-flight set up to `n`: while it holds fewer than `n` keys and
//! pending is not empty, the first of pending leaves it and either becomes a new key in flight, or, where the key is
//! in flight already, lowers its score if it can and is absorbed (this takes no slot, so the loop goes on). The
//! answer is the first `n` in flight, old and new together, and they stay in flight until committed. With
//! *backwash*, everything in flight first goes back to pending by the same fold, so that the `n` lowest of all keys
//! are in flight afterwards. [`commit`](DirtySet::commit) takes keys out of flight and never touches pending: a key
//! that was dirtied again stays dirty. [`exchange`](DirtySet::exchange) is commit, then reserve. Nothing else
//! removes a key but [`withdraw`](DirtySet::withdraw), [`withdraw_pending`](DirtySet::withdraw_pending) and
//! [`clear`](DirtySet::clear).
//!
//! Scores are only ever lowered, so a key that is added again and again is not pushed back by it: with the offset of
//! the first write as score, the lowest score left is the partition's watermark. Values are folded in order of
//! arrival regardless of scores, because what is in flight always arrived before what is pending under the same
//! key.
//!
//! The behaviour is that of Ick (the Ruby gem `redis-ick`, 0.1.4), to the letter (`tests/it/ick_vectors.rs`
//! replays recordings of the original), without its Redis artefacts. Ours besides are the values, both kinds of
//! withdrawing, the lowest scores and the count of distinct keys.
//!
//! Trap: a commit has no token. A key that is dirtied while in flight, folded by a second reserve, and then committed
//! for the *first* round of work is lost. Work on what the *latest* reserve returned before committing it, or use
//! `exchange(n, the_last_batch)` alone, which commits before it folds.

use std::borrow::Borrow;
use std::hash::Hash;
use std::mem;

use ahash::RandomState;
use hashbrown::HashTable;
use slab::Slab;

use super::score_order::{self, ScoreOrder};

/// A folding queue with two-phase hand-out; see the top of this file.
///
/// `K` should be cheap to clone (a reference count). No operation copies a value, and none takes more than
/// O(log n) for each key that it adds, moves or returns.
///
/// Wherever two values meet, the caller's `merge(&key, &mut older, newer)` makes one of them, in order of arrival.
///
/// A key's values stay in one slot while it is dirty, in either set. Both orders lead to the slot, so a key is hashed
/// only on insertion and removal, and a value is moved no more often.
#[derive(Debug, Clone)]
pub struct DirtySet<K, V> {
    /// The slots by the hashes of their keys. Without the keys, so that it stays small enough for the CPU's caches.
    places: HashTable<usize>,
    /// Keyed at random: producers choose the keys.
    hasher: RandomState,
    slots: Slab<Slot<K, V>>,
    /// Dirty and not handed out (Ick: `pset`).
    pending: ScoreOrder<K>,
    /// Handed out and not committed (Ick: `cset`).
    in_flight: ScoreOrder<K>,
    /// How many keys are in both.
    in_both: usize,
    /// Whether anything was called since the start or the last [`DirtySet::clear`].
    exists: bool,
}

/// The content of a slot.
#[derive(Debug, Clone)]
struct Slot<K, V> {
    key: K,
    hash: u64,
    /// The older value.
    held: Held<V>,
    /// Whether that was handed out; otherwise it is pending.
    in_flight: bool,
    /// The newer value, pending while the other is in flight. Boxed, since it is rare.
    newer: Option<Box<Held<V>>>,
}

#[derive(Debug, Clone)]
struct Held<V> {
    score: i64,
    value: V,
}

impl<K, V> Slot<K, V> {
    fn pending(&self) -> Option<&Held<V>> {
        if self.in_flight { self.newer.as_deref() } else { Some(&self.held) }
    }

    fn in_flight(&self) -> Option<&Held<V>> {
        self.in_flight.then_some(&self.held)
    }
}

/// What [`DirtySet::add`] did to the pending set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// The key was not pending. It may well be in flight.
    New,
    /// The key was pending with a higher score, which was lowered.
    Lowered,
    /// The key was pending with this score or a lower one, which stays.
    Unchanged,
}

/// A dirty key in one of the two sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirtyEntry<'a, K, V> {
    /// The key.
    pub key: &'a K,
    /// The lowest score it was added with since it became dirty.
    pub score: i64,
    /// Its folded value.
    pub value: &'a V,
}

/// What [`DirtySet::exchange`] did.
#[derive(Debug)]
pub struct Exchanged<'a, K, V> {
    /// How many keys the commit took out of flight.
    pub committed: usize,
    /// What is handed out.
    pub batch: Entries<'a, K, V>,
}

/// Sizes and scores of both sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Of what is dirty and not handed out.
    pub pending: SetStats,
    /// Of what is handed out and not committed.
    pub in_flight: SetStats,
}

/// Size and scores of one set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetStats {
    /// Number of keys.
    pub size: usize,
    /// Lowest and highest score; `None` if empty.
    pub scores: Option<(i64, i64)>,
}

impl Stats {
    /// Both sets together. A key that is in both counts twice, as in the original; [`DirtySet::len`] counts it once.
    pub fn total(&self) -> SetStats {
        let scores = match (self.pending.scores, self.in_flight.scores) {
            (Some((low, high)), Some((other_low, other_high))) => {
                Some((low.min(other_low), high.max(other_high)))
            }
            (one, other) => one.or(other),
        };
        SetStats { size: self.pending.size + self.in_flight.size, scores }
    }
}

impl<K, V> Default for DirtySet<K, V> {
    fn default() -> Self {
        Self {
            places: HashTable::new(),
            hasher: RandomState::new(),
            slots: Slab::new(),
            pending: ScoreOrder::default(),
            in_flight: ScoreOrder::default(),
            in_both: 0,
            exists: false,
        }
    }
}

impl<K: Ord + Hash + Clone, V> DirtySet<K, V> {
    /// An empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Marks `key` as dirty since `score`, with `value` to do.
    ///
    /// If it is pending already, its value absorbs this one through `merge`, whether or not the score is lower.
    pub fn add(&mut self, key: K, score: i64, value: V, merge: impl FnOnce(&K, &mut V, V)) -> Added {
        self.exists = true;
        let hash = self.hasher.hash_one(&key);
        let Some(&place) = self.places.find(hash, |place| self.slots[*place].key == key) else {
            let held = Held { score, value };
            let slot = Slot { key: key.clone(), hash, held, in_flight: false, newer: None };
            let place = self.slots.insert(slot);
            self.places.insert_unique(hash, place, |place| self.slots[*place].hash);
            self.pending.insert(score, key, place);
            return Added::New;
        };
        let slot = &mut self.slots[place];
        let known = match &mut slot.newer {
            _ if !slot.in_flight => &mut slot.held,
            Some(newer) => &mut **newer,
            none => {
                *none = Some(Box::new(Held { score, value }));
                self.pending.insert(score, key, place);
                self.in_both += 1;
                return Added::New;
            }
        };
        merge(&key, &mut known.value, value);
        if lower(known, score, &key, &mut self.pending) { Added::Lowered } else { Added::Unchanged }
    }

    /// Tops what is in flight up to `n` keys and hands out the `n` lowest of them, lowest first.
    ///
    /// `n` is a target, not a number to move: what an earlier call handed out uncommitted is handed out
    /// again. More than `n` in flight stay there, unseen. With `backwash`, what is in flight competes with what is
    /// pending first, and the higher part goes back; the caller must then not commit what it did not get again.
    pub fn reserve(
        &mut self,
        n: usize,
        backwash: bool,
        mut merge: impl FnMut(&K, &mut V, V),
    ) -> Entries<'_, K, V> {
        self.exists = true;
        if backwash {
            self.wash_back(&mut merge);
        }
        while self.in_flight.len() < n
            && let Some((score, key, place)) = self.pending.pop_first()
        {
            let slot = &mut self.slots[place];
            match slot.newer.take() {
                None => {
                    slot.in_flight = true;
                    self.in_flight.insert(score, key, place);
                }
                Some(newer) => {
                    merge(&key, &mut slot.held.value, newer.value);
                    lower(&mut slot.held, score, &key, &mut self.in_flight);
                    self.in_both -= 1;
                }
            }
        }
        Entries { order: self.in_flight.iter().take(n), slots: &self.slots, held: Slot::in_flight }
    }

    /// Everything in flight goes back to pending.
    fn wash_back(&mut self, mut merge: impl FnMut(&K, &mut V, V)) {
        while let Some((score, key, place)) = self.in_flight.pop_first() {
            let slot = &mut self.slots[place];
            slot.in_flight = false;
            let Some(newer) = slot.newer.take() else {
                self.pending.insert(score, key, place);
                continue;
            };
            merge(&key, &mut slot.held.value, newer.value);
            slot.held.score = newer.score;
            lower(&mut slot.held, score, &key, &mut self.pending);
            self.in_both -= 1;
        }
    }

    /// Takes `keys` out of flight, done, and says how many were there. What is pending under them stays.
    pub fn commit<'a>(&mut self, keys: impl IntoIterator<Item = &'a K>) -> usize
    where
        K: 'a,
    {
        self.exists = true;
        keys.into_iter().filter_map(|key| self.commit_one(key)).count()
    }

    /// Takes `key` out of flight, done, and returns its value in flight.
    pub fn commit_one(&mut self, key: &K) -> Option<V> {
        self.exists = true;
        let hash = self.hasher.hash_one(key);
        let found = self.places.find_entry(hash, |place| self.slots[*place].key == *key).ok()?;
        let place = *found.get();
        let slot = &mut self.slots[place];
        if !slot.in_flight {
            return None;
        }
        self.in_flight.remove(slot.held.score, key);
        let done = match slot.newer.take() {
            None => {
                found.remove();
                self.slots.remove(place).held
            }
            Some(newer) => {
                slot.in_flight = false;
                self.in_both -= 1;
                mem::replace(&mut slot.held, *newer)
            }
        };
        Some(done.value)
    }

    /// [`commit`](Self::commit), then [`reserve`](Self::reserve): the consumer's whole loop.
    pub fn exchange<'a>(
        &mut self,
        n: usize,
        commit: impl IntoIterator<Item = &'a K>,
        backwash: bool,
        merge: impl FnMut(&K, &mut V, V),
    ) -> Exchanged<'_, K, V>
    where
        K: 'a,
    {
        let committed = self.commit(commit);
        Exchanged { committed, batch: self.reserve(n, backwash, merge) }
    }

    /// Takes `key` out of both sets: its lower score, and its values folded. For work that must wait outside for
    /// something else to happen; until it is added again, its score does not count in [`Self::lowest_score`].
    pub fn withdraw(&mut self, key: &K, merge: impl FnOnce(&K, &mut V, V)) -> Option<(i64, V)> {
        let Slot { key, held: Held { score, mut value }, in_flight, newer, .. } =
            self.remove(self.place(key)?);
        let order = if in_flight { &mut self.in_flight } else { &mut self.pending };
        order.remove(score, &key);
        let Some(newer) = newer else { return Some((score, value)) };
        self.in_both -= 1;
        merge(&key, &mut value, newer.value);
        self.pending.remove(newer.score, &key);
        Some((score.min(newer.score), value))
    }

    /// Takes what is pending under `key` out, and leaves what is in flight: its score and its value.
    pub fn withdraw_pending(&mut self, key: &K) -> Option<(i64, V)> {
        let place = self.place(key)?;
        let slot = &mut self.slots[place];
        let Held { score, value } = if slot.in_flight {
            let newer = slot.newer.take()?;
            self.in_both -= 1;
            *newer
        } else {
            self.remove(place).held
        };
        self.pending.remove(score, key);
        Some((score, value))
    }

    /// Forgets everything, work in flight too. Says how many of the three parts were there (any call at all since
    /// the last clear; a pending key; a key in flight), which is what the original's `del` returns.
    pub fn clear(&mut self) -> u8 {
        let parts =
            u8::from(self.exists) + u8::from(!self.pending.is_empty()) + u8::from(!self.in_flight.is_empty());
        *self = Self::default();
        parts
    }

    /// Sizes and scores; `None` if nothing but `stats` and `clear` was called since the last clear.
    pub fn stats(&self) -> Option<Stats> {
        self.exists.then(|| Stats { pending: stats(&self.pending), in_flight: stats(&self.in_flight) })
    }

    /// The lowest score of all that is not committed, pending or in flight: what the watermark must not pass.
    pub fn lowest_score(&self) -> Option<i64> {
        match (self.pending.lowest(), self.in_flight.lowest()) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// The lowest score that is pending.
    pub fn lowest_pending(&self) -> Option<i64> {
        self.pending.lowest()
    }

    /// Number of distinct keys that are dirty.
    pub fn len(&self) -> usize {
        self.pending_len() + self.in_flight_len() - self.in_both
    }

    /// Whether everything is committed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of keys that are pending (Ick: `pset_size`).
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// Number of keys in flight (Ick: `cset_size`).
    pub fn in_flight_len(&self) -> usize {
        self.in_flight.len()
    }

    /// What is pending under `key`.
    pub fn get_pending<Q>(&self, key: &Q) -> Option<DirtyEntry<'_, K, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.get(key, Slot::pending)
    }

    /// What is in flight under `key`.
    pub fn get_in_flight<Q>(&self, key: &Q) -> Option<DirtyEntry<'_, K, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.get(key, Slot::in_flight)
    }

    /// All that is pending, lowest first.
    pub fn pending(&self) -> Entries<'_, K, V> {
        Entries { order: self.pending.iter().take(usize::MAX), slots: &self.slots, held: Slot::pending }
    }

    /// All that is in flight, lowest first.
    pub fn in_flight(&self) -> Entries<'_, K, V> {
        Entries { order: self.in_flight.iter().take(usize::MAX), slots: &self.slots, held: Slot::in_flight }
    }

    fn place<Q>(&self, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.places.find(self.hasher.hash_one(key), |place| self.slots[*place].key.borrow() == key).copied()
    }

    /// Empties a slot that is in use.
    fn remove(&mut self, place: usize) -> Slot<K, V> {
        let slot = self.slots.remove(place);
        if let Ok(found) = self.places.find_entry(slot.hash, |other| *other == place) {
            found.remove();
        }
        slot
    }

    fn get<Q>(&self, key: &Q, held: fn(&Slot<K, V>) -> Option<&Held<V>>) -> Option<DirtyEntry<'_, K, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let slot = &self.slots[self.place(key)?];
        let Held { score, value } = held(slot)?;
        Some(DirtyEntry { key: &slot.key, score: *score, value })
    }
}

/// Lowers a score and the place in its order, if `score` is lower; says whether it was.
fn lower<K: Ord + Clone, V>(held: &mut Held<V>, score: i64, key: &K, order: &mut ScoreOrder<K>) -> bool {
    if score >= held.score {
        return false;
    }
    if let Some(slot) = order.remove(mem::replace(&mut held.score, score), key) {
        order.insert(score, key.clone(), slot);
    }
    true
}

fn stats<K: Ord + Clone>(order: &ScoreOrder<K>) -> SetStats {
    SetStats { size: order.len(), scores: order.lowest().zip(order.highest()) }
}

/// Entries of one set, ascending by (score, key).
#[derive(Debug)]
pub struct Entries<'a, K, V> {
    order: std::iter::Take<score_order::Iter<'a, K>>,
    slots: &'a Slab<Slot<K, V>>,
    held: fn(&Slot<K, V>) -> Option<&Held<V>>,
}

impl<'a, K: Ord, V> Iterator for Entries<'a, K, V> {
    type Item = DirtyEntry<'a, K, V>;

    fn next(&mut self) -> Option<Self::Item> {
        let (score, key, place) = self.order.next()?;
        let Held { value, .. } = (self.held)(&self.slots[place])?;
        Some(DirtyEntry { key, score, value })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.order.size_hint()
    }
}

impl<K: Ord, V> ExactSizeIterator for Entries<'_, K, V> {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys to the numbers of the records that were folded under them.
    type Set = DirtySet<&'static str, Vec<u32>>;

    fn concat(_: &&'static str, older: &mut Vec<u32>, mut newer: Vec<u32>) {
        older.append(&mut newer);
    }

    fn add(set: &mut Set, key: &'static str, score: i64, record: u32) -> Added {
        set.add(key, score, vec![record], concat)
    }

    fn list<'a>(entries: Entries<'a, &'static str, Vec<u32>>) -> Vec<(&'static str, i64, Vec<u32>)> {
        entries.map(|entry| (*entry.key, entry.score, entry.value.clone())).collect()
    }

    #[test]
    fn score_is_only_lowered_and_every_value_is_folded() {
        let mut set = Set::new();
        assert_eq!(add(&mut set, "a", 5, 1), Added::New);
        assert_eq!(add(&mut set, "a", 3, 2), Added::Lowered);
        assert_eq!(add(&mut set, "a", 4, 3), Added::Unchanged);
        assert_eq!(add(&mut set, "a", 3, 4), Added::Unchanged);
        assert_eq!(list(set.pending()), [("a", 3, vec![1, 2, 3, 4])]);
        assert_eq!(set.get_pending("a").map(|entry| entry.score), Some(3));
        assert_eq!(set.get_in_flight("a"), None);
    }

    #[test]
    fn ties_in_score_follow_byte_order_of_keys() {
        let mut set = Set::new();
        for key in ["2", "10", "a", "B", "", "\u{1F600}", "\u{FFEE}"] {
            add(&mut set, key, 7, 0);
        }
        let order: Vec<_> = set.reserve(100, false, concat).map(|entry| *entry.key).collect();
        assert_eq!(order, ["", "10", "2", "B", "a", "\u{FFEE}", "\u{1F600}"]);
    }

    #[test]
    fn many_keys_are_kept_apart() {
        let mut set: DirtySet<i64, i64> = DirtySet::new();
        let keep = |_: &i64, _: &mut i64, newer: i64| panic!("{newer} is the only value of its key");
        for key in 0..1_000 {
            assert_eq!(set.add(key, key, -key, keep), Added::New);
        }
        assert_eq!(set.reserve(1_000, false, keep).len(), 1_000);
        for key in (0..1_000).step_by(2) {
            assert_eq!(set.commit_one(&key), Some(-key));
        }
        let rest: Vec<_> = set.in_flight().map(|entry| (*entry.key, *entry.value)).collect();
        assert_eq!(rest, (0..1_000).skip(1).step_by(2).map(|key| (key, -key)).collect::<Vec<_>>());
        assert_eq!(
            (set.get_in_flight(&4), set.get_in_flight(&5).map(|entry| *entry.value)),
            (None, Some(-5))
        );
    }

    #[test]
    fn key_dirtied_in_flight_survives_the_commit() {
        let mut set = Set::new();
        add(&mut set, "a", 5, 1);
        set.reserve(1, false, concat);
        assert_eq!(add(&mut set, "a", 9, 2), Added::New);
        assert_eq!((set.len(), set.pending_len(), set.in_flight_len()), (1, 1, 1));
        assert_eq!(set.lowest_score(), Some(5));
        assert_eq!(set.commit([&"a"]), 1);
        assert_eq!(list(set.pending()), [("a", 9, vec![2])]);
        assert_eq!((set.len(), set.lowest_score(), set.lowest_pending()), (1, Some(9), Some(9)));
    }

    #[test]
    fn commit_of_work_from_before_a_fold_loses_the_fold() {
        let mut set = Set::new();
        add(&mut set, "a", 1, 1);
        set.reserve(2, false, concat);
        add(&mut set, "a", 2, 2);
        assert_eq!(list(set.reserve(2, false, concat)), [("a", 1, vec![1, 2])]);
        set.commit([&"a"]);
        assert!(set.is_empty());
    }

    #[test]
    fn exchange_commits_before_it_folds_and_loses_nothing() {
        let mut set = Set::new();
        add(&mut set, "a", 1, 1);
        set.reserve(2, false, concat);
        add(&mut set, "a", 2, 2);
        let exchanged = set.exchange(2, [&"a"], false, concat);
        assert_eq!((exchanged.committed, list(exchanged.batch)), (1, vec![("a", 2, vec![2])]));
    }

    #[test]
    fn late_or_repeated_commit_removes_what_is_in_flight() {
        let mut set = Set::new();
        add(&mut set, "a", 1, 1);
        set.reserve(1, false, concat);
        add(&mut set, "a", 2, 2);
        assert_eq!(set.exchange(1, [&"a"], false, concat).batch.len(), 1);
        assert_eq!(set.commit([&"a", &"a"]), 1);
        assert!(set.is_empty());
    }

    #[test]
    fn uncommitted_keys_keep_their_slots() {
        let mut set = Set::new();
        for (key, score) in [("bad", 1), ("worse", 2), ("good", 3)] {
            add(&mut set, key, score, 0);
        }
        for _ in 0..3 {
            let handed_out: Vec<_> = set.reserve(2, false, concat).map(|entry| *entry.key).collect();
            assert_eq!(handed_out, ["bad", "worse"]);
        }
        assert_eq!(set.pending_len(), 1);
    }

    #[test]
    fn smaller_batch_hides_the_rest_and_backwash_returns_it() {
        let mut set = Set::new();
        for (key, score) in [("a", 1), ("b", 2), ("c", 3)] {
            add(&mut set, key, score, 0);
        }
        set.reserve(3, false, concat);
        assert_eq!(set.reserve(1, false, concat).len(), 1);
        assert_eq!(set.in_flight_len(), 3);
        assert_eq!(set.reserve(1, true, concat).len(), 1);
        assert_eq!((set.in_flight_len(), set.pending_len()), (1, 2));
        assert_eq!(set.reserve(0, true, concat).len(), 0);
        assert_eq!((set.in_flight_len(), set.pending_len()), (0, 3));
    }

    #[test]
    fn low_score_does_not_overtake_keys_in_flight() {
        let mut set = Set::new();
        add(&mut set, "high", 10, 1);
        set.reserve(1, false, concat);
        add(&mut set, "low", 1, 2);
        assert_eq!(list(set.reserve(1, false, concat)), [("high", 10, vec![1])]);
        assert_eq!(list(set.reserve(1, true, concat)), [("low", 1, vec![2])]);
        assert_eq!(list(set.pending()), [("high", 10, vec![1])]);
    }

    #[test]
    fn folds_take_no_slot_and_keep_the_earliest_score() {
        let mut set = Set::new();
        add(&mut set, "a", 5, 1);
        set.reserve(1, false, concat);
        for (key, score, record) in [("a", 2, 2), ("b", 7, 3), ("c", 8, 4)] {
            add(&mut set, key, score, record);
        }
        assert_eq!(list(set.reserve(2, false, concat)), [("a", 2, vec![1, 2]), ("b", 7, vec![3])]);
        assert_eq!(set.len(), 3);
    }

    #[test]
    fn backwash_folds_values_in_order_of_arrival() {
        let mut set = Set::new();
        add(&mut set, "a", 9, 1);
        set.reserve(1, false, concat);
        add(&mut set, "a", 3, 2);
        add(&mut set, "b", 1, 3);
        assert_eq!(list(set.reserve(1, true, concat)), [("b", 1, vec![3])]);
        assert_eq!(list(set.pending()), [("a", 3, vec![1, 2])]);
    }

    #[test]
    fn repeatedly_added_key_keeps_its_place() {
        let mut set = Set::new();
        add(&mut set, "hot", 1, 0);
        for offset in 2..100 {
            add(&mut set, "other", offset, 0);
            add(&mut set, "hot", offset, 0);
        }
        assert_eq!(set.reserve(1, false, concat).next().map(|entry| *entry.key), Some("hot"));
    }

    #[test]
    fn withdrawn_key_leaves_both_sets_folded() {
        let mut set = Set::new();
        add(&mut set, "a", 5, 1);
        add(&mut set, "b", 6, 2);
        set.reserve(1, false, concat);
        add(&mut set, "a", 8, 3);
        assert_eq!(set.withdraw(&"a", concat), Some((5, vec![1, 3])));
        assert_eq!(set.withdraw(&"a", concat), None);
        assert_eq!((set.len(), set.lowest_score()), (1, Some(6)));
        assert_eq!(set.withdraw(&"b", concat), Some((6, vec![2])));
        assert!(set.is_empty());
    }

    #[test]
    fn clear_counts_the_parts_that_existed() {
        let mut set = Set::new();
        assert_eq!((set.clear(), set.stats()), (0, None));
        assert_eq!(set.commit([]), 0);
        let empty = SetStats { size: 0, scores: None };
        assert_eq!(set.stats(), Some(Stats { pending: empty, in_flight: empty }));
        assert_eq!(set.clear(), 1);
        add(&mut set, "a", 1, 1);
        set.reserve(1, false, concat);
        add(&mut set, "a", 4, 2);
        let total = set.stats().map(|stats| stats.total());
        assert_eq!(total, Some(SetStats { size: 2, scores: Some((1, 4)) }));
        assert_eq!((set.clear(), set.len(), set.stats()), (3, 0, None));
    }
}
