//! The globe as one line: S2's leaf cells along its Hilbert curve.
//!
//! S2 projects the sphere onto the six faces of a cube and numbers 2^60 leaf cells (about 1 cm²) on each along a
//! Hilbert curve, face after face, so that near numbers are near places. A leaf cell's id is odd; from one leaf to the
//! next it grows by 2. Ids are those of every S2 library (<https://s2geometry.io/devguide/s2cell_hierarchy>).

use std::ops::Range;

use s2::cell::Cell;
use s2::cellid::CellID;
use s2::latlng::LatLng;

use crate::base::geo::GeoPoint;

/// The first leaf cell of face 0: the lowest id of any point.
pub const FIRST_LEAF: u64 = 1;

/// One above the last leaf cell of face 5: every point's leaf cell is below it.
pub const END_OF_GLOBE: u64 = 6 << 61;

/// The id of the leaf cell that holds `point`. Always odd, and in `FIRST_LEAF .. END_OF_GLOBE`.
pub fn leaf(point: GeoPoint) -> u64 {
    CellID::from(LatLng::from_degrees(point.lat(), point.lon())).0
}

/// The leaf cell of a point: all that placing and counting need of it, and expensive to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Leaf(u64);

impl Leaf {
    /// Its id, as [`leaf`] gives it.
    pub fn id(self) -> u64 {
        self.0
    }
}

impl From<GeoPoint> for Leaf {
    fn from(point: GeoPoint) -> Self {
        Self(leaf(point))
    }
}

/// The middle of a cell; `None` if its id is none.
pub fn middle(cell: CellID) -> Option<GeoPoint> {
    if !cell.is_valid() {
        return None;
    }
    let middle = LatLng::from(cell);
    GeoPoint::new(middle.lat.deg(), middle.lng.deg()).ok()
}

/// The fewest cells that hold exactly the leaf cells of `range`, in curve order.
///
/// Shape: never more than 3 cells on each of the 30 levels at each end, and the 6 faces between.
pub fn tiles(range: Range<u64>) -> impl Iterator<Item = CellID> {
    // Leaf `2i + 1` counts as the step `2i .. 2i + 2` of the line; a cell whose lowest set bit is `l` takes `2l`.
    let end = range.end.min(END_OF_GLOBE) & !1;
    let mut at = range.start & !1;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let mut half = 1_u64 << 60;
        while !at.is_multiple_of(2 * half) || end - at < 2 * half {
            half >>= 2;
        }
        let cell = CellID(at + half);
        at += 2 * half;
        Some(cell)
    })
}

/// Share of the globe's surface covered by the leaf cells of `range`: 0 to 1, accurate to a thousandth of itself.
pub fn share_of_globe(range: Range<u64>) -> f64 {
    /// From this level on S2's cheap area is within 0.1 %; above it the exact one is numerically sound.
    const SMALL: u8 = 5;
    let area = |id| {
        let cell = Cell::from(id);
        if cell.level() < SMALL { cell.exact_area() } else { cell.approx_area() }
    };
    tiles(range).map(area).sum::<f64>() / (4.0 * std::f64::consts::PI)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn leaf_ids_match_the_published_s2_libraries() {
        // Values of the Go library's test `TestCellIDLatLng`, which the C++ library generates.
        for (id, lat, lon) in [
            (0x47a1_cbd5_9552_2b39, 49.703498679, 11.770681595),
            (0x4652_5318_b63b_e0f9, 55.685376759, 12.588490937),
            (0x52b3_0b71_698e_729d, 45.486546517, -93.449700022),
            (0x46ed_8886_cfad_da85, 58.299984854, 23.049300056),
            (0x3663_f18a_24cb_e857, 34.364439040, 108.330699969),
            (0x010a_06c0_a948_cf5d, -30.694551352, -30.048758753),
            (0x2b2b_fd07_6787_c5df, -25.285264027, 133.823116966),
            (0xb09d_ff88_2a78_09e1, -75.000000031, 0.000000133),
            (0x94da_a3d0_0000_0001, -24.694439215, -47.537363213),
            (0x87a1_0000_0000_0001, 38.899730392, -99.901813021),
            (0x4fc7_6d50_0000_0001, 81.647200334, -55.631712940),
            (0x3b00_9555_5555_5555, 10.050986518, 78.293170610),
            (0x1dcc_4699_9155_5555, -34.055420593, 18.551140038),
            (0xb112_966a_aaaa_aaab, -69.219262171, 49.670072392),
        ] {
            assert_eq!(leaf(GeoPoint::new(lat, lon).unwrap()), id, "{lat},{lon}");
        }
        // The centre of face 0 is a corner of four leaves; S2 takes the north-eastern one.
        assert_eq!(leaf(GeoPoint::new(0.0, 0.0).unwrap()), 0x1000_0000_0000_0001);
    }

    #[test]
    fn six_faces_are_the_globe() {
        let faces: Vec<_> = tiles(0..END_OF_GLOBE).collect();
        assert_eq!(faces, (0..6).map(CellID::from_face).collect::<Vec<_>>());
        assert!((share_of_globe(FIRST_LEAF..u64::MAX) - 1.0).abs() < 1e-9);
        assert_eq!(share_of_globe(7..7), 0.0);
    }

    proptest! {
        #[test]
        fn tiles_hold_exactly_the_leaves_of_their_range(a in 0..END_OF_GLOBE, b in 0..END_OF_GLOBE) {
            let (start, end) = (a.min(b) & !1, a.max(b) & !1);
            let mut at = start;
            let mut count = 0;
            for cell in tiles(start..end) {
                prop_assert!(cell.is_valid());
                prop_assert_eq!(cell.range_min().0, at + 1);
                at = cell.range_max().0 + 1;
                count += 1;
            }
            prop_assert_eq!(at, end);
            prop_assert!(count <= 2 * 3 * 30 + 6);
        }

        #[test]
        fn shares_add_up(cut in 0..END_OF_GLOBE) {
            let sum = share_of_globe(0..cut) + share_of_globe(cut & !1..END_OF_GLOBE);
            prop_assert!((sum - 1.0).abs() < 1e-3, "{}", sum);
        }
    }
}
