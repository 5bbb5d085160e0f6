//! Folding equals the records applied one by one, however they are grouped.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::base::geo::GeoPoint;
use crate::base::position::Epoch;
use crate::core::decode::merge_patch;
use crate::geoshard::cell;

fn position(offset: usize) -> Position {
    Position::new(Epoch::default(), offset.try_into().unwrap()).unwrap()
}

fn path() -> LocationPath {
    LocationPath::new("location").unwrap()
}

/// One geoshard per hemisphere.
fn shard(at: Leaf) -> ShardId {
    let middle = cell::middle(s2::cellid::CellID(at.id())).unwrap();
    ShardId::new(if middle.lat() < 0.0 { "south" } else { "north" }).unwrap()
}

fn index(doc: &str) -> Body {
    Body::Index { doc: doc.to_owned().into(), at: path().locate(doc.as_bytes()).unwrap().into() }
}

fn patch(patch: &str) -> Body {
    let moves = path().patch_move(patch.as_bytes()).unwrap();
    Body::Patch { patch: patch.to_owned().into(), moves }
}

/// A location in two fields, and the name of the added one.
fn pair() -> LocationPath {
    LocationPath::pair("lat", "lon", Some("at")).unwrap()
}

fn index_by(path: &LocationPath, doc: &str) -> Body {
    let (doc, at) = path.complete(Bytes::copy_from_slice(doc.as_bytes())).unwrap();
    Body::Index { doc, at: at.into() }
}

fn patch_by(path: &LocationPath, patch: &str) -> Body {
    let moves = path.patch_move(patch.as_bytes()).unwrap_or(PatchMove::Unclear);
    Body::Patch { patch: patch.to_owned().into(), moves }
}

fn one(body: Body, offset: usize) -> Fold {
    let id = DocId::from_key(Some(b"id")).unwrap();
    Fold::from_write(Write { id, position: position(offset), body }, shard).1
}

fn fold(bodies: impl IntoIterator<Item = Body>) -> Fold {
    let mut folds = bodies.into_iter().enumerate().map(|(offset, body)| one(body, offset));
    let mut whole = folds.next().unwrap();
    folds.for_each(|newer| whole.absorb(newer, &path()).unwrap());
    whole
}

fn patches(fold: &Fold) -> Vec<&str> {
    let Content::Patch { patches, .. } = &fold.content else { panic!("{fold:?}") };
    patches.iter().map(|patch| std::str::from_utf8(patch).unwrap()).collect()
}

fn target(id: &str) -> Target {
    Target::Shard(ShardId::new(id).unwrap())
}

#[test]
fn record_becomes_a_fold_with_its_target() {
    for (body, expected, is_located, is_touched) in [
        (index(r#"{"location":"1,2"}"#), vec![target("north")], true, false),
        (Body::Delete, vec![Target::Nowhere], true, false),
        (patch(r#"{"location":"-1,2"}"#), vec![target("south")], true, false),
        (patch(r#"{"location":{"lat":1}}"#), vec![Target::Unclear], true, false),
        (patch(r#"{"a":1}"#), vec![], false, false),
        (Body::Touch, vec![Target::Unclear], false, true),
        (Body::Refeed, vec![Target::Unclear], true, false),
    ] {
        let fold = one(body, 5);
        assert_eq!(fold.targets.to_vec(), expected, "{fold:?}");
        assert_eq!(fold.located_at, is_located.then_some(position(5)), "{fold:?}");
        assert_eq!(fold.touched_at, is_touched.then_some(position(5)), "{fold:?}");
    }
}

#[test]
fn patch_over_a_document_is_merged_and_moves_it() {
    let fold = fold([
        index(r#"{"location":{"lat":1,"lon":2},"n":1.10}"#),
        patch(r#"{"location":{"lat":-1},"m":2}"#),
    ]);
    let doc = r#"{"location":{"lat":-1,"lon":2},"n":1.10,"m":2}"#.into();
    assert_eq!(fold.content, Content::Index { doc, at: GeoPoint::new(-1.0, 2.0).unwrap().into() });
    assert_eq!(fold.targets.to_vec(), [target("north"), Target::Unclear]);
    assert_eq!((fold.first, fold.last, fold.records), (position(0), position(1), 2));
}

#[test]
fn fold_keeps_the_offsets_of_a_few_records() {
    let patches = |count: usize| fold((0..count).map(|_| patch(r#"{"a":1}"#)));
    assert_eq!(patches(1).separable(), None, "there is nothing to take apart");
    assert_eq!(patches(3).separable(), Some(vec![0, 1, 2]));
    assert_eq!(patches(MAX_SEPARABLE).separable().map(|offsets| offsets.len()), Some(MAX_SEPARABLE));
    assert_eq!(patches(MAX_SEPARABLE + 1).separable(), None);
    let mut rejecting = fold([index(r#"{"location":{"lat":1,"lon":2}}"#), patch(r#"{"a":1}"#)]);
    rejecting.absorb(one(patch(r#"{"location":{"lat":null}}"#), 5), &path()).unwrap_err();
    assert_eq!(rejecting.separable(), Some(vec![0, 1]), "what was rejected is not part of it");
}

#[test]
fn moving_there_and_back_keeps_both_targets() {
    let (north, south) = (r#"{"location":"1,2"}"#, r#"{"location":"-1,2"}"#);
    let fold = fold([index(north), index(south), Body::Delete, patch(north)]);
    assert_eq!(fold.targets.to_vec(), [target("north"), target("south"), Target::Nowhere]);
    assert_eq!(fold.content, Content::Patch { over: Base::Nothing, patches: vec![north.into()] });
}

#[test]
fn patches_are_composed_if_exact_and_listed_otherwise() {
    assert_eq!(patches(&fold([patch(r#"{"a":1}"#), patch(r#"{"b":null}"#)])), [r#"{"a":1,"b":null}"#]);
    let (scalar, object) = (r#"{"x":5}"#, r#"{"x":{"y":1}}"#);
    assert_eq!(patches(&fold([patch(scalar), patch(object)])), [scalar, object]);
    let toggled = (0..100).map(|turn| patch(if turn % 2 == 0 { scalar } else { object }));
    assert_eq!(patches(&fold(toggled)), [scalar, object]);
}

#[test]
fn touch_changes_nothing_but_its_position() {
    let touched = fold([Body::Touch, patch(r#"{"a":1}"#), Body::Touch, patch(r#"{"b":2}"#)]);
    assert_eq!(patches(&touched), [r#"{"a":1,"b":2}"#]);
    assert_eq!((touched.touched_at, touched.located_at), (Some(position(2)), None));
    let deleted = fold([Body::Delete, Body::Touch]);
    assert_eq!((deleted.content, deleted.located_at), (Content::Delete, Some(position(0))));
}

#[test]
fn patch_without_a_valid_location_is_rejected() {
    let doc = r#"{"location":"1,2"}"#;
    for (bad, reason) in
        [(r#"{"location":{"lat":5}}"#, "bad_location"), (r#"{"location":{}}"#, "bad_location")]
    {
        let mut whole = one(index(doc), 0);
        let rejected = whole.absorb(one(patch(bad), 1), &path()).unwrap_err();
        assert_eq!((rejected.stage(), rejected.reason()), ("fold", reason));
        assert_eq!((rejected.fold.last, rejected.fold.records), (position(1), 1));
        assert_eq!(
            whole.content,
            Content::Index { doc: doc.into(), at: GeoPoint::new(1.0, 2.0).unwrap().into() }
        );
        assert_eq!((whole.last, whole.located_at, whole.records), (position(0), Some(position(0)), 1));
        whole.pass(&rejected.fold);
        assert_eq!((whole.last, whole.located_at, whole.records), (position(1), Some(position(0)), 1));
        assert!(whole.targets.contains(&Target::Unclear));
    }
}

#[test]
fn patch_mixing_location_formats_is_rejected() {
    let mut whole = one(index(r#"{"location":{"type":"Point","coordinates":[2,1]}}"#), 0);
    assert!(whole.absorb(one(patch(r#"{"location":{"lat":-3,"lon":4}}"#), 1), &path()).is_err());
    let clean = patch(r#"{"location":{"lat":-3,"lon":4,"type":null,"coordinates":null}}"#);
    whole.absorb(one(clean, 2), &path()).unwrap();
    let doc = r#"{"location":{"lat":-3,"lon":4}}"#.into();
    assert_eq!(whole.content, Content::Index { doc, at: GeoPoint::new(-3.0, 4.0).unwrap().into() });
}

#[test]
fn stored_document_is_sent_on_one_line() {
    let stored = Some(b"{\n\"a\": [1,\r\n2]\n}".as_slice());
    let result = |body| one(body, 0).content.apply_to(stored, &path()).unwrap().unwrap();
    assert_eq!(result(Body::Touch), "{ \"a\": [1,  2] }");
    assert_eq!(result(patch(r#"{"b":3}"#)), "{\"a\":[1,  2],\"b\":3}");
}

#[test]
fn the_added_point_follows_every_change() {
    let pair = pair();
    let at = |lat, lon| Leaf::from(GeoPoint::new(lat, lon).unwrap());
    let mut whole = one(index_by(&pair, r#"{"lat":1,"lon":2}"#), 0);
    for (offset, change, doc, to) in [
        (1, r#"{"a":1}"#, r#"{"lat":1,"lon":2,"at":[2.0,1.0],"a":1}"#, at(1.0, 2.0)),
        (2, r#"{"lat":-1}"#, r#"{"lat":-1,"lon":2,"at":[2.0,-1.0],"a":1}"#, at(-1.0, 2.0)),
        (3, r#"{"at":{"lat":5}}"#, r#"{"lat":-1,"lon":2,"at":[2.0,-1.0],"a":1}"#, at(-1.0, 2.0)),
        (4, r#"{"at":null}"#, r#"{"lat":-1,"lon":2,"a":1,"at":[2.0,-1.0]}"#, at(-1.0, 2.0)),
    ] {
        whole.absorb(one(patch_by(&pair, change), offset), &pair).unwrap();
        assert_eq!(whole.content, Content::Index { doc: doc.into(), at: to }, "{change}");
    }
    let rejected = whole.absorb(one(patch_by(&pair, r#"{"lat":"north"}"#), 5), &pair);
    assert!(rejected.is_err(), "a patch of one half is checked");
    let stored = br#"{"lat":1,"lon":2}"#;
    for (body, expected) in [
        (Body::Touch, r#"{"lat":1,"lon":2,"at":[2.0,1.0]}"#),
        (Body::Refeed, r#"{"lat":1,"lon":2,"at":[2.0,1.0]}"#),
        (patch_by(&pair, r#"{"lon":3}"#), r#"{"lat":1,"lon":3,"at":[3.0,1.0]}"#),
    ] {
        assert_eq!(one(body, 0).content.apply_to(Some(stored), &pair).unwrap().unwrap(), expected);
    }
}

#[test]
fn memory_grows_with_the_content() {
    assert_eq!(one(Body::Delete, 0).bytes(), 0);
    assert_eq!(one(index(r#"{"location":"1,2"}"#), 0).bytes(), 18);
    assert!(fold([patch(r#"{"x":5}"#), patch(r#"{"x":{}}"#)]).bytes() >= 15 + 2 * size_of::<Bytes>());
}

/// Bodies over few members, so that they overlap; locations valid and partial.
fn any_body() -> impl Strategy<Value = Body> {
    let location = prop_oneof![
        Just(json!({"lat": 1, "lon": 2})),
        Just(json!({"lat": -1, "lon": 2})),
        Just(json!("-1,2")),
    ];
    let leaf = prop_oneof![Just(Value::Null), Just(json!(1)), Just(json!([{"a": null}]))];
    let member = leaf.prop_recursive(2, 8, 2, |inner| {
        prop::collection::btree_map("[ab]", inner, 0..3).prop_map(|members| json!(members))
    });
    let members = prop::collection::btree_map("[ab]", member, 0..3).prop_map(|members| json!(members));
    let change = prop_oneof![
        4 => Just(None),
        2 => location.clone().prop_map(Some),
        1 => Just(Some(json!({"lat": -3}))),
        1 => Just(Some(json!({}))),
    ];
    prop_oneof![
        1 => (members.clone(), location).prop_map(|(mut doc, location)| {
            doc["location"] = location;
            index(&doc.to_string())
        }),
        1 => Just(Body::Delete),
        1 => Just(Body::Touch),
        1 => Just(Body::Refeed),
        5 => (members, change).prop_map(|(mut change, location)| {
            if let Some(location) = location {
                change["location"] = location;
            }
            patch(&change.to_string())
        }),
    ]
}

/// Bodies with both parts of a location, one, or none; and patches of the added field.
fn any_body_of_pairs() -> impl Strategy<Value = Body> {
    let part =
        || prop_oneof![Just(None), Just(Some(json!(1))), Just(Some(json!("-2"))), Just(Some(Value::Null))];
    let added =
        prop_oneof![3 => Just(None), 1 => Just(Some(Value::Null)), 1 => Just(Some(json!({"lat": 9})))];
    let change = (part(), part(), added).prop_map(|(lat, lon, at)| {
        let members = [("lat", lat), ("lon", lon), ("at", at), ("a", Some(json!({"b": 1})))];
        let members = members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Value::Object(members.collect())
    });
    prop_oneof![
        1 => (-3..3_i32, -3..3_i32).prop_map(|(lat, lon)| index_by(&pair(), &json!({"lat": lat, "lon": lon}).to_string())),
        1 => Just(Body::Delete),
        1 => Just(Body::Touch),
        5 => change.prop_map(|change| patch_by(&pair(), &change.to_string())),
    ]
}

/// The record applied to a document, without folding.
fn naive(stored: Option<Value>, body: &Body) -> Option<Value> {
    let parse = |text: &Bytes| serde_json::from_slice::<Value>(text).unwrap();
    match body {
        Body::Index { doc, .. } => Some(parse(doc)),
        Body::Delete => None,
        Body::Patch { patch, .. } => Some(merge_patch::reference(stored, &parse(patch))),
        Body::Touch => stored,
        Body::Refeed => Some(source()),
    }
}

/// The source of truth's document.
fn source() -> Value {
    json!({"location": {"lat": 1, "lon": 2}, "a": {"b": 1}, "fed": true})
}

fn effect(content: &Content, stored: Option<&Value>) -> Option<Value> {
    let is_refed = matches!(content, Content::Refeed | Content::Patch { over: Base::Refed, .. });
    let stored = if is_refed { Some(source().to_string()) } else { stored.map(Value::to_string) };
    let document = content.apply_to(stored.as_deref().map(str::as_bytes), &path()).unwrap();
    document.map(|document| serde_json::from_slice(&document).unwrap())
}

/// Folds a run of folds along a random tree: `choices` selects the neighbours to fold next.
fn fold_in_any_order(mut folds: Vec<Fold>, choices: &[usize]) -> Result<Fold, Box<Rejected>> {
    let mut choices = choices.iter().cycle();
    while folds.len() > 1 {
        let at = choices.next().unwrap() % (folds.len() - 1);
        let newer = folds.remove(at + 1);
        folds[at].absorb(newer, &path())?;
    }
    Ok(folds.remove(0))
}

fn bases() -> [Option<Value>; 4] {
    [
        None,
        Some(json!({})),
        Some(json!({"a": {"a": 7, "z": 8}, "b": 9, "location": "5,5"})),
        Some(json!({"a": 1, "b": {"z": {}}})),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn fold_equals_its_records_applied_one_by_one(bodies in prop::collection::vec(any_body(), 1..8)) {
        for base in bases() {
            let mut whole: Option<Fold> = None;
            let mut expected = base.clone();
            for (offset, body) in bodies.iter().enumerate() {
                let newer = one(body.clone(), offset);
                let rejected = match &mut whole {
                    Some(whole) => whole.absorb(newer, &path()).map_err(|why| whole.pass(&why.fold)),
                    None => { whole = Some(newer); Ok(()) }
                };
                let is_rejected = rejected.is_err();
                let after = naive(expected.clone(), body);
                let whole = whole.as_ref().unwrap();
                if let Content::Index { doc, at } = &whole.content {
                    prop_assert_eq!(Leaf::from(path().locate(doc).unwrap()), *at);
                    let no_location = path().locate(after.as_ref().unwrap().to_string().as_bytes()).is_err();
                    prop_assert_eq!(is_rejected, no_location);
                }
                if !is_rejected {
                    expected = after;
                }
                prop_assert_eq!(effect(&whole.content, base.as_ref()), expected.clone());
                prop_assert_eq!(whole.last, position(offset));
            }
        }
    }

    #[test]
    fn the_added_point_does_not_depend_on_how_records_are_folded(
        bodies in prop::collection::vec(any_body_of_pairs(), 1..8),
        is_stored: bool,
    ) {
        let pair = pair();
        let complete = |document: Value| {
            let completed = pair.completed(document.to_string().into());
            serde_json::from_slice::<Value>(&completed).unwrap()
        };
        let base = is_stored.then(|| json!({"lat": 5, "lon": 5, "a": {"z": 1}}));
        let (mut expected, mut whole) = (base.clone(), None::<Fold>);
        for (offset, body) in bodies.iter().enumerate() {
            let newer = one(body.clone(), offset);
            let is_rejected = match &mut whole {
                Some(whole) => whole.absorb(newer, &pair).map_err(|why| whole.pass(&why.fold)).is_err(),
                None => { whole = Some(newer); false }
            };
            if !is_rejected {
                expected = naive(expected, body).map(complete);
            }
        }
        let content = whole.unwrap().content;
        let stored = base.map(|base| base.to_string());
        let document = content.apply_to(stored.as_deref().map(str::as_bytes), &pair).unwrap();
        prop_assert_eq!(document.is_some(), expected.is_some());
        let Some(document) = document else { return Ok(()) };
        // Without a location it is refused.
        let Ok(at) = pair.locate(&document) else { return Ok(()) };
        prop_assert!(pair.is_complete(&document, at));
        prop_assert_eq!(serde_json::from_slice::<Value>(&document).unwrap(), expected.unwrap());
        if let Content::Index { at: known, .. } = content {
            prop_assert_eq!(Leaf::from(at), known);
        }
    }

    #[test]
    fn grouping_of_records_into_folds_does_not_matter(
        bodies in prop::collection::vec(any_body(), 1..8),
        choices in prop::collection::vec(any::<usize>(), 8),
    ) {
        let folds: Vec<Fold> = bodies.into_iter().enumerate().map(|(offset, body)| one(body, offset)).collect();
        let count = folds.len();
        let in_order = fold_in_any_order(folds.clone(), &[0]);
        let in_any_order = fold_in_any_order(folds, &choices);
        let (Ok(left), Ok(right)) = (in_order, in_any_order) else { return Ok(()) };
        for base in bases() {
            prop_assert_eq!(effect(&left.content, base.as_ref()), effect(&right.content, base.as_ref()));
        }
        if let (Content::Index { at: left, .. }, Content::Index { at: right, .. }) = (&left.content, &right.content) {
            prop_assert_eq!(left, right);
        }
        prop_assert_eq!((right.first, right.last), (position(0), position(count - 1)));
        prop_assert_eq!(usize::try_from(right.records).unwrap(), count);
        prop_assert_eq!(
            (left.located_at, left.touched_at, left.targets),
            (right.located_at, right.touched_at, right.targets)
        );
    }
}
