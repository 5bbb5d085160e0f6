//! What the tests stand on: the stack, a world (topic, indices, configuration) of one's own, workers as child
//! processes, and the truth to compare with.

pub mod postgres;
mod proxy;
mod stack;
mod truth;
mod worker;
pub mod world;

use std::time::{Duration, Instant};

pub use geofold::random::{Random, seed_of_test};
pub use proxy::{Faults, Proxy};
pub use stack::Stack;
pub use truth::{CITIES, Event, Truth, random_events};
pub use worker::Worker;
pub use world::{Raw, World, WorldOptions, text};

/// Asks until `condition` gives a value; panics with what it was about after `patience`.
pub fn wait_for<T>(what: &str, patience: Duration, condition: impl FnMut() -> Option<T>) -> T {
    wait_for_or(patience, condition).unwrap_or_else(|| panic!("waited {patience:?} in vain for {what}"))
}

/// Asks until `condition` gives a value; `None` after `patience`.
pub fn wait_for_or<T>(patience: Duration, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        let value = condition();
        if value.is_some() || began.elapsed() >= patience {
            return value;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The seed of a randomized test, printed, so that a failure can be replayed.
pub fn seed(test: &str) -> u64 {
    let seed = seed_of_test();
    eprintln!("replay with: GEOFOLD_SEED={seed} cargo test --features real-services --test real {test}");
    seed
}
