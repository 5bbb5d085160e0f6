//! Offsets that do not go up.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_rewound_partition_is_refused() {
    let mut rig = Rig::start();
    let far = rig.clock.now() + Duration::from_secs(60);
    let lease = Lease { deadline: far, cancel: CancellationToken::new() };
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
async fn offsets_that_go_back_stop_the_partition_before_the_watermark_does() {
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
async fn a_record_that_the_client_hands_over_twice_in_a_row_is_taken_once() {
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
async fn another_record_at_the_offset_of_the_last_one_stops_the_partition() {
    let mut rig = Rig::start();
    rig.index(100, "a", 1, 1);
    rig.index(100, "a", 1, 2);
    rig.until("it says so", |rig| rig.health.missing().contains_key(&stopped_part(0))).await;
    assert!(rig.health.missing()[&stopped_part(0)].contains("raise positions.epoch above 1"));
}
