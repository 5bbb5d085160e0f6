//! Changes of a map that move little: the most even map within a budget, one geoshard split, two merged.
//!
//! All of them keep borders and ids where they can: a document moves only if its geoshard's id changes.

mod error;
mod report;

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use s2::cellid::CellID;

pub use self::error::ChangeError;
use self::report::report;
pub use self::report::{ChangeReport, ChangedShard, MoveBudget};
use super::budget::{self, Best, CellRow, Cut, Stretch};
use super::cells::{self, CellLoads, WalkedCell};
use super::{check_cells, check_counts, names, roundest_cut};
use crate::base::ids::ShardId;
use crate::geoshard::map::GeoshardMap;

/// The cells that a change may cut between.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CellOptions {
    /// Their S2 level.
    pub level: u8,
    /// A cell is split if it has more than this part of an average geoshard's load.
    pub split_above: f64,
}

/// A changed map, and what it means.
#[derive(Debug, Clone)]
pub struct MapChange {
    /// The map, one version higher.
    pub map: GeoshardMap,
    /// What it means.
    pub report: ChangeReport,
}

/// The most even map with one of `counts` geoshards that moves at most `max_moved` (0 to 1) of the load: that with the
/// least largest load over mean; of those, the one that moves the least. `counts` is the number of `old` if not given.
/// `loads` were summed up within `old`.
pub fn within_budget(
    loads: &CellLoads,
    old: &GeoshardMap,
    name: &str,
    options: CellOptions,
    counts: Option<RangeInclusive<usize>>,
    max_moved: f64,
) -> Result<MapChange, ChangeError> {
    if !(0.0..=1.0).contains(&max_moved) {
        return Err(ChangeError::Share(max_moved));
    }
    let before = old.shards().len();
    let counts = counts.unwrap_or(before..=before);
    let (min, max) = (*counts.start(), *counts.end());
    check_counts(min, max)?;
    check(loads, options)?;
    let ranges = merged(old);
    if ranges.len() > before {
        return Err(ChangeError::SeveralRanges { shard: with_several_ranges(&ranges, old) });
    }

    let cells = cells_of(loads, options, loads.total().load / max as f64, &ranges);
    if cells.len() < max {
        return Err(ChangeError::TooFewCells { cells: cells.len(), count: max });
    }
    let work = counts.clone().sum::<usize>();
    if cells.len() > budget::MAX_CELLS || cells.len().saturating_mul(work) > budget::MAX_STATES {
        return Err(ChangeError::TooMuch { cells: cells.len(), count: work });
    }
    let weights: Vec<f64> = cells.iter().map(|cell| cell.load).collect();
    let owners: Vec<usize> = ranges
        .iter()
        .map(|(from, _)| cells.partition_point(|cell| cell.cell.range_min().0 < *from))
        .collect();
    let row = CellRow::new(&weights, &owners);
    let share = |units: i64| row.load_of(units) / row.load_of(row.total());
    let largest = row.owner_loads().max().unwrap_or_default();
    let allowed = row.share(max_moved);

    let (count, cut) = most_even(&row, counts, allowed).map_err(|least| ChangeError::OverBudget {
        min,
        max,
        least: share(least),
        max_moved,
        before,
    })?;
    if count == before && cut.max == largest {
        return Err(ChangeError::NoBetter {
            count,
            max_moved,
            max_over_mean: share(largest) * before as f64,
            needs: row.least_moved_below(before, largest).map(share),
        });
    }

    let map = GeoshardMap::new(old.version() + 1, name, changed_ranges(&cut, old, &ranges, &cells))?;
    let over_mean = |units: i64| share(units) * count as f64;
    let without_budget = match row.best(count, row.total()) {
        Best::Cut(cut) => over_mean(cut.max),
        Best::MovesAtLeast(_) => over_mean(cut.max),
    };
    let budget =
        MoveBudget { max_moved, lower_bound: over_mean(row.lower_bound(count, allowed)), without_budget };
    let report = report(old, &map, &cells, Some(budget));
    Ok(MapChange { map, report })
}

/// A geoshard that has several ranges, of a map that has one.
fn with_several_ranges(ranges: &[(u64, ShardId)], map: &GeoshardMap) -> ShardId {
    let mut seen = BTreeSet::new();
    let twice = ranges.iter().find(|(_, shard)| !seen.insert(shard));
    twice.map_or_else(|| map.shards()[0].clone(), |(_, shard)| shard.clone())
}

/// The best cut into one of `counts` geoshards that moves at most `allowed`; if there is none, what has to move at least.
fn most_even(row: &CellRow, counts: RangeInclusive<usize>, allowed: i64) -> Result<(usize, Cut), i64> {
    // Largest load over mean, without its division by the total.
    let rank = |count: usize, cut: &Cut| (i128::from(cut.max) * count as i128, cut.moved, count);
    let mut best: Option<(usize, Cut)> = None;
    let mut least = i64::MAX;
    for count in counts {
        match row.best(count, allowed) {
            Best::MovesAtLeast(moved) => least = least.min(moved),
            Best::Cut(cut) => {
                if best.as_ref().is_none_or(|(other, kept)| rank(count, &cut) < rank(*other, kept)) {
                    best = Some((count, cut));
                }
            }
        }
    }
    best.ok_or(least)
}

/// Where each geoshard of the cut begins, and its id: the former one if it keeps that, else a new one.
fn changed_ranges(
    cut: &Cut,
    old: &GeoshardMap,
    ranges: &[(u64, ShardId)],
    cells: &[WalkedCell],
) -> Vec<(u64, ShardId)> {
    let ids: BTreeSet<&ShardId> = old.shards().iter().collect();
    let mut fresh = names::fresh(cut.stretches.len()).filter(|id| !ids.contains(id));
    let mut changed = Vec::with_capacity(cut.stretches.len());
    for Stretch { cells: within, keeps } in &cut.stretches {
        let id = match keeps.and_then(|owner| ranges.get(owner)) {
            Some((_, id)) => Some(id.clone()),
            None => fresh.next(),
        };
        changed.extend(id.map(|id| (cut_before(cells, ranges, within.start), id)));
    }
    changed
}

/// Splits a geoshard into two of about the same load. The larger half keeps the id. `loads` were summed up within `old`.
pub fn split(
    loads: &CellLoads,
    old: &GeoshardMap,
    name: &str,
    options: CellOptions,
    shard: &str,
) -> Result<MapChange, ChangeError> {
    let shard = known(old, shard)?;
    check(loads, options)?;
    let ranges = merged(old);
    let is_inside = |cell: &WalkedCell| owner(&ranges, cell) == Some(&shard);
    let load: f64 = loads.sorted().iter().filter(|cell| is_inside(cell)).map(|cell| cell.load).sum();
    let cells = cells_of(loads, options, load / 2.0, &ranges);

    let inside: Vec<usize> = (0..cells.len()).filter(|&at| is_inside(&cells[at])).collect();
    let (mut passed, mut best): (f64, Option<(f64, usize, bool)>) = (0.0, None);
    for pair in inside.windows(2) {
        passed += cells[pair[0]].load;
        let left = load - passed;
        // By counting up, what is left may differ from 0 where it is 0.
        let halves = passed > 0.0 && inside.iter().any(|&at| at >= pair[1] && cells[at].load > 0.0);
        if halves && best.is_none_or(|(largest, ..)| passed.max(left) < largest) {
            best = Some((passed.max(left), pair[1], passed >= left));
        }
    }
    let Some((_, at, first_keeps)) = best else {
        let heavy = inside.iter().map(|&at| cells[at]).find(|cell| cell.load > 0.0);
        return Err(ChangeError::OneCell { shard, level: heavy.map(|cell| cell.cell.level()) });
    };
    let ids: BTreeSet<&ShardId> = old.shards().iter().collect();
    let fresh = names::fresh(old.shards().len() + 1).find(|id| !ids.contains(id));
    let fresh = fresh.unwrap_or_else(|| shard.clone());
    let border = cut_before(&cells, &ranges, at);
    let renamed = |from: u64, id: &ShardId| {
        if *id == shard && (from >= border) == first_keeps { fresh.clone() } else { id.clone() }
    };
    let mut changed: Vec<(u64, ShardId)> =
        ranges.iter().map(|(from, id)| (*from, renamed(*from, id))).collect();
    if let Err(place) = changed.binary_search_by_key(&border, |(from, _)| *from) {
        changed.insert(place, (border, renamed(border, &shard)));
    }
    let map = GeoshardMap::new(old.version() + 1, name, changed)?;
    let report = report(old, &map, &cells, None);
    Ok(MapChange { map, report })
}

/// Merges two geoshards that lie beside one another. The one with more load keeps its id, or the first if they have the
/// same, or if there is no load. `loads` were summed up within `old`.
pub fn merge(
    loads: Option<&CellLoads>,
    old: &GeoshardMap,
    name: &str,
    a: &str,
    b: &str,
) -> Result<MapChange, ChangeError> {
    let (a, b) = (known(old, a)?, known(old, b)?);
    if a == b {
        return Err(ChangeError::SameShard(a));
    }
    let ranges = merged(old);
    let mut neighbours: Vec<ShardId> = Vec::new();
    for pair in ranges.windows(2) {
        match [&pair[0].1, &pair[1].1] {
            [one, other] | [other, one] if *one == a => neighbours.push(other.clone()),
            _ => {}
        }
    }
    if !neighbours.contains(&b) {
        neighbours.sort_unstable();
        neighbours.dedup();
        return Err(ChangeError::NotNeighbours { a, b, neighbours });
    }
    let cells = loads.map(CellLoads::sorted).unwrap_or_default();
    let load = |shard: &ShardId| -> f64 {
        cells.iter().filter(|cell| owner(&ranges, cell) == Some(shard)).map(|cell| cell.load).sum()
    };
    let (kept, gone) = if load(&b) > load(&a) { (b, a) } else { (a, b) };
    let mut changed: Vec<(u64, ShardId)> = Vec::with_capacity(ranges.len());
    for (from, id) in ranges {
        let id = if id == gone { kept.clone() } else { id };
        if changed.last().is_none_or(|(_, last)| *last != id) {
            changed.push((from, id));
        }
    }
    let map = GeoshardMap::new(old.version() + 1, name, changed)?;
    let report = report(old, &map, &cells, None);
    Ok(MapChange { map, report })
}

fn check(loads: &CellLoads, CellOptions { level, split_above }: CellOptions) -> Result<(), ChangeError> {
    check_cells(loads, level, split_above)?;
    if loads.total().load <= 0.0 {
        return Err(ChangeError::NoLoad);
    }
    Ok(())
}

fn known(map: &GeoshardMap, id: &str) -> Result<ShardId, ChangeError> {
    let found = map.shards().iter().find(|shard| shard.as_str() == id).cloned();
    found.ok_or_else(|| ChangeError::UnknownShard { id: id.to_owned(), known: map.shards().to_vec() })
}

/// The ranges of a map, neighbours of one geoshard as one.
fn merged(map: &GeoshardMap) -> Vec<(u64, ShardId)> {
    let mut ranges: Vec<(u64, ShardId)> = Vec::new();
    for (range, shard) in map.ranges() {
        if ranges.last().is_none_or(|(_, last)| last != shard) {
            ranges.push((range.start, shard.clone()));
        }
    }
    ranges
}

fn range_of(ranges: &[(u64, ShardId)], cell: &WalkedCell) -> usize {
    ranges.partition_point(|(from, _)| *from <= cell.cell.range_min().0).saturating_sub(1)
}

fn owner<'r>(ranges: &'r [(u64, ShardId)], cell: &WalkedCell) -> Option<&'r ShardId> {
    ranges.get(range_of(ranges, cell)).map(|(_, shard)| shard)
}

/// The cells to cut between, at least one in each range: an empty range has its first leaf cell.
fn cells_of(
    loads: &CellLoads,
    options: CellOptions,
    average: f64,
    ranges: &[(u64, ShardId)],
) -> Vec<WalkedCell> {
    let borders: Vec<u64> = ranges.iter().map(|(from, _)| *from).collect();
    let heaviest = average * options.split_above;
    let mut cells = cells::walk_within(&loads.sorted(), options.level, heaviest, &borders);
    let mut has_cells = vec![false; ranges.len()];
    for cell in &cells {
        has_cells[range_of(ranges, cell)] = true;
    }
    let empty = ranges.iter().zip(has_cells).filter(|(_, has_cells)| !has_cells);
    cells.extend(empty.map(|((from, _), _)| WalkedCell { cell: CellID(from | 1), load: 0.0, points: 0 }));
    cells.sort_unstable_by_key(|walked| walked.cell.0);
    cells
}

/// Where a geoshard begins whose first cell is that at `at`: at the border that is there already, or where the largest
/// cells begin.
fn cut_before(cells: &[WalkedCell], ranges: &[(u64, ShardId)], at: usize) -> u64 {
    let Some(before) = at.checked_sub(1).map(|before| cells[before]) else { return 0 };
    let range = range_of(ranges, &cells[at]);
    if range_of(ranges, &before) == range { roundest_cut(before, cells[at]) } else { ranges[range].0 }
}

#[cfg(test)]
mod tests {
    use super::super::Balance;
    use super::*;
    use crate::base::geo::GeoPoint;
    use crate::base::random::Random;

    const CELLS: CellOptions = CellOptions { level: 7, split_above: 0.25 };

    fn id(id: &str) -> ShardId {
        ShardId::new(id).unwrap()
    }

    fn map(ranges: &[(u64, &str)]) -> GeoshardMap {
        GeoshardMap::new(4, "old", ranges.iter().map(|&(from, shard)| (from, id(shard))).collect()).unwrap()
    }

    /// A geoshard for each face of the cube.
    fn faces() -> GeoshardMap {
        let ids = ["s00", "s01", "s02", "s03", "s04", "s05"];
        map(&ids.iter().zip(0_u64..).map(|(id, face)| (face << 61 | 1, *id)).collect::<Vec<_>>())
    }

    /// People scattered over faces 0, 1 and 3: (longitude, how many) for each.
    fn people(old: &GeoshardMap, faces: &[(f64, u64)]) -> (CellLoads, Vec<GeoPoint>) {
        let mut random = Random::new(7);
        let mut loads = CellLoads::within(12, old);
        let mut points = Vec::new();
        for &(lon, count) in faces {
            for _ in 0..count {
                let (lat, lon) = (random.share() * 60.0 - 30.0, lon + random.share() * 60.0 - 30.0);
                let point = GeoPoint::new(lat, lon).unwrap();
                loads.add(point, 1.0).unwrap();
                points.push(point);
            }
        }
        (loads, points)
    }

    fn moved(old: &GeoshardMap, new: &GeoshardMap, points: &[GeoPoint]) -> f64 {
        points.iter().filter(|point| old.locate(**point) != new.locate(**point)).count() as f64
    }

    #[test]
    fn a_budget_is_kept_and_the_report_is_what_the_points_say() {
        let old = faces();
        let (loads, points) = people(&old, &[(0.0, 3000), (90.0, 600), (150.0, 400)]);
        let mut last = f64::INFINITY;
        for max_moved in [0.05, 0.1, 0.2, 0.4, 1.0] {
            let MapChange { map, report } =
                within_budget(&loads, &old, "new", CELLS, None, max_moved).unwrap();
            assert_eq!((map.version(), map.shards().len(), report.count), (5, 6, 6));
            assert_eq!(report.moved, moved(&old, &map, &points));
            assert!(report.share_moved <= max_moved, "{report}");
            let mut counted = vec![0.0; 6];
            for point in &points {
                counted[map.locate_index(*point)] += 1.0;
            }
            let (before, after, budget) =
                (report.before.unwrap(), report.after.unwrap(), report.budget.unwrap());
            assert_eq!(after, Balance::of(&counted));
            assert!(after.max_over_mean < before.max_over_mean && after.max_over_mean <= last);
            assert!(budget.lower_bound <= after.max_over_mean + 1e-9, "{report}");
            assert!(budget.without_budget <= after.max_over_mean + 1e-9, "{report}");
            last = after.max_over_mean;
        }
        assert!(last < 1.1, "{last}");
    }

    #[test]
    fn a_budget_that_improves_nothing_says_which_would() {
        let old = map(&[(0, "a"), (1 << 61 | 1, "b")]);
        let (loads, _) = people(&old, &[(0.0, 3000), (90.0, 1000)]);
        let error = within_budget(&loads, &old, "", CELLS, None, 0.0).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("moves at most 0%") && text.contains("1.500 times the mean"), "{text}");
        let ChangeError::NoBetter { needs: Some(needs), .. } = error else { panic!("{text}") };
        assert!(within_budget(&loads, &old, "", CELLS, None, needs - 1e-3).is_err());
        assert!(within_budget(&loads, &old, "", CELLS, None, needs + 1e-3).is_ok());

        let even = map(&[(0, "a")]);
        let error = within_budget(&loads, &even, "", CELLS, None, 1.0).unwrap_err().to_string();
        assert!(error.contains("nor is one that moves more"), "{error}");
        // One geoshard of two: the smaller one moves.
        let error = within_budget(&loads, &old, "", CELLS, Some(1..=1), 0.1).unwrap_err().to_string();
        assert!(error.contains("moves at least 25%") && error.contains("raise --max-moved"), "{error}");
        let more = within_budget(&loads, &old, "", CELLS, Some(3..=5), 0.6).unwrap().report;
        assert!(more.count > 2 && more.share_moved <= 0.6, "{more}");
    }

    #[test]
    fn a_map_with_several_ranges_a_geoshard_is_not_planned_within_a_budget() {
        let old = map(&[(0, "a"), (1 << 61 | 1, "b"), (2 << 61 | 1, "a")]);
        let (loads, _) = people(&old, &[(0.0, 300), (90.0, 100)]);
        let error = within_budget(&loads, &old, "", CELLS, None, 0.5).unwrap_err().to_string();
        assert!(error.contains("geoshard a has several ranges") && error.contains("shards split"), "{error}");
        // Ranges of one geoshard beside one another are one.
        let old = map(&[(0, "a"), (1 << 60 | 1, "a"), (1 << 61 | 1, "b")]);
        within_budget(&loads, &old, "", CELLS, None, 0.5).unwrap();
    }

    #[test]
    fn a_split_moves_the_lighter_half_and_nothing_else() {
        let old = faces();
        let (loads, points) = people(&old, &[(0.0, 2000), (90.0, 500)]);
        let MapChange { map, report } = split(&loads, &old, "new", CELLS, "s00").unwrap();
        assert_eq!((report.count_before, report.count, report.changed.len()), (6, 7, 2));
        let [half, fresh] =
            ["s00", "s06"].map(|id| points.iter().filter(|point| map.locate(**point).as_str() == id).count());
        assert!(half >= fresh && half + fresh == 2000 && half - fresh < 60, "{half} {fresh}");
        assert_eq!(report.moved, fresh as f64);
        assert_eq!(moved(&old, &map, &points), fresh as f64);
    }

    #[test]
    fn a_geoshard_of_two_ranges_may_be_split_between_them() {
        let old = map(&[(0, "a"), (1 << 61 | 1, "b"), (3 << 61 | 1, "a")]);
        let (loads, points) = people(&old, &[(0.0, 400), (90.0, 100), (180.0 - 31.0, 450)]);
        let MapChange { map, report } = split(&loads, &old, "", CELLS, "a").unwrap();
        assert_eq!(report.moved, moved(&old, &map, &points));
        let before = report.changed[0].before.unwrap();
        assert!((report.moved - before / 2.0).abs() < 20.0, "{report}");
        assert_eq!(map.shards().len(), 3);
    }

    #[test]
    fn what_can_not_be_split_says_why() {
        let old = faces();
        let mut loads = CellLoads::within(12, &old);
        loads.add(GeoPoint::new(1.0, 1.0).unwrap(), 5.0).unwrap();
        let refusal = |shard: &str| split(&loads, &old, "", CELLS, shard).unwrap_err().to_string();
        assert!(refusal("s00").contains("one S2 cell of level"), "{}", refusal("s00"));
        assert!(refusal("s01").contains("no point with a load"), "{}", refusal("s01"));
        assert!(refusal("x").contains("no geoshard \"x\"; it has s00, s01"), "{}", refusal("x"));
        let level = split(&loads, &old, "", CellOptions { level: 13, ..CELLS }, "s00").unwrap_err();
        assert!(level.to_string().contains("level 13"));
    }

    #[test]
    fn a_merge_keeps_the_id_with_more_load_and_only_of_neighbours() {
        let old = faces();
        let (loads, points) = people(&old, &[(0.0, 10), (90.0, 500)]);
        let MapChange { map, report } = merge(Some(&loads), &old, "", "s00", "s01").unwrap();
        assert_eq!((report.count, report.moved, moved(&old, &map, &points)), (5, 10.0, 10.0));
        assert_eq!(map.locate(GeoPoint::new(0.0, 0.0).unwrap()).as_str(), "s01");
        // Without load the first keeps its id.
        let MapChange { map, report } = merge(None, &old, "", "s00", "s01").unwrap();
        assert_eq!(map.locate(GeoPoint::new(0.0, 90.0).unwrap()).as_str(), "s00");
        assert_eq!((report.before, report.changed.len()), (None, 2));

        let refusal = |a: &str, b: &str| merge(None, &old, "", a, b).unwrap_err().to_string();
        assert!(refusal("s01", "s03").ends_with("next to s01 are s00, s02"), "{}", refusal("s01", "s03"));
        assert!(refusal("s01", "s01").contains("with itself"));
        assert!(refusal("s01", "s9").contains("no geoshard \"s9\""));
    }
}
