//! A running worker reads its configuration again, at SIGHUP and when the file has another content: it follows what it can,
//! names what it can not, and keeps the old whole when the new is wrong.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod standins;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rdkafka::message::OwnedHeaders;
use rustix::process::Signal;

use standins::{Standins, Worker};

const FOLLOWED: &str = "geofold_config_reloads_total{outcome=\"followed\"}";
const REFUSED: &str = "geofold_config_reloads_total{outcome=\"refused\"}";
const REFUSED_AT: &str = "geofold_config_reload_timestamp_seconds{outcome=\"refused\"}";

/// One for a worker that waits for its brokers all the time: it listens as well.
fn write(config: &Path, filter: &str, more: &str) {
    let map = concat!(env!("CARGO_MANIFEST_DIR"), "/config/map-55.json");
    // Port 9 discards; nobody listens there.
    let text = format!(
        "[kafka]\nbrokers = [\"127.0.0.1:9\"]\ntopic = \"t\"\n[elasticsearch]\nurls = [\"http://127.0.0.1:9\"]\n\
         [geoshards]\nmap = {map:?}\n[admin]\nlisten = \"127.0.0.1:0\"\n[log]\nfilter = \"{filter}\"\n{more}"
    );
    fs::write(config, text).unwrap();
}

fn documents(numbers: std::ops::Range<u32>) -> impl Iterator<Item = (String, OwnedHeaders)> {
    numbers.map(|n| (format!("d{n}"), OwnedHeaders::new()))
}

#[test]
fn the_filter_is_followed_other_keys_are_named_and_a_wrong_file_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("geofold.toml");
    write(&config, "info", "");
    let worker = Worker::start(folder.path(), &config, &[]);

    write(&config, "info,geofold::cli=debug", "[shutdown]\ndrain = \"29s\"\n");
    worker.signal(Signal::HUP);
    let log = worker.wait_for("shutdown.drain");
    assert!(log.contains("restart this worker"), "{log}");
    assert!(log.contains("geofold::cli=debug"), "{log}");

    write(&config, "info", "[batch]\nlingre = \"1s\"\n");
    worker.signal(Signal::HUP);
    let log = worker.wait_for("the one in force stays");
    assert!(log.contains("lingre"), "{log}");

    write(&config, "warn", "[shutdown]\nrevoke = \"9s\"\n");
    worker.signal(Signal::HUP);
    let log = worker.wait_for("shutdown.revoke");
    assert_eq!(
        log.matches("the configuration was read again").count(),
        1,
        "the filter is \"warn\" now: {log}"
    );
    assert_eq!((worker.metric(FOLLOWED), worker.metric(REFUSED)), (2.0, 1.0));
}

#[test]
fn the_environment_still_wins() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("geofold.toml");
    write(&config, "error", "");
    let worker = Worker::start(folder.path(), &config, &[("RUST_LOG", "info")]);
    write(&config, "warn", "[batch]\nmax_documents = 7\n");
    worker.signal(Signal::HUP);
    worker.wait_for("RUST_LOG is set, and wins");
    worker.wait_for_metric(FOLLOWED, 1.0);
    assert_eq!(worker.limit("log.filter"), "error");
    assert_eq!(worker.limit("batch.max_documents"), "7");
}

/// Documents wait for more than come.
const PATIENT: &str = "[batch]\nlinger = \"1h\"\nmax_dirty_age = \"2h\"\n";

#[test]
fn batches_are_of_the_new_size_and_a_file_that_is_wrong_in_one_thing_is_followed_in_none() {
    let world = Standins::start();
    let config = world.write("geofold.toml", PATIENT);
    let worker = Worker::start(world.folder.path(), &config, &[]);
    world.produce(documents(0..20));
    worker.wait_for_metric("geofold_dirty_ids{partition=\"0\"}", 20.0);
    assert_eq!(worker.metric("geofold_batch_documents_count"), 0.0);

    let in_fours = format!("{PATIENT}max_documents = 4\n[memory]\ntotal = \"100MiB\"\n");
    world.write("geofold.toml", &in_fours);
    worker.signal(Signal::HUP);
    worker.wait_for_metric("geofold_batch_documents_count", 5.0);
    assert_eq!(worker.metric("geofold_batch_documents_sum"), 20.0);
    assert_eq!(worker.limit("batch.max_documents"), "4");
    worker.wait_for_metric("geofold_held_bytes_limit", f64::from(100 << 20));

    // A permit that no cluster takes; and a size that fits to what it stands with, but not to what waits for a restart.
    let wrong = [
        ("[elasticsearch]\nmax_in_flight = 0\n", "elasticsearch.max_in_flight"),
        ("[documents]\nmax_bytes = \"1KiB\"\n", "together with the keys that wait for a restart"),
    ];
    for (number, (wrong, said)) in [1.0, 2.0].into_iter().zip(wrong) {
        // The section stands there already.
        let more = wrong.replace("[elasticsearch]\n", "");
        let batch =
            "[batch]\nmax_documents = 9\nmax_bytes = \"2KiB\"\nlinger = \"1h\"\nmax_dirty_age = \"2h\"\n";
        let text = match more.starts_with('[') {
            true => world.config(&format!("{batch}{more}")),
            false => world.config(batch).replace("[elasticsearch]\n", &format!("[elasticsearch]\n{more}")),
        };
        fs::write(&config, text).unwrap();
        worker.signal(Signal::HUP);
        worker.wait_for_metric(REFUSED, number);
        worker.wait_for(said);
        assert_eq!(worker.limit("batch.max_documents"), "4", "all or nothing");
        assert_eq!(worker.limit("batch.max_bytes"), "8MiB", "all or nothing");
    }
    assert!(worker.metric(REFUSED_AT) > 1e9);

    // It goes on as before.
    world.produce(documents(20..24));
    worker.wait_for_metric("geofold_batch_documents_count", 6.0);
    worker.stop();
}

#[test]
fn a_file_that_is_swapped_as_kubernetes_does_is_followed_without_a_signal() {
    let world = Standins::start();
    let at = |name: &str| world.folder.path().join(name);
    let put = |version: &str, more: &str| {
        fs::create_dir(at(version)).unwrap();
        let watch = format!("[reload]\nwatch = \"100ms\"\n{more}");
        fs::write(at(version).join("geofold.toml"), world.config(&watch)).unwrap();
        symlink(version, at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
    };
    put("..1", "");
    symlink("..data/geofold.toml", at("geofold.toml")).unwrap();
    let worker = Worker::start(world.folder.path(), &at("geofold.toml"), &[]);
    assert_eq!(worker.limit("elasticsearch.request_max_operations"), "2000");

    put("..2", "[memory]\nper_partition = \"32MiB\"\n");
    worker.wait_for_metric(FOLLOWED, 1.0);
    assert_eq!(worker.limit("memory.per_partition"), "32MiB");

    put("..3", "[batch]\nlinger = \"1h\"\n");
    worker.wait_for_metric(REFUSED, 1.0);
    assert_eq!(worker.limit("memory.per_partition"), "32MiB");
    assert_eq!(worker.limit("batch.linger"), "200ms");

    put("..4", "[batch]\nlinger = \"100ms\"\n");
    worker.wait_for_metric(FOLLOWED, 2.0);
    assert_eq!(worker.limit("batch.linger"), "100ms");
    assert_eq!(worker.metric(REFUSED), 1.0, "what was refused is not read again");
    worker.stop();
}
