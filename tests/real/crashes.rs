//! One copy, order, nothing lost, despite crashes.

use std::time::Duration;

use crate::support::{Random, TIMEOUT, Truth, World, WorldOptions, random_events, seed};

#[test]
fn two_workers_of_which_one_is_killed_twice_leave_each_document_once_in_its_place() {
    let seed = seed("two_workers_of_which_one_is_killed_twice");
    let short_session = ("kafka", "session_timeout = \"3s\"".to_owned());
    let heartbeat = ("kafka", "heartbeat_interval = \"300ms\"".to_owned());
    let revoke = ("shutdown", "revoke_timeout = \"2s\"".to_owned());
    let small_batches = ("batch", "max_documents = 50".to_owned());
    let world = World::new(WorldOptions {
        partitions: 6,
        config: vec![short_session, heartbeat, revoke, small_batches],
    });
    let mut truth = Truth::new();
    let events = random_events(&mut Random::new(seed), 10_000, 500);
    events.iter().for_each(|event| truth.apply(event));

    let steady = world.worker();
    let mut victim = world.worker();
    steady.wait_until_ready();
    for (round, part) in events.chunks(events.len() / 4).enumerate() {
        world.send(part);
        if round == 0 || round == 2 {
            // In the middle of its work, wherever that is.
            std::thread::sleep(Duration::from_millis(700));
            victim.kill();
            victim = world.worker();
        }
    }
    world.wait_until_committed(TIMEOUT);
    victim.stop();
    steady.stop();
    world.assert_holds(&truth);
    let missing = world
        .dead_letters()
        .iter()
        .filter(|letter| letter.headers["geofold-error-reason"] == "missing_document")
        .count();
    assert!(missing as u64 <= truth.missing * 3, "{missing} dead letters for {} misses", truth.missing);
}
