//! What stops a partition, or the worker.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lasting_unauthorized_answers_end_the_worker_without_commits() {
    let mut world = World::new();
    world.produce(1, 40, 0);
    world.elastic.set_faults(|faults| faults.unauthorized = true);
    let mut config = world.config();
    config.retry.unauthorized_timeout = Duration::from_millis(300);
    let worker = world.start(&config);
    let ended = tokio::time::timeout(PATIENCE, worker.task).await.expect("it ends by itself").unwrap();
    assert!(matches!(ended, Err(WorkerError::Halt(_))), "{ended:?}");
    assert!(worker.health.missing().contains_key("elasticsearch"));
    assert_eq!(world.committed(), BTreeMap::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_record_stops_only_its_partition() {
    let mut world = World::new();
    world.produce(1, 40, 0);
    let bad: BaseRecord<'_, str, str> = BaseRecord::to(TOPIC).key("bad").partition(2).payload("{");
    world.producer.send(bad).map_err(|(error, _)| error).unwrap();
    world.produce(2, 40, 0);
    let worker = world.start(&world.config());
    let expected = BTreeMap::from([(0, 20), (1, 20), (2, 10), (3, 20)]);
    until("the others are done", || world.committed() == expected).await;
    assert!(worker.health.missing()[&partition::stopped_part(2)].contains("bad record"));
    until("the poll thread has noticed", || worker.paused() == 1).await;
    worker.stop().await.unwrap();
    assert_eq!(world.committed(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn added_partitions_stop_all_partitions_of_the_worker() {
    let mut world = World::new();
    world.partitions = PARTITIONS - 1;
    world.produce(1, 40, 0);
    let worker = world.start(&world.config());
    let stopped = || worker.health.missing();
    until("all partitions stop", || {
        (0..PARTITIONS).all(|n| stopped().contains_key(&partition::stopped_part(n)))
    })
    .await;
    assert!(stopped()[&partition::stopped_part(0)].contains("has 4 partitions and had 3"));
    assert_eq!((world.committed(), world.elastic.ids().len()), (BTreeMap::new(), 0));
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panicked_background_task_ends_the_worker_cleanly() {
    let mut world = World::new();
    world.produce(0, 40, 0);
    let mut worker = world.start(&world.config());
    world.until_done().await;
    world.produce(1, 40, 0);
    worker.supervisor.spawn("fake", worker.stop.clone(), async { panic!("for the test") });
    let work = async { worker.task.await.unwrap() };
    let ended = tokio::time::timeout(PATIENCE, worker.lost.or_else_stop(&worker.stop, work)).await;
    let lost = ended.expect("it ends").unwrap_err();
    assert_eq!((lost.task, lost.how.as_str()), ("fake", "panicked: for the test"));
    assert!(worker.health.missing().contains_key("shutdown"), "no longer ready");
    // It has left the group: another worker continues with the uncommitted records.
    let next = world.start(&world.config());
    world.until_done().await;
    next.stop().await.unwrap();
}
