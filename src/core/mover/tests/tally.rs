//! Recorded facets, and the edges of a finished entry (docs/tally.md).

use super::store::{TestStore, UNACCEPTABLE};
use super::*;
use crate::core::counting::facets::{FacetLimits, FacetRules};
use crate::core::mover::HISTORY_FULL;

fn counting() -> Rules {
    let limits = FacetLimits { max_value_bytes: 20, max_values: 10 };
    Rules { tally: Some(FacetRules::new(true, [("tag", "tag")], limits)), ..rules() }
}

/// A counting owner that knows the partition committed up to this offset.
fn owner_from(committed: i64) -> Owner {
    let mut owner = Owner::by(counting());
    owner.state.as_mut().unwrap().committed = at(committed);
    owner
}

fn fold<const N: usize>(writes: [Write; N]) -> Entry {
    entry_by(&counting(), writes)
}

fn tagged(place: f64, tag: &str, offset: i64) -> Write {
    let doc = format!(r#"{{"location":{{"lat":1,"lon":{place}}},"n":{offset},"tag":"{tag}"}}"#);
    let at_place = path().locate(doc.as_bytes()).unwrap().into();
    write(offset, Body::Index { doc: doc.into(), at: at_place })
}

fn tag(tag: &str, offset: i64) -> Write {
    patch(&format!(r#"{{"tag":"{tag}"}}"#), offset)
}

/// `1 a red, 5 b`: the history of document `x`, each version with all its values.
fn history(store: &TestStore) -> String {
    let Some(placement) = store.view(&id("x")).placement else { return String::new() };
    let versions = placement.versions.versions().iter().map(|version| {
        let values: Vec<&str> = version.facets.iter().map(|(_, value)| value).collect();
        format!("{} {}", version.pos.offset(), values.join(" ")).trim_end().to_owned()
    });
    versions.collect::<Vec<_>>().join(", ")
}

/// `5: a -1 b +1`, and empties the list.
fn edges(owner: &mut Owner) -> Vec<String> {
    let edges = owner.edges.drain(..).map(|edge| {
        let changes: Vec<String> =
            edge.delta().iter().map(|(_, value, by)| format!("{value} {by:+}")).collect();
        format!("{}: {}", edge.pos.offset(), changes.join(" "))
    });
    edges.collect()
}

/// Document `x` in geoshard `a`, tagged red by record 1, by a counting owner.
fn red_in_a() -> TestStore {
    let mut store = TestStore::default();
    let outcome = owner_from(1).work_out(&mut store, fold([tagged(A, "red", 1)]));
    assert_eq!(outcome_in_short(&outcome), "indexed");
    assert_eq!(history(&store), "1 a red");
    store
}

/// The first call of an entry over document `x` in `a`, tagged red.
fn first_call(entry: Entry) -> String {
    let mut store = red_in_a();
    let mut owner = owner_from(2);
    owner.begin(entry).up_to(Round::Announce, &mut store);
    in_short(&owner.batch().calls()).remove(0)
}

#[test]
fn in_place_requires_unchanged_facets_at_every_record() {
    let aside = |offset| patch(r#"{"n":9}"#, offset);
    for in_place in [
        fold([tagged(A, "red", 5)]),
        fold([tagged(A, "red", 4), tagged(A, "red", 5)]),
        fold([tagged(A, "red", 4), aside(5)]),
        fold([aside(4), aside(5)]),
        fold([aside(4), tagged(A, "red", 5)]),
        fold([tag("red", 5)]),
    ] {
        assert_eq!(first_call(in_place), "put a@5");
    }
    for ahead in [
        fold([tagged(A, "blue", 5)]),
        fold([index(A, 5)]),
        fold([tagged(A, "blue", 4), tagged(A, "red", 5)]),
        fold([tagged(A, "red", 4), tag("red", 5)]),
        fold([tag("red", 4), tagged(A, "red", 5)]),
        fold([tag("blue", 4), tag("red", 5)]),
        fold([tag("blue", 5)]),
        fold([touch(5)]),
    ] {
        let what = format!("{ahead:?}");
        assert_eq!(first_call(ahead), "place 5 a [] if unchanged", "{what}");
    }
}

#[test]
fn changed_facets_leave_an_edge_and_a_version() {
    let mut store = red_in_a();
    let mut owner = owner_from(2);
    owner.work_out(&mut store, fold([tagged(A, "blue", 5)]));
    assert_eq!(edges(&mut owner), ["5: blue +1 red -1"]);
    owner.work_out(&mut store, fold([tagged(B, "blue", 6)]));
    assert_eq!(edges(&mut owner), ["5: blue +1 red -1", "6: a -1 b +1"], "5 is not committed yet");
    owner.work_out(&mut store, fold([delete(7)]));
    assert_eq!(history(&store), "1 a red, 5 a blue, 6 b blue, 7", "nor is anything above it");
    owner.edges.clear();
    owner.state.as_mut().unwrap().committed = at(8);
    owner.work_out(&mut store, fold([index(C, 8)]));
    assert_eq!(history(&store), "7, 8 c");
    assert_eq!(edges(&mut owner), ["8: c +1"]);
}

#[test]
fn finished_entry_has_the_edges_recorded_by_others() {
    let rows = [
        (
            "resumed",
            fold([tagged(A, "blue", 5)]),
            fold([tagged(A, "blue", 5)]),
            "already applied",
            "5: blue +1 red -1",
        ),
        (
            "in place",
            fold([tagged(A, "blue", 5)]),
            fold([tagged(A, "blue", 6)]),
            "indexed",
            "5: blue +1 red -1",
        ),
        (
            "a dead letter",
            fold([tagged(A, "blue", 5)]),
            fold([patch(&format!(r#"{{"n":"{UNACCEPTABLE}"}}"#), 6)]),
            "dead letter: refused_by_elasticsearch",
            "5: blue +1 red -1",
        ),
    ];
    for (what, dead, next, outcome, edge) in rows {
        let mut store = red_in_a();
        owner_from(2).work_out(&mut store, dead);
        let mut owner = owner_from(2);
        assert_eq!(outcome_in_short(&owner.work_out(&mut store, next)), outcome, "{what}");
        assert_eq!(edges(&mut owner)[0], edge, "{what}");
    }
}

#[test]
fn finished_decision_of_a_lost_record_leaves_its_edge() {
    let mut store = red_in_a();
    owner_from(2).begin(fold([tagged(B, "blue", 6)])).up_to(Round::WriteDocuments, &mut store);
    let mut owner = owner_from(2);
    let mut entry = fold([tagged(A, "red", 5)]);
    entry.carry.finish_recorded = true;
    owner.work_out(&mut store, entry);
    assert_eq!(edges(&mut owner), ["6: a -1 b +1 blue +1 red -1"]);
}

#[test]
fn copy_already_written_in_place_is_recorded_with_facets() {
    let mut store = red_in_a();
    owner_from(2).work_out(&mut store, fold([tagged(A, "red", 5)]));
    let mut owner = owner_from(2);
    owner.begin(fold([patch(r#"{"n":9}"#, 5)])).up_to(Round::Announce, &mut store);
    assert_eq!(in_short(&owner.batch().calls()), ["place 5 a [] if unchanged"]);
    assert_eq!(outcome_in_short(&owner.finish(&mut store)), "already applied");
    assert_eq!(history(&store), "1 a red, 5 a red");
    assert_eq!(edges(&mut owner), ["5: "], "it takes the place of whatever was there");
}

#[test]
pub(super) fn refused_document_keeps_its_counts() {
    let bad = |tag: &str, offset| {
        let doc = format!(r#"{{"location":{{"lat":1,"lon":{A}}},"tag":"{tag}","n":"{UNACCEPTABLE}"}}"#);
        let at_place = path().locate(doc.as_bytes()).unwrap().into();
        write(offset, Body::Index { doc: doc.into(), at: at_place })
    };
    // Written ahead, then in place: that position is recorded, too, so that no owner counts one below it afterwards.
    for (tag, first) in [("blue", "place 5 a [] if unchanged"), ("red", "put a@5")] {
        let mut store = red_in_a();
        let entry = fold([bad(tag, 5)]);
        assert_eq!(first_call(entry.clone()), first);
        let mut owner = owner_from(2);
        let outcome = owner.work_out(&mut store, entry);
        assert_eq!(outcome_in_short(&outcome), "dead letter: refused_by_elasticsearch");
        assert_eq!((history(&store).as_str(), store.x().as_str()), ("1 a red, 5 a red", "5! a [] | a@5"));
        assert_eq!(edges(&mut owner), ["5: "]);
    }
}

#[test]
fn full_history_waits_for_a_commit_unless_it_holds_the_entry() {
    let mut store = red_in_a();
    let mut owner = owner_from(2);
    owner.state.as_mut().unwrap().max_versions = 2;
    for (offset, colour) in [(5, "blue"), (6, "red")] {
        owner.work_out(&mut store, fold([tagged(A, colour, offset)]));
    }
    let next = fold([tagged(A, "blue", 7)]);
    let Outcome::Again { reason: HISTORY_FULL, carry } = owner.work(&mut store, next.clone()) else {
        panic!("it does not wait")
    };
    assert!(carry.awaits_commit);
    let in_place = owner.work(&mut store, fold([tagged(A, "red", 7)]));
    assert_eq!(outcome_in_short(&in_place), "indexed");

    // An owner that starts without a commit would wait for a commit that waits for it.
    let mut other = owner_from(2);
    other.state.as_mut().unwrap().max_versions = 2;
    let overlaps = fold([tagged(A, "red", 6), tagged(A, "blue", 8)]);
    assert_eq!(outcome_in_short(&other.work(&mut store, overlaps)), "indexed");

    owner.state.as_mut().unwrap().committed = at(7);
    owner.state.as_mut().unwrap().cache.clear();
    owner.work_out(&mut store, fold([tagged(A, "red", 9)]));
    assert_eq!(history(&store), "6 a red, 8 a blue, 9 a red");
}

#[test]
fn without_counting_histories_are_neither_written_nor_lost() {
    let mut store = red_in_a();
    let mut owner = Owner::new();
    owner.work_out(&mut store, entry([tagged(B, "blue", 5)]));
    assert_eq!((history(&store).as_str(), edges(&mut owner).len()), ("1 a red", 0));
    owner.clear(&mut store);
    assert_eq!((history(&store).as_str(), store.x().as_str()), ("1 a red", "5 b [] | b@5"));

    let mut store = TestStore::default();
    Owner::new().work_out(&mut store, entry([tagged(A, "red", 1)]));
    assert_eq!(store.view(&id("x")).placement, placed(1, Some("a"), &[]));
    let mut owner = owner_from(2);
    owner.work_out(&mut store, fold([tagged(A, "red", 5)]));
    assert_eq!(edges(&mut owner), ["5: a +1 red +1"], "it was not counted before");
}
