//! How many copies each geoshard has, within a total.
//!
//! A copy takes its part of the geoshard's searches and all of its writes. Wanted are the numbers of copies with the least
//! largest load of a copy. Giving one copy after another to the geoshard whose copies have the most is the best way: a copy's load
//! only falls with the number, so in any assignment that is better, every geoshard that this one gave a copy to has at least as
//! many, and none is left for the one with the most. Copies that improve nothing are not given.

use serde::Serialize;

use crate::base::ids::ShardId;

/// The load of a geoshard, in any unit that fits both.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaLoad {
    /// Which.
    pub shard: ShardId,
    /// What every copy does: writes.
    pub writes: f64,
    /// What copies share: searches.
    pub queries: f64,
}

/// A proposal.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Copies {
    /// Which geoshard.
    pub shard: ShardId,
    /// Its copies, the primary included.
    pub copies: usize,
    /// The load of each.
    pub load: f64,
}

impl ReplicaLoad {
    fn of_copy(&self, copies: usize) -> f64 {
        self.writes + self.queries / copies.max(1) as f64
    }
}

/// Copies of each geoshard: at least `least` (one, where 0), at most `most` (a copy for each node), and `total` in sum, unless the least
/// take more. In the order of `loads`.
pub fn copies(loads: &[ReplicaLoad], least: usize, most: usize, total: usize) -> Vec<Copies> {
    let least = least.max(1);
    let most = most.max(least);
    let mut counts = vec![least; loads.len()];
    let mut left = total.saturating_sub(least * loads.len());
    while left > 0 {
        let of = |at: usize| loads[at].of_copy(counts[at]);
        let largest =
            (0..loads.len()).max_by(|&one, &other| of(one).total_cmp(&of(other)).then(other.cmp(&one)));
        let Some(largest) = largest.filter(|&at| counts[at] < most && loads[at].queries > 0.0) else { break };
        counts[largest] += 1;
        left -= 1;
    }
    let copies = |(load, copies): (&ReplicaLoad, usize)| Copies {
        shard: load.shard.clone(),
        copies,
        load: load.of_copy(copies),
    };
    loads.iter().zip(counts).map(copies).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;

    fn largest(loads: &[ReplicaLoad], counts: &[usize]) -> f64 {
        loads.iter().zip(counts).map(|(load, count)| load.of_copy(*count)).fold(0.0, f64::max)
    }

    /// The least largest load of a copy, of all assignments.
    fn best(loads: &[ReplicaLoad], least: usize, most: usize, total: usize) -> f64 {
        fn all(
            counts: &mut Vec<usize>,
            left: usize,
            range: (usize, usize),
            try_it: &mut dyn FnMut(&[usize]),
            n: usize,
        ) {
            if counts.len() == n {
                return try_it(counts);
            }
            for count in range.0..=range.1.min(left) {
                counts.push(count);
                all(counts, left - count, range, try_it, n);
                counts.pop();
            }
        }
        let mut least_found = f64::INFINITY;
        let mut try_it = |counts: &[usize]| least_found = least_found.min(largest(loads, counts));
        all(&mut Vec::new(), total, (least, most), &mut try_it, loads.len());
        least_found
    }

    #[test]
    fn no_assignment_is_better_than_the_greedy_one() {
        let mut random = Random::new(11);
        for case in 0..400 {
            let count = 1 + usize::try_from(random.below(5)).unwrap();
            let loads: Vec<ReplicaLoad> = (0..count)
                .map(|n| ReplicaLoad {
                    shard: ShardId::new(&format!("s{n}")).unwrap(),
                    writes: random.below(4) as f64,
                    queries: random.below(12) as f64,
                })
                .collect();
            let (least, most) = (1 + case % 2, 2 + case % 4);
            let total = least * count + usize::try_from(random.below(8)).unwrap();
            let given = copies(&loads, least, most, total);
            let counts: Vec<usize> = given.iter().map(|copies| copies.copies).collect();
            assert!(counts.iter().all(|count| (least..=most.max(least)).contains(count)), "{counts:?}");
            assert!(counts.iter().sum::<usize>() <= total);
            let (ours, theirs) = (largest(&loads, &counts), best(&loads, least, most.max(least), total));
            assert!(ours <= theirs + 1e-9, "{loads:?} {least} {most} {total}: {counts:?} {ours} {theirs}");
        }
    }

    #[test]
    fn searches_bring_copies_and_writes_do_not() {
        let load = |shard: &str, writes: f64, queries: f64| ReplicaLoad {
            shard: ShardId::new(shard).unwrap(),
            writes,
            queries,
        };
        let counts = |loads: &[ReplicaLoad], least, most, total| -> Vec<usize> {
            copies(loads, least, most, total).iter().map(|copies| copies.copies).collect()
        };
        let loads = [load("a", 1.0, 90.0), load("b", 1.0, 30.0), load("c", 1.0, 0.0)];
        assert_eq!(counts(&loads, 1, 10, 7), [4, 2, 1]);
        assert_eq!(counts(&loads, 2, 3, 9), [3, 2, 2], "more copies than nodes are none");
        assert_eq!(counts(&loads, 2, 3, 1), [2, 2, 2], "the least are given in any case");
        assert_eq!(
            counts(&[load("a", 9.0, 0.0), load("b", 1.0, 4.0)], 1, 9, 9),
            [1, 1],
            "nothing helps the first"
        );
        assert_eq!(counts(&[], 1, 2, 3), [0; 0]);
    }
}
