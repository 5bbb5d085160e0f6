//! `geofold audit`: it finds exactly the defects that were planted by hand, mends those that can be mended without guessing
//! while writes go on, and then finds none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    CITIES, Event, Random, StopOnDrop, TIMEOUT, Truth, World, WorldOptions, seed, wait_at_most,
};

/// Documents with each kind of defect.
const EACH: usize = 100;

const KINDS: [&str; 10] = [
    "no-placement",
    "unreadable-placement",
    "no-copy",
    "not-in-place",
    "unnamed-copy",
    "old-copy",
    "deleted-lives",
    "behind",
    "wrong-geoshard",
    "no-location",
];

/// What the audit cannot mend by itself.
const NEEDS_MORE: [&str; 4] = ["unreadable-placement", "no-copy", "behind", "no-location"];

/// A document that stays where it is.
fn steady(n: usize) -> (String, Value) {
    let (lat, lon) = CITIES[n % CITIES.len()];
    (format!("steady-{n}"), json!({"location": {"lat": lat, "lon": lon}, "n": n}))
}

struct Planter<'a> {
    world: &'a World,
    truth: &'a Truth,
    /// Lines of one `_bulk` request.
    bulk: String,
}

impl Planter<'_> {
    fn index(&self, shard: &str) -> String {
        format!("{}-{shard}", self.world.name)
    }

    fn put(&mut self, index: &str, id: &str, version: Option<u64>, source: &Value) {
        let mut action = json!({"_index": index, "_id": id});
        if let Some(version) = version {
            action["version"] = json!(version);
            action["version_type"] = json!("external_gte");
        }
        self.bulk += &format!("{}\n{source}\n", json!({"index": action}));
    }

    fn remove(&mut self, index: &str, id: &str) {
        self.bulk += &format!("{}\n", json!({"delete": {"_index": index, "_id": id}}));
    }

    /// Breaks a document that is whole.
    fn plant(&mut self, kind: &str, id: &str, document: &Value, placement: &Value) {
        let placements = self.index("placements");
        let own_shard = self.truth.shard_of(document).to_owned();
        let elsewhere = CITIES.iter().map(|(lat, lon)| json!({"location": {"lat": lat, "lon": lon}}));
        let other = elsewhere.into_iter().find(|other| self.truth.shard_of(other) != own_shard).unwrap();
        let other_shard = self.truth.shard_of(&other).to_owned();
        let (own, there) = (self.index(&own_shard), self.index(&other_shard));
        let pos = placement["pos"].as_u64().unwrap();
        let with = |key: &str, value: Value| {
            let mut changed = placement.clone();
            changed[key] = value;
            changed
        };
        match kind {
            "no-placement" => self.remove(&placements, id),
            "unreadable-placement" => self.put(&placements, id, None, &json!({"pos": pos, "nowhere": true})),
            "no-copy" => self.remove(&own, id),
            "not-in-place" => {
                self.put(&placements, id, None, &with("leftovers", json!([other_shard])));
                self.put(&there, id, Some(pos), document);
                self.remove(&own, id);
            }
            // The placement of a deleted document names no geoshard any more.
            "unnamed-copy" | "deleted-lives" => self.put(&there, id, Some(1), document),
            "old-copy" => {
                self.put(&placements, id, None, &with("leftovers", json!([other_shard])));
                self.put(&there, id, Some(1), document);
            }
            "behind" => self.put(&placements, id, None, &with("pos", json!(pos + 1))),
            "wrong-geoshard" => self.put(&own, id, Some(pos), &other),
            "no-location" => self.put(&own, id, Some(pos), &json!({"n": 0})),
            _ => unreachable!("{kind}"),
        }
    }

    fn carry_out(self) {
        let answer = self.world.stack.bulk(&self.bulk);
        assert_eq!(answer["errors"], false, "{answer}");
    }
}

/// What the audit found: kind, then ids.
pub fn audit(world: &World, args: &[&str]) -> (bool, Value, BTreeMap<String, BTreeSet<String>>) {
    let out = world.dir().join("findings");
    let out = out.to_str().unwrap();
    let output = world.geofold(&[&["audit", "--json", "--settle", "3s", "--out", out], args].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in std::fs::read_to_string(out).unwrap().lines() {
        let finding: Value = serde_json::from_str(line).unwrap();
        for defect in finding["defects"].as_array().unwrap() {
            let ids = found.entry(defect.as_str().unwrap().to_owned()).or_default();
            ids.insert(finding["id"].as_str().unwrap().to_owned());
        }
    }
    eprintln!("{said}{report}");
    (output.status.success(), report, found)
}

/// How many documents a sample looked at, of copies and of placements.
fn looked_at(report: &Value) -> [u64; 2] {
    ["copies", "placements"].map(|of| report["sample"][of]["looked_at"].as_u64().unwrap())
}

#[test]
fn defects_of_every_kind_are_found_exactly_and_mended_under_load_and_then_there_are_none() {
    let seed = seed("defects_of_every_kind");
    let world = World::new(WorldOptions::default());
    let mut truth = Truth::new();
    let worker = world.worker();
    worker.wait_until_ready();

    // A record for each, then one for each of those that are deleted, so that the log is beyond every version.
    let count = EACH * KINDS.len() + 500;
    let mut events: Vec<Event> =
        (0..count).map(steady).map(|(id, document)| Event::Index { id, document }).collect();
    let kind_of = |n: usize| KINDS.get(n / EACH).copied();
    let deleted = (0..count).filter(|n| kind_of(*n) == Some("deleted-lives"));
    events.extend(deleted.map(|n| Event::Delete { id: steady(n).0 }));
    events.extend((count..count + 50).map(steady).map(|(id, document)| Event::Index { id, document }));
    events.iter().for_each(|event| truth.apply(event));
    world.send(&events);
    world.wait_until_committed(TIMEOUT);
    let (is_well, report, found) = audit(&world, &[]);
    assert!(is_well && found.is_empty(), "{report}");
    assert_eq!(report["copies"], count - EACH + 50);
    // Nothing moves, and each document has one copy: a sample is of exactly as many as were asked for.
    let (is_well, report, found) = audit(&world, &["--sample", "50"]);
    assert!(is_well && found.is_empty(), "{report}");
    assert_eq!(looked_at(&report), [50, 50], "{report}");

    let placements = world.placements();
    let mut expected: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut planter = Planter { world: &world, truth: &truth, bulk: String::new() };
    for n in 0..count {
        let (Some(kind), (id, document)) = (kind_of(n), steady(n)) else { continue };
        planter.plant(kind, &id, &document, &placements[&id]);
        expected.entry(kind.to_owned()).or_default().insert(id);
    }
    planter.carry_out();

    // Still nothing moves. A document has one placement; of those with two copies, both may be drawn, and count as one.
    let (_, report, found) = audit(&world, &["--sample", "50"]);
    let [copies, of_placements] = looked_at(&report);
    assert!(of_placements == 50 && (40..=50).contains(&copies), "{report}");
    assert!(found.iter().all(|(kind, ids)| ids.is_subset(&expected[kind])), "{found:?}");

    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let feed = world.feed();
            let mut random = Random::new(seed);
            let mut written = BTreeMap::new();
            while !done.load(Ordering::Relaxed) {
                let id = format!("busy-{}", random.below(300));
                let (lat, lon) = CITIES[random.below(CITIES.len() as u64) as usize];
                let event = Event::Index {
                    id: id.clone(),
                    document: json!({"location": {"lat": lat, "lon": lon}, "n": written.len()}),
                };
                feed.send(&[event.to_raw()]);
                written.insert(id, event);
                std::thread::sleep(Duration::from_millis(5));
            }
            feed.flush();
            written
        });
        let stop = StopOnDrop(&done);

        let (is_well, report, found) = audit(&world, &[]);
        assert!(!is_well, "{report}");
        for kind in KINDS {
            assert!(found.get(kind) == expected.get(kind), "{kind}: {:?}", found.get(kind));
        }
        assert_eq!(found.len(), KINDS.len(), "{:?}", found.keys());

        // Of so few documents a sample may be all.
        let (is_well, report, found) = audit(&world, &["--sample", "10000"]);
        assert!(!is_well && found == expected, "{report}");
        for of in ["copies", "placements"] {
            let [all, looked] = ["of", "looked_at"].map(|key| report["sample"][of][key].as_u64().unwrap());
            assert!(looked <= all && all < 10_000, "{report}");
        }
        let (_, report, found) = audit(&world, &["--sample", "50"]);
        // One that is moving has two copies as well; its placement is where it was.
        let [copies, of_placements] = looked_at(&report);
        assert!(of_placements == 50 && (40..=50).contains(&copies), "{report}");
        assert!(found.iter().all(|(kind, ids)| ids.is_subset(&expected[kind])), "{found:?}");

        let (is_well, report, _) = audit(&world, &["--repair"]);
        assert!(!is_well, "not all of it can be mended: {report}");
        assert_eq!(report["repairs"]["mended"], EACH * (KINDS.len() - NEEDS_MORE.len()), "{report}");
        assert_eq!(report["repairs"]["left_alone"], EACH * NEEDS_MORE.len(), "{report}");

        wait_for_touches(&world);
        // As docs/runbooks.md says: a placement that cannot be read is removed, and then made anew.
        let mut planter = Planter { world: &world, truth: &truth, bulk: String::new() };
        for id in &expected["unreadable-placement"] {
            planter.remove(&format!("{}-placements", world.name), id);
        }
        planter.carry_out();
        let (_, report, _) = audit(&world, &["--repair"]);
        assert_eq!(report["repairs"]["mended"], EACH, "{report}");
        drop(stop);
        for event in load.join().unwrap().values() {
            truth.apply(event);
        }
    });

    // What only the source of truth knows is written again; so is what was given another place by hand.
    let is_lost = |kind: &str| NEEDS_MORE.contains(&kind) || kind == "wrong-geoshard";
    let again = (0..count).filter(|n| kind_of(*n).is_some_and(is_lost)).map(steady);
    let again: Vec<Event> = again.map(|(id, document)| Event::Index { id, document }).collect();
    world.send(&again);
    world.wait_until_committed(TIMEOUT);
    let (is_well, report, found) = audit(&world, &[]);
    assert!(is_well && found.is_empty(), "{report} {found:?}");
    world.assert_holds(&truth);
    worker.stop();
}

/// Waits until what is in the topic now is done, despite further writes.
fn wait_for_touches(world: &World) {
    let ends: Vec<i64> = world.offsets().into_iter().map(|(_, end)| end).collect();
    wait_at_most("the touches to be done", TIMEOUT, || {
        let done = world.offsets().into_iter().zip(&ends).all(|((committed, _), end)| committed >= *end);
        done.then_some(())
    });
}
