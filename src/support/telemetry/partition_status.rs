//! The status of each partition as the poll thread sees it, for the status page.

use tokio::sync::watch;

/// One owned partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionStatus {
    /// Its number.
    pub partition: i32,
    /// Fetching is paused until held records are written.
    pub paused: bool,
    /// The offset that may be committed; `None` before the first record.
    pub watermark: Option<i64>,
    /// The offset that the broker acknowledged.
    pub committed: Option<i64>,
    /// The partition's end, as the broker last told.
    pub end: Option<i64>,
}

impl PartitionStatus {
    /// Records from the watermark to the end, if both are known.
    pub fn lag(&self) -> Option<i64> {
        Some(self.end?.saturating_sub(self.watermark?).max(0))
    }
}

/// The sending side, used by the poll thread. It overwrites and never waits.
pub type PartitionStatusSender = watch::Sender<Vec<PartitionStatus>>;

/// The reader's side.
pub type PartitionStatusReader = watch::Receiver<Vec<PartitionStatus>>;
