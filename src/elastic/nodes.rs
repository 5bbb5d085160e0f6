//! Which node to ask next: round robin, with a rest for nodes that do not answer. Pure: time is passed in.
//!
//! A node that fails rests for a second; each further failure without a success in between doubles that, up to half a
//! minute. While others answer, a resting node is passed over; when all rest, the one whose rest ends first is asked, so
//! that an outage of everything is noticed to be over as soon as retries allow.

use std::time::Duration;

use crate::clock::Instant;

const FIRST_REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(30);

/// The nodes of one cluster, by number.
#[derive(Debug)]
pub struct Nodes {
    nodes: Vec<Node>,
    next: usize,
}

#[derive(Debug, Clone, Default)]
struct Node {
    /// In a row.
    failures: u32,
    rests_until: Option<Instant>,
}

impl Node {
    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| until > now)
    }
}

impl Nodes {
    /// `count` nodes (at least one) of which nothing is known yet.
    pub fn new(count: usize) -> Self {
        Self { nodes: vec![Node::default(); count.max(1)], next: 0 }
    }

    /// The node to ask now: the next one that does not rest, else the one that rests least long.
    pub fn pick(&mut self, now: Instant) -> usize {
        let count = self.nodes.len();
        let in_turn = (0..count).map(|step| (self.next + step) % count);
        let awake = in_turn.clone().find(|&node| !self.nodes[node].rests(now));
        let picked =
            awake.or_else(|| in_turn.min_by_key(|&node| self.nodes[node].rests_until)).unwrap_or_default();
        self.next = (picked + 1) % count;
        picked
    }

    /// The node answered.
    pub fn succeeded(&mut self, node: usize) {
        self.nodes[node] = Node::default();
    }

    /// The node did not answer. Requests that fail side by side are one failure: those that come back while the node
    /// rests say nothing new.
    pub fn failed(&mut self, node: usize, now: Instant) {
        let node = &mut self.nodes[node];
        if node.rests(now) {
            return;
        }
        let rest = FIRST_REST.saturating_mul(2u32.saturating_pow(node.failures)).min(LONGEST_REST);
        node.failures = node.failures.saturating_add(1);
        node.rests_until = Some(now + rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_start(Duration::from_millis(millis))
    }

    #[test]
    fn nodes_take_turns_and_a_failed_one_is_passed_over_while_it_rests() {
        let mut nodes = Nodes::new(3);
        let turns: Vec<_> = (0..4).map(|_| nodes.pick(at(0))).collect();
        assert_eq!(turns, [0, 1, 2, 0]);
        nodes.failed(1, at(0));
        let turns: Vec<_> = (0..3).map(|_| nodes.pick(at(999))).collect();
        assert_eq!(turns, [2, 0, 2]);
        assert_eq!((nodes.pick(at(1_000)), nodes.pick(at(1_000))), (0, 1));
    }

    #[test]
    fn rests_double_up_to_half_a_minute_and_a_success_ends_them() {
        let mut nodes = Nodes::new(1);
        let mut now = at(0);
        let mut rests = Vec::new();
        for _ in 0..7 {
            nodes.failed(0, now);
            let until = nodes.nodes[0].rests_until.unwrap();
            rests.push(until.since(now).as_secs());
            now = until;
        }
        assert_eq!(rests, [1, 2, 4, 8, 16, 30, 30]);
        nodes.succeeded(0);
        nodes.failed(0, now);
        assert_eq!(nodes.nodes[0].rests_until, Some(now + FIRST_REST));
    }

    #[test]
    fn requests_that_fail_side_by_side_are_one_failure() {
        let mut nodes = Nodes::new(1);
        for _ in 0..8 {
            nodes.failed(0, at(0));
        }
        assert_eq!(nodes.nodes[0].rests_until, Some(at(1_000)));
    }

    #[test]
    fn when_all_rest_the_one_whose_rest_ends_first_is_asked() {
        let mut nodes = Nodes::new(3);
        for (node, millis) in [(2, 0), (0, 100), (1, 200)] {
            nodes.failed(node, at(millis));
        }
        assert_eq!((nodes.pick(at(300)), nodes.pick(at(300))), (2, 2));
    }
}
