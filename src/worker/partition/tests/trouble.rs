//! Elasticsearch refuses, fails or is unreachable.

use super::*;

#[tokio::test(start_paused = true)]
async fn lasting_unauthorized_answers_halt_the_worker() {
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
async fn brief_unauthorized_answers_only_delay() {
    let mut rig = Rig::start();
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    rig.elastic.set_faults(|faults| faults.unauthorized = true);
    rig.index(1, "b", 1, 1);
    let calls = rig.elastic.calls();
    rig.pass(Duration::from_secs(20)).await;
    assert!(rig.fatal.try_recv().is_err(), "it stops although that has not lasted for long");
    assert!(rig.elastic.calls() - calls <= 5, "{} requests in vain", rig.elastic.calls() - calls);
    rig.elastic.set_faults(|faults| faults.unauthorized = false);
    rig.until_watermark(2).await;
    assert!(rig.fatal.try_recv().is_err());
}

fn f0() -> ShardId {
    ShardId::new("f0").unwrap()
}

#[tokio::test(start_paused = true)]
async fn geoshard_refusing_every_document_is_retried_not_dead_lettered() {
    let mut rig = Rig::start();
    rig.elastic.set_faults(|faults| faults.refusing_shards = [f0()].into());
    for offset in 0..500 {
        rig.index(offset, &format!("d{offset}"), 1, 1);
        // Several requests.
        rig.pass(Duration::from_millis(20)).await;
    }
    rig.pass(Duration::from_secs(120)).await;
    let letters = rig.letters().len();
    assert!(letters < 50, "{letters} documents are dead letters");
    let watermark = rig.published.watermark();
    assert!(
        watermark.is_some_and(|watermark| watermark <= 50),
        "{watermark:?}, {letters} letters, {:?} documents, {:?}",
        rig.elastic.ids().len(),
        rig.counts()
    );
    rig.elastic.set_faults(|faults| faults.refusing_shards.clear());
    rig.until_watermark(500).await;
    // The first refusals were accepted before the geoshard was doubted, and become dead letters only after several
    // attempts.
    let letters = rig.letters().len();
    assert!(letters < 50, "{letters} documents are dead letters");
    assert_eq!(rig.elastic.ids().len(), 500 - letters);
}

#[tokio::test(start_paused = true)]
async fn bad_documents_among_good_ones_are_dead_lettered() {
    let mut rig = Rig::start();
    let bad = (0..300).filter(|offset| offset % 3 > 0).map(|offset| format!("d{offset}"));
    rig.elastic.set_faults(|faults| faults.refused_ids = bad.collect());
    for offset in 0..300 {
        rig.index(offset, &format!("d{offset}"), 1, 1);
        rig.pass(Duration::from_millis(20)).await;
    }
    rig.until_watermark(300).await;
    assert_eq!((rig.letters().len(), rig.elastic.ids().len()), (200, 100));
}

#[tokio::test(start_paused = true)]
async fn elasticsearch_outage_loses_nothing_and_stops_reading() {
    let mut rig = Rig::start();
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    rig.elastic.set_faults(|faults| faults.down = true);
    for offset in 1..50 {
        rig.index(offset, &format!("d{}", offset % 7), i32::try_from(offset).unwrap(), offset);
    }
    rig.pass(Duration::from_secs(9)).await;
    assert!(rig.may_read(WIDE, false));
    rig.pass(Duration::from_secs(51)).await;
    assert_eq!(rig.published.watermark(), Some(1));
    assert!(!rig.may_read(WIDE, false), "the oldest is dirty for too long");
    rig.elastic.set_faults(|faults| faults.down = false);
    rig.until_watermark(50).await;
    rig.until("it may read on", |rig| rig.may_read(WIDE, true)).await;
    for last in 43..50_i64 {
        let document = document(i32::try_from(last).unwrap(), last);
        assert_eq!(rig.elastic.document(&format!("d{}", last % 7)), Some(document));
    }
    assert_eq!(rig.meter.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn failed_calls_and_items_and_lost_replies_only_delay() {
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
async fn failing_entries_are_retried_with_growing_pauses() {
    let mut rig = Rig::start();
    // A damaged placement: the entry returns from every batch.
    damage_placement(&rig, "broken").await;
    rig.index(0, "broken", 1, 1);
    rig.pass(Duration::from_secs(5)).await;
    let (calls, asked) = (rig.elastic.calls(), rig.clock.asked());
    rig.pass(Duration::from_secs(100)).await;
    let (calls, asked) = (rig.elastic.calls() - calls, rig.clock.asked() - asked);
    assert!((5..200).contains(&calls), "{calls} requests in 100 s, with pauses that grow");
    assert!(asked < 100_000, "{asked} clock reads in 100 s");
    assert_eq!(rig.published.watermark(), Some(0));
}

#[tokio::test(start_paused = true)]
async fn stuck_entry_does_not_shrink_the_batches_of_others() {
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

#[tokio::test(start_paused = true)]
async fn stuck_entry_holds_the_watermark_but_not_reading() {
    let mut rig = Rig::start();
    damage_placement(&rig, "broken").await;
    rig.index(0, "broken", 1, 1);
    for n in 1..60 {
        rig.index(n, "other", 1, n);
        rig.pass(Duration::from_secs(1)).await;
        assert!(rig.may_read(WIDE, false), "after {n} s; max_dirty_age is 10 s");
    }
    assert_eq!(rig.elastic.document("other"), Some(document(1, 59)));
    assert_eq!(rig.published.watermark(), Some(0));
    let metrics = rig.metrics.render().unwrap();
    let oldest = metrics.lines().find(|line| line.starts_with("geofold_oldest_dirty_seconds{")).unwrap();
    let age: f64 = oldest.rsplit_once(' ').unwrap().1.parse().unwrap();
    assert!(age > 50.0, "{oldest}: people see it");
}

#[tokio::test(start_paused = true)]
async fn ending_partition_pauses_between_retries_of_a_stuck_entry() {
    let mut rig = Rig::start();
    damage_placement(&rig, "broken").await;
    rig.index(0, "broken", 1, 1);
    rig.pass(Duration::from_secs(5)).await;
    let (calls, asked) = (rig.elastic.calls(), rig.clock.asked());
    rig.mode.send(Mode::Drain).unwrap();
    rig.pass(Duration::from_secs(30)).await;
    let (calls, asked) = (rig.elastic.calls() - calls, rig.clock.asked() - asked);
    assert!(calls < 100 && asked < 50_000, "{calls} requests, {asked} clock reads in 30 s");
    assert!(!rig.task.is_finished(), "not everything dirty is written");
    mend_placement(&rig, "broken").await;
    rig.until_ended().await;
    assert_eq!(rig.published.watermark(), Some(1));
}

async fn damage_placement(rig: &Rig, id: &str) {
    use crate::io::elastic::{BulkOp, Elastic, Index, WriteCondition};
    let id = DocId::from_key(Some(id.as_bytes())).unwrap();
    let source = Bytes::from_static(b"[]");
    let op = BulkOp::Index { index: Index::Placements, id, guard: WriteCondition::Absent, source };
    rig.elastic.bulk(&[op], Duration::from_secs(1)).await.unwrap();
}

async fn mend_placement(rig: &Rig, id: &str) {
    use crate::io::elastic::{BulkOp, Elastic, Get, GetAnswer, Index, WriteCondition};
    let id = DocId::from_key(Some(id.as_bytes())).unwrap();
    let get = Get::realtime(Index::Placements, id.clone());
    let answers = rig.elastic.mget(&[get], Duration::from_secs(1)).await.unwrap();
    let [GetAnswer::Found(found)] = &answers[..] else { panic!("{answers:?}") };
    let source = crate::core::placement::Placement::new(Position::from_version(1), None, []).to_json();
    let op =
        BulkOp::Index { index: Index::Placements, id, guard: WriteCondition::Unchanged(found.stamp), source };
    rig.elastic.bulk(&[op], Duration::from_secs(1)).await.unwrap();
}
