//! What geofold tells its operators: numbers, log lines, and the events that own both.
//!
//! | file | what it holds |
//! |---|---|
//! | `families.rs` | metrics whose labels are Rust enums, and the register that knows every metric's name and help |
//! | `metrics.rs` | [`Metrics`]: every metric of the worker, one struct of handles |
//! | `events.rs` | one type per event that an operator may need: its log line and its counters |
//! | `requests.rs` | [`Metrics`] as the observer of requests to Elasticsearch |
//! | `logging.rs` | where log lines go, as text or JSON |

pub mod events;
pub mod families;
pub mod logging;
pub mod metrics;
mod requests;

pub use metrics::{Metrics, Outcome, PartitionMetrics};
