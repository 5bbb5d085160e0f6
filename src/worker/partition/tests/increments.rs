//! The increments of a partition, and the commits that wait for them.

use super::*;
use crate::core::counting::facets::FacetLimits;
use crate::core::counting::increment::{Delta, Increment};
use crate::core::placement::Placement;
use crate::testkit::testing::{Merger, recount};
use crate::worker::increments::emitter::OutgoingIncrement;
use crate::worker::increments::topic::{IncrementTopic, TooLarge};

/// Keeps increments up to a size; acknowledges them only while open.
struct KeptIncrements {
    increments: Mutex<Vec<Increment>>,
    open: watch::Sender<bool>,
    max_bytes: usize,
}

impl IncrementTopic for KeptIncrements {
    fn send<'a>(&'a self, _: i32, increment: &'a OutgoingIncrement) -> BoxFuture<'a, Result<(), TooLarge>> {
        async move {
            if increment.value.len() > self.max_bytes {
                return Err(TooLarge);
            }
            // The increment is stored even if it is never acknowledged.
            self.increments.lock().unwrap().push(Increment::from_json(&increment.value).unwrap());
            let mut open = self.open.subscribe();
            let _ = open.wait_for(|open| *open).await;
            Ok(())
        }
        .boxed()
    }
}

impl KeptIncrements {
    fn sent(&self) -> Vec<Increment> {
        self.increments.lock().unwrap().clone()
    }

    /// All sent increments, merged twice since that must not matter.
    fn merged(&self) -> Delta {
        let mut merger = Merger::default();
        for increment in self.sent().iter().chain(&self.sent()) {
            merger.merge(increment);
        }
        merger.counts
    }
}

const INTERVAL: Duration = Duration::from_secs(1);

fn facets() -> FacetRules {
    FacetRules::new(true, [("n", "n")], FacetLimits { max_value_bytes: 100, max_values: 10 })
}

fn counting(max_bytes: usize) -> (Rig, Arc<KeptIncrements>) {
    let kept =
        Arc::new(KeptIncrements { increments: Mutex::default(), open: watch::Sender::new(true), max_bytes });
    let counting = IncrementsContext { topic: kept.clone(), names: Arc::default(), interval: INTERVAL };
    let counts = Some((facets(), Arc::new(counting)));
    (Rig::build(RigOptions { counts, ..RigOptions::default() }), kept)
}

impl Rig {
    /// A recount of the index.
    fn recount(&self) -> Delta {
        recount(&facets(), self.elastic.ids().iter().flat_map(|id| self.elastic.copies(id)))
    }
}

#[tokio::test(start_paused = true)]
async fn merged_increments_equal_a_recount_of_the_index() {
    let (mut rig, kept) = counting(usize::MAX);
    for offset in 0..60 {
        let lon = i32::try_from(offset * 37 % 180).unwrap();
        match offset % 7 {
            6 => rig.send(offset, &format!("d{}", offset % 10), None, None),
            5 => rig.send(offset, &format!("d{}", offset % 11), Some(r#"{"n":9}"#), Some("patch")),
            _ => rig.index(offset, &format!("d{}", offset % 9), lon, offset % 4),
        }
        if offset % 16 == 15 {
            rig.pass(Duration::from_secs(2)).await;
        }
    }
    rig.until_watermark(60).await;
    assert_eq!(kept.merged(), rig.recount());
    assert!(!rig.recount().is_empty() && kept.sent().len() > 2, "{:?}", kept.sent());
    rig.until("all is given back", |rig| rig.meter.held() == 0).await;
    rig.pass(GAUGE_INTERVAL).await;
    assert!(rig.metrics.render().unwrap().contains("geofold_tally_edges{partition=\"0\"} 0\n"));
}

#[tokio::test(start_paused = true)]
async fn missing_offsets_are_reported_once_per_assignment() {
    let gaps = |rig: &Rig| {
        let metrics = rig.metrics.render().unwrap();
        let line = metrics.lines().find(|line| line.starts_with("geofold_tally_gaps_total ")).unwrap();
        line.rsplit(' ').next().unwrap().to_owned()
    };
    let (mut rig, _kept) = counting(usize::MAX);
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    assert_eq!(gaps(&rig), "0");
    for offset in [3, 4, 9] {
        rig.index(offset, "a", 1, 1);
        rig.until_watermark(offset + 1).await;
    }
    assert_eq!(gaps(&rig), "1");
    let mut rig = Rig::start();
    for offset in [0, 5] {
        rig.index(offset, "a", 1, 1);
        rig.until_watermark(offset + 1).await;
    }
    assert_eq!(gaps(&rig), "0", "nothing is counted");
}

#[tokio::test(start_paused = true)]
async fn no_offset_passes_before_its_increment_is_acknowledged() {
    let (mut rig, kept) = counting(usize::MAX);
    kept.open.send_replace(false);
    rig.index(0, "a", 1, 1);
    rig.until("it is sent", |_| kept.sent().len() == 1).await;
    rig.pass(Duration::from_secs(30)).await;
    assert_eq!(rig.published.watermark(), Some(0));
    assert!(rig.meter.held() > 0, "its edge is held");
    assert_eq!(kept.sent().len(), 1, "one is under way");
    let gauge = "geofold_tally_oldest_edge_seconds{partition=\"0\"} ";
    let text = rig.metrics.render().unwrap();
    let age = text.lines().find_map(|line| line.strip_prefix(gauge)).unwrap();
    assert!(age.parse::<f64>().unwrap() > 25.0, "{age}");
    kept.open.send_replace(true);
    rig.until_watermark(1).await;
    assert_eq!(kept.merged(), rig.recount());
}

#[tokio::test(start_paused = true)]
async fn silent_increments_topic_stops_reading_at_the_memory_limit() {
    let (mut rig, kept) = counting(usize::MAX);
    kept.open.send_replace(false);
    let limits = MemoryLimits { total: usize::MAX, per_partition: 20_000 };
    let mut offset = 0;
    while rig.may_read(limits, false) {
        assert!(offset < 1_000, "{} bytes are held, and it goes on", rig.meter.held());
        rig.index(offset, &format!("d{offset}"), 1, 1);
        offset += 1;
        // Each record is done, so that edges fill the memory.
        let done = offset;
        rig.until("done", |rig| rig.counts()["done"] == done).await;
    }
    rig.pass(Duration::from_secs(30)).await;
    assert!(!rig.may_read(limits, true));
    assert!(rig.meter.held() < 25_000, "{}", rig.meter.held());
    kept.open.send_replace(true);
    rig.until("it may be read again", |rig| rig.may_read(limits, true)).await;
    rig.until_watermark(offset).await;
    assert_eq!(kept.merged(), rig.recount());
}

#[tokio::test(start_paused = true)]
async fn increments_respect_the_topics_size_limit() {
    let (mut rig, kept) = counting(1_000);
    for offset in 0..100 {
        rig.index(offset, &format!("d{offset}"), 1, offset);
    }
    rig.until_watermark(100).await;
    assert!(kept.sent().len() > 5);
    assert_eq!(kept.merged(), rig.recount());
}

#[tokio::test(start_paused = true)]
async fn drained_and_revoked_partitions_flush_increments_before_ending() {
    for mode in [Mode::Drain, Mode::FinishBatch] {
        let (mut rig, kept) = counting(usize::MAX);
        rig.index(0, "a", 1, 1);
        rig.until("done", |rig| rig.counts()["done"] == 1).await;
        kept.open.send_replace(false);
        rig.mode.send(mode).unwrap();
        rig.pass(Duration::from_secs(5)).await;
        assert!(!rig.task.is_finished(), "{mode:?}");
        kept.open.send_replace(true);
        let told = TokioInstant::now();
        rig.until_ended().await;
        assert!(told.elapsed() < INTERVAL, "{mode:?}: it waited for the interval");
        assert_eq!((rig.published.watermark(), kept.merged()), (Some(1), rig.recount()), "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_an_acknowledged_commit_trims_version_histories() {
    let (mut rig, _kept) = counting(usize::MAX);
    let versions = |rig: &Rig| {
        let placement = Placement::from_json(rig.elastic.placement("a").as_bytes()).unwrap();
        placement.versions.versions().len()
    };
    for offset in 0..4 {
        rig.index(offset, "a", 1, offset);
        rig.until_watermark(offset + 1).await;
    }
    assert_eq!(versions(&rig), 4, "nothing was committed");
    rig.published.set_committed(3);
    rig.index(4, "a", 1, 9);
    rig.until_watermark(5).await;
    // The last version below 3, that at 3, and that at 4.
    assert_eq!(versions(&rig), 3);
}
