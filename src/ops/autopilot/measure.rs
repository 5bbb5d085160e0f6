//! Documents and load by place.
//!
//! Documents are counted by reading the location of each, as `geofold shards plan --from-index` does. That takes long where there are many,
//! so the counts are kept for [`MeasureOptions::documents_every`], while the map stays the same.

use std::time::Duration;

use thiserror::Error;

use crate::base::clock::{Clock, Instant};
use crate::core::decode::BadLocationPath;
use crate::geoshard::GeoshardMap;
use crate::geoshard::balance::decide::LoadView;
use crate::geoshard::balance::{Weights, score};
use crate::geoshard::load::{ExpectedCell, LoadRecord, Over};
use crate::geoshard::plan::{CellLoads, TooManyCells};
use crate::io::elastic::Elastic;
use crate::io::elastic::Index;
use crate::io::load::LoadStore;
use crate::io::stored::RecordError;
use crate::ops::points::scan::{ScanPointsError, scan};
use crate::ops::points::{Columns, PointLocation, PointRow, Weight};
use crate::support::config::Config;

/// Indices of one scan: their names are in the path of a request, which has 4 KiB at most by default.
const INDICES: usize = 40;

/// What is measured, and how.
#[derive(Debug, Clone, Copy)]
pub struct MeasureOptions {
    /// What counts.
    pub weights: Weights,
    /// How far it looks ahead, in hours.
    pub horizon: u64,
    /// How the hours ahead become one number.
    pub over: Over,
    /// S2 level of the smallest cells.
    pub finest: u8,
    /// How long counts of documents are used.
    pub documents_every: Duration,
}

/// What was measured, within one map.
#[derive(Debug)]
pub struct Measured {
    map: String,
    counted_at: Instant,
    use_for: Duration,
    documents: CellLoads,
    now: CellLoads,
    forecast: CellLoads,
    counted_for: Option<u64>,
}

/// It could not be measured.
#[derive(Debug, Error)]
pub enum MeasureError {
    /// The documents.
    #[error("counting documents by place: {0}")]
    Scan(#[from] ScanPointsError),
    /// The record of the load.
    #[error(transparent)]
    Load(#[from] RecordError),
    /// Too many places.
    #[error(transparent)]
    Cells(#[from] TooManyCells),
    /// The location's path.
    #[error("{key} in the configuration: {0}", key = .0.key())]
    Location(#[from] BadLocationPath),
}

impl Measured {
    /// Whether it was measured within `map`.
    pub fn is_of(&self, map: &GeoshardMap) -> bool {
        self.map == map.fingerprint()
    }

    /// Whether documents are to be counted again.
    pub fn is_old(&self, now: Instant) -> bool {
        now.since(self.counted_at) >= self.use_for
    }

    /// For a decision about `map`.
    pub fn view<'a>(&'a self, map: &'a GeoshardMap) -> LoadView<'a> {
        let Self { documents, now, forecast, counted_for, .. } = self;
        LoadView { map, documents, now, forecast, counted_for: *counted_for }
    }
}

impl MeasureOptions {
    /// Measures; `earlier` has documents that need not be counted again. `now`: seconds since 1970.
    pub async fn measure(
        &self,
        (elastic, config, timeout): (&dyn Elastic, &Config, Duration),
        map: &GeoshardMap,
        earlier: Option<Measured>,
        clock: &dyn Clock,
        now: u64,
    ) -> Result<Measured, MeasureError> {
        let (documents, counted_at) = match earlier {
            Some(earlier) => (earlier.documents, earlier.counted_at),
            None => {
                let counted_at = clock.now();
                (self.documents(elastic, config, timeout, map).await?, counted_at)
            }
        };
        let record = LoadStore::new(elastic, &config.kafka.topic, timeout).read().await?;
        let record = record.map(|(record, _)| record).unwrap_or_else(|| LoadRecord::new(now));
        let rates = |cell: crate::geoshard::load::CellRates| ExpectedCell {
            cell: cell.cell,
            writes: cell.now.writes,
            queries: cell.now.queries,
        };
        let present: Vec<ExpectedCell> = record.rates().map(rates).collect();
        let is_by_documents = self.weights.is_by_documents() || !config.load.is_on();
        let expected = record.expected(now, self.horizon, self.over);
        Ok(Measured {
            now: score(&documents, &present, self.weights, map)?,
            forecast: score(&documents, &expected, self.weights, map)?,
            map: map.fingerprint(),
            counted_at,
            use_for: self.documents_every,
            counted_for: (!is_by_documents).then(|| record.covered(now)),
            documents,
        })
    }

    async fn documents(
        &self,
        elastic: &dyn Elastic,
        config: &Config,
        timeout: Duration,
        map: &GeoshardMap,
    ) -> Result<CellLoads, MeasureError> {
        let place = config.documents.location_path()?;
        let columns = Columns { place: PointLocation::Path(place), weight: Weight::default(), id: None };
        let prefix = &config.elasticsearch.prefix;
        let indices: Vec<String> =
            map.shards().iter().map(|shard| Index::Geoshard(shard.clone()).name(prefix)).collect();
        let mut documents = CellLoads::within(self.finest, map);
        for some in indices.chunks(INDICES) {
            let add = |row: PointRow<'_>| documents.add(row.point, row.load);
            let scanned = scan(elastic, some, &columns, timeout, add, |_| {}).await?;
            if let Some(why) = &scanned.why {
                tracing::warn!(left_out = scanned.left_out, read = scanned.read, %why, "documents without a location do not count");
            }
        }
        Ok(documents)
    }
}
