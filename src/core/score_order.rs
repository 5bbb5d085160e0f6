//! Keys in order of their scores, for the dirty set: a sorted map in which it costs least to add the highest and to take the lowest.
//!
//! Nearly every key comes with the highest score, the offset of the record just read, and leaves with the lowest. Such keys are in a
//! queue, where neither needs a search. The others are in a tree beside it. A key that leaves from the middle of the queue is only
//! marked; the marks go before they are the larger part. So no operation takes more than O(log n), averaged over all of them.

use std::collections::{BTreeMap, VecDeque, btree_map, vec_deque};
use std::iter::Peekable;
use std::mem;

/// In place of the slot of a key that has left.
const LEFT: usize = usize::MAX;

/// An empty queue keeps the memory of so many keys at most.
const MAX_KEPT: usize = 4_096;

/// Keys by score, each with its slot. No key is there twice with the same score.
#[derive(Debug, Clone)]
pub(super) struct ScoreOrder<K> {
    /// Ascending by score and key. Neither its first nor its last key has left.
    queue: VecDeque<Queued<K>>,
    /// How many keys of the queue have left.
    left: usize,
    /// Keys that came with a score below the queue's last.
    tree: BTreeMap<(i64, K), usize>,
}

#[derive(Debug, Clone)]
struct Queued<K> {
    score: i64,
    key: K,
    slot: usize,
}

impl<K> Queued<K> {
    fn has_left(&self) -> bool {
        self.slot == LEFT
    }

    fn place(&self) -> (i64, &K) {
        (self.score, &self.key)
    }
}

impl<K> Default for ScoreOrder<K> {
    fn default() -> Self {
        Self { queue: VecDeque::new(), left: 0, tree: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> ScoreOrder<K> {
    pub(super) fn insert(&mut self, score: i64, key: K, slot: usize) {
        debug_assert_ne!(slot, LEFT, "there is no such slot");
        match self.queue.back() {
            Some(last) if last.place() >= (score, &key) => {
                self.tree.insert((score, key), slot);
            }
            _ => self.queue.push_back(Queued { score, key, slot }),
        }
    }

    /// Removes a key with this score. Returns its slot.
    pub(super) fn remove(&mut self, score: i64, key: &K) -> Option<usize> {
        let place = (score, key);
        if let Some(first) = self.queue.pop_front_if(|first| first.place() == place) {
            self.trim();
            return Some(first.slot);
        }
        let number = self.queue.binary_search_by(|queued| queued.place().cmp(&place));
        match number.ok().and_then(|number| self.queue.get_mut(number)).filter(|queued| !queued.has_left()) {
            Some(queued) => {
                let slot = mem::replace(&mut queued.slot, LEFT);
                self.left += 1;
                self.trim();
                Some(slot)
            }
            None => self.tree.remove(&(score, key.clone())),
        }
    }

    /// Removes the first key.
    pub(super) fn pop_first(&mut self) -> Option<(i64, K, usize)> {
        let is_queued = match (self.queue.front(), self.tree.first_key_value()) {
            (Some(queued), Some(((score, key), _))) => queued.place() < (*score, key),
            (queued, _) => queued.is_some(),
        };
        if !is_queued {
            return self.tree.pop_first().map(|((score, key), slot)| (score, key, slot));
        }
        let Queued { score, key, slot } = self.queue.pop_front()?;
        self.trim();
        Some((score, key, slot))
    }

    /// Removes marks from both ends of the queue, and all before they are the larger part.
    fn trim(&mut self) {
        if self.left > 0 {
            while self.queue.pop_front_if(|queued| queued.has_left()).is_some() {
                self.left -= 1;
            }
            while self.queue.pop_back_if(|queued| queued.has_left()).is_some() {
                self.left -= 1;
            }
            if self.left > self.queue.len() / 2 {
                self.queue.retain(|queued| !queued.has_left());
                self.left = 0;
            }
        }
        if self.queue.is_empty() && self.queue.capacity() > MAX_KEPT {
            self.queue = VecDeque::new();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len() - self.left + self.tree.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn lowest(&self) -> Option<i64> {
        let in_tree = self.tree.first_key_value().map(|((score, _), _)| *score);
        let queued = self.queue.front().map(|queued| queued.score);
        in_tree.into_iter().chain(queued).min()
    }

    pub(super) fn highest(&self) -> Option<i64> {
        let in_tree = self.tree.last_key_value().map(|((score, _), _)| *score);
        let queued = self.queue.back().map(|queued| queued.score);
        in_tree.max(queued)
    }

    /// All keys, ascending by score and key, each with its score and slot.
    pub(super) fn iter(&self) -> Iter<'_, K> {
        Iter { queue: self.queue.iter().peekable(), tree: self.tree.iter().peekable(), rest: self.len() }
    }
}

/// See [`ScoreOrder::iter`].
#[derive(Debug)]
pub(super) struct Iter<'a, K> {
    queue: Peekable<vec_deque::Iter<'a, Queued<K>>>,
    tree: Peekable<btree_map::Iter<'a, (i64, K), usize>>,
    rest: usize,
}

impl<'a, K: Ord> Iterator for Iter<'a, K> {
    type Item = (i64, &'a K, usize);

    fn next(&mut self) -> Option<Self::Item> {
        while self.queue.next_if(|queued| queued.has_left()).is_some() {}
        self.rest = self.rest.saturating_sub(1);
        let is_queued = match (self.queue.peek(), self.tree.peek()) {
            (Some(queued), Some(((score, key), _))) => queued.place() < (*score, key),
            (queued, _) => queued.is_some(),
        };
        if !is_queued {
            return self.tree.next().map(|((score, key), slot)| (*score, key, *slot));
        }
        self.queue.next().map(|Queued { score, key, slot }| (*score, key, *slot))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.rest, Some(self.rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;

    type Model = BTreeMap<(i64, u64), usize>;

    fn assert_same(order: &ScoreOrder<u64>, model: &Model, seed: u64) {
        let scores = |place: Option<(&(i64, u64), _)>| place.map(|((score, _), _)| *score);
        assert_eq!((order.len(), order.is_empty()), (model.len(), model.is_empty()), "seed {seed}");
        assert_eq!(order.lowest(), scores(model.first_key_value()), "seed {seed}");
        assert_eq!(order.highest(), scores(model.last_key_value()), "seed {seed}");
        assert_eq!(order.iter().size_hint(), (model.len(), Some(model.len())), "seed {seed}");
        let all: Vec<_> = order.iter().map(|(score, key, slot)| ((score, *key), slot)).collect();
        assert_eq!(all, model.iter().map(|(place, slot)| (*place, *slot)).collect::<Vec<_>>(), "seed {seed}");
    }

    #[test]
    fn order_is_that_of_a_sorted_map() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let (mut order, mut model) = (ScoreOrder::default(), Model::new());
            let mut next = 0;
            for slot in 0..2_000 {
                match random.below(8) {
                    0..=2 => {
                        // As a rule the highest; equal scores, and ones that were there before.
                        next += i64::try_from(random.below(2)).unwrap();
                        let below = if random.below(4) == 0 { random.below(20) } else { 0 };
                        let place = (next - i64::try_from(below).unwrap(), random.below(5));
                        if model.insert(place, slot).is_none() {
                            order.insert(place.0, place.1, slot);
                        } else {
                            assert!(order.remove(place.0, &place.1).is_some(), "seed {seed}");
                            order.insert(place.0, place.1, slot);
                        }
                    }
                    3..=4 => {
                        let popped = order.pop_first().map(|(score, key, slot)| ((score, key), slot));
                        assert_eq!(popped, model.pop_first(), "seed {seed}");
                    }
                    5..=6 => {
                        let number = usize::try_from(random.below(1 + model.len() as u64)).unwrap();
                        let Some(place) = model.keys().nth(number).copied() else { continue };
                        assert_eq!(order.remove(place.0, &place.1), model.remove(&place), "seed {seed}");
                    }
                    _ => assert_eq!(order.remove(next + 1, &0), None, "seed {seed}"),
                }
                assert_same(&order, &model, seed);
            }
        }
    }

    #[test]
    fn keys_that_left_do_not_add_up_behind_one_that_stays() {
        let mut order = ScoreOrder::default();
        order.insert(0, "stays", 0);
        // Ascending keys: what comes out of order is not queued.
        for score in 1..10_000 {
            order.insert(score, "leaves", 1);
            order.insert(score, "remains", 2);
            assert_eq!(order.remove(score, &"leaves"), Some(1));
            if score > 1 {
                assert_eq!(order.remove(score - 1, &"remains"), Some(2));
            }
            assert!(order.queue.len() <= 8, "{}", order.queue.len());
        }
        assert_eq!(order.len(), 2);
    }

    #[test]
    fn memory_of_a_backlog_is_returned_once_it_is_gone() {
        let mut order = ScoreOrder::default();
        (0..100_000).for_each(|score| order.insert(score, (), 0));
        assert!(order.queue.capacity() >= 100_000);
        while order.pop_first().is_some() {}
        assert!(order.queue.capacity() <= MAX_KEPT);
    }
}
