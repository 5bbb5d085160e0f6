//! `geofold audit --adopt`: an index that existed before geofold becomes one of its own, and no later write of the topic
//! loses against what was there.

use serde_json::{Value, json};

use crate::audit::audit;
use crate::support::{CITIES, Event, TIMEOUT, Truth, World, WorldOptions};

const DOCUMENTS: usize = 300;

fn document(n: usize) -> Value {
    let (lat, lon) = CITIES[n % CITIES.len()];
    json!({"location": {"lat": lat, "lon": lon}, "n": n})
}

fn id(n: usize) -> String {
    format!("old-{n}")
}

#[test]
fn an_index_from_before_geofold_is_adopted_and_no_later_write_is_lost() {
    let world = World::new(WorldOptions::default());
    let mut truth = Truth::new();
    let index = |shard: &str| format!("{}-{shard}", world.name);
    let mut bulk = String::new();
    let mut write = |index: String, id: String, version: u64, source: &Value| {
        let action = json!({"_index": index, "_id": id, "version": version, "version_type": "external_gte"});
        bulk += &format!("{}\n{source}\n", json!({"index": action}));
    };
    for n in 0..DOCUMENTS {
        let right = index(truth.shard_of(&document(n)));
        let wrong = index(truth.shard_of(&document(n + 1)));
        // As Elasticsearch counts versions by itself; more than the topic will ever have records.
        let version = 1 + (n as u64 % 5) * 1_000_000;
        match n % 10 {
            // In a geoshard where it does not belong.
            0 => write(wrong, id(n), version, &document(n)),
            // An older copy in another one.
            1 => {
                write(wrong, id(n), version, &json!({"location": document(n)["location"], "n": -1}));
                write(right, id(n), version + 1, &document(n));
            }
            _ => write(right, id(n), version, &document(n)),
        }
        truth.apply(&Event::Index { id: id(n), document: document(n) });
    }
    // Of the configured epoch: a record that is still to come might lose against it.
    write(index(truth.shard_of(&document(0))), "late".to_owned(), (1 << 44) + 5, &document(0));
    let answer = world.stack.bulk(&bulk);
    assert_eq!(answer["errors"], false, "{answer}");

    let (is_well, report, found) = audit(&world, &["--adopt"]);
    assert!(!is_well && found["no-placement"].len() == DOCUMENTS + 1, "{report}");
    assert_eq!(report["repairs"]["mended"], DOCUMENTS, "{report}");
    assert_eq!(report["repairs"]["left_alone"], 1, "{report}");
    assert_eq!(report["repairs"]["needs_epoch"], 2, "{report}");
    let touched: i64 = world.offsets().into_iter().map(|(_, end)| end).sum();
    assert_eq!(touched.unsigned_abs(), DOCUMENTS as u64 / 5, "only what is not in place is touched");
    let bulk =
        format!("{}\n", json!({"delete": {"_index": index(truth.shard_of(&document(0))), "_id": "late"}}));
    assert_eq!(world.stack.bulk(&bulk)["errors"], false);
    // It may be interrupted, and started again.
    let (is_well, report, found) = audit(&world, &["--adopt"]);
    assert!(!found.contains_key("no-placement"), "{is_well} {report}");

    let later: Vec<Event> = (0..DOCUMENTS)
        .filter_map(|n| match n % 7 {
            0 => Some(Event::Patch { id: id(n), patch: json!({"patched": n}) }),
            1 => Some(Event::Patch { id: id(n), patch: json!({"location": document(n + 5)["location"]}) }),
            2 => Some(Event::Delete { id: id(n) }),
            3 => Some(Event::Index { id: id(n), document: document(n + 1) }),
            4 => Some(Event::Touch { id: id(n) }),
            _ => None,
        })
        .collect();
    later.iter().for_each(|event| truth.apply(event));
    world.send(&later);
    let worker = world.worker();
    world.wait_until_committed(TIMEOUT);
    let (is_well, report, found) = audit(&world, &[]);
    assert!(is_well, "{report} {found:?}");
    assert_eq!(world.dead_letters().len(), 0);
    world.assert_holds(&truth);
    worker.stop();
}
