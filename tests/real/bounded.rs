//! Promise 5, bounded: with any backlog, memory keeps to its bound and the member stays in its group.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{CITIES, Event, Faults, Proxy, TIMEOUT, Truth, World, WorldOptions, wait_at_most};

const MIB: f64 = 1_048_576.0;

/// As good as dead: every connection breaks before anything was passed on.
const DEAD: Faults = Faults { resets: 100, ..Faults::NONE };

#[test]
fn a_backlog_beyond_memory_and_a_dead_elasticsearch_move_neither_memory_nor_the_group() {
    let world = World::new(WorldOptions {
        partitions: 4,
        config: vec![
            ("memory", "total = \"8MiB\"".to_owned()),
            ("memory", "per_partition = \"4MiB\"".to_owned()),
            ("batch", "max_bytes = \"1MiB\"".to_owned()),
            ("documents", "max_bytes = \"64KiB\"".to_owned()),
            ("elasticsearch", "request_timeout = \"5s\"".to_owned()),
            ("retry", "max_backoff = \"2s\"".to_owned()),
            ("kafka", "session_timeout = \"20s\"".to_owned()),
            ("kafka", "heartbeat_interval = \"1s\"".to_owned()),
            ("shutdown", "revoke_timeout = \"2s\"".to_owned()),
            // A poll thread that waits for Elasticsearch would be out of the group long before it is back.
            ("kafka.properties", "\"max.poll.interval.ms\" = 25000".to_owned()),
            ("kafka.properties", "\"queued.max.messages.kbytes\" = 1024".to_owned()),
        ],
    });
    // 40 MB, far more than fits.
    let text = "x".repeat(4_000);
    let mut truth = Truth::new();
    let events: Vec<Event> = (0..10_000)
        .map(|n| {
            let (lat, lon) = CITIES[n % CITIES.len()];
            let document = json!({"location": {"lat": lat, "lon": lon}, "n": n, "text": text});
            Event::Index { id: format!("d{n}"), document }
        })
        .collect();
    events.iter().for_each(|event| truth.apply(event));

    let proxy = Proxy::start(&world.stack.elasticsearch, 1);
    let worker = world.worker_behind(&proxy);
    worker.wait_until_assigned(4);
    let rebalances = worker.metric("geofold_rebalances_total", "");
    let resident_at_first = worker.metric("process_resident_memory_bytes", "");
    world.send(&events[..1_000]);
    proxy.set(DEAD);
    world.send(&events[1_000..]);
    wait_at_most("all partitions to be paused", TIMEOUT, || {
        (worker.metric("geofold_paused_partitions", "") == 4.0).then_some(())
    });
    let paused = Instant::now();
    let (mut held, mut resident) = (0.0_f64, 0.0_f64);
    // Longer than session and poll interval: a poll thread that waits would be out of its group.
    while paused.elapsed() < Duration::from_secs(30) {
        held = held.max(worker.metric("geofold_buffered_bytes", ""));
        resident = resident.max(worker.metric("process_resident_memory_bytes", ""));
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(worker.metric("geofold_paused_partitions", ""), 4.0, "nothing is fetched that cannot be held");
    assert_eq!(worker.get("/healthz").map(|(status, _)| status), Some(200));
    // The first request: a batch's, or the claim of a partition.
    wait_at_most("a request that fails", TIMEOUT, || (proxy.faults_done() > 0).then_some(()));
    proxy.set(Faults::NONE);
    world.wait_until_committed(TIMEOUT);
    held = held.max(worker.metric("geofold_buffered_bytes", ""));
    resident = resident.max(worker.metric("process_resident_memory_bytes", ""));
    eprintln!(
        "held {:.1} MiB; resident {:.0} MiB at first, {:.0} MiB at most",
        held / MIB,
        resident_at_first / MIB,
        resident / MIB
    );
    // What librdkafka had handed on when partitions were held back still comes: its queue (queued.max.messages.kbytes) and one
    // answer (fetch.max.bytes), of records that count 600 bytes more each.
    let handed_on = (1.0 + 2.0) * 1.2;
    assert!(held > 4.0 * MIB, "{held} bytes are too few to have tested anything");
    assert!(held < (8.0 + handed_on) * MIB, "{held} bytes held, 8 MiB allowed");
    assert!(
        resident < resident_at_first + 64.0 * MIB,
        "{resident} bytes resident, {resident_at_first} at first"
    );
    assert_eq!(worker.metric("geofold_rebalances_total", ""), rebalances, "the member left its group");
    assert_eq!(worker.metric("geofold_assigned_partitions", ""), 4.0);
    worker.stop();
    world.assert_holds(&truth);
}

#[test]
fn a_worker_that_starts_before_elasticsearch_waits_and_then_works() {
    let world = World::new(WorldOptions {
        config: vec![("retry", "max_backoff = \"1s\"".to_owned())],
        ..WorldOptions::default()
    });
    let mut truth = Truth::new();
    let events: Vec<Event> = (0..200)
        .map(|n| {
            let (lat, lon) = CITIES[n % CITIES.len()];
            let document = json!({"location": {"lat": lat, "lon": lon}, "n": n});
            Event::Index { id: format!("d{n}"), document }
        })
        .collect();
    events.iter().for_each(|event| truth.apply(event));
    world.send(&events);
    let proxy = Proxy::start(&world.stack.elasticsearch, 1);
    proxy.set(DEAD);
    let mut worker = world.worker_behind(&proxy);
    wait_at_most("requests that fail", TIMEOUT, || (proxy.faults_done() >= 5).then_some(()));
    assert!(worker.is_running(), "{}", worker.log());
    assert!(world.offsets().iter().all(|(committed, _)| *committed == 0));
    proxy.set(Faults::NONE);
    worker.wait_until_ready();
    world.wait_until_committed(TIMEOUT);
    worker.stop();
    world.assert_holds(&truth);
}
