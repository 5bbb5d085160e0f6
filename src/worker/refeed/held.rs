//! Bytes of fetched documents held by a worker.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Counts held bytes; notifies when some are released.
#[derive(Debug, Default)]
pub(super) struct Holding {
    bytes: AtomicUsize,
    freed: Notify,
}

/// Holds some bytes until its last clone is dropped.
#[derive(Clone, Default)]
pub struct Held(#[expect(dead_code, reason = "only that it is dropped matters")] Option<Arc<Portion>>);

struct Portion {
    holding: Arc<Holding>,
    bytes: usize,
}

impl Holding {
    pub(super) fn hold(self: &Arc<Self>, bytes: usize) -> Held {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Held(Some(Arc::new(Portion { holding: self.clone(), bytes })))
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Waits until bytes are released, or were since the last call.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }
}

impl Held {
    /// Holds nothing.
    pub fn none() -> Self {
        Self(None)
    }
}

impl Drop for Portion {
    fn drop(&mut self) {
        self.holding.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.holding.freed.notify_one();
    }
}

impl fmt::Debug for Held {
    /// Ledgers that differ only in this behave alike.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Held")
    }
}
