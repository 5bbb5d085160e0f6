//! The dirty set against a model so plain that it can be checked by eye: two ordered maps and the fold loop.

use std::collections::BTreeMap;

use geofold::core::dirty_set::{Added, DirtySet, Entries};
use proptest::prelude::*;

type Key = u8;
/// Numbers of the records that were folded, oldest first.
type Records = Vec<u32>;
type Listed = Vec<(Key, i64, Records)>;

#[derive(Debug, Clone, Default)]
struct Model {
    pset: BTreeMap<Key, (i64, Records)>,
    cset: BTreeMap<Key, (i64, Records)>,
}

fn ordered(set: &BTreeMap<Key, (i64, Records)>) -> Listed {
    let mut list: Listed =
        set.iter().map(|(key, (score, records))| (*key, *score, records.clone())).collect();
    list.sort_by_key(|(key, score, _)| (*score, *key));
    list
}

impl Model {
    fn add(&mut self, key: Key, score: i64, record: u32) -> Added {
        let Some((known, records)) = self.pset.get_mut(&key) else {
            self.pset.insert(key, (score, vec![record]));
            return Added::New;
        };
        records.push(record);
        if score < *known {
            *known = score;
            return Added::Lowered;
        }
        Added::Unchanged
    }

    fn reserve(&mut self, n: usize, backwash: bool) -> Listed {
        if backwash {
            for (key, (score, mut records)) in std::mem::take(&mut self.cset) {
                let (newer_score, newer) = self.pset.remove(&key).unwrap_or((score, vec![]));
                records.extend(newer);
                self.pset.insert(key, (score.min(newer_score), records));
            }
        }
        while self.cset.len() < n && !self.pset.is_empty() {
            let (key, score, records) = ordered(&self.pset).swap_remove(0);
            self.pset.remove(&key);
            let (known, older) = self.cset.entry(key).or_insert((score, vec![]));
            *known = score.min(*known);
            older.extend(records);
        }
        ordered(&self.cset).into_iter().take(n).collect()
    }

    fn commit(&mut self, keys: &[Key]) -> usize {
        keys.iter().filter(|key| self.cset.remove(key).is_some()).count()
    }

    fn withdraw(&mut self, key: Key) -> Option<(i64, Records)> {
        let both = [self.cset.remove(&key), self.pset.remove(&key)];
        both.into_iter()
            .flatten()
            .reduce(|(score, older), (newer_score, newer)| (score.min(newer_score), [older, newer].concat()))
    }

    fn lowest_scores(&self) -> BTreeMap<Key, i64> {
        let mut lowest = BTreeMap::new();
        for (key, (score, _)) in self.pset.iter().chain(&self.cset) {
            let known = lowest.entry(*key).or_insert(*score);
            *known = (*known).min(*score);
        }
        lowest
    }
}

fn list(entries: Entries<'_, Key, Records>) -> Listed {
    assert_eq!(entries.len(), entries.size_hint().0);
    entries.map(|entry| (*entry.key, entry.score, entry.value.clone())).collect()
}

fn concat(_: &Key, older: &mut Records, mut newer: Records) {
    older.append(&mut newer);
}

#[derive(Debug, Clone)]
enum Op {
    Add(Key, i64),
    Reserve(usize, bool),
    Commit(Vec<Key>),
    Exchange(usize, Vec<Key>, bool),
    Withdraw(Key),
    WithdrawPending(Key),
    Clear,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let key = 0..10_u8;
    let n = prop_oneof![8 => 0..8_usize, 1 => Just(usize::MAX)];
    let keys = prop::collection::vec(key.clone(), 0..8);
    let op = prop_oneof![
        12 => (key.clone(), -4..12_i64).prop_map(|(key, score)| Op::Add(key, score)),
        4 => (n.clone(), any::<bool>()).prop_map(|(n, backwash)| Op::Reserve(n, backwash)),
        2 => keys.clone().prop_map(Op::Commit),
        4 => (n, keys, any::<bool>()).prop_map(|(n, keys, backwash)| Op::Exchange(n, keys, backwash)),
        1 => key.clone().prop_map(Op::Withdraw),
        1 => key.prop_map(Op::WithdrawPending),
        1 => Just(Op::Clear),
    ];
    prop::collection::vec(op, 0..60)
}

/// Reserves in both, compares the replies, and asserts what holds of every reserve.
fn reserve(
    set: &mut DirtySet<Key, Records>,
    model: &mut Model,
    n: usize,
    backwash: bool,
) -> Result<(), TestCaseError> {
    let before = model.clone();
    let reply = model.reserve(n, backwash);
    prop_assert_eq!(&list(set.reserve(n, backwash, concat)), &reply);

    prop_assert_eq!(before.lowest_scores(), model.lowest_scores(), "no key lost, no score raised");
    prop_assert_eq!(
        &reply[..],
        &list(set.in_flight())[..n.min(set.in_flight_len())],
        "the reply is the first of what is in flight"
    );
    prop_assert!(set.pending_len() == 0 || set.in_flight_len() >= n, "topped up while there was something");
    if backwash {
        let all: Vec<_> =
            set.in_flight().chain(set.pending()).map(|entry| (entry.score, *entry.key)).collect();
        prop_assert!(all.is_sorted(), "what is in flight is the lowest of all");
        prop_assert_eq!(all.len(), set.len(), "and the sets are disjoint");
    } else {
        let kept = before.cset.iter().all(|(key, (score, _))| model.cset[key].0 <= *score);
        prop_assert!(kept, "what was in flight stays there, no score raised");
    }

    let mut again = set.clone();
    prop_assert_eq!(list(again.reserve(n, backwash, concat)), reply, "the same call again changes nothing");
    prop_assert_eq!(list(again.pending()), list(set.pending()));
    prop_assert_eq!(list(again.in_flight()), list(set.in_flight()));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn any_sequence_of_operations_leaves_what_the_model_leaves(ops in ops()) {
        let mut set = DirtySet::new();
        let mut model = Model::default();
        for (record, op) in (0..).zip(ops) {
            match op {
                Op::Add(key, score) => {
                    prop_assert_eq!(set.add(key, score, vec![record], concat), model.add(key, score, record));
                }
                Op::Reserve(n, backwash) => reserve(&mut set, &mut model, n, backwash)?,
                Op::Commit(keys) => prop_assert_eq!(set.commit(&keys), model.commit(&keys)),
                Op::Exchange(n, keys, backwash) => {
                    let mut one_by_one = set.clone();
                    prop_assert_eq!(one_by_one.commit(&keys), model.commit(&keys));
                    reserve(&mut one_by_one, &mut model, n, backwash)?;
                    set.exchange(n, &keys, backwash, concat);
                }
                Op::WithdrawPending(key) => {
                    prop_assert_eq!(set.withdraw_pending(&key), model.pset.remove(&key));
                }
                Op::Withdraw(key) => prop_assert_eq!(set.withdraw(&key, concat), model.withdraw(key)),
                Op::Clear => {
                    set.clear();
                    model = Model::default();
                }
            }
            prop_assert_eq!(list(set.pending()), ordered(&model.pset));
            prop_assert_eq!(list(set.in_flight()), ordered(&model.cset));
            let lowest = model.lowest_scores();
            prop_assert_eq!(set.len(), lowest.len());
            prop_assert_eq!(set.is_empty(), lowest.is_empty());
            prop_assert_eq!(set.lowest_score(), lowest.values().min().copied());
            prop_assert_eq!(set.lowest_pending(), model.pset.values().map(|(score, _)| *score).min());
            for key in 0..10 {
                let pending = set.get_pending(&key).map(|entry| (entry.score, entry.value.clone()));
                prop_assert_eq!(pending, model.pset.get(&key).cloned());
            }
        }
    }

    /// The worker's loop: records arrive, a batch is worked on, some of it fails and is not committed.
    #[test]
    fn a_loop_that_commits_only_what_was_handed_out_last_applies_every_record_once_and_in_order(
        rounds in prop::collection::vec(
            (prop::collection::vec((0..6_u8, 0..3_i64), 0..8), 0..5_usize, any::<bool>(), any::<u8>()),
            1..30,
        ),
    ) {
        let mut set: DirtySet<Key, Records> = DirtySet::new();
        let mut written: BTreeMap<Key, Records> = BTreeMap::new();
        let mut applied: BTreeMap<Key, Records> = BTreeMap::new();
        let mut done: Vec<Key> = vec![];
        let mut offset = 0_u32;
        let last = std::iter::repeat_n((vec![], 100, false, u8::MAX), 2);
        for (records, n, backwash, succeeds) in rounds.into_iter().chain(last) {
            let exchanged = set.exchange(n, &done, backwash, concat);
            prop_assert_eq!(exchanged.committed, done.len());
            let batch = list(exchanged.batch);

            // While the batch is in work, more arrives; a score may also lie in the past (an entry parked and back).
            for (key, back) in records {
                set.add(key, i64::from(offset) - back * 5, vec![offset], concat);
                written.entry(key).or_default().push(offset);
                offset += 1;
            }

            done.clear();
            for (index, (key, _, records)) in batch.into_iter().enumerate() {
                if succeeds >> (index % 8) & 1 == 1 {
                    applied.entry(key).or_default().extend(records);
                    done.push(key);
                }
            }
            let left = |key| written[key].iter().skip(applied.get(key).map_or(0, Vec::len));
            let oldest_left = written.keys().flat_map(left).min();
            prop_assert!(
                oldest_left.is_none_or(|&oldest| set.lowest_score().is_some_and(|lowest| lowest <= i64::from(oldest))),
                "the watermark never passes a record that is not applied"
            );
        }
        set.commit(&done);
        prop_assert!(set.is_empty());
        prop_assert_eq!(applied, written);
    }
}
