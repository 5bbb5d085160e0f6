//! A topic that changes while its partitions are assigned.

use super::*;

#[tokio::test(start_paused = true)]
async fn repartitioned_topic_stops_a_partition_at_once() {
    let mut rig = Rig::following();
    rig.look().await;
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    // Dirty entries are no longer written: their positions may be below those of older records.
    rig.index(1, "b", 1, 1);
    rig.until("it is read", |rig| rig.counts()["in"] == 2).await;
    rig.look_at_topic(6).await;
    rig.index(2, "c", 1, 1);
    rig.pass(Duration::from_secs(20)).await;
    let reason = rig.health.missing()[&stopped_part(0)].clone();
    assert!(reason.contains("has 6 partitions and had 4") && reason.contains("positions.epoch above 1"));
    assert_eq!((rig.published.watermark(), rig.elastic.ids().len()), (Some(1), 1));
    rig.mode.send(Mode::Drain).unwrap();
    rig.until_ended().await;
}

#[tokio::test(start_paused = true)]
async fn repartitioned_topic_stops_an_idle_partition() {
    let mut rig = Rig::following();
    rig.look().await;
    rig.pass(Duration::from_secs(1)).await;
    rig.look_at_topic(6).await;
    rig.until("it says so", |rig| rig.health.missing().contains_key(&stopped_part(0))).await;
    rig.mode.send(Mode::Drain).unwrap();
    rig.until_ended().await;
}

#[tokio::test(start_paused = true)]
async fn no_record_is_taken_before_a_look_at_the_topic_since_assignment() {
    let mut rig = Rig::watching();
    rig.look().await;
    rig.index(0, "a", 1, 1);
    rig.pass(Duration::from_secs(1)).await;
    assert_eq!(rig.counts()["in"], 0);
    rig.look_at_topic(4).await;
    rig.until_watermark(1).await;
}

/// A look that began before the assignment does not count. Without a new one no record would be taken until the next
/// interval.
#[tokio::test(start_paused = true)]
async fn assigned_partition_requests_a_look_at_the_topic() {
    let rig = Rig::watching();
    assert_eq!(rig.topic_watch.asked_again().now_or_never(), None, "the task has not started");
    rig.look().await;
    assert_eq!(rig.topic_watch.asked_again().now_or_never(), Some(()));
}

/// Documents whose keys this partitioner puts into partition 0 of 4.
fn ids_by(partitioner: Partitioner) -> impl Iterator<Item = String> {
    let ids = (0..).map(|n| format!("d{n}"));
    ids.filter(move |id| partitioner.partition_of(id.as_bytes(), 4) == Some(0))
}

#[tokio::test(start_paused = true)]
async fn keys_of_another_partitioner_stop_the_partition_and_name_it() {
    let mut rig = Rig::following();
    rig.look().await;
    for (offset, id) in (0..100).zip(ids_by(Partitioner::Crc32)) {
        rig.index(offset, &id, 1, 1);
    }
    rig.until("it says so", |rig| rig.health.missing().contains_key(&stopped_part(0))).await;
    let reason = rig.health.missing()[&stopped_part(0)].clone();
    assert!(reason.ends_with("set kafka.partitioner = \"crc32\" (offset 15)"), "{reason}");
    rig.until_watermark(15).await;
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!(rig.published.watermark(), Some(15), "the 16th key decided");
}

#[tokio::test(start_paused = true)]
async fn correctly_placed_or_unexplained_keys_do_not_stop_the_partition() {
    let by_none = ["a", "b", "c", "d", "e"].map(|id| id.repeat(40));
    let mut rig = Rig::following();
    rig.look().await;
    for (offset, id) in (0..400).zip(by_none.into_iter().chain(ids_by(Partitioner::Murmur2))) {
        rig.index(offset, &id, 1, 1);
    }
    rig.until_watermark(400).await;
    let mut rig = Rig::following();
    rig.look().await;
    for offset in 0..400 {
        rig.index(offset, &format!("d{offset}"), 1, 1);
    }
    rig.until_watermark(400).await;
    assert_eq!(rig.health.missing().get(&stopped_part(0)), None);
}
