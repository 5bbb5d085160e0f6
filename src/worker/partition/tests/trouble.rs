//! An Elasticsearch that refuses, fails, or is not there.

use super::*;

#[tokio::test(start_paused = true)]
async fn refused_credentials_halt_the_worker() {
    for first_too in [true, false] {
        let mut rig = Rig::start();
        rig.index(0, "a", 1, 1);
        if !first_too {
            rig.until_watermark(1).await;
        }
        rig.elastic.set_faults(|faults| faults.unauthorized = true);
        rig.index(1, "b", 1, 1);
        rig.index(2, "c", 1, 1);
        let watermark = rig.published.watermark();
        assert!(matches!(rig.fatal.recv().await, Some(Halt::Unauthorized(_))));
        let calls = rig.elastic.calls();
        rig.pass(Duration::from_secs(60)).await;
        assert_eq!((rig.elastic.calls(), rig.published.watermark()), (calls, watermark));
        rig.mode.send(if first_too { Mode::Drain } else { Mode::FinishBatch }).unwrap();
        rig.until_ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_minute_without_elasticsearch_loses_nothing_and_stops_reading() {
    let mut rig = Rig::start();
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    rig.elastic.set_faults(|faults| faults.down = true);
    for offset in 1..50 {
        rig.index(offset, &format!("d{}", offset % 7), i32::try_from(offset).unwrap(), offset);
    }
    rig.pass(Duration::from_secs(9)).await;
    assert!(rig.meter.may_read(WIDE, false));
    rig.pass(Duration::from_secs(51)).await;
    assert_eq!(rig.published.watermark(), Some(1));
    assert!(!rig.meter.may_read(WIDE, false), "the oldest is dirty for too long");
    rig.elastic.set_faults(|faults| faults.down = false);
    rig.until_watermark(50).await;
    rig.until("it may read on", |rig| rig.meter.may_read(WIDE, true)).await;
    for last in 43..50_i64 {
        let document = document(i32::try_from(last).unwrap(), last);
        assert_eq!(rig.elastic.document(&format!("d{}", last % 7)), Some(document));
    }
    assert_eq!(rig.meter.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn failing_calls_items_and_lost_replies_only_delay() {
    let mut rig = Rig::start();
    for round in 0..20_i64 {
        rig.elastic.set_faults(|faults| {
            faults.failing_calls = usize::from(round % 3 == 0);
            faults.pushed_back_items = usize::from(round % 2 == 0) * 3;
            faults.lost_replies = usize::from(round % 5 < 2);
        });
        for n in 0..10 {
            let lon = i32::try_from((round * 37 + n * 11) % 180).unwrap();
            rig.index(round * 10 + n, &format!("d{}", n % 4), lon, round);
        }
        rig.pass(Duration::from_millis(130)).await;
    }
    rig.until_watermark(200).await;
    for n in 6..10_i64 {
        let lon = i32::try_from((19 * 37 + n * 11) % 180).unwrap();
        assert_eq!(rig.elastic.document(&format!("d{}", n % 4)), Some(document(lon, 19)));
    }
    assert_eq!((rig.counts()["in_flight"], rig.meter.held()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_can_not_be_done_is_tried_again_with_pauses() {
    let mut rig = Rig::start();
    // Its placement was damaged by somebody: it comes back from every batch.
    damage_placement(&rig, "broken").await;
    rig.index(0, "broken", 1, 1);
    rig.pass(Duration::from_secs(5)).await;
    let (calls, asked) = (rig.elastic.calls(), rig.clock.asked());
    rig.pass(Duration::from_secs(100)).await;
    let (calls, asked) = (rig.elastic.calls() - calls, rig.clock.asked() - asked);
    assert!((50..2_000).contains(&calls), "{calls} requests in 100 s, pauses of up to 1 s");
    assert!(asked < 100_000, "{asked} looks at the clock in 100 s");
    assert_eq!(rig.published.watermark(), Some(0));
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_never_gets_done_does_not_make_the_batches_of_others_small() {
    let mut rig = Rig::start();
    damage_placement(&rig, "broken").await;
    rig.index(0, "broken", 1, 1);
    rig.pass(Duration::from_secs(1)).await;
    let calls = rig.elastic.calls();
    for n in 1..400 {
        rig.index(n, &format!("d{n}"), 1, 1);
        rig.pass(Duration::from_millis(50)).await;
    }
    let seconds = 20;
    let batches_at_most = seconds * 5;
    let calls = rig.elastic.calls() - calls;
    assert!(calls < batches_at_most * 5, "{calls} requests in {seconds} s with a linger of 200 ms");
    assert!(rig.elastic.ids().len() > 380);
}

async fn damage_placement(rig: &Rig, id: &str) {
    use crate::elastic::{BulkOp, Elastic, Guard, Index};
    let id = DocId::from_key(Some(id.as_bytes())).unwrap();
    let source = Bytes::from_static(b"[]");
    let op = BulkOp::Index { index: Index::Placements, id, guard: Guard::Absent, source };
    rig.elastic.bulk(&[op], Duration::from_secs(1)).await.unwrap();
}
