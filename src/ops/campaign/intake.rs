//! Ids sorted, each once, in bounded memory: what does not fit is in temporary files.

use std::io;
use std::path::Path;

use super::chunk::MAX_ID_BYTES;
use super::store::Failed;
use crate::base::ids::DocId;
use crate::ops::audit::sort::{MergedRecords, Sorter};

/// Maximum invalid ids kept. A file with more is no list of ids.
pub const MAX_BAD: usize = 10_000;
/// Bytes of such an id that are kept.
const KEPT_BYTES: usize = 600;

/// Takes ids in any order.
pub struct Intake {
    sorter: Sorter,
    last: Vec<u8>,
    taken: u64,
    bad: Vec<Failed>,
}

/// Result of the intake.
pub struct Sorted {
    /// Ids by their bytes; one that was given several times is one group.
    pub ids: MergedRecords,
    /// Ids that were given, those that cannot be ids included.
    pub taken: u64,
    /// Ids that cannot be ids of documents.
    pub bad: Vec<Failed>,
}

impl Intake {
    /// With `memory` bytes, and temporary files in `folder`.
    pub fn new(folder: &Path, memory: usize) -> Self {
        Self { sorter: Sorter::new(folder, memory), last: Vec::new(), taken: 0, bad: Vec::new() }
    }

    /// Takes one id, valid or not.
    ///
    /// # Errors
    /// If there is no sort_options for a temporary file, or if more than [`MAX_BAD`] cannot be ids.
    pub fn push(&mut self, id: &[u8]) -> io::Result<()> {
        self.taken += 1;
        if let Err(bad) = DocId::from_key(Some(id)) {
            return self.refuse(id, bad.to_string());
        }
        debug_assert!(id.len() <= MAX_ID_BYTES);
        // Skip immediate repetitions, which are common in lists of events.
        if id != self.last {
            self.sorter.push(id, &[])?;
            self.last.clear();
            self.last.extend_from_slice(id);
        }
        Ok(())
    }

    /// Keeps what cannot be an id, with the reason.
    ///
    /// # Errors
    /// If there are too many.
    pub fn refuse(&mut self, id: &[u8], reason: String) -> io::Result<()> {
        if self.bad.len() == MAX_BAD {
            let reason = format!("more than {MAX_BAD} are no ids, the last one since {reason}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        self.bad.push(Failed { id: id[..id.len().min(KEPT_BYTES)].to_vec(), reason });
        Ok(())
    }

    /// Ids taken so far.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Ends taking.
    ///
    /// # Errors
    /// If a temporary file cannot be read.
    pub fn sorted(self) -> io::Result<Sorted> {
        Ok(Sorted { ids: self.sorter.merge()?, taken: self.taken, bad: self.bad })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_sorted_and_deduplicated_and_invalid_ones_kept() {
        let mut intake = Intake::new(&std::env::temp_dir(), 1 << 20);
        let long = vec![b'x'; 700];
        for id in [&b"b"[..], b"b", b"a", b"", b"c", b"b", &long, b"\xff"] {
            intake.push(id).unwrap();
        }
        let mut sorted = intake.sorted().unwrap();
        let mut ids = Vec::new();
        while let Some((id, _)) = sorted.ids.next_group().unwrap() {
            ids.push(id);
        }
        assert_eq!(ids, [b"a", b"b", b"c"]);
        assert_eq!((sorted.taken, sorted.bad.len()), (8, 3));
        assert_eq!(sorted.bad[1].id.len(), KEPT_BYTES);
    }

    #[test]
    fn a_file_that_is_no_list_of_ids_is_refused() {
        let mut intake = Intake::new(&std::env::temp_dir(), 1 << 20);
        for _ in 0..MAX_BAD {
            intake.push(b"\xff").unwrap();
        }
        assert_eq!(intake.push(b"\xff").unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
