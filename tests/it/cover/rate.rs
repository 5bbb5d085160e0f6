//! How many geoshards are in a cover without need, measured. A small run says that there is none; the table in
//! docs/cover.md is of a large one: `cargo test --test it cover:: -- --ignored --nocapture table_of_false_positives`.

use std::collections::BTreeSet;
use std::path::Path;

use geofold::base::geo::GeoPoint;
use geofold::base::ids::ShardId;
use geofold::base::random::Random;
use geofold::geoshard::GeoshardMap;
use geofold::geoshard::cover::{Shape, cover};
use s2::cellid::CellID;
use s2::latlng::LatLng;

use super::reference::{away, below, circle, distance_to_shard, point, sign, turned};

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/map-55.json");

#[derive(Default)]
struct Rate {
    shapes: u32,
    /// Geoshards in their covers.
    covered: usize,
    /// Those that have no point within the shape.
    needless: usize,
}

fn sample() -> GeoshardMap {
    GeoshardMap::load(Path::new(SAMPLE)).unwrap()
}

fn anywhere(random: &mut Random) -> GeoPoint {
    point(sign(random).asin().to_degrees(), 180.0 * sign(random))
}

/// Within about `metres` of where one geoshard ends and another begins.
fn near_a_border(random: &mut Random, map: &GeoshardMap, metres: f64) -> GeoPoint {
    let borders: Vec<u64> = map.ranges().skip(1).map(|(range, _)| range.start).collect();
    let place = LatLng::from(CellID(borders[below(random, borders.len())]));
    let distance = metres * random.share();
    away(random, point(place.lat.deg(), place.lng.deg()), distance)
}

/// Circles, half of them about a border of the map. A geoshard is there without need if all of its cells are farther away
/// than the radius, by the distances of the reference.
fn circles(map: &GeoshardMap, metres: f64, count: u32) -> Rate {
    let mut random = Random::new(11);
    let mut rate = Rate::default();
    for n in 0..count {
        let centre = match n % 2 {
            0 => anywhere(&mut random),
            _ => near_a_border(&mut random, map, 2.0 * metres),
        };
        let found = cover(map, &circle(centre, metres));
        rate.shapes += 1;
        rate.covered += found.len();
        rate.needless += found.iter().filter(|shard| distance_to_shard(map, shard, centre) > metres).count();
    }
    rate
}

/// Boxes of a size in degrees, half of them about a border. A geoshard counts as there without need if none of a lattice of
/// 200 by 200 points within the box is in it, so this is rather too many.
fn boxes(map: &GeoshardMap, degrees: f64, count: u32) -> Rate {
    let mut random = Random::new(12);
    let mut rate = Rate::default();
    for n in 0..count {
        let centre = match n % 2 {
            0 => anywhere(&mut random),
            _ => near_a_border(&mut random, map, degrees * 111_000.0),
        };
        let (top, bottom) =
            ((centre.lat() + degrees / 2.0).min(90.0), (centre.lat() - degrees / 2.0).max(-90.0));
        let left = turned(centre.lon() - degrees / 2.0);
        let shape = Shape::bounding_box(top, left, bottom, turned(left + degrees)).unwrap();
        let found = cover(map, &shape);
        let at = |i: u32, j: u32| {
            let lat = bottom + (top - bottom) * f64::from(i) / 199.0;
            point(lat, turned(left + degrees * f64::from(j) / 199.0))
        };
        let seen: BTreeSet<&ShardId> =
            (0..200).flat_map(|i| (0..200).map(move |j| (i, j))).map(|(i, j)| map.locate(at(i, j))).collect();
        rate.shapes += 1;
        rate.covered += found.len();
        rate.needless += found.iter().filter(|shard| !seen.contains(shard)).count();
    }
    rate
}

#[test]
fn covers_of_circles_have_no_needless_geoshard_on_the_sample_map() {
    let map = sample();
    for metres in [1_000.0, 40_233.6, 200_000.0, 2_000_000.0] {
        let rate = circles(&map, metres, 100);
        assert!(rate.covered > 100);
        assert_eq!(rate.needless, 0, "{metres} m");
    }
}

#[test]
#[ignore = "it measures for minutes"]
fn table_of_false_positives() {
    let map = sample();
    println!("| shape | shapes | geoshards in their covers | without need |\n|---|---|---|---|");
    let line = |shape: String, rate: &Rate| {
        println!("| {shape} | {} | {} | {} |", rate.shapes, rate.covered, rate.needless);
    };
    for (name, metres) in [
        ("1 km", 1e3),
        ("25 mi", 40_233.6),
        ("100 km", 1e5),
        ("200 km", 2e5),
        ("1,000 km", 1e6),
        ("5,000 km", 5e6),
    ] {
        line(format!("circle of {name}"), &circles(&map, metres, 2000));
    }
    for degrees in [0.1, 1.0, 10.0, 40.0] {
        line(format!("box of {degrees}°"), &boxes(&map, degrees, 400));
    }
}
