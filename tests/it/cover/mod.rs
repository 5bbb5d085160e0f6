//! The cover never misses: every hit of Elasticsearch within a shape is in one of its geoshards. A million points,
//! against a reference that shares no code with the cover: Lucene's rounding, the haversine formula, comparisons of degrees.
//!
//! Maps are made against the shape: they are cut right at points of it, so that the smallest mistake at its rim leaves a
//! geoshard out. Centres prefer poles, the antimeridian, and edges and corners of the cube's faces.

mod rate;
mod reference;
mod vectors;

use std::collections::BTreeSet;
use std::f64::consts::PI;

use geofold::base::geo::GeoPoint;
use geofold::base::ids::ShardId;
use geofold::base::random::Random;
use geofold::geoshard::cell::leaf;
use geofold::geoshard::cover::{Shape, cover, cover_live};
use geofold::geoshard::{GeoshardMap, LiveMaps};

use reference::{
    assert_covered, away, below, centre, circle, distance_to_shard, haversine, map_cut_at, map_of, one_of,
    point, polygon_has, power, random, sign, sloppiness, some_radius, stored, turned, within_box,
};

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
            if within_box(at, [top, left, bottom, right]) {
                hits += 1;
                assert_covered(&map, &found, at, &shape);
            }
        }
    }
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

#[test]
fn cover_omits_cells_touched_only_by_their_bounds() {
    let faces = map_of((1..6).map(|face| (face << 61) | 1).collect());
    let ids = |shape: &Shape| cover(&faces, shape).iter().map(ToString::to_string).collect::<Vec<_>>();
    // The north face begins at 45 degrees here, and at 35 in its corners.
    assert_eq!(ids(&Shape::bounding_box(44.9, -2.0, 36.0, 2.0).unwrap()), ["s0"]);
    assert_eq!(ids(&Shape::polygon(vec![(44.9, 0.0), (36.0, -5.0), (36.0, 5.0)]).unwrap()), ["s0"]);
    assert_eq!(ids(&Shape::bounding_box(45.1, -2.0, 36.0, 2.0).unwrap()), ["s0", "s2"]);
}

#[test]
fn the_notch_of_a_polygon_is_not_in_its_cover() {
    let notch = leaf(point(2.0, 2.0));
    let map = map_of(BTreeSet::from([notch, notch + 2]));
    let around =
        vec![(0.0, 0.0), (0.0, 4.0), (4.0, 4.0), (4.0, 3.0), (1.0, 3.0), (1.0, 1.0), (4.0, 1.0), (4.0, 0.0)];
    let found = cover(&map, &Shape::polygon(around).unwrap());
    assert!(!found.contains(map.locate(point(2.0, 2.0))));
    assert!(found.contains(map.locate(point(0.5, 2.0))));
}
