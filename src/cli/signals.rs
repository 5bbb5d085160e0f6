//! SIGTERM and SIGINT as a cancellation token; SIGHUP as a stream or as another stop signal.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::Failure;

/// Exit code after a second signal, as shells report an interrupt.
const EXIT_AT_ONCE: i32 = 130;

/// A token that the first SIGTERM or SIGINT cancels; the second ends the process.
pub(super) fn stop_on_signal() -> Result<CancellationToken, Failure> {
    stop_on_signal_or(None)
}

/// As [`stop_on_signal`], for commands that end by themselves: SIGHUP (terminal closed) also cancels the token, unless it is
/// ignored, as under `nohup`.
pub(super) fn stop_on_signal_or_hang_up() -> Result<CancellationToken, Failure> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    stop_on_signal_or(if ignores_hang_ups(&status) { None } else { Some(hang_ups()?) })
}

fn stop_on_signal_or(mut hang_ups: Option<Signal>) -> Result<CancellationToken, Failure> {
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    #[expect(clippy::disallowed_methods, reason = "it only waits, and nothing in it panics")]
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                () = next(&mut hang_ups) => {
                    // Shell and kernel may both send SIGHUP: it never counts as the second signal.
                    stopped.cancel();
                    continue;
                }
            }
            if stopped.is_cancelled() {
                tracing::warn!("second signal: exiting at once");
                std::process::exit(EXIT_AT_ONCE);
            }
            stopped.cancel();
        }
    });
    Ok(stop)
}

/// The stream of SIGHUPs, each a request to reload. SIGHUP no longer ends the process.
pub(super) fn hang_ups() -> Result<Signal, Failure> {
    Ok(signal(SignalKind::hangup()).context("listening for SIGHUP")?)
}

async fn next(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether SIGHUP is ignored, by the mask in `/proc/self/status` (Linux only); its lowest bit is SIGHUP.
fn ignores_hang_ups(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_hang_ups_are_ignored_is_read_from_the_mask() {
        let status = |mask: &str| format!("Name:\tgeofold\nSigBlk:\t0000000000000001\nSigIgn:\t{mask}\n");
        assert!(ignores_hang_ups(&status("0000000000001001")));
        assert!(!ignores_hang_ups(&status("0000000000001000")));
        assert!(!ignores_hang_ups("") && !ignores_hang_ups(&status("?")));
    }
}
