//! Telemetry: metrics, log lines, and events that own both.
//!
//! | file | what it holds |
//! |---|---|
//! | `families.rs` | metrics whose labels are Rust enums, and the register that knows every metric's name and help |
//! | `metrics.rs` | [`Metrics`]: every metric of the worker, one struct of handles |
//! | `partitions.rs` | the metrics of a partition |
//! | `elasticsearch.rs` | the metrics of requests to Elasticsearch, and what observes them |
//! | `distribution.rs` | the metrics of distribution jobs |
//! | `refeed.rs` | the metrics of refeeds |
//! | `schemas.rs` | the metrics of the schema registry |
//! | `collector.rs` | every metric of a collector |
//! | `route.rs` | every metric of a router |
//! | `autopilot.rs` | every metric of `geofold shards autopilot` |
//! | `maps.rs` | what is known of the maps in force |
//! | `tally.rs` | the metrics of live counts |
//! | `visibility.rs` | the metrics of refreshes |
//! | `events.rs` | one type per event that an operator may need: its log line and its counters |
//! | `health.rs` | [`Health`](health::Health): is the process alive, is it ready, and if not, why |
//! | `probes.rs` | the routes `/healthz`, `/readyz` and `/metrics` of every process |
//! | `logging.rs` | where log lines go, as text or JSON |
//! | `repeats.rs` | log lines that repeat: one per key and interval |
//! | `traces/` | traces for OpenTelemetry, with the feature `otel` |
//! | `recent.rs` | the last warnings and errors, for the status page |
//! | `reading.rs` | what the metrics say now, for the status page |
//! | `reload.rs` | what came of a configuration that was read again |
//! | `audit.rs` | what the worker's own audit found |
//! | `partition_status.rs` | the status of each partition, for the status page |

pub mod audit;
pub mod autopilot;
pub mod collector;
pub mod distribution;
pub mod elasticsearch;
pub mod events;
pub mod families;
pub mod health;
pub mod logging;
pub mod maps;
pub mod metrics;
pub mod partition_status;
pub mod partitions;
pub mod probes;
pub mod reading;
pub mod recent;
pub mod refeed;
pub mod reload;
mod repeats;
pub mod route;
pub mod schemas;
pub mod tally;
pub mod traces;
pub mod visibility;

pub use metrics::Metrics;
pub use partitions::{OutcomeLabel, PartitionMetrics};
pub use recent::Recent;
