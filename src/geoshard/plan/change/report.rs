//! What a changed map means for the load.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use crate::base::figures;
use crate::base::ids::ShardId;
use crate::geoshard::diff::Comparison;
use crate::geoshard::load::amount;
use crate::geoshard::map::GeoshardMap;
use crate::geoshard::plan::{Balance, WalkedCell};
use crate::geoshard::tracks::Crossings;

/// What a changed map means for the load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChangeReport {
    /// The map's name.
    pub name: String,
    /// The map's version.
    pub version: u64,
    /// Points that it was planned by.
    pub points: u64,
    /// Their load.
    pub load: f64,
    /// Geoshards before.
    pub count_before: usize,
    /// Geoshards after.
    pub count: usize,
    /// How even the load was; absent without load.
    pub before: Option<Balance>,
    /// How even it becomes.
    pub after: Option<Balance>,
    /// The budget, where there is one.
    pub budget: Option<MoveBudget>,
    /// Load that gets another geoshard.
    pub moved: f64,
    /// The same as a part of all load, 0 to 1.
    pub share_moved: f64,
    /// Part of the globe's surface that gets another geoshard, 0 to 1.
    pub share_of_globe: f64,
    /// The geoshards that gain or lose places, sorted.
    pub changed: Vec<ChangedShard>,
    /// What tracks cross under the new map, if there were any.
    pub crossings: Option<Crossings>,
}

/// A budget, and how far it reaches.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MoveBudget {
    /// The part of the load that may get another geoshard, 0 to 1.
    pub max_moved: f64,
    /// No map with that many geoshards that moves at most so much has a lower largest load over mean, even if geoshards
    /// had several ranges each.
    pub lower_bound: f64,
    /// The least largest load over mean, whatever moves.
    pub without_budget: f64,
}

/// A geoshard that gains or loses places.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChangedShard {
    /// Its id.
    pub shard: ShardId,
    /// Its load before; absent if it is new.
    pub before: Option<f64>,
    /// Its load after; absent if it is gone.
    pub after: Option<f64>,
    /// Load that it gets.
    pub gains: f64,
    /// Load that it gives away.
    pub loses: f64,
}

/// What it means that `map` takes the place of `old`, by the load of cells.
pub(super) fn report(
    old: &GeoshardMap,
    map: &GeoshardMap,
    cells: &[WalkedCell],
    budget: Option<MoveBudget>,
) -> ChangeReport {
    #[derive(Default, Clone, Copy)]
    struct Flows {
        before: f64,
        after: f64,
        gains: f64,
        loses: f64,
    }
    let mut flows: BTreeMap<&ShardId, Flows> = BTreeMap::new();
    for shard in old.shards().iter().chain(map.shards()) {
        flows.entry(shard).or_default();
    }
    let (mut load, mut points, mut moved) = (0.0, 0, 0.0);
    for cell in cells {
        let leaf = cell.cell.range_min().0;
        let (from, to) = (&old.shards()[old.owner_of_leaf(leaf)], &map.shards()[map.owner_of_leaf(leaf)]);
        load += cell.load;
        points += cell.points;
        flows.entry(from).or_default().before += cell.load;
        flows.entry(to).or_default().after += cell.load;
        if from != to {
            moved += cell.load;
            flows.entry(from).or_default().loses += cell.load;
            flows.entry(to).or_default().gains += cell.load;
        }
    }
    let diff = Comparison::new(old, map).finish();
    let touched: BTreeSet<&ShardId> = diff.flows.iter().flat_map(|flow| [&flow.from, &flow.to]).collect();
    let loads = |map: &GeoshardMap, of: fn(&Flows) -> f64| -> Option<Balance> {
        let loads: Vec<f64> = map.shards().iter().filter_map(|shard| flows.get(shard)).map(of).collect();
        (load > 0.0).then(|| Balance::of(&loads))
    };
    let changed = |shard: &&ShardId| {
        let of = flows.get(*shard).copied().unwrap_or_default();
        ChangedShard {
            shard: (*shard).clone(),
            before: old.shards().contains(shard).then_some(of.before),
            after: map.shards().contains(shard).then_some(of.after),
            gains: of.gains,
            loses: of.loses,
        }
    };
    ChangeReport {
        name: map.name().to_owned(),
        version: map.version(),
        points,
        load,
        count_before: old.shards().len(),
        count: map.shards().len(),
        before: loads(old, |of| of.before),
        after: loads(map, |of| of.after),
        budget,
        moved,
        share_moved: if load > 0.0 { moved / load } else { 0.0 },
        share_of_globe: diff.moved.share_of_globe,
        changed: touched.iter().map(changed).collect(),
        crossings: None,
    }
}

impl fmt::Display for ChangeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, version, points, count_before, count, changed, .. } = self;
        write!(f, "map {name:?}, version {version}: {count} geoshards")?;
        if count != count_before {
            write!(f, ", {count_before} before")?;
        }
        if *points > 0 {
            write!(f, "; planned by {} points with load {}", figures::count(*points), amount(self.load))?;
        }
        writeln!(f)?;
        if let (Some(before), Some(after)) = (self.before, self.after) {
            writeln!(f, "\n                 max/mean     cv %")?;
            for (what, Balance { cv, max_over_mean, .. }) in [("before", before), ("after", after)] {
                writeln!(f, "{what:<15}  {max_over_mean:>8.3}  {:>7.3}", cv * 100.0)?;
            }
            if let Some(MoveBudget { lower_bound, without_budget, .. }) = self.budget {
                writeln!(
                    f,
                    "{:<15}  {lower_bound:>8.3}           no map within the budget is below",
                    "bound"
                )?;
                writeln!(f, "{:<15}  {without_budget:>8.3}           whatever moves", "without budget")?;
            }
            write!(
                f,
                "\n{:.2} % of the load moves: {} of {}",
                self.share_moved * 100.0,
                amount(self.moved),
                amount(self.load)
            )?;
            match self.budget {
                Some(budget) => writeln!(f, "; budget {}", figures::percent(budget.max_moved))?,
                None => writeln!(f)?,
            }
        }
        writeln!(f, "{:.4} % of the globe moves", self.share_of_globe * 100.0)?;

        let wide = changed.iter().map(|one| one.shard.as_str().len()).chain(["shard".len()]).max();
        let wide = wide.unwrap_or_default();
        writeln!(f, "\n{:wide$}        before         after         gains         loses", "shard")?;
        for ChangedShard { shard, before, after, gains, loses } in changed {
            let [before, after] =
                [(before, "new"), (after, "gone")].map(|(load, else_)| load.map_or(else_.to_owned(), amount));
            let (gains, loses) = (amount(*gains), amount(*loses));
            writeln!(f, "{:wide$}  {before:>12}  {after:>12}  {gains:>12}  {loses:>12}", shard.as_str())?;
        }
        if let Some(crossings) = &self.crossings {
            writeln!(f, "\n{crossings}")?;
        }
        Ok(())
    }
}
