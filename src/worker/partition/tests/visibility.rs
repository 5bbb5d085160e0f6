//! Old copies stay until searches find the new ones.

use super::*;

/// `a` is moving: both copies exist.
async fn moving(rig: &mut Rig) {
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    rig.index(1, "a", 91, 2);
    rig.until("both copies", |rig| rig.elastic.copies("a").len() == 2).await;
}

#[tokio::test(start_paused = true)]
async fn old_copy_is_deleted_after_searches_that_missed_the_new_one() {
    let mut rig = Rig::serving_searches();
    moving(&mut rig).await;
    let both_since = TokioInstant::now();
    assert_eq!((rig.elastic.refreshes(), rig.published.watermark()), (0, Some(1)));
    // Neither other documents nor the document's next record wait for the sweep.
    rig.index(2, "b", 1, 1);
    rig.index(3, "a", 91, 3);
    rig.until("the others", |rig| rig.elastic.document("b").is_some() && rig.counts()["done"] == 4).await;
    assert_eq!(rig.elastic.refreshes(), 0);
    assert_eq!(shards(&rig.elastic.copies("a")), ["f0", "f1"]);
    rig.until_watermark(4).await;
    assert!(both_since.elapsed() >= Duration::from_secs(1), "{:?}", both_since.elapsed());
    assert!(rig.elastic.refreshes() > 0);
    assert_eq!(shards(&rig.elastic.copies("a")), ["f1"]);
    rig.until("the clear", |rig| !rig.elastic.placement("a").contains("leftovers")).await;
    assert_eq!(rig.meter.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn next_owner_continues_the_sweeps_of_an_ending_partition() {
    for mode in [Mode::Drain, Mode::FinishBatch] {
        let mut rig = Rig::serving_searches();
        moving(&mut rig).await;
        let told_at = TokioInstant::now();
        rig.mode.send(mode).unwrap();
        rig.until_ended().await;
        assert!(told_at.elapsed() < Duration::from_millis(300), "{:?}", told_at.elapsed());
        assert_eq!(rig.published.watermark(), Some(1));
        assert_eq!(shards(&rig.elastic.copies("a")), ["f0", "f1"]);

        let elastic = Some(rig.elastic.clone());
        let mut next = Rig::build(RigOptions { elastic, moves: FOR_SEARCHES, ..RigOptions::default() });
        next.index(1, "a", 91, 2);
        next.until_watermark(2).await;
        assert_eq!(shards(&next.elastic.copies("a")), ["f1"]);
    }
}

#[tokio::test(start_paused = true)]
async fn failing_refreshes_keep_old_copies_and_delay_nothing_else() {
    let mut rig = Rig::serving_searches();
    rig.elastic.set_faults(|faults| faults.refreshes_fail = true);
    moving(&mut rig).await;
    rig.index(2, "b", 1, 1);
    rig.pass(Duration::from_secs(120)).await;
    assert!(rig.elastic.document("b").is_some());
    assert_eq!(shards(&rig.elastic.copies("a")), ["f0", "f1"]);
    assert_eq!(rig.published.watermark(), Some(1));
    rig.elastic.set_faults(|faults| faults.refreshes_fail = false);
    rig.until_watermark(3).await;
    assert_eq!(shards(&rig.elastic.copies("a")), ["f1"]);
}

#[tokio::test(start_paused = true)]
async fn many_moves_share_their_refreshes() {
    let mut rig = Rig::serving_searches();
    for offset in 0..100 {
        rig.index(offset, &format!("d{}", offset % 50), if offset < 50 { 1 } else { 91 }, offset);
        if offset == 49 {
            rig.until_watermark(50).await;
        }
    }
    rig.until_watermark(100).await;
    assert_eq!(rig.elastic.refreshes(), 1);
}

#[tokio::test(start_paused = true)]
async fn refreshes_of_elasticsearch_are_waited_for_where_it_refreshes_periodically() {
    let mut rig = Rig::serving_searches();
    let elastic = rig.elastic.clone();
    tokio::spawn(async move {
        for refreshes in 0.. {
            elastic.set_faults(|faults| faults.counted_refreshes = Some(refreshes));
            tokio::time::sleep(Duration::from_millis(400)).await;
        }
    });
    moving(&mut rig).await;
    rig.until_watermark(2).await;
    assert_eq!(shards(&rig.elastic.copies("a")), ["f1"]);
    assert_eq!(rig.elastic.refreshes(), 0);
}

#[tokio::test(start_paused = true)]
async fn realtime_visibility_waits_for_no_refresh() {
    let mut rig = Rig::start();
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    rig.index(1, "a", 91, 2);
    rig.until_watermark(2).await;
    assert_eq!(rig.elastic.refreshes(), 0);
    assert_eq!(shards(&rig.elastic.copies("a")), ["f1"]);
}
