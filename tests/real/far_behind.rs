//! A partition far behind writes little more than the last of each document's waiting writes, and loses nothing if it is killed.

use std::time::Duration;

use crate::support::{
    Faults, Proxy, Random, TIMEOUT, Truth, Worker, World, WorldOptions, random_events, seed, wait_at_most,
};

const EVENTS: usize = 40_000;
const DOCUMENTS: u64 = 4_000;

#[test]
fn a_backlog_that_memory_does_not_hold_is_folded_by_reading_ahead() {
    let seed = seed("a_backlog_that_memory_does_not_hold");
    let world = World::new(WorldOptions {
        partitions: 2,
        config: vec![
            // Some hundred documents.
            ("memory", "total = \"512KiB\"".to_owned()),
            ("memory", "per_partition = \"256KiB\"".to_owned()),
            // What is read ahead is three times a partition's share of this at least.
            ("memory", "cached_placements = 5000".to_owned()),
            ("batch", "max_bytes = \"64KiB\"".to_owned()),
            ("documents", "max_bytes = \"16KiB\"".to_owned()),
            ("kafka", "session_timeout = \"3s\"".to_owned()),
            ("kafka", "heartbeat_interval = \"1s\"".to_owned()),
            ("shutdown", "revoke_timeout = \"2s\"".to_owned()),
        ],
    });
    let mut truth = Truth::new();
    let events = random_events(&mut Random::new(seed), EVENTS, DOCUMENTS);
    events.iter().for_each(|event| truth.apply(event));
    world.send(&events);
    let proxy = Proxy::start(&world.stack.elasticsearch, seed);
    // Hardly anything is written before it is known what need not be.
    let that_knows = || {
        proxy.set(Faults { bulk_delay: Duration::from_secs(2), ..Faults::default() });
        let worker = world.worker_behind(&proxy);
        let is_read = || worker.log().matches("read ahead").count() >= 2;
        wait_at_most("both partitions read ahead", TIMEOUT, || is_read().then_some(()));
        proxy.set(Faults::default());
        worker
    };
    let read = |worker: &Worker| worker.metric("geofold_records_total", "");

    let killed = that_knows();
    wait_at_most("half of the records read", TIMEOUT, || (read(&killed) > EVENTS as f64 / 2.0).then_some(()));
    killed.kill();

    let worker = that_knows();
    world.wait_until_committed(TIMEOUT);
    let written = worker.metric("geofold_elasticsearch_operations_total", "kind=\"bulk\"");
    let read = read(&worker);
    assert!(written < read / 2.0, "{written} operations for {read} records");
    assert_eq!(worker.metric("geofold_stopped_partitions", ""), 0.0);
    worker.stop();
    world.assert_holds(&truth);
}
