//! From a Kafka record to a write.

pub mod merge_patch;
mod object;

pub use self::object::BadObject;
