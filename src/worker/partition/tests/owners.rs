//! Earlier owners of the partition, and which placements are trusted.

use super::*;

#[tokio::test(start_paused = true)]
async fn after_a_gap_every_placement_is_written_while_zombies_may_act() {
    let mut rig = Rig::start();
    assert_eq!(placements_written(&mut rig, 0, "a").await, 1, "a new document");
    assert_eq!(placements_written(&mut rig, 1, "a").await, 0, "in place");
    // Compaction took 2 to 6.
    assert_eq!(placements_written(&mut rig, 7, "a").await, 1, "a zombie may act on what was taken");
    rig.pass(Duration::from_secs(118)).await;
    assert_eq!(placements_written(&mut rig, 8, "a").await, 1, "a zombie may send for two deadlines");
    rig.pass(Duration::from_secs(2)).await;
    assert_eq!(placements_written(&mut rig, 9, "a").await, 0, "in place again");
}

#[tokio::test(start_paused = true)]
async fn placements_cached_before_a_suspension_are_dropped() {
    let mut rig = Rig::start();
    rig.index(0, "a", 10, 0);
    rig.until_watermark(1).await;
    let reads = rig.elastic.placement_reads();
    rig.clock.suspend(Duration::from_secs(3600));
    rig.index(1, "a", 10, 1);
    rig.until_watermark(2).await;
    assert_eq!(rig.elastic.placement_reads(), reads + 1, "read again");
}

#[tokio::test(start_paused = true)]
async fn no_batch_uses_placements_cached_a_deadline_ago_with_zombies() {
    let mut rig = Rig::start();
    rig.index(0, "a", 10, 0);
    rig.until_watermark(1).await;
    let mut reads = Vec::new();
    for (offset, later) in [(1, 30), (2, 31), (3, 30), (4, 31), (5, 61), (6, 1)] {
        rig.pass(Duration::from_secs(later)).await;
        let before = rig.elastic.placement_reads();
        rig.index(offset, "a", 10, offset);
        rig.until_watermark(offset + 1).await;
        reads.push(rig.elastic.placement_reads() - before);
    }
    assert_eq!(reads, [0, 1, 0, 1, 0, 0], "after a batch deadline, and after two");
}

#[tokio::test(start_paused = true)]
async fn drained_partition_clears_all_swept_leftovers() {
    let mut rig = Rig::start();
    rig.index(0, "a", 0, 0);
    rig.until_watermark(1).await;
    rig.index(1, "a", 90, 1);
    rig.until("the move is read", |rig| rig.counts()["in"] == 2).await;
    rig.mode.send(Mode::Drain).unwrap();
    rig.until_ended().await;
    assert_eq!(shards(&rig.elastic.copies("a")), ["f1"]);
    assert!(!rig.elastic.placement("a").contains("leftovers"), "{}", rig.elastic.placement("a"));
}
