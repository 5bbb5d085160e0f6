//! What the autopilot needs is killed at each stage of a change: itself, a worker, Elasticsearch. The change goes on or is called off; the
//! maps' record is always one that says where documents are, and searches miss none.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use geofold::base::geo::GeoPoint;
use geofold::base::ids::ShardId;
use geofold::geoshard::cities::{CITIES, City};
use geofold::geoshard::{GeoshardMap, cell};
use geofold::io::maps::{MapChangeStage, MapsRecord, MapsState};
use serde_json::{Value, json};

use crate::migrate::scenario::common::{AUTOPILOT_LIMITS, autopilot, autopilot_status};
use crate::migrate::scenario::{Scenario, text};
use crate::support::{World, WorldOptions};
use crate::wait::wait_for;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Victim {
    Autopilot,
    Worker,
    Elasticsearch,
}

/// Eight geoshards, of which the first has three tenths of all cities.
fn uneven() -> GeoshardMap {
    let leaf = |City(_, lat, lon, _): &City| cell::leaf(GeoPoint::new(*lat, *lon).unwrap());
    let mut leaves: Vec<u64> = CITIES.iter().map(leaf).collect();
    leaves.sort_unstable();
    let start = |tenth: usize| leaves[tenth * leaves.len() / 10] | 1;
    let id = |n: usize| ShardId::new(&format!("g{n}")).unwrap();
    let ranges = (0..8).map(|n| (if n == 0 { 0 } else { start(n + 2) }, id(n))).collect();
    GeoshardMap::new(1, "uneven", ranges).unwrap()
}

/// Reads the maps' record and searches all the time.
struct Watcher {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(Vec<String>, u64)>,
}

impl Watcher {
    fn start(elasticsearch: &str, name: &str, map: &GeoshardMap, ids: Vec<String>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let maps = format!("{elasticsearch}/{name}-meta/_doc/maps%2F{name}");
        let indices: Vec<String> = map.shards().iter().map(|shard| format!("{name}-{shard}")).collect();
        let search = format!("{elasticsearch}/{}/_search", indices.join(","));
        let thread = std::thread::spawn(move || {
            let http =
                reqwest::blocking::Client::builder().timeout(Duration::from_secs(120)).build().unwrap();
            let (mut states, mut generation, mut looks) = (Vec::new(), 0, 0);
            while !told.load(SeqCst) {
                // A server that is dead or recovering says nothing about documents.
                let answer = http.get(&maps).send().and_then(reqwest::blocking::Response::json::<Value>);
                if let Some(record) = answer.ok().filter(|answer| answer["found"] == true) {
                    let record: MapsRecord = serde_json::from_value(record["_source"].clone()).unwrap();
                    assert!(record.generation >= generation, "{} after {generation}", record.generation);
                    generation = record.generation;
                    let state = match &record.state {
                        MapsState::One { map, .. } => format!("one {}", map.version()),
                        MapsState::Two { stage, .. } => format!("{stage:?}").to_lowercase(),
                    };
                    if states.last() != Some(&state) {
                        states.push(state);
                    }
                }
                let body =
                    json!({"query": {"ids": {"values": ids}}, "size": 2 * ids.len(), "_source": false});
                let request = http.post(&search).header("content-type", "application/json");
                let answer = request.body(body.to_string()).send();
                if let Ok(answer) = answer.and_then(reqwest::blocking::Response::json::<Value>)
                    && answer["_shards"]["failed"] == 0
                    && answer["timed_out"] == false
                {
                    let hits = answer["hits"]["hits"].as_array().unwrap();
                    let found: HashSet<&str> = hits.iter().map(|hit| hit["_id"].as_str().unwrap()).collect();
                    let missed = ids.iter().filter(|id| !found.contains(id.as_str()));
                    assert_eq!(missed.collect::<Vec<_>>(), Vec::<&String>::new(), "a search in {states:?}");
                    looks += 1;
                }
                sleep(Duration::from_millis(200));
            }
            (states, looks)
        });
        Self { stop, thread }
    }

    /// The states of the maps' record, in order, and how often all documents were found.
    fn stop(self) -> (Vec<String>, u64) {
        self.stop.store(true, SeqCst);
        self.thread.join().unwrap()
    }
}

/// One change is enough. It goes on nevertheless.
fn stop_after_this_change(scenario: &Scenario) {
    wait_for("a change", || scenario.record());
    let stopped = scenario.geofold(&["shards", "autopilot", "--stop"]);
    assert!(text(&stopped).contains("the autopilot is stopped"), "{}", text(&stopped));
}

/// `stage`: one of the maps' record, or `planned` for a change that was decided and perhaps not begun.
fn killed(victim: Victim, stage: &str) {
    println!("{victim:?} is killed: {stage}");
    let world = World::alone_without_indices(WorldOptions::default());
    let (kafka, elasticsearch) = (&world.stack.kafka, &world.stack.elasticsearch);
    let mut scenario = Scenario::with_maps(kafka, elasticsearch, &world.name, 5, uneven(), uneven());
    let worker = scenario.worker("worker-1", &[]);
    let _other = scenario.worker("worker-2", &[]);
    let writer = scenario.writer();
    scenario.wait_until_loaded();
    let steady = (0..900).map(|number| format!("s{number}")).collect();
    let watcher = Watcher::start(elasticsearch, &world.name, &scenario.old, steady);

    let mut pilot = autopilot(&scenario, "autopilot-1", &AUTOPILOT_LIMITS);
    if stage == "planned" {
        let meta = format!("autopilot%2F{}", world.name);
        wait_for("a plan", || scenario.meta(&meta).filter(|record| !record["planned"].is_null()));
    } else {
        stop_after_this_change(&scenario);
    }
    match stage {
        "moving" => scenario.wait_for_stage("moving"),
        "returning" => {
            scenario.wait_for_stage("moving");
            let command = scenario.start("abort", &["shards", "migrate", "--abort"]);
            scenario.wait_for_stage("returning");
            command.kill();
        }
        _ => {}
    }
    match victim {
        Victim::Autopilot => {
            pilot.kill();
            pilot = autopilot(&scenario, "autopilot-2", &AUTOPILOT_LIMITS);
        }
        Victim::Worker => worker.kill(),
        Victim::Elasticsearch => {
            world.stack.tell("kill", "elasticsearch");
            world.stack.tell("start", "elasticsearch");
        }
    }
    let _third = scenario.worker("worker-3", &[]);
    if stage == "planned" {
        stop_after_this_change(&scenario);
    }
    let ended = wait_for("the change", || {
        let said = autopilot_status(&scenario);
        (said.contains("no change is under way") && said.contains("stopped by process")).then_some(said)
    });
    pilot.signal("TERM");
    pilot.ends_well();

    let truth = writer.stop();
    scenario.drain();
    let (states, looks) = watcher.stop();
    let record: MapsRecord = serde_json::from_value(scenario.record().unwrap()).unwrap();
    let MapsState::One { map, .. } = &record.state else { panic!("two maps: {ended}") };
    let called_off = stage == "returning";
    assert_eq!(map.version() == 1, called_off, "{states:?}\n{ended}");
    let seen = |stage: MapChangeStage| states.contains(&format!("{stage:?}").to_lowercase());
    // Of a change that is called off the stage before may have lasted only for a moment.
    assert!(called_off || seen(MapChangeStage::Moving), "{states:?}");
    assert_eq!(seen(MapChangeStage::Returning), called_off, "{states:?}");
    assert!(looks > 20, "{looks}");
    scenario.new = (**map).clone();
    scenario.audit(map, &truth);
    println!("  {}, {looks} looks at 900 documents, {} documents", states.join(", "), truth.len());
}

fn each_is_killed(stage: &str) {
    [Victim::Autopilot, Victim::Worker, Victim::Elasticsearch]
        .into_iter()
        .for_each(|victim| killed(victim, stage));
}

#[test]
#[ignore = "minutes: dev/soak"]
fn a_change_that_is_planned_when_something_is_killed_is_made() {
    each_is_killed("planned");
}

#[test]
#[ignore = "minutes: dev/soak"]
fn a_change_that_is_announced_when_something_is_killed_is_made() {
    each_is_killed("announced");
}

#[test]
#[ignore = "minutes: dev/soak"]
fn a_change_that_moves_documents_when_something_is_killed_is_made() {
    each_is_killed("moving");
}

#[test]
#[ignore = "minutes: dev/soak"]
fn a_change_that_is_called_off_when_something_is_killed_is_called_off() {
    each_is_killed("returning");
}
