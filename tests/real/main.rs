//! The suite that needs real services: a Kafka and an Elasticsearch, as `dev/stack` starts them.
//!
//! `dev/test` brings both up, exports where they are, runs this, and takes them down. By hand:
//!
//! ```text
//! dev/stack up && eval "$(dev/stack env)"
//! cargo test --features real-services --test real
//! ```
//!
//! Every test makes topics and indices of its own, so that tests neither see each other nor an earlier run.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a helper that fails is a test that fails")]
#![expect(clippy::cast_possible_truncation, reason = "small numbers of a test's own")]

mod adopt;
mod audit;
mod autopilot;
mod bounded;
mod campaigns;
mod collector;
mod compression;
mod counters;
mod cover;
mod crashes;
mod dead_letters;
mod distribution;
mod dry_run;
mod far_behind;
mod limits;
mod lost_records;
mod membership;
mod migrate;
#[path = "../clients/mod.rs"]
mod official_clients;
mod one_copy;
mod operators;
mod order;
mod outages;
mod placements;
mod prometheus;
mod quick_start;
mod refeed;
#[expect(dead_code, reason = "not all of what the fast tests compare with is needed here")]
#[path = "../it/cover/reference.rs"]
mod reference;
mod rewind;
mod route;
mod snapshot;
#[path = "../stack_lock.rs"]
mod stack_lock;
mod starvation;
mod stop;
#[expect(dead_code, reason = "tests/chaos needs more of it")]
mod support;
mod sweep;
mod tally;
mod topic_changes;
mod tutorial;
mod visibility;
#[path = "../wait.rs"]
mod wait;
mod week;
