//! geofold keeps a geosharded Elasticsearch index exactly in step with a Kafka topic.
//!
//! The way of one write: librdkafka → [`worker::consumer`] (the poll thread) → [`worker::partition`] (one task each) →
//! [`core::decode`] → [`core::dirty_set`] (fold) → [`core::mover`] (rounds) → [`io::elastic`] → outcomes → watermark →
//! commit. `ARCHITECTURE.md` has the map with its invariants, `docs/protocol.md` the rules by which documents move.
//!
//! The modules are layers, lowest first. Each imports only itself and those above it in this list; `tests/it/layers.rs`
//! holds the code to it.
//!
//! | layer | what is in it |
//! |---|---|
//! | [`base`] | ids, positions, points, time, delays, requests to Elasticsearch as types |
//! | [`geoshard`] | the map: ranges of S2's curve, each with an owner; planning it, covering areas, pictures |
//! | [`core`] | decisions without I/O: decoding, folding, placing, moving, counting, invariants |
//! | [`support`] | configuration, metrics, events, logs, traces, background tasks |
//! | [`io`] | Elasticsearch, Kafka, schema registry and database, and what geofold stores of its own |
//! | [`worker`] | the member of the consumer group, with refreshes, distribution and fetches from the source of truth |
//! | [`route`] | searches sent to the geoshards that they need |
//! | [`ops`] | checks, audits, migrations, campaigns, the collector, the admin server |
//! | [`testkit`] | stand-ins inside the process, and the demo on them |
//! | [`cli`] | the command line |

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
// Not in tests: their binaries share modules.
#![cfg_attr(feature = "program", warn(unreachable_pub))]
// Only the program reaches some of it.
#![cfg_attr(not(feature = "program"), allow(dead_code, unused_imports))]

pub mod base;
#[cfg(feature = "program")]
pub mod cli;
pub mod core;
pub mod geoshard;
pub mod io;
#[cfg(feature = "program")]
pub mod ops;
#[cfg(feature = "program")]
pub mod route;
pub mod support;
pub mod testkit;
pub mod worker;
