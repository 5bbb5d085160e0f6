//! Nearest first: geoshards are asked in the order of their distance, a few at a time, until no other can hold a nearer hit.
//!
//! While fewer hits than wanted are known, each round asks twice as many geoshards as the one before. Once there are enough,
//! one more round asks those that may hold something nearer than the last of them, all at once, and that is the end. A
//! geoshard that is exactly as far as the last hit is asked, too: documents at equal distance are ordered by the other keys.

use crate::base::ids::ShardId;

/// What is asked, and in which order.
#[derive(Debug, Clone)]
pub struct AskRounds {
    /// Those not asked yet, the farthest first, each with its bound in metres.
    left: Vec<(f64, ShardId)>,
    next: usize,
}

/// Geoshards of the first round: the point's own, and one more where it is near.
const FIRST_ROUND: usize = 2;

impl AskRounds {
    /// Of geoshards in the order of their bounds.
    pub fn new(mut ordered: Vec<(f64, ShardId)>) -> Self {
        // While a map is changed, or on a border, several are at distance 0.
        let near = ordered.iter().take_while(|(bound, _)| *bound <= 0.0).count();
        ordered.reverse();
        Self { left: ordered, next: near.max(FIRST_ROUND) }
    }

    /// Whom to ask next; nobody if the answer is complete. `last`: metres to the last hit that is wanted, if there are so many
    /// hits by now.
    pub fn next(&mut self, last: Option<f64>) -> Vec<ShardId> {
        let count = match last {
            Some(last) => self.left.iter().rev().take_while(|(bound, _)| *bound <= last).count(),
            None => self.next.min(self.left.len()),
        };
        self.next *= 2;
        self.left.split_off(self.left.len() - count).into_iter().rev().map(|(_, shard)| shard).collect()
    }

    /// Those that were not asked.
    pub fn rest(&self) -> Vec<ShardId> {
        self.left.iter().map(|(_, shard)| shard.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;

    fn shard(n: usize) -> ShardId {
        ShardId::new(&format!("s{n}")).unwrap()
    }

    #[test]
    fn rounds_grow_until_there_is_enough_and_end_with_those_that_may_be_nearer() {
        let ordered = (0..20).map(|n| (n as f64 * 10.0, shard(n))).collect();
        let mut rounds = AskRounds::new(ordered);
        assert_eq!(rounds.next(None), [shard(0), shard(1)]);
        assert_eq!(rounds.next(None), [shard(2), shard(3), shard(4), shard(5)]);
        assert_eq!(rounds.next(Some(70.0)), [shard(6), shard(7)], "one at the very distance is asked");
        assert!(rounds.next(Some(70.0)).is_empty() && rounds.rest().len() == 12);
        assert_eq!(rounds.next(Some(f64::INFINITY)).len(), 12);
        assert!(rounds.next(None).is_empty() && rounds.rest().is_empty());
    }

    #[test]
    fn all_that_the_point_lies_in_are_asked_first() {
        let ordered = vec![(0.0, shard(0)), (0.0, shard(1)), (0.0, shard(2)), (5.0, shard(3))];
        assert_eq!(AskRounds::new(ordered).next(None).len(), 3);
        assert!(AskRounds::new(Vec::new()).next(None).is_empty());
        assert_eq!(AskRounds::new(vec![(7.0, shard(0))]).next(None).len(), 1);
    }

    /// Documents on a line of random distances, in geoshards whose bounds are no more than those.
    #[test]
    fn an_early_stop_never_gives_another_answer_than_asking_all() {
        let mut random = Random::new(11);
        let (mut asked, mut all) = (0, 0);
        for _ in 0..2000 {
            let shards = 1 + usize::try_from(random.below(20)).unwrap();
            let mut ordered = Vec::new();
            let mut documents: Vec<Vec<f64>> = Vec::new();
            for n in 0..shards {
                let bound = (random.below(50) * random.below(2)) as f64;
                ordered.push((bound, shard(n)));
                documents.push((0..random.below(6)).map(|_| bound + random.below(100) as f64).collect());
            }
            ordered.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
            let wanted = 1 + usize::try_from(random.below(8)).unwrap();
            let of = |shard: &ShardId| &documents[shard.as_str()[1..].parse::<usize>().unwrap()];
            let mut rounds = AskRounds::new(ordered);
            let mut found: Vec<f64> = Vec::new();
            loop {
                let round = rounds.next(found.get(wanted - 1).copied());
                if round.is_empty() {
                    break;
                }
                found.extend(round.iter().flat_map(&of));
                found.sort_by(f64::total_cmp);
                found.truncate(wanted);
            }
            let mut expected: Vec<f64> = documents.concat();
            expected.sort_by(f64::total_cmp);
            expected.truncate(wanted);
            assert_eq!(found, expected);
            asked += shards - rounds.rest().len();
            all += shards;
        }
        assert!(asked * 10 < all * 9, "{asked} of {all}");
    }
}
