//! Cuts a row of loads into non-empty stretches of neighbours, optimally or greedily.
//!
//! **Optimal** is the least sum of squared loads and so, for a given count, the least standard deviation. It is dynamic
//! programming with one row per stretch: the best cost of the first `i` cells in `k` stretches is the least, over all
//! places of the last cut, of the best cost before it in `k - 1` stretches plus the square of the rest. The best last
//! cut never moves back as `i` grows, since squares are convex, so a row is filled by divide and conquer: the middle
//! first, whose cut bounds those of both halves. That is O(k × n log n) for every count up to `k` at once.
//!
//! **Greedy** walks and closes a stretch where it is nearest to an even share of the rest. It never accepts a worse
//! stretch for better later ones; it is reported for comparison.

/// The best cuts of one row of loads, for each count up to a limit.
#[derive(Debug, Clone)]
pub struct BestCuts {
    cells: usize,
    /// Per row (`k` stretches less one): where the last stretch of the first `i` cells begins, at `i`.
    last_cuts: Vec<Vec<u32>>,
}

/// Memory limit of [`BestCuts`], in states.
pub const MAX_STATES: usize = 60_000_000;

impl BestCuts {
    /// Finds the best cuts of `loads` into 1 to `most` stretches. `loads` has at least `most` cells and at most
    /// [`MAX_STATES`] / `most`; loads are finite and not negative.
    pub fn new(loads: &[f64], most: usize) -> Self {
        let before = sums(loads);
        let square = |from: usize, to: usize| (before[to] - before[from]).powi(2);
        let cells = loads.len();
        let mut costs: Vec<f64> = (0..=cells).map(|i| square(0, i)).collect();
        let mut last_cuts = vec![vec![0; cells + 1]];
        // Each row holds for `i` of at least as many cells as stretches.
        for stretches in 2..=most.min(cells) {
            let mut row = vec![f64::INFINITY; cells + 1];
            let mut cuts = vec![0_u32; cells + 1];
            // Cells from `low` to `high`, whose last cuts are from `first` to `last`.
            let mut open = vec![(stretches, cells, stretches - 1, cells - 1)];
            while let Some((low, high, first, last)) = open.pop() {
                let middle = low.midpoint(high);
                let mut best = (f64::INFINITY, first);
                for (at, cost) in (first..).zip(&costs[first..=last.min(middle - 1)]) {
                    let cost = cost + square(at, middle);
                    if cost < best.0 {
                        best = (cost, at);
                    }
                }
                row[middle] = best.0;
                cuts[middle] = u32::try_from(best.1).unwrap_or(u32::MAX);
                if middle > low {
                    open.push((low, middle - 1, first, best.1));
                }
                if middle < high {
                    open.push((middle + 1, high, best.1, last));
                }
            }
            costs = row;
            last_cuts.push(cuts);
        }
        Self { cells, last_cuts }
    }

    /// Where each of `count` stretches begins, ascending, the first at 0. `None` if the count exceeds the limit or the
    /// number of cells.
    pub fn starts(&self, count: usize) -> Option<Vec<usize>> {
        let rows = self.last_cuts.get(..count).filter(|rows| !rows.is_empty())?;
        let mut end = self.cells;
        let mut starts: Vec<usize> = Vec::with_capacity(count);
        for cuts in rows.iter().rev() {
            end = usize::try_from(cuts[end]).unwrap_or(usize::MAX);
            starts.push(end);
        }
        starts.reverse();
        Some(starts)
    }
}

/// Where each of `count` stretches begins if each is closed where it is nearest to an even share of the rest. `loads`
/// has at least `count` cells.
pub fn greedy(loads: &[f64], count: usize) -> Vec<usize> {
    let mut starts = vec![0];
    let mut left: f64 = loads.iter().sum();
    let mut load = 0.0;
    for (index, cell) in loads.iter().enumerate() {
        let to_come = count - starts.len();
        if to_come == 0 {
            break;
        }
        let is_begun = starts.last().is_some_and(|&start| start < index);
        let target = left / (to_come + 1) as f64;
        let is_full = load + cell - target > target - load;
        // Each remaining stretch needs a cell.
        if is_begun && (is_full || loads.len() - index <= to_come) {
            starts.push(index);
            left -= load;
            load = 0.0;
        }
        load += cell;
    }
    starts
}

/// The load of each stretch.
pub fn stretches(loads: &[f64], starts: &[usize]) -> Vec<f64> {
    let ends = starts.iter().skip(1).copied().chain([loads.len()]);
    starts.iter().zip(ends).map(|(&start, end)| loads[start..end].iter().sum()).collect()
}

fn sums(loads: &[f64]) -> Vec<f64> {
    let sums = loads.iter().scan(0.0, |sum, load| {
        *sum += load;
        Some(*sum)
    });
    std::iter::once(0.0).chain(sums).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cost(loads: &[f64], starts: &[usize]) -> f64 {
        stretches(loads, starts).iter().map(|load| load * load).sum()
    }

    /// The least cost, by brute force.
    fn least(loads: &[f64], count: usize) -> f64 {
        if count == 1 {
            return loads.iter().sum::<f64>().powi(2);
        }
        let first = |cut: usize| loads[..cut].iter().sum::<f64>().powi(2);
        let ways = (1..=loads.len() - count + 1).map(|cut| first(cut) + least(&loads[cut..], count - 1));
        ways.fold(f64::INFINITY, f64::min)
    }

    fn is_a_cut(starts: &[usize], cells: usize, count: usize) -> bool {
        starts.len() == count
            && starts[0] == 0
            && starts.windows(2).all(|pair| pair[0] < pair[1])
            && starts.iter().all(|&start| start < cells)
    }

    #[test]
    fn no_stretch_is_empty_even_with_weightless_cells() {
        let loads = [0.0, 0.0, 9.0, 0.0, 0.0];
        let best = BestCuts::new(&loads, 5);
        for count in 1..=5 {
            assert!(is_a_cut(&best.starts(count).unwrap(), 5, count));
            assert!(is_a_cut(&greedy(&loads, count), 5, count));
        }
        assert_eq!((best.starts(0), best.starts(6)), (None, None));
    }

    #[test]
    fn greedy_closes_a_stretch_nearest_to_its_even_share() {
        let loads = [4.0, 3.0, 3.0, 9.0, 1.0, 1.0];
        // 21 in three: 4 and 3 make 7; then 14 in two, where 3 is nearer to 7 than 12 is; the rest is the last.
        assert_eq!(greedy(&loads, 3), [0, 2, 3]);
        assert_eq!(stretches(&loads, &greedy(&loads, 3)), [7.0, 3.0, 11.0]);
    }

    proptest! {
        #[test]
        fn best_cuts_have_the_lowest_sum_of_squares(loads in prop::collection::vec(0..50_u8, 1..12)) {
            let loads: Vec<f64> = loads.into_iter().map(f64::from).collect();
            let best = BestCuts::new(&loads, loads.len());
            for count in 1..=loads.len() {
                let starts = best.starts(count).unwrap();
                prop_assert!(is_a_cut(&starts, loads.len(), count), "{:?}", starts);
                prop_assert_eq!(cost(&loads, &starts), least(&loads, count), "{} stretches", count);
            }
        }

        #[test]
        fn greedy_is_never_better(loads in prop::collection::vec(0..1000_u16, 60..300), count in 1..60_usize) {
            let loads: Vec<f64> = loads.into_iter().map(f64::from).collect();
            let (best, greedy) = (BestCuts::new(&loads, count).starts(count).unwrap(), greedy(&loads, count));
            prop_assert!(is_a_cut(&greedy, loads.len(), count), "{:?}", greedy);
            prop_assert!(cost(&loads, &best) <= cost(&loads, &greedy));
        }
    }
}
