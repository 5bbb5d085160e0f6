//! A snapshot of the indices, one after the other while workers go on, and what is restored of it (protocol, "A restored
//! snapshot").

use super::store::Store;

/// The placements' number beside those of the geoshards.
const PLACEMENTS: u8 = 3;
/// All of them, as bits.
const EVERYTHING: u8 = 0b1111;

/// The snapshot, as far as it was made, and what became of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Backup {
    is_announced: bool,
    /// Workers in a batch that began before the announcement, as bits.
    unaware: u8,
    /// What was committed before the first index was copied.
    pub mark: Option<u8>,
    /// The indices that were copied, as bits.
    copied: u8,
    /// No record from here on was read when the last index was copied.
    pub end: u8,
    store: Store,
    pub is_restored: bool,
    /// The scan after the restore wrote a touch.
    pub is_touched: bool,
}

/// A transition of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackupStep {
    /// Workers hear that a snapshot begins; `unaware` ones hear of it after the batch that they are in.
    Announce { unaware: u8 },
    /// The committed offset is kept.
    Mark,
    /// Elasticsearch copies an index.
    Copy { index: u8 },
    /// All workers have ended, and the indices are replaced; then the next worker begins.
    Restore,
}

impl Backup {
    /// What may come next; `busy`: the workers in a batch now, as bits.
    pub fn steps(&self, busy: u8) -> Vec<BackupStep> {
        let is_copied = |index: &u8| self.copied >> index & 1 == 1;
        match self {
            Self { is_restored: true, .. } => Vec::new(),
            Self { is_announced: false, .. } => vec![BackupStep::Announce { unaware: busy }],
            Self { mark: None, unaware, .. } if unaware & busy == 0 => vec![BackupStep::Mark],
            Self { mark: None, .. } => Vec::new(),
            Self { copied: EVERYTHING, .. } => vec![BackupStep::Restore],
            _ => (0..=PLACEMENTS)
                .filter(|index| !is_copied(index))
                .map(|index| BackupStep::Copy { index })
                .collect(),
        }
    }

    /// Whether workers that are aware of it leave old copies of moved documents where they are.
    pub fn holds_sweeps(&self) -> bool {
        self.is_announced && self.copied != EVERYTHING
    }

    /// A worker begins a batch: it is aware.
    pub fn begins(&mut self, worker: u8) {
        self.unaware &= !(1 << worker);
    }

    pub fn announce(&mut self, unaware: u8) {
        (self.is_announced, self.unaware) = (true, unaware);
    }

    /// `read_to`: the records that any worker has read by now.
    pub fn copy(&mut self, index: u8, from: &Store, read_to: u8) {
        self.copied |= 1 << index;
        self.end = read_to;
        match index {
            PLACEMENTS => self.store.copy_placement(from),
            shard => self.store.copies[usize::from(shard)] = from.copies[usize::from(shard)],
        }
    }

    /// What Elasticsearch restores: no tombstones.
    pub fn restored(&self) -> Store {
        let mut store = self.store;
        store.forget_tombstones();
        store
    }
}
