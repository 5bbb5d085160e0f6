//! One key in two partitions, whose positions have no order: each document belongs to one partition.

use std::ops::ControlFlow;

use super::counterexamples::{at_rest, in_a};
use super::store::TestStore;
use super::*;
use crate::core::invariants::inv_1_every_copy_is_named;

const REJECTED: &str = "dead letter: key_in_two_partitions";

/// The owner of this partition.
fn owner_of(partition: i32) -> Owner {
    let mut owner = Owner::new();
    owner.state.as_mut().unwrap().partition = Some(partition);
    owner
}

/// Document `x` in geoshard `a`, by record 1 of partition 1.
fn in_a_by_partition_1() -> TestStore {
    let placement = placed(1, Some("a"), &[]).map(|placement| placement.by_partition(Some(1)));
    TestStore::with(placement, &[("a", 1)])
}

fn partition(store: &TestStore) -> Option<i32> {
    store.view(&id("x")).placement.unwrap().partition
}

#[test]
pub(super) fn corrected_decision_names_its_partition() {
    let (refused, mend) = (unacceptable(B, 2), patch(r#"{"n":3}"#, 3));
    let mut store = in_a_by_partition_1();
    let mut zombie = owner_of(1);
    zombie.work_out(&mut store, entry([refused.clone()]));
    zombie.begin(entry([mend.clone()])).up_to(Round::WriteDocuments, &mut store);
    owner_of(1).work_out(&mut store, entry([refused, mend]));
    assert_eq!((store.x().as_str(), partition(&store)), ("3 b [a] | b@3", Some(1)));
}

/// Each owner has one entry; the first is stopped before round `cuts.0`, then the second before `cuts.1`; then the
/// first goes on, then the second. Returns both outcomes.
fn play(
    store: &mut TestStore,
    entries: [&Entry; 2],
    partitions: [i32; 2],
    cuts: (usize, usize),
) -> [String; 2] {
    let mut owners = partitions.map(owner_of);
    for ((owner, entry), rounds) in owners.iter_mut().zip(entries).zip([cuts.0, cuts.1]) {
        owner.begin(entry.clone());
        for _ in 0..rounds {
            if owner.batch().round().is_some() {
                owner.step(store);
            }
        }
    }
    let mut outcomes = owners.iter_mut().zip(entries).map(|(owner, entry)| {
        let outcome = match owner.finish(store) {
            Outcome::Again { carry, .. } => owner.work_out(store, Entry { carry, ..entry.clone() }),
            outcome => outcome,
        };
        outcome_in_short(&outcome)
    });
    [outcomes.next().unwrap(), outcomes.next().unwrap()]
}

/// Every two records of two partitions, at lower, equal and higher offsets, stopped at every two rounds. `check` gets
/// the store, the store without partition 2, and the outcomes of both records; it returns whether to go on.
fn every_history(mut check: impl FnMut(&TestStore, &str, [String; 2]) -> ControlFlow<()>) -> ControlFlow<()> {
    let records = |offset| {
        [
            entry([index(A, offset)]),
            entry([index(B, offset)]),
            entry([delete(offset)]),
            entry([patch(r#"{"n":0}"#, offset)]),
            entry([touch(offset)]),
            entry([unacceptable(B, offset)]),
        ]
    };
    for offset in [4, 5, 6] {
        for ours in records(5) {
            for theirs in records(offset) {
                for cuts in (0..6).flat_map(|first| (0..6).map(move |second| (first, second))) {
                    for partitions in [[1, 2], [2, 1]] {
                        let mut store = in_a_by_partition_1();
                        let mut outcomes = play(&mut store, [&ours, &theirs], partitions, cuts);
                        let mut alone = in_a_by_partition_1();
                        let place = partitions.iter().position(|&partition| partition == 1).unwrap();
                        owner_of(1).work_out(&mut alone, [&ours, &theirs][place].clone());
                        outcomes.swap(0, place);
                        check(&store, &alone.x(), outcomes)?;
                    }
                }
            }
        }
    }
    ControlFlow::Continue(())
}

#[test]
pub(super) fn records_of_another_partition_are_dead_lettered() {
    let mut histories = 0;
    let all = every_history(|store, alone, [ours, theirs]| {
        assert_eq!(theirs, REJECTED);
        assert_ne!(ours, REJECTED);
        assert_eq!(store.x(), alone);
        inv_1_every_copy_is_named(&store.view(&id("x"))).unwrap();
        histories += 1;
        ControlFlow::Continue(())
    });
    assert_eq!((all, histories), (ControlFlow::Continue(()), 3 * 36 * 36 * 2));
}

#[cfg(feature = "sabotage")]
#[test]
fn comparing_partitions_would_park_or_lose_a_write() {
    use crate::base::sabotage::{Sabotage, with};
    let (mut parked, mut lost) = (false, false);
    let seen = with(Sabotage::PartitionsAreComparable, || {
        every_history(|_, _, [_, theirs]| {
            parked |= theirs.starts_with("parked");
            lost |= theirs == "already applied";
            if parked && lost { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    });
    assert_eq!(seen, ControlFlow::Break(()), "{parked} {lost}");
}

#[test]
fn first_of_two_concurrent_partitions_owns_the_document() {
    for offset in [4, 5, 6] {
        for cuts in (0..6).flat_map(|first| (0..6).map(move |second| (first, second))) {
            let mut store = TestStore::default();
            let entries = [entry([index(A, 5)]), entry([index(B, offset)])];
            let outcomes = play(&mut store, [&entries[0], &entries[1]], [1, 2], cuts);
            assert_eq!(outcomes.iter().filter(|outcome| *outcome == REJECTED).count(), 1, "{outcomes:?}");
            let expected = if outcomes[1] == REJECTED { 1 } else { 2 };
            assert_eq!(partition(&store), Some(expected));
            at_rest(&store);
        }
    }
}

#[test]
fn dead_letter_names_both_partitions() {
    let outcome = owner_of(7).work(&mut in_a_by_partition_1(), entry([index(B, 5)]));
    let Outcome::DeadLetter(refusal) = outcome else { panic!("{outcome:?}") };
    assert!(refusal.detail.contains("in partition 1 and in partition 7"), "{}", refusal.detail);
    assert!(refusal.detail.contains("kafka.partitioner"), "{}", refusal.detail);
}

#[test]
fn key_may_change_partition_in_another_epoch() {
    let mut store = in_a_by_partition_1();
    let mut later = index(A, 0);
    later.position = Position::new(Epoch::new(2).unwrap(), 0).unwrap();
    assert_eq!(outcome_in_short(&owner_of(2).work_out(&mut store, entry([later]))), "indexed");
    assert_eq!(partition(&store), Some(2));
}

#[test]
fn placement_without_a_partition_gets_one_before_in_place() {
    let mut store = in_a();
    let mut owner = owner_of(1);
    assert_eq!(partition(&store), None);
    owner.work_out(&mut store, entry([index(A, 2)]));
    assert_eq!((partition(&store), at_rest(&store).as_str()), (Some(1), "2 a [] | a@2"));
    owner.begin(entry([index(A, 3)])).up_to(Round::Announce, &mut store);
    assert_eq!(in_short(&owner.batch().calls()), ["put a@3"]);
    owner.finish(&mut store);
    assert_eq!(outcome_in_short(&owner_of(2).work(&mut store, entry([index(A, 9)]))), REJECTED);
}

#[test]
fn refusal_keeps_the_partition() {
    let mut store = in_a_by_partition_1();
    owner_of(1).work_out(&mut store, entry([unacceptable(B, 5)]));
    assert_eq!((partition(&store), store.x().as_str()), (Some(1), "5! a [b] | a@5"));
}
