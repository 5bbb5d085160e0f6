//! Workers come and go, with each way that a group can share its partitions out.

use std::time::Duration;

use crate::support::{Random, TIMEOUT, Truth, World, WorldOptions, random_events, seed};

fn come_and_go(test: &str, protocol: &[&str]) {
    let seed = seed(test);
    let mut config = vec![("batch", "max_documents = 50".to_owned())];
    config.extend(protocol.iter().map(|line| ("kafka", (*line).to_owned())));
    let world = World::new(WorldOptions { partitions: 6, config });
    let mut truth = Truth::new();
    let events = random_events(&mut Random::new(seed), 6_000, 400);
    events.iter().for_each(|event| truth.apply(event));

    let steady = world.worker();
    steady.wait_until_assigned(6);
    for part in events.chunks(events.len() / 3) {
        world.send(part);
        let guests = [world.worker(), world.worker()];
        guests.iter().for_each(|guest| guest.wait_until_assigned(2));
        std::thread::sleep(Duration::from_millis(500));
        guests.into_iter().for_each(crate::support::Worker::stop);
    }
    world.wait_until_committed(TIMEOUT);
    steady.wait_until_assigned(6);
    let lost = steady.metric("geofold_rebalances_total", "lost");
    steady.stop();
    assert_eq!(lost, 0.0, "partitions were lost although everybody left in good order");
    world.assert_holds(&truth);
    assert!(world.offsets().iter().all(|(committed, end)| committed == end));
}

#[test]
fn workers_come_and_go_in_a_classic_cooperative_group() {
    come_and_go("classic_cooperative", &["partition_assignment_strategy = \"cooperative-sticky\""]);
}

#[test]
fn workers_come_and_go_in_a_classic_range_group() {
    come_and_go("classic_range", &["partition_assignment_strategy = \"range\""]);
}

#[test]
fn workers_come_and_go_in_a_group_of_the_consumer_protocol() {
    come_and_go("consumer_protocol", &["group_protocol = \"consumer\""]);
}
