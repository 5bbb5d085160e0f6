//! Workers that come and go in a group, and what they commit.

use super::*;

/// Workers start and stop while records are produced.
async fn come_and_go(config: impl Fn(&World) -> Config) {
    let mut world = World::new();
    let config = config(&world);
    world.produce(1, 200, 0);
    let first = world.start(&config);
    until("the first owns all", || first.owned() == i64::from(PARTITIONS)).await;
    let second = world.start(&config);
    world.produce(2, 200, 0);
    until("the second owns its share", || second.owned() > 0 && first.owned() + second.owned() == 4).await;
    world.produce(3, 200, 0);
    world.until_done().await;
    world.produce(4, 200, 0);
    first.stop().await.unwrap();
    until("the second owns all", || second.owned() == i64::from(PARTITIONS)).await;
    world.produce(5, 200, 0);
    world.until_done().await;
    assert!(second.health.missing().is_empty(), "{:?}", second.health.missing());
    second.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_rebalance_with_cooperative_sticky_assignment() {
    come_and_go(World::config).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_rebalance_with_range_assignment() {
    come_and_go(|world| {
        let mut config = world.config();
        config.kafka.partition_assignment_strategy = config::AssignmentStrategy::Range;
        config
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_rebalance_with_the_consumer_group_protocol() {
    come_and_go(|world| {
        let mut config = world.config();
        config.kafka.group_protocol = GroupProtocol::Consumer;
        config
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partition_revoked_while_paused_is_read_when_reassigned() {
    taken_while_not_read(400, 2000, |memory| memory.per_partition = ByteSize::new(32 * 1024)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partition_revoked_while_held_back_is_read_when_reassigned() {
    // The default limit per partition is large enough to hold back.
    taken_while_not_read(200, 300_000, |memory| memory.total = ByteSize::mib(17)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rebalance_is_answered_while_the_memory_of_all_partitions_is_used_up() {
    taken_while_not_read(400, 2000, |memory| {
        memory.total = ByteSize::new(64 * 1024);
        memory.per_partition = memory.total;
    })
    .await;
}

async fn taken_while_not_read(records: i32, bytes: usize, bound: impl Fn(&mut config::MemoryConfig)) {
    let mut world = World::new();
    world.produce(1, records, bytes);
    world.elastic.set_faults(|faults| faults.down = true);
    let mut config = world.config();
    // A rebalance revokes every partition, and some return.
    config.kafka.partition_assignment_strategy = config::AssignmentStrategy::Range;
    bound(&mut config.memory);
    config.shutdown.revoke_timeout = Duration::from_millis(100);
    config.batch.timeout = Duration::from_secs(2);
    let first = world.start(&config);
    until("all are paused", || first.paused() == i64::from(PARTITIONS)).await;
    let second = world.start(&config);
    until("the second owns its share", || second.owned() == 2 && first.owned() == 2).await;
    world.elastic.set_faults(|faults| faults.down = false);
    world.until_done().await;
    first.stop().await.unwrap();
    second.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_without_memory_stays_in_its_group() {
    let mut world = World::new();
    world.produce(1, 400, 2000);
    world.elastic.set_faults(|faults| faults.down = true);
    let mut config = world.config();
    config.kafka.properties = toml::from_str(r#""max.poll.interval.ms" = 4000"#).unwrap();
    config.memory.total = ByteSize::new(64 * 1024);
    config.memory.per_partition = config.memory.total;
    let worker = world.start(&config);
    until("nothing is read", || worker.paused() == i64::from(PARTITIONS)).await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    world.elastic.set_faults(|faults| faults.down = false);
    world.until_done().await;
    assert_eq!(worker.gauge("geofold_rebalances_total{kind=\"lost\"}"), 0, "librdkafka took it for dead");
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_commit_is_retried() {
    let mut world = World::new();
    world.produce(1, 40, 0);
    let refused = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS; 2];
    world.broker.request_errors(RDKafkaApiKey::OffsetCommit, &refused);
    let worker = world.start(&world.config());
    world.until_done().await;
    assert!(worker.gauge("geofold_commits_total{result=\"failed\"}") > 0);
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_leaves_at_its_drain_deadline_and_the_next_finishes() {
    let mut world = World::new();
    world.produce(1, 40, 0);
    let mut config = world.config();
    // In the classic protocol the mock broker does not answer a join that arrives while the group's last member times
    // out.
    config.kafka.group_protocol = GroupProtocol::Consumer;
    config.shutdown.drain_timeout = Duration::from_secs(1);
    config.shutdown.revoke_timeout = Duration::from_millis(200);
    let worker = world.start(&config);
    world.until_done().await;
    world.elastic.set_faults(|faults| faults.down = true);
    world.produce(2, 40, 0);
    until("some were read", || worker.gauge("geofold_elasticsearch_requests_waiting") > 0).await;
    worker.stop().await.unwrap();
    assert_ne!(world.committed(), world.ends);
    world.elastic.set_faults(|faults| faults.down = false);
    let worker = world.start(&config);
    world.until_done().await;
    worker.stop().await.unwrap();
}
