//! Increments of a partition's counts: when they are sent, and the topic that they go to.

pub mod emitter;
pub mod topic;
