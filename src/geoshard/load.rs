//! Load: how much of what a map has to spread is in a place.

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
    if load >= 100.0 || load.fract() == 0.0 { format!("{load:.0}") } else { format!("{load:.3}") }
}
