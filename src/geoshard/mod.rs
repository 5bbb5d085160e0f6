//! Geoshards: the regions of the globe that have an index each.
//!
//! Pure geometry: [`cell`] numbers the globe along S2's Hilbert curve, [`map`] cuts that curve into ranges and gives
//! each to a geoshard, [`describe`] says so to people and programs.

pub mod cell;
pub mod describe;
pub mod map;

pub use map::{GeoshardMap, MapError};
