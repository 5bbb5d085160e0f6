//! How a partition ends: revoked, stopped, cancelled, halted.

use super::*;

#[tokio::test(start_paused = true)]
async fn revoked_partition_finishes_its_batch_and_starts_none() {
    let mut rig = Rig::with(Batching { max_documents: 2, ..batching() });
    for offset in 0..5 {
        rig.index(offset, &format!("d{offset}"), 1, 1);
    }
    rig.until("the batch has begun", |rig| rig.elastic.calls() >= 2).await;
    rig.mode.send(Mode::FinishBatch).unwrap();
    rig.until_ended().await;
    assert_eq!(rig.published.watermark(), Some(2));
    assert_eq!(rig.elastic.ids().len(), 2);
    assert_eq!(rig.counts()["in_flight"], 3);
    rig.metrics.drop_partition(0);
    assert_eq!(rig.counts()["handed_over"], 3);
    drop(rig.meter);
    drop(rig.records);
    assert_eq!(rig.budget.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn stopping_worker_writes_everything_dirty() {
    let linger = Duration::from_secs(3600);
    let mut rig = Rig::with(Batching { max_documents: 3, linger, ..batching() });
    for offset in 0..8 {
        rig.index(offset, &format!("d{offset}"), 1, 1);
    }
    rig.until("all were read", |rig| rig.counts()["in"] == 8).await;
    rig.mode.send(Mode::Drain).unwrap();
    rig.until_ended().await;
    assert_eq!(rig.published.watermark(), Some(8));
    assert_eq!(rig.elastic.ids().len(), 8);
}

#[tokio::test(start_paused = true)]
async fn idle_partition_ends_at_once_without_requests() {
    for mode in [Mode::Drain, Mode::FinishBatch] {
        let mut rig = Rig::start();
        rig.pass(Duration::from_secs(1)).await;
        rig.mode.send(mode).unwrap();
        rig.until_ended().await;
        assert_eq!((rig.elastic.calls(), rig.published.watermark()), (0, None));
    }
}

#[tokio::test(start_paused = true)]
async fn revocation_interrupts_the_first_read_of_the_meta_index() {
    for mode in [Mode::Drain, Mode::FinishBatch] {
        let mut rig = Rig::start();
        rig.elastic.set_faults(|faults| faults.down = true);
        rig.index(0, "a", 1, 1);
        rig.pass(Duration::from_secs(1)).await;
        let told_at = TokioInstant::now();
        rig.mode.send(mode).unwrap();
        rig.until_ended().await;
        assert!(told_at.elapsed() < Duration::from_millis(50), "{:?}", told_at.elapsed());
        assert_eq!(rig.published.watermark(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_partition_sends_nothing_more() {
    let mut rig = Rig::start();
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    rig.elastic.set_faults(|faults| faults.delay = Duration::from_secs(5));
    let calls = rig.elastic.calls();
    rig.index(1, "b", 1, 1);
    rig.until("a request is under way", |rig| rig.elastic.calls() > calls).await;
    rig.cancel.cancel();
    rig.until_ended().await;
    let calls = rig.elastic.calls();
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!((rig.elastic.calls(), rig.elastic.document("b")), (calls, None));
    assert_eq!(rig.published.watermark(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn stopped_partition_still_writes_earlier_records() {
    let linger = Duration::from_secs(3600);
    let mut rig = Rig::build(RigOptions {
        batching: Batching { linger, ..batching() },
        has_dead_letters: false,
        ..RigOptions::default()
    });
    rig.index(0, "a", 1, 1);
    rig.bad(1, "b");
    rig.until("it was read", |rig| rig.counts()["in"] == 2).await;
    rig.mode.send(Mode::Drain).unwrap();
    rig.until_ended().await;
    assert_eq!((rig.published.watermark(), rig.elastic.ids().len()), (Some(1), 1));
}

/// In real time: a loop that spins would keep paused time from advancing.
#[tokio::test]
async fn waiting_for_dead_letters_while_finishing_does_not_spin() {
    for mode in [Mode::FinishBatch, Mode::Drain] {
        let linger = Duration::from_millis(1);
        let mut rig = Rig::with(Batching { linger, max_documents: 1, ..batching() });
        rig.letters.open.send_replace(false);
        rig.bad(0, "a");
        rig.until("the letter is under way", |rig| rig.counts()["in"] == 1).await;
        if mode == Mode::FinishBatch {
            rig.elastic.set_faults(|faults| faults.delay = Duration::from_millis(200));
            rig.index(1, "b", 1, 1);
            rig.index(2, "c", 1, 1);
            rig.until("all were read", |rig| rig.counts()["in"] == 3).await;
        }
        rig.mode.send(mode).unwrap();
        rig.until("nothing but the letter is left", |rig| rig.counts()["in_flight"] <= 2).await;
        let asked = rig.clock.asked();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let asked = rig.clock.asked() - asked;
        assert!(asked < 200, "{asked} clock reads in 300 ms");
        assert!(!rig.task.is_finished(), "the letter may still arrive in time");
        rig.letters.open.send_replace(true);
        rig.until_ended().await;
        assert_eq!(rig.published.watermark(), Some(if mode == Mode::FinishBatch { 2 } else { 1 }));
    }
}

/// In real time, as above.
#[tokio::test]
async fn halted_partition_does_not_spin() {
    let mut rig = Rig::with(Batching { linger: Duration::from_millis(1), ..batching() });
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    rig.elastic.set_faults(|faults| faults.unauthorized = true);
    rig.index(1, "b", 1, 1);
    rig.until("the batch is under way", |rig| rig.counts()["in"] == 2).await;
    rig.index(2, "c", 1, 1);
    assert!(rig.fatal.recv().await.is_some());
    let asked = rig.clock.asked();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let asked = rig.clock.asked() - asked;
    assert!(asked < 200, "{asked} clock reads in 300 ms");
}

#[tokio::test(start_paused = true)]
async fn panicked_task_reports_its_partition_as_stopped() {
    let mut rig = Rig::start();
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    rig.elastic.set_faults(|faults| faults.panics = true);
    rig.index(1, "b", 1, 1);
    rig.until_ended().await;
    assert!(rig.health.missing()[&stopped_part(0)].contains("defect"));
    assert!(rig.records.is_closed());
    assert_eq!((rig.published.watermark(), rig.meter.held()), (Some(1), 0));
}

#[tokio::test(start_paused = true)]
async fn task_that_panics_before_running_reports_its_partition() {
    let rig = Rig::start();
    let (records, records_receiver) = mpsc::channel(1);
    let (_mode, mode) = watch::channel(Mode::Run);
    let published = Published::new();
    let partition = Partition {
        number: 1,
        context: rig.context.clone(),
        records: records_receiver,
        mode,
        cancel: CancellationToken::new(),
        meter: Arc::new(Meter::new(rig.budget.clone())),
        published: published.clone(),
        cache_share: rig.cache_share.clone(),
        metrics: rig.metrics.partition(1),
    };
    rig.clock.fail_once();
    partition.run().await;
    assert!(rig.health.missing()[&stopped_part(1)].contains("defect"));
    assert!(published.drained() && records.is_closed());
}

#[tokio::test(start_paused = true)]
async fn partition_stopped_at_its_first_record_holds_no_permit() {
    let mut rig = Rig::following();
    let lease = RequestDeadline {
        deadline: rig.clock.now() + Duration::from_secs(60),
        cancel: CancellationToken::new(),
    };
    rig.memory.remember_watermarks(Epoch::new(1).unwrap(), &[(0, 100)], &lease).await.unwrap();
    rig.set_maps(&unwritten().begin(two_halves()).unwrap()).await;
    rig.look().await;
    rig.elastic.set_faults(|faults| faults.down = true);
    rig.pass(Duration::from_secs(1)).await;
    rig.index(99, "a", 1, 1);
    rig.elastic.set_faults(|faults| {
        faults.down = false;
        faults.delay = Duration::from_secs(3);
    });
    rig.until("it is stopped", |rig| rig.health.missing().contains_key(&stopped_part(0))).await;
    rig.until("it holds nothing", |rig| rig.permits.available_permits() == 4).await;
}

#[tokio::test(start_paused = true)]
async fn partition_revoked_while_waiting_for_a_permit_ends_at_once() {
    let mut rig = Rig::start();
    let _others_at_work = rig.batch_permits.clone().acquire_many_owned(2).await.unwrap();
    rig.index(0, "a", 1, 1);
    rig.pass(Duration::from_secs(5)).await;
    rig.mode.send(Mode::FinishBatch).unwrap();
    rig.until("it has ended", |rig| rig.task.is_finished()).await;
    assert!(rig.elastic.copies("a").is_empty());
}

#[tokio::test(start_paused = true)]
async fn ending_partition_runs_its_distributions_without_delay() {
    let endpoint = Endpoint::new(true);
    let mut rig = Rig::distributing(&endpoint);
    rig.index(0, "a", 0, 1);
    rig.until_watermark(1).await;
    for (offset, mode) in [(1, Mode::Drain)] {
        rig.index(offset, "a", 0, offset + 1);
        rig.pass(Duration::from_millis(250)).await;
        let before = tokio::time::Instant::now();
        rig.mode.send(mode).unwrap();
        rig.until_ended().await;
        assert!(
            before.elapsed() < Duration::from_millis(200),
            "it waited for the linger: {:?}",
            before.elapsed()
        );
        assert_eq!(rig.published.watermark(), Some(offset + 1));
    }
}
