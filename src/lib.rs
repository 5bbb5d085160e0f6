//! geofold keeps a geosharded Elasticsearch index exactly in step with a Kafka topic.

pub mod clock;
pub mod elastic;
pub mod geo;
pub mod ids;
pub mod position;
pub mod write;
