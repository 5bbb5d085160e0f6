//! `geofold shards autopilot`, `shards nodes` and `shards plan --from-load` on the stand-ins, as child processes.

use serde_json::{Value, json};

use crate::migrate::World;
use crate::migrate::scenario::common::{
    AUTOPILOT_LIMITS, autopilot, autopilot_killed_in_each_stage, autopilot_once, autopilot_status,
};
use crate::migrate::scenario::process::Process;
use crate::migrate::scenario::text;
use crate::wait::wait_for;

/// Workers count their load every few seconds.
fn world() -> World {
    let world = World::new();
    world.scenario.configure("[load]\ninterval = \"5s\"\n");
    world
}

#[test]
fn an_autopilot_that_is_killed_in_each_stage_goes_on_and_nothing_is_lost() {
    autopilot_killed_in_each_stage(&mut world().scenario);
}

#[test]
fn one_autopilot_at_a_time_and_a_plan_that_never_began_is_forgotten() {
    let world = world();
    let scenario = &world.scenario;
    let _worker = scenario.worker("worker", &[]);
    let writer = scenario.writer();
    scenario.wait_until_loaded();
    let still: &[&str] = &["--start-above", "100", "--apply", "--lease", "2s"];

    // As if a process had been killed between its decision and the change.
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let planned = json!({
        "planned": {"map": "2-0123456789abcdef", "generation": 0, "documents": 50.0, "at": now},
        "history": {"moved": [{"at": now, "documents": 50.0}]},
    });
    scenario.put_meta("autopilot/t", &planned);
    assert!(autopilot_status(scenario).contains("did not begin"), "{}", autopilot_status(scenario));
    let ended = autopilot_once(scenario, still);
    assert!(ended.status.success() && text(&ended).contains("even enough"), "{}", text(&ended));
    let said = autopilot_status(scenario);
    assert!(said.contains("no change is under way") && said.contains("\n0 documents moved"), "{said}");

    let holder = autopilot(scenario, "holder", &["--start-above", "100"]);
    holder.wait_until_it_says("nothing to do");
    let refused = autopilot_once(scenario, still);
    assert!(text(&refused).contains("another autopilot holds the lease"), "{}", text(&refused));
    assert_eq!(refused.status.code(), Some(1));
    holder.kill();
    let taken = autopilot_once(scenario, still);
    assert!(taken.status.success() && text(&taken).contains("waiting for the lease of"), "{}", text(&taken));

    let command = scenario.migrate("migrate");
    scenario.wait_for_stage("announced");
    command.kill();
    let waits = autopilot_once(scenario, &[&AUTOPILOT_LIMITS[..], &["--apply"]].concat());
    assert!(text(&waits).contains("another change of the map is under way"), "{}", text(&waits));
    assert_eq!(scenario.record().unwrap()["stage"], "announced");
    writer.stop();
}

#[test]
fn an_autopilot_that_lost_its_lease_waits_for_it_and_goes_on() {
    let world = world();
    let scenario = &world.scenario;
    let still = ["--start-above", "100"];
    let decisions = |process: &Process| process.log().matches("nothing to do").count();
    let first = autopilot(scenario, "first", &still);
    wait_for("a decision", || (decisions(&first) > 0).then_some(()));
    first.signal("STOP");
    let second = autopilot(scenario, "second", &still);
    wait_for("the other's decision", || (decisions(&second) > 0).then_some(()));
    first.signal("CONT");
    first.wait_until_it_says("the lease was lost");
    let before = decisions(&first);
    second.kill();
    wait_for("the lease again", || (decisions(&first) > before).then_some(()));
    first.signal("TERM");
    first.ends_well();
}

#[test]
fn what_workers_write_is_counted_and_planned_by() {
    let world = world();
    let scenario = &world.scenario;
    let plan = ["shards", "plan", "--min", "3", "--max", "3", "--json", "--from-load"];
    let none = scenario.geofold(&plan);
    assert!(text(&none).contains("no load is stored of the topic t"), "{}", text(&none));
    let worker = scenario.worker("worker", &[]);
    let writer = scenario.writer();
    scenario.wait_until_loaded();
    wait_for("the load", || scenario.meta("load%2Ft"));
    writer.stop();
    scenario.drain();
    worker.signal("TERM");
    worker.ends_well();
    let record = scenario.meta("load%2Ft").unwrap();
    let hours =
        record["profile"].as_object().unwrap().values().flat_map(|of| of["writes"].as_array().unwrap());
    let writes: f64 = hours.map(|hour| hour.as_f64().unwrap()).sum();
    // Each steady document once, and whatever the others were folded into.
    assert!(writes >= 900.0, "{writes}");
    let planned = scenario.geofold(&plan);
    assert!(planned.status.success(), "{}", text(&planned));
    let planned: Value = serde_json::from_slice(&planned.stdout).unwrap();
    assert_eq!(planned["kept"], 3);
    let hottest = scenario.geofold(&["shards", "load", "--top", "3", "--json"]);
    let hottest: Value = serde_json::from_slice(&hottest.stdout).unwrap();
    let hottest = hottest["hottest"].as_array().unwrap();
    assert!(
        hottest.len() == 3 && hottest[0]["writes"].as_f64() >= hottest[2]["writes"].as_f64(),
        "{hottest:?}"
    );
    assert!(hottest[0]["shard"].as_str().unwrap().starts_with('s'), "{hottest:?}");
    let table = text(&scenario.geofold(&["shards", "load"]));
    assert!(table.contains("writes/s"), "{table}");
    let nodes = text(&scenario.geofold(&["shards", "nodes", "--nodes", "3", "--copies", "120"]));
    assert!(nodes.contains("PUT /t-s00/_settings") && nodes.contains("node-1"), "{nodes}");
    assert_eq!(nodes.matches("index.number_of_replicas").count(), 55, "{nodes}");
}
