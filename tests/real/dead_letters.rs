//! Promise 3, nothing lost: what cannot be carried out goes to the dead-letter topic as it was, with the reason, or stops
//! its partition; it is never passed over.

use std::collections::BTreeMap;

use serde_json::json;

use crate::support::{CITIES, Event, Random, Raw, TIMEOUT, Truth, World, WorldOptions, wait_at_most};

fn good(id: &str, n: u64) -> Event {
    let (lat, lon) = CITIES[(n % 12) as usize];
    Event::Index { id: id.to_owned(), document: json!({"location": {"lat": lat, "lon": lon}, "count": n}) }
}

#[test]
fn every_kind_of_bad_record_goes_to_the_dead_letter_topic_as_it_was_and_the_good_ones_among_them_pass() {
    let templates = tempfile::TempDir::new().unwrap();
    let template = templates.path().join("template.json");
    std::fs::write(&template, r#"{"mappings": {"properties": {"count": {"type": "integer"}}}}"#).unwrap();
    let world = World::new(WorldOptions {
        partitions: 1,
        config: vec![
            ("geoshards", format!("index_template = {template:?}")),
            ("documents", "max_bytes = \"2KiB\"".to_owned()),
        ],
    });
    let there = r#""location": {"lat": 48.8566, "lon": 2.3522}"#;
    let long_key = "k".repeat(513);
    let large = format!(r#"{{{there}, "text": "{}"}}"#, "x".repeat(2048));
    /// Key, operation, value; stage and reason of the dead letter.
    type Bad<'a> = (&'a str, Option<&'a str>, Option<&'a str>, &'a str, &'a str);
    let bad: [Bad<'_>; 18] = [
        ("cut", None, Some(r#"{"location":"#), "decode", "unparsable_json"),
        ("nul", None, Some("null"), "decode", "not_an_object"),
        ("array", None, Some("[1, 2]"), "decode", "not_an_object"),
        ("nowhere", None, Some(r#"{"n": 1}"#), "decode", "no_location"),
        ("north", None, Some(r#"{"location": {"lat": 100, "lon": 0}}"#), "decode", "bad_location"),
        ("east", None, Some(r#"{"location": {"lat": 0, "lon": 200}}"#), "decode", "bad_location"),
        ("", None, Some(r#"{"location": [0, 0]}"#), "decode", "bad_key"),
        (&long_key, None, Some(r#"{"location": [0, 0]}"#), "decode", "bad_key"),
        ("kept", Some("patch"), Some(r#"{"location": null}"#), "decode", "location_removed"),
        ("odd", Some("upsert"), Some(r#"{"location": [0, 0]}"#), "decode", "bad_op"),
        ("empty", Some("index"), None, "decode", "no_value"),
        ("empty", Some("patch"), None, "decode", "no_value"),
        ("large", None, Some(&large), "decode", "too_large"),
        ("kept", Some("patch"), Some(r#"{"x": {"a": 1, "a": 2}}"#), "decode", "duplicate_key"),
        ("kept", None, Some(r#"{"location": [0, 0], "count": "many"}"#), "write", "refused_by_elasticsearch"),
        ("new", None, Some(r#"{"location": [0, 0], "count": "many"}"#), "write", "refused_by_elasticsearch"),
        ("kept2", Some("patch"), Some(r#"{"count": "many"}"#), "write", "refused_by_elasticsearch"),
        ("ghost", Some("patch"), Some(r#"{"n": 1}"#), "write", "missing_document"),
    ];
    let mut truth = Truth::new();
    let mut records = Vec::new();
    let mut add_good = |event: Event, records: &mut Vec<Raw>| {
        truth.apply(&event);
        records.push(event.to_raw());
    };
    add_good(good("kept", 0), &mut records);
    add_good(good("kept2", 1), &mut records);
    let worker = world.worker();
    world.produce(&records);
    world.wait_until_committed(TIMEOUT);
    let mut offsets = Vec::new();
    let mut records = Vec::new();
    for (number, (key, op, value, ..)) in bad.iter().enumerate() {
        offsets.push(2 + records.len());
        let mut headers = vec![("trace", format!("t{number}"))];
        headers.extend(op.map(|op| ("geofold-op", op.to_owned())));
        records.push(Raw {
            partition: Some(0),
            key: Some(key.as_bytes().to_vec()),
            value: value.map(|value| value.as_bytes().to_vec()),
            headers,
        });
        add_good(good(&format!("good{number}"), number as u64), &mut records);
    }
    world.produce(&records);
    world.wait_until_committed(TIMEOUT);
    assert_eq!(worker.metric("geofold_dead_letters_total", ""), bad.len() as f64);
    worker.stop();

    let mut letters = world.dead_letters();
    letters.sort_by_key(|letter| letter.headers["geofold-error-offset"].parse::<usize>().unwrap());
    assert_eq!(letters.len(), bad.len(), "{letters:#?}");
    for (number, (letter, (key, op, value, stage, reason))) in letters.iter().zip(bad).enumerate() {
        let header = |name: &str| letter.headers.get(name).map(String::as_str);
        assert_eq!(letter.key.as_deref(), Some(key), "{letter:?}");
        assert_eq!(letter.value.as_deref(), value, "{letter:?}");
        let facts = [
            ("geofold-error-reason", reason),
            ("geofold-error-stage", stage),
            ("geofold-error-topic", &world.name),
            ("geofold-error-partition", "0"),
            ("geofold-error-offset", &offsets[number].to_string()),
            ("geofold-error-first-offset", &offsets[number].to_string()),
        ];
        facts
            .into_iter()
            .for_each(|(name, fact)| assert_eq!(header(name), Some(fact), "{name} of {letter:?}"));
        assert!(header("geofold-error-detail").is_some_and(|detail| detail.len() > 10), "{letter:?}");
        let time: u128 = header("geofold-error-time").unwrap().parse().unwrap();
        assert!(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() - time < 600_000);
        if stage == "decode" {
            assert_eq!(header("trace"), Some(&*format!("t{number}")), "{letter:?}");
            assert_eq!(header("geofold-op"), op, "{letter:?}");
        } else {
            // What is left of a fold: enough to produce it again.
            assert_eq!(header("geofold-op"), Some(op.unwrap_or("index")), "{letter:?}");
        }
    }
    world.assert_holds(&truth);
}

/// Text that no compressor makes smaller.
fn noise(bytes: usize) -> String {
    let mut random = Random::new(1);
    (0..bytes).map(|_| char::from(b'!' + u8::try_from(random.below(90)).unwrap())).collect()
}

#[test]
fn letters_that_the_dead_letter_topic_refuses_as_they_are_hold_nothing_up() {
    let world = World::new(WorldOptions { partitions: 1, config: Vec::new() });
    // It takes no record without a key, and no large one.
    let limits = [("cleanup.policy", "compact"), ("max.message.bytes", "4096")];
    world.configure_topic(&format!("{}-dead", world.name), &limits);
    let raw = |key: Option<&str>, value: &str| Raw {
        partition: Some(0),
        key: key.map(|key| key.as_bytes().to_vec()),
        value: Some(value.as_bytes().to_vec()),
        headers: vec![("own", "header".to_owned())],
    };
    let large = noise(20_000);
    let mut truth = Truth::new();
    truth.apply(&good("good", 1));
    world.produce(&[
        raw(None, "no key"),
        raw(None, &large),
        raw(Some(&large), "a large key"),
        raw(Some(&large), &large),
        raw(Some("large"), &large),
        raw(Some("small"), "no JSON"),
        good("good", 1).to_raw(),
    ]);
    let worker = world.worker();
    world.wait_until_committed(TIMEOUT);
    worker.stop();
    world.assert_holds(&truth);

    let mut letters = world.dead_letters();
    letters.sort_by_key(|letter| letter.headers["geofold-error-offset"].parse::<usize>().unwrap());
    let of = |headers: &BTreeMap<String, String>, header: &str| headers.get(header).cloned();
    // A large key makes way only after the value, of which little is left then.
    let seen: Vec<_> = letters
        .iter()
        .map(|letter| {
            let (key, value) = (letter.key.as_deref(), letter.value.as_deref());
            (
                key.filter(|key| ["large", "small"].contains(key)),
                value,
                of(&letter.headers, "geofold-value-left-out"),
                of(&letter.headers, "geofold-key-left-out"),
                of(&letter.headers, "own").is_some(),
            )
        })
        .collect();
    let bytes = |bytes: usize| Some(bytes.to_string());
    assert_eq!(
        seen,
        [
            (None, Some("no key"), None, bytes(0), true),
            (None, Some(""), bytes(20_000), bytes(0), false),
            (None, Some(""), bytes(11), bytes(20_000), false),
            (None, Some(""), bytes(20_000), bytes(20_000), false),
            (Some("large"), Some(""), bytes(20_000), None, false),
            (Some("small"), Some("no JSON"), None, None, true),
        ],
        "{letters:#?}"
    );
    let keys: Vec<_> = letters.iter().map(|letter| letter.key.clone().unwrap_or_default()).collect();
    assert!(keys.iter().all(|key| !key.is_empty()), "{keys:?}");
    assert_ne!(keys[0], keys[1], "compaction would leave one of them");
    assert_eq!(keys[2], keys[3], "the same key has the same hash");
    for letter in &letters[..5] {
        let why = of(&letter.headers, "geofold-left-out-reason").unwrap_or_default();
        assert!(why.contains("Broker: "), "{why:?}");
    }
    assert_eq!(of(&letters[5].headers, "geofold-left-out-reason"), None);
}

#[test]
fn letters_that_are_too_large_only_together_go_whole() {
    let world = World::new(WorldOptions { partitions: 1, config: Vec::new() });
    world.set_topic_limit(&format!("{}-dead", world.name), 8192);
    let text = noise(4_000);
    let record = |n: usize| Raw {
        partition: Some(0),
        key: Some(format!("bad{n}").into_bytes()),
        value: Some(text.clone().into_bytes()),
        headers: Vec::new(),
    };
    let records: Vec<Raw> = (0..50).map(record).collect();
    world.produce(&records);
    let worker = world.worker();
    world.wait_until_committed(TIMEOUT);
    worker.stop();
    let letters = world.dead_letters();
    assert_eq!(letters.len(), 50);
    let cut = letters.iter().filter(|letter| letter.value.as_deref() != Some(text.as_str())).count();
    assert_eq!(cut, 0, "of 50 letters that the topic takes one by one, so many lost their values");
}

#[test]
fn without_a_dead_letter_topic_the_partition_stops_at_the_bad_record_and_the_others_go_on() {
    let stop = ("dead_letter", "policy = \"stop\"".to_owned());
    let world = World::new(WorldOptions { partitions: 3, config: vec![stop] });
    let mut truth = Truth::new();
    let batch = |name: &str, partition: i32| {
        (0..5).map(|n| (partition, good(&format!("{name}{partition}-{n}"), n))).collect::<Vec<_>>()
    };
    let produce = |events: &[(i32, Event)]| {
        let raw = events.iter().map(|(p, event)| Raw { partition: Some(*p), ..event.to_raw() });
        world.produce(&raw.collect::<Vec<_>>());
    };
    let before: Vec<_> = (0..3).flat_map(|partition| batch("before", partition)).collect();
    produce(&before);
    let value = Some(b"{".to_vec());
    world.produce(&[Raw { partition: Some(1), key: Some(b"bad".to_vec()), value, ..Raw::default() }]);
    produce(&batch("behind", 1));
    before.iter().for_each(|(_, event)| truth.apply(event));

    let mut worker = world.worker();
    let reason = wait_at_most("a stopped partition", TIMEOUT, || {
        Some(worker.not_ready_because()).filter(|reason| reason.contains("partition 1"))
    });
    assert!(reason.contains("no dead-letter topic"), "{reason}");
    wait_at_most("commits of what is good", TIMEOUT, || {
        (world.offsets() == [(5, 5), (5, 11), (5, 5)]).then_some(())
    });
    let others: Vec<_> = [0, 2].into_iter().flat_map(|partition| batch("after", partition)).collect();
    produce(&others);
    others.iter().for_each(|(_, event)| truth.apply(event));
    wait_at_most("the other partitions", TIMEOUT, || {
        (world.offsets() == [(10, 10), (5, 11), (10, 10)]).then_some(())
    });
    assert!(worker.is_running());
    assert_eq!(worker.metric("geofold_stopped_partitions", ""), 1.0);
    worker.stop();
    assert_eq!(world.offsets()[1], (5, 11), "its offset may not move, in a drain neither");
    world.assert_holds(&truth);
}

#[test]
fn a_document_that_elasticsearch_refuses_stops_its_partition_too_if_there_is_no_dead_letter_topic() {
    let stop = ("dead_letter", "policy = \"stop\"".to_owned());
    let world = World::new(WorldOptions { partitions: 1, config: vec![stop] });
    let mut truth = Truth::new();
    let first = good("first", 0);
    // The mapping is made by the first document: `count` is a number from then on.
    world.send(std::slice::from_ref(&first));
    truth.apply(&first);
    let worker = world.worker();
    world.wait_until_committed(TIMEOUT);
    let (lat, lon) = CITIES[0];
    let document = json!({"location": {"lat": lat, "lon": lon}, "count": "many"});
    world.send(&[Event::Index { id: "refused".to_owned(), document }]);
    let reason = wait_at_most("a stopped partition", TIMEOUT, || {
        Some(worker.not_ready_because()).filter(|reason| reason.contains("partition 0"))
    });
    assert!(reason.contains("count"), "{reason}");
    worker.stop();
    assert_eq!(world.offsets(), [(1, 2)]);
    world.assert_holds(&truth);
}
