//! The map is changed while writes go on, on the stand-ins: `geofold shards migrate` and workers as child processes.
//! `tests/real/migrate.rs` has the same on real services.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod scenario;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use geofold::embedded::broker::EmbeddedBroker;
use geofold::embedded::elasticsearch::{Standin, StandinOptions};
use tokio::runtime::Runtime;

use scenario::{Scenario, from_55_to_70_with_a_worker_killed, text, wait_for};

/// They wait for time to pass rather than for the CPU, but each has several processes.
static ALONE: Mutex<()> = Mutex::new(());

/// A broker, a search server, and what is changed on them.
struct World {
    scenario: Scenario,
    _broker: EmbeddedBroker,
    _standin: Standin,
    _runtime: Runtime,
    _alone: MutexGuard<'static, ()>,
}

impl World {
    fn new() -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let runtime = Runtime::new().unwrap();
        let standin = runtime.block_on(Standin::start(StandinOptions::default())).unwrap();
        let broker = EmbeddedBroker::start().unwrap();
        broker.set_initial_rebalance_delay(Duration::ZERO);
        broker.create_topic("t", 4).unwrap();
        broker.create_topic("t-dead", 1).unwrap();
        let scenario = Scenario::new(broker.address(), &standin.url(), "t", 3);
        Self { scenario, _broker: broker, _standin: standin, _runtime: runtime, _alone: alone }
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
    wait_for("documents that move", || command.log().contains("were not where").then_some(()));
    let aborted = scenario.geofold(&["shards", "migrate", "--abort"]);
    assert!(aborted.status.success(), "{}", text(&aborted));
    wait_for("the other command to notice", || command.log().contains("took another course").then_some(()));
    let (polls, missed) = reader.stop();
    assert!(polls > 100 && missed.is_empty(), "{polls} polls, missed {missed:?}");
    let truth = writer.stop();
    scenario.drain();
    scenario.audit(&scenario.old, &truth);
    let retired = scenario.geofold(&["shards", "migrate", "--retire"]);
    assert!(text(&retired).contains("18 indices deleted"), "{}", text(&retired));
    assert!(!scenario.has_index("n00") && scenario.has_index("s07"));
    let again = scenario.geofold(&["shards", "migrate", "--abort"]);
    assert!(text(&again).contains("no change of the map is going on"), "{}", text(&again));
}

/// The only worker is frozen: the new map must not decide before it has confirmed.
fn is_waited_for(more: &[&str]) -> bool {
    let world = World::new();
    let scenario = &world.scenario;
    let worker = scenario.worker("worker", &[]);
    let writer = scenario.writer();
    scenario.wait_until_loaded();
    worker.signal("STOP");
    let new = scenario.path("new.json");
    let command = scenario.start("migrate", &[&["shards", "migrate", "--to", &new], more].concat());
    wait_for("the record", || scenario.record());
    // Two batch deadlines and more.
    std::thread::sleep(Duration::from_secs(10));
    let is_announced = scenario.record().is_some_and(|record| record["stage"] == "announced");
    if is_announced {
        let log = command.log();
        assert!(log.contains("not confirmed yet: partition 0 (nobody ever did"), "{log}");
        let status = text(&scenario.geofold(&["shards", "migrate", "--status"]));
        assert!(status.contains("announced") && status.contains("not confirmed yet"), "{status}");
        worker.signal("CONT");
        command.ends_well();
        let truth = writer.stop();
        scenario.drain();
        scenario.audit(&scenario.new, &truth);
    }
    is_announced
}

#[test]
fn a_worker_that_can_not_be_confirmed_is_named_and_waited_for() {
    assert!(is_waited_for(&[]));
}

#[test]
fn what_is_not_committed_is_named_and_waited_for_and_a_change_that_moved_nothing_is_called_off_at_once() {
    let world = World::new();
    let scenario = &world.scenario;
    scenario.stop_at_a_bad_record();
    let _worker = scenario.worker("worker", &[]);
    let writer = scenario.writer();
    let command = scenario.migrate("migrate");
    wait_for("what is not committed", || {
        command.log().contains("not committed yet: partition 2 (").then_some(())
    });
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
    assert!(!is_waited_for(&["--sabotage", "activate-unconfirmed"]));
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
    scenario.refresh_new_ones_every("5s");
    command.ends_well();
    let (_, missed) = reader.stop();
    assert!(!missed.is_empty());
}
