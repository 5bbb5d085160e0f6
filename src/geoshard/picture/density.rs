//! Where points are: how many in each half-degree cell.

use std::fmt::Write;

use crate::base::geo::GeoPoint;

const COLUMNS: usize = 720;
const ROWS: usize = 360;
/// From few points to many.
pub(super) const LEVELS: usize = 4;

/// Points by half-degree cell.
#[derive(Debug, Clone)]
pub struct Density {
    points: Vec<u64>,
}

impl Default for Density {
    fn default() -> Self {
        Self { points: vec![0; COLUMNS * ROWS] }
    }
}

impl Density {
    /// One more point.
    pub fn add(&mut self, point: GeoPoint) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 720")]
        let half = |degrees: f64| (degrees * 2.0) as usize;
        let (x, y) = (half(point.lon() + 180.0).min(COLUMNS - 1), half(90.0 - point.lat()).min(ROWS - 1));
        self.points[y * COLUMNS + x] += 1;
    }

    /// A path of cells for each level, from few points to many, in tenths of a degree.
    pub(super) fn paths(&self) -> [String; LEVELS] {
        let most = self.points.iter().copied().max().unwrap_or_default();
        let mut paths = [const { String::new() }; LEVELS];
        for (index, &points) in self.points.iter().enumerate().filter(|(_, points)| **points > 0) {
            let (x, y) = (index % COLUMNS * 5, index / COLUMNS * 5);
            // Writing to a string cannot fail.
            let _ = write!(paths[level(points, most)], "M{x} {y}h5v5h-5z");
        }
        paths
    }
}

/// On a logarithmic scale: cities have a thousand times the points of villages.
fn level(points: u64, most: u64) -> usize {
    let log = |points: u64| f64::from(u64::BITS - points.leading_zeros());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below LEVELS")]
    let level = ((log(points) - 1.0) / log(most).max(1.0) * LEVELS as f64) as usize;
    level.min(LEVELS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_with_more_points_are_of_a_higher_level() {
        let mut density = Density::default();
        for (lat, lon, points) in [(90.0, -180.0, 1), (-90.0, 180.0, 40), (0.2, 0.2, 1000)] {
            (0..points).for_each(|_| density.add(GeoPoint::new(lat, lon).unwrap()));
        }
        let paths = density.paths();
        assert_eq!(paths[0], "M0 0h5v5h-5z");
        assert_eq!(paths[2], "M3595 1795h5v5h-5z");
        assert_eq!(paths[3], "M1800 895h5v5h-5z");
        assert_eq!(paths[1], "");
        assert_eq!(Density::default().paths().concat(), "");
    }
}
