//! Geoshards: the regions of the globe that have an index each.
//!
//! Pure geometry: [`cell`] numbers the globe along S2's Hilbert curve, [`map`] cuts that curve into ranges and gives
//! each to a geoshard, [`live`] says which maps hold now, [`mod@cover`] which geoshards a circle, a box or a polygon
//! touches, [`describe`] tells people and programs about a map. [`plan`] makes a map from load; [`touch`] counts the
//! geoshards that a circle needs, [`tracks`] the writes that cross borders.

pub mod cell;
pub mod cover;
pub mod describe;
pub mod live;
pub mod map;
pub mod outline;
pub mod plan;
pub mod touch;
pub mod tracks;

pub use live::LiveMaps;
pub use map::{GeoshardMap, MapError};
