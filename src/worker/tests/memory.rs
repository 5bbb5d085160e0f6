//! Reading stops at the memory limit.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_index_stops_fetching_at_the_memory_limit() {
    let mut world = World::new();
    world.produce(1, 1000, 2000);
    world.elastic.set_faults(|faults| faults.delay = Duration::from_millis(20));
    let mut config = world.config();
    let bound = 64 * 1024;
    config.memory.total = ByteSize::new(bound);
    config.memory.per_partition = ByteSize::new(bound / 2);
    let worker = world.start(&config);
    let (mut most, mut was_paused) = (0, false);
    while world.committed() != world.ends {
        most = most.max(worker.metrics.held_bytes.get());
        was_paused |= worker.paused() > 0;
        assert!(!worker.task.is_finished());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(was_paused);
    assert!(most <= 80 * 1024, "{most} bytes were held, and the bound was {bound}");
    world.until_done().await;
    until("all is given back", || worker.metrics.held_bytes.get() == 0 && worker.paused() == 0).await;
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raised_memory_limit_resumes_reading() {
    let mut world = World::new();
    world.produce(1, 1000, 2000);
    world.elastic.set_faults(|faults| faults.down = true);
    let mut config = world.config();
    config.memory.total = ByteSize::new(64 * 1024);
    config.memory.per_partition = config.memory.total;
    let worker = world.start(&config);
    until("all are paused", || worker.paused() == i64::from(PARTITIONS)).await;

    config.memory.total = ByteSize::mib(16);
    config.memory.per_partition = config.memory.total;
    worker.limits.send(WorkerLimits::of(&config)).unwrap();
    until("it reads on, with nothing written", || worker.metrics.held_bytes.get() > 256 * 1024).await;
    world.elastic.set_faults(|faults| faults.down = false);
    world.until_done().await;
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_the_memory_limit_a_worker_writes_without_waiting() {
    let mut world = World::new();
    world.produce(1, 400, 2000);
    let mut config = world.config();
    // All partitions together reach the limit; none has a full batch.
    config.memory.total = ByteSize::new(64 * 1024);
    config.memory.per_partition = config.memory.total;
    config.batch.max_bytes = config.memory.total;
    (config.batch.linger, config.batch.max_dirty_age) =
        (Duration::from_secs(3600), Duration::from_secs(7200));
    let worker = world.start(&config);
    until("most is committed", || world.committed().values().sum::<i64>() > 200).await;
    worker.stop().await.unwrap();
    // The last records are too few to reach the limit.
    let patient = world.start(&world.config());
    world.until_done().await;
    patient.stop().await.unwrap();
}
