//! Which geoshards a circle touches.

use s2::cap::Cap;
use s2::cell::Cell;
use s2::cellid::CellID;
use s2::latlng::LatLng;
use s2::point::Point;
use s2::region::Region;
use s2::s1::{Angle, Rad};

use super::map::GeoshardMap;
use crate::geo::GeoPoint;

/// The mean radius of the Earth in metres that Elasticsearch's `geo_distance` counts with.
pub const EARTH_RADIUS_M: f64 = 6_371_008.771_4;

/// A circle on the globe.
#[derive(Debug, Clone)]
pub struct Circle(Cap);

impl Circle {
    /// The circle around `centre` with a radius in metres, measured on the sphere.
    pub fn new(centre: GeoPoint, radius_m: f64) -> Self {
        let centre = Point::from(LatLng::from_degrees(centre.lat(), centre.lon()));
        Self(Cap::from_center_angle(&centre, &Angle::from(Rad(radius_m / EARTH_RADIUS_M))))
    }
}

/// The geoshards of `map` with a point inside `circle`, as indices into [`GeoshardMap::shards`], sorted.
///
/// Cells are descended into where several geoshards share them and the circle meets them. Cells that are shared are the
/// ones around the map's few cuts, so this is quick however fine the map is.
pub fn shards_touched(map: &GeoshardMap, circle: &Circle) -> Vec<usize> {
    let mut touched = Vec::new();
    let mut open: Vec<CellID> = (0..6).map(CellID::from_face).collect();
    while let Some(id) = open.pop() {
        let owners = map.owners_within(id.range_min().0..id.range_max().0 + 1);
        if owners.iter().all(|owner| touched.contains(owner)) || !circle.0.intersects_cell(&Cell::from(id)) {
            continue;
        }
        match owners {
            [owner] => touched.push(*owner),
            // A leaf has one owner, so this one has children.
            _ => open.extend(id.children()),
        }
    }
    touched.sort_unstable();
    touched
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::random::Random;

    fn sample() -> GeoshardMap {
        GeoshardMap::load(Path::new("config/map-55.json")).unwrap()
    }

    fn point(random: &mut Random) -> GeoPoint {
        GeoPoint::new((2.0 * random.share() - 1.0).asin().to_degrees(), random.share() * 360.0 - 180.0)
            .unwrap()
    }

    #[test]
    fn a_circle_touches_the_owner_of_its_centre_and_of_every_point_inside() {
        let (map, mut random) = (sample(), Random::new(7));
        for _ in 0..300 {
            let (centre, radius_m) = (point(&mut random), random.share() * 800_000.0);
            let touched = shards_touched(&map, &Circle::new(centre, radius_m));
            let at = LatLng::from_degrees(centre.lat(), centre.lon());
            let mut seen = BTreeSet::from([map.locate_index(centre)]);
            for _ in 0..300 {
                let reach = radius_m / EARTH_RADIUS_M;
                let lat = centre.lat() + (2.0 * random.share() - 1.0) * reach.to_degrees();
                let lon = centre.lon() + (2.0 * random.share() - 1.0) * 20.0;
                let Ok(other) = GeoPoint::new(lat, lon) else { continue };
                if at.distance(&LatLng::from_degrees(other.lat(), other.lon())).rad() < reach * 0.999_999 {
                    seen.insert(map.locate_index(other));
                }
            }
            for owner in seen {
                assert!(touched.contains(&owner), "{centre:?} {radius_m}: {touched:?} misses {owner}");
            }
        }
    }

    #[test]
    fn a_circle_touches_no_geoshard_without_a_point_inside() {
        let (map, mut random) = (sample(), Random::new(8));
        for _ in 0..200 {
            let (centre, radius_m) = (point(&mut random), 1000.0 + random.share() * 300_000.0);
            let touched = shards_touched(&map, &Circle::new(centre, radius_m));
            // Rings of points, close enough to each other to find all but slivers; a slightly larger circle forgives those.
            let mut seen = BTreeSet::from([map.locate_index(centre)]);
            let (lat, lon) = (centre.lat().to_radians(), centre.lon().to_radians());
            for ring in 1..=60 {
                let reach = radius_m / EARTH_RADIUS_M * 1.02 * f64::from(ring) / 60.0;
                for step in 0..240 {
                    let bearing = f64::from(step) * std::f64::consts::TAU / 240.0;
                    let to_lat = (lat.sin() * reach.cos() + lat.cos() * reach.sin() * bearing.cos()).asin();
                    let to_lon = lon
                        + (bearing.sin() * reach.sin() * lat.cos())
                            .atan2(reach.cos() - lat.sin() * to_lat.sin());
                    let wrapped = (to_lon.to_degrees() + 540.0).rem_euclid(360.0) - 180.0;
                    let Ok(other) = GeoPoint::new(to_lat.to_degrees(), wrapped) else { continue };
                    seen.insert(map.locate_index(other));
                }
            }
            for owner in &touched {
                assert!(seen.contains(owner), "{centre:?} {radius_m}: {owner} of {touched:?} is not inside");
            }
        }
    }

    #[test]
    fn a_circle_around_the_globe_touches_all() {
        let whole = Circle::new(GeoPoint::new(10.0, 20.0).unwrap(), 21_000_000.0);
        assert_eq!(shards_touched(&sample(), &whole).len(), 55);
    }
}
