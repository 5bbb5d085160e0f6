//! Basic types: ids, positions, points, names of record headers, time, delays, rates, circuit breaker, requests to Elasticsearch, figures and
//! progress for people.
//!
//! No I/O, and no imports from other modules of the crate.

pub(crate) mod causes;
pub mod circuit_breaker;
pub mod clock;
pub mod colours;
pub mod concurrency_limit;
pub(crate) mod figures;
pub(crate) mod fnv;
pub mod geo;
pub mod headers;
pub mod ids;
pub mod pace;
pub mod position;
pub mod progress;
#[doc(hidden)]
pub mod random;
pub mod requests;
pub mod retry;
pub mod sabotage;
mod shard_names;
