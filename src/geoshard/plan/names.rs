//! The ids of planned geoshards.
//!
//! A document moves if the new map gives its place another geoshard id. So a plan that follows a map reuses its ids: it
//! pairs old and new geoshards, those with the most load in common first.

use std::collections::BTreeSet;

use super::cells::WalkedCell;
use crate::base::ids::ShardId;
use crate::geoshard::map::GeoshardMap;

/// Source of geoshard ids.
#[derive(Debug, Clone, Copy)]
pub enum Naming<'a> {
    /// `s00`, `s01`, … along the curve.
    Fresh,
    /// Those of an older map, and fresh ones if it has too few.
    After(&'a GeoshardMap),
}

impl Naming<'_> {
    /// An id for each geoshard, given its places in curve order.
    pub(super) fn ids(&self, stretches: &[&[WalkedCell]]) -> Vec<ShardId> {
        let (mut ids, taken) = match self {
            Self::Fresh => (vec![None; stretches.len()], BTreeSet::new()),
            Self::After(old) => (inherited(stretches, old), old.shards().iter().collect()),
        };
        let mut fresh = fresh(stretches.len()).filter(|id| !taken.contains(id));
        for id in ids.iter_mut().filter(|id| id.is_none()) {
            *id = fresh.next();
        }
        ids.into_iter().flatten().collect()
    }
}

/// `s00`, `s01`, … for `count` geoshards.
pub(super) fn fresh(count: usize) -> impl Iterator<Item = ShardId> {
    let digits = count.saturating_sub(1).to_string().len().max(2);
    (0_usize..).filter_map(move |number| ShardId::new(&format!("s{number:0digits$}")).ok())
}

fn inherited(stretches: &[&[WalkedCell]], old: &GeoshardMap) -> Vec<Option<ShardId>> {
    let mut common = Vec::new();
    for (new, places) in stretches.iter().enumerate() {
        let mut loads = vec![(0.0, 0_u64); old.shards().len()];
        for place in *places {
            let (load, points) = &mut loads[old.owner_of_leaf(place.cell.range_min().0)];
            *load += place.load;
            *points += place.points;
        }
        let shared = loads.into_iter().enumerate().filter(|(_, (_, points))| *points > 0);
        common.extend(shared.map(|(owner, (load, points))| (load, points, new, owner)));
    }
    // Stable, so that equals stay in the order of the curve.
    common.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
    let mut ids = vec![None; stretches.len()];
    let mut given = vec![false; old.shards().len()];
    for (_, _, new, owner) in common {
        if ids[new].is_none() && !given[owner] {
            ids[new] = Some(old.shards()[owner].clone());
            given[owner] = true;
        }
    }
    ids
}

#[cfg(test)]
mod tests {
    use s2::cellid::CellID;

    use super::*;

    fn map(ranges: &[(u64, &str)]) -> GeoshardMap {
        let ranges = ranges.iter().map(|&(from, shard)| (from, ShardId::new(shard).unwrap())).collect();
        GeoshardMap::new(1, "old", ranges).unwrap()
    }

    fn place(face: u64, load: f64) -> WalkedCell {
        WalkedCell { cell: CellID::from_face(face), load, points: 1 }
    }

    fn texts(ids: &[ShardId]) -> Vec<&str> {
        ids.iter().map(ShardId::as_str).collect()
    }

    #[test]
    fn fresh_ids_follow_the_curve() {
        let one = [place(0, 1.0)];
        let many = vec![&one[..]; 101];
        assert_eq!(texts(&Naming::Fresh.ids(&many[..3])), ["s00", "s01", "s02"]);
        assert_eq!(Naming::Fresh.ids(&many)[100].as_str(), "s100");
        assert_eq!(Naming::Fresh.ids(&many)[7].as_str(), "s007");
    }

    #[test]
    fn ids_go_to_the_largest_common_load_without_duplicates() {
        let old = map(&[(0, "west"), (2 << 61 | 1, "s00"), (4 << 61 | 1, "east")]);
        let new =
            [vec![place(0, 1.0)], vec![place(1, 5.0), place(2, 2.0)], vec![place(3, 1.0), place(5, 9.0)]];
        let stretches: Vec<&[WalkedCell]> = new.iter().map(Vec::as_slice).collect();
        // The new geoshards that share load with "s00" share more with others, so "s00" stays unused and the first gets
        // a fresh id.
        assert_eq!(texts(&Naming::After(&old).ids(&stretches)), ["s01", "west", "east"]);
    }
}
