//! Sorts more records than memory holds: each full buffer is sorted and spilled to a temporary file; the files are merged.
//!
//! Memory is bounded by the given budget, for any number of records. The files have no name: the system takes them back when the
//! process ends, however it ends.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Cursor, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// Bytes before each record: the lengths of its key and of its value.
const HEAD: usize = 4;
/// Buffer size for reading and writing files.
const BUFFER: usize = 64 * 1024;

/// Takes records in any order.
pub(crate) struct Sorter {
    folder: PathBuf,
    /// Maximum bytes of `arena` and `starts`.
    budget: usize,
    /// Records, one behind the other.
    arena: Vec<u8>,
    /// Where each begins.
    starts: Vec<u32>,
    runs: Vec<File>,
}

impl Sorter {
    /// `budget`: bytes of memory, at least some hundred kilobytes; `folder`: where temporary files go.
    pub(crate) fn new(folder: &Path, budget: usize) -> Self {
        let budget = budget.clamp(4 * BUFFER, 1 << 31);
        // Allocate the full capacity: growing would take up to three times as much. Untouched pages take no memory.
        let arena = Vec::with_capacity(budget);
        Self { folder: folder.to_owned(), budget, arena, starts: Vec::new(), runs: Vec::new() }
    }

    /// Adds one record. Fails if a temporary file cannot be written, or if key or value have 64 KiB or more.
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let too_long = |_| io::Error::new(io::ErrorKind::InvalidInput, "a record to be sorted is too long");
        let key_length = u16::try_from(key.len()).map_err(too_long)?;
        let value_length = u16::try_from(value.len()).map_err(too_long)?;
        let needed = HEAD + key.len() + value.len() + size_of::<u32>();
        if self.arena.len() + self.starts.len() * size_of::<u32>() + needed > self.budget {
            self.spill()?;
        }
        // The budget is below 4 GiB.
        self.starts.push(u32::try_from(self.arena.len()).unwrap_or(u32::MAX));
        self.arena.extend_from_slice(&key_length.to_le_bytes());
        self.arena.extend_from_slice(&value_length.to_le_bytes());
        self.arena.extend_from_slice(key);
        self.arena.extend_from_slice(value);
        Ok(())
    }

    /// Ends taking: the records come back by their keys' bytes.
    pub(crate) fn merge(mut self) -> io::Result<MergedRecords> {
        let mut runs: Vec<Box<dyn Read + Send>> = Vec::new();
        if self.runs.is_empty() {
            let mut sorted = Vec::with_capacity(self.arena.len());
            self.write_sorted(&mut sorted)?;
            runs.push(Box::new(Cursor::new(sorted)));
        } else {
            self.spill()?;
            for mut file in self.runs.drain(..) {
                file.rewind()?;
                runs.push(Box::new(BufReader::with_capacity(BUFFER, file)));
            }
        }
        MergedRecords::new(runs)
    }

    fn spill(&mut self) -> io::Result<()> {
        let mut file = tempfile::tempfile_in(&self.folder)?;
        let mut writer = BufWriter::with_capacity(BUFFER, &mut file);
        self.write_sorted(&mut writer)?;
        writer.flush()?;
        drop(writer);
        self.runs.push(file);
        Ok(())
    }

    fn write_sorted(&mut self, to: &mut impl Write) -> io::Result<()> {
        let arena = &self.arena;
        self.starts.sort_unstable_by(|a, b| key_at(arena, *a).cmp(key_at(arena, *b)));
        for start in self.starts.drain(..) {
            to.write_all(record_at(arena, start))?;
        }
        self.arena.clear();
        Ok(())
    }
}

fn lengths(head: [u8; HEAD]) -> (usize, usize) {
    let [k0, k1, v0, v1] = head;
    (usize::from(u16::from_le_bytes([k0, k1])), usize::from(u16::from_le_bytes([v0, v1])))
}

fn lengths_at(arena: &[u8], start: u32) -> (usize, usize, usize) {
    let at = start as usize;
    let (key, value) = lengths([arena[at], arena[at + 1], arena[at + 2], arena[at + 3]]);
    (at, key, value)
}

fn key_at(arena: &[u8], start: u32) -> &[u8] {
    let (at, key, _) = lengths_at(arena, start);
    &arena[at + HEAD..at + HEAD + key]
}

fn record_at(arena: &[u8], start: u32) -> &[u8] {
    let (at, key, value) = lengths_at(arena, start);
    &arena[at..at + HEAD + key + value]
}

/// A key, and the values of all records that have it.
pub(crate) type KeyGroup = (Vec<u8>, Vec<Vec<u8>>);

/// Records by key.
pub struct MergedRecords {
    runs: Vec<Box<dyn Read + Send>>,
    heap: BinaryHeap<Reverse<Next>>,
}

/// The next record of a run.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Next {
    key: Vec<u8>,
    value: Vec<u8>,
    run: usize,
}

impl MergedRecords {
    fn new(runs: Vec<Box<dyn Read + Send>>) -> io::Result<Self> {
        let mut merged = Self { heap: BinaryHeap::with_capacity(runs.len()), runs };
        for run in 0..merged.runs.len() {
            merged.refill(run)?;
        }
        Ok(merged)
    }

    /// All values of the next key, in no order; `None` behind the last.
    pub fn next_group(&mut self) -> io::Result<Option<KeyGroup>> {
        let Some(Reverse(first)) = self.heap.pop() else { return Ok(None) };
        self.refill(first.run)?;
        let mut values = vec![first.value];
        while self.heap.peek().is_some_and(|Reverse(next)| next.key == first.key) {
            let Some(Reverse(next)) = self.heap.pop() else { break };
            self.refill(next.run)?;
            values.push(next.value);
        }
        Ok(Some((first.key, values)))
    }

    fn refill(&mut self, run: usize) -> io::Result<()> {
        let reader = &mut self.runs[run];
        let mut head = [0; HEAD];
        match reader.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let (key, value) = lengths(head);
        let mut next = Next { key: vec![0; key], value: vec![0; value], run };
        reader.read_exact(&mut next.key)?;
        reader.read_exact(&mut next.value)?;
        self.heap.push(Reverse(next));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::base::random::Random;

    fn sorted(budget: usize, records: &[(String, Vec<u8>)]) -> (usize, Vec<KeyGroup>) {
        let folder = tempfile::tempdir().unwrap();
        let mut sorter = Sorter::new(folder.path(), budget);
        for (key, value) in records {
            sorter.push(key.as_bytes(), value).unwrap();
        }
        let runs = sorter.runs.len();
        let mut merged = sorter.merge().unwrap();
        let mut groups = Vec::new();
        while let Some((key, mut values)) = merged.next_group().unwrap() {
            values.sort();
            groups.push((key, values));
        }
        (runs, groups)
    }

    #[test]
    fn spilled_records_come_back_sorted_and_complete() {
        let mut random = Random::new(7);
        let records: Vec<(String, Vec<u8>)> = (0..60_000)
            .map(|n: u32| (format!("id-{}", random.below(20_000)), n.to_le_bytes().to_vec()))
            .collect();
        let mut expected: BTreeMap<Vec<u8>, Vec<Vec<u8>>> = BTreeMap::new();
        for (key, value) in &records {
            expected.entry(key.as_bytes().to_vec()).or_default().push(value.clone());
        }
        expected.values_mut().for_each(|values| values.sort());
        let expected: Vec<_> = expected.into_iter().collect();

        let (runs, in_files) = sorted(0, &records);
        assert!(runs > 3, "{runs} files");
        assert!(in_files == expected);
        let (runs, in_memory) = sorted(64 << 20, &records);
        assert_eq!(runs, 0);
        assert!(in_memory == expected);
        assert_eq!(sorted(0, &[]).1, []);
    }

    #[test]
    fn oversized_record_and_missing_folder_are_refused() {
        let mut sorter = Sorter::new(Path::new("/nowhere/at/all"), 0);
        assert_eq!(sorter.push(&[0; 70_000], b"").unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let full = std::iter::repeat_with(|| sorter.push(b"k", &[0; 60_000])).take(9).find_map(Result::err);
        assert_eq!(full.unwrap().kind(), io::ErrorKind::NotFound);
    }
}
