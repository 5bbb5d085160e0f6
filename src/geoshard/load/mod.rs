//! Load: how much of what a map has to spread is in a place.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the load of a place, whatever it is the sum of |
//! | `counter.rs` | writes and searches by S2 cell since the last look; what the hot path updates |
//! | `record.rs` | what is kept: rates by cell that decay, and the profile of two weeks by hour |
//! | `forecast.rs` | the coming hours, from the profile |
//! | `shown.rs` | the hottest places, the rates of geoshards, the last hours |
//!
//! Pure: time is passed in, as seconds since 1970, since the record outlives processes.

pub mod counter;
pub mod forecast;
pub mod record;
pub mod shown;

pub use counter::{LoadCounter, LoadDelta, PlaceCounts};
pub use forecast::{ExpectedCell, Over};
pub use record::{CellRates, LoadRecord};
pub use shown::{HotPlace, Hours};

use crate::base::figures::grouped;

/// The load of a cell, or of several.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize)]
pub struct CellLoad {
    /// Sum of the points' loads.
    pub load: f64,
    /// How many points.
    pub points: u64,
}

/// Formats a load: whole numbers if large.
pub(crate) fn amount(load: f64) -> String {
    if load >= 100.0 || (load.fract() == 0.0 && load >= 0.0) {
        grouped(&format!("{load:.0}"))
    } else {
        format!("{load:.3}")
    }
}
