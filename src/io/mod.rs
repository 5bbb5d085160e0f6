//! The clients of Elasticsearch, Kafka, the schema registry and the database, and what geofold itself stores in Elasticsearch:
//! indices, maps in force, claims, facts about the topic, its load.
//!
//! It imports `support` and below.

pub mod aws;
pub mod claims;
pub mod database;
pub mod elastic;
pub mod indices;
pub mod kafka;
pub mod load;
pub mod maps;
pub mod meta;
pub mod registry;
pub mod send;
pub mod stored;
