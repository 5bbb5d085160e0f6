//! What the cover is compared with: Lucene's rounding, the haversine formula, comparisons of degrees, the distance to a
//! geoshard's cells; and places and maps to try it with.

use std::collections::BTreeSet;
use std::f64::consts::PI;

use geofold::base::geo::{Distance, GeoPoint};
use geofold::base::ids::ShardId;
use geofold::base::random::{Random, seed_of_test};
use geofold::geoshard::GeoshardMap;
use geofold::geoshard::cell::{END_OF_GLOBE, leaf, tiles};
use geofold::geoshard::cover::Shape;
use s2::cell::Cell;
use s2::cellid::CellID;
use s2::edgeutil::distance_from_segment;
use s2::latlng::LatLng;
use s2::point::Point;

/// Elasticsearch's.
const RADIUS: f64 = 6_371_008.771_4;

/// Of the test's seed, which is printed, so that a failure can be replayed.
pub fn random(test: &str) -> Random {
    let seed = seed_of_test();
    println!("replay with: GEOFOLD_SEED={seed} cargo test --test it cover::{test}");
    Random::new(seed)
}

pub fn point(lat: f64, lon: f64) -> GeoPoint {
    GeoPoint::new(lat.clamp(-90.0, 90.0), lon.clamp(-180.0, 180.0)).unwrap()
}

/// From -1 to 1.
pub fn sign(random: &mut Random) -> f64 {
    2.0 * random.share() - 1.0
}

/// From 10^`low` to 10^`high`, each power as likely.
pub fn power(random: &mut Random, low: f64, high: f64) -> f64 {
    10_f64.powf(low + (high - low) * random.share())
}

pub fn below(random: &mut Random, n: usize) -> usize {
    usize::try_from(random.below(n as u64)).unwrap()
}

pub fn one_of(random: &mut Random, choice: &[f64]) -> f64 {
    choice[below(random, choice.len())]
}

/// Anywhere, or at and around the places where projections go wrong.
pub fn centre(random: &mut Random) -> GeoPoint {
    let corner = (1.0_f64 / 2.0_f64.sqrt()).atan().to_degrees();
    if random.below(2) == 0 {
        return point((sign(random)).asin().to_degrees(), 180.0 * sign(random));
    }
    let lat = one_of(random, &[-90.0, -corner, -45.0, 0.0, corner, 45.0, 90.0]);
    let lon = one_of(random, &[-180.0, -135.0, -90.0, -45.0, 0.0, 45.0, 90.0, 135.0, 180.0]);
    let off = if random.below(2) == 0 { 0.0 } else { power(random, -9.0, 1.0) };
    point(lat + off * sign(random), lon + off * sign(random))
}

/// The point at a distance in metres from another, in a random direction.
pub fn away(random: &mut Random, from: GeoPoint, metres: f64) -> GeoPoint {
    let (lat, lon, angle, bearing) =
        (from.lat().to_radians(), from.lon().to_radians(), metres / RADIUS, PI * sign(random));
    let north = [-lat.sin() * lon.cos(), -lat.sin() * lon.sin(), lat.cos()];
    let east = [-lon.sin(), lon.cos(), 0.0];
    let up = [lat.cos() * lon.cos(), lat.cos() * lon.sin(), lat.sin()];
    let [x, y, z] = [0, 1, 2]
        .map(|i| angle.cos() * up[i] + angle.sin() * (bearing.cos() * north[i] + bearing.sin() * east[i]));
    point(z.atan2(x.hypot(y)).to_degrees(), y.atan2(x).to_degrees())
}

/// Lucene's number for a coordinate: 32 bits, rounded down.
#[expect(clippy::cast_possible_truncation, reason = "the steps of coordinates fit 33 bits")]
pub fn encode(degrees: f64, end: f64) -> i64 {
    let steps = (degrees / (2.0 * end) * 4_294_967_296.0).floor() as i64;
    steps.min((1 << 31) - 1)
}

pub fn decode(steps: i64, end: f64) -> f64 {
    steps as f64 * (2.0 * end) / 4_294_967_296.0
}

/// Latitude and longitude of a point as Lucene stores it.
pub fn stored(point: GeoPoint) -> (f64, f64) {
    (decode(encode(point.lat(), 90.0), 90.0), decode(encode(point.lon(), 180.0), 180.0))
}

pub fn haversine((lat_1, lon_1): (f64, f64), (lat_2, lon_2): (f64, f64)) -> f64 {
    let half = |a: f64, b: f64| ((a - b).to_radians() / 2.0).sin().powi(2);
    let h = half(lat_1, lat_2) + lat_1.to_radians().cos() * lat_2.to_radians().cos() * half(lon_1, lon_2);
    2.0 * RADIUS * h.sqrt().min(1.0).asin()
}

/// How far Lucene's distance may be from the true one, as its documentation has it.
pub fn sloppiness(metres: f64) -> f64 {
    if metres < 1_000_000.0 { 1e-5 } else { 0.4 }
}

/// A map that is cut at these points: at their leaf cells or at a random one of the cells around those. Each range has an
/// owner of its own, so that a cell which is left out cannot hide behind another.
pub fn map_cut_at(random: &mut Random, points: &[GeoPoint]) -> GeoshardMap {
    let mut cuts = BTreeSet::new();
    for &at in points {
        let cell = CellID(leaf(at));
        match random.below(3) {
            0 => cuts.extend([cell.0, cell.0 + 2]),
            1 => {
                let cell = cell.parent(random.below(31));
                cuts.extend([cell.range_min().0, cell.range_max().0 + 2]);
            }
            _ => cuts.extend([cell.0]),
        }
    }
    map_of(cuts)
}

pub fn map_of(cuts: BTreeSet<u64>) -> GeoshardMap {
    let starts = std::iter::once(0).chain(cuts.into_iter().filter(|cut| (3..END_OF_GLOBE).contains(cut)));
    let ranges = starts.enumerate().map(|(n, start)| (start, ShardId::new(&format!("s{n}")).unwrap()));
    GeoshardMap::new(1, "random", ranges.collect()).unwrap()
}

/// Panics if a point's geoshard is not in the cover.
pub fn assert_covered(map: &GeoshardMap, found: &[ShardId], at: GeoPoint, shape: &Shape) {
    let shard = map.locate(at);
    assert!(
        found.binary_search(shard).is_ok(),
        "{at:?} is a hit of {shape:?}, but its geoshard {shard} is not in the cover {found:?}\nof the map {}",
        map.to_json()
    );
}

pub fn circle(centre: GeoPoint, metres: f64) -> Shape {
    Shape::circle(centre, Distance::from_metres(metres).unwrap())
}

/// A radius: 0, tiny, usual, huge.
pub fn some_radius(random: &mut Random) -> f64 {
    match random.below(12) {
        0 => 0.0,
        1 => 1e7 * (1.0 + 1e-9 * sign(random)),
        2 => 20_015_000.0 * (1.0 + 2e-3 * sign(random)),
        _ => power(random, -3.0, 7.31),
    }
}

/// Metres from a point to the nearest of a geoshard's cells, by the crate's own cells and segments.
pub fn distance_to_shard(map: &GeoshardMap, shard: &ShardId, from: GeoPoint) -> f64 {
    let from = Point::from(LatLng::from_degrees(from.lat(), from.lon()));
    let to_cell = |id| {
        let cell = Cell::from(id);
        if cell.contains_point(&from) {
            return 0.0;
        }
        let corners = cell.vertices();
        let to_side = |n: usize| distance_from_segment(&from, &corners[n], &corners[(n + 1) % 4]).rad();
        (0..4).map(to_side).fold(f64::INFINITY, f64::min) * RADIUS
    };
    let own = map.ranges().filter(|(_, owner)| *owner == shard);
    own.flat_map(|(range, _)| tiles(range)).map(to_cell).fold(f64::INFINITY, f64::min)
}

/// The same longitude, within ±180.
pub fn turned(lon: f64) -> f64 {
    if lon > 180.0 {
        lon - 360.0
    } else if lon < -180.0 {
        lon + 360.0
    } else {
        lon
    }
}

/// Whether `geo_bounding_box` finds a point: Lucene rounds the sides (top, left, bottom, right) as it rounds the point.
pub fn within_box(at: GeoPoint, [top, left, bottom, right]: [f64; 4]) -> bool {
    let [lat, top, bottom] = [at.lat(), top, bottom].map(|lat| encode(lat, 90.0));
    let [lon, left, right] = [at.lon(), left, right].map(|lon| encode(lon, 180.0));
    let in_lon = if left <= right { left <= lon && lon <= right } else { left <= lon || lon <= right };
    in_lon && bottom <= lat && lat <= top
}

/// Degrees in the plane from a point to a side.
pub fn to_side(lat: f64, lon: f64, from: (f64, f64), to: (f64, f64)) -> f64 {
    let (d_lat, d_lon) = (to.0 - from.0, to.1 - from.1);
    let length2 = d_lat * d_lat + d_lon * d_lon;
    let along = ((lat - from.0) * d_lat + (lon - from.1) * d_lon) / length2;
    let along = if length2 > 0.0 { along.clamp(0.0, 1.0) } else { 0.0 };
    (lat - from.0 - along * d_lat).hypot(lon - from.1 - along * d_lon)
}

/// By the angles that the sides are seen under: odd turns are inside. Points as good as on a side are too.
pub fn polygon_has(vertices: &[(f64, f64)], lat: f64, lon: f64) -> bool {
    let sides = || vertices.iter().zip(vertices.iter().cycle().skip(1));
    if sides().any(|(from, to)| to_side(lat, lon, *from, *to) < 1e-7) {
        return true;
    }
    let crossed = |((lat_1, lon_1), (lat_2, lon_2)): &(&(f64, f64), &(f64, f64))| {
        // Northwards from the point.
        (*lon_1 <= lon) != (*lon_2 <= lon) && {
            let share = (lon - lon_1) / (lon_2 - lon_1);
            lat_1 * (1.0 - share) + lat_2 * share > lat
        }
    };
    sides().filter(crossed).count() % 2 == 1
}
