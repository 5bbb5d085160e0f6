//! Why a map cannot be changed.

use thiserror::Error;

use crate::base::figures::{percent, percent_up};
use crate::base::ids::ShardId;
use crate::geoshard::map::MapError;
use crate::geoshard::plan::{MAX_LEVEL, PlanError};

/// Why a map cannot be changed so.
#[derive(Debug, Error)]
pub enum ChangeError {
    /// Not an id of the map.
    #[error("the map has no geoshard {id:?}; it has {}", listed(known))]
    UnknownShard {
        /// What was asked for.
        id: String,
        /// What there is.
        known: Vec<ShardId>,
    },
    /// A geoshard and itself.
    #[error("cannot merge geoshard {0} with itself: name two")]
    SameShard(ShardId),
    /// No border of one is a border of the other.
    #[error(
        "cannot merge {a} and {b}: no range of one begins where a range of the other ends; next to {a} are {}",
        listed(neighbours)
    )]
    NotNeighbours {
        /// One.
        a: ShardId,
        /// The other.
        b: ShardId,
        /// What could be merged with the first.
        neighbours: Vec<ShardId>,
    },
    /// Nothing to cut between.
    #[error(
        "cannot split {shard}: all of its load lies in {}",
        match level {
            Some(level) => format!(
                "one S2 cell of level {level}; give smaller cells (--finest, {MAX_LEVEL} at most)"
            ),
            None => "no cell: no point with a load is in it".to_owned(),
        }
    )]
    OneCell {
        /// Which geoshard.
        shard: ShardId,
        /// The level of the cell, if there is one.
        level: Option<u64>,
    },
    /// Cutting a geoshard of several ranges within a budget is not done.
    #[error(
        "geoshard {shard} has several ranges, and a budget is kept only for maps with one range for each: \
         plan without --max-moved, or use `shards split` and `shards merge`"
    )]
    SeveralRanges {
        /// Which geoshard.
        shard: ShardId,
    },
    /// Not a share.
    #[error("cannot move at most {0} of the load: give a share from 0 to 1")]
    Share(f64),
    /// Counts, levels or split of no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Nothing to plan by.
    #[error("there is no load to plan by: no points, or all of them with load 0")]
    NoLoad,
    /// Geoshards cannot be fewer than cells.
    #[error(
        "points lie in {cells} cells only, too few for {count} geoshards: choose a higher level (--level, --finest) or fewer geoshards (--min, --max)"
    )]
    TooFewCells {
        /// Cells.
        cells: usize,
        /// The number of geoshards.
        count: usize,
    },
    /// Would take too much memory or time.
    #[error(
        "{cells} cells and {count} geoshards are too much to plan within a budget: choose a lower level, a higher split, or fewer geoshards"
    )]
    TooMuch {
        /// Cells to cut between.
        cells: usize,
        /// Geoshards, over all counts to try.
        count: usize,
    },
    /// Another number of geoshards that cannot be had.
    #[error(
        "every map with {min} to {max} geoshards moves at least {}, more than {}: raise --max-moved, or choose a count nearer to the {before} of --after",
        percent_up(*least),
        percent(*max_moved)
    )]
    OverBudget {
        /// The lowest number tried.
        min: usize,
        /// The highest number tried.
        max: usize,
        /// What the cheapest of them moves, 0 to 1.
        least: f64,
        /// What may move, 0 to 1.
        max_moved: f64,
        /// Geoshards before.
        before: usize,
    },
    /// The map is the best already.
    #[error(
        "no map with {count} geoshards that moves at most {} is more even than the one of --after (largest load {max_over_mean:.3} times the mean): {}",
        percent(*max_moved),
        match needs {
            Some(needs) => format!("give --max-moved {} or more", percent_up(*needs)),
            None => "nor is one that moves more; give smaller cells (--level, --finest, --split), or more geoshards (--max)".to_owned(),
        }
    )]
    NoBetter {
        /// How many geoshards.
        count: usize,
        /// What may move, 0 to 1.
        max_moved: f64,
        /// How even the map is.
        max_over_mean: f64,
        /// What has to move to improve it, 0 to 1; `None` if nothing does.
        needs: Option<f64>,
    },
    /// What was made is no map.
    #[error(transparent)]
    Map(#[from] MapError),
}

fn listed(ids: &[ShardId]) -> String {
    const MOST: usize = 20;
    let mut listed: Vec<&str> = ids.iter().take(MOST).map(ShardId::as_str).collect();
    if ids.len() > MOST {
        listed.push("…");
    }
    if listed.is_empty() { "none".to_owned() } else { listed.join(", ") }
}
