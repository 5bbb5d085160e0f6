//! What a partition task and the poll thread share: offsets, in atomics and a watch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use tokio::sync::watch;

use crate::core::offsets::OffsetTrouble;

/// Offset information from the poll thread, beyond the records.
#[derive(Debug, Clone, Copy, Default)]
pub struct KnownOffsets {
    /// Every offset below was handed over or is not a record (transaction marker, compacted).
    pub read_to: Option<i64>,
    /// The partition's first offset, if nothing is committed.
    pub first: Option<i64>,
    /// Why reading cannot continue.
    pub trouble: Option<OffsetTrouble>,
}

/// State shared by a partition task and the poll thread.
#[derive(Debug)]
pub struct Published {
    known: watch::Sender<KnownOffsets>,
    watermark: AtomicI64,
    committed: AtomicI64,
    end: AtomicI64,
    drained: AtomicBool,
}

impl Published {
    const NONE: i64 = -1;

    /// Nothing read, nothing done.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            known: watch::Sender::default(),
            watermark: AtomicI64::new(Self::NONE),
            committed: AtomicI64::new(Self::NONE),
            end: AtomicI64::new(Self::NONE),
            drained: AtomicBool::new(false),
        })
    }

    /// The offset that may be committed.
    pub fn watermark(&self) -> Option<i64> {
        // Acquire: a reader of the watermark also relies on the acknowledgements behind it.
        let offset = self.watermark.load(Ordering::Acquire);
        (offset != Self::NONE).then_some(offset)
    }

    /// This offset may be committed.
    pub(super) fn set_watermark(&self, offset: i64) {
        debug_assert!(
            self.watermark().is_none_or(|before| before <= offset),
            "INV-3: the watermark went back"
        );
        self.watermark.store(offset, Ordering::Release);
    }

    /// The broker acknowledged the commit of this offset.
    pub fn set_committed(&self, offset: i64) {
        self.committed.fetch_max(offset, Ordering::AcqRel);
    }

    /// The offset that the broker has acknowledged.
    pub fn committed(&self) -> Option<i64> {
        let offset = self.committed.load(Ordering::Acquire);
        (offset != Self::NONE).then_some(offset)
    }

    /// The broker said that the partition ends here.
    pub fn set_end(&self, offset: i64) {
        self.end.store(offset, Ordering::Relaxed);
    }

    /// How many offsets from `next` on the partition has, as far as is known. They may be of open transactions.
    pub(super) fn unread(&self, next: i64) -> u64 {
        let unread = self.end.load(Ordering::Relaxed).saturating_sub(next);
        u64::try_from(unread).unwrap_or(0)
    }

    /// Updates the offset information. Set [`KnownOffsets::read_to`] only after all records below it are queued.
    pub fn update(&self, change: impl FnOnce(&mut KnownOffsets)) {
        self.known.send_modify(change);
    }

    /// Follows the offset information.
    pub(super) fn follow(&self) -> watch::Receiver<KnownOffsets> {
        self.known.subscribe()
    }

    /// Whether the task has ended.
    pub fn drained(&self) -> bool {
        self.drained.load(Ordering::Acquire)
    }

    /// The task has ended.
    pub(super) fn set_drained(&self) {
        self.drained.store(true, Ordering::Release);
    }
}
