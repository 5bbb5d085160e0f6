//! A circle against a cell, on the sphere, as `geo_distance` measures.
//!
//! A cell is convex: it is the intersection of four half-spheres. So is a circle of up to a quarter of
//! the globe's circumference, and for these two the questions have short exact answers. A larger circle is what a smaller
//! one around the opposite point leaves over.

use super::cell::Cell;
use super::{Relation, Territory};
use crate::base::geo::{Distance, EARTH_RADIUS_METRES, GeoPoint};

/// Metres by which a circle is grown. Elasticsearch measures from the stored point, which is up to 1.1 cm from the one
/// that was sent (32 bits for each coordinate), and its arithmetic is off by up to 40 cm (Lucene's
/// `SloppyMath.haversinMeters`). Rounding here is far below a millimetre.
pub const MARGIN_METRES: f64 = 1.0;

/// From this radius on, a circle is the globe. It leaves over less than 15 km around the opposite point, where Lucene's
/// haversine has lost its digits.
pub const WHOLE_GLOBE_METRES: f64 = 20_000_000.0;

/// A circle, grown by its margin.
pub(super) struct CoverCircle {
    cap: Cap,
    /// The cap is the circle's complement.
    is_inverted: bool,
}

impl CoverCircle {
    /// `None` for the whole globe.
    pub(super) fn new(centre: GeoPoint, radius: Distance) -> Option<Self> {
        if radius.metres() >= WHOLE_GLOBE_METRES {
            return None;
        }
        let angle = (radius.metres() + MARGIN_METRES) / EARTH_RADIUS_METRES;
        let (lat, lon) = (centre.lat().to_radians(), centre.lon().to_radians());
        let xyz = [lat.cos() * lon.cos(), lat.cos() * lon.sin(), lat.sin()];
        let is_inverted = angle > std::f64::consts::FRAC_PI_2;
        let cap = match is_inverted {
            false => Cap::new(xyz, angle),
            true => Cap::new(xyz.map(|x| -x), std::f64::consts::PI - angle),
        };
        Some(Self { cap, is_inverted })
    }
}

impl Territory for CoverCircle {
    fn relation(&self, cell: &Cell) -> Relation {
        match self.is_inverted {
            false if self.cap.holds(cell) => Relation::Inside,
            false if self.cap.meets(cell) => Relation::Meets,
            false => Relation::Outside,
            true if self.cap.holds(cell) => Relation::Outside,
            true if self.cap.meets(cell) => Relation::Meets,
            true => Relation::Inside,
        }
    }
}

/// All points within an angle of at most 90 degrees of a centre.
struct Cap {
    /// The centre, a vector of length 1, in u, v and w of each face.
    centres: [[f64; 3]; 6],
    /// Square of the angle's sine: of the distance between its rim and a great circle through the centre that the rim
    /// touches.
    sine2: f64,
    /// Square of the straight line from the centre to the rim.
    chord2: f64,
}

impl Cap {
    fn new([x, y, z]: [f64; 3], angle: f64) -> Self {
        let centres = [[y, z, x], [-x, z, y], [-x, -y, z], [-z, -y, -x], [-z, x, -y], [y, x, -z]];
        let half = (angle / 2.0).sin();
        Self { centres, sine2: angle.sin() * angle.sin(), chord2: 4.0 * half * half }
    }

    /// Whether the whole cell is inside: its corners are, and both are convex.
    fn holds(&self, cell: &Cell) -> bool {
        let centre = self.centres[cell.face];
        corners(cell).all(|(u, v)| self.has(centre, u, v))
    }

    /// Whether cell and cap intersect.
    fn meets(&self, cell: &Cell) -> bool {
        let centre = self.centres[cell.face];
        let [cu, cv, cw] = centre;
        // Each side as the coordinates along and across it: the side is where `across` has this value.
        let sides = [
            (cu, cell.u[0], -1.0, cv, cell.v),
            (cu, cell.u[1], 1.0, cv, cell.v),
            (cv, cell.v[0], -1.0, cu, cell.u),
            (cv, cell.v[1], 1.0, cu, cell.u),
        ];
        // From behind the face, where w is below 0, each centre is outside of some side.
        let mut is_within = true;
        for (across, at, outward, _, _) in sides {
            // The distance to the side's great circle, outwards, is the arc sine of this by `hypot(1, at)`.
            let outside = outward * (across - at * cw);
            if outside > 0.0 {
                is_within = false;
                if outside * outside > self.sine2 * (1.0 + at * at) {
                    return false;
                }
            }
        }
        if is_within {
            return true;
        }
        let touches_side = sides.iter().any(|&(across, at, _, along, [from, to])| {
            let length2 = 1.0 + at * at;
            let distance = across - at * cw;
            if distance * distance > self.sine2 * length2 {
                return false;
            }
            // The point of the great circle that is nearest to the centre; is it on the side? (Not if w is below 0: then
            // the first limit is above the second.)
            let foot_w = cw + distance * at / length2;
            from * foot_w <= along && along <= to * foot_w
        });
        touches_side || corners(cell).any(|(u, v)| self.has(centre, u, v))
    }

    /// Whether a point of a face is within.
    fn has(&self, [cu, cv, cw]: [f64; 3], u: f64, v: f64) -> bool {
        let length = (1.0 + u * u + v * v).sqrt();
        let (du, dv, dw) = (cu - u / length, cv - v / length, cw - 1.0 / length);
        du * du + dv * dv + dw * dw <= self.chord2
    }
}

fn corners(cell: &Cell) -> impl Iterator<Item = (f64, f64)> {
    let [u, v] = [cell.u, cell.v];
    [(u[0], v[0]), (u[1], v[0]), (u[1], v[1]), (u[0], v[1])].into_iter()
}
