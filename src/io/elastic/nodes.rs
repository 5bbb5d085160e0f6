//! Node selection: round robin; nodes that do not answer are skipped for a while. Pure: time is passed in.
//!
//! Each node has a circuit breaker that opens at the first failure: for a second, doubled with each further failure, up to
//! half a minute. Then one trial request is sent to it, so that a node that hangs delays one request and not all of them. If
//! every node is skipped, the one that becomes available first is used, so that the end of an outage of all nodes is noticed
//! as soon as retries allow.

use std::time::Duration;

use crate::base::circuit_breaker::CircuitBreaker;
use crate::base::clock::Instant;
pub use crate::base::requests::NodesObserver;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// The nodes of one cluster, by number.
#[derive(Debug)]
pub struct Nodes {
    nodes: Vec<CircuitBreaker>,
    next: usize,
}

impl Nodes {
    /// `count` nodes (at least one), all in unknown state.
    pub fn new(count: usize) -> Self {
        Self { nodes: vec![CircuitBreaker::new(1); count.max(1)], next: 0 }
    }

    /// The next available node, else the one that becomes available first.
    pub fn pick(&mut self, now: Instant) -> usize {
        self.pick_for(0, now)
    }

    /// [`Nodes::pick`] for a request that node `first` has, too: another one, if another is available.
    pub fn pick_besides(&mut self, first: usize, now: Instant) -> usize {
        let count = self.nodes.len();
        let others = (0..count).map(|step| (self.next + step) % count).filter(|&node| node != first);
        let available = others.into_iter().find(|&node| self.nodes[node].would_admit(now));
        self.next = available.unwrap_or(first);
        self.pick_for(0, now)
    }

    /// The node for the `look`th repetition of a read: another one each time, until all were used. Skips nodes like
    /// [`Nodes::pick`].
    pub fn pick_for(&mut self, look: usize, now: Instant) -> usize {
        let count = self.nodes.len();
        if look > 0 {
            self.next = look % count;
        }
        let in_turn = (0..count).map(|step| (self.next + step) % count);
        let available = in_turn.clone().find(|&node| self.nodes[node].admits(now));
        let picked = available
            .or_else(|| in_turn.min_by_key(|&node| self.nodes[node].open_until()))
            .unwrap_or_default();
        self.next = (picked + 1) % count;
        picked
    }

    /// Records a success. Returns whether the node had failed before.
    pub fn succeeded(&mut self, node: usize) -> bool {
        self.nodes[node].succeeded() > 0
    }

    /// Records a failure. Concurrent failures count once: those that arrive while the node is skipped change nothing. Returns
    /// for how long it is skipped from now on.
    pub fn failed(&mut self, node: usize, now: Instant) -> Option<Duration> {
        self.nodes[node]
            .failed(now, |pauses| FIRST_PAUSE.saturating_mul(2u32.saturating_pow(pauses)).min(MAX_PAUSE))
    }

    /// Nodes whose last request succeeded (or that were not used yet), and the others.
    pub fn up_and_down(&self) -> (usize, usize) {
        let down = self.nodes.iter().filter(|node| node.is_open()).count();
        (self.nodes.len() - down, down)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_start(Duration::from_millis(millis))
    }

    #[test]
    fn nodes_take_turns_and_a_failed_one_is_skipped() {
        let mut nodes = Nodes::new(3);
        let turns: Vec<_> = (0..4).map(|_| nodes.pick(at(0))).collect();
        assert_eq!(turns, [0, 1, 2, 0]);
        nodes.failed(1, at(0));
        let turns: Vec<_> = (0..3).map(|_| nodes.pick(at(999))).collect();
        assert_eq!(turns, [2, 0, 2]);
        assert_eq!((nodes.pick(at(1_000)), nodes.pick(at(1_000))), (0, 1));
    }

    #[test]
    fn after_its_pause_a_node_gets_one_request_until_that_is_answered() {
        let mut nodes = Nodes::new(2);
        assert_eq!(nodes.failed(0, at(0)), Some(FIRST_PAUSE));
        assert_eq!(nodes.up_and_down(), (1, 1));
        let mut turns = |now| (0..3).map(|_| nodes.pick(at(now))).collect::<Vec<_>>();
        assert_eq!(turns(1_000), [0, 1, 1]);
        // The sender dropped the request: its result never arrives.
        assert_eq!(turns(60_999), [1, 1, 1]);
        assert_eq!(turns(61_000), [0, 1, 1]);
        // The trial fails: the next pause is longer. Concurrent failures change nothing.
        assert_eq!(nodes.failed(0, at(61_500)), Some(2 * FIRST_PAUSE));
        assert_eq!(nodes.failed(0, at(61_500)), None);
        assert_eq!((0..2).map(|_| nodes.pick(at(63_499))).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(nodes.pick(at(63_500)), 0);
        assert!(nodes.succeeded(0) && !nodes.succeeded(1));
        assert_eq!(nodes.up_and_down(), (2, 0));
        assert_eq!((0..3).map(|_| nodes.pick(at(63_501))).collect::<Vec<_>>(), [1, 0, 1]);
    }

    #[test]
    fn repeated_reads_use_every_node_that_answers() {
        let mut nodes = Nodes::new(3);
        let looks = |now, nodes: &mut Nodes| -> Vec<_> {
            // Requests in between do not matter.
            (1..=3).map(|look| (nodes.pick(now), nodes.pick_for(look, now)).1).collect()
        };
        assert_eq!(looks(at(0), &mut nodes), [1, 2, 0]);
        nodes.failed(2, at(0));
        assert_eq!(looks(at(0), &mut nodes), [1, 0, 0]);
    }

    #[test]
    fn a_request_is_sent_a_second_time_to_another_node_if_one_answers() {
        let mut nodes = Nodes::new(3);
        assert_eq!([0, 1, 2].map(|first| nodes.pick_besides(first, at(0))), [1, 2, 0]);
        nodes.failed(1, at(0));
        nodes.failed(2, at(0));
        assert_eq!((nodes.pick_besides(0, at(0)), nodes.pick_besides(1, at(0))), (0, 0));
        assert_eq!(Nodes::new(1).pick_besides(0, at(0)), 0);
    }

    #[test]
    fn pauses_double_up_to_half_a_minute_and_a_success_ends_them() {
        let mut nodes = Nodes::new(1);
        let mut now = at(0);
        let mut pauses = Vec::new();
        for _ in 0..7 {
            nodes.failed(0, now);
            let until = nodes.nodes[0].open_until().unwrap();
            pauses.push(until.since(now).as_secs());
            now = until;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        nodes.succeeded(0);
        nodes.failed(0, now);
        assert_eq!(nodes.nodes[0].open_until(), Some(now + FIRST_PAUSE));
    }

    #[test]
    fn if_all_are_skipped_the_first_to_become_available_is_used() {
        let mut nodes = Nodes::new(3);
        for (node, millis) in [(2, 0), (0, 100), (1, 200)] {
            nodes.failed(node, at(millis));
        }
        assert_eq!((nodes.pick(at(300)), nodes.pick(at(300))), (2, 2));
    }
}
