//! `geofold route`: searches over geoshards by one address, as if they were one index.
//!
//! | file | what it holds |
//! |---|---|
//! | `request.rs` | a search as the client wrote it: passed on, kept for merging, or refused by name; pure |
//! | `sort.rs` | the order of hits; pure |
//! | `constraint/` | where every hit of a query must be; pure |
//! | `constraint/shapes.rs` | Elasticsearch's ways to write shapes; pure |
//! | `target.rs` | the geoshards of a region, by all maps that are live; their order by distance; pure |
//! | `nearest.rs` | whom to ask next for the nearest, and when to stop; pure |
//! | `merge.rs` | answers into one; pure |
//! | `error.rs` | why there is no answer, in Elasticsearch's shape |
//! | `hedge.rs` | when a request to Elasticsearch is sent twice, and how many are; pure |
//! | `load.rs` | how much is searched where |
//! | `upstream.rs` | the request to Elasticsearch |
//! | `service.rs` | one search from its request to its answer |
//! | `http.rs` | the paths |
//!
//! It keeps no state but the load's counters: any number of routers answer side by side.

pub mod constraint;
pub mod error;
pub mod hedge;
pub mod http;
pub mod load;
pub mod merge;
pub mod nearest;
pub mod request;
pub mod service;
pub mod sort;
pub mod target;
#[cfg(test)]
mod tests;
pub mod upstream;
