//! The tests that the stand-ins and the real services have in common.

use std::process::Output;
use std::time::Duration;

use geofold::geoshard::GeoshardMap;

use super::process::Process;
use super::{Scenario, text};
use crate::wait::wait_for;

/// From 55 to 70 under load: the command is killed in each stage, and a worker in the middle.
pub fn from_55_to_70_with_a_worker_killed(scenario: &Scenario) {
    let killed = scenario.worker("worker-1", &[]);
    let _second = scenario.worker("worker-2", &[]);
    let writer = scenario.writer();
    scenario.wait_until_loaded();
    let reader = scenario.reader(&writer);

    let command = scenario.migrate("migrate-1");
    scenario.wait_for_stage("announced");
    scenario.refresh_new_ones_every("5s");
    command.kill();
    let other = scenario.path("other.json");
    std::fs::write(&other, scenario.new.to_json().replace("world of 70", "another")).unwrap();
    let refused = scenario.geofold(&["shards", "migrate", "--to", &other]);
    assert!(text(&refused).contains("a change to map"), "{}", text(&refused));
    assert_eq!(refused.status.code(), Some(1));

    let command = scenario.migrate("migrate-2");
    scenario.wait_for_stage("moving");
    std::thread::sleep(Duration::from_millis(500));
    command.kill();
    killed.kill();
    let _third = scenario.worker("worker-3", &[]);
    let said = scenario.migrate("migrate-3").ends_well();
    assert!(said.contains("change completed"), "{said}");
    assert!(said.contains("documents read, 0 misplaced by"), "{said}");

    let (polls, missed) = reader.stop();
    let truth = writer.stop();
    scenario.drain();
    scenario.audit(&scenario.new, &truth);
    println!("{polls} polls, {} documents, {} missed", truth.len(), missed.len());
    assert!(polls > 0);
    assert_eq!(missed, Vec::<String>::new());

    let status = text(&scenario.geofold(&["shards", "migrate", "--status"]));
    assert!(status.contains("one map: 2-") && status.contains("--retire"), "{status}");
    let checked = scenario.geofold(&["check"]);
    assert!(text(&checked).contains("put the new map there"), "{}", text(&checked));
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked));

    let retired = scenario.geofold(&["shards", "migrate", "--retire"]);
    assert!(text(&retired).contains("3 indices deleted"), "{}", text(&retired));
    assert!(!scenario.has_index("s07") && scenario.has_index("s08") && scenario.has_index("n00"));
    let checked = scenario.geofold(&["check"]);
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked));
}

/// By documents alone, which are the same in every run but for those on their way.
const BY_DOCUMENTS: [&str; 4] = ["--writes", "0", "--queries", "0"];
/// Of the autopilot of these tests.
pub const AUTOPILOT_LIMITS: [&str; 8] =
    ["--max-moved", "20%", "--cool-down", "0s", "--start-above", "1.2", "--stop-below", "1.1"];
const LEASE: [&str; 5] = ["--apply", "--interval", "1s", "--lease", "2s"];

/// The autopilot, as a process that applies.
pub fn autopilot(scenario: &Scenario, name: &str, more: &[&str]) -> Process {
    let arguments = [&["shards", "autopilot"], &BY_DOCUMENTS[..], &LEASE, more].concat();
    scenario.start(name, &arguments)
}

/// One decision.
pub fn autopilot_once(scenario: &Scenario, more: &[&str]) -> Output {
    scenario.geofold(&[&["shards", "autopilot", "--once"], &BY_DOCUMENTS[..], more].concat())
}

/// `shards autopilot --status`.
pub fn autopilot_status(scenario: &Scenario) -> String {
    text(&scenario.geofold(&["shards", "autopilot", "--status"]))
}

/// The command is killed in each stage of the change that it makes; then it is stopped.
pub fn autopilot_killed_in_each_stage(scenario: &mut Scenario) {
    let _worker = scenario.worker("worker", &[]);
    let writer = scenario.writer();
    scenario.wait_until_loaded();

    let dry = autopilot_once(scenario, &AUTOPILOT_LIMITS);
    assert!(dry.status.success() && text(&dry).contains("change to map 2, max/mean"), "{}", text(&dry));
    assert_eq!(
        (scenario.record(), scenario.meta(&format!("autopilot%2F{}", scenario.name))),
        (None, None),
        "a dry run writes nothing"
    );

    let first = autopilot(scenario, "autopilot-1", &AUTOPILOT_LIMITS);
    scenario.wait_for_stage("announced");
    assert!(autopilot_status(scenario).contains("a change is under way"), "{}", autopilot_status(scenario));
    first.kill();
    let dry = autopilot_once(scenario, &AUTOPILOT_LIMITS);
    assert!(text(&dry).contains("a change of the autopilot was interrupted"), "{}", text(&dry));

    let second = autopilot(scenario, "autopilot-2", &AUTOPILOT_LIMITS);
    scenario.wait_for_stage("moving");
    std::thread::sleep(Duration::from_millis(300));
    assert!(second.log().contains("going on with the change to map 2-"), "{}", second.log());
    second.kill();

    let third = autopilot(scenario, "autopilot-3", &AUTOPILOT_LIMITS);
    wait_for("one map", || scenario.record().filter(|record| record["state"] == "one"));
    let stopped = scenario.geofold(&["shards", "autopilot", "--stop"]);
    assert!(text(&stopped).contains("the autopilot is stopped"), "{}", text(&stopped));
    third.wait_until_it_says("stopped by process");
    third.signal("TERM");
    third.ends_well();

    // It gives the lease up as it ends, unless Elasticsearch does not answer: then the lease runs out.
    let said = wait_for("the end of the lease", || {
        Some(autopilot_status(scenario)).filter(|said| said.contains("nobody holds the lease"))
    });
    for part in ["stopped by process", "no change is under way", "documents moved within"] {
        assert!(said.contains(part), "{said}");
    }
    let record = scenario.record().unwrap();
    let map = GeoshardMap::from_json(&record["map"].to_string()).unwrap();
    assert!(map.version() >= 2);
    let truth = writer.stop();
    scenario.drain();
    scenario.new = map;
    scenario.audit(&scenario.new, &truth);
    // The configuration's file still holds the first map.
    let checked = scenario.geofold(&["check"]);
    assert!(text(&checked).contains("an earlier one") && checked.status.success(), "{}", text(&checked));
}
