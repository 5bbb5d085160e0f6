//! The topic no longer has what comes next; and offsets at a partition's end that are no records.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use serde_json::json;

use crate::support::{CITIES, Event, TIMEOUT, Truth, World, WorldOptions, wait_at_most};

const ACCEPT: (&str, &str) = ("GEOFOLD_KAFKA__LOST_RECORDS", "accept");
const METRIC: &str = "geofold_lost_records_total";

fn event(n: usize) -> Event {
    let (lat, lon) = CITIES[n % CITIES.len()];
    Event::Index { id: format!("d{n}"), document: json!({"location": {"lat": lat, "lon": lon}, "n": n}) }
}

fn events(documents: std::ops::Range<usize>) -> Vec<Event> {
    documents.map(event).collect()
}

#[test]
fn records_deleted_while_no_worker_is_there_stop_their_partition_until_that_is_accepted() {
    let world = World::new(WorldOptions { partitions: 2, ..WorldOptions::default() });
    world.send(&events(0..40));
    let worker = world.worker();
    world.wait_until_committed(TIMEOUT);
    worker.stop();
    let [committed, other] = [world.offsets()[0].0, world.offsets()[1].0];
    world.send(&events(40..120));
    let begin = committed + 7;
    world.delete_records(&[(0, begin)]);

    let worker = world.worker();
    let reason = wait_at_most("a stopped partition", TIMEOUT, || {
        Some(worker.not_ready_because()).filter(|reason| reason.contains("partition 0"))
    });
    let gone = format!("from offset {committed} up to {} were deleted", begin - 1);
    for words in [gone.as_str(), "up to 7 writes are lost", "kafka.lost_records"] {
        assert!(reason.contains(words), "{reason}");
    }
    wait_at_most("the other partition", TIMEOUT, || {
        let [(stopped, _), (done, end)] = world.offsets()[..] else { return None };
        (stopped == committed && done == end && done > other).then_some(())
    });
    assert_eq!(worker.metric(METRIC, ""), 7.0);
    let line =
        format!("topic=\"{}\" partition=0 from={committed} to={begin} count=7 accepted=false", world.name);
    let log = worker.log_once_stopped();
    assert!(log.contains(&line), "no {line} in {log}");

    let worker = world.worker_with(&[ACCEPT]);
    world.wait_until_committed(TIMEOUT);
    assert_eq!((worker.metric(METRIC, ""), worker.not_ready_because().as_str()), (7.0, ""));
    let log = worker.log_once_stopped();
    assert!(log.contains(&line.replace("false", "true")), "{log}");
    assert_eq!(world.copies().len(), 120 - 7);

    // It was lost once: what is committed is beyond it.
    let worker = world.worker();
    world.send(&events(120..140));
    world.wait_until_committed(TIMEOUT);
    assert_eq!((worker.metric(METRIC, ""), worker.not_ready_because().as_str()), (0.0, ""));
    worker.stop();
}

#[test]
fn an_offset_that_is_set_beyond_what_is_lost_goes_on_without_any_configuration() {
    let world = World::new(WorldOptions { partitions: 1, ..WorldOptions::default() });
    world.send(&events(0..20));
    let worker = world.worker();
    world.wait_until_committed(TIMEOUT);
    // It is stopped where it stands, and finds its place gone when it goes on.
    worker.signal("STOP");
    // What it had asked for when it was stopped is answered by then, without records.
    std::thread::sleep(Duration::from_secs(1));
    world.send(&events(20..60));
    world.delete_records(&[(0, 50)]);
    worker.signal("CONT");
    let reason = wait_at_most("a stopped partition", TIMEOUT, || {
        Some(worker.not_ready_because()).filter(|reason| reason.contains("partition 0"))
    });
    assert!(reason.contains("offset of this partition to 50"), "{reason}");
    worker.stop();
    world.rewind(&[(0, 50)]);
    let worker = world.worker();
    world.wait_until_committed(TIMEOUT);
    assert_eq!((worker.metric(METRIC, ""), worker.not_ready_because().as_str()), (0.0, ""));
    worker.stop();
}

#[test]
fn new_group_starts_at_the_first_record_left_without_loss() {
    let world = World::new(WorldOptions { partitions: 1, ..WorldOptions::default() });
    let mut truth = Truth::new();
    world.send(&events(0..40));
    world.delete_records(&[(0, 15)]);
    events(15..40).iter().for_each(|event| truth.apply(event));
    let worker = world.worker();
    world.wait_until_committed(TIMEOUT);
    assert_eq!((worker.metric(METRIC, ""), worker.not_ready_because().as_str()), (0.0, ""));
    worker.stop();
    world.assert_holds(&truth);
}

/// The broker has had one leader for the topic. That another one had written what is committed is what an unclean election
/// looks like from here.
#[test]
fn a_log_that_has_not_what_is_committed_stops_its_partition() {
    let statistics = ("kafka.properties", "\"statistics.interval.ms\" = 200".to_owned());
    let world = World::new(WorldOptions { partitions: 1, config: vec![statistics] });
    world.send(&events(0..40));
    let worker = world.worker();
    world.wait_until_committed(TIMEOUT);
    worker.stop();
    let leader_epoch = world.committed_leader_epoch().expect("it is committed with the offset");

    // With that epoch it goes on, of course.
    world.send(&events(40..60));
    let worker = world.worker();
    world.wait_until_committed(TIMEOUT);
    worker.stop();

    world.commit_in_leader_epoch(60, leader_epoch + 1000);
    let worker = world.worker();
    let reason = wait_at_most("a stopped partition", TIMEOUT, || {
        Some(worker.not_ready_because()).filter(|reason| reason.contains("partition 0"))
    });
    for words in ["up to offset 60", "other records", "positions.epoch above 1"] {
        assert!(reason.contains(words), "{reason}");
    }
    world.send(&events(60..80));
    assert_eq!(worker.metric(METRIC, ""), 0.0);
    worker.stop();
    assert_eq!(world.offsets(), [(60, 80)]);
    assert_eq!(world.copies().len(), 60, "nothing is written of what came since");
}

/// Markers are not delivered as records: without the partition's end, the committed offset stays below them.
#[test]
fn a_partition_that_ends_with_markers_of_transactions_is_committed_up_to_its_end() {
    let statistics = ("kafka.properties", "\"statistics.interval.ms\" = 200".to_owned());
    let world = World::new(WorldOptions { partitions: 1, config: vec![statistics] });
    let producer: ThreadedProducer<DefaultProducerContext> = ClientConfig::new()
        .set("bootstrap.servers", &world.stack.kafka)
        .set("transactional.id", &world.name)
        .create()
        .unwrap();
    producer.init_transactions(TIMEOUT).unwrap();
    let transaction = |documents: std::ops::Range<usize>, commits: bool| {
        producer.begin_transaction().unwrap();
        for n in documents {
            let (lat, lon) = CITIES[n % CITIES.len()];
            let value = json!({"location": {"lat": lat, "lon": lon}, "n": n}).to_string();
            let id = format!("d{n}");
            let record = BaseRecord::to(&world.name).key(&id).payload(&value);
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        // An aborted record that is not in the topic leaves no marker.
        producer.flush(TIMEOUT).unwrap();
        if commits {
            producer.commit_transaction(TIMEOUT).unwrap();
        } else {
            producer.abort_transaction(TIMEOUT).unwrap();
        }
    };
    let mut truth = Truth::new();
    // The worker is there before the topic has any record but a marker.
    transaction(0..3, false);
    let worker = world.worker();
    world.wait_until_committed(TIMEOUT);
    for first in [10, 20, 30] {
        transaction(first..first + 5, true);
        world.wait_until_committed(TIMEOUT);
        wait_at_most("no lag", TIMEOUT, || {
            (worker.metric("geofold_watermark_lag_records", "") == 0.0).then_some(())
        });
        events(first..first + 5).iter().for_each(|event| truth.apply(event));
    }
    transaction(40..45, false);
    world.wait_until_committed(TIMEOUT);
    worker.stop();
    let [(_, end)] = world.offsets()[..] else { panic!() };
    assert!(end > 23, "records and markers: {end}");

    // All of it may go from the topic: nothing is lost by that.
    world.delete_records(&[(0, end)]);
    let worker = world.worker();
    transaction(50..55, true);
    events(50..55).iter().for_each(|event| truth.apply(event));
    world.wait_until_committed(TIMEOUT);
    assert_eq!((worker.metric(METRIC, ""), worker.not_ready_because().as_str()), (0.0, ""));
    worker.stop();
    world.assert_holds(&truth);
}
