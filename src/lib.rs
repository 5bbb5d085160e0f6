//! geofold keeps a geosharded Elasticsearch index exactly in step with a Kafka topic.

pub mod admin;
pub mod check;
pub mod cli;
pub mod clock;
pub mod config;
pub mod dead_letter;
pub mod decode;
pub mod demo;
pub mod dirty_set;
pub mod elastic;
pub mod embedded;
pub mod geo;
pub mod geoshard;
pub mod ids;
pub mod indices;
pub mod invariants;
pub mod kafka;
pub mod meta;
pub mod mover;
pub mod placement;
pub mod position;
pub mod retry;
pub mod send;
pub mod telemetry;
#[cfg(test)]
mod testing;
pub mod worker;
pub mod write;
