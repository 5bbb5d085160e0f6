//! The map is changed while writes go on, on the stand-ins: `geofold shards migrate` and workers as child processes.
//! `tests/real/migrate.rs` has the same on real services.

pub mod scenario;

use std::time::Duration;

use geofold::testkit::embedded::broker::EmbeddedBroker;
use geofold::testkit::embedded::elasticsearch::{Standin, StandinOptions};
use tokio::runtime::Runtime;

use crate::wait::wait_for;
use scenario::common::from_55_to_70_with_a_worker_killed;
use scenario::{Scenario, text};

/// A broker, a search server, and what is changed on them.
pub(crate) struct World {
    pub(crate) scenario: Scenario,
    _broker: EmbeddedBroker,
    _standin: Standin,
    _runtime: Runtime,
}

impl World {
    pub(crate) fn new() -> Self {
        let runtime = Runtime::new().unwrap();
        let standin = runtime.block_on(Standin::start(StandinOptions::default())).unwrap();
        let broker = EmbeddedBroker::start().unwrap();
        broker.set_initial_rebalance_delay(Duration::ZERO);
        broker.create_topic("t", 4).unwrap();
        let scenario = Scenario::new(broker.address(), &standin.url(), "t", 3);
        Self { scenario, _broker: broker, _standin: standin, _runtime: runtime }
    }
}

#[test]
fn from_55_to_70_geoshards_under_load_with_a_worker_killed_in_the_middle() {
    from_55_to_70_with_a_worker_killed(&World::new().scenario);
}

#[test]
fn a_change_that_is_called_off_in_the_middle_ends_where_it_began() {
    let world = World::new();
    let scenario = &world.scenario;
    let _worker = scenario.worker("worker", &[]);
    let writer = scenario.writer();
    scenario.wait_until_loaded();
    let reader = scenario.reader(&writer);
    let command = scenario.migrate("migrate");
    command.wait_until_it_says("misplaced by");
    let aborted = scenario.geofold(&["shards", "migrate", "--abort"]);
    assert!(aborted.status.success(), "{}", text(&aborted));
    command.wait_until_it_says("changed the direction of this change");
    let (polls, missed) = reader.stop();
    assert!(polls > 0 && missed.is_empty(), "{polls} polls, missed {missed:?}");
    let truth = writer.stop();
    scenario.drain();
    scenario.audit(&scenario.old, &truth);
    let retired = scenario.geofold(&["shards", "migrate", "--retire"]);
    assert!(text(&retired).contains("18 indices deleted"), "{}", text(&retired));
    assert!(!scenario.has_index("n00") && scenario.has_index("s07"));
    let again = scenario.geofold(&["shards", "migrate", "--abort"]);
    assert!(text(&again).contains("no change of the map is in progress"), "{}", text(&again));
}

#[test]
fn a_change_reads_only_the_documents_that_it_moves_and_a_few_beside_them() {
    let mut world = World::new();
    let _worker = world.scenario.worker("worker", &[]);
    let writer = world.scenario.writer();
    world.scenario.wait_until_loaded();
    let truth = writer.stop();
    world.scenario.drain();
    let moved = world.scenario.change_a_fiftieth(&truth);
    let scenario = &world.scenario;
    let said = scenario.migrate("migrate").ends_well();
    scenario.audit(&scenario.new, &truth);
    let scans = said.lines().filter(|line| line.starts_with("scan "));
    let read: Vec<usize> =
        scans.map(|line| line.split_whitespace().nth(2).unwrap().parse().unwrap()).collect();
    println!("{} documents, {moved} moved, read {read:?}", truth.len());
    assert!((truth.len() / 70..=truth.len() / 40).contains(&moved), "{moved} of {}", truth.len());
    assert!(read.len() >= 2 && read[0] >= moved, "{said}");
    assert!(read.iter().sum::<usize>() * 20 <= truth.len(), "{read:?} of {}: {said}", truth.len());
}

/// What geofold itself writes goes to the partitions that a document's own records are in: a change of the map, a repair, a campaign.
fn own_records_follow_producers_on_librdkafka(configured: &str) {
    let mut world = World::new();
    world.scenario.fed_by_librdkafka(configured);
    let scenario = &world.scenario;
    let _worker = scenario.worker("worker", &[]);
    let writer = scenario.writer();
    scenario.wait_until_loaded();
    let truth = writer.stop();
    scenario.drain();
    let succeeds = |args: &[&str]| {
        let output = scenario.geofold(args);
        assert!(output.status.success(), "{args:?}: {}", text(&output));
    };
    // A dead letter would stop its partition.
    let ends_well = |changed: i64| {
        scenario.drain();
        let records = scenario.records();
        assert!(records >= changed, "{records} records");
        records
    };
    let before = ends_well(1);
    scenario.migrate("migrate").ends_well();
    let moved = ends_well(before + 1);
    scenario.audit(&scenario.new, &truth);

    let elsewhere = scenario.new.shards().first().unwrap().as_str();
    for id in truth.keys().take(20) {
        if scenario.has_copy(elsewhere, id) {
            continue;
        }
        scenario.stray_copy(elsewhere, id, &truth[id]);
    }
    succeeds(&["audit", "--repair", "--settle", "1s"]);
    let repaired = ends_well(moved + 1);
    scenario.audit(&scenario.new, &truth);

    succeeds(&["campaign", "create", "--action", "touch", "--all"]);
    succeeds(&["campaign", "run", "1"]);
    ends_well(repaired + i64::try_from(truth.len()).unwrap());
    scenario.audit(&scenario.new, &truth);
}

#[test]
fn own_records_go_where_producers_on_librdkafka_put_keys_by_the_configured_partitioner() {
    own_records_follow_producers_on_librdkafka("crc32");
}

#[test]
fn own_records_go_where_placements_say_if_nobody_knows_the_partitioner() {
    own_records_follow_producers_on_librdkafka("custom");
}

/// The only worker is frozen: the new map must not decide before it has confirmed.
#[test]
fn a_worker_that_can_not_be_confirmed_is_named_and_waited_for() {
    let world = World::new();
    let scenario = &world.scenario;
    let worker = scenario.worker("worker", &[]);
    let writer = scenario.writer();
    scenario.wait_until_loaded();
    worker.signal("STOP");
    let new = scenario.path("new.json");
    let command = scenario.start("migrate", &["shards", "migrate", "--to", &new]);
    command.wait_until_it_says("not confirmed yet: partition 0 (its owner at generation 0 was ");
    // Two batch deadlines and more.
    std::thread::sleep(Duration::from_secs(10));
    assert_eq!(scenario.record().unwrap()["stage"], "announced", "{}", command.log());
    let status = text(&scenario.geofold(&["shards", "migrate", "--status"]));
    assert!(status.contains("announced") && status.contains("not confirmed yet"), "{status}");
    let truth = writer.stop();
    worker.signal("CONT");
    command.ends_well();
    scenario.drain();
    scenario.audit(&scenario.new, &truth);
}

#[test]
fn uncommitted_partitions_are_named_and_a_change_without_moves_aborts_at_once() {
    let world = World::new();
    let scenario = &world.scenario;
    scenario.listen_at_a_known_port();
    scenario.stop_at_a_bad_record();
    let _worker = scenario.worker("worker", &[]);
    let writer = scenario.writer();
    wait_for("the state of the topic", || scenario.topic_state());
    let command = scenario.migrate("migrate");
    for said in ["not committed yet: partition 2 (", "partition 2 is stopped: bad record"] {
        command.wait_until_it_says(said);
    }
    assert!(command.log().contains("dead_letter.policy is \"stop\""), "{}", command.log());
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(scenario.record().unwrap()["stage"], "announced", "{}", command.log());
    let aborted = scenario.geofold(&["shards", "migrate", "--abort"]);
    assert!(text(&aborted).contains("is the only map in force"), "{}", text(&aborted));
    assert!(aborted.status.success());
    writer.stop();
}

#[cfg(feature = "sabotage")]
#[test]
fn a_map_that_decides_before_everybody_has_confirmed_is_found_out() {
    let world = World::new();
    let scenario = &world.scenario;
    let worker = scenario.worker("worker", &[]);
    let _writer = scenario.writer();
    scenario.wait_until_loaded();
    worker.signal("STOP");
    let new = scenario.path("new.json");
    let command =
        scenario.start("migrate", &["shards", "migrate", "--to", &new, "--sabotage", "activate-unconfirmed"]);
    wait_for("a map that decides too early", || {
        let record = scenario.record()?;
        (record["stage"] != "announced").then_some(())
    });
    drop(command);
}

#[cfg(feature = "sabotage")]
#[test]
fn a_reader_notices_if_old_copies_go_before_new_ones_are_seen() {
    let world = World::new();
    let scenario = &world.scenario;
    let _worker = scenario.worker("worker", &["--sabotage", "delete-before-seen"]);
    let writer = scenario.writer();
    scenario.wait_until_loaded();
    let reader = scenario.reader(&writer);
    let command = scenario.migrate("migrate");
    scenario.wait_for_stage("announced");
    scenario.refresh_new_ones_every("20s");
    command.ends_well();
    let (_, missed) = reader.stop();
    assert!(!missed.is_empty());
}
