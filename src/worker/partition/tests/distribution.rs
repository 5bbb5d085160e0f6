//! A partition whose geoshards are distributed before its offsets are committed.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::worker::distribution::action::RunFailure;
use crate::worker::distribution::last_runs::LastRuns;
use crate::worker::distribution::{DistributorDependencies, Job};

/// Succeeds only while open; records the geoshards of successful calls.
pub(super) struct Endpoint {
    pub(super) open: AtomicBool,
    pub(super) told: Mutex<Vec<(ShardId, String)>>,
}

impl Endpoint {
    pub(super) fn new(is_open: bool) -> Arc<Self> {
        Arc::new(Self { open: is_open.into(), told: Mutex::default() })
    }
}

impl JobAction for Endpoint {
    fn run<'a>(
        &'a self,
        shard: &'a ShardId,
        notice: &'a Bytes,
        _: Duration,
    ) -> BoxFuture<'a, Result<(), RunFailure>> {
        async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if !self.open.load(Ordering::SeqCst) {
                return Err(RunFailure { reason: "closed".to_owned(), for_good: false });
            }
            self.told.lock().unwrap().push((shard.clone(), String::from_utf8(notice.to_vec()).unwrap()));
            Ok(())
        }
        .boxed()
    }
}

/// A job with a gate, if there is an action for it.
pub(super) fn distributor(
    letters: &Arc<KeptLetters>,
    clock: &Arc<TokioClock>,
    metrics: &Arc<Metrics>,
    action: Option<Arc<dyn JobAction>>,
) -> Option<Arc<Distributor>> {
    let job = Job {
        name: "notify".into(),
        gate: true,
        interval: Duration::from_millis(400),
        timeout: Duration::from_secs(10),
        give_up_after: None,
        action: action?,
        store_key: String::new(),
        metrics: metrics.distribution("notify"),
    };
    let around = DistributorDependencies {
        topic: "topic".into(),
        last_runs: Arc::new(LastRuns::in_memory()),
        dead_letters: Some(letters.clone()),
        retry: RETRY,
        clock: clock.clone(),
    };
    let distributor = Distributor::new(vec![job], around);
    tokio::spawn(distributor.clone().run(CancellationToken::new()));
    Some(distributor)
}

#[tokio::test(start_paused = true)]
async fn gated_distributions_hold_offsets_from_the_assignment_on() {
    let endpoint = Endpoint::new(false);
    let mut rig = Rig::distributing(&endpoint);
    rig.index(0, "a", 0, 1);
    rig.until("the document", |rig| rig.elastic.document("a").is_some()).await;
    rig.pass(Duration::from_secs(30)).await;
    assert_eq!(rig.published.watermark(), None, "earlier changes may not be distributed either");
    endpoint.open.store(true, Ordering::SeqCst);
    rig.until_watermark(1).await;
    let told: BTreeSet<ShardId> =
        endpoint.told.lock().unwrap().iter().map(|(shard, _)| shard.clone()).collect();
    assert_eq!(told, rules().map.shards().iter().cloned().collect());

    // A move: its old geoshard is distributed, too, after the new one.
    endpoint.told.lock().unwrap().clear();
    endpoint.open.store(false, Ordering::SeqCst);
    rig.index(1, "a", 90, 2);
    rig.until("the move", |rig| rig.counts().get("indexed") == Some(&2)).await;
    rig.pass(Duration::from_secs(30)).await;
    assert_eq!(rig.published.watermark(), Some(1));
    endpoint.open.store(true, Ordering::SeqCst);
    rig.until_watermark(2).await;
    let told = endpoint.told.lock().unwrap().clone();
    let shard = |lon: f64| rules().map.locate(crate::base::geo::GeoPoint::new(0.0, lon).unwrap()).clone();
    assert_eq!(told.iter().map(|(shard, _)| shard).collect::<Vec<_>>(), [&shard(90.0), &shard(0.0)]);
    assert!(told[0].1.contains("\"watermark\":2"), "{}", told[0].1);
}

#[tokio::test(start_paused = true)]
async fn holds_per_geoshard_are_bounded_and_keep_the_lowest_offset() {
    let endpoint = Endpoint::new(true);
    let mut rig = Rig::distributing(&endpoint);
    rig.index(0, "a", 0, 1);
    rig.until_watermark(1).await;
    endpoint.open.store(false, Ordering::SeqCst);
    for offset in 1..40 {
        rig.index(offset, &format!("d{offset}"), 0, offset);
        rig.pass(Duration::from_millis(300)).await;
    }
    assert_eq!(rig.published.watermark(), Some(1));
    endpoint.open.store(true, Ordering::SeqCst);
    rig.until_watermark(40).await;
}
