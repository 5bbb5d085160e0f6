//! Stand-ins for Kafka and Elasticsearch inside the process, the demo on them, and helpers of unit tests.
//!
//! It imports `ops` and below; only `cli` and tests import it.

#[cfg(feature = "program")]
pub mod demo;
pub mod embedded;
pub mod ports;
#[cfg(test)]
pub(crate) mod testing;
pub mod week;
