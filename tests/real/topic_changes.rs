//! The topic changes under a running worker: partitions are added, or it is deleted and created again.

use std::time::Duration;

use serde_json::json;

use crate::support::{CITIES, Event, TIMEOUT, Truth, Worker, World, WorldOptions, text, wait_at_most};

fn events(documents: std::ops::Range<usize>) -> Vec<Event> {
    let event = |n: usize| {
        let (lat, lon) = CITIES[n % CITIES.len()];
        Event::Index { id: format!("d{n}"), document: json!({"location": {"lat": lat, "lon": lon}, "n": n}) }
    };
    documents.map(event).collect()
}

/// Waits until these partitions stopped, and gives what the worker says.
fn stopped(worker: &Worker, partitions: &[i32]) -> String {
    wait_at_most("stopped partitions", TIMEOUT, || {
        let reason = worker.not_ready_because();
        partitions.iter().all(|number| reason.contains(&format!("partition {number}"))).then_some(reason)
    })
}

#[test]
fn partitions_that_are_added_under_a_running_worker_stop_all_of_its_partitions() {
    let world = World::new(WorldOptions { partitions: 4, ..WorldOptions::default() });
    world.send(&events(0..40));
    let worker = world.worker();
    world.wait_until_committed(TIMEOUT);
    world.add_partitions(6);
    let reason = stopped(&worker, &[0, 1, 2, 3]);
    assert!(reason.contains("has 6 partitions and had 4, so keys changed partition"), "{reason}");
    assert!(reason.contains("raise positions.epoch above 1"), "{reason}");
    let before = (world.copies(), world.committed());
    world.send(&events(40..80));
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((world.copies(), world.committed()), before, "it goes on");
    worker.stop();
}

#[test]
fn partitions_added_by_a_multiple_are_read_once_the_old_ones_are_drained() {
    let world = World::new(WorldOptions { partitions: 2, ..WorldOptions::default() });
    let mut truth = Truth::new();
    let send = |events: &[Event], truth: &mut Truth| {
        events.iter().for_each(|event| truth.apply(event));
        world.send(events);
    };
    send(&events(0..60), &mut truth);
    let worker = world.worker();
    world.wait_until_committed(TIMEOUT);
    let none = world.geofold(&["repartition"]);
    assert!(!none.status.success() && text(&none).contains("add partitions first"), "{}", text(&none));

    world.add_partitions(6);
    // The same documents again, and new ones: most keys are in new partitions now.
    let again = |n: usize| Event::Patch { id: format!("d{n}"), patch: json!({"n": 1_000 + n}) };
    send(&(0..60).map(again).collect::<Vec<_>>(), &mut truth);
    send(&events(60..90), &mut truth);
    let reason = stopped(&worker, &[2, 3, 4, 5]);
    assert!(reason.contains("partition 5 is new (the topic had 2): run geofold repartition"), "{reason}");
    assert!(!reason.contains("partition 0 ") && !reason.contains("partition 1 "), "{reason}");
    let status = world.geofold(&["status", "--workers", worker.address()]);
    assert!(text(&status).contains("6 partitions, of which 2 are read in epoch 1"), "{}", text(&status));

    // Not before the old ones are drained.
    let mut early = world.worker_with(&[("GEOFOLD_POSITIONS__EPOCH", "2")]);
    assert!(!early.wait("a refused worker", TIMEOUT).success());
    assert!(early.log().contains("before you raise it"), "{}", early.log());
    let drained = world.geofold(&["repartition", "--metadata-age", "1s"]);
    assert!(drained.status.success(), "{}", text(&drained));
    assert!(text(&drained).contains("raise positions.epoch above 1"), "{}", text(&drained));
    send(
        &(0..90)
            .map(|n| Event::Patch { id: format!("d{n}"), patch: json!({"again": n}) })
            .collect::<Vec<_>>(),
        &mut truth,
    );
    worker.stop();

    let worker = world.worker_with(&[("GEOFOLD_POSITIONS__EPOCH", "2")]);
    world.wait_until_committed(TIMEOUT);
    worker.stop();
    world.assert_holds(&truth);
    assert_eq!(world.wrong_placements(&truth), [""; 0]);
    assert_eq!(world.dead_letters().len(), 0);
}

#[test]
fn a_topic_that_is_created_again_and_refilled_stops_all_partitions_of_a_running_worker() {
    let world = World::new(WorldOptions { partitions: 2, ..WorldOptions::default() });
    let mut truth = Truth::new();
    let (old, new) = (events(0..20), events(20..120));
    world.send(&old);
    let worker = world.worker();
    world.wait_until_committed(TIMEOUT);
    // It fetches nothing between: it would be told that its offset is out of range.
    worker.signal("STOP");
    world.create_topic_again();
    world.send(&new);
    worker.signal("CONT");
    let reason = stopped(&worker, &[0, 1]);
    assert!(reason.contains("raise positions.epoch above 1"), "{reason}");
    let changed = worker.log().contains("the topic changed; all partitions of this worker stop");
    assert!(changed && worker.log().contains("set the group's offsets to the beginning"), "{}", worker.log());
    worker.stop();
    // What it says is what helps.
    world.rewind(&[(0, 0), (1, 0)]);
    let worker = world.worker_with(&[("GEOFOLD_POSITIONS__EPOCH", "2")]);
    world.wait_until_committed(TIMEOUT);
    worker.stop();
    old.iter().chain(&new).for_each(|event| truth.apply(event));
    world.assert_holds(&truth);
}
