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
//! removes a key but [`withdraw`](DirtySet::withdraw) and [`clear`](DirtySet::clear).
//!
//! Scores are only ever lowered, so a key that is added again and again is not pushed back by it: with the offset of
//! the first write as score, the lowest score left is the partition's watermark. Values are folded in order of
//! arrival whatever the scores say, because what is in flight always arrived before what is pending under the same
//! key.
//!
//! The behaviour is that of Ick (the Ruby gem `redis-ick`, 0.1.4), to the letter (`tests/ick_vectors.rs`
//! replays recordings of the original), without its Redis artefacts. Ours besides are the values, `withdraw`, the
//! lowest scores and the count of distinct keys.
//!
//! Trap: a commit has no token. A key that is dirtied while in flight, folded by a second reserve, and then committed
//! for the *first* round of work is lost. Work on what the *latest* reserve returned before committing it, or use
//! `exchange(n, the_last_batch)` alone, which commits before it folds.

use std::borrow::Borrow;
use std::collections::btree_set;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::mem;

use ahash::RandomState;

/// A folding queue with two-phase hand-out; see the top of this file.
///
/// `K` should be cheap to clone (a reference count). No operation copies a value, and none takes more than
/// O(log n) for each key that it adds, moves or returns.
///
/// Wherever two values meet, the caller's `merge(&key, &mut older, newer)` makes one of them, in order of arrival.
#[derive(Debug, Clone)]
pub struct DirtySet<K, V> {
    /// Dirty and not handed out (Ick: `pset`).
    pending: ScoredSet<K, V>,
    /// Handed out and not committed (Ick: `cset`).
    in_flight: ScoredSet<K, V>,
    /// How many keys are in both.
    in_both: usize,
    /// Whether anything was called since the start or the last [`DirtySet::clear`].
    exists: bool,
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

/// One key that is dirty, as it stands in one of the two sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a, K, V> {
    /// The key.
    pub key: &'a K,
    /// The lowest score it was added with since it became dirty.
    pub score: i64,
    /// What was added under it, folded.
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

/// Sizes and scores of a dirty set.
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
        Self { pending: ScoredSet::default(), in_flight: ScoredSet::default(), in_both: 0, exists: false }
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
        let in_flight = self.in_flight.contains(&key);
        let added = self.pending.put(key, score, value, merge);
        if added == Added::New && in_flight {
            self.in_both += 1;
        }
        added
    }

    /// Tops what is in flight up to `n` keys and hands out the `n` lowest of them, lowest first.
    ///
    /// `n` is a target, not a number to move: what an earlier call handed out and nobody committed is handed out
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
            let folds = self.in_flight.drain_into(&mut self.pending, usize::MAX, |key, held, older| {
                let newer = mem::replace(held, older);
                merge(key, held, newer);
            });
            self.in_both -= folds;
        }
        let folds = self.pending.drain_into(&mut self.in_flight, n, merge);
        self.in_both -= folds;
        self.in_flight.first(n)
    }

    /// Takes `keys` out of flight, done, and says how many were there. What is pending under them stays.
    pub fn commit<'a>(&mut self, keys: impl IntoIterator<Item = &'a K>) -> usize
    where
        K: 'a,
    {
        self.exists = true;
        let mut committed = 0;
        for key in keys {
            if self.in_flight.remove(key).is_some() {
                committed += 1;
                self.in_both -= usize::from(self.pending.contains(key));
            }
        }
        committed
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
        match (self.in_flight.remove(key), self.pending.remove(key)) {
            (Some((score, mut older)), Some((newer_score, newer))) => {
                self.in_both -= 1;
                merge(key, &mut older, newer);
                Some((score.min(newer_score), older))
            }
            (one, other) => one.or(other),
        }
    }

    /// Forgets everything, work in flight too. Says how many of the three parts were there (any call at all since
    /// the last clear; a pending key; a key in flight), which is what the original's `del` returns.
    pub fn clear(&mut self) -> u8 {
        let parts = u8::from(self.exists)
            + u8::from(!self.pending.order.is_empty())
            + u8::from(!self.in_flight.order.is_empty());
        *self = Self::default();
        parts
    }

    /// Sizes and scores; `None` if nothing but `stats` and `clear` was called since the last clear.
    pub fn stats(&self) -> Option<Stats> {
        self.exists.then(|| Stats { pending: self.pending.stats(), in_flight: self.in_flight.stats() })
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
        self.pending.order.len()
    }

    /// Number of keys in flight (Ick: `cset_size`).
    pub fn in_flight_len(&self) -> usize {
        self.in_flight.order.len()
    }

    /// What is pending under `key`.
    pub fn get_pending<Q>(&self, key: &Q) -> Option<Entry<'_, K, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.pending.get(key)
    }

    /// What is in flight under `key`.
    pub fn get_in_flight<Q>(&self, key: &Q) -> Option<Entry<'_, K, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.in_flight.get(key)
    }

    /// All that is pending, lowest first.
    pub fn pending(&self) -> Entries<'_, K, V> {
        self.pending.first(usize::MAX)
    }

    /// All that is in flight, lowest first.
    pub fn in_flight(&self) -> Entries<'_, K, V> {
        self.in_flight.first(usize::MAX)
    }
}

/// Entries of one set, ascending by (score, key).
#[derive(Debug)]
pub struct Entries<'a, K, V> {
    order: std::iter::Take<btree_set::Iter<'a, (i64, K)>>,
    values: &'a HashMap<K, (i64, V), RandomState>,
}

impl<'a, K: Hash + Eq, V> Iterator for Entries<'a, K, V> {
    type Item = Entry<'a, K, V>;

    fn next(&mut self) -> Option<Self::Item> {
        let (score, key) = self.order.next()?;
        let (_, value) = &self.values[key];
        Some(Entry { key, score: *score, value })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.order.size_hint()
    }
}

impl<K: Hash + Eq, V> ExactSizeIterator for Entries<'_, K, V> {}

/// Keys by score, and values by key. Both parts hold the same keys with the same scores.
#[derive(Debug, Clone)]
struct ScoredSet<K, V> {
    order: BTreeSet<(i64, K)>,
    /// The hash is keyed at random: whoever writes to the topic chooses the keys.
    values: HashMap<K, (i64, V), RandomState>,
}

impl<K, V> Default for ScoredSet<K, V> {
    fn default() -> Self {
        Self { order: BTreeSet::new(), values: HashMap::default() }
    }
}

impl<K: Ord + Hash + Clone, V> ScoredSet<K, V> {
    /// Inserts, or lowers the score and merges `value` into the one that is there.
    fn put(&mut self, key: K, score: i64, value: V, merge: impl FnOnce(&K, &mut V, V)) -> Added {
        let Some((known_score, known)) = self.values.get_mut(&key) else {
            self.order.insert((score, key.clone()));
            self.values.insert(key, (score, value));
            return Added::New;
        };
        merge(&key, known, value);
        if score >= *known_score {
            return Added::Unchanged;
        }
        let mut place = (mem::replace(known_score, score), key);
        self.order.remove(&place);
        place.0 = score;
        self.order.insert(place);
        Added::Lowered
    }

    /// Moves entries, lowest first, until `target` holds `cap` keys or nothing is left here. Says how many were
    /// folded into a key that `target` held already.
    fn drain_into(&mut self, target: &mut Self, cap: usize, mut merge: impl FnMut(&K, &mut V, V)) -> usize {
        let mut folds = 0;
        while target.order.len() < cap
            && let Some((score, key)) = self.order.pop_first()
            && let Some((_, value)) = self.values.remove(&key)
        {
            if target.put(key, score, value, &mut merge) != Added::New {
                folds += 1;
            }
        }
        folds
    }

    fn remove(&mut self, key: &K) -> Option<(i64, V)> {
        let (key, (score, value)) = self.values.remove_entry(key)?;
        self.order.remove(&(score, key));
        Some((score, value))
    }

    fn contains(&self, key: &K) -> bool {
        self.values.contains_key(key)
    }

    fn get<Q>(&self, key: &Q) -> Option<Entry<'_, K, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.values.get_key_value(key).map(|(key, (score, value))| Entry { key, score: *score, value })
    }

    fn first(&self, n: usize) -> Entries<'_, K, V> {
        Entries { order: self.order.iter().take(n), values: &self.values }
    }

    fn lowest(&self) -> Option<i64> {
        self.order.first().map(|(score, _)| *score)
    }

    fn stats(&self) -> SetStats {
        let highest = self.order.last().map(|(score, _)| *score);
        SetStats { size: self.order.len(), scores: self.lowest().zip(highest) }
    }
}

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
    fn a_score_is_only_ever_lowered_but_every_added_value_is_folded() {
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
    fn ties_in_score_are_handed_out_in_byte_order_of_keys() {
        let mut set = Set::new();
        for key in ["2", "10", "a", "B", "", "\u{1F600}", "\u{FFEE}"] {
            add(&mut set, key, 7, 0);
        }
        let order: Vec<_> = set.reserve(100, false, concat).map(|entry| *entry.key).collect();
        assert_eq!(order, ["", "10", "2", "B", "a", "\u{FFEE}", "\u{1F600}"]);
    }

    #[test]
    fn a_key_dirtied_while_in_flight_is_new_whatever_its_score_and_survives_the_commit() {
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
    fn a_mark_folded_into_a_key_in_flight_is_lost_if_work_done_before_the_fold_is_committed() {
        let mut set = Set::new();
        add(&mut set, "a", 1, 1);
        set.reserve(2, false, concat);
        add(&mut set, "a", 2, 2);
        assert_eq!(list(set.reserve(2, false, concat)), [("a", 1, vec![1, 2])]);
        set.commit([&"a"]);
        assert!(set.is_empty());
    }

    #[test]
    fn exchanging_the_last_batch_commits_before_it_folds_and_loses_nothing() {
        let mut set = Set::new();
        add(&mut set, "a", 1, 1);
        set.reserve(2, false, concat);
        add(&mut set, "a", 2, 2);
        let exchanged = set.exchange(2, [&"a"], false, concat);
        assert_eq!((exchanged.committed, list(exchanged.batch)), (1, vec![("a", 2, vec![2])]));
    }

    #[test]
    fn a_late_or_doubled_commit_removes_whatever_is_in_flight_under_that_key() {
        let mut set = Set::new();
        add(&mut set, "a", 1, 1);
        set.reserve(1, false, concat);
        add(&mut set, "a", 2, 2);
        assert_eq!(set.exchange(1, [&"a"], false, concat).batch.len(), 1);
        assert_eq!(set.commit([&"a", &"a"]), 1);
        assert!(set.is_empty());
    }

    #[test]
    fn keys_that_are_never_committed_keep_their_slots() {
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
    fn a_smaller_batch_hides_the_rest_in_flight_and_backwash_sends_it_back() {
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
    fn a_low_score_does_not_overtake_what_is_in_flight_without_backwash() {
        let mut set = Set::new();
        add(&mut set, "high", 10, 1);
        set.reserve(1, false, concat);
        add(&mut set, "low", 1, 2);
        assert_eq!(list(set.reserve(1, false, concat)), [("high", 10, vec![1])]);
        assert_eq!(list(set.reserve(1, true, concat)), [("low", 1, vec![2])]);
        assert_eq!(list(set.pending()), [("high", 10, vec![1])]);
    }

    #[test]
    fn folds_take_no_slot_and_hand_out_the_earliest_score() {
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
    fn backwash_keeps_values_in_order_of_arrival_against_the_order_of_scores() {
        let mut set = Set::new();
        add(&mut set, "a", 9, 1);
        set.reserve(1, false, concat);
        add(&mut set, "a", 3, 2);
        add(&mut set, "b", 1, 3);
        assert_eq!(list(set.reserve(1, true, concat)), [("b", 1, vec![3])]);
        assert_eq!(list(set.pending()), [("a", 3, vec![1, 2])]);
    }

    #[test]
    fn a_key_added_again_and_again_is_not_pushed_back_by_it() {
        let mut set = Set::new();
        add(&mut set, "hot", 1, 0);
        for offset in 2..100 {
            add(&mut set, "other", offset, 0);
            add(&mut set, "hot", offset, 0);
        }
        assert_eq!(set.reserve(1, false, concat).next().map(|entry| *entry.key), Some("hot"));
    }

    #[test]
    fn a_withdrawn_key_leaves_both_sets_with_its_lower_score_and_its_values_in_order() {
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
    fn clear_counts_the_parts_that_were_there() {
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
