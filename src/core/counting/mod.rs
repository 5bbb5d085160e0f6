//! What documents contribute to live counts, and how that changes: facets, versions, edges, increments. Pure.
//!
//! `docs/tally.md` has the rules.

pub mod edges;
pub mod facets;
pub mod increment;
pub(crate) mod scan;
pub mod steps;
pub mod version;
