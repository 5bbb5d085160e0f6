//! Folds of patches that leave a document without a location: each is split, whatever is recorded of its records.

use super::counterexamples::{at_rest, in_a, in_short_of};
use super::store::TestStore;
use super::*;
use crate::core::mover::{DecidedPart, REFUSED_FOLD, Refusal};

/// Found by the simulation: whoever has decided the first record, and has not written it yet, meets the second one as well.
#[test]
fn a_fold_that_makes_no_document_is_taken_apart() {
    let decided = |up_to: &[Write]| {
        let mut store = in_a();
        for write in up_to {
            Owner::new().begin(entry([write.clone()])).up_to(Round::WriteDocuments, &mut store);
        }
        let fold = entry([patch(r#"{"location":{"lon":90}}"#, 2), patch(r#"{"location":{"lat":null}}"#, 3)]);
        let mut owner = Owner::new();
        owner.state.as_mut().unwrap().separates = true;
        match owner.work(&mut store, fold) {
            Outcome::Again { reason: REFUSED_FOLD, carry } => {
                assert_eq!(carry.refusal.as_ref().unwrap().reason, "no_location_after_patch");
                let DecidedPart { to, base } = carry.decided.clone().unwrap();
                (to, base.is_some())
            }
            other => panic!("{other:?}"),
        }
    };
    let (second, third) = (patch(r#"{"location":{"lon":90}}"#, 2), index(B, 3));
    assert_eq!(decided(&[]), (at(1), false), "the document's record before");
    assert_eq!(decided(std::slice::from_ref(&second)), (at(2), false), "it stays one");
    assert_eq!(decided(&[second, third]), (at(3), true), "what it was decided without is left out");
}

/// Found by the simulation: an owner has made a dead letter of the first record, and recorded where the second moves the document.
#[test]
pub(super) fn a_decision_made_without_a_bad_record_is_resumed_without_it() {
    let (bad, good) = (patch(r#"{"location":{"lat":null}}"#, 2), patch(r#"{"location":{"lon":90}}"#, 3));
    let mut store = in_a();
    Owner::new().begin(entry([good.clone()])).up_to(Round::WriteDocuments, &mut store);
    assert_eq!(store.x(), "3 b [a] | a@1");
    let mut owner = Owner::new();
    owner.state.as_mut().unwrap().separates = true;
    let whole = entry([bad.clone(), good.clone()]);
    let Outcome::Again { reason: REFUSED_FOLD, carry } = owner.work(&mut store, whole.clone()) else {
        panic!("it is taken apart")
    };
    // What the ledger makes of it.
    let mut base = carry.decided.clone().unwrap().base.unwrap();
    let (_, mut left_out) = rules().fold(bad);
    assert_eq!(rules().change(&mut base, &left_out).unwrap_err().reason, "no_location_after_patch");
    left_out.leave_out();
    let (id, good) = rules().fold(good);
    rules().change(&mut base, &good).unwrap();
    left_out.absorb(good, &rules().location).unwrap();
    assert_eq!(left_out.separable(), None, "nothing is tried twice");
    let rest = Entry { id, fold: Arc::new(left_out), ..whole.clone() };
    assert_eq!(in_short_of(&owner.work_out(&mut store, rest)), "moved");
    assert_eq!(at_rest(&store), "3 b [a] | b@3");
    assert_eq!(store.text("b"), r#"{"location":{"lat":1,"lon":90},"n":1}"#);

    // If its records cannot be read, it is one dead letter, and the document stays where it was.
    let mut store = in_a();
    Owner::new()
        .begin(entry([patch(r#"{"location":{"lon":90}}"#, 3)]))
        .up_to(Round::WriteDocuments, &mut store);
    let refusal = Refusal { reason: "no_location_after_patch", detail: "untried".to_owned() };
    let carry = RetryState { refusal: Some(refusal.clone()), ..RetryState::default() }.into();
    let outcome = Owner::new().work_out(&mut store, Entry { carry, ..whole });
    assert_eq!(outcome, Outcome::DeadLetter(refusal.into()));
    assert_eq!(at_rest(&store), "3! a [b] | a@3", "set back");
}

/// Found by the model: a zombie has folded the first record over a whole document, which rejects it, and has placed the document.
#[test]
fn a_patch_after_a_decision_does_not_take_the_location_away() {
    let mut store = TestStore::with(placed(3, Some("a"), &[]), &[("a", 3)]);
    let mut owner = Owner::new();
    owner.state.as_mut().unwrap().separates = true;
    let fold = entry([patch(r#"{"location":{"lat":null}}"#, 3), patch(r#"{"p":4}"#, 4)]);
    let Outcome::Again { reason: REFUSED_FOLD, carry } = owner.work(&mut store, fold) else {
        panic!("it is taken apart")
    };
    assert_eq!(carry.decided.as_ref(), Some(&DecidedPart { to: at(3), base: None }));
    assert_eq!(store.x(), "3 a [] | a@3", "nothing is written");
}

/// Its decision was about a later record, which compaction took.
#[test]
fn finishing_a_lost_records_decision_does_not_take_the_location_away() {
    let mut store = TestStore::with(placed(5, Some("a"), &[]), &[("a", 1)]);
    let carry = RetryState { finish_recorded: true, ..RetryState::default() }.into();
    let bad = Entry { carry, ..entry([patch(r#"{"location":{"lat":null}}"#, 2)]) };
    let Outcome::DeadLetter(refusal) = Owner::new().work_out(&mut store, bad) else {
        panic!("it is a dead letter")
    };
    assert_eq!(refusal.reason, "no_location_after_patch");
    assert_eq!(store.x(), "5 a [] | a@1", "nothing is written");
}
