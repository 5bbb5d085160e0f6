//! Documents' contributions to live counts: facets, versions, edges, increments. Pure.
//!
//! Rules: `docs/tally.md`.

pub mod edges;
pub mod facets;
pub mod increment;
pub(crate) mod scan;
pub mod steps;
pub mod version;
