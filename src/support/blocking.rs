//! Work that blocks: librdkafka's calls, large files.

use std::panic::resume_unwind;

/// Runs `work` on a thread for such work, beside the tasks. Its panic is the caller's.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| resume_unwind(error.into_panic()))
}
