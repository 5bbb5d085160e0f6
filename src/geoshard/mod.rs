//! Geoshards: regions of the globe with one index each.
//!
//! Pure geometry: [`cell`] numbers the globe along S2's Hilbert curve, [`map`] cuts that curve into ranges and gives
//! each to a geoshard, [`live`] holds the maps in force, [`mod@cover`] finds the geoshards that a circle, a box or a polygon
//! touches, [`describe`] prints a map, [`mod@diff`] compares two.
//! [`plan`] makes a map from load, [`tracks`] counts the writes that cross its borders. [`outline`] finds the polygons that
//! [`geojson`] and [`picture`] draw. [`cities`] has names for them. [`mod@load`] is what workers and routers count by cell, and [`balance`] decides by it what to change.

pub mod balance;
pub mod cell;
pub mod cities;
pub mod cover;
pub mod describe;
pub mod diff;
pub mod geojson;
pub mod live;
pub mod load;
pub mod map;
pub mod outline;
pub mod picture;
pub mod plan;
pub mod tracks;

pub use live::LiveMaps;
pub use map::{GeoshardMap, MapError};
