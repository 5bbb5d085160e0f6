//! Document logic without I/O: decoding, folding, placing, moving, counting, invariants.
//!
//! Imports `base` and `geoshard`, and no client of any server.

pub mod counting;
pub mod decode;
pub(crate) mod defect;
pub mod dirty_set;
pub(crate) mod filter_path;
pub mod fold;
pub mod invariants;
pub mod look_ahead;
pub mod mover;
pub mod offsets;
pub mod placement;
pub mod schemas;
mod score_order;
pub mod write;
