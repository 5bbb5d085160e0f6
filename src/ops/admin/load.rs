//! Writes and searches by place, from the record in the meta index that workers and routers add to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::status::MapNow;
use super::viewed::{TIMEOUT, Viewed};
use crate::geoshard::GeoshardMap;
use crate::geoshard::load::record::WEEK;
use crate::geoshard::load::{HotPlace, Hours, LoadRecord};
use crate::io::elastic::Elastic;
use crate::io::load::LoadStore;

/// Interval of requests to Elasticsearch: processes add to the record every `load.interval`, a minute.
pub const LOAD_INTERVAL: Duration = Duration::from_secs(60);
/// Places in the table.
const HOTTEST: usize = 10;

/// What the page shows of the load.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LoadSummary {
    /// The last time that somebody added counts, in seconds since 1970.
    pub at: u64,
    /// Writes and searches per second, over some days.
    pub shards: BTreeMap<String, [f64; 2]>,
    /// The places with the most of both.
    pub hottest: Vec<HotPlace>,
    /// The last week.
    pub hours: Hours,
}

/// The load, while the page is viewed.
pub type ViewedLoad = Viewed<Arc<LoadSummary>>;

impl LoadSummary {
    /// Of a record, by the geoshards of `map`.
    pub fn new(record: &LoadRecord, map: &GeoshardMap) -> Self {
        let names = map.shards().iter().map(ToString::to_string);
        Self {
            at: record.at,
            shards: names.zip(record.rates_by_shard(map)).collect(),
            hottest: record.hottest(map, HOTTEST),
            hours: record.last_hours(WEEK),
        }
    }
}

impl ViewedLoad {
    /// Reads the load of `topic`, while the page is viewed, until `stop`.
    pub async fn keep_reading(
        self: Arc<Self>,
        elastic: Arc<dyn Elastic>,
        topic: String,
        map: MapNow,
        stop: CancellationToken,
    ) {
        self.keep_asking(LOAD_INTERVAL, || read(&*elastic, &topic, &map), stop).await;
    }
}

async fn read(elastic: &dyn Elastic, topic: &str, map: &MapNow) -> Result<Arc<LoadSummary>, String> {
    let stored = LoadStore::new(elastic, topic, TIMEOUT).read().await.map_err(|error| error.to_string())?;
    let (record, _) =
        stored.ok_or("nothing is counted yet (load.interval says how often workers add to it)")?;
    Ok(Arc::new(LoadSummary::new(&record, &map())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::geo::GeoPoint;
    use crate::geoshard::load::LoadCounter;
    use crate::support::telemetry::health::tests::HandClock;
    use crate::testkit::testing::{MemoryElastic, six_faces};

    #[tokio::test(start_paused = true)]
    async fn the_record_is_read_once_a_minute_while_the_page_is_viewed() {
        let elastic: Arc<MemoryElastic> = MemoryElastic::for_map(&six_faces());
        let view = ViewedLoad::new(Arc::new(HandClock::default()));
        let stop = CancellationToken::new();
        let map: MapNow = Arc::new(six_faces);
        let reading =
            tokio::spawn(view.clone().keep_reading(elastic.clone(), "t".to_owned(), map, stop.clone()));
        let a_moment = || tokio::time::sleep(Duration::from_secs(1));
        assert_eq!(view.look().problem, None);
        a_moment().await;
        let problem = view.look().problem.unwrap();
        assert!(problem.starts_with("nothing is counted yet"), "{problem}");

        let mut counter = LoadCounter::new(7);
        (0..3600).for_each(|_| counter.wrote(GeoPoint::new(48.8, 2.3).unwrap(), 100));
        let (store, now) = (LoadStore::new(&*elastic, "t", TIMEOUT), 480_000 * 3600);
        store.add(&counter.take(), &six_faces(), now).await.unwrap();
        a_moment().await;
        assert_eq!(view.look().last, None, "it is not read at each look");
        tokio::time::sleep(LOAD_INTERVAL).await;
        let answer = view.look();
        let (_, summary) = answer.last.unwrap();
        assert_eq!((answer.problem, summary.at), (None, now));
        assert_eq!(summary.hottest[0].place, "Paris");
        let shards: Vec<&[f64; 2]> = summary.shards.values().filter(|rates| rates[0] > 0.0).collect();
        assert_eq!((shards.len(), summary.shards.len()), (1, 6));
        stop.cancel();
        reading.await.unwrap();
    }
}
