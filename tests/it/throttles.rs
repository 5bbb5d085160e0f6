//! What a worker spares Elasticsearch: a ceiling of write operations per second, and fewer requests at once while it is
//! overloaded.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use geofold::testkit::embedded::elasticsearch::FaultPlan;
use rdkafka::message::OwnedHeaders;
use rustix::process::Signal;

use crate::standins::{Standins, Worker, wait_for};

const OPERATIONS: &str = "geofold_elasticsearch_operations_total{kind=\"bulk\"}";
const THROTTLED: &str = "geofold_elasticsearch_throttled_seconds_total";
const PERMITS: &str = "geofold_elasticsearch_permits";
const INDEXED: &str = "geofold_records_processed_total{outcome=\"indexed\",partition=\"0\"}";

/// A configuration with these keys of `elasticsearch`.
fn write(world: &Standins, keys: &str) -> PathBuf {
    let text = world.config("[batch]\nlinger = \"20ms\"\n[retry]\nmax_backoff = \"200ms\"\n");
    let path = world.folder.path().join("geofold.toml");
    fs::write(&path, text.replace("[elasticsearch]\n", &format!("[elasticsearch]\n{keys}\n"))).unwrap();
    path
}

fn produce(world: &Standins, numbers: std::ops::Range<u32>) {
    world.produce(numbers.map(|n| (format!("d{n}"), OwnedHeaders::new())));
}

#[test]
fn a_worker_writes_no_more_than_its_ceiling_until_a_reload_lifts_it() {
    /// New documents, of two operations each: below the ceiling they would take twice the time that is waited for.
    const DOCUMENTS: u32 = 3_000;
    const CEILING: f64 = 5.0;
    let world = Standins::start();
    let config = write(&world, "max_operations_per_second = 5");
    let began = Instant::now();
    let worker = Worker::start(world.folder.path(), &config, &[]);
    produce(&world, 0..DOCUMENTS);
    wait_for("operations", || {
        let operations = worker.metric(OPERATIONS);
        // A second's operations are saved up at first, and the last request may have as many.
        let most = CEILING * (began.elapsed() + Duration::from_secs(2)).as_secs_f64();
        assert!(operations <= most, "{operations} operations are more than {most}");
        (operations >= 5.0 * CEILING).then_some(())
    });
    assert!(worker.metric(THROTTLED) > 0.0);
    assert_eq!(worker.limit("elasticsearch.max_operations_per_second"), "5");

    write(&world, "");
    worker.signal(Signal::HUP);
    worker.wait_for_metric(INDEXED, f64::from(DOCUMENTS));
    worker.stop();
}

#[test]
fn an_overloaded_elasticsearch_gets_one_request_at_a_time_and_more_when_it_recovers() {
    let world = Standins::start();
    let config = write(&world, "max_in_flight = 6\nadaptive_concurrency = true");
    let worker = Worker::start(world.folder.path(), &config, &[]);
    worker.wait_for_metric("geofold_ready", 1.0);
    worker.wait_for_metric(PERMITS, 6.0);
    let overload = FaultPlan { busy: 1.0, ..FaultPlan::default() };
    world.faults().set(overload);
    produce(&world, 0..50);
    worker.wait_for_metric(PERMITS, 1.0);

    world.faults().clear();
    let mut produced = 50;
    wait_for("six permits", || {
        produce(&world, produced..produced + 5);
        produced += 5;
        (worker.metric(PERMITS) == 6.0).then_some(())
    });

    world.faults().set(overload);
    produce(&world, produced..produced + 50);
    worker.wait_for_metric(PERMITS, 1.0);
    write(&world, "max_in_flight = 6");
    worker.signal(Signal::HUP);
    worker.wait_for_metric(PERMITS, 6.0);
    world.faults().clear();
    worker.wait_for_metric(INDEXED, f64::from(produced + 50));
    worker.stop();
}
