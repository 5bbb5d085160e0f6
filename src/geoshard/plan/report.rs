//! The effects of a planned map: balance of load, border crossings, geoshards per circle.

use std::fmt;

use s2::latlng::LatLng;
use serde::Serialize;

use super::{By, MapPlan, Tried, WalkedCell};
use crate::base::figures::{count, grouped};
use crate::base::geo::{Distance, EARTH_RADIUS_METRES, GeoPoint};
use crate::base::ids::ShardId;
use crate::geoshard::cell::share_of_globe;
use crate::geoshard::cities::largest_cities;
use crate::geoshard::cover::{Shape, cover};
use crate::geoshard::load::amount;
use crate::geoshard::map::GeoshardMap;
use crate::geoshard::tracks::Crossings;

/// Radii of the sampled circles, in miles.
const RADII_MILES: [u32; 3] = [5, 25, 100];
const METRES_PER_MILE: f64 = 1609.344;
/// Circles of each radius.
const CENTRES: u32 = 10_000;

/// The report of a plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanReport {
    /// The map's name.
    pub name: String,
    /// The map's version.
    pub version: u64,
    /// Points used for planning.
    pub points: u64,
    /// Their load.
    pub load: f64,
    /// Level of the cells to cut between.
    pub level: u8,
    /// Number of those cells.
    pub cells: usize,
    /// Level of the smallest of them.
    pub smallest_level: u64,
    /// The criterion.
    pub by: By,
    /// Every count tried.
    pub tried: Vec<Tried>,
    /// The count kept.
    pub kept: usize,
    /// Its geoshards, along the curve.
    pub shards: Vec<PlannedShard>,
    /// Geoshards touched by circles.
    pub circles: Vec<CircleReport>,
    /// Border crossings of tracks, if any.
    pub crossings: Option<Crossings>,
}

/// One geoshard of a plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlannedShard {
    /// Its id.
    pub shard: ShardId,
    /// Its largest city, if it has one of the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub around: Option<&'static str>,
    /// Its load.
    pub load: f64,
    /// Its load over the mean.
    pub over_mean: f64,
    /// Its points: documents, if each point is one.
    pub points: u64,
    /// Occupied cells.
    pub cells: usize,
    /// Its area.
    pub area_km2: f64,
}

/// Number of geoshards touched by circles of one radius, centred by load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CircleReport {
    /// Their radius.
    pub radius_miles: u32,
    /// The mean.
    pub mean: f64,
    /// 99th percentile.
    pub p99: usize,
    /// Maximum.
    pub max: usize,
    /// Share of circles that touch one geoshard only, 0 to 1.
    pub share_of_one: f64,
}

impl MapPlan {
    /// Reports on this plan and the `map` made of it.
    pub fn report(&self, map: &GeoshardMap, crossings: Option<Crossings>) -> PlanReport {
        let load: f64 = self.finest.iter().map(|place| place.load).sum();
        let mean = load / self.count() as f64;
        let cities = largest_cities(map);
        let around = |shard: &ShardId| cities[map.shards().partition_point(|known| known < shard)];
        let ends = self.starts.iter().skip(1).copied().chain([self.cells.len()]);
        let shards = self.starts.iter().zip(ends).zip(map.ranges());
        let shards = shards.map(|((&start, end), (range, shard))| {
            let cells = &self.cells[start..end];
            let load: f64 = cells.iter().map(|cell| cell.load).sum();
            PlannedShard {
                shard: shard.clone(),
                around: around(shard),
                load,
                over_mean: load / mean,
                points: cells.iter().map(|cell| cell.points).sum(),
                cells: cells.len(),
                area_km2: share_of_globe(range)
                    * 4.0
                    * std::f64::consts::PI
                    * (EARTH_RADIUS_METRES / 1e3).powi(2),
            }
        });
        PlanReport {
            name: map.name().to_owned(),
            version: map.version(),
            points: self.finest.iter().map(|place| place.points).sum(),
            load,
            level: self.level,
            cells: self.cells.len(),
            smallest_level: self.cells.iter().map(|cell| cell.cell.level()).max().unwrap_or_default(),
            by: self.by,
            tried: self.tried.clone(),
            kept: self.count(),
            shards: shards.collect(),
            circles: RADII_MILES.map(|miles| circles(map, &self.finest, miles)).to_vec(),
            crossings,
        }
    }
}

/// Circles around the centres of places, as many per place as its load demands.
fn circles(map: &GeoshardMap, places: &[WalkedCell], radius_miles: u32) -> CircleReport {
    let total: f64 = places.iter().map(|place| place.load).sum();
    let step = total / f64::from(CENTRES);
    let mut touched: Vec<usize> = Vec::new();
    let mut passed = 0.0;
    // Evenly spaced along the load: deterministic without a seed.
    let mut centres = (0..CENTRES).map(|number| (f64::from(number) + 0.5) * step).peekable();
    for place in places {
        passed += place.load;
        let mut around = 0;
        while centres.next_if(|&at| at < passed).is_some() {
            around += 1;
        }
        if around == 0 {
            continue;
        }
        let middle = LatLng::from(place.cell);
        let centre = GeoPoint::new(middle.lat.deg(), middle.lng.deg());
        let radius = Distance::from_metres(f64::from(radius_miles) * METRES_PER_MILE);
        let (Ok(centre), Ok(radius)) = (centre, radius) else { continue };
        touched.extend(std::iter::repeat_n(cover(map, &Shape::circle(centre, radius)).len(), around));
    }
    touched.sort_unstable();
    let count = touched.len().max(1) as f64;
    CircleReport {
        radius_miles,
        mean: touched.iter().sum::<usize>() as f64 / count,
        p99: touched.get(touched.len() * 99 / 100).copied().unwrap_or_default(),
        max: touched.last().copied().unwrap_or_default(),
        share_of_one: touched.partition_point(|&shards| shards <= 1) as f64 / count,
    }
}

impl fmt::Display for PlanReport {
    /// The answer first: the map, how even it is, its geoshards.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, version, points, cells, level, kept, .. } = self;
        let (points, load) = (count(*points), amount(self.load));
        writeln!(
            f,
            "map {name:?}, version {version}: {kept} geoshards, planned by {points} points with load {load}"
        )?;
        if let Some(Tried { best, greedy, .. }) = self.tried.iter().find(|tried| tried.count == *kept) {
            writeln!(
                f,
                "the fullest has {:.3} times the mean load; coefficient of variation {:.3} % (a greedy cut: {:.3} %)",
                best.max_over_mean,
                best.cv * 100.0,
                greedy.cv * 100.0
            )?;
        }
        writeln!(
            f,
            "cut between {} cells of level {level} to {}; of {} counts, the one with the least {}",
            count(*cells as u64),
            self.smallest_level,
            self.tried.len(),
            match self.by {
                By::Cv => "coefficient of variation (sd / mean)",
                By::Sd => "standard deviation",
            }
        )?;

        let ids = self.shards.iter().map(|shard| shard.shard.as_str().len());
        let wide = ids.chain(["shard".len()]).max().unwrap_or_default();
        writeln!(f, "\n{:wide$}          load  of mean     points   cells     area km²  around", "shard")?;
        for PlannedShard { shard, around, load, over_mean, points, cells, area_km2 } in &self.shards {
            let line = format!(
                "{:wide$}  {:>12}  {over_mean:>7.3}  {:>9}  {:>6}  {:>11}  {}",
                shard.as_str(),
                amount(*load),
                count(*points),
                count(*cells as u64),
                grouped(&format!("{area_km2:.0}")),
                around.unwrap_or_default()
            );
            writeln!(f, "{}", line.trim_end())?;
        }

        let centres = count(u64::from(CENTRES));
        writeln!(f, "\ngeoshards that a circle touches, {centres} circles of each radius where the load is")?;
        writeln!(f, "radius       mean  p99  max  one only")?;
        for CircleReport { radius_miles, mean, p99, max, share_of_one } in &self.circles {
            let one = share_of_one * 100.0;
            writeln!(f, "{radius_miles:>3} miles  {mean:>7.3}  {p99:>3}  {max:>3}  {one:>6.1} %")?;
        }
        if let Some(crossings) = &self.crossings {
            writeln!(f, "\n{crossings}")?;
        }
        Ok(())
    }
}

/// The counts that were tried, as a table.
#[derive(Debug, Clone, Copy)]
pub struct TriedCounts<'a>(pub &'a PlanReport);

impl fmt::Display for TriedCounts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "           best cut                          greedy cut")?;
        writeln!(f, "count            sd     cv %  max/mean            sd     cv %  max/mean")?;
        for Tried { count, best, greedy } in &self.0.tried {
            let mark = if *count == self.0.kept { "  <- kept" } else { "" };
            writeln!(
                f,
                "{count:>5}  {:>12}  {:>7.3}  {:>8.3}  {:>12}  {:>7.3}  {:>8.3}{mark}",
                amount(best.sd),
                best.cv * 100.0,
                best.max_over_mean,
                amount(greedy.sd),
                greedy.cv * 100.0,
                greedy.max_over_mean
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CellLoads, Naming, PlanOptions};
    use super::*;

    fn report() -> PlanReport {
        let mut loads = CellLoads::new(12);
        // A hundred people in each of four places far from any border, and one person beside the edge of face 0.
        for (lat, lon, load) in [
            (20.0, 10.0, 100.0),
            (20.0, 100.0, 100.0),
            (75.0, 20.0, 100.0),
            (20.0, 170.0, 100.0),
            (20.0, -44.97, 1.0),
        ] {
            loads.add(GeoPoint::new(lat, lon).unwrap(), load).unwrap();
        }
        let options = PlanOptions { level: 7, split_above: 1.0, counts: 3..=4, by: By::Cv };
        let plan = MapPlan::make(&loads, &options).unwrap();
        let map = plan.map(3, "four", &Naming::Fresh).unwrap();
        plan.report(&map, None)
    }

    #[test]
    fn report_adds_up() {
        let report = report();
        assert_eq!((report.kept, report.points, report.load), (4, 5, 401.0));
        assert_eq!(report.shards.iter().map(|shard| shard.load).sum::<f64>(), 401.0);
        assert_eq!(report.shards.iter().map(|shard| shard.points).sum::<u64>(), 5);
        assert_eq!(report.shards.iter().map(|shard| shard.cells).sum::<usize>(), report.cells);
        let area: f64 = report.shards.iter().map(|shard| shard.area_km2).sum();
        assert!((area / 510_064_000.0 - 1.0).abs() < 2e-3, "{area}");
    }

    #[test]
    fn circles_are_weighted_by_the_load_at_their_centre() {
        // Only around the one person near the edge do small circles touch two: 1 of 401.
        let report = report();
        let small = &report.circles[0];
        assert_eq!((small.radius_miles, small.p99, small.max), (5, 1, 2), "{report}");
        assert!((small.share_of_one - 400.0 / 401.0).abs() < 1e-3, "{}", small.share_of_one);
        assert!((small.mean - (1.0 + 1.0 / 401.0)).abs() < 1e-3, "{}", small.mean);
    }

    #[test]
    fn report_begins_with_the_answer_and_shows_every_geoshard_and_on_request_every_count() {
        let report = report();
        let text = report.to_string();
        assert!(
            text.starts_with("map \"four\", version 3: 4 geoshards, planned by 5 points with load 401\n")
        );
        assert!(text.lines().nth(1).unwrap().starts_with("the fullest has 1.0"), "{text}");
        let counts = TriedCounts(&report).to_string();
        assert_eq!((counts.matches("<- kept").count(), counts.lines().count()), (1, 4), "{counts}");
        for shard in ["s00", "s01", "s02", "s03"] {
            assert_eq!(text.matches(shard).count(), 1, "{text}");
        }
    }
}
