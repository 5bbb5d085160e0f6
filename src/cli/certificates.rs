//! TLS of a listener: read at the start, and again when the files change.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Failure;
use crate::support::supervisor::Supervisor;
use crate::support::tls::{Tls, TlsFiles};

/// How often the files are read.
const INTERVAL: Duration = Duration::from_secs(2);

/// TLS as `files` say, followed until `stop`; `whose` is the listener's name in logs.
pub(super) fn followed(
    files: Option<TlsFiles>,
    whose: &'static str,
    supervisor: &Supervisor,
    stop: &CancellationToken,
) -> Result<Option<Tls>, Failure> {
    let Some(files) = files else { return Ok(None) };
    let tls = Tls::read(files).map_err(Failure::usage)?;
    supervisor.spawn("certificate reload", stop.clone(), follow(tls.clone(), whose, stop.clone()));
    Ok(Some(tls))
}

async fn follow(tls: Tls, whose: &'static str, stop: CancellationToken) {
    let mut known = None;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        let tls = tls.clone();
        // It waits for the disk. A panic in it was reported where it happened.
        let Ok(read) = tokio::task::spawn_blocking(move || tls.read_again()).await else { continue };
        if let Ok(true) = read {
            tracing::info!("the {whose}'s certificate was read again; new connections have it");
        }
        let error = read.err();
        if let Some(error) = error.as_ref().filter(|error| known.as_ref() != Some(*error)) {
            tracing::warn!(
                %error,
                "the {whose}'s certificate changed and cannot be used; the one before stays in force"
            );
        }
        known = error;
    }
}
