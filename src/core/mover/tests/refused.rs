//! Documents that Elasticsearch refuses: what the refusal leaves, and what zombies and later records make of it. As in
//! `counterexamples.rs`, each test fails without its rule.

use super::counterexamples::{at_rest, in_a, in_short_of};
use super::store::TestStore;
use super::*;
use crate::core::invariants::*;

/// Found by the model: a zombie's document was refused, and it is about to set the placement back, when the owner folds
/// that record with a good one for the same geoshard.
#[test]
pub(super) fn fold_over_the_placements_own_record_is_not_in_place() {
    let mut store = TestStore::default();
    let (mut zombie, mut owner) = (Owner::new(), Owner::new());
    zombie.begin(entry([unacceptable(A, 1)])).up_to(Round::CleanUp, &mut store);
    assert_eq!(in_short(&zombie.batch().calls()), ["place 1! a [] if unchanged"]);
    let both = entry([unacceptable(A, 1), index(A, 2)]);
    owner.begin(both).up_to(Round::Announce, &mut store);
    assert_eq!(in_short(&owner.batch().calls()), ["place 2 a [] if unchanged"]);
    owner.step(&mut store);
    zombie.finish(&mut store);
    owner.finish(&mut store);
    assert_eq!(at_rest(&store), "2 a [] | a@2");
}

/// Found by the model: the placement was set back to where the last good copy is, and a patch mends what was refused before
/// that is tried again.
#[test]
pub(super) fn mended_document_follows_its_refused_record() {
    let mut store = in_a();
    let (refused, mend) = (unacceptable(B, 2), patch(r#"{"n":3}"#, 3));
    let mut owner = Owner::new();
    assert_eq!(in_short_of(&owner.work(&mut store, entry([refused.clone()]))), "again: set_back");
    assert_eq!(store.x(), "2! a [b] | a@1");
    assert_eq!(in_short_of(&owner.work_out(&mut store, entry([refused, mend]))), "moved");
    assert_eq!(at_rest(&store), "3 b [a] | b@3");
}

/// Found by the model: one worker has given up the refused record and only has the patch, the other folds both.
#[test]
pub(super) fn decision_about_another_document_is_corrected() {
    let (refused, mend) = (|| unacceptable(B, 2), || patch(r#"{"n":3}"#, 3));
    let given_up = || {
        let (mut store, mut zombie) = (in_a(), Owner::new());
        let outcome = zombie.work_out(&mut store, entry([refused()]));
        assert_eq!(in_short_of(&outcome), "dead letter: refused_by_elasticsearch");
        (store, zombie)
    };
    // Recorded by the worker with the patch alone, and not carried out.
    let (mut store, mut zombie) = given_up();
    zombie.begin(entry([mend()])).up_to(Round::WriteDocuments, &mut store);
    assert_eq!(store.x(), "3 a [] | a@2");
    assert_eq!(in_short_of(&Owner::new().work_out(&mut store, entry([refused(), mend()]))), "moved");
    zombie.finish(&mut store);
    assert_eq!(at_rest(&store), "3 b [a] | b@3");
    // Recorded by the worker that folded both.
    let (mut store, mut zombie) = given_up();
    let mut owner = Owner::new();
    owner.begin(entry([refused(), mend()])).up_to(Round::WriteDocuments, &mut store);
    assert_eq!(store.x(), "3 b [a] | a@2");
    assert_eq!(in_short_of(&zombie.work_out(&mut store, entry([mend()]))), "moved");
    owner.finish(&mut store);
    assert_eq!(at_rest(&store), "3 a [b] | a@3");
    // Carried out: it stands.
    let (mut store, mut zombie) = given_up();
    zombie.work_out(&mut store, entry([mend()]));
    let outcome = Owner::new().work_out(&mut store, entry([refused(), mend()]));
    assert_eq!(in_short_of(&outcome), "already applied");
    assert_eq!(at_rest(&store), "3 a [] | a@3");
}

#[test]
fn refused_document_keeps_its_last_copy_and_place() {
    let mut store = in_a();
    let outcome = Owner::new().work_out(&mut store, entry([unacceptable(B, 5)]));
    assert_eq!(in_short_of(&outcome), "dead letter: refused_by_elasticsearch");
    assert_eq!(at_rest(&store), "5! a [b] | a@5");
    assert_eq!(store.text("a"), doc(A, 1));
}

#[test]
fn refused_document_stays_despite_an_unfinished_move() {
    let mut store = in_a();
    Owner::new().begin(entry([index(B, 3)])).up_to(Round::WriteDocuments, &mut store);
    assert_eq!(store.x(), "3 b [a] | a@1");
    Owner::new().work_out(&mut store, entry([index(B, 3), unacceptable(C, 5)]));
    assert_eq!(at_rest(&store), "5! a [b c] | a@5");
    assert_eq!(store.text("a"), doc(A, 1));
}

#[test]
fn refused_new_document_leaves_a_refused_placement() {
    let mut store = TestStore::default();
    Owner::new().work_out(&mut store, entry([unacceptable(B, 5)]));
    assert_eq!(at_rest(&store), "5! b [] | ");
    // The next record writes its placement, so that no owner mistakes the refusal for its own.
    Owner::new().work_out(&mut store, entry([index(B, 6)]));
    assert_eq!(at_rest(&store), "6 b [] | b@6");
}

/// Found by the model: a zombie that folded further is refused, and finds no copy yet. Its record and its sweep must
/// allow for the copy that the owner is writing.
#[test]
pub(super) fn refusal_allows_for_a_late_copy() {
    let mut store = TestStore::default();
    let (mut zombie, mut owner) = (Owner::new(), Owner::new());
    owner.begin(entry([index(A, 1)])).up_to(Round::WriteDocuments, &mut store);
    zombie.work_out(&mut store, entry([index(A, 1), unacceptable(A, 2)]));
    zombie.clear(&mut store);
    assert_eq!(in_short_of(&owner.finish(&mut store)), "indexed");
    owner.work_out(&mut store, entry([unacceptable(A, 2), index(A, 3)]));
    assert_eq!(at_rest(&store), "2! a [] | a@3");
}

/// Found by the model, as the one before: a copy that a zombie misses may be in flight.
#[test]
pub(super) fn patch_of_a_missing_document_allows_for_a_late_copy() {
    let mut store = TestStore::default();
    let (mut zombie, mut owner) = (Owner::new(), Owner::new());
    owner.begin(entry([index(A, 1)])).up_to(Round::WriteDocuments, &mut store);
    zombie.work_out(&mut store, entry([index(A, 1), unacceptable(A, 2)]));
    zombie.work_out(&mut store, entry([patch(r#"{"p":3}"#, 3)]));
    zombie.clear(&mut store);
    assert_eq!(in_short_of(&owner.finish(&mut store)), "indexed");
    assert_eq!(at_rest(&store), "2! a [] | a@1");
}

#[test]
fn refused_position_is_refused_again_without_a_write() {
    let mut store = in_a();
    Owner::new().work_out(&mut store, entry([unacceptable(B, 5)]));
    let mut owner = Owner::new();
    owner.begin(entry([unacceptable(B, 5)])).up_to(Round::WriteDocuments, &mut store);
    assert_eq!(in_short(&owner.batch().calls()), [""; 0]);
    assert_eq!(in_short_of(&owner.finish(&mut store)), "dead letter: refused_by_elasticsearch");
    assert_eq!(at_rest(&store), "5! a [b] | a@5");
    // The next record decides again.
    owner.work_out(&mut store, entry([index(C, 6)]));
    assert_eq!(at_rest(&store).split(" [").next(), Some("6 c"));
}

#[test]
fn refusal_in_place_changes_nothing() {
    let mut store = in_a();
    let outcome = Owner::new().work_out(&mut store, entry([unacceptable(A, 5)]));
    assert_eq!(in_short_of(&outcome), "dead letter: refused_by_elasticsearch");
    assert_eq!(at_rest(&store), "1 a [] | a@1");
}

/// The zombie moves the document from `a` to `b` while the owner, who has folded further, is refused in `c` and sets the
/// placement back to `a`. If the owner sweeps `b` and the zombie then `a`, nothing is left.
#[test]
fn zombie_does_not_delete_the_last_good_copy_after_a_refusal() {
    let further = entry([index(B, 2), unacceptable(C, 3)]);
    for put_after in 0..16 {
        for delete_after in put_after..16 {
            let mut store = in_a();
            let (mut zombie, mut owner) = (Owner::new(), Owner::new());
            zombie.begin(entry([index(B, 2)])).up_to(Round::WriteDocuments, &mut store);
            let mut carry = Carry::default();
            owner.begin(further.clone());
            for step in 0..16 {
                if step == put_after {
                    zombie.up_to(Round::CleanUp, &mut store);
                }
                if step == delete_after {
                    zombie.finish(&mut store);
                }
                match owner.batch.as_ref().map(Batch::round) {
                    Some(Some(_)) => drop(owner.step(&mut store)),
                    Some(None) => {
                        if let Outcome::Again { carry: taken, .. } = owner.finish(&mut store) {
                            carry = taken;
                            owner.begin(Entry { carry: carry.clone(), ..further.clone() });
                        }
                    }
                    None => {}
                }
                let view = store.view(&id("x"));
                inv_1_every_copy_is_named(&view).unwrap();
                inv_2_a_document_that_exists_has_a_copy(&view, true)
                    .unwrap_or_else(|broken| panic!("put {put_after}, delete {delete_after}: {broken}"));
            }
            if owner.batch.is_some() {
                owner.finish(&mut store);
            }
            owner.work_out(&mut store, Entry { carry, ..further.clone() });
            assert_eq!(at_rest(&store).split(' ').next(), Some("3!"));
        }
    }
}
