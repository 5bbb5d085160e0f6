//! Promise 6, honest: every record is counted once, by how it ended.

use crate::support::{Random, Raw, TIMEOUT, Truth, World, WorldOptions, random_events, seed};

const OUTCOMES: [&str; 8] = [
    "indexed",
    "deleted",
    "folded",
    "already_applied",
    "dead_lettered",
    "dropped",
    "handed_over",
    "nothing_to_place",
];

#[test]
fn records_in_are_records_done_by_outcome_and_records_in_flight() {
    let seed = seed("records_in_are_records_done");
    let world = World::new(WorldOptions::default());
    let mut truth = Truth::new();
    let events = random_events(&mut Random::new(seed), 4_000, 300);
    events.iter().for_each(|event| truth.apply(event));
    let bad: Vec<Raw> = (0..25)
        .map(|n| Raw {
            key: Some(format!("bad{n}").into_bytes()),
            value: Some(b"[]".to_vec()),
            ..Raw::default()
        })
        .collect();

    let workers = [world.worker(), world.worker()];
    workers.iter().for_each(|worker| worker.wait_until_assigned(2));
    for part in events.chunks(1_000) {
        world.send(part);
        for worker in &workers {
            // In the middle of the work too. A scrape may fall between two counters, so it may look again.
            let adds_up = || {
                let done = worker.metric("geofold_records_processed_total", "");
                let in_flight = worker.metric("geofold_records_in_flight", "");
                (worker.metric("geofold_records_total", "") - done - in_flight).abs() < 1_000.0
            };
            assert!(adds_up(), "records vanish from the counters");
        }
    }
    world.produce(&bad);
    world.wait_until_committed(TIMEOUT);
    world.assert_holds(&truth);

    let sum =
        |name: &str, labels: &str| workers.iter().map(|worker| worker.metric(name, labels)).sum::<f64>();
    let sent = (events.len() + bad.len()) as f64;
    let done =
        OUTCOMES.map(|outcome| sum("geofold_records_processed_total", &format!("outcome=\"{outcome}\"")));
    eprintln!("{OUTCOMES:?}: {done:?}");
    assert_eq!(sum("geofold_records_total", ""), sent);
    assert_eq!(sum("geofold_records_in_flight", ""), 0.0);
    assert_eq!(done.iter().sum::<f64>(), sent, "{OUTCOMES:?}: {done:?}");
    let [indexed, deleted, folded, already_applied, dead_lettered, dropped, handed_over, _nothing_to_place] =
        done;
    assert!(indexed > 0.0 && deleted > 0.0 && folded > 0.0);
    // Of a write that is sent again it is unknown whether it was applied before.
    let is_repeated = sum("geofold_elasticsearch_retries_total", "") > 0.0;
    assert!(already_applied == 0.0 || is_repeated, "{already_applied} already applied");
    assert_eq!((dropped, handed_over), (0.0, 0.0));
    // Patches that miss may fold before they are found to miss.
    assert!(dead_lettered >= bad.len() as f64);
    let letters = world.dead_letters();
    let bad_letters =
        letters.iter().filter(|letter| letter.headers["geofold-error-reason"] == "not_an_object");
    assert_eq!(bad_letters.count(), bad.len());
    assert_eq!(sum("geofold_dead_letters_total", ""), dead_lettered);
    workers.into_iter().for_each(super::support::Worker::stop);
}
