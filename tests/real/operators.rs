//! `geofold status` and `geofold dead-letters skip` on a real broker: it describes its groups, and refuses an offset from outside while a
//! group has members. `tests/it/operators.rs` has the rest on the stand-ins.

use serde_json::{Value, json};

use crate::support::{CITIES, Event, Raw, TIMEOUT, World, WorldOptions, text, wait_at_most};

fn stops_and_is_skipped(protocol: &str) {
    let world = World::new(WorldOptions {
        partitions: 2,
        config: vec![
            ("kafka", format!("group_protocol = {protocol:?}")),
            ("dead_letter", "policy = \"stop\"".to_owned()),
        ],
    });
    let raw = |key: &str, value: &str| Raw {
        partition: Some(1),
        key: Some(key.as_bytes().to_vec()),
        value: Some(value.as_bytes().to_vec()),
        headers: Vec::new(),
    };
    let (lat, lon) = CITIES[0];
    let document =
        Event::Index { id: "a".to_owned(), document: json!({"location": {"lat": lat, "lon": lon}}) }.to_raw();
    let document = Raw { partition: Some(1), ..document };
    let worker = world.worker();
    world.produce(&[document.clone(), raw("bad", "{"), document]);
    wait_at_most("a stopped partition", TIMEOUT, || {
        worker.not_ready_because().contains("bad record").then_some(())
    });
    let status = || -> Value {
        let output = world.geofold(&["status", "--json", "--sample", "1s", "--workers", worker.address()]);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output)))
    };
    let seen = wait_at_most("the committed offset", TIMEOUT, || {
        Some(status()).filter(|seen| seen["partitions"][1]["committed"] == 1)
    });
    if protocol == "classic" {
        assert_eq!(seen["description"]["state"], "Stable", "{seen}");
        assert_eq!(seen["description"]["members"][0]["partitions"], json!([0, 1]), "{seen}");
    }
    let partition = &seen["partitions"][1];
    assert_eq!((&partition["state"], &partition["lag"]), (&json!("stopped"), &json!(2)), "{seen}");
    assert!(partition["owner"].as_str().unwrap().contains("geofold-test"), "{seen}");
    assert!(seen["findings"][0].as_str().unwrap().contains("partition 1 is stopped: bad record"), "{seen}");

    let letters = format!("{}-dead", world.name);
    let skip = || {
        let to = ["--partition", "1", "--offset", "1", "--why", "bad", "--dead-letter-topic", &letters];
        world.geofold(&[&["dead-letters", "skip"], &to[..]].concat())
    };
    let refused = skip();
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    assert!(text(&refused).contains("Stop all workers"), "{}", text(&refused));
    assert_eq!((world.committed()[&1], world.dead_letters().len()), (1, 0));
    worker.stop();
    let skipped = skip();
    assert!(skipped.status.success(), "{}", text(&skipped));
    assert_eq!(world.committed()[&1], 2);
    assert_eq!(world.dead_letters()[0].headers["geofold-error-reason"], "skipped_by_operator");
    let worker = world.worker();
    world.wait_until_committed(TIMEOUT);
    let located = world.geofold(&["where", "a"]);
    assert!(located.status.success() && text(&located).contains("in place"), "{}", text(&located));
    worker.stop();
}

#[test]
fn stopped_partition_is_seen_and_its_record_skipped_in_a_classic_group() {
    stops_and_is_skipped("classic");
}

#[test]
fn stopped_partition_is_seen_and_its_record_skipped_in_a_consumer_group() {
    stops_and_is_skipped("consumer");
}
