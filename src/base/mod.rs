//! The words that everything else is written in: ids, positions, points, time, delays, requests to Elasticsearch as types.
//!
//! No I/O. It imports nothing of the crate but itself.

pub(crate) mod causes;
pub mod clock;
pub(crate) mod fnv;
pub mod geo;
pub mod ids;
pub mod position;
#[doc(hidden)]
pub mod random;
pub mod requests;
pub mod retry;
pub mod sabotage;
