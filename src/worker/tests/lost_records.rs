//! Records that the topic lost before they were read.

use super::*;

/// 1.25 times the mock broker's capacity per partition, in records of this size.
const TOO_MUCH: (i32, usize) = (PARTITIONS * 110, 60_000);

fn lost(worker: &Running) -> i64 {
    worker.gauge("geofold_lost_records_total")
}

impl World {
    /// Offset of the first record of each partition.
    fn beginnings(&self) -> Vec<i64> {
        (0..PARTITIONS).map(|n| self.group.fetch_watermarks(TOPIC, n, PATIENCE).unwrap().0).collect()
    }

    fn commit(&self, partition: i32, offset: i64) {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(TOPIC, partition, Offset::Offset(offset)).unwrap();
        self.group.commit(&list, rdkafka::consumer::CommitMode::Sync).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_deleted_during_an_outage_stop_their_partitions() {
    let mut world = World::new();
    let mut config = world.config();
    world.produce(1, 40, 0);
    let worker = world.start(&config);
    world.until_done().await;
    worker.stop().await.unwrap();
    let committed = world.committed();
    world.produce(2, TOO_MUCH.0, TOO_MUCH.1);
    let beginnings = world.beginnings();
    assert!(beginnings.iter().all(|low| *low > 10), "{beginnings:?}");
    let gone: i64 = beginnings.iter().map(|low| low - 10).sum();

    let worker = world.start(&config);
    let stopped = || worker.health.missing();
    until("all partitions stop", || {
        (0..PARTITIONS).all(|n| stopped().contains_key(&partition::stopped_part(n)))
    })
    .await;
    let reason = stopped()[&partition::stopped_part(0)].clone();
    let words = format!("from offset 10 up to {} were deleted", beginnings[0] - 1);
    assert!(reason.contains(&words) && reason.contains("kafka.lost_records"), "{reason}");
    assert_eq!((lost(&worker), world.committed()), (gone, committed));
    worker.stop().await.unwrap();

    config.kafka.lost_records = config::LostRecords::Accept;
    let worker = world.start(&config);
    world.until_done().await;
    assert_eq!((lost(&worker), worker.health.missing().len()), (gone, 0));
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_group_starts_at_the_first_record_left_without_loss() {
    for protocol in [GroupProtocol::Classic, GroupProtocol::Consumer] {
        let mut world = World::new();
        world.produce(1, TOO_MUCH.0, TOO_MUCH.1);
        assert!(world.beginnings().iter().all(|low| *low > 0));
        let mut config = world.config();
        config.kafka.group_protocol = protocol;
        // No statistics, which would hide a wrong start of a partition.
        config.kafka.properties = toml::from_str(r#""statistics.interval.ms" = 0"#).unwrap();
        let worker = world.start(&config);
        world.until_done().await;
        assert_eq!((lost(&worker), worker.health.missing().len()), (0, 0));
        worker.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_deleted_while_paused_stop_their_partitions() {
    let mut world = World::new();
    let mut config = world.config();
    let bound = 64 * 1024;
    config.memory.total = ByteSize::new(bound);
    config.memory.per_partition = ByteSize::new(bound / 2);
    let worker = world.start(&config);
    world.produce(1, 40, 0);
    world.until_done().await;
    world.elastic.set_faults(|faults| faults.down = true);
    world.produce(2, 40, 30_000);
    until("it stands still", || worker.paused() == i64::from(PARTITIONS)).await;
    world.produce(3, TOO_MUCH.0, TOO_MUCH.1);
    world.elastic.set_faults(|faults| faults.down = false);
    let stopped = || worker.health.missing();
    until("all partitions stop", || {
        (0..PARTITIONS).all(|n| stopped().contains_key(&partition::stopped_part(n)))
    })
    .await;
    let reason = stopped()[&partition::stopped_part(0)].clone();
    assert!(reason.contains("were deleted from the topic before they were read"), "{reason}");
    // Only what was read before is done.
    let committed: Vec<i64> = world.committed().into_values().collect();
    assert!(committed.iter().zip(world.beginnings()).all(|(done, low)| *done < low), "{committed:?}");
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partition_ending_below_its_commit_stops_alone() {
    let mut world = World::new();
    world.produce(1, 40, 0);
    world.commit(2, 25);
    let worker = world.start(&world.config());
    let expected = BTreeMap::from([(0, 10), (1, 10), (2, 25), (3, 10)]);
    until("it stops", || worker.health.missing().contains_key(&partition::stopped_part(2))).await;
    until("the others are done", || world.committed() == expected).await;
    let reason = worker.health.missing()[&partition::stopped_part(2)].clone();
    assert!(
        reason.contains("ends at offset 10") && reason.contains("raise positions.epoch above 1"),
        "{reason}"
    );
    assert_eq!((lost(&worker), worker.health.missing().len()), (0, 1));
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partition_whose_leader_lacks_the_commit_stops_alone() {
    let mut world = World::new();
    let mut config = world.config();
    config.kafka.properties = toml::from_str(r#""statistics.interval.ms" = 100"#).unwrap();
    world.produce(1, 40, 0);
    let worker = world.start(&config);
    world.until_done().await;
    worker.stop().await.unwrap();
    // The committed offset is of the newest leader epoch, which has written nothing.
    world.broker.partition_leader(TOPIC, 2, Some(1)).unwrap();
    let worker = world.start(&config);
    until("it stops", || worker.health.missing().contains_key(&partition::stopped_part(2))).await;
    let reason = worker.health.missing()[&partition::stopped_part(2)].clone();
    assert!(reason.contains("other records") && reason.contains("raise positions.epoch above 1"), "{reason}");
    world.produce(2, 40, 0);
    let expected = BTreeMap::from([(0, 20), (1, 20), (2, 10), (3, 20)]);
    until("the others are done", || world.committed() == expected).await;
    assert_eq!((lost(&worker), worker.health.missing().len()), (0, 1));
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_group_starts_after_its_offsets_were_unavailable() {
    let mut world = World::new();
    world.produce(1, 40, 0);
    let mut config = world.config();
    config.kafka.properties = toml::from_str(r#""statistics.interval.ms" = 100"#).unwrap();
    let refused = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED];
    world.broker.request_errors(RDKafkaApiKey::OffsetFetch, &refused);
    let worker = world.start(&config);
    until("the refusal was met", || worker.owned() == i64::from(PARTITIONS)).await;
    world.until_done().await;
    assert_eq!((lost(&worker), worker.health.missing().len()), (0, 0));
    worker.stop().await.unwrap();
}
