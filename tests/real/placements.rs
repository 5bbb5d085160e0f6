//! More primaries for the placements index, as docs/operations.md says, and what Elasticsearch's `_split` and `_clone` keep.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{CITIES, Event, TIMEOUT, Truth, World, WorldOptions, text};

const DOCUMENTS: usize = 200;

fn write(n: usize, round: usize) -> Event {
    let (lat, lon) = CITIES[(n + round) % CITIES.len()];
    Event::Index { id: format!("d{n}"), document: json!({"location": {"lat": lat, "lon": lon}, "n": round}) }
}

/// All documents, of which a third is deleted again.
fn round(round: usize) -> Vec<Event> {
    let deletes =
        (0..DOCUMENTS).filter(|n| n % 3 == round % 3).map(|n| Event::Delete { id: format!("d{n}") });
    (0..DOCUMENTS).map(|n| write(n, round)).chain(deletes).collect()
}

/// Sequence number, primary term and content of each placement, by a realtime read.
fn stamps(world: &World) -> BTreeMap<String, Value> {
    let asked: Vec<Value> = (0..DOCUMENTS).map(|n| json!({"_id": format!("d{n}")})).collect();
    let path = format!("/{}-placements/_mget", world.name);
    let answer = world.stack.ask("POST", &path, Some(json!({"docs": asked})));
    let stamp = |doc: &Value| {
        assert_eq!(doc["found"], true, "{doc}");
        (
            doc["_id"].as_str().unwrap().to_owned(),
            json!([doc["_seq_no"], doc["_primary_term"], doc["_source"]]),
        )
    };
    answer["docs"].as_array().unwrap().iter().map(stamp).collect()
}

/// What docs/operations.md says to run, for this server and index.
fn script_of_the_page(elasticsearch: &str, index: &str) -> String {
    let page = include_str!("../../docs/operations.md");
    let (_, section) = page.split_once("\n## More primaries for placements\n").unwrap();
    let (_, block) = section.split_once("```sh\n").unwrap();
    let (script, _) = block.split_once("```").unwrap();
    for part in ["http://localhost:9200", "geofold-placements", "primaries=4", "replicas=1"] {
        assert!(script.contains(part), "{part}: {script}");
    }
    let script = script.replace("http://localhost:9200", elasticsearch).replace("geofold-placements", index);
    // Replicas are the one setting that does not come along by itself.
    script.replace("replicas=1", "replicas=0")
}

#[test]
fn split_placements_keep_their_sequence_numbers_and_work_goes_on() {
    let config = [("placements", "replicas = 0".to_owned())].into();
    let world = World::new(WorldOptions { config, ..WorldOptions::default() });
    let mut truth = Truth::new();
    let send = |events: Vec<Event>, truth: &mut Truth| {
        events.iter().for_each(|event| truth.apply(event));
        world.send(&events);
    };
    let worker = world.worker();
    for n in 0..2 {
        send(round(n), &mut truth);
        world.wait_until_committed(TIMEOUT);
    }
    worker.stop();
    let before = stamps(&world);

    let index = format!("{}-placements", world.name);
    let script = script_of_the_page(&world.stack.elasticsearch, &index);
    let output = Command::new("bash").args(["-euc", &script]).output().unwrap();
    assert!(output.status.success(), "{script}{}", text(&output));

    assert_eq!(stamps(&world), before, "what compare-and-set compares, and the placements");
    let said = world.geofold(&["shards", "create"]);
    let message =
        format!("{index}: index.number_of_shards is 4, but placements.primaries is 1: set the key to 4\n");
    assert!(said.status.success() && text(&said).contains(&message), "{}", text(&said));
    let config = std::fs::read_to_string(&world.config).unwrap();
    std::fs::write(&world.config, config.replace("replicas = 0", "replicas = 0\nprimaries = 4")).unwrap();
    let said = world.geofold(&["check"]);
    assert!(said.status.success(), "{}", text(&said));
    assert!(
        text(&said).contains("placements, ") && text(&said).contains("in 4 primaries"),
        "{}",
        text(&said)
    );
    assert!(!text(&said).contains(&format!("index {index}")), "all settings came along: {}", text(&said));

    // Each primary goes on counting above what any had counted.
    let last = before.values().filter_map(|stamp| stamp[0].as_u64()).max().unwrap();
    let worker = world.worker();
    send(round(2), &mut truth);
    world.wait_until_committed(TIMEOUT);
    let after = stamps(&world);
    assert!(after.values().all(|stamp| stamp[0].as_u64() > Some(last)), "{last}: {after:?}");
    world.assert_holds(&truth);
    assert_eq!(world.wrong_placements(&truth), Vec::<String>::new());
    assert!(world.geofold(&["audit", "--settle", "1s"]).status.success());
    worker.stop();
}
