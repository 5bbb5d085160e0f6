//! Hedged requests: one that Elasticsearch does not answer for a while is sent to another node, too. How many may be is bounded.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Of so many requests one may be hedged.
const REQUESTS_PER_HEDGE: u32 = 20;
/// Hedges that are saved up while none is needed, at most: for a moment in which one node stops answering.
const MAX_SAVED: u32 = 10;

/// When a request is sent twice.
#[derive(Debug)]
pub struct Hedging {
    /// Time without an answer.
    pub after: Duration,
    /// What is left to spend; [`REQUESTS_PER_HEDGE`] are one hedge.
    saved: AtomicU32,
}

impl Hedging {
    /// With a full budget.
    pub fn new(after: Duration) -> Self {
        Self { after, saved: AtomicU32::new(MAX_SAVED * REQUESTS_PER_HEDGE) }
    }

    /// A request was sent.
    pub fn earn(&self) {
        let most = MAX_SAVED * REQUESTS_PER_HEDGE;
        self.change(|saved| (saved < most).then_some(saved + 1));
    }

    /// Whether one more request may be hedged. If so, it counts as such.
    pub fn spend(&self) -> bool {
        self.change(|saved| saved.checked_sub(REQUESTS_PER_HEDGE))
    }

    fn change(&self, to: impl FnMut(u32) -> Option<u32>) -> bool {
        self.saved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, to).is_ok()
    }
}

/// Whether an answer with this status ends the wait for the other one. Errors of a node do not: the other may answer.
pub fn is_final(status: u16) -> bool {
    status != 429 && status < 500
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_twenty_requests_one_is_hedged_and_ten_are_saved_up() {
        let hedging = Hedging::new(Duration::ZERO);
        let spent = |hedging: &Hedging| (0..100).filter(|_| hedging.spend()).count();
        assert_eq!(spent(&hedging), 10, "it begins with what is saved up at most");
        let mut hedged = 0;
        for _ in 0..1000 {
            hedging.earn();
            hedged += usize::from(hedging.spend());
        }
        assert_eq!(hedged, 50);
        (0..10_000).for_each(|_| hedging.earn());
        assert_eq!(spent(&hedging), 10);
    }

    #[test]
    fn only_errors_of_a_node_leave_the_decision_to_the_other() {
        for (status, expected) in
            [(200, true), (400, true), (404, true), (429, false), (500, false), (503, false)]
        {
            assert_eq!(is_final(status), expected, "{status}");
        }
    }
}
