//! Searches that some shards cannot answer: marked, or refused, as Elasticsearch itself does it.

use std::collections::BTreeSet;

use geofold::geoshard::GeoshardMap;
use serde_json::{Value, json};

use super::judge;
use super::router::{Answer, Router, Target};
use crate::official_clients::documents;
use crate::support::{World, WorldOptions};

/// `_shards` without what depends on the order in which shards answered.
fn shards(answer: &Answer) -> (Value, BTreeSet<String>) {
    let mut shards = answer.body["_shards"].clone();
    let failures = shards["failures"].take();
    let reason = |failure: &Value| failure["reason"]["type"].to_string();
    (shards, failures.as_array().into_iter().flatten().map(reason).collect())
}

#[test]
fn what_failing_shards_did_not_say_is_marked_as_elasticsearch_marks_it_and_refused_where_it_refuses() {
    let map = concat!(env!("CARGO_MANIFEST_DIR"), "/config/map-55.json");
    let config = vec![("geoshards", format!("map = {map:?}"))];
    let world = World::new(WorldOptions { config, ..WorldOptions::default() });
    let map = GeoshardMap::load(map.as_ref()).unwrap();
    let lines = documents(&map, &world.name);
    assert_eq!(world.stack.bulk(&lines)["errors"], false);
    // One geoshard knows the field; the others fail.
    let index = lines.split("\"_index\":\"").nth(1).unwrap().split('"').next().unwrap();
    let mapping = json!({"properties": {"rank": {"type": "integer"}}});
    world.stack.ask("PUT", &format!("/{index}/_mapping"), Some(mapping));
    world.stack.ask("POST", &format!("/{}-s*/_refresh", world.name), None);
    let router = Router::start(&world);
    let (routed, direct) = (router.target(&world), Target::indices(&world, "-s*"));
    let nearest = json!({"_geo_distance": {"location": [0, 50]}});
    for body in [
        json!({"sort": ["rank", nearest], "size": 50}),
        json!({"sort": [nearest, "rank"], "size": 50, "track_total_hits": true}),
    ] {
        let ask = |target: &Target, allowed: bool| {
            target.try_search(&format!("?allow_partial_search_results={allowed}"), &body).unwrap()
        };
        let (marked, expected) = (ask(&routed, true), ask(&direct, true));
        assert_eq!(expected.status, 200, "{expected:?}");
        assert!(expected.body["_shards"]["failed"].as_u64() > Some(40), "{expected:?}");
        assert_eq!(marked.status, 200, "{marked:?}");
        assert_eq!(shards(&marked), shards(&expected));
        assert_eq!(marked.body["timed_out"], false);
        assert_eq!(marked.body["hits"]["total"], expected.body["hits"]["total"]);
        let ids = |answer: &Answer| {
            let hits = judge::hits(&answer.body).unwrap();
            hits.iter().map(|hit| judge::id(hit).to_owned()).collect::<Vec<_>>()
        };
        assert!(!ids(&expected).is_empty());
        assert_eq!(ids(&marked), ids(&expected));
        for refused in [ask(&routed, false), routed.try_search("", &body).unwrap()] {
            let expected = ask(&direct, false);
            assert_eq!(
                (refused.status, &refused.body["error"]["type"]),
                (expected.status, &expected.body["error"]["type"])
            );
            assert!(refused.status >= 400 && refused.body.get("hits").is_none(), "{refused:?}");
        }
    }
}
