//! When a batch starts.

use super::*;

#[tokio::test(start_paused = true)]
async fn records_are_indexed_in_their_geoshards_and_the_watermark_follows() {
    let mut rig = Rig::start();
    rig.index(7, "a", 1, 1);
    rig.index(8, "b", 91, 1);
    rig.index(9, "a", 92, 2);
    rig.until_watermark(10).await;
    assert_eq!(shards(&rig.elastic.copies("a")), ["f1"]);
    assert_eq!(rig.elastic.document("a"), Some(document(92, 2)));
    rig.index(12, "a", 2, 3);
    rig.send(13, "b", None, None);
    rig.until_watermark(14).await;
    assert_eq!(shards(&rig.elastic.copies("a")), ["f0"]);
    assert_eq!(rig.elastic.document("a"), Some(document(2, 3)));
    assert_eq!(rig.elastic.document("b"), None);
    let counts = rig.counts();
    assert_eq!((counts["in"], counts["indexed"], counts["folded"], counts["deleted"]), (5, 3, 1, 1));
    assert_eq!(rig.meter.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn document_is_written_at_the_shared_linger_tick() {
    let began = TokioInstant::now();
    let mut rig = Rig::start();
    rig.index(0, "a", 1, 0);
    rig.until_watermark(1).await;
    for (offset, (comes_at, leaves_at)) in (1..).zip([(250, 400), (410, 600), (790, 800), (801, 1_000)]) {
        sleep_until(began + Duration::from_millis(comes_at)).await;
        let calls = rig.elastic.calls();
        rig.index(offset, "a", 1, offset);
        sleep_until(began + Duration::from_millis(leaves_at - 2)).await;
        assert_eq!(rig.elastic.calls(), calls, "too early");
        rig.until_watermark(offset + 1).await;
        let left_at = began.elapsed();
        assert!(left_at < Duration::from_millis(leaves_at + 50), "{left_at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn partition_that_is_behind_waits_for_the_tick_of_a_second() {
    let began = TokioInstant::now();
    let mut rig = Rig::start();
    rig.index(0, "a", 1, 0);
    rig.until_watermark(1).await;
    // So much waits, 100 ms after one record, that reading it takes longer.
    rig.published.set_end(1_000);
    for (offset, comes_at) in (1..).zip([1_110, 1_390, 1_810]) {
        sleep_until(began + Duration::from_millis(comes_at)).await;
        rig.index(offset, "a", 1, offset);
    }
    let calls = rig.elastic.calls();
    sleep_until(began + Duration::from_millis(1_998)).await;
    assert_eq!(rig.elastic.calls(), calls, "too early");
    rig.until_watermark(4).await;
    assert!(began.elapsed() < Duration::from_millis(2_050), "{:?}", began.elapsed());

    sleep_until(began + Duration::from_millis(3_110)).await;
    rig.index(4, "a", 1, 4);
    sleep_until(began + Duration::from_millis(3_500)).await;
    let calls = rig.elastic.calls();
    rig.published.set_end(5);
    rig.index(5, "a", 1, 5);
    rig.until_watermark(6).await;
    assert!(rig.elastic.calls() > calls, "it waited while it was behind");
    assert!(began.elapsed() < Duration::from_millis(3_550), "{:?}", began.elapsed());

    rig.published.set_end(1_000);
    sleep_until(began + Duration::from_millis(4_110)).await;
    rig.index(6, "a", 1, 6);
    sleep_until(began + Duration::from_millis(4_500)).await;
    assert_eq!(rig.published.watermark(), Some(6));
    rig.meter.set_at_bound(Some(usize::MAX - 1));
    rig.until_watermark(7).await;
    assert!(began.elapsed() < Duration::from_millis(4_550), "nothing more is read: {:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn full_batch_does_not_wait() {
    let linger = Duration::from_secs(3600);
    let mut rig = Rig::with(Batching { max_documents: 3, linger, ..batching() });
    for offset in 0..7 {
        rig.index(offset, &format!("d{offset}"), 1, 1);
    }
    rig.until_watermark(6).await;
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!(rig.published.watermark(), Some(6), "the seventh waits for the linger");

    let mut rig = Rig::with(Batching { max_bytes: 2000, linger, ..batching() });
    for offset in 0..7 {
        rig.index(offset, &format!("d{offset}"), 1, 1);
    }
    rig.until("a batch by bytes", |rig| rig.published.watermark() > Some(0)).await;
}

#[tokio::test(start_paused = true)]
async fn changed_limits_apply_without_a_new_record() {
    let linger = Duration::from_secs(3600);
    let mut rig = Rig::with(Batching { linger, ..batching() });
    for offset in 0..5 {
        rig.index(offset, &format!("d{offset}"), 1, 1);
    }
    rig.pass(Duration::from_secs(60)).await;
    assert!(rig.elastic.ids().is_empty(), "they wait for the linger");
    rig.limits.send_modify(|limits| limits.batching.max_documents = 2);
    rig.until_watermark(4).await;
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!(rig.published.watermark(), Some(4), "the fifth waits for one more");
    rig.limits.send_modify(|limits| limits.batching.linger = Duration::from_millis(1));
    rig.until_watermark(5).await;
}

#[tokio::test(start_paused = true)]
async fn changed_limits_apply_between_batches_only() {
    let mut rig = Rig::with(Batching { max_documents: 3, ..batching() });
    let three = |rig: &Rig, from: i64| {
        for offset in from..from + 3 {
            rig.index(offset, &format!("d{offset}"), 1, 1);
        }
    };
    // The first batch also reads the partition's remembered state.
    three(&rig, 0);
    rig.until_watermark(3).await;
    let begun = rig.elastic.calls();
    three(&rig, 3);
    rig.until_watermark(6).await;
    let of_a_batch = rig.elastic.calls() - begun;
    let begun = rig.elastic.calls();
    three(&rig, 6);
    rig.until("its first call", |rig| rig.elastic.calls() > begun).await;
    rig.limits.send_modify(|limits| limits.requests.max_operations = 1);
    rig.until_watermark(9).await;
    assert_eq!(rig.elastic.calls(), begun + of_a_batch, "it ends as it began");
    three(&rig, 9);
    rig.until_watermark(12).await;
    assert_eq!(rig.elastic.calls(), begun + 4 * of_a_batch, "one operation in each request");
}

#[tokio::test(start_paused = true)]
async fn leftovers_are_cleared_without_a_following_batch() {
    let mut rig = Rig::start();
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    let calls = rig.elastic.calls();
    rig.index(1, "a", 91, 2);
    rig.until_watermark(2).await;
    // Write-ahead, write, delete, then the clear.
    rig.until("the clear", |rig| rig.elastic.calls() == calls + 4).await;
    rig.pass(Duration::from_secs(5)).await;
    assert_eq!(rig.elastic.calls(), calls + 4, "and once only");
}

#[tokio::test(start_paused = true)]
async fn at_the_memory_limit_batches_start_without_more_records() {
    const LINGER: Duration = Duration::from_secs(3600);
    let mut rig = Rig::with(Batching { linger: LINGER, max_dirty_age: 2 * LINGER, ..batching() });
    for offset in [0, 1] {
        rig.index(offset, "a", 1, offset);
        rig.until("it was read", |rig| rig.counts()["in"] == offset + 1).await;
        tokio::time::sleep(LINGER / 10).await;
        assert_eq!(rig.published.watermark().unwrap_or(0), offset, "it waits for others");
        rig.meter.set_at_bound(Some(rig.meter.held() + 1));
        tokio::time::sleep(LINGER / 10).await;
        assert_eq!(rig.published.watermark().unwrap_or(0), offset, "others have more");
        let told = TokioInstant::now();
        rig.meter.set_at_bound(Some(rig.meter.held()));
        rig.until_watermark(offset + 1).await;
        // Well before its next gauge tick.
        assert!(told.elapsed() < Duration::from_millis(50), "{:?}", told.elapsed());
        rig.meter.set_at_bound(None);
    }
}

#[tokio::test(start_paused = true)]
async fn gauges_are_updated_while_records_never_pause() {
    let (max_bytes, linger) = (1 << 24, Duration::from_secs(30));
    let mut rig = Rig::with(Batching { max_documents: 10_000, max_bytes, linger, ..batching() });
    for offset in 0..4000 {
        rig.index(offset, &format!("d{offset}"), 1, 1);
        if offset % 10 == 0 {
            rig.pass(Duration::from_millis(50)).await;
        }
    }
    let text = rig.metrics.render().unwrap();
    let dirty =
        text.lines().find_map(|line| line.strip_prefix("geofold_dirty_documents{partition=\"0\"} ")).unwrap();
    assert!(dirty.parse::<i64>().unwrap() > 1000, "{dirty}");
}

/// Otherwise hundreds of partitions on a slow server would wait for one another past every batch deadline, forever.
#[tokio::test(start_paused = true)]
async fn batch_deadline_starts_when_the_permit_is_granted() {
    let mut rig = Rig::start();
    let others_at_work = rig.batch_permits.clone().acquire_many_owned(2).await.unwrap();
    rig.index(0, "a", 1, 1);
    rig.pass(3 * batching().deadline).await;
    assert!(rig.elastic.copies("a").is_empty(), "it has not begun");
    rig.index(1, "a", 1, 2);
    drop(others_at_work);
    rig.until_watermark(2).await;
    assert_eq!(rig.batch_permits.available_permits(), 2, "given back");
    assert_eq!(shards(&rig.elastic.copies("a")).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn cache_is_trimmed_to_a_smaller_share_between_batches() {
    let mut rig = Rig::start();
    let mut offset = 0;
    let mut write_ten = async |rig: &mut Rig| {
        let before = rig.elastic.placement_reads();
        for n in 0..10 {
            rig.index(offset, &format!("d{n}"), 1, offset);
            offset += 1;
        }
        rig.until_watermark(offset).await;
        rig.elastic.placement_reads() - before
    };
    assert_eq!(write_ten(&mut rig).await, 10);
    assert_eq!(write_ten(&mut rig).await, 0, "all are cached");
    rig.cache_share.set_partitions(250);
    assert_eq!(write_ten(&mut rig).await, 6, "4 of 1000 for each of 250 partitions");
    rig.cache_share.set_partitions(100);
    write_ten(&mut rig).await;
    assert_eq!(write_ten(&mut rig).await, 0);
}
