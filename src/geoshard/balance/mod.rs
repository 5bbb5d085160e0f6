//! What to change so that geoshards stay balanced, and what it costs.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | one number for the load of a place, from documents, writes and searches |
//! | `decide.rs` | whether the map is changed now, and to which |
//! | `replicas.rs` | copies of each geoshard within a total |
//! | `nodes.rs` | geoshards on nodes, so that time zones mix |
//! | `capacity.rs` | nodes, heap and disk for documents and rates |
//!
//! Pure: everything is passed in, the time too.

pub mod capacity;
pub mod decide;
pub mod nodes;
pub mod replicas;

use serde::Serialize;

use super::load::record::WEEK;
use super::load::{CellLoad, ExpectedCell, LoadRecord};
use super::map::GeoshardMap;
use super::plan::{Balance, CellLoads, TooManyCells};

/// The sum of a score over all places.
pub const TOTAL: f64 = 1000.0;

/// How much documents, writes and searches count. Each is a share of its own total, so that 1, 1, 1 makes a place with a tenth of
/// all documents, a tenth of all writes and a tenth of all searches a tenth of the load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Weights {
    /// Documents that are there.
    pub documents: f64,
    /// Documents written.
    pub writes: f64,
    /// Searches.
    pub queries: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Self { documents: 1.0, writes: 1.0, queries: 1.0 }
    }
}

impl Weights {
    /// Whether writes and searches do not count.
    pub fn is_by_documents(&self) -> bool {
        self.writes <= 0.0 && self.queries <= 0.0
    }
}

/// The load of each place as one number; [`TOTAL`] over all. What is rated by larger cells than documents are counted by is spread over
/// the documents of the cell; without any it is put into the middle of the cell. A measure of which there is nothing does not
/// count. `documents` were summed up within `map`.
///
/// # Errors
/// If there are too many cells.
pub fn score(
    documents: &CellLoads,
    load: &[ExpectedCell],
    weights: Weights,
    map: &GeoshardMap,
) -> Result<CellLoads, TooManyCells> {
    let cells = documents.sorted();
    let totals = [
        documents.total().load,
        load.iter().map(|cell| cell.writes).sum(),
        load.iter().map(|cell| cell.queries).sum(),
    ];
    let wanted = [weights.documents, weights.writes, weights.queries];
    let counted: f64 =
        wanted.iter().zip(totals).filter(|(_, total)| *total > 0.0).map(|(weight, _)| weight).sum();
    let mut factors = [0.0; 3];
    for ((factor, weight), total) in factors.iter_mut().zip(wanted).zip(totals) {
        if total > 0.0 && counted > 0.0 {
            *factor = TOTAL * weight / counted / total;
        }
    }
    let mut scores = CellLoads::within(documents.level(), map);
    for cell in &cells {
        scores.add_cell(cell.cell, CellLoad { load: cell.load * factors[0], points: cell.points })?;
    }
    for rated in load {
        let score = rated.writes * factors[1] + rated.queries * factors[2];
        if score <= 0.0 {
            continue;
        }
        let [first, last] = [rated.cell.range_min(), rated.cell.range_max()];
        let from = cells.partition_point(|cell| cell.cell.range_min() < first);
        let to = cells.partition_point(|cell| cell.cell.range_max() <= last);
        let inside = cells.get(from..to).unwrap_or_default();
        let there: f64 = inside.iter().map(|cell| cell.load).sum();
        if there <= 0.0 {
            scores.add_cell(rated.cell, CellLoad { load: score, points: 0 })?;
            continue;
        }
        for cell in inside {
            scores.add_cell(cell.cell, CellLoad { load: score * cell.load / there, points: 0 })?;
        }
    }
    Ok(scores)
}

/// The load of each geoshard, in the order of [`GeoshardMap::shards`].
pub fn by_shard(map: &GeoshardMap, loads: &CellLoads) -> Vec<f64> {
    let mut sums = vec![0.0; map.shards().len()];
    for cell in loads.sorted() {
        if let Some(sum) = sums.get_mut(map.owner_of_leaf(cell.cell.range_min().0)) {
            *sum += cell.load;
        }
    }
    sums
}

/// Writes and searches per second of each geoshard in each hour of the week from `now` on (seconds since 1970), as expected; in the
/// order of [`GeoshardMap::shards`].
pub fn by_hour(map: &GeoshardMap, record: &LoadRecord, now: u64) -> Vec<Vec<[f64; 2]>> {
    let mut hours = vec![Vec::new(); map.shards().len()];
    for hour in now / 3600..now / 3600 + WEEK {
        let mut sums = vec![[0.0; 2]; map.shards().len()];
        for cell in record.expected_in(now, hour) {
            if let Some(sum) = sums.get_mut(map.owner_of_leaf(cell.cell.range_min().0)) {
                sum[0] += cell.writes;
                sum[1] += cell.queries;
            }
        }
        hours.iter_mut().zip(sums).for_each(|(hours, sum)| hours.push(sum));
    }
    hours
}

/// How even the geoshards are; `None` without load.
pub fn evenness(map: &GeoshardMap, loads: &CellLoads) -> Option<Balance> {
    (loads.total().load > 0.0).then(|| Balance::of(&by_shard(map, loads)))
}

#[cfg(test)]
mod tests {
    use s2::cellid::CellID;

    use super::*;
    use crate::base::geo::GeoPoint;
    use crate::base::ids::ShardId;
    use crate::geoshard::cell;

    fn point(lat: f64, lon: f64) -> GeoPoint {
        GeoPoint::new(lat, lon).unwrap()
    }

    fn three() -> GeoshardMap {
        let id = |id: &str| ShardId::new(id).unwrap();
        GeoshardMap::new(1, "", vec![(0, id("a")), (1 << 61 | 1, id("b")), (2 << 61 | 1, id("c"))]).unwrap()
    }

    #[test]
    fn documents_writes_and_searches_are_shares_that_add_up() {
        let map = three();
        let mut documents = CellLoads::within(12, &map);
        for n in 0..60 {
            documents.add(point(0.1 * f64::from(n % 6), 0.0), 1.0).unwrap();
        }
        for _ in 0..40 {
            documents.add(point(0.0, 90.0), 1.0).unwrap();
        }
        let cell = |lat, lon| CellID(cell::leaf(point(lat, lon))).parent(5);
        let load = [
            ExpectedCell { cell: cell(0.1, 0.01), writes: 9.0, queries: 0.0 },
            ExpectedCell { cell: cell(0.1, 90.0), writes: 1.0, queries: 0.0 },
            ExpectedCell { cell: cell(80.0, 0.0), writes: 0.0, queries: 5.0 },
        ];
        let shards = |weights| by_shard(&map, &score(&documents, &load, weights, &map).unwrap());
        let only = |documents, writes, queries| shards(Weights { documents, writes, queries });
        let is_near = |loads: Vec<f64>, expected: [f64; 3]| {
            assert!(
                loads.iter().zip(expected).all(|(load, expected)| (load - expected).abs() < 1e-6),
                "{loads:?}"
            );
        };
        is_near(only(1.0, 0.0, 0.0), [600.0, 400.0, 0.0]);
        is_near(only(0.0, 1.0, 0.0), [900.0, 100.0, 0.0]);
        is_near(only(0.0, 0.0, 2.0), [0.0, 0.0, 1000.0]);
        is_near(only(1.0, 1.0, 2.0), [375.0, 125.0, 500.0]);
        // Nobody searched: that does not count.
        let scores = score(&documents, &load[..2], Weights::default(), &map).unwrap();
        is_near(by_shard(&map, &scores), [750.0, 250.0, 0.0]);
        assert!((evenness(&map, &scores).unwrap().max_over_mean - 2.25).abs() < 1e-9);
        assert_eq!(evenness(&map, &CellLoads::within(12, &map)), None);
        // A rate is spread over the documents of its cell, so that a border can divide it.
        let finest = scores.sorted().iter().map(|cell| cell.cell.level()).min();
        assert_eq!(finest, Some(12));
    }
}
