//! A node that is cut off from its master answers reads from its old state, and takes no writes.

use super::store::{StoreAnswer, StoreCall, TestStore};
use super::*;
use crate::base::random::Random;
use crate::core::mover::decide::{EntryPlan, NewestCopy, decide};
use crate::core::mover::{Doubt, OLDER_COPY, UNANSWERED};
use crate::core::placement::KnownPlacement;
use crate::io::elastic::{FoundDocument, SeqNo};

impl Owner {
    /// Like [`Owner::work`], with reads answered by another node than writes.
    fn work_reading(&mut self, reads: &TestStore, store: &mut TestStore, entry: Entry) -> Outcome {
        self.begin(entry);
        while self.batch().round().is_some() {
            self.step_reading(reads, store);
        }
        self.finish(store)
    }

    fn step_reading(&mut self, reads: &TestStore, store: &mut TestStore) -> &mut Self {
        let answer = |call: &StoreCall| match call {
            StoreCall::Get(get) => StoreAnswer::Get(reads.read(get)),
            call => store.call(call),
        };
        let answers = self.batch().calls().iter().map(answer).collect();
        self.answered(answers)
    }
}

fn again(outcome: Outcome, reason: &str, entry: &mut Entry) {
    let Outcome::Again { reason: found, carry } = outcome else { panic!("{outcome:?}") };
    assert_eq!(found, reason);
    entry.carry = carry;
}

fn set(offset: i64) -> Entry {
    entry([patch(&format!(r#"{{"p{offset}":1}}"#), offset)])
}

#[test]
fn base_older_than_an_in_place_write_is_read_again() {
    let mut store = TestStore::default();
    let mut owner = Owner::new();
    owner.work_out(&mut store, entry([index(A, 1)]));
    owner.work_out(&mut store, set(2));
    let cut_off = store.clone();
    owner.work_out(&mut store, set(3));
    let mut fourth = set(4);
    again(owner.work_reading(&cut_off, &mut store, fourth.clone()), "older_copy", &mut fourth);
    assert_eq!(outcome_in_short(&owner.work(&mut store, fourth)), "indexed");
    assert_eq!(store.x(), "1 a [] | a@4");
    for field in ["p2", "p3", "p4"] {
        assert!(store.text("a").contains(field), "{}", store.text("a"));
    }
}

#[test]
fn base_older_than_its_placement_is_read_from_another_node() {
    let cut_off = TestStore::with(placed(1, Some("a"), &[]), &[("a", 1)]);
    let mut store = cut_off.clone();
    Owner::new().work_out(&mut store, entry([touch(2), patch(r#"{"p3":1}"#, 3)]));
    assert_eq!(store.x(), "3 a [] | a@3");
    // The placement is read from a healthy node, the copy is not.
    let mut reads = cut_off;
    reads.take_placement_of(&store);
    let (mut owner, mut fourth) = (Owner::new(), set(4));
    again(owner.work_reading(&reads, &mut store, fourth.clone()), "older_copy", &mut fourth);
    for _ in 0..3 {
        owner.begin(fourth.clone());
        while owner.batch().round() != Some(Round::Announce) {
            owner.step_reading(&reads, &mut store);
        }
        assert_eq!(in_short(&owner.batch().calls()), ["put a@1 again"]);
        again(owner.finish(&mut store), "stale_copy", &mut fourth);
        assert_eq!(store.x(), "3 a [] | a@3");
    }
    assert_eq!(outcome_in_short(&owner.work(&mut store, fourth)), "indexed");
    assert_eq!(store.x(), "3 a [] | a@4");
    assert!(store.text("a").contains("p3") && store.text("a").contains("p4"), "{}", store.text("a"));
}

/// An old copy was restored, or the decision of a lost record was finished: nothing newer will come.
#[test]
fn old_base_is_used_once_proved_newest() {
    let mut store = TestStore::with(placed(3, Some("a"), &[]), &[("a", 1)]);
    let (mut owner, mut fourth) = (Owner::new(), set(4));
    again(owner.work(&mut store, fourth.clone()), "older_copy", &mut fourth);
    again(owner.work(&mut store, fourth.clone()), "confirmed_copy", &mut fourth);
    let stale = TestStore::with(placed(3, Some("a"), &[]), &[("a", 0)]);
    again(owner.work_reading(&stale, &mut store, fourth.clone()), "older_copy", &mut fourth);
    assert_eq!(outcome_in_short(&owner.work(&mut store, fourth)), "indexed");
    assert_eq!(store.x(), "3 a [] | a@4");
}

#[test]
fn stale_last_good_copy_does_not_replace_the_newer_one() {
    let mut store = TestStore::default();
    let mut owner = Owner::new();
    owner.work_out(&mut store, entry([index(A, 1)]));
    let cut_off = store.clone();
    owner.work_out(&mut store, set(2));
    let mut third = entry([unacceptable(B, 3)]);
    again(owner.work(&mut store, third.clone()), "set_back", &mut third);
    assert_eq!(store.x(), "3! a [b] | a@2");
    let mut reads = cut_off;
    reads.take_placement_of(&store);
    again(owner.work_reading(&reads, &mut store, third.clone()), "older_copy", &mut third);
    assert_eq!(outcome_in_short(&owner.work(&mut store, third)), "dead letter: refused_by_elasticsearch");
    assert!(store.text("a").contains("p2"), "{}", store.text("a"));
}

#[test]
fn written_version_is_remembered_if_a_write_ahead_gets_no_answer() {
    let mut store = TestStore::default();
    let mut owner = Owner::new();
    owner.work_out(&mut store, entry([index(A, 1)]));
    let cut_off = store.clone();
    owner.work_out(&mut store, set(2));
    let mut third = entry([patch(r#"{"location":{"lon":90},"p3":1}"#, 3)]);
    owner.begin(third.clone()).up_to(Round::Announce, &mut store).unanswered();
    again(owner.finish(&mut store), UNANSWERED, &mut third);
    // The placement was not written since the node was cut off.
    again(owner.work_reading(&cut_off, &mut store, third.clone()), "older_copy", &mut third);
    owner.work_out(&mut store, third);
    assert_eq!(store.x(), "3 b [a] | b@3");
    assert!(store.text("b").contains("p2"), "{}", store.text("b"));
}

const STAMP: SeqNo = SeqNo { seq_no: 7, primary_term: 1 };

/// The plan for a copy at version 5 under a patch of record 9, with a placement at `pos`.
fn judged(pos: i64, refused: bool, cached: i64, doubt: Option<Doubt>) -> &'static str {
    let mut placement = placed(pos, Some("a"), &[]).unwrap();
    if refused {
        placement = placement.after_refusal();
    }
    let known = KnownPlacement { at_least: at(cached), ..KnownPlacement::new(placement, STAMP) };
    let mut entry = set(9);
    entry.carry = RetryState { doubt, ..RetryState::default() }.into();
    let found = FoundDocument { version: at(5).version(), stamp: STAMP, source: doc(A, 5).into() };
    match decide(&new_state(rules()), &entry, Some(known), true, Some(NewestCopy::new(shard("a"), found))) {
        EntryPlan::Settle(Outcome::Again { reason: OLDER_COPY, .. }) => "look again",
        EntryPlan::Confirm { .. } => "confirm",
        EntryPlan::InPlace { .. } | EntryPlan::WriteAhead { .. } => "use",
        other => panic!("{other:?}"),
    }
}

#[test]
fn when_a_base_is_trusted() {
    let looked = |looks, newest: Option<(&str, i64)>| {
        let newest = newest.map(|(name, version)| (shard(name), at(version)));
        Some(Doubt { at: STAMP, looks, at_least: at(6), newest })
    };
    let earlier = Some(Doubt {
        at: SeqNo { seq_no: 6, ..STAMP },
        looks: 3,
        at_least: at(6),
        newest: Some((shard("a"), at(5))),
    });
    for (pos, refused, cached, doubt, expected) in [
        (5, false, 5, None, "use"),
        (4, false, 0, None, "use"),
        (6, false, 0, None, "look again"),
        (4, false, 6, None, "look again"),
        // The last good copy may be of any earlier record.
        (6, true, 0, None, "use"),
        (6, true, 6, None, "look again"),
        (6, false, 0, looked(1, None), "confirm"),
        (6, false, 0, looked(9, None), "confirm"),
        (6, false, 0, looked(2, Some(("a", 5))), "use"),
        // Not this copy, or not now.
        (6, false, 0, looked(2, Some(("b", 5))), "confirm"),
        (6, false, 0, looked(2, Some(("a", 4))), "confirm"),
        (6, false, 0, earlier, "look again"),
        // Older than the confirmed copy: from the node that is cut off.
        (7, false, 0, looked(2, Some(("a", 6))), "look again"),
    ] {
        let case = format!("{pos} {refused} {cached} {doubt:?}");
        assert_eq!(judged(pos, refused, cached, doubt), expected, "{case}");
    }
    let resumed = set(9);
    let known = || KnownPlacement {
        at_least: at(4),
        ..KnownPlacement::new(placed(9, Some("a"), &[]).unwrap(), STAMP)
    };
    let found =
        |version| FoundDocument { version: at(version).version(), stamp: STAMP, source: doc(A, 5).into() };
    let is_doubt = |entry: &Entry, version| {
        let copy = Some(NewestCopy::new(shard("a"), found(version)));
        decide(&new_state(rules()), entry, Some(known()), true, copy).is_doubt()
    };
    assert!(!is_doubt(&resumed, 5), "the owner that wrote ahead may have died before the document");
    assert!(is_doubt(&resumed, 3));
    let resumed = entry([patch("{}", 8), patch("{}", 10)]);
    assert!(!is_doubt(&resumed, 5), "its record is in the fold");
}

/// Patches, with and without another place, and whole documents, by one owner; each read is answered by a healthy node
/// or by one cut off some time ago, and answers to writes get lost.
#[test]
pub(super) fn reads_from_a_cut_off_node_revert_no_write() {
    let (mut doubts, mut stale) = (0, 0);
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut store = TestStore::default();
        let mut owner = Owner::new();
        owner.work_out(&mut store, entry([index(A, 1)]));
        let (mut cut_off, mut first) = (store.clone(), 1);
        for offset in 2..12 {
            let place = [A, B, C][usize::try_from(random.below(3)).unwrap()];
            if random.below(8) == 0 {
                first = offset;
            }
            let mut next = match random.below(3) {
                _ if first == offset => entry([index(place, offset)]),
                0 => entry([patch(&format!(r#"{{"location":{{"lon":{place}}},"p{offset}":1}}"#), offset)]),
                _ => set(offset),
            };
            let mut attempts = 0;
            while attempts < 100 {
                attempts += 1;
                owner.begin(next.clone());
                while owner.batch().round().is_some() {
                    // Two of three nodes are cut off, and return in the end.
                    let node = match next.carry.looks() {
                        0 => random.below(3),
                        look => look as u64 % 3,
                    };
                    let reads = if node > 0 && attempts < 40 { cut_off.clone() } else { store.clone() };
                    if random.below(8) == 0 && attempts < 40 {
                        let lost = owner.unanswered();
                        if random.below(2) == 0 {
                            store.deliver(lost);
                        }
                    } else {
                        owner.step_reading(&reads, &mut store);
                    }
                }
                match owner.finish(&mut store) {
                    Outcome::Again { reason, carry } => {
                        doubts += u32::from(reason == OLDER_COPY);
                        stale += u32::from(reason == "stale_copy");
                        next.carry = carry;
                    }
                    Outcome::Done(_) => break,
                    other => panic!("seed {seed}: {other:?}"),
                }
            }
            assert!(attempts < 100, "seed {seed}: never done");
            if random.below(3) == 0 {
                cut_off = store.clone();
            }
        }
        owner.sweep(&mut store);
        let view = store.view(&id("x"));
        let place = view.placement.as_ref().unwrap().shard.as_ref().unwrap().as_str().to_owned();
        let text = store.text(&place);
        counterexamples::at_rest(&store);
        for offset in first + 1..12 {
            assert!(text.contains(&format!("\"p{offset}\"")), "seed {seed}: p{offset} is gone from {text}");
        }
    }
    assert!(doubts > 100 && stale > 100, "{doubts} {stale}");
}
