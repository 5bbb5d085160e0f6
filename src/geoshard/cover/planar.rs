//! Box and polygon against a cell, in degrees: there, their sides are straight lines for Lucene, not great circles.
//!
//! The sides of a cell are not straight in degrees. So the shape is compared with the cell's bounds, the enclosing
//! rectangle of latitudes and longitudes. If that only yields "near", smaller cells with tighter bounds decide, down to
//! a size that is small beside the shape.

use super::cell::{Bounds, Cell};
use super::{Relation, Territory};

/// Degrees by which the bounds of a cell are grown on each side. Elasticsearch rounds the coordinates of documents, and
/// of boxes and polygons, to 32 bits: each by less than 1e-7 degrees.
const MARGIN_DEGREES: f64 = 1e-6;

/// Number of smallest cells along the whole outline.
const STEPS_ALONG: f64 = 1024.0;

/// An outline in degrees, longitudes possibly beyond ±180; the inside follows the even-odd rule.
pub(super) struct Planar {
    sides: Vec<Side>,
    bounds: Bounds,
    /// Cells of this level or finer are not split to decide whether they meet the shape.
    finest: u32,
}

/// From one vertex to the next, each latitude and longitude.
type Side = [(f64, f64); 2];

impl Planar {
    /// Over the antimeridian where `left` is greater than `right`.
    pub(super) fn from_box(top: f64, left: f64, bottom: f64, right: f64) -> Self {
        let right = if left > right { right + 360.0 } else { right };
        Self::from_polygon(&[(bottom, left), (bottom, right), (top, right), (top, left)])
    }

    /// The ring of these vertices (latitude, longitude); the last is joined to the first.
    pub(super) fn from_polygon(vertices: &[(f64, f64)]) -> Self {
        let next = vertices.iter().cycle().skip(1);
        let sides: Vec<Side> = vertices.iter().zip(next).map(|(&from, &to)| [from, to]).collect();
        let fold = |pick: fn(f64, f64) -> f64, of: fn(&(f64, f64)) -> f64, start| {
            vertices.iter().map(of).fold(start, pick)
        };
        let bounds = Bounds {
            south: fold(f64::min, |vertex| vertex.0, f64::INFINITY),
            north: fold(f64::max, |vertex| vertex.0, f64::NEG_INFINITY),
            west: fold(f64::min, |vertex| vertex.1, f64::INFINITY),
            east: fold(f64::max, |vertex| vertex.1, f64::NEG_INFINITY),
        };
        let smallest = sides.iter().map(length).sum::<f64>() / STEPS_ALONG;
        let (mut finest, mut size) = (0, 90.0);
        while size > smallest && finest < 30 {
            finest += 1;
            size /= 2.0;
        }
        Self { sides, bounds, finest }
    }

    /// Whether a point that is on no side is inside.
    fn has(&self, lat: f64, lon: f64) -> bool {
        let crossed = self.sides.iter().filter(|[from, to]| {
            (from.0 > lat) != (to.0 > lat)
                && lon < from.1 + (to.1 - from.1) * ((lat - from.0) / (to.0 - from.0))
        });
        crossed.count() % 2 == 1
    }
}

impl Territory for Planar {
    fn relation(&self, cell: &Cell) -> Relation {
        let bounds = cell.bounds();
        for turn in [0.0, -360.0, 360.0] {
            let rectangle = Bounds {
                south: bounds.south - MARGIN_DEGREES,
                north: bounds.north + MARGIN_DEGREES,
                west: bounds.west + turn - MARGIN_DEGREES,
                east: bounds.east + turn + MARGIN_DEGREES,
            };
            if !overlap(&rectangle, &self.bounds) {
                continue;
            }
            if self.sides.iter().any(|side| crosses(side, &rectangle)) {
                return if cell.level() < self.finest { Relation::Near } else { Relation::Meets };
            }
            if self.has(rectangle.south, rectangle.west) {
                return Relation::Inside;
            }
        }
        Relation::Outside
    }
}

fn overlap(a: &Bounds, b: &Bounds) -> bool {
    a.south <= b.north && b.south <= a.north && a.west <= b.east && b.west <= a.east
}

/// Whether a side has a point in a rectangle: their bounds overlap, and the corners are not all on one side of the line.
fn crosses([from, to]: &Side, rectangle: &Bounds) -> bool {
    let own = Bounds {
        south: from.0.min(to.0),
        north: from.0.max(to.0),
        west: from.1.min(to.1),
        east: from.1.max(to.1),
    };
    if !overlap(&own, rectangle) {
        return false;
    }
    let (d_lat, d_lon) = (to.0 - from.0, to.1 - from.1);
    let turn = |lat: f64, lon: f64| d_lon * (lat - from.0) - d_lat * (lon - from.1);
    let Bounds { south, north, west, east } = *rectangle;
    let turns = [turn(south, west), turn(south, east), turn(north, east), turn(north, west)];
    !(turns.iter().all(|&turn| turn > 0.0) || turns.iter().all(|&turn| turn < 0.0))
}

/// At least the length of a side on the globe, in degrees.
fn length([from, to]: &Side) -> f64 {
    let nearest_equator = if (from.0 < 0.0) == (to.0 < 0.0) { from.0.abs().min(to.0.abs()) } else { 0.0 };
    (to.0 - from.0).hypot((to.1 - from.1) * nearest_equator.to_radians().cos())
}
