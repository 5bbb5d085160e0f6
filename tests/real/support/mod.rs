//! What the tests stand on: the stack, a world (topic, indices, configuration) of one's own, workers as child
//! processes, and the truth to compare with.

pub mod postgres;
mod proxy;
mod stack;
mod truth;
mod worker;
pub mod world;

use std::sync::atomic::{AtomicBool, Ordering};

pub use crate::wait::{TIMEOUT, ask_for, wait_at_most};
pub use geofold::base::random::{Random, seed_of_test};
pub use proxy::{Faults, Proxy};
pub use stack::Stack;
pub use truth::{CITIES, Event, Truth, random_events};
pub use worker::Worker;
pub use world::{Raw, World, WorldOptions, text};

/// Ends a thread of a scope, however the test ends.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The seed of a randomized test, printed, so that a failure can be replayed.
pub fn seed(test: &str) -> u64 {
    let seed = seed_of_test();
    eprintln!("replay with: GEOFOLD_SEED={seed} cargo test --features real-services --test real {test}");
    seed
}
