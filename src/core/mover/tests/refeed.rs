//! The rules of a refeed (protocol, "Refeed"), one by one; `tests/model` explores them in every order of events.

use super::counterexamples::{at_rest, in_a, in_short_of};
use super::*;
use crate::core::mover::{FetchedDocument, Refusal, SourceAnswer};

fn refeed(offset: i64) -> Write {
    write(offset, Body::Refeed)
}

/// The entry with an answer requested after the record at `after` was taken.
fn told(entry: Entry, after: i64, answer: SourceAnswer) -> Entry {
    Entry { fetched: Some(Box::new(FetchedDocument { after: at(after), answer })), ..entry }
}

fn says(place: f64, n: i64) -> SourceAnswer {
    SourceAnswer::Document(doc(place, n).into())
}

fn fetching() -> Rules {
    Rules { on_missing: OnMissing::Refeed, ..rules() }
}

#[test]
fn fetched_document_is_written_where_it_belongs() {
    let mut store = in_a();
    let mut owner = Owner::new();
    assert_eq!(in_short_of(&owner.work(&mut store, entry([refeed(2)]))), "fetch");
    let entry = told(entry([refeed(2)]), 2, says(B, 7));
    assert_eq!(in_short_of(&owner.work(&mut store, entry)), "moved");
    owner.clear(&mut store);
    assert_eq!(at_rest(&store), "2 b [] | b@2", "and the placement no longer carries it");
}

#[test]
pub(super) fn answer_from_before_a_later_refeed_or_delete_is_refetched() {
    let later = [
        entry([refeed(2), refeed(3)]),
        entry_by(&fetching(), [refeed(2), delete(3), patch(r#"{"p":1}"#, 4)]),
    ];
    for entry in later {
        let mut owner = Owner::by(fetching());
        assert_eq!(in_short_of(&owner.work(&mut in_a(), told(entry, 2, says(A, 7)))), "fetch");
    }
}

#[test]
pub(super) fn resuming_owner_writes_the_fetched_document_without_asking() {
    let mut store = in_a();
    let mut zombie = Owner::new();
    zombie.begin(told(entry([refeed(2)]), 2, says(B, 7))).up_to(Round::WriteDocuments, &mut store);
    let mut owner = Owner::new();
    let elsewhere = told(entry([refeed(2)]), 2, says(C, 8));
    assert_eq!(in_short_of(&owner.work(&mut store, elsewhere)), "moved");
    zombie.finish(&mut store);
    owner.clear(&mut store);
    assert_eq!(at_rest(&store), "2 b [] | b@2");
}

#[test]
fn patch_over_a_decided_refeed_applies_to_the_fetched_document() {
    let mut store = in_a();
    let mut zombie = Owner::new();
    zombie.begin(told(entry([refeed(2)]), 2, says(B, 7))).up_to(Round::WriteDocuments, &mut store);
    let mut owner = Owner::new();
    let further = entry([refeed(2), patch(r#"{"n":9}"#, 3)]);
    assert_eq!(in_short_of(&owner.work(&mut store, further)), "indexed");
    zombie.finish(&mut store);
    owner.clear(&mut store);
    assert_eq!(at_rest(&store), "3 b [] | b@3");
}

#[test]
fn refeed_is_never_in_place_nor_over_a_carried_document() {
    let mut store = in_a();
    let mut owner = Owner::new();
    owner.work(&mut store, told(entry([refeed(2)]), 2, says(A, 7)));
    assert!(store.x().starts_with("2 a []"), "{}", store.x());
    // Before the clear.
    let mut next = Owner::new();
    assert_eq!(in_short_of(&next.work(&mut store, entry([index(A, 3)]))), "indexed");
    assert_eq!(store.x(), "3 a [] | a@3");
}

#[test]
fn gone_document_is_deleted_and_unplaceable_changes_nothing() {
    let mut store = in_a();
    let refusal = Refusal { reason: "no_location", detail: String::new() };
    let bad = told(entry([refeed(2)]), 2, SourceAnswer::Unusable(refusal));
    assert_eq!(in_short_of(&Owner::new().work(&mut store, bad)), "dead letter: no_location");
    assert_eq!(store.x(), "1 a [] | a@1");
    let gone = told(entry([refeed(2)]), 2, SourceAnswer::Gone);
    assert_eq!(in_short_of(&Owner::new().work(&mut store, gone)), "deleted");
}

#[test]
fn delete_stands_whatever_the_source_says_of_a_later_patch() {
    let refusal = Refusal { reason: "no_location", detail: String::new() };
    for (answer, expected) in
        [(SourceAnswer::Unusable(refusal), "dead letter: no_location"), (SourceAnswer::Gone, "dropped")]
    {
        let mut store = in_a();
        let fold = entry_by(&fetching(), [delete(2), patch(r#"{"p":1}"#, 3)]);
        let mut owner = Owner::by(fetching());
        assert_eq!(in_short_of(&owner.work(&mut store, told(fold, 3, answer))), expected);
        assert!(store.x().starts_with("3 deleted"), "{}", store.x());
    }
}

/// Found by the model.
#[test]
pub(super) fn recorded_gone_document_is_not_placed_by_a_zombie() {
    let mut store = TestStore::with(None, &[]);
    let missing = entry_by(&fetching(), [patch(r#"{"p":1}"#, 2)]);
    let mut zombie = Owner::by(fetching());
    zombie.begin(told(missing.clone(), 2, says(A, 7))).up_to(Round::Announce, &mut store);
    let mut owner = Owner::by(fetching());
    assert_eq!(in_short_of(&owner.work(&mut store, told(missing, 2, SourceAnswer::Gone))), "dropped");
    zombie.finish(&mut store);
    assert_eq!(at_rest(&store), "2 deleted [] | ");
}

/// Found by the model: another owner had the delete and the touch in two folds.
#[test]
fn delete_with_a_touch_resumes_the_touchs_fetched_document() {
    let mut store = in_a();
    let mut zombie = Owner::by(fetching());
    zombie.work(&mut store, entry_by(&fetching(), [delete(2)]));
    let alone = told(entry_by(&fetching(), [touch(3)]), 3, says(B, 7));
    zombie.begin(alone).up_to(Round::WriteDocuments, &mut store);
    let mut owner = Owner::by(fetching());
    owner.work(&mut store, entry_by(&fetching(), [delete(2), touch(3)]));
    zombie.finish(&mut store);
    owner.clear(&mut store);
    assert_eq!(at_rest(&store), "3 b [] | b@3");
}

/// Found by the model.
#[test]
fn patch_after_a_delete_resumes_its_fetched_document() {
    let mut store = TestStore::with(None, &[]);
    let fold = entry_by(&fetching(), [delete(2), patch(r#"{"n":9}"#, 3)]);
    let mut zombie = Owner::by(fetching());
    zombie.begin(told(fold.clone(), 3, says(A, 7))).up_to(Round::WriteDocuments, &mut store);
    assert_eq!(in_short_of(&Owner::by(fetching()).work(&mut store, fold)), "indexed");
    assert_eq!(at_rest(&store), "3 a [] | a@3");
}
