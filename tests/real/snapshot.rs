//! A snapshot that is taken while workers write, and restored while producers do.

use std::process::Output;

use serde_json::json;

use crate::support::{
    Event, Random, TIMEOUT, Truth, World, WorldOptions, ask_for, random_events, seed, text, wait_at_most,
};

/// A group that forgets a killed worker soon, and short batch deadlines, of which a restore waits for two.
fn world() -> World {
    let world = World::new(WorldOptions {
        partitions: 3,
        config: vec![
            ("kafka", "session_timeout = \"3s\"".to_owned()),
            ("kafka", "heartbeat_interval = \"1s\"".to_owned()),
            ("shutdown", "revoke_timeout = \"2s\"".to_owned()),
            ("batch", "timeout = \"6s\"".to_owned()),
            ("elasticsearch", "request_timeout = \"4s\"".to_owned()),
        ],
    });
    let settings = json!({"type": "fs", "settings": {"location": world.name}});
    world.stack.ask("PUT", &format!("/_snapshot/{}", world.name), Some(settings));
    world
}

fn send(world: &World, events: &[Event], truth: &mut Truth) {
    events.iter().for_each(|event| truth.apply(event));
    world.send(events);
}

/// The indices of the prefix whose writes are blocked.
fn blocked(world: &World) -> usize {
    let path = format!("/{}-*/_settings/index.blocks.write", world.name);
    world.stack.ask("GET", &path, None).as_object().unwrap().len()
}

fn failed(output: &Output, code: i32, words: &str) {
    assert!(output.status.code() == Some(code) && text(output).contains(words), "{words}: {}", text(output));
}

#[test]
fn producers_write_while_a_snapshot_is_taken_and_restored() {
    let seed = seed("producers_write_while_a_snapshot_is_taken_and_restored");
    let events = random_events(&mut Random::new(seed), 6_000, 500);
    let (before, during) = events.split_at(2_000);
    let (during, since) = during.split_at(2_000);
    let (world, mut truth) = (world(), Truth::new());
    let place = format!("{}/one", world.name);

    let worker = world.worker();
    send(&world, before, &mut truth);
    std::thread::scope(|scope| {
        scope.spawn(|| send(&world, during, &mut truth));
        let taken = world.geofold(&["snapshot", &place]);
        assert!(
            taken.status.success() && text(&taken).contains("writes were blocked for"),
            "{}",
            text(&taken)
        );
    });
    assert_eq!(blocked(&world), 0);
    failed(&world.geofold(&["snapshot", &place]), 1, "exists: choose another name");
    let (last, rest) = since.split_at(1_000);
    send(&world, last, &mut truth);
    world.wait_until_committed(TIMEOUT);
    world.assert_holds(&truth);

    failed(&world.geofold(&["restore", &place]), 2, "would be deleted: repeat the command with --yes");
    failed(&world.geofold(&["restore", &place, "--yes"]), 1, "has members");
    worker.kill();
    world.stack.ask("DELETE", &format!("/{}-s00,{}-s01", world.name, world.name), None);
    send(&world, rest, &mut truth);
    let restored = ask_for(TIMEOUT, || {
        let restored = world.geofold(&["restore", &place, "--yes"]);
        (!text(&restored).contains("has members")).then_some(restored)
    });
    let restored = restored.expect("a group without members");
    assert!(restored.status.success(), "{}", text(&restored));
    assert!(text(&restored).contains("records to read again: start the workers"), "{}", text(&restored));
    assert_eq!(blocked(&world), 0);
    let waiting: u64 = world.offsets().into_iter().map(|(committed, end)| committed.abs_diff(end)).sum();
    assert!(waiting >= since.len() as u64, "{waiting}");

    let worker = world.worker();
    world.wait_until_committed(TIMEOUT);
    worker.stop();
    world.assert_holds(&truth);
    assert_eq!(world.wrong_placements(&truth), [""; 0]);
    let audit = world.geofold(&["audit", "--settle", "1s"]);
    assert!(audit.status.success(), "{}", text(&audit));
}

#[test]
fn only_a_snapshot_of_one_moment_is_restored() {
    let world = world();
    let events = random_events(&mut Random::new(seed("only_a_snapshot_of_one_moment")), 200, 50);
    let mut truth = Truth::new();
    let worker = world.worker();
    send(&world, &events, &mut truth);
    world.wait_until_committed(TIMEOUT);

    let own = json!({"indices": format!("{}-*", world.name), "include_global_state": false});
    let path = format!("/_snapshot/{}/own?wait_for_completion=true", world.name);
    world.stack.ask("PUT", &path, Some(own));
    let (own, missing) = (format!("{}/own", world.name), format!("{}/none", world.name));
    worker.stop();
    failed(&world.geofold(&["restore", &own, "--yes"]), 1, "was not taken by geofold snapshot");
    failed(&world.geofold(&["restore", &missing, "--yes"]), 1, "is MISSING, not SUCCESS");
    world.assert_holds(&truth);
}

#[test]
fn a_block_that_a_killed_snapshot_left_is_ended_by_unblock() {
    let (world, mut truth) = (world(), Truth::new());
    let events = random_events(&mut Random::new(seed("a_block_that_a_killed_snapshot_left")), 400, 50);
    let worker = world.worker();
    send(&world, &events[..200], &mut truth);
    world.wait_until_committed(TIMEOUT);
    let placements = format!("{}-placements", world.name);
    world.stack.ask("PUT", &format!("/{placements}/_block/write"), None);
    failed(&world.geofold(&["snapshot", &format!("{}/two", world.name)]), 1, "geofold snapshot --unblock");
    send(&world, &events[200..], &mut truth);
    wait_at_most("a worker that waits", TIMEOUT, || {
        (worker.metric("geofold_elasticsearch_retries_total", "") > 0.0).then_some(())
    });
    let ended = world.geofold(&["snapshot", "--unblock"]);
    assert!(text(&ended).contains("1 indices take writes again"), "{}", text(&ended));
    world.wait_until_committed(TIMEOUT);
    worker.stop();
    world.assert_holds(&truth);

    // One that takes too long is deleted, and writes go on.
    let late = format!("{}/late", world.name);
    failed(&world.geofold(&["snapshot", &late, "--max-pause", "1ms"]), 1, "it was deleted, and writes go on");
    assert_eq!(blocked(&world), 0);
    failed(&world.geofold(&["restore", &late, "--yes"]), 1, "is MISSING");
    assert!(world.copies().len() == truth.documents.len(), "nothing was deleted");
}
