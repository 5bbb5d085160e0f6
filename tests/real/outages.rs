//! Kafka, Elasticsearch and the network between fail in the middle of the work: it takes longer, and nothing else.

use crate::support::{
    Faults, Proxy, Random, TIMEOUT, Truth, World, WorldOptions, random_events, seed, wait_at_most,
};

fn impatient() -> WorldOptions {
    WorldOptions {
        partitions: 4,
        config: vec![
            ("batch", "max_documents = 50".to_owned()),
            ("retry", "max_backoff = \"1s\"".to_owned()),
            ("elasticsearch", "request_timeout = \"5s\"".to_owned()),
        ],
    }
}

/// Sends 3,000 events in two halves, with `trouble` while the first is worked on, and compares.
fn through(test: &str, trouble: impl FnOnce(&World)) {
    let seed = seed(test);
    let world = World::alone(impatient());
    let mut truth = Truth::new();
    let events = random_events(&mut Random::new(seed), 3_000, 300);
    events.iter().for_each(|event| truth.apply(event));
    let (first, second) = events.split_at(1_500);
    let worker = world.worker();
    worker.wait_until_assigned(4);
    world.send(first);
    wait_at_most("a worker in the middle of its work", TIMEOUT, || {
        (worker.metric("geofold_records_processed_total", "") > 100.0).then_some(())
    });
    trouble(&world);
    world.send(second);
    world.wait_until_committed(TIMEOUT);
    worker.wait_until_ready();
    worker.stop();
    world.assert_holds(&truth);
}

#[test]
fn a_restart_of_the_broker_loses_nothing() {
    through("a_restart_of_the_broker", |world| world.stack.tell("restart", "kafka"));
}

#[test]
fn a_crash_of_elasticsearch_loses_nothing() {
    through("a_crash_of_elasticsearch", |world| {
        world.stack.tell("kill", "elasticsearch");
        world.stack.tell("start", "elasticsearch");
    });
}

#[test]
fn refused_requests_and_lost_answers_cost_retries_and_nothing_else() {
    let seed = seed("refused_requests_and_lost_answers");
    let world = World::new(impatient());
    let proxy = Proxy::start(&world.stack.elasticsearch, seed);
    proxy.set(Faults { busy: 6, unavailable: 8, lost_replies: 15, ..Faults::default() });
    let mut truth = Truth::new();
    let events = random_events(&mut Random::new(seed), 3_000, 300);
    events.iter().for_each(|event| truth.apply(event));
    let workers = [world.worker_behind(&proxy), world.worker_behind(&proxy)];
    workers.iter().for_each(|worker| worker.wait_until_assigned(2));
    world.send(&events);
    world.wait_until_committed(TIMEOUT);
    world.assert_holds(&truth);

    let retries = |reason: &str| {
        let of =
            |worker: &crate::support::Worker| worker.metric("geofold_elasticsearch_retries_total", reason);
        workers.iter().map(of).sum::<f64>()
    };
    let by_reason = [retries("reason=\"429\""), retries("reason=\"503\""), retries("reason=\"connection\"")];
    eprintln!("429, 503, connection: {by_reason:?}; {} faults", proxy.faults_done());
    assert!(by_reason.iter().all(|count| *count > 0.0), "{by_reason:?}");
    proxy.set(Faults::default());
    workers.into_iter().for_each(crate::support::Worker::stop);
    // The answer that was lost may have been a clear's.
    world.assert_holds(&truth);
}

#[test]
fn a_worker_whose_credentials_are_refused_ends_with_an_error_and_moves_no_offset() {
    let seed = seed("a_worker_whose_credentials_are_refused");
    let world = World::new(impatient());
    let proxy = Proxy::start(&world.stack.elasticsearch, seed);
    let mut truth = Truth::new();
    let events = random_events(&mut Random::new(seed), 2_000, 300);
    events.iter().for_each(|event| truth.apply(event));
    let (first, second) = events.split_at(1_000);
    let mut refused = world.worker_behind(&proxy);
    world.send(first);
    world.wait_until_committed(TIMEOUT);
    let before = world.offsets();

    proxy.set(Faults { unauthorized: true, ..Faults::default() });
    world.send(second);
    let status = refused.wait("a worker that gives up", TIMEOUT);
    assert_eq!(status.code(), Some(1), "{}", refused.log());
    let log = refused.log();
    let last = log.lines().last().unwrap();
    for word in ["error:", "credentials", "elasticsearch.username", "api_key", "401"] {
        assert!(last.contains(word), "no {word:?} in {last:?}");
    }
    let committed =
        |offsets: Vec<(i64, i64)>| offsets.into_iter().map(|(committed, _)| committed).collect::<Vec<_>>();
    assert_eq!(committed(world.offsets()), committed(before));

    let allowed = world.worker();
    world.wait_until_committed(TIMEOUT);
    allowed.stop();
    world.assert_holds(&truth);
}
