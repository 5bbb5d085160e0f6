//! Offsets that go back, are not records, or are gone.

use super::*;
use crate::core::offsets::Lost;

#[tokio::test(start_paused = true)]
async fn rewound_partition_is_refused() {
    let mut rig = Rig::start();
    let far = rig.clock.now() + Duration::from_secs(60);
    let lease = RequestDeadline { deadline: far, cancel: CancellationToken::new() };
    rig.memory.remember_watermarks(Epoch::new(1).unwrap(), &[(0, 100)], &lease).await.unwrap();
    rig.index(99, "a", 1, 1);
    rig.index(100, "a", 1, 2);
    rig.until("it says so", |rig| rig.health.missing().contains_key(&stopped_part(0))).await;
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!((rig.published.watermark(), rig.elastic.ids().len()), (None, 0));
    assert!(rig.health.missing()[&stopped_part(0)].contains("rewound"));
    assert_eq!(rig.meter.held(), 0, "a stopped partition keeps memory from the others");
    rig.mode.send(Mode::Drain).unwrap();
    rig.until_ended().await;
}

#[tokio::test(start_paused = true)]
async fn offsets_going_back_stop_the_partition_before_the_watermark() {
    let mut rig = Rig::start();
    rig.index(100, "a", 1, 1);
    rig.until_watermark(101).await;
    rig.index(101, "b", 1, 1);
    rig.index(40, "c", 1, 2);
    rig.until_watermark(102).await;
    rig.pass(Duration::from_secs(60)).await;
    assert!(rig.health.missing()[&stopped_part(0)].contains("raise positions.epoch above 1"));
    assert_eq!((rig.published.watermark(), rig.elastic.document("c")), (Some(102), None));
}

#[tokio::test(start_paused = true)]
async fn record_delivered_twice_in_a_row_is_taken_once() {
    let mut rig = Rig::start();
    rig.index(100, "a", 1, 1);
    rig.index(101, "b", 1, 1);
    rig.index(101, "b", 1, 1);
    rig.bad(102, "c");
    rig.bad(102, "c");
    rig.index(103, "d", 1, 1);
    rig.until_watermark(104).await;
    assert_eq!(rig.health.missing().get(&stopped_part(0)), None);
    assert_eq!((rig.counts()["in"], rig.letters.letters.lock().unwrap().len(), rig.meter.held()), (4, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_done_takes_no_memory() {
    let mut rig = Rig::start();
    let key = Bytes::from("a".to_owned());
    let value = Some(Bytes::from(document(1, 1)));
    let record = Record { offset: 0, key: Some(key.clone()), value, headers: None };
    rig.meter.enqueued(record.bytes());
    assert!(!key.is_unique() && rig.records.try_send(record).is_ok());
    rig.until_watermark(1).await;
    assert!(key.is_unique(), "the worker still has it");
}

#[tokio::test(start_paused = true)]
async fn different_record_at_the_last_offset_stops_the_partition() {
    let mut rig = Rig::start();
    rig.index(100, "a", 1, 1);
    rig.index(100, "a", 1, 2);
    rig.until("it says so", |rig| rig.health.missing().contains_key(&stopped_part(0))).await;
    assert!(rig.health.missing()[&stopped_part(0)].contains("raise positions.epoch above 1"));
}

#[tokio::test(start_paused = true)]
async fn offsets_without_records_at_the_end_are_passed_once_done() {
    let mut rig = Rig::start();
    rig.elastic.set_faults(|faults| faults.down = true);
    rig.index(10, "a", 1, 1);
    rig.published.update(|known| known.read_to = Some(13));
    rig.pass(Duration::from_secs(5)).await;
    assert_ne!(rig.published.watermark(), Some(13), "nothing is written");
    rig.elastic.set_faults(|faults| faults.down = false);
    rig.until_watermark(13).await;
    rig.index(13, "b", 1, 1);
    rig.until_watermark(14).await;
    // An older end is ignored.
    rig.published.update(|known| known.read_to = Some(13));
    rig.pass(Duration::from_secs(5)).await;
    assert_eq!(rig.published.watermark(), Some(14));
}

#[tokio::test(start_paused = true)]
async fn partition_with_only_markers_is_passed() {
    let mut rig = Rig::following();
    rig.published.update(|known| known.read_to = Some(3));
    rig.pass(Duration::from_secs(5)).await;
    assert_eq!(rig.published.watermark(), None, "the maps are not known");
    rig.look().await;
    rig.until_watermark(3).await;
    rig.index(3, "a", 1, 1);
    rig.until_watermark(4).await;
}

#[tokio::test(start_paused = true)]
async fn end_below_the_remembered_offset_is_a_rewind() {
    let mut rig = Rig::start();
    let far = rig.clock.now() + Duration::from_secs(60);
    let lease = RequestDeadline { deadline: far, cancel: CancellationToken::new() };
    rig.memory.remember_watermarks(Epoch::new(1).unwrap(), &[(0, 100)], &lease).await.unwrap();
    rig.published.update(|known| known.read_to = Some(90));
    rig.until("it says so", |rig| rig.health.missing().contains_key(&stopped_part(0))).await;
    assert!(rig.health.missing()[&stopped_part(0)].contains("rewound"));
}

#[tokio::test(start_paused = true)]
async fn lost_records_stop_the_partition_after_writing_the_read_ones() {
    for with_record in [false, true] {
        let mut rig = Rig::start();
        if with_record {
            rig.index(9, "a", 1, 1);
            rig.until("it is read", |rig| rig.counts()["in"] == 1).await;
        }
        rig.published.update(|known| known.trouble = Some(Lost { from: 10, to: 50 }.into()));
        rig.until("it says so", |rig| rig.health.missing().contains_key(&stopped_part(0))).await;
        assert!(rig.health.missing()[&stopped_part(0)].contains("up to 40 writes are lost"));
        rig.published.update(|known| known.read_to = Some(50));
        if with_record {
            rig.until_watermark(10).await;
        }
        rig.pass(Duration::from_secs(60)).await;
        assert_eq!(rig.published.watermark(), with_record.then_some(10));
        rig.mode.send(Mode::Drain).unwrap();
        rig.until_ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn records_gone_since_the_remembered_offset_are_lost() {
    // (first offset if nothing is committed, remembered epoch, whether records are lost)
    for (first, remembered_in, lost) in
        [(Some(150), 1, 50), (Some(100), 1, 0), (Some(-1), 1, 0), (None, 1, 0), (Some(150), 0, 0)]
    {
        let mut rig = Rig::start();
        let far = rig.clock.now() + Duration::from_secs(60);
        let lease = RequestDeadline { deadline: far, cancel: CancellationToken::new() };
        let epoch = Epoch::new(remembered_in).unwrap();
        rig.memory.remember_watermarks(epoch, &[(0, 100)], &lease).await.unwrap();
        rig.published.update(|known| known.first = first);
        rig.index(150, "a", 1, 1);
        if lost == 0 {
            rig.until_watermark(151).await;
        } else {
            rig.until("it says so", |rig| rig.health.missing().contains_key(&stopped_part(0))).await;
            assert!(rig.health.missing()[&stopped_part(0)].contains("from offset 100 up to 149"));
        }
        assert_eq!(rig.metrics.lost_records.get(), lost);
    }
}
