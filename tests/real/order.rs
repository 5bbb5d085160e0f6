//! Promise 2, order: what a worker still does after its partitions went to another owner changes nothing.

use serde_json::json;

use crate::support::{
    CITIES, Event, Faults, Proxy, Random, TIMEOUT, Truth, World, WorldOptions, random_events, seed,
    wait_at_most,
};

fn short_session() -> Vec<(&'static str, String)> {
    vec![
        ("kafka", "session_timeout = \"3s\"".to_owned()),
        ("kafka", "heartbeat_interval = \"300ms\"".to_owned()),
        ("shutdown", "revoke_timeout = \"2s\"".to_owned()),
        ("batch", "max_documents = 50".to_owned()),
    ]
}

#[test]
fn a_worker_that_was_frozen_for_longer_than_its_session_wakes_to_harm_nobody() {
    let seed = seed("a_worker_that_was_frozen");
    let world = World::new(WorldOptions { partitions: 4, config: short_session() });
    let mut truth = Truth::new();
    let events = random_events(&mut Random::new(seed), 6_000, 400);
    let (before, after) = events.split_at(4_000);

    let zombie = world.worker();
    let owner = world.worker();
    zombie.wait_until_assigned(2);
    owner.wait_until_assigned(2);
    world.send(before);
    before.iter().for_each(|event| truth.apply(event));
    wait_at_most("the zombie at work", TIMEOUT, || {
        (zombie.metric("geofold_records_total", "") > 100.0).then_some(())
    });
    zombie.signal("STOP");
    // All of it: the zombie's partitions too.
    world.wait_until_committed(TIMEOUT);
    owner.wait_until_assigned(4);
    world.assert_holds(&truth);

    zombie.signal("CONT");
    world.send(after);
    after.iter().for_each(|event| truth.apply(event));
    world.wait_until_committed(TIMEOUT);
    zombie.wait_until_assigned(2);
    assert!(zombie.metric("geofold_rebalances_total", "lost") > 0.0, "it lost its partitions unawares");
    zombie.stop();
    owner.stop();
    world.assert_holds(&truth);
    assert!(world.offsets().iter().all(|(committed, end)| committed == end));
}

#[test]
fn a_request_that_arrives_long_after_its_sender_died_changes_nothing() {
    let place = |city: usize, n: u64| {
        let (lat, lon) = CITIES[city];
        json!({"location": {"lat": lat, "lon": lon}, "n": n})
    };
    let index =
        |id: u64, city: usize, n: u64| Event::Index { id: format!("d{id}"), document: place(city, n) };
    // The rounds of a batch: write-aheads and what is in place; documents that move; deletes from where they were.
    for bulks_before in 0..3 {
        let world = World::new(WorldOptions { partitions: 1, config: short_session() });
        let mut truth = Truth::new();
        let mut send = |events: Vec<Event>| {
            world.send(&events);
            events.iter().for_each(|event| truth.apply(event));
        };
        send((0..40).map(|id| index(id, 0, 0)).collect());
        let first = world.worker();
        world.wait_until_committed(TIMEOUT);
        first.stop();

        let proxy = Proxy::start(&world.stack.elasticsearch, 1);
        let dead = world.worker_behind(&proxy);
        // The preflight writes too; only what comes after it is held.
        dead.wait_until_ready();
        proxy.set(Faults { bulks_until_held: Some(bulks_before), ..Faults::default() });
        // One in two moves, the others stay where they are.
        send((0..40).map(|id| index(id, (id % 2) as usize, 1)).collect());
        wait_at_most("a request on its way", TIMEOUT, || (proxy.bulks_held() > 0).then_some(()));
        dead.kill();
        send(
            (0..40)
                .map(|id| match id % 4 {
                    0 => Event::Delete { id: format!("d{id}") },
                    other => index(id, if other == 3 { 2 } else { 0 }, 2),
                })
                .collect(),
        );
        let owner = world.worker();
        world.wait_until_committed(TIMEOUT);
        assert!(proxy.bulks_held() > 0, "the late request came before it was late");
        world.assert_holds(&truth);
        proxy.set(Faults::default());
        wait_at_most("the late request", TIMEOUT, || (proxy.bulks_held() == 0).then_some(()));
        world.assert_holds(&truth);
        owner.stop();
        assert_eq!(world.wrong_placements(&truth), [""; 0]);
    }
}
