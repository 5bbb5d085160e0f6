//! The exact outlines of a map's geoshards, as polygons in longitude and latitude that GeoJSON readers take.
//!
//! S2 projects the sphere onto a cube, and there every side of every cell is parallel to an axis and has whole numbers as
//! coordinates, across the cube's edges too. So borders are found without rounding: the sides of all cells are sorted by
//! the line they are on, each line is cut where any side begins or ends, and each piece has a cell to its left and one to
//! its right. Where their owners differ, the piece is a border of both.
//!
//! Two things make a flat map of it. The antimeridian is a line of cell sides, and its pieces are kept as borders even
//! where both owners are the same: so no polygon crosses it. And a polygon that comes to a pole on one meridian and leaves
//! it on another gets both points, with the top or bottom edge of the map between them. After that, rings are plane: those
//! that run counterclockwise are shells, the others holes. A ring that comes back to a corner it was at, since cells of
//! one owner touch there, is parted in two.
//!
//! Cell sides are great circles, which are curves in longitude and latitude. Each piece is halved until its chord is near
//! enough, in a way that depends on the piece alone, so neighbours keep the same border to the last digit.

use std::collections::HashMap;

use s2::cellid::CellID;

use super::cell::tiles;
use super::map::GeoshardMap;

/// A corner of a polygon: longitude and latitude in degrees.
pub type LonLat = (f64, f64);

/// A polygon in the plane of longitude and latitude, within ±180 and ±90. Rings are not closed: the last point is not
/// the first again.
#[derive(Debug, Clone, PartialEq)]
pub struct Polygon {
    /// Counterclockwise.
    pub shell: Vec<LonLat>,
    /// Clockwise, inside of the shell.
    pub holes: Vec<Vec<LonLat>>,
}

/// Half of the cube's edge: leaf cells are two units wide, so that all corners are whole numbers.
const HALF: i32 = 1 << 30;
/// A chord is never further from its curve, in radians: about 1 km.
const TOLERANCE: f64 = 1.6e-4;
/// Nor further than this part of its length, so that lines next to each other do not cross.
const TOLERANCE_OF_LENGTH: f64 = 0.02;

/// A corner on the cube.
type Corner = [i32; 3];

/// A cell's side: from `low` to `high` on a line that is parallel to an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Side {
    /// The axis, and the other two coordinates.
    line: (usize, i32, i32),
    low: i32,
    high: i32,
    /// Whether the cell is to the left of the way from `low` to `high`, seen from outside of the cube.
    is_left: bool,
    owner: usize,
}

/// A piece of border with its owner to the left.
#[derive(Debug, Clone)]
struct Border {
    from: Corner,
    to: Corner,
    /// From `from` to `to`, both included.
    points: Vec<LonLat>,
}

/// The outlines of each geoshard, in the order of [`GeoshardMap::shards`].
pub fn outlines(map: &GeoshardMap) -> Vec<Vec<Polygon>> {
    borders(map).iter().map(|borders| polygons(rings(borders))).collect()
}

/// Every border of every geoshard.
fn borders(map: &GeoshardMap) -> Vec<Vec<Border>> {
    let mut sides = Vec::new();
    for (range, shard) in map.ranges() {
        let owner = map.shards().partition_point(|known| known < shard);
        for tile in tiles(range) {
            // A whole face may contain the antimeridian or a pole; its children have them on their sides.
            let cells = if tile.is_face() { tile.children().to_vec() } else { vec![tile] };
            cells.into_iter().for_each(|cell| add_sides(cell, owner, &mut sides));
        }
    }
    sides.sort_unstable();

    let mut borders = vec![Vec::new(); map.shards().len()];
    for line in sides.chunk_by(|a, b| a.line == b.line) {
        let mut cuts: Vec<i32> = line.iter().flat_map(|side| [side.low, side.high]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        // Sides on one hand do not overlap, so only the last one begun can reach.
        let (mut left, mut right) = (None::<&Side>, None::<&Side>);
        let mut open = line.iter().peekable();
        for piece in cuts.windows(2) {
            while let Some(side) = open.next_if(|side| side.low <= piece[0]) {
                *(if side.is_left { &mut left } else { &mut right }) = Some(side);
            }
            let reaches =
                |side: Option<&Side>| side.filter(|side| side.high >= piece[1]).map(|side| side.owner);
            let (Some(left), Some(right)) = (reaches(left), reaches(right)) else { continue };
            let axis = line[0].line;
            let (from, to) = (corner(axis, piece[0]), corner(axis, piece[1]));
            let is_antimeridian = is_antimeridian(from) && is_antimeridian(to);
            if left == right && !is_antimeridian {
                continue;
            }
            // Going north on the antimeridian, longitudes near 180 are to the left.
            let goes_north = f64::from(to[2]) > f64::from(from[2])
                || (from[2] == HALF && to[0] > from[0])
                || (from[2] == -HALF && to[0] < from[0]);
            let east = if is_antimeridian && !goes_north { -180.0 } else { 180.0 };
            let points = curve(from, to, east);
            let back = match is_antimeridian {
                true => curve(to, from, -east),
                false => points.iter().rev().copied().collect(),
            };
            borders[left].push(Border { from, to, points });
            borders[right].push(Border { from: to, to: from, points: back });
        }
    }
    borders
}

fn add_sides(cell: CellID, owner: usize, sides: &mut Vec<Side>) {
    let (face, i, j, _) = cell.face_ij_orientation();
    let level = u32::try_from(cell.level()).unwrap_or(30);
    let size = 1 << (30 - level);
    let (i, j) = (i & -size, j & -size);
    let at = |i: i32, j: i32| on_cube(face, 2 * (i - HALF / 2), 2 * (j - HALF / 2));
    // Counterclockwise, so that the cell is to the left.
    let corners = [at(i, j), at(i + size, j), at(i + size, j + size), at(i, j + size)];
    for (from, to) in corners.iter().zip(corners.iter().cycle().skip(1)) {
        let axis = (0..3).find(|&axis| from[axis] != to[axis]).unwrap_or_default();
        let line = (axis, from[(axis + 1) % 3], from[(axis + 2) % 3]);
        let (low, high) = (from[axis].min(to[axis]), from[axis].max(to[axis]));
        sides.push(Side { line, low, high, is_left: from[axis] < to[axis], owner });
    }
}

/// S2's position of face coordinates on the cube.
fn on_cube(face: u8, u: i32, v: i32) -> Corner {
    match face {
        0 => [HALF, u, v],
        1 => [-u, HALF, v],
        2 => [-u, -v, HALF],
        3 => [-HALF, -v, -u],
        4 => [v, -HALF, -u],
        _ => [v, u, -HALF],
    }
}

fn corner((axis, next, last): (usize, i32, i32), at: i32) -> Corner {
    let mut corner = [0; 3];
    corner[axis] = at;
    corner[(axis + 1) % 3] = next;
    corner[(axis + 2) % 3] = last;
    corner
}

fn is_pole(corner: Corner) -> bool {
    corner[0] == 0 && corner[1] == 0
}

/// Whether a corner is on the antimeridian or at a pole, its ends.
fn is_antimeridian(corner: Corner) -> bool {
    corner[1] == 0 && corner[0] <= 0
}

/// The direction of a corner from the sphere's centre.
fn direction(corner: Corner) -> [f64; 3] {
    // S2's quadratic transform, which makes cells of one level similar in size.
    let warped = |at: i32| {
        let at = f64::from(at) / f64::from(HALF);
        at.signum() * ((at.abs() + 1.0).powi(2) - 1.0) / 3.0
    };
    let [x, y, z] = corner.map(warped);
    let length = (x * x + y * y + z * z).sqrt();
    [x / length, y / length, z / length]
}

/// The line from `from` to `to` as chords. `east` is the antimeridian's longitude for a line along it; other lines end
/// there with the sign of their own side.
fn curve(from: Corner, to: Corner, east: f64) -> Vec<LonLat> {
    let side = [from, to].iter().map(|corner| corner[1]).find(|&y| y != 0);
    let antimeridian = side.map_or(east, |y| if y < 0 { -180.0 } else { 180.0 });
    let lon_lat = |corner: Corner| {
        let [x, y, z] = direction(corner);
        let lon = if is_antimeridian(corner) { antimeridian } else { y.atan2(x).to_degrees() };
        (lon, z.atan2(x.hypot(y)).to_degrees())
    };
    let (mut first, mut last) = (lon_lat(from), lon_lat(to));
    // A line that ends at a pole is a meridian.
    if is_pole(from) {
        first.0 = last.0;
    }
    if is_pole(to) {
        last.0 = first.0;
    }
    let mut points = vec![first];
    halve((from, first), (to, last), &lon_lat, &mut points);
    points.push(last);
    points
}

/// Adds as many points between the two as the curve needs.
fn halve(
    (from, first): (Corner, LonLat),
    (to, last): (Corner, LonLat),
    lon_lat: &impl Fn(Corner) -> LonLat,
    points: &mut Vec<LonLat>,
) {
    let between = |a: Corner, b: Corner| [0, 1, 2].map(|axis| a[axis].midpoint(b[axis]));
    let middle = between(from, to);
    if middle == from || middle == to || is_pole(from) || is_pole(to) {
        return;
    }
    let most = TOLERANCE.min(TOLERANCE_OF_LENGTH * angle(direction(from), direction(to)));
    // Checks the quarters, too: a line across the equator may deviate equally to both sides.
    let is_far = [between(from, middle), middle, between(middle, to)].into_iter().any(|on_curve| {
        let true_place = lon_lat(on_curve);
        // Where the chord has the same longitude or latitude: the one that changes more.
        let (dx, dy) = (last.0 - first.0, last.1 - first.1);
        let share =
            if dx.abs() > dy.abs() { (true_place.0 - first.0) / dx } else { (true_place.1 - first.1) / dy };
        let on_chord = (first.0 + share * dx, first.1 + share * dy);
        angle(direction(on_curve), of_lon_lat(on_chord)) > most
    });
    if is_far {
        let place = lon_lat(middle);
        halve((from, first), (middle, place), lon_lat, points);
        points.push(place);
        halve((middle, place), (to, last), lon_lat, points);
    }
}

fn of_lon_lat((lon, lat): LonLat) -> [f64; 3] {
    let (lon, lat) = (lon.to_radians(), lat.to_radians());
    [lat.cos() * lon.cos(), lat.cos() * lon.sin(), lat.sin()]
}

fn dot(a: [f64; 3], b: [f64; 3]) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

fn cross(a: [f64; 3], b: [f64; 3]) -> [f64; 3] {
    [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
}

fn angle(a: [f64; 3], b: [f64; 3]) -> f64 {
    let across = cross(a, b);
    dot(across, across).sqrt().atan2(dot(a, b))
}

/// Joins borders into rings, none of which passes a corner twice.
fn rings(borders: &[Border]) -> Vec<Vec<&Border>> {
    let mut leaving: HashMap<Corner, Vec<usize>> = HashMap::new();
    for (index, border) in borders.iter().enumerate() {
        leaving.entry(border.from).or_default().push(index);
    }
    let mut is_used = vec![false; borders.len()];
    let mut rings = Vec::new();
    for first in 0..borders.len() {
        let mut way = Vec::new();
        let mut at = first;
        while !is_used[at] {
            is_used[at] = true;
            let border = &borders[at];
            way.push(border);
            // The leftmost, so that each cell keeps its own corner where two touch. Each border is the leftmost of one
            // other, so the path closes where it began.
            let next = leaving.get(&border.to).into_iter().flatten();
            let leftmost =
                next.max_by(|&&a, &&b| turn(border, &borders[a]).total_cmp(&turn(border, &borders[b])));
            match leftmost {
                Some(&next) => at = next,
                None => break,
            }
        }
        if !way.is_empty() {
            part(way, &mut rings);
        }
    }
    rings
}

/// The angle from one border to the next, above 0 to the left; a reversal sorts last.
fn turn(border: &Border, next: &Border) -> f64 {
    let up = border.to.map(f64::from);
    let step = |border: &Border| {
        let along = [0, 1, 2].map(|axis| f64::from((border.to[axis] - border.from[axis]).signum()));
        let rise = dot(along, up) / dot(up, up);
        [0, 1, 2].map(|axis| along[axis] - rise * up[axis])
    };
    let (before, after) = (step(border), step(next));
    let length = dot(up, up).sqrt();
    let (sine, cosine) = (dot(cross(before, after), up) / length, dot(before, after));
    if sine.abs() < 1e-9 && cosine < 0.0 { -std::f64::consts::PI } else { sine.atan2(cosine) }
}

/// Splits a closed path at the corners that it passes more than once.
fn part<'b>(way: Vec<&'b Border>, rings: &mut Vec<Vec<&'b Border>>) {
    // A corner on the antimeridian counts twice; a pole is not a corner but an edge of the map.
    let key = |border: &Border| {
        let is_west = border.points.first().is_some_and(|start| start.0 < 0.0);
        (border.from, is_antimeridian(border.from) && is_west)
    };
    let mut seen = HashMap::new();
    let mut ring: Vec<&Border> = Vec::new();
    for border in way {
        if !is_pole(border.from) {
            if let Some(&start) = seen.get(&key(border)) {
                let loop_back: Vec<&Border> = ring.drain(start..).collect();
                for border in &loop_back {
                    seen.remove(&key(border));
                }
                rings.push(loop_back);
            }
            seen.insert(key(border), ring.len());
        }
        ring.push(border);
    }
    rings.push(ring);
}

/// Assigns holes to shells.
fn polygons(rings: Vec<Vec<&Border>>) -> Vec<Polygon> {
    let (mut shells, mut holes) = (Vec::new(), Vec::new());
    for ring in rings {
        let points = ring_points(&ring);
        let area = doubled_area(&points);
        if area > 0.0 { shells.push((area, points)) } else { holes.push(points) }
    }
    let mut polygons: Vec<Polygon> =
        shells.iter().map(|(_, shell)| Polygon { shell: shell.clone(), holes: Vec::new() }).collect();
    for hole in holes {
        let [a, b, ..] = hole.as_slice() else { continue };
        // A hole may touch its shell at a corner, never along a line.
        let inside = ((a.0 + b.0) / 2.0, (a.1 + b.1) / 2.0);
        let around = (0..shells.len()).filter(|&shell| contains(&shells[shell].1, inside));
        if let Some(shell) = around.min_by(|&a, &b| shells[a].0.total_cmp(&shells[b].0)) {
            polygons[shell].holes.push(hole);
        }
    }
    polygons
}

fn ring_points(ring: &[&Border]) -> Vec<LonLat> {
    let mut points: Vec<LonLat> = Vec::new();
    for border in ring {
        for &point in &border.points {
            // A border ends where the next begins, except at a pole, which has a point for each.
            if points.last() != Some(&point) {
                points.push(point);
            }
        }
    }
    if points.len() > 1 && points.first() == points.last() {
        points.pop();
    }
    points
}

fn doubled_area(ring: &[LonLat]) -> f64 {
    let pairs = ring.iter().zip(ring.iter().cycle().skip(1));
    pairs.map(|(a, b)| a.0 * b.1 - b.0 * a.1).sum()
}

/// Whether a point is inside of a ring, by the crossings to its north.
fn contains(ring: &[LonLat], (lon, lat): LonLat) -> bool {
    let crosses = |(a, b): (&LonLat, &LonLat)| {
        (a.0 > lon) != (b.0 > lon) && lat < a.1 + (lon - a.0) / (b.0 - a.0) * (b.1 - a.1)
    };
    ring.iter().zip(ring.iter().cycle().skip(1)).filter(|&pair| crosses(pair)).count() % 2 == 1
}

impl Polygon {
    /// Whether a point is inside of the shell and of no hole.
    pub fn contains(&self, point: LonLat) -> bool {
        contains(&self.shell, point) && !self.holes.iter().any(|hole| contains(hole, point))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::base::geo::GeoPoint;
    use crate::base::ids::ShardId;
    use crate::geoshard::cell::END_OF_GLOBE;

    fn map(ranges: impl IntoIterator<Item = (u64, u8)>) -> GeoshardMap {
        let ranges =
            ranges.into_iter().map(|(from, owner)| (from, ShardId::new(&format!("s{owner}")).unwrap()));
        GeoshardMap::new(1, "test", ranges.collect()).unwrap()
    }

    fn sample() -> GeoshardMap {
        GeoshardMap::load(Path::new("config/map-55.json")).unwrap()
    }

    fn rings_of(polygons: &[Polygon]) -> impl Iterator<Item = &Vec<LonLat>> {
        polygons.iter().flat_map(|polygon| std::iter::once(&polygon.shell).chain(&polygon.holes))
    }

    /// Twice the area of a geoshard in the plane.
    fn area(polygons: &[Polygon]) -> f64 {
        rings_of(polygons).map(|ring| doubled_area(ring)).sum()
    }

    /// Invariants of every drawn map: inside the frame, simple rings of the right orientation, nothing left over.
    fn assert_sound(map: &GeoshardMap, outlines: &[Vec<Polygon>]) {
        let total: f64 = outlines.iter().map(|polygons| area(polygons)).sum();
        assert!((total - 2.0 * 360.0 * 180.0).abs() < 1e-6, "the globe is covered once, not {total}");
        for (shard, polygons) in map.shards().iter().zip(outlines) {
            assert!(!polygons.is_empty(), "{shard} is nowhere");
            for polygon in polygons {
                assert!(doubled_area(&polygon.shell) > 0.0);
                assert!(polygon.holes.iter().all(|hole| doubled_area(hole) < 0.0));
                for hole in &polygon.holes {
                    let outside = hole.iter().filter(|&&corner| !contains(&polygon.shell, corner)).count();
                    let touching = hole.iter().filter(|corner| polygon.shell.contains(corner)).count();
                    assert!(outside <= touching, "{shard}: a hole reaches out of its shell");
                }
            }
            for ring in rings_of(polygons) {
                assert!(ring.len() >= 3);
                assert!(ring.iter().all(|&(lon, lat)| lon.abs() <= 180.0 && lat.abs() <= 90.0), "{ring:?}");
                let bits = |point: &LonLat| (point.0.to_bits(), point.1.to_bits());
                let distinct: BTreeSet<_> = ring.iter().map(bits).collect();
                let twice = |point: &&LonLat| ring.iter().filter(|other| other == point).count() > 1;
                let twice: Vec<&LonLat> = ring.iter().filter(twice).collect();
                assert_eq!(distinct.len(), ring.len(), "{shard}: a ring comes twice to {twice:?}");
                // Nothing crosses the antimeridian: long steps run only along the top or bottom edge.
                for (a, b) in ring.iter().zip(ring.iter().cycle().skip(1)) {
                    let along_edge = a.1 == b.1 && a.1.abs() == 90.0;
                    assert!(along_edge || (a.0 - b.0).abs() < 91.0, "{shard}: from {a:?} to {b:?}");
                }
            }
        }
    }

    /// A point is in its geoshard's polygon and no other, unless a border is nearer than the tolerance.
    fn assert_located(map: &GeoshardMap, outlines: &[Vec<Polygon>], points: &[LonLat]) {
        for &(lon, lat) in points {
            let near = 2.0 * TOLERANCE.to_degrees();
            let around =
                [(0.0, 0.0), (near, 0.0), (-near, 0.0), (0.0, near), (0.0, -near)].map(|(east, north)| {
                    let lat = (lat + north).clamp(-90.0, 90.0);
                    let lon =
                        (lon + east / lat.to_radians().cos().max(1e-6) + 540.0).rem_euclid(360.0) - 180.0;
                    map.locate_index(GeoPoint::new(lat, lon).unwrap())
                });
            if around.iter().any(|&owner| owner != around[0]) {
                continue;
            }
            let inside = |shard: &usize| outlines[*shard].iter().any(|polygon| polygon.contains((lon, lat)));
            let owners: Vec<usize> = (0..outlines.len()).filter(inside).collect();
            assert_eq!(owners, [around[0]], "{lon}, {lat}");
        }
    }

    #[test]
    fn one_geoshard_fills_the_frame() {
        let outlines = outlines(&map([(0, 0)]));
        assert_eq!(outlines[0].len(), 1);
        let corners = [(-180.0, -90.0), (180.0, -90.0), (180.0, 90.0), (-180.0, 90.0)];
        assert!(corners.iter().all(|corner| outlines[0][0].shell.contains(corner)), "{outlines:?}");
        assert_sound(&map([(0, 0)]), &outlines);
    }

    #[test]
    fn sample_map_has_sound_and_small_outlines() {
        let (map, outlines) = (sample(), outlines(&sample()));
        assert_sound(&map, &outlines);
        let corners: usize = outlines.iter().flat_map(|polygons| rings_of(polygons)).map(Vec::len).sum();
        assert!(corners < 30_000, "{corners}");
        let grid = (-179..180).step_by(3).flat_map(|lon| (-89..90).step_by(3).map(move |lat| (lon, lat)));
        let grid: Vec<LonLat> = grid.map(|(lon, lat)| (f64::from(lon) + 0.3, f64::from(lat) + 0.4)).collect();
        assert_located(&map, &outlines, &grid);
    }

    #[test]
    fn enclosed_geoshard_is_a_hole_of_the_other() {
        // A cell of level 3 in the middle of face 0's first child.
        let cell = CellID::from_face(0).child_begin_at_level(3).advance(9);
        let map = map([(0, 0), (cell.range_min().0, 1), (cell.range_max().0 + 2, 0)]);
        let outlines = outlines(&map);
        assert_sound(&map, &outlines);
        assert_eq!(outlines[1].len(), 1);
        assert_eq!(outlines[0].iter().map(|polygon| polygon.holes.len()).sum::<usize>(), 1);
    }

    #[test]
    fn cells_touching_at_a_corner_are_separate_polygons() {
        // The first and the third of four neighbours, which are diagonal.
        let four = CellID::from_face(1).children()[1].children()[2].children();
        let mut ranges = vec![(0, 0)];
        for (cell, owner) in four.iter().zip([1, 0, 1, 0]) {
            ranges.push((cell.range_min().0, owner));
        }
        ranges.push((four[3].range_max().0 + 2, 0));
        let map = map(ranges);
        let outlines = outlines(&map);
        assert_sound(&map, &outlines);
        assert_eq!(outlines[1].len(), 2);
    }

    #[test]
    fn poles_and_the_antimeridian_are_edges_of_the_map() {
        for cuts in [
            vec![2 << 61],
            vec![3 << 61],
            vec![2 << 61, 3 << 61, 5 << 61],
            // Quarters of the faces that have the poles and the antimeridian inside.
            (4..24).map(|quarter: u64| quarter << 59).collect(),
            (16..96).map(|quarter: u64| quarter << 57).collect(),
        ] {
            let ranges = cuts.iter().enumerate().map(|(n, cut)| (cut | 1, u8::try_from(n % 3).unwrap()));
            let map = map(std::iter::once((0, 0)).chain(ranges));
            let outlines = outlines(&map);
            assert_sound(&map, &outlines);
            let near_edges = [
                (179.7, 10.3),
                (-179.7, 10.3),
                (179.9, -70.2),
                (-179.9, 80.7),
                (12.3, 89.2),
                (-100.2, -89.4),
            ];
            assert_located(&map, &outlines, &near_edges);
        }
    }

    /// Maps with cuts at cells of all sizes, few owners, so that they touch and enclose each other.
    fn maps() -> impl Strategy<Value = GeoshardMap> {
        let cut = (0..END_OF_GLOBE, 0..24_u32).prop_map(|(leaf, level)| {
            let size = 1_u64 << (61 - 2 * level);
            (leaf / size * size) | 1
        });
        let ranges = prop::collection::btree_map(cut, 0..4_u8, 1..60);
        (ranges, 0..4_u8).prop_map(|(mut ranges, first)| {
            ranges.remove(&1);
            map(std::iter::once((0, first)).chain(ranges))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn any_map_has_sound_outlines_around_its_points(
            map in maps(),
            points in prop::collection::vec((-180.0..180.0, -90.0..90.0), 100),
        ) {
            let outlines = outlines(&map);
            assert_sound(&map, &outlines);
            assert_located(&map, &outlines, &points);
        }
    }
}
