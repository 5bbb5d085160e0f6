//! Waiting for what another process does.

#![allow(dead_code, reason = "each test program uses some of it")]

use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

/// For what takes seconds on an idle machine, and a minute on one with ten times too much to do.
pub const TIMEOUT: Duration = Duration::from_secs(600);

/// Asks until there is an answer.
pub fn wait_for<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    wait_at_most(what, TIMEOUT, ask)
}

/// Asks until there is an answer; panics with what it was about after `patience`.
pub fn wait_at_most<T>(what: &str, patience: Duration, ask: impl FnMut() -> Option<T>) -> T {
    ask_for(patience, ask).unwrap_or_else(|| panic!("waited {patience:?} in vain for {what}"))
}

/// Asks until there is an answer about this process; panics at once if it ends without one.
pub fn wait_while_running<T>(process: &Child, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    wait_for(what, || {
        // Looked at first: what it did before it ended counts.
        let has_ended = has_ended(process);
        let answer = ask();
        assert!(answer.is_some() || !has_ended, "the process ended while waited for: {what}");
        answer
    })
}

/// Whether it has ended. Its exit code is left for [`Child::wait`].
fn has_ended(process: &Child) -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    // An error: somebody has fetched the exit code already.
    waitid(WaitId::Pid(Pid::from_child(process)), look).map_or(true, |end| end.is_some())
}

/// Asks until there is an answer; `None` after `patience`.
pub fn ask_for<T>(patience: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        let answer = ask();
        if answer.is_some() || began.elapsed() >= patience {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
