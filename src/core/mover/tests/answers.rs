//! The protocol's list "What an answer means", at every round: what follows each answer, and that nothing else does.

use super::store::{StoreAnswer, StoreCall, TestStore, refusal};
use super::*;
use crate::io::elastic::rounds::{BulkOutcome, GetOutcome};
use crate::io::elastic::{FoundDocument, SeqNo};

const STAMP: SeqNo = SeqNo { seq_no: 77, primary_term: 1 };

fn done() -> BulkOutcome {
    BulkOutcome::Done { stamp: None }
}

fn recorded() -> BulkOutcome {
    BulkOutcome::Done { stamp: Some(STAMP) }
}

fn refused() -> BulkOutcome {
    BulkOutcome::Refused(refusal())
}

fn copy(offset: i64) -> GetOutcome {
    GetOutcome::Found(FoundDocument {
        version: at(offset).version(),
        stamp: STAMP,
        source: doc(A, offset).into(),
    })
}

fn placement(placement: Option<Placement>) -> GetOutcome {
    GetOutcome::Found(FoundDocument { version: 1, stamp: STAMP, source: placement.unwrap().to_json() })
}

/// The result of a batch from some round on.
struct After {
    /// Calls of later rounds, all executed.
    sent: Vec<String>,
    outcome: String,
    /// Pending clears, and the cached state of the document.
    clears: usize,
    cached: Option<String>,
}

/// Runs `entry` up to `round`, which gets `answers` regardless of the store, and on to the end.
fn after(mut store: TestStore, entry: Entry, round: Round, answers: Vec<StoreAnswer>) -> After {
    let mut owner = Owner::new();
    owner.begin(entry).up_to(round, &mut store);
    let calls = owner.batch().calls();
    assert_eq!(calls.len(), answers.len(), "{round:?} sends {:?}", in_short(&calls));
    // Executed calls take effect, so that later rounds are those of a real batch.
    for (call, answer) in calls.iter().zip(&answers) {
        if matches!(answer, StoreAnswer::Bulk(BulkOutcome::Done { .. })) {
            store.call(call);
        }
    }
    owner.answered(answers);
    let mut sent = Vec::new();
    while owner.batch().round().is_some() {
        sent.extend(in_short(&owner.batch().calls()));
        owner.step(&mut store);
    }
    let outcome = outcome_in_short(&owner.finish(&mut store));
    let mut state = owner.state.unwrap();
    let cached = state.cache.get(&id("x")).map(|known| placement_in_short(&known.placement));
    After { sent, outcome, clears: state.clears.len(), cached }
}

/// Rows of answer, later calls, outcome.
fn assert_rows<const N: usize>(
    store: &TestStore,
    entry: &Entry,
    round: Round,
    rows: [(Vec<StoreAnswer>, &[&str], &str); N],
) {
    for (answers, sent, outcome) in rows {
        let after = after(store.clone(), entry.clone(), round, answers.clone());
        assert_eq!(
            (after.sent, after.outcome.as_str()),
            (sent.iter().map(ToString::to_string).collect(), outcome),
            "after {answers:?} at {round:?}"
        );
    }
}

fn got<const N: usize>(answers: [GetOutcome; N]) -> Vec<StoreAnswer> {
    answers.map(StoreAnswer::Get).into()
}

fn bulk(answer: BulkOutcome) -> Vec<StoreAnswer> {
    vec![StoreAnswer::Bulk(answer)]
}

#[test]
fn reading_a_placement() {
    let store = TestStore::with(placed(1, Some("a"), &[]), &[("a", 1)]);
    let of = |offset, place, leftovers: &[&str]| got([placement(placed(offset, place, leftovers))]);
    // The store does not have the state in the answer, so every write-ahead over it fails.
    assert_rows(
        &store,
        &entry([index(B, 5)]),
        Round::ReadPlacements,
        [
            (got([GetOutcome::Unanswered]), &[], "again: unanswered"),
            (got([GetOutcome::Missing]), &["place 5 b [] if absent"], "again: placement_conflict"),
            (of(1, Some("a"), &[]), &["place 5 b [a] if unchanged"], "again: placement_conflict"),
            (of(1, Some("a"), &["c"]), &["place 5 b [a c] if unchanged"], "again: placement_conflict"),
            (of(1, None, &["c"]), &["place 5 b [c] if unchanged"], "again: placement_conflict"),
            (of(1, Some("b"), &[]), &["put b@5"], "indexed"),
            (of(1, Some("b"), &["a"]), &["place 5 b [a] if unchanged"], "again: placement_conflict"),
            (of(5, Some("b"), &["a"]), &["put b@5", "delete a@5"], "moved"),
            (of(7, Some("b"), &["a"]), &[], "parked until 7"),
            (of(7, None, &["a"]), &[], "parked until 7"),
        ],
    );
    let unreadable = GetOutcome::Found(FoundDocument { version: 1, stamp: STAMP, source: "{}".into() });
    assert_rows(
        &store,
        &entry([index(B, 5)]),
        Round::ReadPlacements,
        [(got([unreadable]), &[], "again: unreadable_placement")],
    );
}

#[test]
fn reading_the_document() {
    let store = TestStore::with(placed(1, Some("b"), &["a"]), &[]);
    let rows = |resumes: bool| -> [(Vec<StoreAnswer>, &[&str], &str); 7] {
        use GetOutcome::{Missing, Unanswered};
        let decided: &[&str] = match resumes {
            false => &["place 5 b [a] if unchanged", "put b@5", "delete a@5"],
            true => &["put b@5", "delete a@5"],
        };
        let written: &[&str] = match resumes {
            false => &["place 5 b [a] if unchanged", "delete a@5"],
            true => &["delete a@5"],
        };
        [
            (got([copy(1), Missing]), decided, "moved"),
            (got([Missing, copy(1)]), decided, "moved"),
            (got([copy(5), copy(1)]), written, "already applied"),
            (got([Missing, copy(5)]), &[], "again: newer_copy_elsewhere"),
            (got([copy(1), copy(7)]), &[], "again: newer_copy_elsewhere"),
            (got([Missing, Missing]), &[], "again: nothing_found"),
            (got([copy(1), Unanswered]), &[], "again: unanswered"),
        ]
    };
    let text = r#"{"p":1}"#;
    let mut stays = rows(false);
    // A document that stays in its geoshard has not moved, whatever is swept.
    stays[0].2 = "indexed";
    stays[1].2 = "indexed";
    assert_rows(&store, &entry([patch(text, 5)]), Round::ReadDocuments, stays);
    let store = TestStore::with(placed(5, Some("b"), &["a"]), &[]);
    let moves = r#"{"location":{"lat":1,"lon":90},"p":1}"#;
    assert_rows(&store, &entry([patch(moves, 5)]), Round::ReadDocuments, rows(true));
}

#[test]
fn writing_ahead() {
    let store = TestStore::with(placed(1, Some("a"), &[]), &[("a", 1)]);
    assert_rows(
        &store,
        &entry([index(B, 5)]),
        Round::Announce,
        [
            (bulk(recorded()), &["put b@5", "delete a@5"], "moved"),
            // Without its state no later compare-and-set is possible.
            (bulk(done()), &[], "again: placement_conflict"),
            (bulk(BulkOutcome::Conflict), &[], "again: placement_conflict"),
            (bulk(BulkOutcome::NotFound), &[], "again: placement_conflict"),
            (bulk(refused()), &[], "dead letter: refused_by_elasticsearch"),
            (bulk(BulkOutcome::Unanswered), &[], "again: unanswered"),
        ],
    );
    for answer in [BulkOutcome::Conflict, BulkOutcome::Unanswered] {
        let after = after(store.clone(), entry([index(B, 5)]), Round::Announce, bulk(answer));
        assert_eq!(after.cached, None, "the next attempt reads the placement");
    }
}

#[test]
fn writing_a_deletion_ahead() {
    let store = TestStore::with(placed(1, Some("a"), &[]), &[("a", 1)]);
    assert_rows(
        &store,
        &entry([delete(5)]),
        Round::Announce,
        [
            (bulk(recorded()), &["delete a@5"], "deleted"),
            (bulk(BulkOutcome::Conflict), &[], "again: placement_conflict"),
            (bulk(BulkOutcome::Unanswered), &[], "again: unanswered"),
        ],
    );
}

#[test]
fn writing_in_place() {
    let store = TestStore::with(placed(1, Some("a"), &[]), &[("a", 1)]);
    assert_rows(
        &store,
        &entry([index(A, 5)]),
        Round::Announce,
        [
            (bulk(done()), &[], "indexed"),
            (bulk(BulkOutcome::Conflict), &[], "already applied"),
            (bulk(BulkOutcome::NotFound), &[], "already applied"),
            (bulk(refused()), &[], "dead letter: refused_by_elasticsearch"),
            (bulk(BulkOutcome::Unanswered), &[], "again: unanswered"),
        ],
    );
}

#[test]
fn writing_the_document() {
    let store = TestStore::with(placed(1, Some("a"), &[]), &[("a", 1)]);
    let examined: &[&str] = &["get b", "get a", "place 5! a [b] if unchanged"];
    assert_rows(
        &store,
        &entry([index(B, 5)]),
        Round::WriteDocuments,
        [
            (bulk(done()), &["delete a@5"], "moved"),
            (bulk(BulkOutcome::Conflict), &["delete a@5"], "already applied"),
            (bulk(BulkOutcome::NotFound), &[], "again: unanswered"),
            (bulk(refused()), examined, "again: set_back"),
            (bulk(BulkOutcome::Unanswered), &[], "again: unanswered"),
        ],
    );
}

#[test]
fn raising_the_last_good_copy() {
    let refused_before = placed(5, Some("a"), &["b"]).map(Placement::after_refusal);
    let store = TestStore::with(refused_before, &[("a", 1)]);
    let dead = "dead letter: refused_by_elasticsearch";
    assert_rows(
        &store,
        &entry([index(B, 5)]),
        Round::WriteDocuments,
        [
            (bulk(done()), &["delete b@5"], dead),
            (bulk(BulkOutcome::Conflict), &["delete b@5"], dead),
            (bulk(refused()), &["delete b@5"], dead),
            (bulk(BulkOutcome::Unanswered), &[], "again: unanswered"),
        ],
    );
}

#[test]
fn looking_for_the_last_good_copy() {
    use GetOutcome::{Missing, Unanswered};
    let store = TestStore::with(placed(1, Some("a"), &[]), &[("a", 1)]);
    assert_rows(
        &store,
        &entry([unacceptable(B, 5)]),
        Round::FindLastCopy,
        [
            (got([Missing, copy(1)]), &["place 5! a [b] if unchanged"], "again: set_back"),
            (got([copy(2), copy(1)]), &["place 5! b [a] if unchanged"], "again: set_back"),
            (got([Missing, Missing]), &["place 5! b [a] if unchanged"], "again: set_back"),
            (got([Missing, Unanswered]), &[], "again: unanswered"),
            (got([Unanswered, copy(1)]), &[], "again: unanswered"),
        ],
    );
}

#[test]
fn sweeping() {
    let store = TestStore::with(placed(1, Some("a"), &[]), &[("a", 1)]);
    for (answer, outcome, clears) in [
        (done(), "moved", 1),
        (BulkOutcome::NotFound, "moved", 1),
        // A newer copy may be there: it stays named.
        (BulkOutcome::Conflict, "moved", 0),
        // The document is in its target; the rest is owed separately.
        (refused(), "moved", 0),
        (BulkOutcome::Unanswered, "moved", 0),
    ] {
        let after = after(store.clone(), entry([index(B, 5)]), Round::CleanUp, bulk(answer.clone()));
        assert_eq!((after.outcome.as_str(), after.clears), (outcome, clears), "{answer:?}");
        assert_eq!(after.cached.as_deref(), Some("5 b [a]"), "it names the leftover until the clear");
    }
    let one_of_two = TestStore::with(placed(1, Some("a"), &["c"]), &[("a", 1)]);
    let answers = vec![StoreAnswer::Bulk(done()), StoreAnswer::Bulk(BulkOutcome::Unanswered)];
    let after = after(one_of_two, entry([index(B, 5)]), Round::CleanUp, answers);
    assert_eq!((after.outcome.as_str(), after.clears), ("moved", 0));
}

#[test]
fn setting_back() {
    let store = TestStore::with(placed(1, Some("a"), &[]), &[("a", 1)]);
    for (answer, outcome, cached) in [
        (recorded(), "again: set_back", Some("5! a [b]")),
        (BulkOutcome::Conflict, "again: placement_conflict", None),
        (BulkOutcome::NotFound, "again: placement_conflict", None),
        (refused(), "again: placement_conflict", None),
        (BulkOutcome::Unanswered, "again: unanswered", None),
    ] {
        let after = after(store.clone(), entry([unacceptable(B, 5)]), Round::CleanUp, bulk(answer.clone()));
        assert_eq!((after.outcome.as_str(), after.cached.as_deref()), (outcome, cached), "{answer:?}");
        assert_eq!(after.sent, [""; 0]);
    }
}

#[test]
fn clearing() {
    for (answer, cached) in [
        (recorded(), Some("5 b []")),
        (BulkOutcome::Conflict, None),
        (BulkOutcome::NotFound, None),
        (refused(), None),
        (BulkOutcome::Unanswered, None),
    ] {
        let mut store = TestStore::with(placed(1, Some("a"), &[]), &[("a", 1)]);
        let mut owner = Owner::new();
        owner.work(&mut store, entry([index(B, 5)]));
        let state = owner.state.take().unwrap();
        owner.batch = Some(Batch::begin(state, Vec::new()));
        owner.up_to(Round::Announce, &mut store);
        assert_eq!(in_short(&owner.batch().calls()), ["place 5 b [] if unchanged"]);
        owner.answered(bulk(answer.clone()));
        while owner.batch().round().is_some() {
            assert_eq!(owner.batch().calls(), Vec::<StoreCall>::new());
            owner.step(&mut store);
        }
        let Some(Batch::Finished(mut finished)) = owner.batch.take() else { panic!("not finished") };
        let known = finished.state.cache.get(&id("x")).map(|known| placement_in_short(&known.placement));
        assert_eq!(known.as_deref(), cached, "{answer:?}");
        assert!(finished.state.clears.is_empty(), "it is sent once");
    }
}

#[test]
fn attempt_state_survives_a_round_without_answers() {
    let store = TestStore::with(placed(5, Some("a"), &["b"]), &[]);
    let mut owner = Owner::new();
    let mut entry = entry([patch(r#"{"p":1}"#, 5)]);
    let nothing_found = Some(NothingFound { at: STAMP, looks: 1 });
    entry.carry = RetryState { nothing_found, finish_recorded: true, ..RetryState::default() }.into();
    owner.begin(entry);
    owner.unanswered();
    let Outcome::Again { carry, .. } = owner.finish(&mut store.clone()) else { panic!("no answer came") };
    assert_eq!((carry.nothing_found, carry.finish_recorded), (nothing_found, true));
}
