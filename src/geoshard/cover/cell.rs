//! A cell of S2 in the coordinates of its face, where it is a rectangle.
//!
//! Each face of the cube has a plane at distance 1 from the centre of the Earth with coordinates u and v, both from -1 to
//! 1, and w points out of it. A cell is a rectangle there, and its sides are arcs of great circles on the sphere. S2 cuts
//! the faces not along u and v but along s and t (0 to 1), which make cells of about the same size.

use s2::cellid::{POS_TO_IJ, POS_TO_ORIENTATION};

/// Degrees from a pole within which a cell is assumed to have every longitude: there, rounding of x and y is not
/// negligible.
const NEAR_POLE: f64 = 90.0 - 1e-4;

/// One cell.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell {
    /// S2's id.
    id: u64,
    /// 0 to 5.
    pub face: usize,
    /// Orientation of the Hilbert curve: S2's two bits.
    orientation: u8,
    /// Where it begins on the face in s and t, and its length in both.
    st: [f64; 2],
    size: f64,
    /// From and to.
    pub u: [f64; 2],
    /// From and to.
    pub v: [f64; 2],
}

/// Bounds of a cell in degrees. `east` is not below `west`; both may be beyond ±180 where a cell reaches over the
/// antimeridian.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub south: f64,
    pub north: f64,
    pub west: f64,
    pub east: f64,
}

impl Cell {
    /// The six faces, in curve order.
    pub(super) fn faces() -> impl Iterator<Item = Self> {
        (0..6_u8).map(|face| Self {
            id: (u64::from(face) << 61) + (1 << 60),
            face: usize::from(face),
            orientation: face & 1,
            st: [0.0; 2],
            size: 1.0,
            u: [-1.0, 1.0],
            v: [-1.0, 1.0],
        })
    }

    /// The four quarters, in curve order. Not for a leaf cell.
    pub(super) fn children(&self) -> [Self; 4] {
        let half = self.size / 2.0;
        let [u, v] = [self.u, self.v];
        let [u_mid, v_mid] = self.st.map(|at| st_to_uv(at + half));
        let step = (self.id & self.id.wrapping_neg()) >> 2;
        let first = self.id - 3 * step;
        let mut id = first;
        [0_usize, 1, 2, 3].map(|position| {
            let ij = POS_TO_IJ[usize::from(self.orientation)][position];
            let (is_right, is_upper) = (ij & 2 != 0, ij & 1 != 0);
            let child = Self {
                id,
                face: self.face,
                orientation: self.orientation ^ POS_TO_ORIENTATION[position],
                st: [
                    if is_right { self.st[0] + half } else { self.st[0] },
                    if is_upper { self.st[1] + half } else { self.st[1] },
                ],
                size: half,
                u: if is_right { [u_mid, u[1]] } else { [u[0], u_mid] },
                v: if is_upper { [v_mid, v[1]] } else { [v[0], v_mid] },
            };
            id += 2 * step;
            child
        })
    }

    /// 0 for a face, 30 for a leaf.
    pub(super) fn level(&self) -> u32 {
        30 - self.id.trailing_zeros() / 2
    }

    /// The ids of its first and last leaf cell.
    pub(super) fn leaves(&self) -> (u64, u64) {
        let reach = (self.id & self.id.wrapping_neg()) - 1;
        (self.id - reach, self.id + reach)
    }

    /// The smallest enclosing latitudes and longitudes, accurate far below 1e-9 degrees; larger near the poles.
    pub(super) fn bounds(&self) -> Bounds {
        let [u, v] = [self.u, self.v];
        let minus = |[from, to]: [f64; 2]| [-to, -from];
        // Four faces are perpendicular to the equator: one coordinate is the tangent of the longitude from the face's
        // middle, the other is z.
        match self.face {
            0 => beside_axis(0.0, u, v),
            1 => beside_axis(90.0, u, v),
            3 => beside_axis(180.0, v, minus(u)),
            4 => beside_axis(-90.0, v, minus(u)),
            // The other two are at the poles.
            2 => around_pole(minus(u), minus(v)),
            _ => {
                let Bounds { south, north, west, east } = around_pole(v, u);
                Bounds { south: -north, north: -south, west, east }
            }
        }
    }
}

/// Bounds of the points (1, a, z), turned east by `middle` degrees.
fn beside_axis(middle: f64, a: [f64; 2], z: [f64; 2]) -> Bounds {
    let farthest = a[0].abs().max(a[1].abs());
    let nearest = if a[0] <= 0.0 && a[1] >= 0.0 { 0.0 } else { a[0].abs().min(a[1].abs()) };
    // The latitude's tangent is z / hypot(1, a).
    let latitude = |z: f64, a: f64| (z / a.hypot(1.0)).atan().to_degrees();
    Bounds {
        south: latitude(z[0], if z[0] < 0.0 { nearest } else { farthest }),
        north: latitude(z[1], if z[1] > 0.0 { nearest } else { farthest }),
        west: middle + a[0].atan().to_degrees(),
        east: middle + a[1].atan().to_degrees(),
    }
}

/// Bounds of the points (x, y, 1).
fn around_pole(x: [f64; 2], y: [f64; 2]) -> Bounds {
    let nearest = |[from, to]: [f64; 2]| {
        if from > 0.0 {
            from
        } else if to < 0.0 {
            to
        } else {
            0.0
        }
    };
    let farthest = |[from, to]: [f64; 2]| from.abs().max(to.abs());
    let latitude = |x: f64, y: f64| 1.0_f64.atan2(x.hypot(y)).to_degrees();
    let south = latitude(farthest(x), farthest(y));
    let north = latitude(nearest(x), nearest(y));
    if north > NEAR_POLE {
        return Bounds { south, north, west: -180.0, east: 180.0 };
    }
    // A rectangle without the pole spans less than 180 degrees, so no corner is 90 from its middle.
    let (middle_x, middle_y) = (x[0] + x[1], y[0] + y[1]);
    let middle = middle_y.atan2(middle_x).to_degrees();
    let (mut west, mut east) = (middle, middle);
    for (x, y) in [(x[0], y[0]), (x[0], y[1]), (x[1], y[0]), (x[1], y[1])] {
        let across = middle_x * y - middle_y * x;
        let along = middle_x * x + middle_y * y;
        let longitude = middle + across.atan2(along).to_degrees();
        west = west.min(longitude);
        east = east.max(longitude);
    }
    Bounds { south, north, west, east }
}

/// S2's quadratic projection.
fn st_to_uv(s: f64) -> f64 {
    if s >= 0.5 { (4.0 * s * s - 1.0) / 3.0 } else { (1.0 - 4.0 * (1.0 - s) * (1.0 - s)) / 3.0 }
}

#[cfg(test)]
mod tests {
    use s2::cellid::CellID;
    use s2::latlng::LatLng;
    use s2::point::Point;

    use super::*;
    use crate::base::random::Random;

    /// A cell found by a random walk; half of the walks follow one corner throughout.
    fn some_cell(random: &mut Random, level: u64) -> Cell {
        let mut cell = Cell::faces().nth(usize::try_from(random.below(6)).unwrap()).unwrap();
        let fixed = random.below(8);
        for _ in 0..level {
            let turn = if fixed < 4 { fixed } else { random.below(4) };
            cell = cell.children()[usize::try_from(turn).unwrap()];
        }
        cell
    }

    #[test]
    fn cells_match_s2() {
        let mut random = Random::new(1);
        for _ in 0..2000 {
            let level = random.below(31);
            let cell = some_cell(&mut random, level);
            let theirs = s2::cell::Cell::from(CellID(cell.id));
            assert!(theirs.id.is_valid());
            assert_eq!((u64::from(cell.level()), cell.face), (level, usize::from(theirs.face())));
            assert_eq!(cell.leaves(), (theirs.id.range_min().0, theirs.id.range_max().0));
            for (ours, theirs) in [(cell.u, theirs.bound_uv().x), (cell.v, theirs.bound_uv().y)] {
                assert!((ours[0] - theirs.lo).abs() < 1e-15 && (ours[1] - theirs.hi).abs() < 1e-15);
            }
        }
    }

    #[test]
    fn bounds_hold_the_cell_and_touch_it() {
        const TINY: f64 = 1e-9;
        let mut random = Random::new(2);
        for _ in 0..3000 {
            let level = random.below(20);
            let cell = some_cell(&mut random, level);
            let bounds = cell.bounds();
            assert!(bounds.west <= bounds.east && bounds.south <= bounds.north, "{cell:?} {bounds:?}");
            let theirs = s2::cell::Cell::from(CellID(cell.id));
            let mut seen = Bounds { south: 90.0, north: -90.0, west: f64::MAX, east: f64::MIN };
            // Along the sides and in the middle, where the pole may be.
            for step in 0..=32 {
                let share = f64::from(step) / 32.0;
                let mix = |[from, to]: [f64; 2]| from + share * (to - from);
                for (u, v) in [
                    (mix(cell.u), cell.v[0]),
                    (mix(cell.u), cell.v[1]),
                    (cell.u[0], mix(cell.v)),
                    (cell.u[1], mix(cell.v)),
                    (mix(cell.u), mix(cell.v)),
                ] {
                    let place = LatLng::from(Point(on_face(cell.face, u, v)));
                    let (lat, mut lon) = (place.lat.deg(), place.lng.deg());
                    while lon > bounds.east + TINY {
                        lon -= 360.0;
                    }
                    while lon < bounds.west - TINY {
                        lon += 360.0;
                    }
                    assert!(
                        lon <= bounds.east + TINY && bounds.south - TINY <= lat && lat <= bounds.north + TINY,
                        "{theirs:?} {bounds:?} {lat} {lon}"
                    );
                    seen.south = seen.south.min(lat);
                    seen.north = seen.north.max(lat);
                    seen.west = seen.west.min(lon);
                    seen.east = seen.east.max(lon);
                }
            }
            assert!(seen.south < bounds.south + TINY && seen.north > bounds.north - TINY);
            if bounds.north < NEAR_POLE && bounds.south > -NEAR_POLE {
                assert!(seen.west < bounds.west + TINY && seen.east > bounds.east - TINY);
            }
        }
    }

    fn on_face(face: usize, u: f64, v: f64) -> s2::r3::vector::Vector {
        let (x, y, z) = match face {
            0 => (1.0, u, v),
            1 => (-u, 1.0, v),
            2 => (-u, -v, 1.0),
            3 => (-1.0, -v, -u),
            4 => (v, -1.0, -u),
            _ => (v, u, -1.0),
        };
        s2::r3::vector::Vector { x, y, z }
    }
}
