//! Boxes in degrees that hold the places of ranges of the curve: what a search server can filter by.
//!
//! A box holds more than its cell, so cells are split where that wastes the most, as long as there may be more boxes.
//! No place of the ranges is outside of all boxes; a caller must recheck what a box contains besides them.

use std::collections::BinaryHeap;
use std::ops::Range;

use serde_json::{Value, json};

use super::cell::{Bounds, Cell};
use crate::geoshard::cell::share_of_globe;

/// Degrees that each side is moved out: more than a server rounds a point by (8.4e-8 in Lucene), and 11 cm.
const MARGIN: f64 = 1e-6;
/// A cell is not split for less waste than this part of what the ranges cover.
const SMALL_WASTE: f64 = 1e-4;

/// A box in degrees; over the antimeridian where `left` is greater than `right`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CoverBox {
    /// The parallel to the north.
    pub top: f64,
    /// The meridian to the west.
    pub left: f64,
    /// The parallel to the south.
    pub bottom: f64,
    /// The meridian to the east.
    pub right: f64,
}

impl CoverBox {
    /// As a `geo_bounding_box` of Elasticsearch has it.
    pub fn to_query(self, field: &str) -> Value {
        let Self { top, left, bottom, right } = self;
        json!({"geo_bounding_box": {field: {"top": top, "left": left, "bottom": bottom, "right": right}}})
    }

    fn of(Bounds { south, north, west, east }: Bounds) -> Self {
        let (top, bottom) = ((north + MARGIN).min(90.0), (south - MARGIN).max(-90.0));
        let (west, east) = (west - MARGIN, east + MARGIN);
        if east - west >= 360.0 {
            return Self { top, left: -180.0, bottom, right: 180.0 };
        }
        Self { top, left: longitude(west), bottom, right: longitude(east) }
    }
}

/// The same meridian from -180 to 180: Elasticsearch refuses any other number.
fn longitude(degrees: f64) -> f64 {
    if degrees > 180.0 {
        degrees - 360.0
    } else if degrees < -180.0 {
        degrees + 360.0
    } else {
        degrees
    }
}

/// At most `most` boxes (6 at least) that hold every place whose leaf cell is in one of `ranges`, which are ascending and
/// apart from one another.
pub fn boxes(ranges: &[Range<u64>], most: usize) -> Vec<CoverBox> {
    let covered: f64 = ranges.iter().cloned().map(share_of_globe).sum();
    let mut cells: Vec<Cell> = Vec::new();
    let mut open: BinaryHeap<(u64, usize)> = BinaryHeap::new();
    let mut done: Vec<usize> = Vec::new();
    for face in Cell::faces() {
        add(face, ranges, covered, &mut cells, &mut open, &mut done);
    }
    while open.len() + done.len() + 3 <= most.max(6) {
        let Some((_, wasteful)) = open.pop() else { break };
        for child in cells[wasteful].children() {
            add(child, ranges, covered, &mut cells, &mut open, &mut done);
        }
    }
    let kept = open.into_iter().map(|(_, cell)| cell).chain(done);
    kept.map(|cell| CoverBox::of(cells[cell].bounds())).collect()
}

/// Takes a cell in, if it has a leaf of the ranges.
fn add(
    cell: Cell,
    ranges: &[Range<u64>],
    covered: f64,
    cells: &mut Vec<Cell>,
    open: &mut BinaryHeap<(u64, usize)>,
    done: &mut Vec<usize>,
) {
    let (first, last) = cell.leaves();
    let begin = ranges.partition_point(|range| range.end <= first);
    let inside = ranges[begin..].iter().take_while(|range| range.start <= last);
    let inside: Vec<Range<u64>> =
        inside.map(|range| range.start.max(first - 1)..range.end.min(last + 1)).collect();
    if inside.is_empty() {
        return;
    }
    let Bounds { south, north, west, east } = cell.bounds();
    let height = north.to_radians().sin() - south.to_radians().sin();
    let area = height * (east - west) / 720.0;
    let waste = area - inside.into_iter().map(share_of_globe).sum::<f64>();
    cells.push(cell);
    let index = cells.len() - 1;
    if waste > covered * SMALL_WASTE && cell.level() < 30 {
        // Floats above 0 are in the order of their bits.
        open.push((waste.to_bits(), index));
    } else {
        done.push(index);
    }
}

#[cfg(test)]
mod tests {
    use s2::cellid::CellID;
    use s2::latlng::LatLng;

    use super::*;
    use crate::base::geo::GeoPoint;
    use crate::base::random::Random;
    use crate::geoshard::cell;

    fn holds(bounds: &CoverBox, point: GeoPoint) -> bool {
        let CoverBox { top, left, bottom, right } = *bounds;
        let (lat, lon) = (point.lat(), point.lon());
        let in_lon = if left <= right { left <= lon && lon <= right } else { left <= lon || lon <= right };
        in_lon && bottom <= lat && lat <= top
    }

    /// Whether Elasticsearch takes it: it refuses the whole query for one box beyond the globe.
    fn is_accepted(bounds: &CoverBox) -> bool {
        let CoverBox { top, left, bottom, right } = *bounds;
        let globe = (-180.0..=180.0, -90.0..=90.0);
        [left, right].iter().all(|lon| globe.0.contains(lon))
            && [bottom, top].iter().all(|lat| globe.1.contains(lat))
            && bottom <= top
    }

    fn some_ranges(random: &mut Random) -> Vec<Range<u64>> {
        let mut borders: Vec<u64> =
            (0..2 + 2 * random.below(4)).map(|_| random.below(cell::END_OF_GLOBE / 2) * 2 + 1).collect();
        if random.below(2) == 0 {
            // Not far from one another, as where one geoshard gives a part to its neighbour.
            let step = 1 << (40 + random.below(18));
            let first = borders[0];
            borders
                .iter_mut()
                .zip(0_u64..)
                .for_each(|(border, n)| *border = ((first + n * step) % cell::END_OF_GLOBE) | 1);
        }
        borders.sort_unstable();
        borders.chunks_exact(2).filter(|pair| pair[0] < pair[1]).map(|pair| pair[0]..pair[1]).collect()
    }

    #[test]
    fn no_place_of_a_range_is_outside_of_all_boxes() {
        let mut random = Random::new(24);
        let mut inside = 0;
        for _ in 0..200 {
            let ranges = some_ranges(&mut random);
            let most = usize::try_from(6 + random.below(200)).unwrap();
            let found = boxes(&ranges, most);
            assert!(found.len() <= most);
            assert!(found.iter().all(is_accepted), "{found:?}");
            for range in &ranges {
                for n in 0..50 {
                    // Its ends, and leaves between.
                    let leaf = match n {
                        0 => range.start,
                        1 => range.end - 2,
                        _ => (range.start + random.below(range.end - range.start)) | 1,
                    };
                    if !range.contains(&leaf) {
                        continue;
                    }
                    let middle = LatLng::from(CellID(leaf));
                    let point = GeoPoint::new(middle.lat.deg(), middle.lng.deg()).unwrap();
                    assert!(
                        found.iter().any(|bounds| holds(bounds, point)),
                        "{ranges:?} {point:?} {found:?}"
                    );
                    inside += 1;
                }
            }
        }
        assert!(inside > 5_000, "{inside}");
    }

    #[test]
    fn poles_and_antimeridian_are_in_the_boxes_of_their_owners() {
        for (lat, lon) in [
            (90.0, 0.0),
            (90.0, 77.0),
            (-90.0, -120.0),
            (0.0, 180.0),
            (0.0, -180.0),
            (45.0, 180.0),
            (-45.0, -180.0),
            (89.999_999, 180.0),
            (0.0, 45.0),
            (0.0, -45.0),
            (35.264_389_682_754_654, 45.0),
            (0.0, 0.0),
        ] {
            let point = GeoPoint::new(lat, lon).unwrap();
            let leaf = cell::leaf(point);
            for reach in [1, 1 << 20, 1 << 40, 1 << 58] {
                let range = leaf.saturating_sub(reach)..(leaf + reach).min(cell::END_OF_GLOBE);
                let found = boxes(std::slice::from_ref(&range), 50);
                assert!(found.iter().any(|bounds| holds(bounds, point)), "{lat},{lon} {reach}: {found:?}");
            }
        }
    }

    /// The area of the union, by points drawn in each box: a point in several of them counts for each in part.
    fn area(boxes: &[CoverBox], random: &mut Random) -> f64 {
        const DRAWN: u32 = 20;
        let mut area = 0.0;
        for &CoverBox { top, left, bottom, right } in boxes {
            let width = (right - left).rem_euclid(360.0);
            let (low, high) = (bottom.to_radians().sin(), top.to_radians().sin());
            for _ in 0..DRAWN {
                let lat = (low + random.share() * (high - low)).asin().to_degrees();
                let lon = (left + random.share() * width + 540.0).rem_euclid(360.0) - 180.0;
                let point = GeoPoint::new(lat.clamp(bottom, top), lon).unwrap();
                let times = boxes.iter().filter(|bounds| holds(bounds, point)).count().max(1);
                area += (high - low) * width / 720.0 / f64::from(DRAWN) / times as f64;
            }
        }
        area
    }

    #[test]
    fn boxes_hold_little_more_than_the_ranges() {
        let mut random = Random::new(25);
        for _ in 0..20 {
            let start = random.below(cell::END_OF_GLOBE / 2) * 2 + 1;
            let range = start..(start + (1 << 54)).min(cell::END_OF_GLOBE);
            let found = area(&boxes(std::slice::from_ref(&range), 200), &mut random);
            let covered = share_of_globe(range);
            assert!(found < 1.5 * covered + 1e-9, "{start}: {found} for {covered}");
        }
    }
}
