//! Increments of a partition's counts: when to send them, and their topic.

pub mod emitter;
pub mod topic;
