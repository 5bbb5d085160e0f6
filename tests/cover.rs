//! The cover never misses: whatever Elasticsearch would find within a shape is in one of its geoshards. A million points,
//! against a reference that shares no code with the cover: Lucene's rounding, the haversine formula, comparisons of degrees.
//!
//! Maps are made against the shape: they are cut right at points of it, so that the smallest mistake at its rim leaves a
//! geoshard out. Centres prefer poles, the antimeridian, and edges and corners of the cube's faces.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::collections::BTreeSet;
use std::f64::consts::PI;

use geofold::geo::{Distance, GeoPoint};
use geofold::geoshard::cell::{END_OF_GLOBE, leaf, tiles};
use geofold::geoshard::cover::{Shape, cover, cover_live};
use geofold::geoshard::{GeoshardMap, LiveMaps};
use geofold::ids::ShardId;
use geofold::random::Random;
use s2::cell::Cell;
use s2::cellid::CellID;
use s2::edgeutil::distance_from_segment;
use s2::latlng::LatLng;
use s2::point::Point;

/// Elasticsearch's.
const RADIUS: f64 = 6_371_008.771_4;

/// From GEOFOLD_SEED, or a new one; printed, so that a failure can be replayed.
fn random(test: &str) -> Random {
    let seed = match std::env::var("GEOFOLD_SEED") {
        Ok(seed) => seed.parse().unwrap_or_else(|_| panic!("GEOFOLD_SEED is not a number")),
        Err(_) => {
            let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
            now.as_secs() * 1_000_000 + u64::from(now.subsec_micros())
        }
    };
    println!("replay with: GEOFOLD_SEED={seed} cargo test --test cover {test}");
    Random::new(seed)
}

fn point(lat: f64, lon: f64) -> GeoPoint {
    GeoPoint::new(lat.clamp(-90.0, 90.0), lon.clamp(-180.0, 180.0)).unwrap()
}

/// From -1 to 1.
fn sign(random: &mut Random) -> f64 {
    2.0 * random.share() - 1.0
}

/// From 10^`low` to 10^`high`, each power as likely.
fn power(random: &mut Random, low: f64, high: f64) -> f64 {
    10_f64.powf(low + (high - low) * random.share())
}

fn below(random: &mut Random, n: usize) -> usize {
    usize::try_from(random.below(n as u64)).unwrap()
}

fn one_of(random: &mut Random, choice: &[f64]) -> f64 {
    choice[below(random, choice.len())]
}

/// Anywhere, or at and around the places where projections go wrong.
fn centre(random: &mut Random) -> GeoPoint {
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
fn away(random: &mut Random, from: GeoPoint, metres: f64) -> GeoPoint {
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
fn encode(degrees: f64, end: f64) -> i64 {
    let steps = (degrees / (2.0 * end) * 4_294_967_296.0).floor() as i64;
    steps.min((1 << 31) - 1)
}

fn decode(steps: i64, end: f64) -> f64 {
    steps as f64 * (2.0 * end) / 4_294_967_296.0
}

/// Latitude and longitude of a point as Lucene stores it.
fn stored(point: GeoPoint) -> (f64, f64) {
    (decode(encode(point.lat(), 90.0), 90.0), decode(encode(point.lon(), 180.0), 180.0))
}

fn haversine((lat_1, lon_1): (f64, f64), (lat_2, lon_2): (f64, f64)) -> f64 {
    let half = |a: f64, b: f64| ((a - b).to_radians() / 2.0).sin().powi(2);
    let h = half(lat_1, lat_2) + lat_1.to_radians().cos() * lat_2.to_radians().cos() * half(lon_1, lon_2);
    2.0 * RADIUS * h.sqrt().min(1.0).asin()
}

/// How far Lucene's distance may be from the true one, as its documentation has it.
fn sloppiness(metres: f64) -> f64 {
    if metres < 1_000_000.0 { 1e-5 } else { 0.4 }
}

/// A map that is cut at these points: at their leaf cells or at a random one of the cells around those. Each range has an
/// owner of its own, so that a cell which is left out can not hide behind another.
fn map_cut_at(random: &mut Random, points: &[GeoPoint]) -> GeoshardMap {
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

fn map_of(cuts: BTreeSet<u64>) -> GeoshardMap {
    let starts = std::iter::once(0).chain(cuts.into_iter().filter(|cut| (3..END_OF_GLOBE).contains(cut)));
    let ranges = starts.enumerate().map(|(n, start)| (start, ShardId::new(&format!("s{n}")).unwrap()));
    GeoshardMap::new(1, "random", ranges.collect()).unwrap()
}

/// Panics if a point's geoshard is not in the cover.
fn assert_covered(map: &GeoshardMap, found: &[ShardId], at: GeoPoint, shape: &Shape) {
    let shard = map.locate(at);
    assert!(
        found.binary_search(shard).is_ok(),
        "{at:?} is a hit of {shape:?}, but its geoshard {shard} is not in the cover {found:?}\nof the map {}",
        map.to_json()
    );
}

fn circle(centre: GeoPoint, metres: f64) -> Shape {
    Shape::circle(centre, Distance::from_metres(metres).unwrap())
}

/// A radius: 0, tiny, usual, huge.
fn some_radius(random: &mut Random) -> f64 {
    match random.below(12) {
        0 => 0.0,
        1 => 1e7 * (1.0 + 1e-9 * sign(random)),
        2 => 20_015_000.0 * (1.0 + 2e-3 * sign(random)),
        _ => power(random, -3.0, 7.31),
    }
}

#[test]
fn no_hit_of_a_circle_is_outside_of_its_cover() {
    let mut random = random("no_hit_of_a_circle");
    let mut hits = 0;
    while hits < 700_000 {
        let (centre, metres) = (centre(&mut random), some_radius(&mut random));
        // Half of the points are on the rim.
        let points: Vec<GeoPoint> = (0..400)
            .map(|n| {
                let share = match n % 4 {
                    0 => 1.0,
                    1 => 1.0 - power(&mut random, -12.0, -3.0),
                    _ => random.share().sqrt(),
                };
                away(&mut random, centre, metres * share)
            })
            .collect();
        let map = map_cut_at(&mut random, &points[..32]);
        let shape = circle(centre, metres);
        let found = cover(&map, &shape);
        for at in points {
            if haversine((centre.lat(), centre.lon()), stored(at)) <= metres + sloppiness(metres) {
                hits += 1;
                assert_covered(&map, &found, at, &shape);
            }
        }
    }
}

#[test]
fn a_hit_that_rounding_moved_over_the_rim_is_in_the_cover() {
    let mut random = random("a_hit_that_rounding_moved");
    for _ in 0..20_000 {
        let centre = centre(&mut random);
        let metres = some_radius(&mut random);
        let at = away(&mut random, centre, metres);
        // The stored point is on the rim, and counts; the one that was sent may be a centimetre outside.
        let metres = haversine((centre.lat(), centre.lon()), stored(at));
        let map = map_of(BTreeSet::from([leaf(at), leaf(at) + 2]));
        let shape = circle(centre, metres);
        assert_covered(&map, &cover(&map, &shape), at, &shape);
    }
}

/// Metres from a point to the nearest of a geoshard's cells, by the crate's own cells and segments.
fn distance_to_shard(map: &GeoshardMap, shard: &ShardId, from: GeoPoint) -> f64 {
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

#[test]
fn a_geoshard_is_in_a_circles_cover_if_and_only_if_one_of_its_cells_is_within_reach() {
    let mut random = random("a_geoshard_is_in_a_circles_cover");
    let (mut covered, mut left_out) = (0, 0);
    for _ in 0..1500 {
        let (centre, metres) = (centre(&mut random), power(&mut random, 0.0, 7.2));
        let points: Vec<GeoPoint> = (0..6)
            .map(|_| {
                let distance = metres * (0.5 + random.share());
                away(&mut random, centre, distance)
            })
            .collect();
        let map = map_cut_at(&mut random, &points);
        let shape = circle(centre, metres);
        let found = cover(&map, &shape);
        assert!(found.is_sorted());
        for shard in map.shards() {
            let distance = distance_to_shard(&map, shard, centre);
            if found.contains(shard) {
                covered += 1;
                assert!(distance < metres + 1.1, "{shard} is {distance} m away from {shape:?}: {map:?}");
            } else {
                left_out += 1;
                assert!(distance > metres + 0.9, "{shard} is {distance} m away from {shape:?}: {map:?}");
            }
        }
    }
    assert!(covered > 1000 && left_out > 1000, "{covered} {left_out}");
}

#[test]
fn no_hit_of_a_box_is_outside_of_its_cover() {
    let mut random = random("no_hit_of_a_box");
    let mut hits = 0;
    while hits < 200_000 {
        let middle = centre(&mut random);
        let (high, wide) = (power(&mut random, -8.0, 2.0), power(&mut random, -8.0, 2.26));
        let (high, wide) = (one_of(&mut random, &[0.0, high, high, high]), wide.min(180.0));
        let turned = |lon: f64| {
            if lon > 180.0 {
                lon - 360.0
            } else if lon < -180.0 {
                lon + 360.0
            } else {
                lon
            }
        };
        let (top, bottom) = (point(middle.lat() + high, 0.0).lat(), point(middle.lat() - high, 0.0).lat());
        let (left, right) = match wide > 179.0 {
            true => (-180.0, 180.0),
            false => (turned(middle.lon() - wide), turned(middle.lon() + wide)),
        };
        let shape = Shape::bounding_box(top, left, bottom, right).unwrap();
        let width = if left > right { right + 360.0 - left } else { right - left };
        let points: Vec<GeoPoint> = (0..200)
            .map(|n| {
                let mut lat = bottom + (top - bottom) * random.share();
                let mut lon = turned(left + width * random.share());
                if n % 3 == 0 {
                    lat = one_of(&mut random, &[top, bottom, top.next_up(), bottom + 2e-8]);
                }
                if n % 4 == 0 {
                    lon = one_of(&mut random, &[left, right, right + 4e-8, -180.0, 180.0]);
                }
                point(lat, lon)
            })
            .collect();
        let map = map_cut_at(&mut random, &points[..24]);
        let found = cover(&map, &shape);
        for at in points {
            let is_within = |lat: i64, lon: i64, [top, left, bottom, right]: [i64; 4]| {
                let in_lon =
                    if left <= right { left <= lon && lon <= right } else { left <= lon || lon <= right };
                in_lon && bottom <= lat && lat <= top
            };
            let sides = [encode(top, 90.0), encode(left, 180.0), encode(bottom, 90.0), encode(right, 180.0)];
            if is_within(encode(at.lat(), 90.0), encode(at.lon(), 180.0), sides) {
                hits += 1;
                assert_covered(&map, &found, at, &shape);
            }
        }
    }
}

/// Degrees in the plane from a point to a side.
fn to_side(lat: f64, lon: f64, from: (f64, f64), to: (f64, f64)) -> f64 {
    let (d_lat, d_lon) = (to.0 - from.0, to.1 - from.1);
    let length2 = d_lat * d_lat + d_lon * d_lon;
    let along = ((lat - from.0) * d_lat + (lon - from.1) * d_lon) / length2;
    let along = if length2 > 0.0 { along.clamp(0.0, 1.0) } else { 0.0 };
    (lat - from.0 - along * d_lat).hypot(lon - from.1 - along * d_lon)
}

/// By the angles that the sides are seen under: odd turns are inside. Points as good as on a side are too.
fn polygon_has(vertices: &[(f64, f64)], lat: f64, lon: f64) -> bool {
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

/// A star around a point, or one that crosses itself as it likes.
fn some_polygon(random: &mut Random) -> Vec<(f64, f64)> {
    let middle = centre(random);
    let size = power(random, -7.0, 1.95);
    let corners = 3 + random.below(9);
    let is_wild = random.below(3) == 0;
    (0..corners)
        .map(|n| {
            let angle = if is_wild { PI * sign(random) } else { 2.0 * PI * n as f64 / corners as f64 };
            let far = size * (0.1 + 0.9 * random.share());
            let lat = (middle.lat() + far * angle.sin()).clamp(-90.0, 90.0);
            (lat, middle.lon() + far * angle.cos())
        })
        .collect()
}

#[test]
fn no_hit_of_a_polygon_is_outside_of_its_cover() {
    let mut random = random("no_hit_of_a_polygon");
    let mut hits = 0;
    while hits < 150_000 {
        let vertices = some_polygon(&mut random);
        let shape = Shape::polygon(vertices.clone()).unwrap();
        let turned = |lon: f64| {
            if lon > 180.0 {
                lon - 360.0
            } else if lon < -180.0 {
                lon + 360.0
            } else {
                lon
            }
        };
        let points: Vec<GeoPoint> = (0..200)
            .map(|_| {
                // Between three vertices, or on the line between two.
                let pick = |random: &mut Random| vertices[below(random, vertices.len())];
                let [a, b, c] = [(); 3].map(|()| pick(&mut random));
                let (p, q) = (random.share(), if random.below(2) == 0 { 0.0 } else { random.share() });
                let mix = |a: f64, b: f64, c: f64| (a + p * (b - a)) * (1.0 - q) + q * c;
                point(mix(a.0, b.0, c.0), turned(mix(a.1, b.1, c.1)))
            })
            .collect();
        let map = map_cut_at(&mut random, &points[..24]);
        let found = cover(&map, &shape);
        for at in points {
            let (lat, lon) = stored(at);
            if [0.0, 360.0, -360.0].iter().any(|turn| polygon_has(&vertices, lat, lon + turn)) {
                hits += 1;
                assert_covered(&map, &found, at, &shape);
            }
        }
    }
}

#[test]
fn a_box_and_a_polygon_of_the_same_corners_have_one_cover() {
    let mut random = random("a_box_and_a_polygon");
    for _ in 0..300 {
        let (middle, size) = (centre(&mut random), power(&mut random, -4.0, 1.5));
        let (top, bottom) = (point(middle.lat() + size, 0.0).lat(), point(middle.lat() - size, 0.0).lat());
        let (left, right) = (point(0.0, middle.lon() - size).lon(), point(0.0, middle.lon() + size).lon());
        let corners: Vec<GeoPoint> = (0..20)
            .map(|_| point(bottom + (top - bottom) * random.share(), left + (right - left) * random.share()))
            .collect();
        let map = map_cut_at(&mut random, &corners);
        let polygon =
            Shape::polygon(vec![(top, right), (top, left), (bottom, left), (bottom, right)]).unwrap();
        let as_box = Shape::bounding_box(top, left, bottom, right).unwrap();
        assert_eq!(cover(&map, &polygon), cover(&map, &as_box));
    }
}

fn two_halves() -> GeoshardMap {
    map_of(BTreeSet::from([(3 << 61) | 1]))
}

#[test]
fn poles_the_antimeridian_and_corners_of_the_cube_have_points_on_both_sides() {
    let face = |n: u64| ShardId::new(&format!("s{n}")).unwrap();
    let faces = map_of((1..6).map(|face| (face << 61) | 1).collect());
    let corner = (1.0_f64 / 2.0_f64.sqrt()).atan().to_degrees();
    // The faces around 0,0; 0,90; the north pole; 0,180; 0,-90; the south pole.
    for (lat, lon, expected) in [
        (0.0, 0.0, vec![0]),
        (90.0, 77.0, vec![2]),
        (-90.0, -180.0, vec![5]),
        (0.0, 180.0, vec![3]),
        (0.0, -180.0, vec![3]),
        (0.0, 45.0, vec![0, 1]),
        (0.0, -135.0, vec![3, 4]),
        (corner, 45.0, vec![0, 1, 2]),
        (-corner, 135.0, vec![1, 3, 5]),
        (-corner, -45.0, vec![0, 4, 5]),
    ] {
        let expected: Vec<_> = expected.into_iter().map(face).collect();
        assert_eq!(cover(&faces, &circle(point(lat, lon), 0.0)), expected, "{lat},{lon}");
    }
    // Longitude 180 and -180 are the same places, and different leaf cells.
    let (east, west) = (leaf(point(10.0, 180.0)), leaf(point(10.0, -180.0)));
    assert_ne!(east, west);
    let map =
        map_of(BTreeSet::from([east.min(west), east.min(west) + 2, east.max(west), east.max(west) + 2]));
    for lon in [180.0, -180.0] {
        let found = cover(&map, &circle(point(10.0, lon), 0.0));
        for at in [point(10.0, 180.0), point(10.0, -180.0)] {
            assert!(found.contains(map.locate(at)), "{lon}");
        }
    }
}

#[test]
fn a_circle_of_half_the_circumference_is_everything_and_one_of_nothing_is_a_point() {
    let map = two_halves();
    for (metres, expected) in [(0.0, 1), (5_000_000.0, 1), (10_020_000.0, 2), (19_000_000.0, 2), (1e9, 2)] {
        let found = cover(&map, &circle(point(0.0, 45.0), metres));
        assert!(found.len() >= expected, "{metres}");
    }
    let one = map_of(BTreeSet::new());
    assert_eq!(cover(&one, &circle(point(0.0, 0.0), 0.0)), one.shards());
    let nearly = cover(
        &map_of(BTreeSet::from([leaf(point(-1.0, -179.0)), leaf(point(-1.0, -179.0)) + 2])),
        &circle(point(1.0, 1.0), 19_900_000.0),
    );
    assert_eq!(nearly.len(), 2, "the leaf at the other end of the globe is not within 19,900 km");
}

#[test]
fn while_two_maps_are_live_the_cover_is_that_of_both() {
    let (old, new) = (two_halves(), map_of(BTreeSet::from([(1 << 61) | 1, (2 << 61) | 1])));
    let shape = circle(point(0.0, 0.0), 1000.0);
    let pole = circle(point(90.0, 0.0), 1000.0);
    let ids = |shards: Vec<ShardId>| shards.iter().map(|shard| shard.as_str().to_owned()).collect::<Vec<_>>();
    let both = LiveMaps::Two { old: old.clone().into(), new: new.clone().into() };
    assert_eq!(ids(cover_live(&both, &shape)), ["s0"]);
    assert_eq!(ids(cover_live(&both, &pole)), ["s0", "s2"]);
    assert_eq!(ids(cover_live(&LiveMaps::One(new.into()), &pole)), ["s2"]);
}
