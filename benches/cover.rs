//! How long a cover takes, on the sample map: `cargo bench --bench cover`. docs/cover.md has figures.

#![expect(clippy::unwrap_used, reason = "a benchmark that fails is one that does not run")]

use std::path::Path;

use divan::Bencher;
use geofold::base::geo::{Distance, GeoPoint};
use geofold::base::random::Random;
use geofold::geoshard::GeoshardMap;
use geofold::geoshard::cover::{Shape, cover};
use s2::cellid::CellID;
use s2::latlng::LatLng;

fn main() {
    divan::main();
}

fn sample() -> GeoshardMap {
    GeoshardMap::load(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/config/map-55.json"))).unwrap()
}

fn anywhere(random: &mut Random) -> GeoPoint {
    let lat = (2.0 * random.share() - 1.0).asin().to_degrees();
    GeoPoint::new(lat, 360.0 * random.share() - 180.0).unwrap()
}

/// Covers 1,000 shapes in turn.
fn run(bencher: Bencher<'_, '_>, map: &GeoshardMap, shape: impl FnMut(u64) -> Shape) {
    let shapes: Vec<Shape> = (0..1000).map(shape).collect();
    let mut turn = shapes.iter().cycle();
    bencher.with_inputs(|| turn.next().unwrap()).bench_local_values(|shape| cover(map, shape));
}

#[divan::bench(args = ["1km", "25mi", "200km", "2000km", "12000km"])]
fn circle_anywhere(bencher: Bencher<'_, '_>, radius: &str) {
    let (mut random, radius): (_, Distance) = (Random::new(1), radius.parse().unwrap());
    run(bencher, &sample(), |_| Shape::circle(anywhere(&mut random), radius));
}

/// The centre is where one geoshard ends and another begins.
#[divan::bench(args = ["1km", "25mi", "200km"])]
fn circle_on_a_border(bencher: Bencher<'_, '_>, radius: &str) {
    let (map, radius): (_, Distance) = (sample(), radius.parse().unwrap());
    let borders: Vec<u64> = map.ranges().skip(1).map(|(range, _)| range.start).collect();
    run(bencher, &map, |n| {
        let place = LatLng::from(CellID(borders[usize::try_from(n).unwrap() % borders.len()]));
        Shape::circle(GeoPoint::new(place.lat.deg(), place.lng.deg()).unwrap(), radius)
    });
}

/// A map with the most ranges that are allowed, each an arbitrary piece of the curve.
#[divan::bench(args = ["25mi", "2000km"])]
fn circle_on_a_map_of_10000_ranges(bencher: Bencher<'_, '_>, radius: &str) {
    let (mut random, radius): (_, Distance) = (Random::new(2), radius.parse().unwrap());
    let mut starts: Vec<u64> = (1..10_000).map(|_| random.below(6 << 61) | 1).collect();
    starts.extend([0]);
    starts.sort_unstable();
    starts.dedup();
    let mut shard = || geofold::base::ids::ShardId::new(&format!("s{}", random.below(50))).unwrap();
    let map =
        GeoshardMap::new(1, "many", starts.into_iter().map(|start| (start, shard())).collect()).unwrap();
    let mut random = Random::new(3);
    run(bencher, &map, |_| Shape::circle(anywhere(&mut random), radius));
}

/// Each side in degrees.
#[divan::bench(args = [0.5, 20.0])]
fn box_anywhere(bencher: Bencher<'_, '_>, side: f64) {
    let mut random = Random::new(4);
    run(bencher, &sample(), |_| {
        let (lat, lon) = (160.0 * random.share() - 80.0 - side / 2.0, 360.0 * random.share() - 180.0);
        let right = if lon + side > 180.0 { lon + side - 360.0 } else { lon + side };
        Shape::bounding_box((lat + side).min(90.0), lon, lat.max(-90.0), right).unwrap()
    });
}

/// About 1 degree across.
#[divan::bench(args = [8, 1000])]
fn polygon_anywhere(bencher: Bencher<'_, '_>, vertices: u32) {
    let mut random = Random::new(5);
    run(bencher, &sample(), |_| {
        let (lat, lon) = (160.0 * random.share() - 80.0, 360.0 * random.share() - 180.0);
        let mut vertex = |n: u32| {
            let (angle, far) =
                (std::f64::consts::TAU * f64::from(n) / f64::from(vertices), 0.3 + 0.2 * random.share());
            (lat + far * angle.sin(), lon + far * angle.cos())
        };
        Shape::polygon((0..vertices).map(&mut vertex).collect()).unwrap()
    });
}

/// The most vertices that are allowed, all along the southern edge of the north face, where one geoshard ends: about
/// the most work that there is.
#[divan::bench]
fn polygon_of_1000_vertices_along_a_border(bencher: Bencher<'_, '_>) {
    let ranges = (0..6_u64).map(|face| {
        let start = if face == 0 { 0 } else { (face << 61) | 1 };
        (start, geofold::base::ids::ShardId::new(&format!("face{face}")).unwrap())
    });
    let map = GeoshardMap::new(1, "faces", ranges.collect()).unwrap();
    // So far off it that the other geoshard can just be told apart, by the smallest cells.
    let vertex = |n: u32| {
        let lon = f64::from(n) / 998.0 * 80.0 - 40.0;
        (lon.to_radians().cos().atan().to_degrees() - 0.15, lon)
    };
    let mut vertices: Vec<(f64, f64)> = (0..999).map(vertex).collect();
    vertices.push((0.0, 0.0));
    let shape = Shape::polygon(vertices).unwrap();
    run(bencher, &map, |_| shape.clone());
}
