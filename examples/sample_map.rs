//! Makes `config/map-55.json`: a world of 55 geoshards of about equal load, for demos and first steps.
//!
//! `cargo run --example sample_map > config/map-55.json`; the table of loads goes to standard error.
//!
//! Load is people. Each city scatters points about itself; they are counted in S2 cells of level 8 (about 36 km wide),
//! the cells are walked along the Hilbert curve, and the walk is cut into 55 stretches with the least sum of squared
//! loads. Same input, same map, on every run.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Context, Result};
use geofold::base::geo::GeoPoint;
use geofold::base::ids::ShardId;
use geofold::geoshard::cell;
use geofold::geoshard::cities::{CITIES, City};
use geofold::geoshard::map::GeoshardMap;
use geofold::geoshard::plan::cut::BestCuts;
use s2::cellid::CellID;

const SHARDS: usize = 55;
const LEVEL: u64 = 8;
/// One scattered point stands for this many thousand people.
const THOUSANDS_PER_POINT: u32 = 10;
const SEED: u64 = 55;

struct Random(geofold::base::random::Random);

impl Random {
    fn uniform(&mut self) -> f64 {
        let [.., a, b, c, d] = self.0.bits().to_be_bytes();
        f64::from(u32::from_be_bytes([a, b, c, d])) / f64::from(u32::MAX)
    }

    /// Near enough to a standard Gaussian, without functions whose last bits differ between machines.
    fn gaussian(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

/// People by level-8 cell, in curve order.
fn loads_by_cell() -> Result<Vec<(CellID, u64)>> {
    const KM_PER_DEGREE: f64 = 111.2;
    let mut random = Random(geofold::base::random::Random::new(SEED));
    let mut loads = BTreeMap::new();
    for City(_, lat, lon, thousands) in CITIES {
        for point in 0..thousands / THOUSANDS_PER_POINT {
            // Three of four live in town, the fourth in the country around it.
            let sigma_km = if point % 4 == 0 { 150.0 } else { 25.0 };
            let north = random.gaussian() * sigma_km / KM_PER_DEGREE;
            let east = random.gaussian() * sigma_km / KM_PER_DEGREE / lat.to_radians().cos();
            let lon = (lon + east + 540.0).rem_euclid(360.0) - 180.0;
            let point = GeoPoint::new((lat + north).clamp(-90.0, 90.0), lon)?;
            *loads.entry(CellID(cell::leaf(point)).parent(LEVEL)).or_default() += 1;
        }
    }
    Ok(loads.into_iter().collect())
}

fn main() -> Result<()> {
    let (cells, loads): (Vec<_>, Vec<_>) = loads_by_cell()?.into_iter().unzip();
    let weights: Vec<f64> = loads.iter().map(|&load| load as f64).collect();
    let starts = BestCuts::new(&weights, SHARDS).starts(SHARDS).context("fewer cells than geoshards")?;

    let mut ranges = vec![];
    for (number, &start) in starts.iter().enumerate() {
        let from = if number == 0 { 0 } else { cells[start].range_min().0 };
        ranges.push((from, ShardId::new(&format!("s{number:02}"))?));
    }
    let map = GeoshardMap::new(1, "sample world of 55", ranges)?;

    eprintln!("{} cells of level {LEVEL}\nshard  first cell  million people  largest city", cells.len());
    let ends = starts.iter().skip(1).copied().chain([loads.len()]);
    for ((&start, end), shard) in starts.iter().zip(ends).zip(map.shards()) {
        let thousands = loads[start..end].iter().sum::<u64>() * u64::from(THOUSANDS_PER_POINT);
        let mut largest = ("", 0);
        for City(name, lat, lon, people) in CITIES {
            if *people > largest.1 && map.locate(GeoPoint::new(*lat, *lon)?) == shard {
                largest = (name, *people);
            }
        }
        let people = format!("{}.{:02}", thousands / 1000, thousands % 1000 / 10);
        eprintln!("{shard:5}  {:10}  {people:>14}  {}", cells[start].to_token(), largest.0);
    }
    std::io::stdout().write_all(map.to_json().as_bytes()).context("cannot write the map to standard output")
}
