//! A group that was rewound is refused, since old records would lose to what they made; with the epoch raised it replays.

use serde_json::json;

use crate::support::{CITIES, Event, TIMEOUT, Truth, World, WorldOptions, wait_at_most};

#[test]
fn a_rewound_group_is_refused_until_the_epoch_is_raised() {
    let world = World::new(WorldOptions { partitions: 1, ..WorldOptions::default() });
    let mut truth = Truth::new();
    let events: Vec<Event> = (0..120)
        .map(|n| {
            let (lat, lon) = CITIES[n % CITIES.len()];
            let document = json!({"location": {"lat": lat, "lon": lon}, "n": n});
            Event::Index { id: format!("d{}", n % 30), document }
        })
        .collect();
    events[..110].iter().for_each(|event| truth.apply(event));
    world.send(&events[..100]);
    let worker = world.worker();
    world.wait_until_committed(TIMEOUT);
    worker.stop();

    world.rewind(&[(0, 40)]);
    world.send(&events[100..110]);
    let before = world.copies();
    let refused = world.worker();
    let reason = wait_at_most("a stopped partition", TIMEOUT, || {
        Some(refused.not_ready_because()).filter(|reason| reason.contains("partition 0"))
    });
    for word in ["positions.epoch above 1", "offset 40", "offset 100"] {
        assert!(reason.contains(word), "no {word:?} in {reason}");
    }
    refused.stop();
    assert_eq!(world.offsets(), [(40, 110)]);
    assert_eq!(world.copies(), before, "a refused partition writes nothing");

    let replaying = world.worker_with(&[("GEOFOLD_POSITIONS__EPOCH", "2")]);
    world.wait_until_committed(TIMEOUT);
    replaying.stop();
    world.assert_holds(&truth);
    let versions = world.copies().into_values().flatten().map(|copy| copy.version >> 44);
    assert!(versions.into_iter().all(|epoch| epoch == 2), "every copy was written again");

    // And an old configuration does not come back unnoticed.
    let mut outdated = world.worker();
    world.send(&events[110..]);
    wait_at_most("a refusal", TIMEOUT, || {
        let is_refused = outdated.not_ready_because().contains("epoch 2 was in use")
            || (!outdated.is_running() && outdated.log().contains("epoch 2 was in use"));
        is_refused.then_some(())
    });
    drop(outdated);
    assert_eq!(world.offsets(), [(110, 120)]);
}
