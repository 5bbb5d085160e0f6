//! Old copies that stay until searches find the new ones (protocol, "What searches find").

use super::*;
use crate::io::elastic::rounds::BulkOutcome;

fn in_a() -> TestStore {
    TestStore::with(placed(1, Some("a"), &[]), &[("a", 1)])
}

/// Runs an entry; returns its calls.
fn sent_by(owner: &mut Owner, store: &mut TestStore, entry: Entry) -> Vec<String> {
    owner.begin(entry);
    let mut sent = Vec::new();
    while owner.batch().round().is_some() {
        sent.extend(in_short(&owner.batch().calls()));
        owner.step(store);
    }
    owner.finish(store);
    sent
}

#[test]
fn document_is_done_once_written_and_swept_later() {
    let mut store = in_a();
    let mut owner = Owner::serving_searches();
    let outcome = owner.work(&mut store, entry([index(B, 2)]));
    assert_eq!((outcome_in_short(&outcome).as_str(), store.x().as_str()), ("moved", "2 b [a] | a@1 b@2"));
    let [sweep] = owner.sweeps.as_slice() else { panic!("{:?}", owner.sweeps) };
    assert_eq!((sweep.must_be_seen_in(), sweep.leftovers()), (Some(&shard("b")), [shard("a")].as_slice()));
    assert_eq!(owner.sweep(&mut store), ["delete a@2"]);
    owner.clear(&mut store);
    assert_eq!(store.x(), "2 b [] | b@2");
    assert_eq!(sent_by(&mut owner, &mut store, entry([index(B, 3)])), ["put b@3"], "in place again");
}

#[test]
fn resuming_owner_defers_the_sweep_whether_it_writes_or_not() {
    for copies in [vec![("a", 1)], vec![("a", 1), ("b", 2)]] {
        let mut store = TestStore::with(placed(2, Some("b"), &["a"]), &copies);
        let mut owner = Owner::serving_searches();
        owner.work(&mut store, entry([index(B, 2)]));
        assert_eq!(store.x(), "2 b [a] | a@1 b@2");
        assert_eq!(owner.sweep(&mut store), ["delete a@2"]);
    }
}

#[test]
fn copies_of_a_deleted_document_are_swept_at_once() {
    let mut store = in_a();
    let mut owner = Owner::serving_searches();
    owner.work(&mut store, entry([index(B, 2)]));
    owner.work(&mut store, entry([delete(3)]));
    assert_eq!(store.x(), "3 deleted [a b] | ");
    // Refused by the tombstones: nothing is left for it to move.
    assert_eq!(owner.sweep(&mut store), ["delete a@2"]);
    assert_eq!(
        owner.work_out(&mut store, entry([index(A, 4)])),
        Outcome::Done(Done::Indexed { moved: false })
    );
    assert_eq!(store.x(), "4 a [] | a@4");
}

#[test]
fn sweep_does_not_remove_a_copy_that_came_back() {
    let mut store = in_a();
    let mut owner = Owner::serving_searches();
    owner.work(&mut store, entry([index(B, 2)]));
    owner.work(&mut store, entry([index(A, 3)]));
    assert_eq!(store.x(), "3 a [b] | a@3 b@2");
    assert_eq!(owner.sweep(&mut store), ["delete a@2", "delete b@3"]);
    owner.clear(&mut store);
    assert_eq!(store.x(), "3 a [] | a@3");
}

/// Found by the model: an earlier sweep has emptied a geoshard, and a later one that omitted it would leave no
/// tombstone at its own position there against a zombie's write in between.
#[test]
fn sweep_does_not_replace_a_later_one() {
    let mut store = in_a();
    let mut owner = Owner::serving_searches();
    let mut zombie = Owner::serving_searches();
    owner.work(&mut store, entry([index(B, 2)]));
    let earlier = std::mem::take(&mut owner.sweeps);
    zombie.begin(entry([index(A, 3)])).up_to(Round::WriteDocuments, &mut store);
    owner.work_out(&mut store, entry([index(A, 3), index(B, 4)]));
    let later = std::mem::replace(&mut owner.sweeps, earlier);
    assert_eq!(owner.sweep(&mut store), ["delete a@2"]);
    owner.sweeps = later;
    assert_eq!(owner.sweep(&mut store), ["delete a@4"]);
    zombie.finish(&mut store);
    owner.clear(&mut store);
    assert_eq!(store.x(), "4 b [] | b@4");
}

#[test]
fn later_placement_is_not_cleared_by_an_earlier_sweep() {
    let mut store = in_a();
    let mut owner = Owner::serving_searches();
    owner.work(&mut store, entry([index(B, 2)]));
    let earlier = std::mem::take(&mut owner.sweeps);
    owner.work(&mut store, entry([index(C, 3)]));
    let later = std::mem::replace(&mut owner.sweeps, earlier);
    owner.sweep(&mut store);
    owner.clear(&mut store);
    assert_eq!(store.x(), "3 c [a b] | b@2 c@3");
    owner.sweeps = later;
    assert_eq!(owner.sweep(&mut store), ["delete a@3", "delete b@3"]);
}

#[test]
fn unanswered_sweep_is_still_owed() {
    let mut store = in_a();
    let mut owner = Owner::new();
    owner.begin(entry([index(B, 2)])).up_to(Round::CleanUp, &mut store);
    owner.answered(vec![StoreAnswer::Bulk(BulkOutcome::Unanswered)]);
    let outcome = owner.finish(&mut store);
    assert_eq!(outcome_in_short(&outcome), "moved");
    assert_eq!(owner.sweep(&mut store), ["delete a@2"]);
}
