//! A snapshot of the indices, and what is restored of it (protocol, "Restoring a snapshot").

use super::store::Store;

/// The placements' number behind those of the geoshards.
const PLACEMENTS: u8 = 3;
/// The number of indices.
const ALL: u8 = 4;

/// The snapshot, as far as it was made, and what became of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Backup {
    /// No write is carried out.
    pub is_blocked: bool,
    /// The indices that were copied: those below this number.
    copied: u8,
    /// What was committed while writes were blocked.
    mark: Option<u8>,
    store: Store,
    pub is_restored: bool,
}

/// A transition of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackupStep {
    /// Writes are blocked.
    Block,
    /// Elasticsearch copies the next index.
    Copy,
    /// What is committed is kept, and writes go on.
    Unblock,
    /// All workers have ended, and the indices are replaced; then the next worker begins.
    Restore,
}

impl Backup {
    /// What may come next.
    pub fn step(&self) -> Option<BackupStep> {
        match self {
            Self { is_restored: true, .. } => None,
            Self { mark: Some(_), .. } => Some(BackupStep::Restore),
            Self { copied: ALL, .. } => Some(BackupStep::Unblock),
            Self { copied: 0, is_blocked: false, .. } => Some(BackupStep::Block),
            _ => Some(BackupStep::Copy),
        }
    }

    pub fn copy(&mut self, from: &Store) {
        match self.copied {
            PLACEMENTS => self.store.copy_placement(from),
            shard => self.store.copies[usize::from(shard)] = from.copies[usize::from(shard)],
        }
        self.copied += 1;
    }

    pub fn unblock(&mut self, committed: u8) {
        (self.is_blocked, self.mark) = (false, Some(committed));
    }

    /// What Elasticsearch restores, without tombstones, and what was committed.
    pub fn restore(&mut self) -> Option<(Store, u8)> {
        self.is_restored = true;
        let mut store = self.store;
        store.forget_tombstones();
        Some((store, self.mark?))
    }
}
