//! What runs on reads its configuration again, at SIGHUP and when the file has another content: it follows what it can,
//! names what it cannot, and keeps the old whole when the new is wrong. `tests/it/hang_up.rs` has the commands that end.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rdkafka::message::OwnedHeaders;
use rustix::process::Signal;

use crate::standins::{GEOFOLD, MAP, Standins, Worker};
use geofold::geoshard::GeoshardMap;

const FOLLOWED: &str = "geofold_config_reloads_total{outcome=\"followed\"}";
const REFUSED: &str = "geofold_config_reloads_total{outcome=\"refused\"}";
const REFUSED_AT: &str = "geofold_config_reload_timestamp_seconds{outcome=\"refused\"}";

/// One for a worker that waits for its brokers all the time: it listens as well.
fn write(config: &Path, filter: &str, more: &str) {
    // Port 9 has no listener.
    let text = format!(
        "[kafka]\nbrokers = [\"127.0.0.1:9\"]\ntopic = \"t\"\n\
         properties.\"statistics.interval.ms\" = \"50\"\n[elasticsearch]\nurls = [\"http://127.0.0.1:9\"]\n\
         [geoshards]\nmap = {MAP:?}\n[admin]\nlisten = \"127.0.0.1:0\"\n[log]\nfilter = \"{filter}\"\n{more}"
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

    write(&config, "info,geofold::cli=debug", "[shutdown]\ndrain_timeout = \"29s\"\n");
    worker.signal(Signal::HUP);
    let log = worker.wait_for("shutdown.drain_timeout");
    assert!(log.contains("after a restart"), "{log}");
    assert!(log.contains("geofold::cli=debug"), "{log}");

    write(&config, "info", "[batch]\nlingre = \"1s\"\n");
    worker.signal(Signal::HUP);
    let log = worker.wait_for("the current one stays in force");
    assert!(log.contains("lingre"), "{log}");

    // What is wrong waits for a restart, which would fail.
    write(&config, "warn", "[shutdown]\ndrain_timeout = \"1s\"\n");
    worker.signal(Signal::HUP);
    worker.wait_for_metric(REFUSED, 2.0);
    worker.wait_for("shutdown.drain_timeout (1s)");
    assert_eq!(worker.limit("log.filter"), "info,geofold::cli=debug");

    write(&config, "warn", "[shutdown]\nrevoke_timeout = \"9s\"\n");
    worker.signal(Signal::HUP);
    let log = worker.wait_for("shutdown.revoke_timeout");
    assert_eq!(log.matches("configuration reloaded").count(), 1, "the filter is \"warn\" now: {log}");
    assert_eq!((worker.metric(FOLLOWED), worker.metric(REFUSED)), (2.0, 2.0));
    assert!(!log.contains("Client stats"), "of nobody's use while it waits for brokers: {log}");

    fs::remove_file(&config).unwrap();
    worker.signal(Signal::HUP);
    let log = worker.wait_for("reading the configuration");
    assert_eq!(log.matches("No such file").count(), 1, "a cause is told once: {log}");
}

#[test]
fn the_environment_still_wins() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("geofold.toml");
    write(&config, "error", "");
    let worker = Worker::start(folder.path(), &config, &[("RUST_LOG", "info")]);
    write(&config, "warn", "[batch]\nmax_documents = 7\n");
    worker.signal(Signal::HUP);
    worker.wait_for("RUST_LOG overrides it");
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
    worker.wait_for_metric("geofold_dirty_documents{partition=\"0\"}", 20.0);
    assert_eq!(worker.metric("geofold_batch_documents_count"), 0.0);

    let in_fours = format!("{PATIENT}max_documents = 4\n[memory]\ntotal = \"100MiB\"\n");
    world.write("geofold.toml", &in_fours);
    worker.signal(Signal::HUP);
    worker.wait_for_metric("geofold_batch_documents_count", 5.0);
    assert_eq!(worker.metric("geofold_batch_documents_sum"), 20.0);
    assert_eq!(worker.limit("batch.max_documents"), "4");
    worker.wait_for_metric("geofold_buffered_bytes_limit", f64::from(100 << 20));

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
        let watch = format!("[reload]\ninterval = \"100ms\"\n{more}");
        fs::write(at(version).join("geofold.toml"), world.config(&watch)).unwrap();
        symlink(version, at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
    };
    put("..1", "");
    symlink("..data/geofold.toml", at("geofold.toml")).unwrap();
    let worker = Worker::start(world.folder.path(), &at("geofold.toml"), &[]);
    assert_eq!(worker.limit("elasticsearch.request_max_operations"), "2000");

    put("..2", "[memory]\nper_partition = \"20MiB\"\n");
    worker.wait_for_metric(FOLLOWED, 1.0);
    assert_eq!(worker.limit("memory.per_partition"), "20MiB");

    put("..3", "[batch]\nlinger = \"1h\"\n");
    worker.wait_for_metric(REFUSED, 1.0);
    assert_eq!(worker.limit("memory.per_partition"), "20MiB");
    assert_eq!(worker.limit("batch.linger"), "200ms");

    put("..4", "[batch]\nlinger = \"100ms\"\n");
    worker.wait_for_metric(FOLLOWED, 2.0);
    assert_eq!(worker.limit("batch.linger"), "100ms");
    assert_eq!(worker.metric(REFUSED), 1.0, "what was refused is not read again");
    worker.stop();
}

/// Each long-running command, its arguments, its first log line, and its exit code when it is stopped.
const OTHERS: [(&[&str], &str, i32); 4] = [
    (&["collect"], "admin server listens", 0),
    (&["route", "--listen", "127.0.0.1:0"], "router listens", 0),
    (&["campaign", "run", "1"], "paused campaign=1", 1),
    (&["campaign", "watch"], "geofold campaign watch begins", 0),
];

#[test]
fn other_commands_that_run_on_follow_the_filter_and_are_not_ended_by_a_signal_to_reload() {
    for (arguments, begun, code) in OTHERS {
        let world = Standins::start();
        world.create_topic("t-increments");
        let config = world.folder.path().join("geofold.toml");
        let put = |filter: &str, more: &str| {
            let text = format!(
                "[log]\nfilter = {filter:?}\n[tally]\ngeoshard = true\n[collector]\nlisten = \"127.0.0.1:0\"\n\
                 [[campaigns.periodic]]\nname = \"n\"\ninterval = \"24h\"\naction = \"touch\"\nwhat = \"all\"\n\
                 [database]\nurl = \"sqlite:{}\"\n{more}",
                world.folder.path().join("db").display()
            );
            world.write("geofold.toml", &text);
        };
        put("info", "");
        if arguments.contains(&"run") {
            let ids = world.folder.path().join("ids");
            fs::write(&ids, "a\nb\n").unwrap();
            let made = std::process::Command::new(GEOFOLD)
                .args(["campaign", "create", "--action", "touch", "--paused", "--config"])
                .arg(&config)
                .arg("--from")
                .arg(&ids)
                .output()
                .unwrap();
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        }
        let process = Worker::start_command(arguments, world.folder.path(), &config, &[]);
        process.wait_for(begun);

        // Keys that only workers follow are ignored here; keys that no process follows are named.
        put("info,geofold::cli=debug", "[batch]\nmax_documents = 7\n[shutdown]\ndrain_timeout = \"29s\"\n");
        process.signal(Signal::HUP);
        let log = process.wait_for("after a restart");
        assert!(log.contains("filter=\"info,geofold::cli=debug\""), "{arguments:?} {log}");
        assert!(
            log.contains("shutdown.drain_timeout") && !log.contains("batch.max_documents"),
            "{arguments:?} {log}"
        );

        put("info", "[batch]\nlingre = \"1s\"\n");
        process.signal(Signal::HUP);
        let log = process.wait_for("the current one stays in force");
        assert!(log.contains("lingre"), "{arguments:?} {log}");
        if code == 0 && arguments == ["collect"] {
            assert_eq!((process.metric(FOLLOWED), process.metric(REFUSED)), (1.0, 1.0));
        }

        // From now on without a signal.
        put("info", "[reload]\ninterval = \"100ms\"\n");
        process.signal(Signal::HUP);
        process.wait_for("followed=\"log.filter, reload.interval\"");
        put("warn", "[reload]\ninterval = \"100ms\"\n[shutdown]\nrevoke_timeout = \"9s\"\n");
        process.wait_for("shutdown.revoke_timeout");
        process.stop_with(code);
    }
}

#[test]
fn another_map_is_refused_with_what_to_do_until_a_migration_has_put_it_in_force() {
    let world = Standins::start();
    let at = |name: &str| world.folder.path().join(name);
    let map = GeoshardMap::load(Path::new(MAP)).unwrap();
    let renamed = |version: u64, name: &str| {
        let ranges = map.ranges().map(|(range, shard)| (range.start, shard.clone())).collect();
        GeoshardMap::new(version, name, ranges).unwrap().to_json()
    };
    let other = renamed(map.version() + 1, "the same geoshards by another name");
    // A change of the map waits for batches of the longest kind to be over.
    let times =
        "[batch]\ntimeout = \"3s\"\n[shutdown]\nrevoke_timeout = \"1s\"\n[reload]\ninterval = \"100ms\"\n";
    let configured = |map: &Path| {
        let text = world.config(times).replace(MAP, map.to_str().unwrap());
        text.replace("[elasticsearch]\n", "[elasticsearch]\nrequest_timeout = \"2500ms\"\n")
    };
    let put = |name: &str, content: &str| {
        fs::write(at("new"), content).unwrap();
        fs::rename(at("new"), at(name)).unwrap();
    };
    put("map.json", &map.to_json());
    put("geofold.toml", &configured(&at("map.json")));
    let worker = Worker::start(world.folder.path(), &at("geofold.toml"), &[]);
    worker.wait_for_metric("geofold_ready", 1.0);

    // Another content under the same name, which is seen without a signal; then none at all; then a file of another name.
    put("map.json", &other);
    worker.wait_for_metric(REFUSED, 1.0);
    let log = worker.wait_for("the current one stays in force");
    assert!(log.contains("geofold shards migrate --to") && log.contains("map.json"), "{log}");
    put("map.json", &map.to_json());
    worker.wait_for_metric(FOLLOWED, 1.0);
    put("other.json", &other);
    put("geofold.toml", &configured(&at("other.json")));
    worker.wait_for_metric(REFUSED, 2.0);
    put("geofold.toml", &configured(&at("nowhere.json")));
    worker.wait_for_metric(REFUSED, 3.0);
    worker.wait_for("cannot read the geoshard map");
    put("geofold.toml", &configured(&at("map.json")));
    worker.wait_for_metric(FOLLOWED, 2.0);

    let migrated = std::process::Command::new(GEOFOLD)
        .args(["shards", "migrate", "--to"])
        .arg(at("other.json"))
        .arg("--config")
        .arg(at("geofold.toml"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&[migrated.stdout, migrated.stderr].concat()).into_owned();
    assert!(migrated.status.success(), "{said}");
    // The worker may read the record a second later than the command wrote it.
    worker.wait_for("two_maps=true");
    worker.wait_for_metric("geofold_live_maps", 1.0);
    put("geofold.toml", &configured(&at("other.json")));
    worker.wait_for_metric(FOLLOWED, 3.0);
    assert_eq!(worker.metric(REFUSED), 3.0);
    let log = worker.stop();
    assert!(log.contains("keys=\"geoshards.map\""), "{log}");
}
