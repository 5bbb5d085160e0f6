//! Single records are read again.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_fold_is_reread_and_only_the_bad_record_dead_lettered() {
    let world = World::new();
    world.broker.create_topic("dead", 1, 1).unwrap();
    let mut config = world.config();
    config.dead_letter.policy = DeadLetterPolicy::Topic;
    config.dead_letter.topic = Some("dead".to_owned());
    let produce = |id: &str, value: &str, op: &str| {
        let headers =
            OwnedHeaders::new().insert(Header { key: crate::base::headers::OP_HEADER, value: Some(op) });
        let record = BaseRecord::to(TOPIC).key(id).payload(value).headers(headers).partition(0);
        world.producer.send(record).map_err(|(error, _)| error).unwrap();
        world.producer.flush(PATIENCE).unwrap();
    };
    produce("a", r#"{"location":[13.4,52.5]}"#, "index");
    let worker = world.start(&config);
    until("it is committed", || world.committed().get(&0) == Some(&1)).await;

    world.elastic.set_faults(|faults| faults.refused_text = Some("bad"));
    // All patches arrive during the write of another document and become one fold.
    world.elastic.set_faults(|faults| faults.delay = Duration::from_secs(1));
    let calls = world.elastic.calls();
    produce("other", r#"{"location":[1,1]}"#, "index");
    until("the other is being written", || world.elastic.calls() > calls).await;
    for patch in [r#"{"p":1}"#, r#"{"q":"bad"}"#, r#"{"r":3}"#] {
        produce("a", patch, "patch");
    }
    world.elastic.set_faults(|faults| faults.delay = Duration::ZERO);
    until("all is committed", || world.committed().get(&0) == Some(&5)).await;
    let document = world.elastic.document("a");
    assert_eq!(document.as_deref(), Some(r#"{"location":[13.4,52.5],"p":1,"r":3}"#));
    let metrics = worker.metrics.render().unwrap();
    assert!(metrics.contains("reason=\"refused_fold\"} 1\n"), "the patches were one fold\n{metrics}");

    let mut dead = TopicPartitionList::new();
    dead.add_partition_offset("dead", 0, Offset::Beginning).unwrap();
    world.group.assign(&dead).unwrap();
    let letter = world.group.poll(PATIENCE).unwrap().unwrap();
    assert_eq!(letter.payload(), Some(br#"{"q":"bad"}"#.as_slice()));
    let header = |key: &str| {
        let headers = letter.headers().unwrap();
        let value = headers.iter().find(|header| header.key == key).unwrap().value.unwrap();
        String::from_utf8(value.to_vec()).unwrap()
    };
    assert_eq!((header("geofold-op"), header("geofold-error-offset")), ("patch".to_owned(), "3".to_owned()));
    assert_eq!(header("geofold-error-first-offset"), "3");
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_records_are_reread_without_missing_ones() {
    let mut world = World::new();
    world.produce(1, 40, 10);
    let reread = KafkaReread::new(&world.config());
    let records = reread.read(2, vec![0, 3, 4, 9, 99]).await.unwrap();
    let offsets: Vec<i64> = records.iter().map(|record| record.offset).collect();
    assert_eq!(offsets, [0, 3, 4, 9], "the partition has ten");
    assert_eq!(records[1].key.as_deref(), Some(b"p2-3".as_slice()));
}
