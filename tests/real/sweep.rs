//! `geofold audit --sweep`, and the audit that a worker runs by itself.

use serde_json::{Value, json};

use crate::support::{CITIES, Event, TIMEOUT, Truth, Worker, World, WorldOptions, wait_at_most};

fn write(n: usize, round: usize) -> Event {
    let (lat, lon) = CITIES[(n + round) % CITIES.len()];
    Event::Index { id: format!("d{n}"), document: json!({"location": {"lat": lat, "lon": lon}, "n": round}) }
}

fn delete(n: usize) -> Event {
    Event::Delete { id: format!("d{n}") }
}

/// As short as a test may wait for.
fn short_lived(primaries: usize) -> Vec<(&'static str, String)> {
    let primaries = format!("primaries = {primaries}");
    [
        ("elasticsearch", "request_timeout = \"3s\""),
        ("elasticsearch", "gc_deletes = \"8s\""),
        ("batch", "timeout = \"4s\""),
        ("shutdown", "revoke_timeout = \"3s\""),
        ("placements", "deleted_retention = \"9s\""),
        ("placements", &primaries),
    ]
    .map(|(table, line)| (table, line.to_owned()))
    .into()
}

/// What was swept, and what was said.
fn sweep(world: &World) -> (Option<u64>, String) {
    let output = world.geofold(&["audit", "--sweep", "--json", "--settle", "1s"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    (report["swept"].as_u64(), said)
}

#[test]
fn placements_of_deleted_documents_go_when_they_are_old_and_committed_and_never_under_a_write() {
    sweep_under_load(1);
}

/// Each of which gives out sequence numbers of its own.
#[test]
fn the_same_with_several_primaries() {
    sweep_under_load(4);
}

fn sweep_under_load(primaries: usize) {
    let world = World::new(WorldOptions { config: short_lived(primaries), ..WorldOptions::default() });
    let mut truth = Truth::new();
    let mut events: Vec<Event> = (0..100).map(|n| write(n, 0)).collect();
    events.extend((0..60).map(delete));
    events.iter().for_each(|event| truth.apply(event));
    world.send(&events);
    let worker = world.worker();
    world.wait_until_committed(TIMEOUT);
    worker.stop();
    // No run of this one for a while.
    let late = [write(99, 1)];
    late.iter().for_each(|event| truth.apply(event));
    world.send(&late);
    let (swept, said) = sweep(&world);
    assert!(swept.is_none() && said.contains("nothing is swept yet"), "{said}");
    assert_eq!(world.placements().len(), 100);
    wait_at_most("an old mark that is not committed", TIMEOUT, || {
        let (swept, said) = sweep(&world);
        assert_eq!(swept, None, "{said}");
        said.contains("have not committed").then_some(())
    });
    // However old the mark is.
    let (swept, said) = sweep(&world);
    assert!(swept.is_none() && said.contains("have not committed"), "{said}");
    assert_eq!(world.placements().len(), 100);

    let worker = world.worker();
    world.wait_until_committed(TIMEOUT);
    // Some of the deleted documents are written again, and deleted again, all the while.
    let mut round = 1;
    wait_at_most("the sweep of those that stay deleted", TIMEOUT, || {
        let events: Vec<Event> =
            (0..20).flat_map(|n| [write(n, round), delete(n), write(n, round + 1)]).collect();
        events.iter().for_each(|event| truth.apply(event));
        world.send(&events);
        round += 2;
        sweep(&world);
        let left = world.placements();
        (20..60).all(|n| !left.contains_key(&format!("d{n}"))).then_some(())
    });
    world.wait_until_committed(TIMEOUT);
    world.assert_holds(&truth);
    assert_eq!(world.wrong_placements(&truth), Vec::<String>::new());

    // What was swept is as if it had never been: it may come back, and be missing.
    let events: Vec<Event> = (20..30).map(|n| write(n, 5)).chain((30..35).map(delete)).collect();
    events.iter().for_each(|event| truth.apply(event));
    world.send(&events);
    world.wait_until_committed(TIMEOUT);
    world.assert_holds(&truth);
    assert_eq!(world.wrong_placements(&truth), Vec::<String>::new());
    assert!(world.geofold(&["audit", "--settle", "1s"]).status.success());
    worker.stop();
}

#[test]
fn one_worker_audits_by_itself_and_mends_only_if_it_is_told_to() {
    let config = [("audit", "interval = \"2s\""), ("audit", "rate = 100000")];
    let config = config.map(|(table, line)| (table, line.to_owned())).into();
    let world = World::new(WorldOptions { config, ..WorldOptions::default() });
    let mut truth = Truth::new();
    let events: Vec<Event> = (0..200).map(|n| write(n, 0)).collect();
    events.iter().for_each(|event| truth.apply(event));
    world.send(&events);
    let workers = [world.worker(), world.worker()];
    workers.iter().for_each(Worker::wait_until_ready);
    world.wait_until_committed(TIMEOUT);
    let placements = format!("{}-placements", world.name);
    let bulk = format!("{}\n", json!({"delete": {"_index": placements, "_id": "d7"}}));
    assert_eq!(world.stack.bulk(&bulk)["errors"], false);

    let found = |worker: &Worker| worker.metric("geofold_audit_defects", "defect=\"no-placement\"");
    let finder = wait_at_most("an audit that finds the defect", TIMEOUT, || {
        workers.iter().position(|worker| found(worker) == 1.0)
    });
    assert_eq!(workers[finder].metric("geofold_audit_documents", ""), 200.0);
    assert!(workers.iter().all(|worker| worker.metric("geofold_ready", "") == 1.0));
    let [first, second] = workers;
    let (finder, other) = if finder == 0 { (first, second) } else { (second, first) };
    finder.stop();
    wait_at_most("an audit by the worker that is left", TIMEOUT, || (found(&other) == 1.0).then_some(()));
    assert!(!world.placements().contains_key("d7"), "nobody told it to mend");
    other.stop();

    let mending = world.worker_with(&[("GEOFOLD_AUDIT__REPAIR", "true")]);
    wait_at_most("the placement to be mended", TIMEOUT, || {
        world.placements().contains_key("d7").then_some(())
    });
    wait_at_most("an audit that finds nothing", TIMEOUT, || {
        (mending.metric("geofold_audits_total", "result=\"ok\"") >= 2.0 && found(&mending) == 0.0)
            .then_some(())
    });
    world.wait_until_committed(TIMEOUT);
    world.assert_holds(&truth);
    mending.stop();
}
