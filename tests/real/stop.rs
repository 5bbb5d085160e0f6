//! A worker at SIGTERM writes what it has, commits, and leaves; at a second signal it ends at once and loses nothing.

use std::time::{Duration, Instant};

use crate::support::{
    Faults, Proxy, Random, TIMEOUT, Truth, World, WorldOptions, random_events, seed, wait_at_most,
};

#[test]
fn sigterm_writes_and_commits_everything_that_was_read() {
    let seed = seed("sigterm_writes_and_commits");
    // Nothing is committed by itself for a long time; there are many batches to write, the last of them not full.
    let world = World::new(WorldOptions {
        partitions: 3,
        config: vec![
            ("batch", "max_documents = 20".to_owned()),
            ("batch", "linger = \"5m\"".to_owned()),
            ("batch", "max_dirty_age = \"10m\"".to_owned()),
            ("commit", "interval = \"5m\"".to_owned()),
        ],
    });
    let mut truth = Truth::new();
    let events = random_events(&mut Random::new(seed), 1_500, 300);
    events.iter().for_each(|event| truth.apply(event));
    let proxy = Proxy::start(&world.stack.elasticsearch, seed);
    proxy.set(Faults { bulk_delay: Duration::from_millis(200), ..Faults::default() });
    let mut worker = world.worker_behind(&proxy);
    world.send(&events);
    wait_at_most("everything read", TIMEOUT, || {
        (worker.metric("geofold_records_total", "") == events.len() as f64).then_some(())
    });
    assert!(world.offsets().iter().all(|(committed, _)| *committed == 0));

    worker.signal("TERM");
    let began = Instant::now();
    let status = worker.wait("a drained worker", TIMEOUT);
    assert_eq!(status.code(), Some(0));
    assert!(
        began.elapsed() < Duration::from_secs(25),
        "longer than shutdown.drain_timeout: {:?}",
        began.elapsed()
    );
    assert!(world.offsets().iter().all(|(committed, end)| committed == end), "{:?}", world.offsets());
    world.assert_holds(&truth);
    assert_eq!(world.wrong_placements(&truth), [""; 0]);
}

#[test]
fn a_second_signal_ends_the_worker_at_once_and_loses_nothing() {
    let seed = seed("a_second_signal_ends_the_worker");
    let short_session = ("kafka", "session_timeout = \"3s\"".to_owned());
    let heartbeat = ("kafka", "heartbeat_interval = \"300ms\"".to_owned());
    let revoke = ("shutdown", "revoke_timeout = \"2s\"".to_owned());
    let world = World::new(WorldOptions { partitions: 2, config: vec![short_session, heartbeat, revoke] });
    let proxy = Proxy::start(&world.stack.elasticsearch, seed);
    let mut truth = Truth::new();
    let events = random_events(&mut Random::new(seed), 1_000, 200);
    events.iter().for_each(|event| truth.apply(event));
    let mut worker = world.worker_behind(&proxy);
    // The preflight writes too; only what comes after it is held.
    worker.wait_until_ready();
    proxy.set(Faults { bulks_until_held: Some(1), ..Faults::default() });
    world.send(&events);
    wait_at_most("a write on its way", TIMEOUT, || (proxy.bulks_held() > 0).then_some(()));
    worker.signal("TERM");
    wait_at_most("a draining worker", TIMEOUT, || {
        worker.not_ready_because().contains("draining").then_some(())
    });
    assert!(worker.is_running(), "it drains as long as a write is on its way");
    worker.signal("INT");
    let began = Instant::now();
    let status = worker.wait("a worker that was told twice", TIMEOUT);
    assert_eq!(status.code(), Some(130));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());

    let next = world.worker();
    world.wait_until_committed(TIMEOUT);
    proxy.set(Faults::default());
    wait_at_most("the last late write", TIMEOUT, || (proxy.bulks_held() == 0).then_some(()));
    next.stop();
    world.assert_holds(&truth);
}
