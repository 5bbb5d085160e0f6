//! The most even map that moves no more than a given load.
//!
//! **The problem.** A row of cells along the curve, each with a load and an owner by the old map, whose geoshards are
//! stretches of the row. Wanted: `count` stretches, none empty, and for each the id of an old geoshard or a new id, no id
//! twice. A cell moves if its stretch has another id than its owner. Of all such maps whose moved load is within the
//! budget: the one with the least maximum load; of those, the one that moves the least load; of those, the one that
//! moves the fewest cells.
//!
//! **Why one stretch each.** If a geoshard may own several stretches, the pieces that overfull geoshards give away can
//! go anywhere, and to find out whether they fit is bin packing (NP-hard). With one stretch each, the optimum is found
//! exactly; `CellRow::lower_bound` says what no map within the budget can beat, several stretches or not.
//!
//! **The search.** The least load that has to move if no stretch may exceed `limit` never grows with `limit`. So the least
//! `limit` for which it is within the budget is found by bisection; loads are whole numbers, so the result is exact.
//!
//! **The load that has to move at a limit** is what is left of the most that can be kept, by dynamic programming over
//! the number of stretches and the end of the last. A stretch can keep the id of one owner that it overlaps; owners are
//! stretches too, so only one of them can be cut by the end of a stretch. Whether that one's id was already given to a
//! stretch is all that the rest of the row has to know, and it is one bit of state. A stretch from `start` to `end`
//! keeps one of these, and each is a sum of a part that depends on `start` and a part that depends on `end`:
//!
//! - of its last owner, from where that begins (or from `start`, if it is its first owner too) to `end`;
//! - of its first owner, from `start` to where that ends, if its id was not given before `start`;
//! - all of an owner between;
//! - nothing: it gets a new id.
//!
//! So a state's value is a maximum over a sliding window of starts (those from which the load to `end` is within the
//! limit): a queue of candidates for the starts within the last owner, and maxima from the right for the starts before it.
//! That takes O(count × cells) for each limit, and O(count × cells × owners in a window) where many owners are within
//! one limit; there are at most 42 limits. States that cannot be on a way to the end are left out: the first `j` stretches
//! hold at most `j` limits, and those after them at most `count - j`.

use std::collections::VecDeque;
use std::ops::Range;

/// What [`CellRow::best`] would need more memory for: cells × geoshards.
pub const MAX_STATES: usize = 8_000_000;
/// More cells than this are refused.
pub const MAX_CELLS: usize = 1 << 18;
/// The largest total of whole loads. Times [`MAX_CELLS`] it is far enough below [`NEVER`]'s distance from 0.
const MAX_TOTAL: f64 = (1_u64 << 42) as f64;
/// The resolution of loads that are not whole.
const FINE_TOTAL: f64 = (1_u64 << 40) as f64;
/// Not reachable.
const NEVER: i64 = i64::MIN / 2;

/// A row of cells with loads and owners.
#[derive(Debug, Clone)]
pub struct CellRow {
    /// Load before each cell, and at the end.
    load: Vec<i64>,
    /// The same for what is maximized: load, then cells.
    value: Vec<i64>,
    /// Where each owner begins, and the end.
    owners: Vec<usize>,
    /// The owner of each cell.
    owner_of: Vec<usize>,
    /// Whole numbers for a load of 1.
    scale: f64,
}

/// A stretch of the best map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    /// Its cells.
    pub cells: Range<usize>,
    /// The owner whose id it keeps.
    pub keeps: Option<usize>,
}

/// A map of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// Its stretches, along the row.
    pub stretches: Vec<Stretch>,
    /// The largest load, in whole numbers.
    pub max: i64,
    /// What moves, in whole numbers.
    pub moved: i64,
}

/// What can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Best {
    /// The best cut.
    Cut(Cut),
    /// Every map with that many geoshards moves at least this load.
    MovesAtLeast(i64),
}

/// The most that is kept by the first cells, by where they end: `[id of the cut owner not given, given]`.
type Layer = Vec<[i64; 2]>;

impl CellRow {
    /// Cells with `loads`, finite and not negative; `owners` says where each owner begins: ascending, the first at 0,
    /// each below the number of cells. There are at most 2^18 cells.
    pub fn new(loads: &[f64], owners: &[usize]) -> Self {
        let total: f64 = loads.iter().sum();
        let are_whole = loads.iter().all(|load| load.fract() == 0.0) && total <= MAX_TOTAL;
        let scale = if are_whole || total <= 0.0 { 1.0 } else { FINE_TOTAL / total };
        let units = loads.iter().map(|load| whole((load * scale).round()));
        let cells = int(loads.len());
        let sums = |each: &mut dyn Iterator<Item = i64>| {
            let mut sums = vec![0];
            sums.extend(each.scan(0, |sum, one| {
                *sum += one;
                Some(*sum)
            }));
            sums
        };
        let load = sums(&mut units.clone());
        let value = sums(&mut units.map(|load| load * (cells + 1) + 1));
        let mut bounds = owners.to_vec();
        bounds.push(loads.len());
        let owner_of = bounds.windows(2).enumerate();
        let owner_of = owner_of.flat_map(|(owner, pair)| std::iter::repeat_n(owner, pair[1] - pair[0]));
        Self { load, value, owner_of: owner_of.collect(), owners: bounds, scale }
    }

    /// A whole number of this row as a load.
    pub fn load_of(&self, units: i64) -> f64 {
        units as f64 / self.scale
    }

    /// The whole number of a share of the load. 29 % of 100 are 29, though 0.29 × 100 is below that in floating point.
    pub fn share(&self, share: f64) -> i64 {
        whole((share * self.total() as f64 + 1e-6).floor())
    }

    /// The load of all cells.
    pub fn total(&self) -> i64 {
        self.load[self.cells()]
    }

    /// How many cells there are.
    pub fn cells(&self) -> usize {
        self.load.len() - 1
    }

    /// The load of each owner.
    pub fn owner_loads(&self) -> impl Iterator<Item = i64> {
        self.owners.windows(2).map(|pair| self.load[pair[1]] - self.load[pair[0]])
    }

    /// The best cut into `count` stretches, 1 to the number of cells, that moves at most `budget`.
    pub fn best(&self, count: usize, budget: i64) -> Best {
        let moves = |limit: i64| self.most_kept(count, limit, None).map(|kept| self.moved(kept));
        let heaviest = self.load.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
        let (mut low, mut high) = (heaviest.max(self.total() / int(count.max(1))), self.total());
        match moves(high) {
            Some(least) if least <= budget => {}
            least => return Best::MovesAtLeast(least.unwrap_or(self.total())),
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if moves(middle).is_some_and(|moved| moved <= budget) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Best::Cut(self.cut(count, high))
    }

    /// The least load that moves in a cut into `count` stretches whose loads are all below `max`; `None` if there is no
    /// such cut.
    pub fn least_moved_below(&self, count: usize, max: i64) -> Option<i64> {
        self.most_kept(count, max - 1, None).map(|kept| self.moved(kept))
    }

    /// The least maximum load that any map has that moves at most `budget` into `count` geoshards, be they of several
    /// stretches: each owner's load above the maximum has to move.
    pub fn lower_bound(&self, count: usize, budget: i64) -> i64 {
        let heaviest = self.load.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
        let even = (self.total() + int(count) - 1) / int(count.max(1));
        let (mut low, mut high) = (heaviest.max(even), self.total());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.owner_loads().map(|load| (load - middle).max(0)).sum::<i64>() <= budget {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        high
    }

    fn moved(&self, kept: i64) -> i64 {
        self.total() - kept / (int(self.cells()) + 1)
    }

    /// The cut that keeps the most, which is known to be there.
    fn cut(&self, count: usize, limit: i64) -> Cut {
        let mut layers = Vec::with_capacity(count);
        let kept = self.most_kept(count, limit, Some(&mut layers)).unwrap_or(NEVER);
        let mut stretches = Vec::with_capacity(count);
        let (mut end, mut given, mut value) = (self.cells(), 0, kept);
        for (first, layer) in layers.iter().rev() {
            let Some((start, before, keeps, rest)) =
                self.last_stretch(*first, layer, limit, end, given, value)
            else {
                break;
            };
            stretches.push(Stretch { cells: start..end, keeps });
            (end, given, value) = (start, before, rest);
        }
        stretches.reverse();
        let loads =
            stretches.iter().map(|Stretch { cells, .. }| self.load[cells.end] - self.load[cells.start]);
        Cut { max: loads.max().unwrap_or_default(), moved: self.moved(kept), stretches }
    }

    /// A stretch to `end` by which `value` came about, from the layer before it.
    fn last_stretch(
        &self,
        first: usize,
        layer: &Layer,
        limit: i64,
        end: usize,
        given: usize,
        value: i64,
    ) -> Option<(usize, usize, Option<usize>, i64)> {
        let starts = (0..end).rev().take_while(|&start| self.load[end] - self.load[start] <= limit);
        for start in starts {
            let Some(states) = start.checked_sub(first).and_then(|at| layer.get(at)) else { continue };
            for (before, &rest) in states.iter().enumerate().filter(|(_, rest)| **rest >= 0) {
                for (keeps, kept, after) in self.ways(start, before, end) {
                    if after == given && rest + kept == value {
                        return Some((start, before, keeps, rest));
                    }
                }
            }
        }
        None
    }

    /// What a stretch can keep: the owner, how much, and the state after it.
    fn ways(
        &self,
        start: usize,
        given: usize,
        end: usize,
    ) -> impl Iterator<Item = (Option<usize>, i64, usize)> {
        let (first, last) = (self.owner_of[start], self.owner_of[end - 1]);
        let is_cut = self.owners[last + 1] > end;
        let untouched = if first == last && is_cut { given } else { 0 };
        let owners = (first..=last).filter(move |&owner| owner != first || given == 0);
        let kept = move |owner: usize| {
            let (from, to) = (self.owners[owner].max(start), self.owners[owner + 1].min(end));
            let after = if owner == last { usize::from(is_cut) } else { 0 };
            (Some(owner), self.value[to] - self.value[from], after)
        };
        owners.map(kept).chain([(None, 0, untouched)])
    }

    /// The most that is kept if no stretch exceeds `limit`; keeps the layers before each stretch, if wanted, each with
    /// the cell that it begins at.
    fn most_kept(&self, count: usize, limit: i64, mut kept: Option<&mut Vec<(usize, Layer)>>) -> Option<i64> {
        let (cells, total) = (self.cells(), self.total());
        let mut first = 0;
        let mut layer: Layer = vec![[0, NEVER]];
        for done in 1..=count {
            let to_come = count - done;
            // Ends that have a cell for each stretch, and no more load on either side than stretches can hold.
            let least = total.saturating_sub(int(to_come).saturating_mul(limit));
            let most = int(done).saturating_mul(limit);
            let from = self.load.partition_point(|&load| load < least).max(done);
            let to = (self.load.partition_point(|&load| load <= most)).min(cells + 1 - to_come);
            if from >= to {
                return None;
            }
            let next = self.next_layer(first, &layer, limit, from..to);
            if let Some(kept) = kept.as_deref_mut() {
                kept.push((first, layer));
            }
            (first, layer) = (from, next);
        }
        layer.last().map(|states| states[0]).filter(|&kept| kept >= 0)
    }

    fn next_layer(&self, first: usize, layer: &Layer, limit: i64, ends: Range<usize>) -> Layer {
        let at = |start: usize, given: usize| {
            let states = start.checked_sub(first).and_then(|at| layer.get(at));
            states.map_or(NEVER, |states| states[given])
        };
        let mut next = Vec::with_capacity(ends.len());
        let mut earliest = self.load.partition_point(|&load| load < self.load[ends.start] - limit);
        let mut within = Within::default();
        let mut before = Before::default();
        let mut owner = usize::MAX;
        for end in ends {
            while self.load[end] - self.load[earliest] > limit {
                earliest += 1;
            }
            if earliest >= end {
                next.push([NEVER; 2]);
                continue;
            }
            let last = self.owner_of[end - 1];
            let begin = self.owners[last];
            if last != owner {
                owner = last;
                within = Within { pushed: begin.max(earliest), ..Within::default() };
                before = Before::new(self, &at, earliest..begin);
            }
            while within.pushed < end {
                let start = within.pushed;
                within.keeping.push(start, at(start, 0).saturating_sub(self.value[start]));
                within.free.push(start, at(start, 0));
                within.given.push(start, at(start, 1));
                within.pushed += 1;
            }
            let [keeping, free, given] =
                [&mut within.keeping, &mut within.free, &mut within.given].map(|queue| queue.best(earliest));
            let (any, other) = before.best(earliest);

            let last_kept = (keeping + self.value[end]).max(any + self.value[end] - self.value[begin]);
            let last_given = last_kept.max(given);
            let last_free = free.max(other);
            let states = if self.owners[last + 1] == end {
                [last_given.max(last_free), NEVER]
            } else {
                [last_free, last_given]
            };
            // Sums with NEVER stay far below 0.
            next.push(states.map(|kept| if kept < 0 { NEVER } else { kept }));
        }
        next
    }
}

/// A count that is far below 2^63.
fn int(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A whole number that is far below 2^63.
#[expect(
    clippy::cast_possible_truncation,
    reason = "no load in whole numbers is above MAX_TOTAL and its rounding"
)]
fn whole(load: f64) -> i64 {
    load as i64
}

/// The best of a window whose ends only grow.
#[derive(Debug, Default)]
struct WindowMax {
    /// Descending values.
    queue: VecDeque<(usize, i64)>,
}

impl WindowMax {
    fn push(&mut self, at: usize, value: i64) {
        while self.queue.pop_back_if(|(_, last)| *last <= value).is_some() {}
        self.queue.push_back((at, value));
    }

    fn best(&mut self, from: usize) -> i64 {
        while self.queue.pop_front_if(|(at, _)| *at < from).is_some() {}
        self.queue.front().map_or(NEVER, |(_, value)| *value)
    }
}

/// Starts within the last owner of a stretch.
#[derive(Debug, Default)]
struct Within {
    /// Starts up to here are in the queues.
    pushed: usize,
    /// The last owner's id is kept from the start on.
    keeping: WindowMax,
    /// It is not kept, and was not given before.
    free: WindowMax,
    /// It was given before.
    given: WindowMax,
}

/// Starts before the last owner of a stretch: the best of all from a start to where that owner begins.
#[derive(Debug, Default)]
struct Before {
    first: usize,
    /// The best state at the start, and the best with what is kept of owners before the last.
    best: Vec<(i64, i64)>,
}

impl Before {
    fn new(row: &CellRow, at: &impl Fn(usize, usize) -> i64, starts: Range<usize>) -> Self {
        let first = starts.start;
        let mut best = Vec::with_capacity(starts.len());
        let (mut any, mut other) = (NEVER, NEVER);
        // The most that a whole owner after the start's own has.
        let mut largest = 0;
        for start in starts.rev() {
            let [free, given] = [at(start, 0), at(start, 1)];
            let either = free.max(given);
            let owner = row.owner_of[start];
            let (begin, end) = (row.owners[owner], row.owners[owner + 1]);
            any = any.max(either);
            other = other.max(either + largest).max(free + row.value[end] - row.value[start]);
            if start == begin {
                largest = largest.max(row.value[end] - row.value[begin]);
            }
            best.push((any, other));
        }
        best.reverse();
        Self { first, best }
    }

    fn best(&self, earliest: usize) -> (i64, i64) {
        let best = earliest.checked_sub(self.first).and_then(|at| self.best.get(at));
        best.copied().unwrap_or((NEVER, NEVER))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::base::random::Random;

    /// Every way to cut `cells` into `count` stretches, by where they begin.
    fn cuts(cells: usize, count: usize) -> Vec<Vec<usize>> {
        fn extend(starts: &[usize], cells: usize, count: usize, all: &mut Vec<Vec<usize>>) {
            if starts.len() == count {
                all.push(starts.to_vec());
                return;
            }
            for next in starts[starts.len() - 1] + 1..cells {
                extend(&[starts, &[next]].concat(), cells, count, all);
            }
        }
        let mut all = Vec::new();
        extend(&[0], cells, count, &mut all);
        all
    }

    fn owner_of(owners: &[usize], cell: usize) -> usize {
        owners.partition_point(|&start| start <= cell) - 1
    }

    /// The most that stretches can keep, load then cells, by trying every id for each.
    fn most_kept(
        loads: &[u32],
        owners: &[usize],
        stretches: &[Range<usize>],
        used: &mut Vec<bool>,
    ) -> (u32, usize) {
        let Some((first, rest)) = stretches.split_first() else { return (0, 0) };
        let mut best = most_kept(loads, owners, rest, used);
        for owner in owner_of(owners, first.start)..=owner_of(owners, first.end - 1) {
            if used[owner] {
                continue;
            }
            used[owner] = true;
            let (load, cells) = most_kept(loads, owners, rest, used);
            used[owner] = false;
            let inside = first.clone().filter(|&cell| owner_of(owners, cell) == owner);
            best = best
                .max((load + inside.clone().map(|cell| loads[cell]).sum::<u32>(), cells + inside.count()));
        }
        best
    }

    /// For every cut: the largest load, the load that moves, the cells that move.
    fn all_maps(loads: &[u32], owners: &[usize], count: usize) -> Vec<(u32, u32, usize)> {
        let total: u32 = loads.iter().sum();
        let one = |starts: Vec<usize>| {
            let ends = starts.iter().skip(1).copied().chain([loads.len()]);
            let stretches: Vec<Range<usize>> = starts.iter().copied().zip(ends).map(|(a, b)| a..b).collect();
            let max = stretches.iter().map(|cells| loads[cells.clone()].iter().sum()).max().unwrap();
            let (kept, cells) = most_kept(loads, owners, &stretches, &mut vec![false; owners.len()]);
            (max, total - kept, loads.len() - cells)
        };
        cuts(loads.len(), count).into_iter().map(one).collect()
    }

    /// What the cut says of itself is true; gives its largest load, the load that moves and the cells that move.
    fn examined(loads: &[u32], owners: &[usize], cut: &Cut) -> (u32, u32, usize) {
        let (mut at, mut max, mut moved, mut cells) = (0, 0, 0, 0);
        let mut kept = BTreeSet::new();
        for Stretch { cells: within, keeps } in &cut.stretches {
            assert_eq!(within.start, at);
            assert!(within.end > at);
            at = within.end;
            assert!(keeps.is_none_or(|owner| kept.insert(owner)), "an id twice: {cut:?}");
            max = max.max(loads[within.clone()].iter().sum());
            for cell in within.clone().filter(|&cell| Some(owner_of(owners, cell)) != *keeps) {
                moved += loads[cell];
                cells += 1;
            }
        }
        assert_eq!(at, loads.len());
        assert_eq!((cut.max, cut.moved), (i64::from(max), i64::from(moved)), "{cut:?}");
        (max, moved, cells)
    }

    fn compare(loads: &[u32], owners: &[usize]) {
        let floats: Vec<f64> = loads.iter().copied().map(f64::from).collect();
        let row = CellRow::new(&floats, owners);
        let total: u32 = loads.iter().sum();
        for count in 1..=loads.len().min(4) {
            let maps = all_maps(loads, owners, count);
            let cheapest = maps.iter().map(|(_, moved, _)| *moved).min().unwrap();
            let mut budgets: Vec<u32> =
                [0, 5, 10, 25, 50, 100].iter().map(|percent| total * percent / 100).collect();
            budgets.dedup();
            for budget in budgets {
                let wanted = maps.iter().filter(|(_, moved, _)| *moved <= budget).min();
                match (row.best(count, i64::from(budget)), wanted) {
                    (Best::Cut(cut), Some(&wanted)) => {
                        assert_eq!(cut.stretches.len(), count);
                        let found = examined(loads, owners, &cut);
                        assert_eq!(found, wanted, "{loads:?} {owners:?} into {count} within {budget}");
                        assert!(row.lower_bound(count, i64::from(budget)) <= cut.max);
                    }
                    (Best::MovesAtLeast(least), None) => assert_eq!(least, i64::from(cheapest)),
                    (found, wanted) => panic!("{loads:?} {owners:?} {count} {budget}: {found:?}, {wanted:?}"),
                }
            }
            for max in [total / 2, total] {
                let below =
                    maps.iter().filter(|(load, ..)| *load < max).map(|(_, moved, _)| i64::from(*moved));
                assert_eq!(row.least_moved_below(count, i64::from(max)), below.min());
            }
        }
    }

    #[test]
    fn no_map_of_up_to_12_cells_and_4_geoshards_is_better() {
        let mut random = Random::new(24);
        let mut compared = 0;
        for cells in 1..=12 {
            for largest in [2, 20, 1000] {
                let loads: Vec<u32> =
                    (0..cells).map(|_| u32::try_from(random.below(largest + 1)).unwrap()).collect();
                for owners in (1..=cells.min(4)).flat_map(|count| cuts(cells, count)) {
                    compare(&loads, &owners);
                    compared += 1;
                }
            }
        }
        assert_eq!(compared, 3 * 793);
    }

    #[test]
    fn no_map_of_5_cells_is_better_whatever_the_loads() {
        const LOADS: [u32; 3] = [0, 1, 3];
        for number in 0..LOADS.len().pow(5) {
            let loads: Vec<u32> =
                (0..5).map(|cell| LOADS[number / LOADS.len().pow(cell) % LOADS.len()]).collect();
            for owners in (1..=4).flat_map(|count| cuts(5, count)) {
                compare(&loads, &owners);
            }
        }
    }

    #[test]
    fn no_map_with_several_ranges_each_is_below_the_bound() {
        let mut random = Random::new(25);
        for _ in 0..40 {
            let loads: Vec<u32> = (0..6).map(|_| u32::try_from(random.below(9)).unwrap()).collect();
            let floats: Vec<f64> = loads.iter().copied().map(f64::from).collect();
            for owners in cuts(6, 3) {
                let row = CellRow::new(&floats, &owners);
                // Three owners and a new geoshard, of which three may have cells.
                for map in 0..4_usize.pow(6) {
                    let ids: Vec<usize> = (0..6).map(|cell| map / 4_usize.pow(cell) % 4).collect();
                    if ids.iter().collect::<BTreeSet<_>>().len() > 3 {
                        continue;
                    }
                    let load =
                        |id: usize| (0..6).filter(|&cell| ids[cell] == id).map(|cell| loads[cell]).sum();
                    let max: u32 = (0..4).map(load).max().unwrap();
                    let moved: u32 = (0..6)
                        .filter(|&cell| ids[cell] != owner_of(&owners, cell))
                        .map(|cell| loads[cell])
                        .sum();
                    assert!(
                        row.lower_bound(3, i64::from(moved)) <= i64::from(max),
                        "{loads:?} {owners:?} {ids:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn loads_that_are_not_whole_are_measured_in_fine_units() {
        let row = CellRow::new(&[0.1, 0.2, 0.3, 0.4], &[0, 3]);
        assert!((row.load_of(row.total()) - 1.0).abs() < 1e-9);
        let Best::Cut(cut) = row.best(2, row.share(0.3)) else { panic!("the old map moves nothing") };
        assert_eq!(cut.stretches[1], Stretch { cells: 3..4, keeps: Some(1) });
        let hundred = CellRow::new(&[100.0], &[0]);
        assert_eq!([0.05, 0.29, 0.57, 1.0].map(|share| hundred.share(share)), [5, 29, 57, 100]);
    }
}
