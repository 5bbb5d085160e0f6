//! How far the nearest point of each geoshard is from a point: in which order a search for the nearest documents asks, and
//! when it may stop.

use super::cell::Cell;
use crate::base::geo::{EARTH_RADIUS_METRES, GeoPoint};
use crate::geoshard::GeoshardMap;

/// Metres from `point` to the nearest cell of each geoshard, in the order of [`GeoshardMap::shards`]; 0 where the point is in
/// one. The distance along the sphere, without a margin: what Elasticsearch measures to a document of the geoshard may be
/// less by the margin of a circle's cover.
pub fn distances(map: &GeoshardMap, point: GeoPoint) -> Vec<f64> {
    let (lat, lon) = (point.lat().to_radians(), point.lon().to_radians());
    let [x, y, z] = [lat.cos() * lon.cos(), lat.cos() * lon.sin(), lat.sin()];
    let (starts, owners) = map.table();
    let mut walk = Walk {
        starts,
        owners,
        centres: [[y, z, x], [-x, z, y], [-x, -y, z], [-z, -y, -x], [-z, x, -y], [y, x, -z]],
        nearest: vec![f64::INFINITY; map.shards().len()],
    };
    let mut faces: Vec<(f64, Cell)> = Cell::faces().map(|face| (walk.angle(&face), face)).collect();
    faces.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (angle, face) in faces {
        walk.visit(&face, angle, 0, starts.len());
    }
    walk.nearest.iter().map(|angle| angle * EARTH_RADIUS_METRES).collect()
}

struct Walk<'a> {
    starts: &'a [u64],
    owners: &'a [usize],
    /// The point in u, v and w of each face, a vector of length 1.
    centres: [[f64; 3]; 6],
    /// Of each geoshard, the smallest angle so far.
    nearest: Vec<f64>,
}

impl Walk<'_> {
    /// A cell at this angle; `from` and `to` are ranges that hold it.
    fn visit(&mut self, cell: &Cell, angle: f64, from: usize, to: usize) {
        let (first, last) = cell.leaves();
        let starts = &self.starts[from..to];
        let begin = from + starts.partition_point(|&start| start <= first).saturating_sub(1);
        let end = from + starts.partition_point(|&start| start <= last);
        let owners = &self.owners[begin..end];
        if owners.iter().all(|&owner| self.nearest[owner] <= angle) {
            return;
        }
        if owners.iter().all(|owner| *owner == owners[0]) {
            self.nearest[owners[0]] = angle;
            return;
        }
        // The nearest first: what it finds ends the others early.
        let mut children = cell.children().map(|child| (self.angle(&child), child));
        children.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (angle, child) in children {
            self.visit(&child, angle, begin, end);
        }
    }

    /// The angle between the point and the nearest point of a cell.
    fn angle(&self, cell: &Cell) -> f64 {
        let [cu, cv, cw] = self.centres[cell.face];
        // Each side as the coordinates along and across it: the side is where `across` has this value.
        let sides = [
            (cu, cell.u[0], -1.0, cv, cell.v),
            (cu, cell.u[1], 1.0, cv, cell.v),
            (cv, cell.v[0], -1.0, cu, cell.u),
            (cv, cell.v[1], 1.0, cu, cell.u),
        ];
        if cw > 0.0 && sides.iter().all(|&(across, at, outward, _, _)| outward * (across - at * cw) <= 0.0) {
            return 0.0;
        }
        let mut least = f64::INFINITY;
        for (across, at, _, along, [from, to]) in sides {
            let length2 = 1.0 + at * at;
            let distance = across - at * cw;
            // The point of the side's great circle that is nearest to the centre; it counts if it is on the side.
            let foot_w = cw + distance * at / length2;
            if foot_w > 0.0 && from * foot_w <= along && along <= to * foot_w {
                let foot = (along * along + foot_w * foot_w * length2).sqrt();
                least = least.min((distance.abs() / length2.sqrt()).atan2(foot));
            }
        }
        for (u, v) in [(0, 0), (1, 0), (1, 1), (0, 1)].map(|(u, v)| (cell.u[u], cell.v[v])) {
            let cross = [cv - v * cw, u * cw - cu, cu * v - cv * u];
            let sine = (cross[0] * cross[0] + cross[1] * cross[1] + cross[2] * cross[2]).sqrt();
            least = least.min(sine.atan2(cu * u + cv * v + cw));
        }
        least
    }
}

#[cfg(test)]
mod tests {
    use s2::cellid::CellID;
    use s2::latlng::LatLng;

    use super::super::{Shape, cover};
    use super::*;
    use crate::base::geo::Distance;
    use crate::base::ids::ShardId;
    use crate::base::random::Random;

    fn some_point(random: &mut Random) -> GeoPoint {
        let corner = [0.0_f64, 45.0, -45.0, 90.0, -90.0, 180.0, -180.0, 135.0];
        let pick = |random: &mut Random, limit: f64| match random.below(4) {
            0 => corner[usize::try_from(random.below(8)).unwrap()].clamp(-limit, limit),
            _ => (random.share() * 2.0 - 1.0) * limit,
        };
        let lat = pick(random, 90.0);
        GeoPoint::new(lat, pick(random, 180.0)).unwrap()
    }

    fn some_map(random: &mut Random) -> GeoshardMap {
        let mut starts: Vec<u64> = (0..1 + random.below(40))
            .map(|_| match random.below(3) {
                0 => {
                    CellID::from(LatLng::from_degrees(
                        random.share() * 180.0 - 90.0,
                        random.share() * 360.0 - 180.0,
                    ))
                    .0 | 1
                }
                _ => (random.below(6 << 10) << 51) | 1,
            })
            .filter(|&start| start > 1)
            .collect();
        starts.sort_unstable();
        starts.dedup();
        let shard = |random: &mut Random| ShardId::new(&format!("s{}", random.below(12))).unwrap();
        let mut ranges = vec![(0, shard(random))];
        for start in starts {
            ranges.push((start, shard(random)));
        }
        GeoshardMap::new(1, "random", ranges).unwrap()
    }

    /// The covers of circles are held against Elasticsearch and against exact distances elsewhere.
    #[test]
    fn a_geoshard_is_in_the_cover_of_a_circle_from_its_distance_on() {
        let mut random = Random::new(5);
        let mut tried = 0;
        for _ in 0..400 {
            let (map, point) = (some_map(&mut random), some_point(&mut random));
            let distances = distances(&map, point);
            assert!(distances.contains(&0.0), "{point:?}");
            for (shard, metres) in map.shards().iter().zip(distances) {
                let has = |metres: f64| {
                    let radius = Distance::from_metres(metres.max(0.0)).unwrap();
                    cover(&map, &Shape::circle(point, radius)).contains(shard)
                };
                assert!(has(metres), "{point:?} {shard} {metres}");
                // The circle is grown by a metre.
                if metres > 2.0 && metres < 19_990_000.0 {
                    assert!(!has(metres - 1.2), "{point:?} {shard} {metres}");
                    tried += 1;
                }
            }
        }
        assert!(tried > 1000, "{tried}");
    }
}
