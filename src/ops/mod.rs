//! Tools beside the worker: checks, audits, migrations, campaigns, the collector, the admin server.
//!
//! It imports `worker` and below.

pub mod admin;
pub mod audit;
pub mod autopilot;
pub mod campaign;
pub mod check;
pub mod dead_letters;
pub mod document;
pub mod dry_run;
pub mod group;
pub mod migrate;
pub mod points;
pub mod records;
pub mod repartition;
pub mod snapshot;
pub mod tally;
