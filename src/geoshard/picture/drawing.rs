//! The geoshards of a map as SVG paths, in equirectangular projection.
//!
//! A geoshard's exact border is made of thousands of S2 cell edges, which curve in this projection, cross the antimeridian
//! and meet at the poles. So it is drawn the other way round: every point of a half-degree grid is located, and the
//! borders between grid cells of different geoshards are traced. There is no special case anywhere on the globe.
//!
//! The trace is cut where three geoshards meet, and each piece made simpler by itself, in a direction that does not
//! depend on who asks: so neighbours share their border to the point, without gaps. Coordinates are quarters of a
//! degree: `x = (longitude + 180) * 4`, `y = (90 - latitude) * 4`.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write;

use s2::cellid::CellID;
use s2::latlng::LatLng;

use super::labels::{MapLabel, labels};
use crate::base::geo::GeoPoint;
use crate::geoshard::cell::tiles;
use crate::geoshard::map::GeoshardMap;

/// Grid cells around the globe, and from pole to pole.
const COLUMNS: i32 = 720;
const ROWS: i32 = 360;
/// Maximum distance of a border from the traced one, in quarters of a degree. A raster line is never further from its straight
/// line.
const TOLERANCE: f64 = 0.95;

/// The directions, clockwise.
const STEPS: [Point; 4] = [(1, 0), (0, 1), (-1, 0), (0, -1)];

/// x to the east and y to the south: grid cells or corners of them while tracing, quarters of a degree afterwards.
type Point = (i32, i32);

/// A drawn map. The same map gives the same drawing.
#[derive(Debug, Clone, PartialEq)]
pub struct MapDrawing {
    /// The path of each geoshard, in the order of [`GeoshardMap::shards`].
    pub shards: Vec<String>,
    /// All borders between geoshards, each once.
    pub borders: String,
    /// Names of geoshards, where they fit.
    pub labels: Vec<MapLabel>,
}

impl MapDrawing {
    /// Draws `map`. Takes some 50 ms.
    pub fn new(map: &GeoshardMap) -> Self {
        let grid = Grid::new(map);
        let mut shards = vec![String::new(); map.shards().len()];
        let mut borders = BTreeSet::new();
        for (owner, outline) in grid.outlines() {
            let arcs: Vec<Vec<Point>> = grid.arcs(&outline).iter().map(|arc| simplified(arc)).collect();
            let ring: Vec<Point> = arcs.iter().flat_map(|arc| &arc[..arc.len() - 1]).copied().collect();
            if doubled_area(&ring) == 0 {
                // A single grid cell whose two sides became the same line.
                write_line(&mut shards[owner], &outline.iter().map(doubled).collect::<Vec<_>>(), true);
                continue;
            }
            write_line(&mut shards[owner], &ring, true);
            borders.extend(arcs.into_iter().filter(|arc| !is_on_frame(arc)).map(canonical));
        }
        let mut all = String::new();
        borders.iter().for_each(|border| write_line(&mut all, border, false));
        Self { shards, borders: all, labels: labels(map, &grid.interiors(map.shards().len())) }
    }
}

/// Which geoshard each grid cell belongs to, by the location of its middle.
pub(super) struct Grid(Vec<usize>);

impl Grid {
    pub(super) fn new(map: &GeoshardMap) -> Self {
        let middle = |index: i32| (f64::from(index) + 0.5) / 2.0;
        let owner = |x: i32, y: i32| {
            GeoPoint::new(90.0 - middle(y), middle(x) - 180.0).map_or(0, |point| map.locate_index(point))
        };
        let mut owners: Vec<usize> = (0..ROWS).flat_map(|y| (0..COLUMNS).map(move |x| owner(x, y))).collect();
        // A geoshard too small for any point of the grid still gets the grid cell that it begins in.
        for (number, shard) in map.shards().iter().enumerate() {
            if owners.contains(&number) {
                continue;
            }
            let first =
                map.ranges().find(|(_, owner)| *owner == shard).and_then(|(range, _)| tiles(range).next());
            if let Some(index) = first.and_then(cell_index) {
                owners[index] = number;
            }
        }
        Self(owners)
    }

    /// The owner of a grid cell; `None` outside of the globe.
    fn owner(&self, (x, y): Point) -> Option<usize> {
        let inside = (0..COLUMNS).contains(&x) && (0..ROWS).contains(&y);
        inside.then(|| usize::try_from(y * COLUMNS + x).ok().map(|index| self.0[index])).flatten()
    }

    /// For each of `count` geoshards those that it borders on, the antimeridian included.
    pub(super) fn neighbours(&self, count: usize) -> Vec<BTreeSet<usize>> {
        let mut neighbours = vec![BTreeSet::new(); count];
        for (x, y) in (0..ROWS).flat_map(|y| (0..COLUMNS).map(move |x| (x, y))) {
            for other in [((x + 1) % COLUMNS, y), (x, y + 1)] {
                if let (Some(one), Some(other)) = (self.owner((x, y)), self.owner(other))
                    && one != other
                {
                    neighbours[one].insert(other);
                    neighbours[other].insert(one);
                }
            }
        }
        neighbours
    }

    /// For each of `count` geoshards a place far from its borders: longitude and latitude in degrees.
    pub(super) fn interiors(&self, count: usize) -> Vec<(f64, f64)> {
        let around = |(x, y): Point| [(x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)];
        let index = |(x, y): Point| usize::try_from(y * COLUMNS + x).unwrap_or_default();
        // From the borders inwards, ring by ring; the last cell that is reached of a geoshard is its innermost.
        let mut is_reached = vec![false; self.0.len()];
        let is_border = |at: &Point| around(*at).iter().any(|near| self.owner(*near) != self.owner(*at));
        let all = (0..ROWS).flat_map(|y| (0..COLUMNS).map(move |x| (x, y)));
        let mut queue: VecDeque<Point> = all.filter(is_border).collect();
        queue.iter().for_each(|at| is_reached[index(*at)] = true);
        let mut innermost = vec![(0.0, 0.0); count];
        while let Some(at) = queue.pop_front() {
            if let Some(owner) = self.owner(at) {
                innermost[owner] = (f64::from(at.0) / 2.0 - 179.75, 89.75 - f64::from(at.1) / 2.0);
            }
            for near in around(at) {
                if self.owner(near).is_some() && !std::mem::replace(&mut is_reached[index(near)], true) {
                    queue.push_back(near);
                }
            }
        }
        innermost
    }

    /// Owners to the right and to the left of the step from corner `at` in `direction`.
    fn sides(&self, (x, y): Point, direction: usize) -> (Option<usize>, Option<usize>) {
        let (south_east, south_west, north_west, north_east) =
            ((x, y), (x - 1, y), (x - 1, y - 1), (x, y - 1));
        let (right, left) = match direction {
            0 => (south_east, north_east),
            1 => (south_west, south_east),
            2 => (north_west, south_west),
            _ => (north_east, north_west),
        };
        (self.owner(right), self.owner(left))
    }

    /// Every closed outline, its corners in order, with its owner to the right of each step.
    fn outlines(&self) -> Vec<(usize, Vec<Point>)> {
        let mut done = BTreeSet::new();
        let mut outlines = Vec::new();
        for start in (0..=ROWS).flat_map(|y| (0..=COLUMNS).map(move |x| (x, y))) {
            for first in 0..STEPS.len() {
                let (Some(owner), left) = self.sides(start, first) else { continue };
                if left == Some(owner) || done.contains(&(start, first)) {
                    continue;
                }
                let mut corners = Vec::new();
                let (mut at, mut direction) = (start, first);
                while done.insert((at, direction)) {
                    corners.push(at);
                    at = (at.0 + STEPS[direction].0, at.1 + STEPS[direction].1);
                    // Right first: where two cells of one owner touch at a corner only, each keeps its own outline.
                    let turns = [(direction + 1) % 4, direction, (direction + 3) % 4];
                    let borders_on = |turn: &usize| {
                        let (right, left) = self.sides(at, *turn);
                        right == Some(owner) && left != Some(owner)
                    };
                    direction = turns.into_iter().find(borders_on).unwrap_or(direction);
                }
                outlines.push((owner, corners));
            }
        }
        outlines
    }

    /// Whether borders meet at a corner, or the globe's frame turns.
    fn is_node(&self, at: Point) -> bool {
        let is_border = |direction: &usize| {
            let (right, left) = self.sides(at, *direction);
            right != left
        };
        let is_frame_corner = [0, COLUMNS].contains(&at.0) && [0, ROWS].contains(&at.1);
        is_frame_corner || (0..STEPS.len()).filter(is_border).count() != 2
    }

    /// A closed outline, cut at its nodes; each piece ends where the next begins.
    fn arcs(&self, outline: &[Point]) -> Vec<Vec<Point>> {
        let nodes: Vec<usize> = (0..outline.len()).filter(|&index| self.is_node(outline[index])).collect();
        let piece = |from: usize, to: usize| {
            let length = (to + outline.len() - from - 1) % outline.len() + 1;
            (0..=length).map(|step| outline[(from + step) % outline.len()]).collect()
        };
        // An outline without nodes has a single neighbour, who traverses it in the other direction: both begin at the same
        // point.
        let nodes = match (nodes.as_slice(), (0..outline.len()).min_by_key(|&index| outline[index])) {
            ([], Some(least)) => vec![least],
            _ => nodes,
        };
        nodes.iter().zip(nodes.iter().cycle().skip(1)).map(|(&from, &to)| piece(from, to)).collect()
    }
}

/// Index of the grid cell that contains the centre of an S2 cell.
fn cell_index(cell: CellID) -> Option<usize> {
    let middle = LatLng::from(cell);
    #[expect(clippy::cast_possible_truncation, reason = "degrees times two are small")]
    let index = |degrees: f64, most: i32| ((degrees * 2.0) as i32).clamp(0, most - 1);
    let (x, y) = (index(middle.lng.deg() + 180.0, COLUMNS), index(90.0 - middle.lat.deg(), ROWS));
    usize::try_from(y * COLUMNS + x).ok()
}

/// From corners of half-degree cells to quarters of a degree.
fn doubled(&(x, y): &Point) -> Point {
    (x * 2, y * 2)
}

/// Of an arc and its reverse, always the same one.
fn canonical(mut arc: Vec<Point>) -> Vec<Point> {
    if arc.iter().gt(arc.iter().rev()) {
        arc.reverse();
    }
    arc
}

/// An arc in quarters of a degree, between the same two ends, made simpler; an arc and its reverse give the same line.
fn simplified(arc: &[Point]) -> Vec<Point> {
    let is_reversed = arc.iter().gt(arc.iter().rev());
    let arc = canonical(arc.to_vec());
    // Through the middles of the grid's edges, stairs become slopes.
    let middles = arc.windows(2).map(|pair| (pair[0].0 + pair[1].0, pair[0].1 + pair[1].1));
    let ends = (arc.first().map(doubled), arc.last().map(doubled));
    let points: Vec<Point> = ends.0.into_iter().chain(middles).chain(ends.1).collect();

    let mut keep = vec![false; points.len()];
    let last = points.len() - 1;
    (keep[0], keep[last]) = (true, true);
    // Douglas and Peucker: keep the point that is furthest from the line between two kept ones, until none is far.
    let mut open = vec![(0, last)];
    while let Some((from, to)) = open.pop() {
        let distance = |index: &usize| distance(points[*index], points[from], points[to]);
        let furthest = (from + 1..to).max_by(|a, b| distance(a).total_cmp(&distance(b)));
        if let Some(furthest) = furthest.filter(|index| distance(index) > TOLERANCE) {
            keep[furthest] = true;
            open.extend([(from, furthest), (furthest, to)]);
        }
    }
    let mut kept: Vec<Point> =
        points.iter().zip(&keep).filter(|(_, keep)| **keep).map(|(point, _)| *point).collect();
    if is_reversed {
        kept.reverse();
    }
    kept
}

/// From `point` to the line through `a` and `b`, or to `a` if they are one.
fn distance(point: Point, a: Point, b: Point) -> f64 {
    let (dx, dy) = (f64::from(b.0 - a.0), f64::from(b.1 - a.1));
    let (px, py) = (f64::from(point.0 - a.0), f64::from(point.1 - a.1));
    let length = dx.hypot(dy);
    if length == 0.0 { px.hypot(py) } else { (px * dy - py * dx).abs() / length }
}

fn doubled_area(ring: &[Point]) -> i64 {
    let cross = |(a, b): (&Point, &Point)| i64::from(a.0) * i64::from(b.1) - i64::from(b.0) * i64::from(a.1);
    ring.iter().zip(ring.iter().cycle().skip(1)).map(cross).sum()
}

fn is_on_frame(arc: &[Point]) -> bool {
    let all = |on: &dyn Fn(&Point) -> bool| arc.iter().all(on);
    all(&|p| p.0 == 0) || all(&|p| p.0 == 2 * COLUMNS) || all(&|p| p.1 == 0) || all(&|p| p.1 == 2 * ROWS)
}

/// Appends a line in path syntax: one absolute point, then relative ones.
fn write_line(path: &mut String, points: &[Point], closed: bool) {
    let Some((x, y)) = points.first() else { return };
    // Writing to a string cannot fail.
    let _ = write!(path, "M{x} {y}l");
    for (step, pair) in points.windows(2).enumerate() {
        // A minus sign separates numbers as well as a space does.
        let space = |number: i32| if number < 0 { "" } else { " " };
        let (dx, dy) = (pair[1].0 - pair[0].0, pair[1].1 - pair[0].1);
        let before = if step == 0 { "" } else { space(dx) };
        let _ = write!(path, "{before}{dx}{}{dy}", space(dy));
    }
    if closed {
        path.push('z');
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::base::ids::ShardId;

    fn sample() -> GeoshardMap {
        GeoshardMap::load(Path::new("config/map-55.json")).unwrap()
    }

    fn map(ranges: &[(u64, &str)]) -> GeoshardMap {
        let ranges = ranges.iter().map(|&(from, shard)| (from, ShardId::new(shard).unwrap())).collect();
        GeoshardMap::new(1, "test", ranges).unwrap()
    }

    /// Rings of a path, read back.
    fn rings(path: &str) -> Vec<Vec<Point>> {
        let ring = |text: &str| {
            let spaced = text.replace('-', " -").replace(['l', 'z'], " ");
            let numbers: Vec<i32> = spaced.split_whitespace().map(|number| number.parse().unwrap()).collect();
            let mut at = (0, 0);
            let steps = numbers.chunks(2).map(|step| {
                at = (at.0 + step[0], at.1 + step[1]);
                at
            });
            steps.collect()
        };
        path.split('M').skip(1).map(ring).collect()
    }

    fn area(path: &str) -> i64 {
        rings(path).iter().map(|ring| doubled_area(ring)).sum()
    }

    #[test]
    fn the_geoshards_of_the_sample_map_cover_the_globe_without_gap_or_overlap() {
        let drawing = MapDrawing::new(&sample());
        assert_eq!(drawing.shards.len(), 55);
        assert!(drawing.shards.iter().all(|path| area(path) > 0));
        let total: i64 = drawing.shards.iter().map(|path| area(path)).sum();
        assert_eq!(total, 2 * 1440 * 720);
        let bytes: usize = drawing.shards.iter().map(String::len).sum::<usize>() + drawing.borders.len();
        assert!(bytes < 100_000, "{bytes}");
    }

    #[test]
    fn the_faces_with_the_poles_reach_from_edge_to_edge() {
        let drawing =
            MapDrawing::new(&map(&[(0, "a"), (0x4000_0000_0000_0001, "n"), (0x6000_0000_0000_0001, "z")]));
        let north = rings(&drawing.shards[1]);
        assert_eq!(north.len(), 1);
        for corner in [(0, 0), (1440, 0)] {
            assert!(north[0].contains(&corner), "{corner:?} of {north:?}");
        }
        // A cube's face has a sixth of the sphere, and near its pole the projection stretches it.
        let share = area(&drawing.shards[1]) as f64 / (2.0 * 1440.0 * 720.0);
        assert!((0.2..0.3).contains(&share), "{share}");
    }

    #[test]
    fn one_geoshard_is_the_whole_frame_and_has_no_border() {
        let drawing = MapDrawing::new(&map(&[(0, "all")]));
        assert_eq!(drawing.shards, ["M0 0l1440 0 0 720-1440 0z"]);
        assert_eq!(drawing.borders, "");
    }

    #[test]
    fn neighbours_know_each_other_and_an_interior_is_inside() {
        let map = sample();
        let (grid, count) = (Grid::new(&map), map.shards().len());
        let neighbours = grid.neighbours(count);
        for (one, others) in neighbours.iter().enumerate() {
            assert!(!others.is_empty() && !others.contains(&one));
            assert!(others.iter().all(|other| neighbours[*other].contains(&one)), "{one}");
        }
        for (owner, (lon, lat)) in grid.interiors(count).into_iter().enumerate() {
            assert_eq!(map.locate_index(GeoPoint::new(lat, lon).unwrap()), owner);
        }
    }

    #[test]
    fn the_interior_of_the_whole_globe_is_on_the_equator() {
        let (_, lat) = Grid::new(&map(&[(0, "all")])).interiors(1)[0];
        assert!(lat.abs() < 1.0, "{lat}");
    }

    #[test]
    fn a_geoshard_of_a_single_leaf_is_still_drawn() {
        let tiny = 0x47a1_cbd5_9552_2b39;
        let drawing = MapDrawing::new(&map(&[(0, "a"), (tiny, "tiny"), (tiny + 2, "z")]));
        assert!(area(&drawing.shards[1]) > 0, "{:?}", drawing.shards[1]);
    }
}
