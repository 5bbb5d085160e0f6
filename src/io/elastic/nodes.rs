//! Node selection: round robin; nodes that do not answer are skipped for a while. Pure: time is passed in.
//!
//! A node that fails rests for a second; each further failure without a success in between doubles that, up to half a
//! minute. While others answer, a resting node is passed over. After its rest it is on trial: one request is sent to it,
//! and it is passed over until that is answered, so that a node that hangs holds one request up and not all of them. When
//! all rest, the one whose rest ends first is asked, so that an outage of everything is noticed to be over as soon as
//! retries allow.

use std::time::Duration;

use crate::base::clock::Instant;
pub use crate::base::requests::NodesObserver;

const FIRST_REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(30);
/// After this a trial counts for nothing: the request was given up by who sent it.
const LONGEST_TRIAL: Duration = Duration::from_secs(60);

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
    /// Skipped because one trial request is in flight.
    on_trial: bool,
}

impl Node {
    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| until > now)
    }
}

impl Nodes {
    /// `count` nodes (at least one), all in unknown state.
    pub fn new(count: usize) -> Self {
        Self { nodes: vec![Node::default(); count.max(1)], next: 0 }
    }

    /// The next available node, else the one that becomes available first.
    pub fn pick(&mut self, now: Instant) -> usize {
        self.pick_for(0, now)
    }

    /// [`Nodes::pick`] for a request that node `first` has, too: another one, if another does not rest.
    pub fn pick_besides(&mut self, first: usize, now: Instant) -> usize {
        let count = self.nodes.len();
        let others = (0..count).map(|step| (self.next + step) % count).filter(|&node| node != first);
        let awake = others.into_iter().find(|&node| !self.nodes[node].rests(now));
        self.next = awake.unwrap_or(first);
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
        let awake = in_turn.clone().find(|&node| !self.nodes[node].rests(now));
        let picked =
            awake.or_else(|| in_turn.min_by_key(|&node| self.nodes[node].rests_until)).unwrap_or_default();
        self.next = (picked + 1) % count;
        let node = &mut self.nodes[picked];
        if node.failures > 0 && !node.rests(now) {
            node.on_trial = true;
            node.rests_until = Some(now + LONGEST_TRIAL);
        }
        picked
    }

    /// Records a success. Returns whether the node had failed before.
    pub fn succeeded(&mut self, node: usize) -> bool {
        std::mem::take(&mut self.nodes[node]).failures > 0
    }

    /// Records a failure. Concurrent failures count once: those that arrive while the node is skipped change nothing. Returns
    /// for how long it is skipped from now on.
    pub fn failed(&mut self, node: usize, now: Instant) -> Option<Duration> {
        let node = &mut self.nodes[node];
        if node.rests(now) && !node.on_trial {
            return None;
        }
        let rest = FIRST_REST.saturating_mul(2u32.saturating_pow(node.failures)).min(LONGEST_REST);
        *node = Node {
            failures: node.failures.saturating_add(1),
            rests_until: Some(now + rest),
            on_trial: false,
        };
        Some(rest)
    }

    /// Nodes whose last request succeeded (or that were not used yet), and the others.
    pub fn up_and_down(&self) -> (usize, usize) {
        let down = self.nodes.iter().filter(|node| node.failures > 0).count();
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
    fn after_its_rest_a_node_gets_one_request_until_that_is_answered() {
        let mut nodes = Nodes::new(2);
        assert_eq!(nodes.failed(0, at(0)), Some(FIRST_REST));
        assert_eq!(nodes.up_and_down(), (1, 1));
        let mut turns = |now| (0..3).map(|_| nodes.pick(at(now))).collect::<Vec<_>>();
        assert_eq!(turns(1_000), [0, 1, 1]);
        // The sender dropped the request: its result never arrives.
        assert_eq!(turns(60_999), [1, 1, 1]);
        assert_eq!(turns(61_000), [0, 1, 1]);
        // The trial fails: the next pause is longer. Concurrent failures change nothing.
        assert_eq!(nodes.failed(0, at(61_500)), Some(2 * FIRST_REST));
        assert_eq!(nodes.failed(0, at(61_500)), None);
        assert_eq!((0..2).map(|_| nodes.pick(at(63_499))).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(nodes.pick(at(63_500)), 0);
        assert!(nodes.succeeded(0) && !nodes.succeeded(1));
        assert_eq!(nodes.up_and_down(), (2, 0));
        assert_eq!((0..3).map(|_| nodes.pick(at(63_501))).collect::<Vec<_>>(), [1, 0, 1]);
    }

    #[test]
    fn who_asks_again_asks_every_node_that_answers() {
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
