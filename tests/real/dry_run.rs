//! `geofold dry-run`: it foretells what a worker then does, disturbs no worker, commits nothing and writes nothing.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::{CITIES, Event, Random, TIMEOUT, Truth, World, WorldOptions, seed};

const DOCUMENTS: usize = 60;

fn document(place: usize, n: usize) -> Value {
    let (lat, lon) = CITIES[place % CITIES.len()];
    json!({"location": {"lat": lat, "lon": lon}, "n": n})
}

fn foretell(world: &World, args: &[&str]) -> (bool, Vec<Value>) {
    let output = world.geofold(&[&["dry-run", "--json", "--limit", "100000"], args].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output.status.success(), lines)
}

/// Where a geoshard is, by what the steps say of each document's last record.
fn foretold(steps: &[Value]) -> BTreeMap<String, Value> {
    steps.iter().map(|step| (step["id"].as_str().unwrap().to_owned(), step["to"].clone())).collect()
}

#[test]
fn a_dry_run_foretells_what_a_worker_does_and_leaves_no_trace() {
    let world = World::new(WorldOptions { partitions: 4, ..WorldOptions::default() });
    let mut random = Random::new(seed("dry_run"));
    let mut truth = Truth::new();
    let first: Vec<Event> =
        (0..DOCUMENTS).map(|n| Event::Index { id: format!("d{n}"), document: document(n, n) }).collect();
    world.send(&first);
    first.iter().for_each(|event| truth.apply(event));
    let worker = world.worker();
    world.wait_until_committed(TIMEOUT);
    worker.stop();
    let committed = world.committed();
    let (is_well, nothing) = foretell(&world, &[]);
    assert!(is_well);
    assert_eq!(nothing, [json!({"sums": {"records": 0, "by": {}}})], "all is committed");

    let second: Vec<Event> = (0..200)
        .map(|n| {
            let mut any = |n: usize| random.below(n as u64) as usize;
            let id = format!("d{}", any(DOCUMENTS + 10));
            match any(6) {
                0 => Event::Delete { id },
                1 => Event::Patch { id: format!("d{}", any(5)), patch: json!({"patched": n}) },
                _ => Event::Index { id, document: document(any(CITIES.len()), n) },
            }
        })
        .collect();
    world.send(&second);
    let (_, steps) = foretell(&world, &[]);
    let (sums, steps) = steps.split_last().unwrap();
    assert_eq!(sums["sums"]["records"], json!(second.len()));
    assert_eq!(steps.len(), second.len(), "one step for each record");
    assert!(sums["sums"]["by"]["move"].as_u64().unwrap() > 10, "{sums}");
    // Nothing was written, nothing committed: the documents are where they were.
    world.assert_holds(&truth);
    assert_eq!(world.committed(), committed);
    let (_, again) = foretell(&world, &[]);
    assert_eq!(again.len(), steps.len() + 1, "a second run sees the same");
    let (_, all) = foretell(&world, &["--from", "earliest"]);
    assert_eq!(all.len(), first.len() + second.len() + 1);
    let (_, late) = foretell(&world, &["--from", "2100-01-01T00:00:00Z"]);
    assert_eq!(late.len(), 1);

    // While a worker has the partitions, it is not disturbed.
    let worker = world.worker();
    world.wait_until_committed(TIMEOUT);
    let rebalances = worker.metric("geofold_rebalances_total", "");
    let (_, now) = foretell(&world, &["--from", "earliest"]);
    assert_eq!(now.len(), all.len());
    assert_eq!(worker.metric("geofold_rebalances_total", ""), rebalances, "the group noticed the dry run");
    worker.stop();
    let there = world.placements();
    for (id, to) in foretold(steps) {
        let shard = there.get(&id).map_or(Value::Null, |placement| placement["shard"].clone());
        assert_eq!(shard, to, "{id}: foretold {to}, and it became {shard}");
    }
}
