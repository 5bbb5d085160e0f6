//! Waiting for what another process does.

use std::time::{Duration, Instant};

/// For what takes seconds on an idle machine, and half a minute on a busy one.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Asks until there is an answer.
pub fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
