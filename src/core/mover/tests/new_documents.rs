//! Placements that are created without being read before, where documents are expected to be new.

use super::*;
use crate::base::requests::{BulkOutcome, GetOutcome, SeqNo};
use crate::core::mover::NOT_NEW;

fn expecting() -> Owner {
    let mut owner = Owner::new();
    owner.state.as_mut().unwrap().new_documents = NewDocuments::expected();
    owner
}

/// In `a`, by a record at 1.
fn in_a() -> TestStore {
    TestStore::with(placed(1, Some("a"), &[]), &[("a", 1)])
}

/// The calls of an entry's next attempt, and how that ends.
fn attempt(owner: &mut Owner, store: &mut TestStore, entry: &Entry) -> (Vec<String>, Outcome) {
    owner.begin(entry.clone());
    let mut sent = Vec::new();
    while owner.batch().round().is_some() {
        sent.extend(in_short(&owner.batch().calls()));
        owner.step(store);
    }
    (sent, owner.finish(store))
}

#[test]
fn new_document_is_not_read() {
    let (mut owner, mut store) = (expecting(), TestStore::default());
    let (sent, outcome) = attempt(&mut owner, &mut store, &entry([index(A, 1)]));
    assert_eq!(
        (sent.join(", "), outcome_in_short(&outcome)),
        ("place 1 a [] if absent, put a@1".into(), "indexed".into())
    );
    let lookups = owner.state.as_ref().unwrap().lookups;
    assert_eq!((lookups.hits, lookups.misses), (0, 1), "it was not cached");
    assert_eq!(attempt(&mut owner, &mut store, &entry([index(A, 2)])).0, ["put a@2"], "now it is");
}

#[test]
fn document_that_is_not_new_is_read_at_its_next_attempt() {
    let (mut owner, mut store) = (expecting(), in_a());
    let mut moved = entry([index(B, 5)]);
    let (sent, outcome) = attempt(&mut owner, &mut store, &moved);
    assert_eq!((sent.join(", ").as_str(), store.x().as_str()), ("place 5 b [] if absent", "1 a [] | a@1"));
    let Outcome::Again { reason: NOT_NEW, carry } = outcome else { panic!("{outcome:?}") };
    moved.carry = carry;
    let (sent, outcome) = attempt(&mut owner, &mut store, &moved);
    let all = "get placement, place 5 b [a] if unchanged, put b@5, delete a@5";
    assert_eq!((sent.join(", ").as_str(), outcome_in_short(&outcome).as_str()), (all, "moved"));
}

/// What becomes of a refused document depends on its placement.
#[test]
fn refused_create_is_no_dead_letter_before_the_placement_is_read() {
    let (mut owner, mut store) = (expecting(), in_a());
    owner.begin(entry([index(B, 5)])).up_to(Round::Announce, &mut store);
    owner.answered(vec![StoreAnswer::Bulk(BulkOutcome::Refused(store::refusal()))]);
    let outcome = owner.finish(&mut store);
    assert!(
        matches!(&outcome, Outcome::Again { reason: NOT_NEW, carry } if carry.read_placement),
        "{outcome:?}"
    );
}

#[test]
fn create_whose_answer_was_lost_is_found_and_resumed() {
    let (mut owner, mut store) = (expecting(), TestStore::default());
    let mut new = entry([index(A, 1)]);
    owner.begin(new.clone()).up_to(Round::Announce, &mut store);
    for call in owner.unanswered() {
        store.call(&call);
    }
    let Outcome::Again { carry, .. } = owner.finish(&mut store) else { panic!() };
    new.carry = carry;
    assert_eq!(outcome_in_short(&owner.work_out(&mut store, new)), "indexed");
    assert_eq!(store.x(), "1 a [] | a@1");
}

/// Without a placement, other things would be decided of these.
#[test]
fn other_entries_are_read() {
    let again = |state: RetryState| Entry { carry: state.into(), ..entry([index(A, 5)]) };
    for entry in [
        entry([patch(r#"{"n":2}"#, 5)]),
        entry([touch(5)]),
        entry([delete(5)]),
        again(RetryState { read_placement: true, ..RetryState::default() }),
        again(RetryState { finish_recorded: true, ..RetryState::default() }),
    ] {
        let mut owner = expecting();
        assert_eq!(in_short(&owner.begin(entry.clone()).batch().calls()), ["get placement"], "{entry:?}");
    }
}

#[test]
fn document_that_this_owner_knows_is_read() {
    let (mut owner, mut store) = (expecting(), in_a());
    owner.work(&mut store, entry([delete(2)]));
    owner.state.as_mut().unwrap().cache.forget(&id("x"));
    assert_eq!(in_short(&owner.begin(entry([index(A, 5)])).batch().calls()), ["get placement"]);
}

#[test]
fn owner_learns_from_reads_and_from_creates() {
    let mut state = new_state(rules());
    let batch = |state: MoverState, answers: &dyn Fn(bool) -> StoreAnswer| {
        let entries = (0..256).map(|n| Entry { id: id(&format!("d{n}")), ..entry([index(A, 5)]) }).collect();
        let mut batch = Batch::begin(state, entries);
        let mut first = None;
        while batch.round().is_some() {
            let calls = batch.calls();
            let is_get = matches!(calls.first(), Some(StoreCall::Get(_)));
            if !calls.is_empty() {
                first.get_or_insert(is_get);
            }
            batch = batch.answered(calls.iter().map(|_| answers(is_get)).collect());
        }
        let Batch::Finished(Finished { mut state, .. }) = batch else { panic!("not finished") };
        state.cache.clear();
        (first == Some(true), state)
    };
    let absent = |is_get| match is_get {
        true => StoreAnswer::Get(GetOutcome::Missing),
        false => StoreAnswer::Bulk(BulkOutcome::Unanswered),
    };
    let conflict = |_| StoreAnswer::Bulk(BulkOutcome::Conflict);
    let created =
        |_| StoreAnswer::Bulk(BulkOutcome::Done { stamp: Some(SeqNo { seq_no: 1, primary_term: 1 }) });
    let mut reads = Vec::new();
    for answers in [&absent as &dyn Fn(bool) -> StoreAnswer, &absent, &created, &conflict, &absent, &created]
    {
        let has_read;
        (has_read, state) = batch(state, answers);
        reads.push(has_read);
    }
    assert_eq!(reads, [true, false, false, false, true, false]);
}
