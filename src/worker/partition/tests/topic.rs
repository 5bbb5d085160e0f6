//! A topic that changes while its partitions are worked on.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_topic_with_other_partitions_stops_a_partition_at_once() {
    let mut rig = Rig::following();
    rig.look().await;
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    // What is dirty by then is not written any more: its position may be below that of an older record.
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
async fn an_idle_partition_stops_too() {
    let mut rig = Rig::following();
    rig.look().await;
    rig.pass(Duration::from_secs(1)).await;
    rig.look_at_topic(6).await;
    rig.until("it says so", |rig| rig.health.missing().contains_key(&stopped_part(0))).await;
    rig.mode.send(Mode::Drain).unwrap();
    rig.until_ended().await;
}

#[tokio::test(start_paused = true)]
async fn no_record_is_taken_before_the_topic_was_looked_at_since_the_assignment() {
    let mut rig = Rig::watching();
    rig.look().await;
    rig.index(0, "a", 1, 1);
    rig.pass(Duration::from_secs(1)).await;
    assert_eq!(rig.counts()["in"], 0);
    rig.look_at_topic(4).await;
    rig.until_watermark(1).await;
}

/// A look that began before the partition took its time of assignment does not count. Without another one no record would be
/// taken until the next interval.
#[tokio::test(start_paused = true)]
async fn a_partition_asks_for_a_look_at_the_topic_once_it_is_assigned() {
    let rig = Rig::watching();
    assert_eq!(rig.topic_watch.asked_again().now_or_never(), None, "its task has not begun");
    rig.look().await;
    assert_eq!(rig.topic_watch.asked_again().now_or_never(), Some(()));
}

/// Documents whose keys this partitioner puts into partition 0 of 4.
fn ids_by(partitioner: Partitioner) -> impl Iterator<Item = String> {
    let ids = (0..).map(|n| format!("d{n}"));
    ids.filter(move |id| partitioner.partition_of(id.as_bytes(), 4) == Some(0))
}

#[tokio::test(start_paused = true)]
async fn keys_that_another_partitioner_has_put_here_stop_the_partition_by_its_name() {
    let mut rig = Rig::following();
    rig.look().await;
    for (offset, id) in (0..100).zip(ids_by(Partitioner::Crc32)) {
        rig.index(offset, &id, 1, 1);
    }
    rig.until("it says so", |rig| rig.health.missing().contains_key(&stopped_part(0))).await;
    let reason = rig.health.missing()[&stopped_part(0)].clone();
    assert!(reason.ends_with("set kafka.partitioner = \"crc32\""), "{reason}");
    rig.until_watermark(15).await;
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!(rig.published.watermark(), Some(15), "the 16th key told");
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_where_they_belong_or_that_no_partitioner_explains_do_not_stop_it() {
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
