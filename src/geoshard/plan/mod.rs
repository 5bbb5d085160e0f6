//! Planning a map: ranges of the curve with about equal load, from places and their loads.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the plan: every wanted number of geoshards tried, the most even one kept, and the map that follows |
//! | `cells.rs` | points summed up by S2 cell, and the row of cells that is cut |
//! | `cut.rs` | cutting a row of loads, the best way and the greedy way |
//! | `budget.rs` | cutting a row of loads the best way that moves little |
//! | `change/` | changes of a map: within a budget, a split, a merge; and what they mean |
//! | `names.rs` | ids of the new geoshards: fresh ones, or those of an older map, so that little moves |
//! | `report.rs` | what a map means for its load: balance, borders, circles |
//!
//! Geoshards are neighbouring stretches of the row, so their ranges are one each. Between two cells with points in them
//! the cut is where the largest cells end: empty land and sea get an owner, and borders through them are short.
//!
//! Pure: the same points in the same order give the same plan, to the byte.

pub mod budget;
pub mod cells;
pub mod change;
pub mod cut;
mod names;
pub mod report;

use std::ops::RangeInclusive;

use thiserror::Error;

pub use self::cells::{CellLoads, TooManyCells, WalkedCell};
pub use self::change::{CellOptions, ChangeError, ChangeReport, MapChange};
use self::cut::BestCuts;
pub use self::names::Naming;
pub use self::report::{PlanReport, TriedCounts};
use super::map::{GeoshardMap, MapError};

/// Maximum number of geoshards: each is an index that the cluster has to carry.
pub const MAX_SHARDS: usize = 1000;
/// Finer cells (about 10 m wide) do not improve geoshards.
pub const MAX_LEVEL: u8 = 20;

/// The criterion for the best plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// Standard deviation of load over its mean: comparable across numbers of geoshards.
    Cv,
    /// Standard deviation, which falls with the number of geoshards.
    Sd,
}

/// Planning options.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanOptions {
    /// S2 level of the cells to cut between.
    pub level: u8,
    /// A cell is split above this share of an average geoshard's load, at the largest count.
    pub split_above: f64,
    /// The numbers of geoshards to try.
    pub counts: RangeInclusive<usize>,
    /// The criterion for the one kept.
    pub by: By,
}

/// The balance of load among geoshards.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Balance {
    /// Standard deviation of the loads (population, not sample).
    pub sd: f64,
    /// Standard deviation over mean.
    pub cv: f64,
    /// Largest load over mean.
    pub max_over_mean: f64,
}

/// One number of geoshards tried.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Tried {
    /// Number of geoshards.
    pub count: usize,
    /// With optimal cuts.
    pub best: Balance,
    /// With greedy cuts, for comparison.
    pub greedy: Balance,
}

/// The plan kept, and the alternatives.
#[derive(Debug, Clone)]
pub struct MapPlan {
    /// The cells to cut between, in curve order.
    cells: Vec<WalkedCell>,
    /// All places, in curve order.
    finest: Vec<WalkedCell>,
    /// For each geoshard, the index of its first cell.
    starts: Vec<usize>,
    tried: Vec<Tried>,
    level: u8,
    by: By,
}

/// Why no plan can be made.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum PlanError {
    /// Limits that are reversed or out of range.
    #[error(
        "cannot try {min} to {max} geoshards: give at least 1, at most {MAX_SHARDS}, and the lower number first"
    )]
    Counts {
        /// The lowest.
        min: usize,
        /// The highest.
        max: usize,
    },
    /// Levels out of range.
    #[error("cells cannot have level {level} with {finest} as the finest: levels go from 0 to {MAX_LEVEL}")]
    Level {
        /// Of the cells to cut between.
        level: u8,
        /// Of the cells that points were summed by.
        finest: u8,
    },
    /// Not a positive share.
    #[error("a cell cannot be split above {0} of a geoshard's load: give a number above 0")]
    SplitAbove(f64),
    /// No points.
    #[error("there are no points to plan with")]
    NoPoints,
    /// All points have load 0.
    #[error("all points have load 0, so all maps are equal: choose another load score")]
    NoLoad,
    /// Fewer cells than geoshards.
    #[error(
        "points lie in {cells} cells only, too few for {min} geoshards: choose a higher level (--level, --finest) or fewer geoshards (--min)"
    )]
    TooFewCells {
        /// Cells with points.
        cells: usize,
        /// The lowest number to try.
        min: usize,
    },
    /// Exceeds the memory limit.
    #[error(
        "{cells} cells and up to {max} geoshards exceed the planning limit: choose a lower level, a higher split, or fewer geoshards"
    )]
    TooMuch {
        /// Cells to cut between.
        cells: usize,
        /// The highest number to try.
        max: usize,
    },
}

impl Balance {
    /// For at least one load, with a mean above 0.
    pub(in crate::geoshard) fn of(loads: &[f64]) -> Self {
        let count = loads.len() as f64;
        let mean = loads.iter().sum::<f64>() / count;
        let sd = (loads.iter().map(|load| (load - mean).powi(2)).sum::<f64>() / count).sqrt();
        let max = loads.iter().copied().fold(0.0, f64::max);
        Self { sd, cv: sd / mean, max_over_mean: max / mean }
    }

    fn measure(&self, by: By) -> f64 {
        match by {
            By::Cv => self.cv,
            By::Sd => self.sd,
        }
    }
}

fn check_counts(min: usize, max: usize) -> Result<(), PlanError> {
    match min == 0 || min > max || max > MAX_SHARDS {
        true => Err(PlanError::Counts { min, max }),
        false => Ok(()),
    }
}

fn check_cells(loads: &CellLoads, level: u8, split_above: f64) -> Result<(), PlanError> {
    if level > loads.level() || loads.level() > MAX_LEVEL {
        return Err(PlanError::Level { level, finest: loads.level() });
    }
    if split_above.is_nan() || split_above <= 0.0 {
        return Err(PlanError::SplitAbove(split_above));
    }
    Ok(())
}

impl MapPlan {
    /// Tries every count and keeps the most even plan; of equally even ones, that with the fewest geoshards.
    pub fn make(loads: &CellLoads, options: &PlanOptions) -> Result<Self, PlanError> {
        let &PlanOptions { level, split_above, by, .. } = options;
        let (min, max) = (*options.counts.start(), *options.counts.end());
        check_counts(min, max)?;
        check_cells(loads, level, split_above)?;
        let total = loads.total();
        if total.points == 0 {
            return Err(PlanError::NoPoints);
        }
        if total.load <= 0.0 {
            return Err(PlanError::NoLoad);
        }

        let finest = loads.sorted();
        let heaviest = total.load / max as f64 * split_above;
        let cells = cells::walk(&finest, level, heaviest);
        if cells.len() < min {
            return Err(PlanError::TooFewCells { cells: cells.len(), min });
        }
        if cells.len().saturating_mul(max) > cut::MAX_STATES {
            return Err(PlanError::TooMuch { cells: cells.len(), max });
        }

        let weights: Vec<f64> = cells.iter().map(|cell| cell.load).collect();
        let best = BestCuts::new(&weights, max);
        let mut tried = Vec::new();
        let mut kept: Option<(f64, Vec<usize>)> = None;
        for count in options.counts.clone() {
            // With fewer cells than geoshards the higher counts have no cut.
            let Some(starts) = best.starts(count) else { break };
            let balance = |starts: &[usize]| Balance::of(&cut::stretches(&weights, starts));
            let one = Tried { count, best: balance(&starts), greedy: balance(&cut::greedy(&weights, count)) };
            let measure = one.best.measure(by);
            if kept.as_ref().is_none_or(|(least, _)| measure < *least) {
                kept = Some((measure, starts));
            }
            tried.push(one);
        }
        let starts = kept.map(|(_, starts)| starts).unwrap_or_else(|| vec![0]);
        Ok(Self { cells, finest, starts, tried, level, by })
    }

    /// Number of geoshards.
    pub fn count(&self) -> usize {
        self.starts.len()
    }

    /// The counts that were tried, ascending.
    pub fn tried(&self) -> &[Tried] {
        &self.tried
    }

    /// The map, with ids as `naming` says.
    pub fn map(&self, version: u64, name: &str, naming: &Naming<'_>) -> Result<GeoshardMap, MapError> {
        let ids = naming.ids(&self.stretches());
        let from = |&start: &usize| match start {
            0 => 0,
            _ => roundest_cut(self.cells[start - 1], self.cells[start]),
        };
        GeoshardMap::new(version, name, self.starts.iter().map(from).zip(ids).collect())
    }

    /// The finest cells of each geoshard.
    fn stretches(&self) -> Vec<&[WalkedCell]> {
        let first = |&start: &usize| {
            let from = self.cells[start].cell.range_min();
            self.finest.partition_point(|place| place.cell.range_max() < from)
        };
        let firsts: Vec<usize> = self.starts.iter().map(first).collect();
        let ends = firsts.iter().skip(1).copied().chain([self.finest.len()]);
        firsts.iter().zip(ends).map(|(&first, end)| &self.finest[first..end]).collect()
    }
}

/// The leaf cell between two cells at which the largest cells begin.
fn roundest_cut(before: WalkedCell, after: WalkedCell) -> u64 {
    // Leaf `2i + 1` counts as the step `2i .. 2i + 2` of the line.
    let (first, last) = (before.cell.range_max().0 + 1, after.cell.range_min().0 - 1);
    let mut step = 1_u64 << 61;
    while last / step * step < first {
        step >>= 1;
    }
    (last / step * step) | 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::geo::GeoPoint;
    use crate::base::random::Random;
    use crate::geoshard::cell;

    fn options(counts: RangeInclusive<usize>) -> PlanOptions {
        PlanOptions { level: 7, split_above: 1.0, counts, by: By::Cv }
    }

    /// Towns of different sizes with people scattered around them.
    fn towns(seed: u64, towns: u64, people: u64) -> Vec<(GeoPoint, f64)> {
        let mut random = Random::new(seed);
        let centres: Vec<(f64, f64)> =
            (0..towns).map(|_| (random.share() * 170.0 - 85.0, random.share() * 360.0 - 180.0)).collect();
        let person = |_| {
            let town = random.below(towns).min(random.below(towns));
            let (lat, lon) = centres[usize::try_from(town).unwrap()];
            let mut off = || (random.share() - 0.5) * random.share() * 4.0;
            let (lat, lon) = ((lat + off()).clamp(-90.0, 90.0), (lon + off()).clamp(-180.0, 180.0));
            (GeoPoint::new(lat, lon).unwrap(), f64::from(u32::try_from(random.below(5)).unwrap()))
        };
        (0..people).map(person).collect()
    }

    fn loads(points: &[(GeoPoint, f64)]) -> CellLoads {
        let mut loads = CellLoads::new(12);
        for &(point, load) in points {
            loads.add(point, load).unwrap();
        }
        loads
    }

    #[test]
    fn most_even_count_is_kept_beside_the_greedy_result() {
        let plan = MapPlan::make(&loads(&towns(1, 300, 20_000)), &options(10..=40)).unwrap();
        assert_eq!(plan.tried().iter().map(|tried| tried.count).collect::<Vec<_>>(), Vec::from_iter(10..=40));
        let kept = plan.tried().iter().find(|tried| tried.count == plan.count()).unwrap();
        assert!(plan.tried().iter().all(|tried| kept.best.cv <= tried.best.cv));
        assert!(plan.tried().iter().all(|tried| tried.best.sd <= tried.greedy.sd));
        assert!(plan.tried().iter().any(|tried| tried.best.sd < tried.greedy.sd));

        let by_sd = PlanOptions { by: By::Sd, ..options(10..=40) };
        let plan = MapPlan::make(&loads(&towns(1, 300, 20_000)), &by_sd).unwrap();
        let kept = plan.tried().iter().find(|tried| tried.count == plan.count()).unwrap();
        assert!(plan.tried().iter().all(|tried| kept.best.sd <= tried.best.sd));
    }

    #[test]
    fn same_points_give_the_same_map_to_the_byte() {
        let points = towns(2, 100, 5_000);
        let json = || {
            let plan = MapPlan::make(&loads(&points), &options(5..=20)).unwrap();
            plan.map(1, "twice", &Naming::Fresh).unwrap().to_json()
        };
        assert_eq!(json(), json());
    }

    #[test]
    fn cut_in_empty_sea_is_where_the_largest_cells_end() {
        let at = |lat, lon| (GeoPoint::new(lat, lon).unwrap(), 1.0);
        let plan = MapPlan::make(&loads(&[at(51.5, -0.1), at(35.7, 139.7)]), &options(2..=2)).unwrap();
        let map = plan.map(1, "two", &Naming::Fresh).unwrap();
        let cut = map.ranges().nth(1).unwrap().0.start;
        // London is on face 2, Tokyo on face 3; the largest cell that can begin between them is face 3.
        assert_eq!(cut, (3 << 61) | 1);
    }

    #[test]
    fn impossible_plan_is_refused_with_a_remedy() {
        let some = loads(&towns(3, 3, 50));
        let refusal = |loads: &CellLoads, options: &PlanOptions| {
            MapPlan::make(loads, options).map(|plan| plan.count()).unwrap_err().to_string()
        };
        assert!(refusal(&CellLoads::new(12), &options(1..=2)).contains("no points"));
        #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
        let reversed = 5..=4;
        for counts in [0..=4, reversed, 1..=MAX_SHARDS + 1] {
            assert!(refusal(&some, &options(counts)).contains("cannot try"));
        }
        assert!(refusal(&some, &options(900..=1000)).contains("higher level"));
        assert!(refusal(&some, &PlanOptions { level: 13, ..options(1..=2) }).contains("level 13"));
        assert!(
            refusal(&some, &PlanOptions { split_above: f64::NAN, ..options(1..=2) }).contains("above NaN")
        );
        let mut idle = CellLoads::new(12);
        idle.add(GeoPoint::new(1.0, 1.0).unwrap(), 0.0).unwrap();
        assert!(refusal(&idle, &options(1..=1)).contains("load 0"));
    }

    #[test]
    fn counts_above_the_number_of_cells_are_not_tried() {
        let at = |lat, lon| (GeoPoint::new(lat, lon).unwrap(), 1.0);
        let three = loads(&[at(0.0, 0.0), at(10.0, 50.0), at(-40.0, 100.0)]);
        let plan = MapPlan::make(&three, &options(2..=9)).unwrap();
        assert_eq!(plan.tried().len(), 2);
        assert_eq!(plan.count(), 3);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn every_point_is_in_the_geoshard_that_counted_it(seed: u64, max in 2..30_usize) {
            let points = towns(seed, 60, 800);
            let loads = loads(&points);
            let plan = MapPlan::make(&loads, &options(1..=max)).unwrap();
            let map = plan.map(1, "p", &Naming::Fresh).unwrap();
            prop_assert_eq!(map.shards().len(), plan.count());
            prop_assert_eq!(map.ranges().count(), plan.count());
            let mut counted = vec![crate::geoshard::load::CellLoad::default(); plan.count()];
            for &(point, load) in &points {
                let owner = &mut counted[map.locate_index(point)];
                owner.load += load;
                owner.points += 1;
            }
            for (stretch, counted) in plan.stretches().iter().zip(&counted) {
                prop_assert_eq!(stretch.iter().map(|place| place.load).sum::<f64>(), counted.load);
                prop_assert_eq!(stretch.iter().map(|place| place.points).sum::<u64>(), counted.points);
                prop_assert!(counted.points > 0);
            }
            let tried = plan.tried().iter().find(|tried| tried.count == plan.count()).unwrap();
            let counted: Vec<f64> = counted.iter().map(|counted| counted.load).collect();
            prop_assert!((Balance::of(&counted).sd - tried.best.sd).abs() < 1e-6);
        }

        #[test]
        fn cut_is_between_its_cells_and_at_the_start_of_a_cell(a in 1..cell::END_OF_GLOBE, b in 1..cell::END_OF_GLOBE, level in 1..20_u64) {
            let at = |leaf: u64| WalkedCell { cell: s2::cellid::CellID(leaf | 1).parent(level), load: 1.0, points: 1 };
            let (before, after) = (at(a.min(b)), at(a.max(b)));
            prop_assume!(before.cell != after.cell);
            let cut = roundest_cut(before, after);
            prop_assert!(before.cell.range_max().0 < cut && cut <= after.cell.range_min().0);
            prop_assert_eq!(cut % 2, 1);
        }
    }
}
