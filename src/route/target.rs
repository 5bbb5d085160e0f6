//! Which geoshards a search has to ask: the cover of its region, by every map that is live.

use std::collections::{BTreeMap, BTreeSet};

use super::constraint::Region;
use crate::base::geo::GeoPoint;
use crate::base::ids::ShardId;
use crate::geoshard::cover::{MARGIN_METRES, WHOLE_GLOBE_METRES, cover, distances};
use crate::geoshard::{GeoshardMap, LiveMaps};

/// What a search asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Targets {
    /// Sorted, at least one: Elasticsearch makes the answer also where nothing can be found.
    pub shards: Vec<ShardId>,
    /// How many geoshards there are.
    pub total: usize,
}

impl Targets {
    /// Where hits within `region` may be. While a map is changed a document is where either map says.
    pub fn of(maps: &LiveMaps, region: &Region) -> Self {
        let all: BTreeSet<&ShardId> = maps.iter().flat_map(|map| map.shards()).collect();
        let mut found: BTreeSet<ShardId> = BTreeSet::new();
        for map in maps.iter() {
            match within(map, region) {
                Some(shards) => found.extend(shards),
                None => found.extend(map.shards().iter().cloned()),
            }
        }
        let total = all.len();
        if found.is_empty() {
            found.extend(all.first().map(|shard| (*shard).clone()));
        }
        Self { shards: found.into_iter().collect(), total }
    }
}

/// The geoshards of one map that hold some of the region; `None` for all of them.
fn within(map: &GeoshardMap, region: &Region) -> Option<BTreeSet<ShardId>> {
    match region {
        Region::Anywhere => None,
        Region::Within(shape) => Some(cover(map, shape).into_iter().collect()),
        Region::All(parts) => parts
            .iter()
            .filter_map(|part| within(map, part))
            .reduce(|found, more| found.intersection(&more).cloned().collect()),
        Region::Any(parts) => {
            let mut found = BTreeSet::new();
            for part in parts {
                found.extend(within(map, part)?);
            }
            Some(found)
        }
    }
}

/// Geoshards in the order in which a search for the nearest documents asks them, each with a bound: Elasticsearch measures no
/// less than that many metres to any document in it.
pub fn by_distance(maps: &LiveMaps, point: GeoPoint, shards: &[ShardId]) -> Vec<(f64, ShardId)> {
    let mut nearest: BTreeMap<&ShardId, f64> = BTreeMap::new();
    for map in maps.iter() {
        for (shard, metres) in map.shards().iter().zip(distances(map, point)) {
            nearest.entry(shard).and_modify(|least| *least = least.min(metres)).or_insert(metres);
        }
    }
    // Around the opposite point Lucene's arithmetic has lost its digits: there, nothing is bounded.
    let bound = |metres: f64| (metres.min(WHOLE_GLOBE_METRES) - MARGIN_METRES).max(0.0);
    let mut ordered: Vec<(f64, ShardId)> = shards
        .iter()
        .map(|shard| (nearest.get(shard).map_or(0.0, |&metres| bound(metres)), shard.clone()))
        .collect();
    ordered.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
    ordered
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::geoshard::cover::Shape;
    use crate::testkit::testing::six_faces;

    fn circle(text: &str) -> Region {
        Region::Within(Shape::parse_circle(text).unwrap())
    }

    fn ids(targets: &Targets) -> Vec<&str> {
        targets.shards.iter().map(ShardId::as_str).collect()
    }

    #[test]
    fn a_region_is_asked_where_its_shapes_are() {
        let maps = LiveMaps::One(six_faces());
        let shards = |region: Region| {
            let targets = Targets::of(&maps, &region);
            assert_eq!(targets.total, 6);
            targets.shards.len()
        };
        assert_eq!(shards(circle("0,0,1km")), 1);
        assert_eq!(shards(circle("0,45,1km")), 2);
        assert_eq!(shards(Region::Anywhere), 6);
        assert_eq!(shards(Region::Any(vec![circle("0,0,1km"), circle("0,90,1km")])), 2);
        assert_eq!(shards(Region::All(vec![circle("0,45,1km"), circle("0,0,1km")])), 1);
        assert_eq!(shards(Region::All(vec![Region::Anywhere, circle("0,0,1km")])), 1);
        assert_eq!(
            shards(Region::All(vec![circle("0,0,1km"), circle("0,90,1km")])),
            1,
            "one, to be answered"
        );
        assert_eq!(shards(Region::Any(vec![circle("0,0,1km"), Region::Anywhere])), 6);
    }

    #[test]
    fn while_a_map_is_changed_both_are_asked() {
        let new = GeoshardMap::new(2, "one", vec![(0, ShardId::new("all").unwrap())]).unwrap();
        let maps = LiveMaps::Two { old: six_faces(), new: Arc::new(new) };
        let targets = Targets::of(&maps, &circle("0,0,1km"));
        assert_eq!((targets.total, targets.shards.len()), (7, 2));
        assert!(ids(&targets).contains(&"all"));
        assert_eq!(Targets::of(&maps, &Region::Anywhere).shards.len(), 7);
        // A hit is by one map or the other in all shapes, not in one shape by each.
        let apart = Region::All(vec![circle("0,0,1km"), circle("0,90,1km")]);
        assert_eq!(ids(&Targets::of(&maps, &apart)), ["all"]);
        let ordered = by_distance(
            &maps,
            GeoPoint::new(0.0, 0.0).unwrap(),
            &Targets::of(&maps, &Region::Anywhere).shards,
        );
        assert_eq!((ordered[0].0, ordered[1].0), (0.0, 0.0));
        assert!(ordered[2].0 > 4_900_000.0 && ordered.len() == 7);
    }
}
