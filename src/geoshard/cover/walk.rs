//! Descends from the six faces to cells whose owner and relation to the shape are known.
//!
//! A cell is a run of leaf cells along the curve, and so is a range of the map. A cell within one range belongs to one
//! geoshard: only its relation to the shape matters. A cell that the map cuts is split into quarters, at most down to
//! leaves, since ranges begin at leaves. Cells outside the shape, and those of geoshards already found, are skipped.

use std::ops::Range;

use super::cell::Cell;
use super::{Relation, Territory};
use crate::geoshard::GeoshardMap;

/// For each of the map's geoshards, whether one of its cells meets the shape.
pub(super) fn walk(map: &GeoshardMap, shape: &impl Territory) -> Vec<bool> {
    let (starts, owners) = map.table();
    let shards = map.shards().len();
    let mut walk = Walk { starts, owners, shape, found: vec![false; shards], missing: shards };
    for face in Cell::faces() {
        walk.visit(&face, 0..starts.len());
    }
    walk.found
}

struct Walk<'a, S> {
    /// Where each range begins.
    starts: &'a [u64],
    /// The owner of each range.
    owners: &'a [usize],
    shape: &'a S,
    found: Vec<bool>,
    /// Number of geoshards not found yet.
    missing: usize,
}

impl<S: Territory> Walk<'_, S> {
    /// `ranges`: indices of ranges that hold the cell.
    fn visit(&mut self, cell: &Cell, ranges: Range<usize>) {
        if self.missing == 0 {
            return;
        }
        let (first, last) = cell.leaves();
        let starts = &self.starts[ranges.clone()];
        // A range that begins at the cell's first leaf begins with the cell.
        let begin = ranges.start + starts.partition_point(|&start| start <= first).saturating_sub(1);
        let end = ranges.start + starts.partition_point(|&start| start <= last);
        let owners = &self.owners[begin..end];
        if owners.iter().all(|&owner| self.found[owner]) {
            return;
        }
        let has_one_owner = owners.iter().all(|owner| *owner == owners[0]);
        match self.shape.relation(cell) {
            Relation::Outside => {}
            Relation::Inside => owners.iter().for_each(|&owner| self.find(owner)),
            Relation::Meets if has_one_owner => self.find(owners[0]),
            Relation::Meets | Relation::Near => {
                for child in cell.children() {
                    self.visit(&child, begin..end);
                }
            }
        }
    }

    fn find(&mut self, owner: usize) {
        if !self.found[owner] {
            self.found[owner] = true;
            self.missing -= 1;
        }
    }
}
