//! SIGTERM and SIGINT, as a token; SIGHUP, as it comes.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::Failure;

/// Exit code after a second signal, as shells report an interrupt.
const EXIT_AT_ONCE: i32 = 130;

/// A token that the first SIGTERM or SIGINT cancels; the second ends the process.
pub fn stop_on_signal() -> Result<CancellationToken, Failure> {
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
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

/// SIGHUP: each means to read the configuration again. It no longer ends the process.
pub fn hang_ups() -> Result<Signal, Failure> {
    Ok(signal(SignalKind::hangup()).context("listening for SIGHUP")?)
}
