//! A worker that compresses what it sends to Elasticsearch.

use rdkafka::message::OwnedHeaders;

use crate::route::front::{Front, Seen};
use crate::standins::{Standins, Worker};

/// Length of a body that is large enough to be worth it, and how it is encoded.
fn large_bulk(seen: &Seen) -> Option<(usize, Option<&str>)> {
    let bytes = seen.header("content-length")?.parse().unwrap();
    (seen.path.starts_with("/_bulk") && bytes > 1_023).then(|| (bytes, seen.header("content-encoding")))
}

#[test]
fn worker_compresses_its_bulks_if_it_is_told_to() {
    for (key, encoding) in [("", None), ("compress_requests = true", Some("gzip"))] {
        let world = Standins::start();
        let front = Front::start(&world.elasticsearch());
        let direct = format!("urls = [{:?}]", world.elasticsearch());
        let text = world.config("").replace(&direct, &format!("urls = [{:?}]\n{key}", front.url));
        let config = world.folder.path().join("worker.toml");
        std::fs::write(&config, text).unwrap();
        world.produce((0..500).map(|n| (format!("id-{n}"), OwnedHeaders::new())));
        let worker = Worker::start(world.folder.path(), &config, &[]);
        let done = "geofold_records_processed_total{outcome=\"indexed\",partition=\"0\"}";
        worker.wait_for_metric(done, 500.0);
        worker.stop();
        let seen = front.seen();
        let bulks: Vec<_> = seen.iter().filter_map(large_bulk).collect();
        assert!(!bulks.is_empty() && bulks.iter().all(|(_, used)| *used == encoding), "{key}: {bulks:?}");
    }
}
