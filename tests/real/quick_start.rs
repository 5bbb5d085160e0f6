//! The README's quick start, as a person would do it.

use serde_json::json;

use crate::support::{TIMEOUT, World, WorldOptions, text, wait_at_most};

#[test]
fn create_locate_send_run_and_search() {
    let world = World::without_indices(WorldOptions {
        config: vec![(
            "geoshards",
            format!("map = {:?}", concat!(env!("CARGO_MANIFEST_DIR"), "/config/map-55.json")),
        )],
        ..WorldOptions::default()
    });
    let created = world.geofold(&["shards", "create"]);
    assert!(created.status.success(), "{}", text(&created));
    assert!(text(&created).contains(" 0 were there"), "{}", text(&created));
    let again = world.geofold(&["shards", "create"]);
    assert!(again.status.success(), "{}", text(&again));
    assert!(text(&again).starts_with("0 indices created"), "{}", text(&again));

    let located = world.geofold(&["shards", "locate", "48.8566", "2.3522", "--json"]);
    assert!(located.status.success(), "{}", text(&located));
    let located: serde_json::Value = serde_json::from_slice(&located.stdout).unwrap();
    let index = located["index"].as_str().unwrap().to_owned();
    assert!(index.starts_with(&world.name), "{located}");

    // As a person writes them: the id within, a tab in front, an operation between.
    let file = world.config.with_file_name("people.jsonl");
    let lines = [
        r#"{"id": 41, "name": "Ann", "location": {"lat": 48.8566, "lon": 2.3522}}"#,
        r#"{"id": 42, "name": "Bob", "location": [2.36, 48.85]}"#,
        "eve\t{\"name\": \"Eve\", \"location\": \"40.7128,-74.0060\"}",
        "eve\tpatch\t{\"location\": {\"lat\": 48.86, \"lon\": 2.34}}",
        "sam\t{\"name\": \"Sam\", \"location\": [-74.0060, 40.7128]}",
        "gone\t{\"location\": [2.35, 48.85]}",
        "gone\t",
    ];
    std::fs::write(&file, lines.join("\n")).unwrap();
    let sent = world.geofold(&["send", file.to_str().unwrap()]);
    assert!(sent.status.success(), "{}", text(&sent));

    let worker = world.worker();
    worker.wait_until_ready();
    world.wait_until_committed(TIMEOUT);
    // What Elasticsearch shows by itself within its refresh interval.
    let query =
        json!({"query": {"geo_distance": {"distance": "5km", "location": {"lat": 48.8566, "lon": 2.3522}}}});
    wait_at_most("the people in Paris", TIMEOUT, || {
        let answer = world.stack.ask("POST", &format!("/{index}/_search"), Some(query.clone()));
        let mut names: Vec<String> = answer["hits"]["hits"]
            .as_array()?
            .iter()
            .map(|hit| hit["_source"]["name"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        (names == ["Ann", "Bob", "Eve"]).then_some(())
    });
    worker.stop();
    let copies = world.copies();
    assert_eq!(copies.keys().collect::<Vec<_>>(), ["41", "42", "eve", "sam"]);
    assert!(copies.values().all(|copies| copies.len() == 1), "{copies:?}");
}
