//! Points summed by S2 cell, and the cells between which a plan cuts.
//!
//! Points are kept as sums of the finest cells, never one by one, so that memory follows the number of places that
//! people are at, not the number of people. The walk then takes cells of the wanted level, and splits those that are too
//! heavy to be put into one geoshard, down to the finest level. A plan that changes a map also splits the cells that a
//! border of that map runs through, down to where it does not: each cell then belongs to one geoshard of the old map.

use std::collections::HashMap;

use s2::cellid::CellID;
use thiserror::Error;

use crate::base::geo::GeoPoint;
use crate::geoshard::cell;
use crate::geoshard::load::CellLoad;
use crate::geoshard::map::GeoshardMap;

/// Maximum number of finest cells: about 300 MB.
pub const MAX_CELLS: usize = 4_000_000;

/// Points, summed by cell of one level.
#[derive(Debug, Clone)]
pub struct CellLoads {
    level: u8,
    /// Borders that no cell lies on both sides of: the first leaf cells after them, ascending.
    borders: Vec<u64>,
    cells: HashMap<u64, CellLoad, ahash::RandomState>,
    total: CellLoad,
}

/// A cell beside which a plan may cut.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WalkedCell {
    /// The cell.
    pub cell: CellID,
    /// Its load.
    pub load: f64,
    /// Its points.
    pub points: u64,
}

/// The limit on cells is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("points lie in more than {MAX_CELLS} cells of level {level}; choose a lower finest level")]
pub struct TooManyCells {
    level: u8,
}

impl CellLoad {
    /// Adds the contents of another place.
    pub fn add(&mut self, other: Self) {
        self.load += other.load;
        self.points += other.points;
    }
}

impl CellLoads {
    /// No points yet; cells of `level`, 0 to 30.
    pub fn new(level: u8) -> Self {
        Self {
            level: level.min(30),
            borders: Vec::new(),
            cells: HashMap::default(),
            total: CellLoad::default(),
        }
    }

    /// No points yet; cells of `level`, and smaller ones where a border of `map` runs through.
    pub fn within(level: u8, map: &GeoshardMap) -> Self {
        Self { borders: map.table().0.to_vec(), ..Self::new(level) }
    }

    /// Adds a point. `load` is finite and not negative.
    pub fn add(&mut self, point: GeoPoint, load: f64) -> Result<(), TooManyCells> {
        self.add_leaf(CellID(cell::leaf(point)), CellLoad { load, points: 1 })
    }

    /// Adds the contents of a cell, at its middle.
    pub fn add_cell(&mut self, cell: CellID, contents: CellLoad) -> Result<(), TooManyCells> {
        match cell::middle(cell) {
            Some(middle) => self.add_leaf(CellID(cell::leaf(middle)), contents),
            None => Ok(()),
        }
    }

    fn add_leaf(&mut self, leaf: CellID, contents: CellLoad) -> Result<(), TooManyCells> {
        let mut cell = leaf.parent(u64::from(self.level));
        while straddles(&self.borders, cell) {
            cell = leaf.parent(cell.level() + 1);
        }
        if self.cells.len() >= MAX_CELLS && !self.cells.contains_key(&cell.0) {
            return Err(TooManyCells { level: self.level });
        }
        self.cells.entry(cell.0).or_default().add(contents);
        self.total.add(contents);
        Ok(())
    }

    /// The level of the cells.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// The sum over all cells.
    pub fn total(&self) -> CellLoad {
        self.total
    }

    /// The cells with points in them, in curve order.
    pub fn sorted(&self) -> Vec<WalkedCell> {
        let mut cells: Vec<_> = self
            .cells
            .iter()
            .map(|(&id, &CellLoad { load, points })| WalkedCell { cell: CellID(id), load, points })
            .collect();
        cells.sort_unstable_by_key(|walked| walked.cell.0);
        cells
    }
}

/// Groups finest cells in curve order into cells of `level`. A cell heavier than `heaviest` is split into its occupied
/// children, down to `finest`.
pub fn walk(finest: &[WalkedCell], level: u8, heaviest: f64) -> Vec<WalkedCell> {
    walk_within(finest, level, heaviest, &[])
}

/// The same, and a cell that one of `borders` runs through is split as well. None runs through a finest cell.
pub fn walk_within(finest: &[WalkedCell], level: u8, heaviest: f64, borders: &[u64]) -> Vec<WalkedCell> {
    let mut walked = Vec::new();
    gather(finest, u64::from(level), heaviest, borders, &mut walked);
    walked
}

/// Whether a border runs through the cell. A leaf cell, which borders are at the start of, is never cut.
fn straddles(borders: &[u64], cell: CellID) -> bool {
    let before = |leaf: u64| borders.partition_point(|&border| border <= leaf);
    before(cell.range_min().0) != before(cell.range_max().0)
}

fn gather(finest: &[WalkedCell], level: u64, heaviest: f64, borders: &[u64], walked: &mut Vec<WalkedCell>) {
    let parent = |walked: &WalkedCell| match walked.cell.level() {
        own if own <= level => walked.cell,
        _ => walked.cell.parent(level),
    };
    for inside in finest.chunk_by(|a, b| parent(a) == parent(b)) {
        let Some(first) = inside.first() else { continue };
        let load: f64 = inside.iter().map(|walked| walked.load).sum();
        let can_split = first.cell.level() > level;
        if can_split && (load > heaviest || straddles(borders, parent(first))) {
            gather(inside, level + 1, heaviest, borders, walked);
        } else {
            let points = inside.iter().map(|walked| walked.points).sum();
            walked.push(WalkedCell { cell: parent(first), load, points });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(points: &[(f64, f64, f64)]) -> CellLoads {
        let mut loads = CellLoads::new(12);
        for &(lat, lon, load) in points {
            loads.add(GeoPoint::new(lat, lon).unwrap(), load).unwrap();
        }
        loads
    }

    #[test]
    fn cell_heavier_than_allowed_is_split_without_loss() {
        // Two ends of London, a nearby place, and one far away.
        let loads =
            loads(&[(51.50, -0.12, 5.0), (51.60, -0.02, 4.0), (51.4, -0.3, 1.0), (-33.9, 151.2, 2.0)]);
        assert_eq!(loads.total(), CellLoad { load: 12.0, points: 4 });
        let finest = loads.sorted();

        let whole = walk(&finest, 4, 100.0);
        assert_eq!(whole.len(), 2);
        assert!(whole.iter().all(|walked| walked.cell.level() == 4));

        let split = walk(&finest, 4, 5.0);
        assert_eq!(split.iter().map(|walked| walked.load).sum::<f64>(), 12.0);
        assert_eq!(split.iter().map(|walked| walked.points).sum::<u64>(), 4);
        assert!(split.iter().all(|walked| walked.load <= 5.0), "{split:?}");
        assert!(split.iter().any(|walked| walked.cell.level() > 4));
        for pair in split.windows(2) {
            assert!(pair[0].cell.range_max() < pair[1].cell.range_min(), "{split:?}");
        }
    }

    #[test]
    fn heavy_place_stays_one_cell_of_the_finest_level() {
        let loads = loads(&[(51.5, -0.12, 50.0), (51.5, -0.12, 50.0)]);
        let walked = walk(&loads.sorted(), 3, 10.0);
        assert_eq!(walked.len(), 1);
        assert_eq!((walked[0].cell.level(), walked[0].load), (12, 100.0));
    }

    #[test]
    fn no_cell_lies_on_both_sides_of_a_border() {
        let here = GeoPoint::new(51.5, -0.12).unwrap();
        let there = GeoPoint::new(51.500001, -0.120001).unwrap();
        let border = cell::leaf(here).max(cell::leaf(there));
        let id = |id| crate::base::ids::ShardId::new(id).unwrap();
        let map = GeoshardMap::new(1, "", vec![(0, id("a")), (border, id("b"))]).unwrap();
        let mut loads = CellLoads::within(12, &map);
        for point in [here, there] {
            loads.add(point, 1.0).unwrap();
        }
        let finest = loads.sorted();
        assert_eq!(finest.len(), 2);
        assert_eq!(walk(&finest, 4, 9.0).len(), 1);
        let walked = walk_within(&finest, 4, 9.0, &[0, border]);
        assert_eq!(walked, finest);
        assert!(walked[0].cell.range_max().0 < border && walked[1].cell.range_min().0 >= border);
    }

    #[test]
    fn the_order_of_points_does_not_matter() {
        let points = [(1.0, 2.0, 1.0), (1.0, 2.0, 2.0), (50.0, 60.0, 3.0), (-70.0, -170.0, 4.0)];
        let mut backwards = points;
        backwards.reverse();
        assert_eq!(loads(&points).sorted(), loads(&backwards).sorted());
    }
}
