//! Facets by example, and against a reference on a JSON tree.

use serde_json::{Map, Value as Json, json};

use super::*;
use crate::base::random::{Random, seed_of_test};
use crate::core::decode::merge_patch;

const LIMITS: FacetLimits = FacetLimits { max_value_bytes: 8, max_values: 3 };

fn rules(facets: &[(&str, &str)]) -> FacetRules {
    FacetRules::new(true, facets.iter().copied(), LIMITS)
}

fn facets(rules: &FacetRules, document: &str) -> Json {
    let facets = rules.facets(document.as_bytes(), &ShardId::new("3").unwrap());
    let text = serde_json::to_string(&facets).unwrap();
    assert_eq!(serde_json::from_str::<Facets>(&text).unwrap(), facets);
    serde_json::from_str(&text).unwrap()
}

#[test]
fn values_are_found_along_all_paths() {
    let rules = rules(&[("tags", "tags"), ("sex", "person.sex"), ("city", "person.home.city")]);
    for document in [
        r#"{"tags":["b","a","b"],"person":{"sex":"f","age":5,"home":{"city":"Ulm","zip":[1]}}}"#,
        r#"{"x":{"tags":"no","person":{"sex":"x"}},"person.sex":"f","person.home":{"city":"Ulm"},"tags":["a","b"]}"#,
        r#" { "t\u0061gs" : [ "b" , "\u0061" , null, {"a":"c"}, ["d"] ] , "person" : {"sex":"f","home.city":"Ulm"} } "#,
        // Elasticsearch merges the values of one field in two spellings.
        r#"{"tags":"a","person":{"sex":"f"},"person.home.city":"Ulm","tags":["b"]}"#,
    ] {
        assert_eq!(
            facets(&rules, document),
            json!({"city": ["Ulm"], "geoshard": ["3"], "sex": ["f"], "tags": ["a", "b"]}),
            "{document}"
        );
    }
}

#[test]
fn null_objects_and_missing_members_are_no_values() {
    let rules = rules(&[("a", "a"), ("b", "b.c")]);
    for document in [
        "{}",
        r#"{"a":null,"b":null}"#,
        r#"{"a":{"c":1},"b":[{"c":1}]}"#,
        r#"{"a":[],"b":5}"#,
        r#"{"a":[[1]]}"#,
    ] {
        assert_eq!(facets(&rules, document), json!({"geoshard": ["3"]}), "{document}");
    }
}

#[test]
fn number_is_one_value_in_any_notation() {
    let rules = rules(&[("n", "n")]);
    for (written, counted) in [
        ("1", "1"),
        ("\"1\"", "1"),
        ("1.0", "1"),
        ("10e-1", "1"),
        ("-0", "0"),
        ("-0.0", "0"),
        ("0.50", "0.5"),
        ("1e3", "1000"),
        ("1e300", "1e+300"),
        ("1e400", "1e400"),
        ("true", "true"),
        ("false", "false"),
    ] {
        assert_eq!(facets(&rules, &format!(r#"{{"n":{written}}}"#))["n"], json!([counted]), "{written}");
    }
    let long = FacetRules::new(true, [("n", "n")], FacetLimits { max_value_bytes: 99, max_values: 9 });
    let digits = "123456789012345678901234567890";
    assert_eq!(facets(&long, &format!(r#"{{"n":{digits}}}"#))["n"], json!([digits]));
}

#[test]
fn oversized_excess_and_unstorable_values_are_skipped_and_counted() {
    let counter = IntCounter::new("left_out", "left out").unwrap();
    let rules = rules(&[("t", "t")]).counting_left_out(counter.clone());
    let document = r#"{"t":["12345678","123456789","d","\u0000","\ud800","a","c","b","a","d"]}"#;
    assert_eq!(facets(&rules, document)["t"], json!(["12345678", "a", "b"]));
    // Three unstorable ones, "c" and "d".
    assert_eq!(counter.get(), 5);
    let long: Vec<String> = (0..1_000).map(|n| format!("{n:03}")).rev().collect();
    assert_eq!(facets(&rules, &json!({ "t": long }).to_string())["t"], json!(["000", "001", "002"]));
    assert_eq!(counter.get(), 5 + 997);
}

#[test]
fn invalid_json_gives_stable_facets_without_panic() {
    let rules = rules(&[("a", "a"), ("b", "b.c")]);
    let shard = ShardId::new("3").unwrap();
    let seed = seed_of_test();
    let mut random = Random::new(seed);
    const PARTS: &[&str] =
        &["{", "}", "[", "]", "\"", "\\", ":", ",", "\"a\"", "\"b\":{\"c\":", "1e4", " ", "é"];
    for _ in 0..5_000 {
        let text: String = (0..random.below(20)).map(|_| *pick(&mut random, PARTS)).collect();
        let twice = [0, 1].map(|_| rules.facets(text.as_bytes(), &shard));
        assert_eq!(twice[0], twice[1], "seed {seed}: {text}");
        rules.is_touched_by_patch(text.as_bytes());
    }
}

#[test]
fn document_without_values_has_no_facets() {
    let rules = FacetRules::new(false, [("a", "a"), (GEOSHARD_FACET, "b")], LIMITS);
    assert_eq!(facets(&rules, r#"{"a":1,"b":2}"#), json!({"a": ["1"]}));
    assert!(rules.facets(br#"{"b":2}"#, &ShardId::new("3").unwrap()).is_empty());
}

#[test]
fn delta_is_added_and_removed_values() {
    let rules = rules(&[("t", "t")]);
    let of = |document: &str, shard: &str| rules.facets(document.as_bytes(), &ShardId::new(shard).unwrap());
    let (before, after) = (of(r#"{"t":["a","b"]}"#, "3"), of(r#"{"t":["b","c"]}"#, "4"));
    assert_eq!(
        after.delta_since(&before).iter().collect::<Vec<_>>(),
        [("geoshard", "3", -1), ("geoshard", "4", 1), ("t", "a", -1), ("t", "c", 1)]
    );
    assert!(before.delta_since(&before.clone()).is_empty());
    let mut there_and_away = after.delta_since(&Facets::default());
    there_and_away.merge(&Facets::default().delta_since(&after));
    assert!(there_and_away.is_empty());
}

#[test]
fn facets_read_back_are_ordered_without_empty_ones() {
    let read: Facets = serde_json::from_str(r#"{"z":["b","a","b"],"e":[],"a":["x"]}"#).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), r#"{"a":["x"],"z":["a","b"]}"#);
    assert_eq!(serde_json::from_str::<Facets>(r#"{"e":[]}"#).unwrap(), Facets::default());
    assert_eq!(serde_json::to_string(&Facets::default()).unwrap(), "{}");
}

const PATHS: &[(&str, &str)] = &[("a", "a"), ("ab", "a.b"), ("b", "b"), ("bac", "b.a.c"), ("z", "z")];

fn pick<'a, T>(random: &mut Random, choices: &'a [T]) -> &'a T {
    &choices[usize::try_from(random.below(choices.len() as u64)).unwrap()]
}

/// Any value of a few levels, with keys on and off the paths.
fn any_value(random: &mut Random, depth: u32) -> Json {
    match random.below(if depth == 0 { 6 } else { 9 }) {
        0 => Json::Null,
        1 => json!(random.below(3)),
        2 => json!(random.share() - 0.5),
        3 => json!(random.below(2) == 0),
        4 => json!(pick(random, &["", "a", "é", "q\"\\u", "line\nbreak", "\u{1F600}", "a longer one"])),
        5 => json!("x"),
        6 => Json::Array((0..random.below(6)).map(|_| any_value(random, depth - 1)).collect()),
        _ => any_object(random, depth - 1),
    }
}

fn any_object(random: &mut Random, depth: u32) -> Json {
    const KEYS: &[&str] = &["a", "b", "c", "z", "a.b", "b.a", "a.c", "b.", "", "é\n"];
    let members = (0..random.below(5)).map(|_| (pick(random, KEYS).to_string(), any_value(random, depth)));
    Json::Object(members.collect::<Map<_, _>>())
}

/// The values at a path, found in a tree.
fn reference(value: &Json, path: &str, values: &mut BTreeSet<String>) {
    let Json::Object(members) = value else { return };
    for (key, value) in members {
        if key == path {
            let elements =
                if let Json::Array(elements) = value { elements } else { std::slice::from_ref(value) };
            for element in elements {
                match element {
                    Json::String(text) => values.insert(text.clone()),
                    Json::Number(number) => values.insert(number.to_string()),
                    Json::Bool(bool) => values.insert(bool.to_string()),
                    Json::Null | Json::Array(_) | Json::Object(_) => false,
                };
            }
        } else if let Some(rest) = path.strip_prefix(&format!("{key}.")) {
            reference(value, rest, values);
        }
    }
}

fn all_of(document: &Json) -> Json {
    let mut all: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (name, path) in PATHS {
        let mut values = BTreeSet::new();
        reference(document, path, &mut values);
        values.retain(|value| value.len() <= LIMITS.max_value_bytes);
        if !values.is_empty() {
            all.insert(name, values.into_iter().take(LIMITS.max_values).collect());
        }
    }
    all.insert(GEOSHARD_FACET, BTreeSet::from(["3".to_owned()]));
    serde_json::to_value(all).unwrap()
}

/// White space and escapes that keep a text's meaning.
fn written_otherwise(text: &str) -> String {
    text.replace("\"a\"", " \"\\u0061\"\t").replace([','], "\r\n, ").replace("{}", "{ }").replace("[]", "[ ]")
}

#[test]
fn facets_match_those_of_a_json_tree() {
    let (seed, rules) = (seed_of_test(), rules(PATHS));
    println!("GEOFOLD_SEED={seed}");
    let mut random = Random::new(seed);
    let mut counted = 0;
    for _ in 0..5_000 {
        let document = any_object(&mut random, 3);
        let text = document.to_string();
        let wanted = all_of(&document);
        assert_eq!(facets(&rules, &text), wanted, "seed {seed}: {text}");
        if !text.contains("longer") && !text.contains("line") && !text.contains('q') {
            let otherwise = written_otherwise(&text);
            assert_eq!(facets(&rules, &otherwise), wanted, "seed {seed}: {otherwise}");
        }
        counted += wanted.as_object().unwrap().len();
    }
    assert!(counted > 6_000, "seed {seed}: only {counted} facets were there to be found");
}

#[test]
fn patch_touches_facets_iff_it_may_change_them() {
    let (seed, rules) = (seed_of_test(), rules(PATHS));
    println!("GEOFOLD_SEED={seed}");
    let mut random = Random::new(seed);
    let (mut untouched, mut changed) = (0, 0);
    for _ in 0..5_000 {
        let (base, patch) = (any_object(&mut random, 2).to_string(), any_object(&mut random, 2).to_string());
        let patched = merge_patch::apply(Some(base.as_bytes()), patch.as_bytes()).unwrap();
        let patched = std::str::from_utf8(&patched).unwrap();
        let touches = rules.is_touched_by_patch(patch.as_bytes());
        let changes = facets(&rules, &base) != facets(&rules, patched);
        assert!(touches || !changes, "seed {seed}: {base} + {patch} = {patched}");
        untouched += u32::from(!touches);
        changed += u32::from(changes);
    }
    assert!(untouched > 500 && changed > 500, "seed {seed}: {untouched} {changed}");
}
