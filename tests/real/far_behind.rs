//! A partition far behind writes little more than the last of each document's waiting writes, and loses nothing if it is killed.

use std::time::Duration;

use crate::support::{
    Faults, Proxy, Random, TIMEOUT, Truth, World, WorldOptions, random_events, seed, wait_at_most,
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
    proxy.set(Faults { bulk_delay: Duration::from_millis(100), ..Faults::default() });

    let killed = world.worker_behind(&proxy);
    let read_ahead = |log: String| log.matches("read ahead").count() == 2;
    wait_at_most("both partitions read ahead", TIMEOUT, || read_ahead(killed.log()).then_some(()));
    let read = |worker: &crate::support::Worker| worker.metric("geofold_records_total", "");
    wait_at_most("most records read", TIMEOUT, || (read(&killed) > EVENTS as f64 * 0.6).then_some(()));
    killed.kill();

    let worker = world.worker_behind(&proxy);
    world.wait_until_committed(TIMEOUT);
    let written = worker.metric("geofold_elasticsearch_operations_total", "kind=\"bulk\"");
    let read = read(&worker);
    assert!(written < read / 2.0, "{written} operations for {read} records");
    assert_eq!(worker.metric("geofold_stopped_partitions", ""), 0.0);
    worker.stop();
    world.assert_holds(&truth);
}
