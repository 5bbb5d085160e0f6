//! Tally: live counts of what documents say, kept by increments, each counted exactly once.
//!
//! Workers (emitters) find out what each write changed, as *edges*, and send them to a topic as *increments*, at least once;
//! collectors merge them into counts in one transaction. `docs/tally.md` has the rules.
//!
//! Here are the collectors and the recount; emitters are `worker/increments/`, what both stand on is `core/counting/`.

pub mod collect;
pub mod recount;
