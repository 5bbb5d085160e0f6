//! The difference between two maps: the area and the load that change geoshard.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::Serialize;

use super::cell::{share_of_globe, tiles};
use super::cities::largest_cities;
use super::load::CellLoad;
use super::load::amount;
use super::map::GeoshardMap;
use crate::base::figures::count;
use crate::base::geo::GeoPoint;
use crate::base::ids::ShardId;

/// Compares two maps, and counts the points added.
#[derive(Debug)]
pub struct Comparison<'m> {
    old: &'m GeoshardMap,
    new: &'m GeoshardMap,
    /// By indices of the old and the new geoshard.
    flows: BTreeMap<(usize, usize), ShardFlow>,
    total: Option<CellLoad>,
}

/// The difference.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MapDiff {
    /// The version of the old map.
    pub old_version: u64,
    /// The version of the new map.
    pub new_version: u64,
    /// Geoshards of the new map only: their indices must be created.
    pub added: Vec<ShardId>,
    /// Geoshards of the old map only: their indices become empty.
    pub removed: Vec<ShardId>,
    /// The sum of the moves.
    pub moved: Moved,
    /// The contents of all geoshards, if points were given.
    pub total: Option<CellLoad>,
    /// Moves by source and target, the largest first.
    pub flows: Vec<ShardFlow>,
}

/// The size of a move.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Moved {
    /// Number of S2 cells of any size.
    pub cells: usize,
    /// Share of the globe's surface, 0 to 1.
    pub share_of_globe: f64,
    /// Its contents, if points were given.
    #[serde(flatten)]
    pub load: Option<CellLoad>,
}

/// A move from one geoshard to another.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShardFlow {
    /// The geoshard by the old map.
    pub from: ShardId,
    /// The geoshard by the new map.
    pub to: ShardId,
    /// The largest city of `from` by the old map, if it has one of the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_around: Option<&'static str>,
    /// The largest city of `to` by the new map, if it has one of the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_around: Option<&'static str>,
    /// Its size.
    #[serde(flatten)]
    pub moved: Moved,
}

/// A part of the curve that two maps give to different geoshards.
#[derive(Debug, Clone, PartialEq)]
pub struct ChangedRange<'m> {
    /// Leaf cells.
    pub leaves: Range<u64>,
    /// The geoshard by the old map.
    pub from: &'m ShardId,
    /// The geoshard by the new map.
    pub to: &'m ShardId,
}

/// All that two maps differ in, along the curve.
pub fn changed_ranges<'m>(old: &'m GeoshardMap, new: &'m GeoshardMap) -> Vec<ChangedRange<'m>> {
    let mut changed = Vec::new();
    let (mut olds, mut news) = (old.ranges().peekable(), new.ranges().peekable());
    let mut start = 0;
    while let (Some((before, from)), Some((after, to))) = (olds.peek(), news.peek()) {
        let end = before.end.min(after.end);
        if from != to {
            changed.push(ChangedRange { leaves: start..end, from, to });
        }
        start = end;
        olds.next_if(|(range, _)| range.end == end);
        news.next_if(|(range, _)| range.end == end);
    }
    changed
}

impl<'m> Comparison<'m> {
    /// Compares the maps themselves.
    pub fn new(old: &'m GeoshardMap, new: &'m GeoshardMap) -> Self {
        let mut comparison = Self { old, new, flows: BTreeMap::new(), total: None };
        let (old_cities, new_cities) = (largest_cities(old), largest_cities(new));
        for ChangedRange { leaves, from, to } in changed_ranges(old, new) {
            let key = (index(old, from), index(new, to));
            let flow = comparison.flows.entry(key).or_insert_with(|| ShardFlow {
                from: from.clone(),
                to: to.clone(),
                from_around: old_cities[key.0],
                to_around: new_cities[key.1],
                moved: Moved::default(),
            });
            flow.moved.cells += tiles(leaves.clone()).count();
            flow.moved.share_of_globe += share_of_globe(leaves);
        }
        comparison
    }

    /// Counts a point.
    pub fn add(&mut self, point: GeoPoint, load: f64) {
        let one = CellLoad { load, points: 1 };
        self.total.get_or_insert_default().add(one);
        let key = (self.old.locate_index(point), self.new.locate_index(point));
        // No flow: nothing moves there.
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.moved.load.get_or_insert_default().add(one);
        }
    }

    /// Returns the result.
    pub fn finish(self) -> MapDiff {
        let Self { old, new, flows, total } = self;
        let only = |map: &GeoshardMap, other: &GeoshardMap| {
            map.shards().iter().filter(|shard| !other.shards().contains(shard)).cloned().collect()
        };
        let mut flows: Vec<ShardFlow> = flows.into_values().collect();
        if total.is_some() {
            for flow in &mut flows {
                flow.moved.load.get_or_insert_default();
            }
        }
        let weight = |flow: &ShardFlow| (flow.moved.load.unwrap_or_default().load, flow.moved.share_of_globe);
        flows.sort_by(|a, b| {
            let ((load_a, area_a), (load_b, area_b)) = (weight(a), weight(b));
            load_b.total_cmp(&load_a).then(area_b.total_cmp(&area_a))
        });
        let mut moved = Moved { load: total.map(|_| CellLoad::default()), ..Moved::default() };
        for flow in &flows {
            moved.cells += flow.moved.cells;
            moved.share_of_globe += flow.moved.share_of_globe;
            if let (Some(sum), Some(load)) = (&mut moved.load, flow.moved.load) {
                sum.add(load);
            }
        }
        MapDiff {
            old_version: old.version(),
            new_version: new.version(),
            added: only(new, old),
            removed: only(old, new),
            moved,
            total,
            flows,
        }
    }
}

fn index(map: &GeoshardMap, shard: &ShardId) -> usize {
    map.shards().partition_point(|known| known < shard)
}

impl fmt::Display for MapDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { old_version, new_version, added, removed, moved, total, flows } = self;
        writeln!(f, "from map version {old_version} to {new_version}")?;
        let list = |ids: &[ShardId]| ids.iter().map(ShardId::as_str).collect::<Vec<_>>().join(", ");
        for (what, ids) in [("new geoshards", added), ("geoshards that are gone", removed)] {
            if !ids.is_empty() {
                writeln!(f, "{what}: {}", list(ids))?;
            }
        }
        if flows.is_empty() {
            return writeln!(f, "every place stays in its geoshard");
        }
        writeln!(f, "{:.4} % of the globe moves, in {} cells", moved.share_of_globe * 100.0, moved.cells)?;
        if let (Some(load), Some(total)) = (moved.load, total) {
            let share = if total.load > 0.0 { load.load / total.load * 100.0 } else { 0.0 };
            let (load, points) = (amount(load.load), count(load.points));
            writeln!(
                f,
                "{share:.2} % of the load moves: {load} of {}, {points} of {} points",
                amount(total.load),
                count(total.points)
            )?;
        }
        let ids = flows.iter().flat_map(|flow| [&flow.from, &flow.to]);
        let wide = ids.map(|id| id.as_str().len()).chain(["from".len()]).max().unwrap_or_default();
        let columns = if total.is_some() { "          load     points" } else { "" };
        writeln!(f, "\n{:wide$}  {:wide$}   cells  % of globe{columns}  around", "from", "to")?;
        for ShardFlow { from, to, from_around, to_around, moved } in flows {
            let percent = moved.share_of_globe * 100.0;
            write!(f, "{:wide$}  {:wide$}  {:>6}  {percent:>10.4}", from.as_str(), to.as_str(), moved.cells)?;
            if let Some(load) = moved.load {
                write!(f, "  {:>12}  {:>9}", amount(load.load), count(load.points))?;
            }
            match (from_around, to_around) {
                (None, None) => writeln!(f)?,
                (from, to) => writeln!(f, "  {} -> {}", from.unwrap_or("-"), to.unwrap_or("-"))?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::geoshard::cell::END_OF_GLOBE;

    fn map(version: u64, ranges: &[(u64, &str)]) -> GeoshardMap {
        let ranges = ranges.iter().map(|&(from, id)| (from, ShardId::new(id).unwrap())).collect();
        GeoshardMap::new(version, "test", ranges).unwrap()
    }

    fn at(lon: f64) -> GeoPoint {
        GeoPoint::new(10.0, lon).unwrap()
    }

    #[test]
    fn area_with_another_geoshard_moves_with_its_load() {
        // Face 1 goes from a to b, and the south pole's face from b to c.
        let old = map(1, &[(0, "a"), (2 << 61 | 1, "b")]);
        let new = map(2, &[(0, "a"), (1 << 61 | 1, "b"), (5 << 61 | 1, "c")]);
        let mut comparison = Comparison::new(&old, &new);
        for (lon, load) in [(0.0, 1.0), (90.0, 2.0), (91.0, 0.5), (180.0, 4.0)] {
            comparison.add(at(lon), load);
        }
        assert_eq!(
            comparison.finish().to_string(),
            "from map version 1 to 2\n\
             new geoshards: c\n\
             33.3333 % of the globe moves, in 2 cells\n\
             33.33 % of the load moves: 2.500 of 7.500, 2 of 4 points\n\
             \n\
             from  to     cells  % of globe          load     points  around\n\
             a     b          1     16.6667         2.500          2  Delhi -> Tokyo\n\
             b     c          1     16.6667             0          0  Tokyo -> -\n"
        );
    }

    #[test]
    fn without_points_flows_are_sorted_by_area() {
        let old = map(3, &[(0, "a"), (1 << 59 | 1, "b"), (2 << 61 | 1, "c")]);
        let new = map(4, &[(0, "c")]);
        let diff = Comparison::new(&old, &new).finish();
        let flows: Vec<_> = diff.flows.iter().map(|flow| (flow.from.as_str(), flow.to.as_str())).collect();
        assert_eq!(flows, [("b", "c"), ("a", "c")]);
        assert_eq!((diff.total, diff.moved.load), (None, None));
        assert!(diff.to_string().contains("geoshards that are gone: a, b"));
        let json = serde_json::to_value(&diff).unwrap();
        assert_eq!(json["flows"][0].get("load"), None);
    }

    #[test]
    fn same_map_changes_nothing() {
        let one = map(1, &[(0, "a"), (1 << 61 | 1, "b")]);
        let diff = Comparison::new(&one, &one).finish();
        assert_eq!(diff.to_string(), "from map version 1 to 1\nevery place stays in its geoshard\n");
    }

    fn maps() -> impl Strategy<Value = GeoshardMap> {
        let ranges =
            prop::collection::btree_map((1..END_OF_GLOBE / 2).prop_map(|half| half * 2 + 1), 0..6_u8, 0..30);
        ranges.prop_map(|ranges| {
            let ids =
                ranges.into_iter().map(|(from, owner)| (from, ShardId::new(&owner.to_string()).unwrap()));
            let first = (0, ShardId::new("first").unwrap());
            GeoshardMap::new(1, "", std::iter::once(first).chain(ids).collect()).unwrap()
        })
    }

    proptest! {
        #[test]
        fn point_moves_iff_the_maps_differ_there(
            old in maps(), new in maps(), points in prop::collection::vec((-90.0..90.0, -180.0..180.0), 60),
        ) {
            let mut comparison = Comparison::new(&old, &new);
            let mut moves = 0;
            for (lat, lon) in points {
                let point = GeoPoint::new(lat, lon).unwrap();
                moves += u64::from(old.locate(point) != new.locate(point));
                comparison.add(point, 1.0);
            }
            let diff = comparison.finish();
            prop_assert_eq!(diff.moved.load.unwrap().points, moves);
            prop_assert!(diff.flows.iter().all(|flow| flow.from != flow.to && flow.moved.share_of_globe > 0.0));
        }
    }
}
