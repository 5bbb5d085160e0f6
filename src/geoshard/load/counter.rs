//! Counts writes and searches by S2 cell: one map update each, no lock, bounded.
//!
//! Each partition task and each router has a counter of its own. Now and then it is emptied ([`LoadCounter::take`]), and what was in
//! it is added to the record that all processes share.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use s2::cellid::CellID;

use super::record::PROFILE_LEVEL;
use crate::base::ids::ShardId;
use crate::geoshard::cell::Leaf;

/// Cells of one counter, of which a worker has one for each partition: some 200 KiB. Where there are more, the further ones are
/// counted for the large cell that they lie in.
pub const MAX_CELLS: usize = 4_000;
/// The same for what is added up of several counters.
pub const MAX_DELTA_CELLS: usize = 20_000;

/// What happened in a place.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PlaceCounts {
    /// Documents written.
    pub writes: f64,
    /// Their bytes.
    pub bytes: f64,
    /// Searches about the place.
    pub queries: f64,
    /// Seconds that they took.
    pub seconds: f64,
}

/// Counts since the last [`LoadCounter::take`].
#[derive(Debug, Default)]
pub struct LoadCounter {
    level: u8,
    counted: LoadDelta,
}

/// What was counted.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LoadDelta {
    /// By the id of an S2 cell.
    pub cells: HashMap<u64, PlaceCounts, ahash::RandomState>,
    /// Writes whose place is not known but for the geoshard: patches that leave the location alone.
    pub shards: BTreeMap<ShardId, PlaceCounts>,
}

impl PlaceCounts {
    /// Adds others.
    pub fn add(&mut self, other: Self) {
        self.writes += other.writes;
        self.bytes += other.bytes;
        self.queries += other.queries;
        self.seconds += other.seconds;
    }

    /// So many times these.
    pub fn times(self, factor: f64) -> Self {
        let Self { writes, bytes, queries, seconds } = self;
        let [writes, bytes, queries, seconds] = [writes, bytes, queries, seconds].map(|count| count * factor);
        Self { writes, bytes, queries, seconds }
    }
}

impl LoadCounter {
    /// Counts by cells of `level`.
    pub fn new(level: u8) -> Self {
        Self { level, counted: LoadDelta::default() }
    }

    /// A document was written.
    pub fn wrote(&mut self, at: impl Into<Leaf>, bytes: usize) {
        self.add(at.into(), PlaceCounts { writes: 1.0, bytes: bytes as f64, ..PlaceCounts::default() });
    }

    /// A document was written of which only the geoshard is known.
    pub fn wrote_in(&mut self, shard: &ShardId, bytes: usize) {
        let one = PlaceCounts { writes: 1.0, bytes: bytes as f64, ..PlaceCounts::default() };
        match self.counted.shards.get_mut(shard) {
            Some(counts) => counts.add(one),
            None => drop(self.counted.shards.insert(shard.clone(), one)),
        }
    }

    /// A search about a place took so long.
    pub fn searched(&mut self, at: impl Into<Leaf>, time: Duration) {
        self.add(
            at.into(),
            PlaceCounts { queries: 1.0, seconds: time.as_secs_f64(), ..PlaceCounts::default() },
        );
    }

    fn add(&mut self, at: Leaf, one: PlaceCounts) {
        let leaf = CellID(at.id());
        let cells = &mut self.counted.cells;
        let mut cell = leaf.parent(u64::from(self.level)).0;
        if cells.len() >= MAX_CELLS && !cells.contains_key(&cell) {
            cell = leaf.parent(PROFILE_LEVEL).0;
        }
        cells.entry(cell).or_default().add(one);
    }

    /// What was counted; nothing is afterwards.
    pub fn take(&mut self) -> LoadDelta {
        std::mem::take(&mut self.counted)
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.counted.is_empty()
    }
}

impl LoadDelta {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty() && self.shards.is_empty()
    }

    /// Adds what another counter counted. Bounded like a counter.
    pub fn add(&mut self, other: Self) {
        for (mut cell, counts) in other.cells {
            if self.cells.len() >= MAX_DELTA_CELLS && !self.cells.contains_key(&cell) {
                cell = coarse(CellID(cell)).0;
            }
            self.cells.entry(cell).or_default().add(counts);
        }
        for (shard, counts) in other.shards {
            self.shards.entry(shard).or_default().add(counts);
        }
    }
}

/// The large cell that the profile is kept for.
pub(super) fn coarse(cell: CellID) -> CellID {
    if cell.level() > PROFILE_LEVEL { cell.parent(PROFILE_LEVEL) } else { cell }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::geo::GeoPoint;

    fn point(lat: f64, lon: f64) -> GeoPoint {
        GeoPoint::new(lat, lon).unwrap()
    }

    #[test]
    fn writes_and_searches_of_a_cell_add_up_and_are_taken_once() {
        let mut counter = LoadCounter::new(7);
        counter.wrote(point(48.85, 2.35), 100);
        counter.wrote(point(48.86, 2.36), 50);
        counter.searched(point(48.85, 2.36), Duration::from_millis(250));
        counter.wrote_in(&ShardId::new("s1").unwrap(), 10);
        counter.wrote_in(&ShardId::new("s1").unwrap(), 10);
        let taken = counter.take();
        assert_eq!(
            taken.cells.values().copied().collect::<Vec<_>>(),
            [PlaceCounts { writes: 2.0, bytes: 150.0, queries: 1.0, seconds: 0.25 }]
        );
        assert_eq!(taken.shards.values().map(|counts| counts.writes).collect::<Vec<_>>(), [2.0]);
        assert!(counter.is_empty() && counter.take().is_empty());
    }

    #[test]
    fn cells_are_bounded_and_no_count_is_lost() {
        let mut counter = LoadCounter::new(12);
        for n in 0..MAX_CELLS * 2 {
            counter.wrote(point((n / 300) as f64 * 0.6 - 80.0, (n % 300) as f64 * 1.2 - 179.0), 1);
        }
        let taken = counter.take();
        let large = 6 << (2 * PROFILE_LEVEL);
        assert!(taken.cells.len() <= MAX_CELLS + large, "{}", taken.cells.len());
        assert!(taken.cells.len() > MAX_CELLS);
        assert_eq!(taken.cells.values().map(|counts| counts.writes).sum::<f64>(), 2.0 * MAX_CELLS as f64);

        let mut sum = taken;
        let mut cell = CellID::from_face(2).child_begin_at_level(9);
        for _ in 0..MAX_DELTA_CELLS {
            let one = PlaceCounts { writes: 1.0, ..PlaceCounts::default() };
            sum.add(LoadDelta { cells: [(cell.0, one)].into_iter().collect(), ..LoadDelta::default() });
            cell = cell.next();
        }
        assert!(sum.cells.len() <= MAX_DELTA_CELLS + 2 * large, "{}", sum.cells.len());
        let all = (2 * MAX_CELLS + MAX_DELTA_CELLS) as f64;
        assert_eq!(sum.cells.values().map(|counts| counts.writes).sum::<f64>(), all);
    }
}
