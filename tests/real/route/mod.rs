//! `geofold route`: searches through it give what one index with the same documents gives.
//!
//! | file | what it holds |
//! |---|---|
//! | `equality.rs` | random queries, against one index with the same documents |
//! | `moving.rs` | searches while documents move, and while the map is changed |
//! | `trouble.rs` | workers, Elasticsearch and the router killed under concurrent clients |
//! | `partial.rs` | searches that some shards cannot answer |
//! | `clients.rs` | the official clients for Rust, Python and JavaScript |
//! | `corpus.rs` | the documents, in geoshards and in one index |
//! | `queries.rs` | random queries |
//! | `judge.rs` | compares two answers; pure |
//! | `router.rs` | a router as a child process |
//!
//! `GEOFOLD_ROUTE_QUERIES=100000` runs more queries than the gate does. `GEOFOLD_ROUTE_TARGET=elasticsearch` sends what the router
//! should answer to Elasticsearch itself, over all geoshards: a check of these tests without a router.

mod clients;
mod corpus;
mod equality;
mod judge;
mod moving;
mod partial;
mod queries;
mod router;
mod trouble;

/// How many queries a test sends: `GEOFOLD_ROUTE_QUERIES`, or what the gate has time for.
fn wanted_queries(in_the_gate: usize) -> usize {
    std::env::var("GEOFOLD_ROUTE_QUERIES").map_or(in_the_gate, |text| text.parse().unwrap())
}
