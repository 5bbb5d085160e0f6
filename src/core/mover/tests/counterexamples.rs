//! Every weakening named by the protocol, as the history that it would break: owner and zombie as two movers over one
//! store, step by step. Each test fails without its rule.

use super::store::{StoreAnswer, TestStore};
use super::*;
use crate::core::invariants::*;
use crate::io::elastic::Get;
use crate::io::elastic::rounds::{BulkOutcome, GetOutcome};

/// Document `x` lives in geoshard `a`, written by record 1.
pub(super) fn in_a() -> TestStore {
    TestStore::with(placed(1, Some("a"), &[]), &[("a", 1)])
}

/// Nothing is in flight: one copy, in its geoshard. Returns the store in short.
pub(super) fn at_rest(store: &TestStore) -> String {
    inv_1_every_copy_is_named(&store.view(&id("x"))).unwrap();
    inv_5_at_rest_there_is_one_copy(&store.view(&id("x"))).unwrap();
    store.x()
}

pub(super) fn in_short_of(outcome: &Outcome) -> String {
    outcome_in_short(outcome)
}

/// Rules while maps change, by the old map or the new one, which have no place in common.
fn two_maps(shards: [&str; 3]) -> Rules {
    let other = if shards == OLD_MAP { NEW_MAP } else { OLD_MAP };
    Rules { map: map(shards), other_map: Some(map(other)), ..rules() }
}

#[test]
fn zombies_placement_is_not_overwritten_by_external_version() {
    let mut store = in_a();
    let (mut zombie, mut owner) = (Owner::new(), Owner::new());
    owner.begin(entry([index(B, 2), index(C, 3)])).up_to(Round::Announce, &mut store);
    zombie.begin(entry([index(B, 2)])).up_to(Round::WriteDocuments, &mut store);
    assert_eq!(in_short_of(&owner.finish(&mut store)), "again: placement_conflict");
    owner.work_out(&mut store, entry([index(B, 2), index(C, 3)]));
    zombie.finish(&mut store);
    assert_eq!(at_rest(&store), "3 c [a b] | c@3", "the zombie's geoshard is named, and swept");
}

#[test]
fn fold_that_went_elsewhere_and_back_is_not_in_place() {
    let mut store = in_a();
    let (mut zombie, mut owner) = (Owner::new(), Owner::new());
    zombie.begin(entry([index(B, 2)])).up_to(Round::Announce, &mut store);
    owner.work_out(&mut store, entry([index(B, 2), index(A, 3)]));
    zombie.finish(&mut store);
    assert_eq!(at_rest(&store), "3 a [] | a@3");
}

#[test]
fn entry_behind_the_recorded_position_waits_for_its_patches() {
    let mut store = in_a();
    let (second, third) = (patch(r#"{"p":2}"#, 2), patch(r#"{"location":{"lat":1,"lon":90}}"#, 3));
    let dead = entry([second.clone(), third.clone()]);
    Owner::new().begin(dead).up_to(Round::WriteDocuments, &mut store);
    let mut owner = Owner::new();
    let outcome = owner.work(&mut store, entry([second.clone()]));
    assert_eq!(in_short_of(&outcome), "parked until 3");
    assert_eq!(in_short_of(&owner.work_out(&mut store, entry([second, third]))), "moved");
    assert_eq!(at_rest(&store), "3 b [a] | b@3");
    assert_eq!(store.text("b"), r#"{"location":{"lat":1,"lon":90},"n":1,"p":2}"#);
}

#[test]
fn nothing_is_written_before_its_placement() {
    for (store, entry, announced) in [
        (TestStore::default(), entry([index(B, 2)]), "place 2 b [] if absent"),
        (in_a(), entry([index(B, 2)]), "place 2 b [a] if unchanged"),
        (in_a(), entry([delete(2)]), "place 2 deleted [a] if unchanged"),
    ] {
        let mut store = store;
        let mut owner = Owner::new();
        owner.begin(entry).up_to(Round::Announce, &mut store);
        assert_eq!(in_short(&owner.batch().calls()), [announced]);
        owner.unanswered();
        while owner.batch().round().is_some() {
            assert_eq!(in_short(&owner.batch().calls()), [""; 0]);
            owner.step(&mut store);
        }
    }
}

#[test]
fn new_document_is_written_ahead_for_later_deletes() {
    let mut store = TestStore::default();
    let (mut zombie, mut owner) = (Owner::new(), Owner::new());
    zombie.begin(entry([index(A, 1)])).up_to(Round::Announce, &mut store);
    owner.work_out(&mut store, entry([index(A, 1), delete(2)]));
    assert_eq!(in_short_of(&zombie.finish(&mut store)), "again: placement_conflict");
    assert_eq!(at_rest(&store), "2 deleted [] | ");
}

#[test]
fn late_write_does_not_revive_a_deleted_document() {
    let mut store = TestStore::default();
    let (mut zombie, mut owner) = (Owner::new(), Owner::new());
    let late = zombie.begin(entry([index(A, 1)])).up_to(Round::WriteDocuments, &mut store).unanswered();
    owner.work_out(&mut store, entry([index(A, 1), delete(2)]));
    assert_eq!(store.deliver(late), [StoreAnswer::Bulk(BulkOutcome::Conflict)]);
    assert_eq!(at_rest(&store), "2 deleted [a] | ");
}

#[test]
fn delete_of_an_unknown_document_is_recorded() {
    let mut store = TestStore::default();
    assert_eq!(in_short_of(&Owner::new().work_out(&mut store, entry([delete(2)]))), "deleted");
    assert_eq!(at_rest(&store), "2 deleted [] | ");
}

#[test]
fn decision_at_a_position_is_not_repeated_under_another_map() {
    let mut store = TestStore::default();
    let (mut zombie, mut owner) = (Owner::by(two_maps(OLD_MAP)), Owner::by(two_maps(NEW_MAP)));
    zombie.begin(entry([index(A, 5)])).up_to(Round::WriteDocuments, &mut store);
    owner.work_out(&mut store, entry_by(&two_maps(NEW_MAP), [index(A, 5)]));
    assert_eq!(at_rest(&store), "5 a [] | a@5");
    zombie.finish(&mut store);
    assert_eq!(at_rest(&store), "5 a [] | a@5");
}

#[test]
pub(super) fn record_up_to_the_recorded_position_does_not_decide_again() {
    let mut store = TestStore::default();
    Owner::by(two_maps(OLD_MAP)).work_out(&mut store, entry([index(A, 3)]));
    let newer = entry_by(&two_maps(NEW_MAP), [index(A, 3), patch(r#"{"p":4}"#, 4)]);
    Owner::by(two_maps(NEW_MAP)).work_out(&mut store, newer);
    assert_eq!(at_rest(&store), "4 a [] | a@4");
}

#[test]
fn moving_document_keeps_a_copy_wherever_its_owner_dies() {
    for round in [Round::Announce, Round::WriteDocuments, Round::FindLastCopy, Round::CleanUp] {
        for answered in [true, false] {
            let mut store = in_a();
            let mut dead = Owner::new();
            dead.begin(entry([patch(r#"{"location":{"lon":90}}"#, 2)])).up_to(round, &mut store);
            if !answered {
                // Not executed either; the owner must allow for that.
                dead.unanswered();
            }
            dead.finish(&mut store);
            inv_2_a_document_that_exists_has_a_copy(&store.view(&id("x")), true).unwrap();
            Owner::new().work_out(&mut store, entry([patch(r#"{"location":{"lon":90}}"#, 2)]));
            assert_eq!(at_rest(&store).split(" [").next(), Some("2 b"), "{round:?}");
        }
    }
}

/// A delete without a version cannot be written down: [`BulkOp::Delete`] has one.
#[test]
fn late_delete_does_not_remove_a_copy_that_came_back() {
    let mut store = in_a();
    let (mut zombie, mut owner) = (Owner::new(), Owner::new());
    let late = zombie.begin(entry([index(B, 2)])).up_to(Round::CleanUp, &mut store).unanswered();
    assert_eq!(in_short(&late), ["delete a@2"]);
    owner.work_out(&mut store, entry([index(A, 3)]));
    assert_eq!(store.deliver(late), [StoreAnswer::Bulk(BulkOutcome::Conflict)]);
    assert_eq!(at_rest(&store), "3 a [b] | a@3");
}

#[test]
pub(super) fn newer_copy_in_a_leftover_is_neither_copied_nor_ignored() {
    let (fourth, fifth) = (patch(r#"{"p":4}"#, 4), index(A, 5));
    let mut store = TestStore::with(placed(2, Some("b"), &["a"]), &[("b", 2)]);
    let (mut zombie, mut owner) = (Owner::new(), Owner::new());
    owner.begin(entry([fourth.clone()])).up_to(Round::ReadDocuments, &mut store);
    zombie.work_out(&mut store, entry([fourth.clone(), fifth.clone()]));
    assert_eq!(in_short_of(&owner.finish(&mut store)), "again: newer_copy_elsewhere");
    assert_eq!(in_short_of(&owner.work_out(&mut store, entry([fourth.clone()]))), "parked until 5");
    assert_eq!(in_short_of(&owner.work_out(&mut store, entry([fourth, fifth]))), "already applied");
    assert_eq!(at_rest(&store), "5 a [b] | a@5");
    assert_eq!(store.text("a"), doc(A, 5));
}

/// Found by the model: a zombie has moved the document to `b` and back, and dies before it deletes the copy in `b`. The
/// owner's placement is from before all that.
#[test]
pub(super) fn already_written_copy_does_not_hide_a_move_there_and_back() {
    let (second, third) = (patch(r#"{"location":{"lon":90}}"#, 2), patch(r#"{"location":{"lon":0}}"#, 3));
    let mut store = TestStore::default();
    let (mut zombie, mut owner) = (Owner::new(), Owner::new());
    owner.work(&mut store, entry([index(A, 1)]));
    zombie.work_out(&mut store, entry([second.clone()]));
    zombie.begin(entry([third.clone()])).up_to(Round::CleanUp, &mut store);
    assert_eq!(store.x(), "3 a [b] | a@3 b@2");
    let outcome = owner.work_out(&mut store, entry([second, third]));
    assert_eq!(in_short_of(&outcome), "already applied");
    assert_eq!(at_rest(&store), "3 a [b] | a@3");
}

#[test]
fn copy_already_written_in_place_needs_no_request() {
    let mut store = in_a();
    let patched = entry([patch(r#"{"p":2}"#, 2)]);
    Owner::new().work(&mut store, patched.clone());
    let mut owner = Owner::new();
    owner.begin(patched).up_to(Round::Announce, &mut store);
    assert_eq!(in_short(&owner.batch().calls()), [""; 0]);
    assert_eq!(in_short_of(&owner.finish(&mut store)), "already applied");
}

#[test]
fn document_that_moved_during_the_read_is_not_missing() {
    let (second, third) = (patch(r#"{"p":2}"#, 2), patch(r#"{"location":{"lon":90}}"#, 3));
    let mut store = in_a();
    let (mut zombie, mut owner) = (Owner::new(), Owner::new());
    owner.begin(entry([second.clone()])).up_to(Round::ReadDocuments, &mut store);
    zombie.work_out(&mut store, entry([second.clone(), third.clone()]));
    assert_eq!(in_short_of(&owner.finish(&mut store)), "again: nothing_found");
    assert_eq!(in_short_of(&owner.work_out(&mut store, entry([second.clone()]))), "parked until 3");
    owner.work_out(&mut store, entry([second, third]));
    assert_eq!(at_rest(&store), "3 b [a] | b@3");
}

#[test]
fn document_not_found_repeatedly_under_one_placement_is_missing() {
    let mut store = TestStore::with(placed(1, Some("a"), &[]), &[]);
    let mut owner = Owner::new();
    let mut entry = entry([patch(r#"{"p":2}"#, 2)]);
    for _ in 0..5 {
        let Outcome::Again { carry, .. } = owner.work(&mut store, entry.clone()) else { panic!() };
        entry.carry = carry;
    }
    assert_eq!(in_short_of(&owner.work(&mut store, entry)), "dead letter: missing_document");
    assert_eq!(store.x(), "1 a [] | ", "no record has deleted it");
}

/// Found by the model: a read is not atomic. The zombie moves the document twice, each time from a geoshard that the
/// owner has not read yet to one that it has.
#[test]
pub(super) fn document_that_moves_during_two_reads_is_not_missing() {
    let (second, third) = (patch(r#"{"location":{"lon":90}}"#, 2), patch(r#"{"location":{"lon":170}}"#, 3));
    let mut store = in_a();
    let (mut zombie, mut owner) = (Owner::new(), Owner::new());
    zombie.begin(entry([second.clone()])).up_to(Round::WriteDocuments, &mut store);
    let further = entry([second, third.clone()]);
    owner.begin(further.clone()).up_to(Round::WriteDocuments, &mut store);
    assert_eq!(store.x(), "3 c [a b] | a@1");

    let mut owner = Owner::new();
    owner.begin(further.clone()).up_to(Round::ReadDocuments, &mut store);
    let calls = owner.batch().calls();
    assert_eq!(in_short(&calls), ["get c", "get a", "get b"]);
    let (c, b) = (store.call(&calls[0]), store.call(&calls[2]));
    zombie.finish(&mut store);
    assert_eq!(store.x(), "3 c [a b] | b@2");
    let a = store.call(&calls[1]);
    let Outcome::Again { carry, .. } = owner.answered(vec![c, a, b]).finish(&mut store) else { panic!() };

    assert_eq!(in_short_of(&zombie.work(&mut store, entry([third.clone()]))), "again: placement_conflict");
    zombie.begin(entry([third])).up_to(Round::WriteDocuments, &mut store);
    let again = Entry { carry, ..further };
    owner.begin(again.clone()).up_to(Round::ReadDocuments, &mut store);
    let (c, a) = (store.call(&calls[0]), store.call(&calls[1]));
    zombie.finish(&mut store);
    let b = store.call(&calls[2]);
    let outcome = owner.answered(vec![c, a, b]).finish(&mut store);
    assert_eq!(in_short_of(&outcome), "again: nothing_found");
    owner.work_out(&mut store, again);
    assert_eq!(at_rest(&store), "3 c [a b] | c@3");
}

#[test]
fn cache_surviving_the_assignment_makes_two_copies() {
    let history = |keeps_cache: bool| {
        let mut store = in_a();
        let mut worker = Owner::new();
        worker.work_out(&mut store, entry([index(A, 2)]));
        let mut other = Owner::new();
        other.work_out(&mut store, entry([index(B, 3)]));
        other.clear(&mut store);
        if !keeps_cache {
            worker = Owner::new();
        }
        worker.work_out(&mut store, entry([index(A, 4)]));
        store
    };
    assert_eq!(at_rest(&history(false)), "4 a [b] | a@4");
    assert_eq!(history(true).x(), "3 b [] | a@4 b@3", "why the cache dies with the assignment");
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "INV-6")]
fn two_entries_of_one_document_are_not_worked_on_at_once() {
    Batch::begin(new_state(rules()), vec![entry([index(A, 1)]), entry([index(B, 2)])]);
}

#[test]
fn patches_without_a_result_still_finish_an_earlier_move() {
    let mut store = TestStore::default();
    let mut first = index(A, 1);
    first.body = Body::Index {
        doc: r#"{"location":"1,0"}"#.into(),
        at: path().locate(br#"{"location":"1,0"}"#).unwrap().into(),
    };
    Owner::new().work_out(&mut store, entry([first]));
    let moves = patch(r#"{"location":"1,90"}"#, 2);
    Owner::new().begin(entry([moves.clone()])).up_to(Round::WriteDocuments, &mut store);
    assert_eq!(store.x(), "2 b [] | a@1".replace("[]", "[a]"));
    // Half a location over a location in text is invalid.
    let outcome = Owner::new().work_out(&mut store, entry([moves, patch(r#"{"location":{"lat":5}}"#, 3)]));
    assert_eq!(in_short_of(&outcome), "dead letter: no_location_after_patch");
    assert_eq!(at_rest(&store), "3! a [b] | a@3");
    assert_eq!(store.text("a"), r#"{"location":"1,0"}"#);
}

fn finishing(writes: [Write; 1]) -> Entry {
    let carry = RetryState { finish_recorded: true, ..RetryState::default() }.into();
    Entry { carry, ..entry(writes) }
}

#[test]
fn decision_of_a_lost_record_is_finished() {
    let mut store = TestStore::with(placed(5, Some("b"), &["a"]), &[("a", 1)]);
    let patched = patch(r#"{"p":3}"#, 3);
    assert_eq!(in_short_of(&Owner::new().work(&mut store, entry([patched.clone()]))), "parked until 5");
    assert_eq!(in_short_of(&Owner::new().work_out(&mut store, finishing([patched]))), "indexed");
    assert_eq!(at_rest(&store), "5 b [a] | b@3");
    assert!(store.text("b").contains(r#""p":3"#));
    let mut deleted = TestStore::with(placed(5, None, &["a"]), &[("a", 1)]);
    Owner::new().work_out(&mut deleted, finishing([index(A, 3)]));
    assert_eq!(at_rest(&deleted), "5 deleted [a] | ");
}

#[test]
fn finishing_a_lost_records_decision_moves_a_newer_copy() {
    let mut store = TestStore::with(placed(5, Some("b"), &["a"]), &[("a", 3)]);
    assert_eq!(in_short_of(&Owner::new().work_out(&mut store, finishing([patch(r#"{"p":3}"#, 3)]))), "moved");
    assert_eq!(at_rest(&store), "5 b [a] | b@3");
    assert_eq!(store.text("b"), doc(A, 3));
}

/// Found by the model: the document was in `a`, moved to `b`, and a record that compaction took was to move it back. Finishing
/// that, the older record cannot be written over the tombstone in `a`; the copy in `b` is the last one.
#[test]
pub(super) fn finishing_a_lost_records_decision_keeps_the_last_copy() {
    let mut store = TestStore::default();
    let mut dead = Owner::new();
    dead.work_out(&mut store, entry([index(A, 1)]));
    dead.work_out(&mut store, entry([index(B, 2)]));
    dead.begin(entry([index(A, 3)])).up_to(Round::WriteDocuments, &mut store);
    let mut owner = Owner::new();
    assert_eq!(in_short_of(&owner.work_out(&mut store, finishing([index(A, 1)]))), "already applied");
    assert_eq!(store.x(), "3 a [b] | b@2");
    owner.work_out(&mut store, entry([index(A, 4)]));
    assert_eq!(at_rest(&store), "4 a [b] | a@4");
}

#[test]
fn patch_of_a_missing_document_is_reported_despite_a_lost_record() {
    let mut store = TestStore::with(placed(5, Some("b"), &[]), &[]);
    let outcome = Owner::new().work_out(&mut store, finishing([patch(r#"{"p":3}"#, 3)]));
    assert_eq!(in_short_of(&outcome), "dead letter: missing_document");
}

#[test]
fn swept_leftovers_are_not_named_again() {
    let mut store = in_a();
    let mut owner = Owner::new();
    owner.work_out(&mut store, entry([index(B, 2)]));
    assert_eq!(at_rest(&store), "2 b [a] | b@2");
    owner.work_out(&mut store, entry([index(C, 3)]));
    assert_eq!(at_rest(&store), "3 c [b] | c@3");
    owner.clear(&mut store);
    assert_eq!(at_rest(&store), "3 c [] | c@3");
    owner.begin(entry([index(C, 4)])).up_to(Round::Announce, &mut store);
    assert_eq!(in_short(&owner.batch().calls()), ["put c@4"], "and the document is in place again");
}

#[test]
fn leftover_with_a_newer_copy_stays_named() {
    let mut store = TestStore::with(placed(2, Some("b"), &["a"]), &[("a", 7)]);
    let mut owner = Owner::new();
    owner.work_out(&mut store, entry([index(B, 3)]));
    owner.clear(&mut store);
    assert_eq!(store.x(), "3 b [a] | a@7 b@3");
    owner.work_out(&mut store, entry([index(B, 8)]));
    owner.clear(&mut store);
    assert_eq!(at_rest(&store), "8 b [] | b@8");
}

#[test]
fn late_clear_changes_nothing() {
    let mut store = in_a();
    let mut zombie = Owner::new();
    zombie.work_out(&mut store, entry([index(B, 2)]));
    zombie.batch = Some(Batch::begin(zombie.state.take().unwrap(), Vec::new()));
    let late = zombie.up_to(Round::Announce, &mut store).unanswered();
    Owner::new().work_out(&mut store, entry([index(C, 3)]));
    assert_eq!(store.deliver(late), [StoreAnswer::Bulk(BulkOutcome::Conflict)]);
    assert_eq!(at_rest(&store).split(" [").next(), Some("3 c"));
}

#[test]
fn in_place_while_two_maps_are_live_only_where_they_agree() {
    let agreeing = |map_of| Rules { other_map: Some(map(PARTLY_NEW_MAP)), ..two_maps(map_of) };
    let (announced, in_place) = ("place 2 a [] if unchanged", "put a@2");
    for (rules, write, since, sent) in [
        (rules(), index(A, 2), 0, in_place),
        (two_maps(OLD_MAP), index(A, 2), 0, announced),
        (two_maps(OLD_MAP), touch(2), 0, announced),
        (agreeing(OLD_MAP), index(A, 2), 0, in_place),
        // It was read when one map was known.
        (agreeing(OLD_MAP), index(A, 2), 3, announced),
        // A patch that says no location stays where the document is, whatever map decides.
        (two_maps(OLD_MAP), patch(r#"{"p":2}"#, 2), 0, in_place),
        (agreeing(OLD_MAP), index(B, 2), 0, "place 2 b [a] if unchanged"),
    ] {
        let mut store = in_a();
        let mut owner = Owner::by(rules.clone());
        owner.state.as_mut().unwrap().both_maps_since = at(since);
        let way = format!("{write:?}, both maps since {since}");
        owner.begin(entry_by(&rules, [write])).up_to(Round::Announce, &mut store);
        assert_eq!(in_short(&owner.batch().calls()), [sent], "{way}");
    }
}

#[test]
fn touch_places_again_under_the_current_map() {
    let mut store = in_a();
    let mut owner = Owner::by(two_maps(NEW_MAP));
    assert_eq!(in_short_of(&owner.work_out(&mut store, entry([touch(2)]))), "moved");
    assert_eq!(at_rest(&store), "2 b [a] | b@2");
    assert_eq!(store.text("b"), doc(A, 1));
}

#[test]
fn touch_or_unclear_patch_is_never_in_place() {
    for write in [touch(2), patch(r#"{"location":{"lat":2}}"#, 2)] {
        let mut store = in_a();
        let mut owner = Owner::new();
        owner.begin(entry([write.clone()])).up_to(Round::Announce, &mut store);
        assert_eq!(in_short(&owner.batch().calls()), ["place 2 a [] if unchanged"]);
        owner.finish(&mut store);
        assert_eq!(at_rest(&store), "2 a [] | a@2");
    }
}

#[test]
fn missing_document_is_handled_as_configured() {
    let whole = || patch(r#"{"location":{"lat":1,"lon":90},"p":1}"#, 5);
    let part = || patch(r#"{"p":1}"#, 5);
    let (dead, unplaced) = ("dead letter: missing_document", "dead letter: no_location_after_patch");
    let nothing = "none | ";
    use OnMissing::{Create, DeadLetter, Drop};
    for (on_missing, write, outcome, left) in [
        (DeadLetter, whole(), dead, nothing),
        (DeadLetter, touch(5), "nothing to place", nothing),
        (Drop, whole(), "dropped", nothing),
        (Drop, touch(5), "nothing to place", nothing),
        (Create, whole(), "indexed", "5 b [] | b@5"),
        (Create, part(), unplaced, nothing),
        (Create, touch(5), "nothing to place", nothing),
    ] {
        let mut store = TestStore::default();
        let done = Owner::by(Rules { on_missing, ..rules() }).work_out(&mut store, entry([write.clone()]));
        assert_eq!(
            (in_short_of(&done).as_str(), at_rest(&store).as_str()),
            (outcome, left),
            "{on_missing:?} {write:?}"
        );
    }
    // A delete before the patch is carried out, whatever becomes of the patch.
    let gone = "5 deleted [a] | ";
    for (on_missing, write, outcome, left) in [
        (DeadLetter, whole(), dead, gone),
        (Drop, whole(), "dropped", gone),
        (Create, whole(), "moved", "5 b [a] | b@5"),
        (Create, part(), unplaced, gone),
    ] {
        let mut store = in_a();
        let done = Owner::by(Rules { on_missing, ..rules() })
            .work_out(&mut store, entry([delete(4), write.clone()]));
        assert_eq!(
            (in_short_of(&done).as_str(), at_rest(&store).as_str()),
            (outcome, left),
            "{on_missing:?} {write:?}"
        );
    }
}

/// Outside the mover: a map may be activated only after everything written in place under the old map alone is
/// committed. Otherwise it may be replayed and decided under the new one.
#[test]
fn map_activated_before_in_place_writes_commit_makes_two_copies() {
    let mut store = in_a();
    Owner::new().work_out(&mut store, entry([index(A, 2)]));
    Owner::new().work_out(&mut store, entry([index(A, 3)]));
    assert_eq!(store.x(), "1 a [] | a@3", "in place, and not committed when the owner dies");
    let rules = two_maps(NEW_MAP);
    let mut owner = Owner::by(rules.clone());
    for write in [index(A, 2), index(A, 3)] {
        owner.work_out(&mut store, entry_by(&rules, [write]));
        owner.clear(&mut store);
    }
    assert_eq!(store.x(), "3 b [a] | a@3 b@3");
    // It stays named, so the next record heals it.
    owner.work_out(&mut store, entry_by(&rules, [index(A, 4)]));
    assert_eq!(at_rest(&store), "4 b [a] | b@4");
}

/// Not the mover's to prevent either: writing in place relies on seeing every record that a zombie may still act on.
/// Where compaction takes one in between, only an owner that writes every placement is safe.
#[test]
fn record_compacted_while_a_zombie_acts_on_it() {
    let history = |owner: Rules| {
        let mut store = in_a();
        let mut zombie = Owner::new();
        zombie.begin(entry([delete(2)])).up_to(Round::Announce, &mut store);
        // Record 2 is gone from the topic when the new owner reads it.
        Owner::by(owner).work_out(&mut store, entry([index(A, 3)]));
        zombie.finish(&mut store);
        zombie.clear(&mut store);
        store
    };
    let careful = Rules { announce_all: true, ..rules() };
    assert_eq!(at_rest(&history(careful)), "3 a [] | a@3");
    let in_place = history(rules());
    assert_eq!(in_place.x(), "2 deleted [a] | a@3");
    inv_1_every_copy_is_named(&in_place.view(&id("x"))).unwrap();
}

#[test]
fn touch_finds_a_copy_named_by_another_writer() {
    let named_meanwhile = |ask: Write| {
        let mut store = in_a();
        let mut owner = Owner::new();
        owner.work_out(&mut store, entry([index(A, 2)]));
        // What `geofold audit --repair` does with a copy that no placement names.
        let stray = Position::from_version(1);
        store.exec(&BulkOp::Index {
            index: Index::Geoshard(shard("b")),
            id: id("x"),
            guard: WriteCondition::External(stray),
            source: doc(A, 0).into(),
        });
        let GetOutcome::Found(found) = store.read(&Get::realtime(Index::Placements, id("x"))) else {
            panic!("no placement")
        };
        let recorded = Placement::from_json(&found.source).unwrap();
        let named = Placement::new(recorded.pos, recorded.shard, [shard("b")]);
        store.exec(&BulkOp::Index {
            index: Index::Placements,
            id: id("x"),
            guard: WriteCondition::Unchanged(found.stamp),
            source: named.to_json(),
        });
        owner.work_out(&mut store, entry([ask]));
        store
    };
    assert_eq!(at_rest(&named_meanwhile(touch(3))), "3 a [b] | a@3");
    assert_eq!(named_meanwhile(index(A, 3)).x(), "1 a [b] | a@3 b@0", "by the cache, until the next owner");
}
