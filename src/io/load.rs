//! The load of a topic in the meta index: one document that all workers and routers add to.
//!
//! Each process counts by itself ([`LoadCounter`](crate::geoshard::load::LoadCounter)) and adds what it counted every
//! `load.interval`: it reads the document, adds, and writes it by compare-and-set. Where another process was faster it reads
//! again; where there is no answer it keeps the counts for the next time. A write whose answer is lost may be added twice: this
//! is a measurement, and no document depends on it.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::maps::MapsReader;
use super::stored::{RecordError, StoredRecord};
use crate::base::ids::DocId;
use crate::geoshard::GeoshardMap;
use crate::geoshard::load::{LoadDelta, LoadRecord};
use crate::io::elastic::{Elastic, SeqNo};

/// Counts on their way from partition tasks to the keeper.
const QUEUE: usize = 64;
/// How long a process that stops waits for its last counts to be added.
const LAST_REQUEST: Duration = Duration::from_secs(2);

/// Where partition tasks and searches hand over what they counted. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LoadSender(mpsc::Sender<LoadDelta>);

/// The load of one topic.
pub struct LoadStore<'a> {
    elastic: &'a dyn Elastic,
    id: DocId,
    timeout: Duration,
}

impl<'a> LoadStore<'a> {
    /// Of `topic`; each request may take `timeout`.
    pub fn new(elastic: &'a dyn Elastic, topic: &str, timeout: Duration) -> Self {
        Self { elastic, id: super::stored::key(format!("load/{topic}")), timeout }
    }

    /// The record, if somebody counted.
    pub async fn read(&self) -> Result<Option<(LoadRecord, SeqNo)>, RecordError> {
        self.stored().read_as().await
    }

    /// Adds what was counted until `now`, in seconds since 1970.
    pub async fn add(&self, delta: &LoadDelta, map: &GeoshardMap, now: u64) -> Result<(), RecordError> {
        let add = |record: Option<LoadRecord>| {
            let mut record = record.unwrap_or_else(|| LoadRecord::new(now));
            record.add(delta, map, now);
            Some((record, ()))
        };
        self.stored().update(add).await?;
        Ok(())
    }

    fn stored(&self) -> StoredRecord<'_> {
        StoredRecord::new(self.elastic, &self.id, self.timeout)
    }
}

/// Adds what the tasks of this process count.
pub struct LoadKeeper {
    elastic: Arc<dyn Elastic>,
    topic: String,
    timeout: Duration,
    interval: Duration,
    maps: MapsReader,
    counted: mpsc::Receiver<LoadDelta>,
    /// The last attempt failed: that is logged once.
    fails: bool,
}

impl LoadKeeper {
    /// Adds to the load of `topic` every `interval`.
    pub fn new(
        elastic: Arc<dyn Elastic>,
        topic: &str,
        timeout: Duration,
        interval: Duration,
        maps: MapsReader,
    ) -> (Self, LoadSender) {
        let (sender, counted) = mpsc::channel(QUEUE);
        let (topic, fails) = (topic.to_owned(), false);
        (Self { elastic, topic, timeout, interval, maps, counted, fails }, LoadSender(sender))
    }

    /// Runs until `stop`, then adds the rest.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut pending = LoadDelta::default();
        let mut interval = tokio::time::interval(self.interval);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        interval.tick().await;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(delta) = self.counted.recv() => pending.add(delta),
                _ = interval.tick() => self.add(&mut pending, self.timeout).await,
            }
        }
        while let Ok(delta) = self.counted.try_recv() {
            pending.add(delta);
        }
        self.add(&mut pending, self.timeout.min(LAST_REQUEST)).await;
    }

    async fn add(&mut self, pending: &mut LoadDelta, timeout: Duration) {
        if pending.is_empty() {
            return;
        }
        let store = LoadStore::new(&*self.elastic, &self.topic, timeout);
        match store.add(pending, self.maps.record().deciding(), unix_seconds()).await {
            Ok(()) => {
                *pending = LoadDelta::default();
                self.fails = false;
            }
            Err(error) if std::mem::replace(&mut self.fails, true) => {
                tracing::debug!(%error, "could not store the load by place again");
            }
            Err(error) => {
                tracing::warn!(
                    %error,
                    "could not store the load by place; its counts are kept for the next time (it needs the index privilege write \
                     on the meta index; load.interval = \"0s\" counts nothing)"
                );
            }
        }
    }
}

impl LoadSender {
    /// Hands counts over, unless the queue is full: then they stay where they are.
    pub fn send(&self, counter: &mut crate::geoshard::load::LoadCounter) {
        if counter.is_empty() {
            return;
        }
        if let Ok(place) = self.0.try_reserve() {
            place.send(counter.take());
        }
    }
}

/// Seconds since 1970: the record outlives every process's boot-time clock.
pub fn unix_seconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    #[cfg(feature = "sabotage")]
    let now = hurried::now(now);
    now.as_secs()
}

/// Test-only, and in no build that ships: a week of load in minutes (`tests/real/week.rs`).
#[cfg(feature = "sabotage")]
pub mod hurried {
    use std::sync::LazyLock;
    use std::time::Duration;

    /// The variable with the clock of a process: `REAL,SHOWN,FACTOR`, the first two in seconds since 1970. At `REAL` it shows `SHOWN`,
    /// and goes `FACTOR` times as fast.
    pub const VARIABLE: &str = "GEOFOLD_HURRIED_CLOCK";

    static CLOCK: LazyLock<Option<[f64; 3]>> = LazyLock::new(|| read(&std::env::var(VARIABLE).ok()?));

    fn read(text: &str) -> Option<[f64; 3]> {
        let numbers: Vec<f64> = text.split(',').filter_map(|number| number.parse().ok()).collect();
        numbers.try_into().ok()
    }

    pub(super) fn now(real: Duration) -> Duration {
        CLOCK.as_ref().map_or(real, |clock| at(clock, real))
    }

    fn at([from, shown, factor]: &[f64; 3], real: Duration) -> Duration {
        Duration::from_secs_f64((shown + (real.as_secs_f64() - from) * factor).max(0.0))
    }

    #[test]
    fn it_begins_where_it_is_told_and_goes_faster() {
        let clock = read("1000.5,500000,1200").unwrap();
        assert_eq!(at(&clock, Duration::from_millis(1_000_500)).as_secs(), 500_000);
        assert_eq!(at(&clock, Duration::from_millis(1_003_500)).as_secs(), 503_600);
        assert_eq!(read("1,2"), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::BootClock;
    use crate::base::geo::GeoPoint;
    use crate::geoshard::load::LoadCounter;
    use crate::testkit::testing::{MemoryElastic, six_faces};

    const SOON: Duration = Duration::from_secs(1);

    fn counter(writes: usize) -> LoadCounter {
        let mut counter = LoadCounter::new(7);
        (0..writes).for_each(|_| counter.wrote(GeoPoint::new(1.0, 2.0).unwrap(), 100));
        counter
    }

    async fn writes(elastic: &MemoryElastic) -> f64 {
        let (record, _) = LoadStore::new(elastic, "t", SOON).read().await.unwrap().unwrap();
        // The hour may have changed since the first were added.
        [0, 1]
            .iter()
            .filter_map(|back| record.hour_total(record.at / 3600 - back))
            .map(|[writes, _]| writes)
            .sum()
    }

    #[tokio::test]
    async fn what_several_processes_count_adds_up() {
        let elastic: Arc<MemoryElastic> = MemoryElastic::for_map(&six_faces());
        let store = || LoadStore::new(&*elastic, "t", SOON);
        assert!(store().read().await.unwrap().is_none());
        let add = |writes: usize| async move {
            store().add(&counter(writes).take(), &six_faces(), 480_000 * 3600).await.unwrap();
        };
        futures::future::join_all([add(1), add(2), add(3), add(4)]).await;
        assert_eq!(writes(&elastic).await, 10.0);
    }

    #[tokio::test(start_paused = true)]
    async fn counts_are_added_every_interval_and_at_the_end() {
        let elastic: Arc<MemoryElastic> = MemoryElastic::for_map(&six_faces());
        let maps = MapsReader::fixed(six_faces(), Arc::new(BootClock));
        let (keeper, sender) = LoadKeeper::new(elastic.clone(), "t", SOON, Duration::from_secs(60), maps);
        let stop = CancellationToken::new();
        let work = async {
            sender.send(&mut counter(3));
            sender.send(&mut counter(4));
            tokio::time::sleep(Duration::from_secs(59)).await;
            assert!(LoadStore::new(&*elastic, "t", SOON).read().await.unwrap().is_none());
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert_eq!(writes(&elastic).await, 7.0);
            sender.send(&mut counter(2));
            stop.cancel();
        };
        tokio::join!(keeper.run(stop.clone()), work);
        assert_eq!(writes(&elastic).await, 9.0);
        // Nobody takes it any more: it stays with the counter.
        let mut left = counter(1);
        sender.send(&mut left);
        assert!(!left.is_empty());
    }
}
