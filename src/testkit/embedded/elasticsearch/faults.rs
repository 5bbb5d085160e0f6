//! Trouble on request: slow, busy, deaf or dead, at random but by a seed, so that the same seed makes the same trouble
//! for the same sequence of requests.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::base::random::Random;

/// Faults to inject. Shares are from 0 (never) to 1 (always); the default has no faults.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FaultPlan {
    /// Added before each request is carried out.
    pub latency: Duration,
    /// Share of requests answered 429 and not carried out.
    pub busy: f64,
    /// Sent as `Retry-After` with 429 and 503, in whole seconds.
    pub retry_after: Option<Duration>,
    /// Share of requests answered 503 and not carried out.
    pub unavailable: f64,
    /// Share of the operations of a bulk refused with 429 while the others go through.
    pub busy_items: f64,
    /// Share of requests whose connection is closed before execution.
    pub resets: f64,
    /// Share of requests that are executed, but whose connection is closed without a response.
    pub lost_replies: f64,
    /// Share of requests whose connection is closed at once, and that are carried out all the same, after up to `late_by`:
    /// as by a server that had them in a queue when something between broke the connection.
    pub late: f64,
    /// Maximum delay.
    pub late_by: Duration,
    /// Every connection is closed, and new ones as soon as they are made.
    pub down: bool,
}

/// The fault of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Answered,
    /// Answered with this status and not carried out.
    Refused(u16),
    Reset,
    ReplyLost,
    /// Carried out after this time, without an answer.
    Late(Duration),
}

/// The handle through which trouble is made.
#[derive(Debug)]
pub struct FaultHandle {
    plan: Mutex<FaultPlan>,
    random: Mutex<Random>,
}

impl FaultHandle {
    pub(super) fn new(seed: u64) -> Self {
        Self { plan: Mutex::default(), random: Mutex::new(Random::new(seed)) }
    }

    /// Replaces the plan; requests in flight keep theirs.
    pub fn set(&self, plan: FaultPlan) {
        *self.plan.lock().unwrap_or_else(PoisonError::into_inner) = plan;
    }

    /// Nothing goes wrong from now on.
    pub fn clear(&self) {
        self.set(FaultPlan::default());
    }

    /// The current plan.
    pub fn plan(&self) -> FaultPlan {
        *self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn fate(&self) -> Fate {
        let plan = self.plan();
        if plan.down || self.happens(plan.resets) {
            Fate::Reset
        } else if self.happens(plan.busy) {
            Fate::Refused(429)
        } else if self.happens(plan.unavailable) {
            Fate::Refused(503)
        } else if self.happens(plan.lost_replies) {
            Fate::ReplyLost
        } else if self.happens(plan.late) {
            Fate::Late(plan.late_by.mul_f64(self.next()))
        } else {
            Fate::Answered
        }
    }

    pub(super) fn refuses_item(&self) -> bool {
        self.happens(self.plan().busy_items)
    }

    /// A throw of the dice; none is thrown where the outcome is certain.
    fn happens(&self, share: f64) -> bool {
        if share <= 0.0 {
            return false;
        }
        share >= 1.0 || self.next() < share
    }

    fn next(&self) -> f64 {
        self.random.lock().unwrap_or_else(PoisonError::into_inner).share()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_trouble_in_the_share_asked_for() {
        let fates = |seed| {
            let faults = FaultHandle::new(seed);
            faults.set(FaultPlan { busy: 0.25, lost_replies: 0.5, ..FaultPlan::default() });
            (0..1_000).map(|_| faults.fate()).collect::<Vec<_>>()
        };
        assert_eq!(fates(7), fates(7));
        assert_ne!(fates(7), fates(8));
        let busy = fates(7).iter().filter(|fate| **fate == Fate::Refused(429)).count();
        assert!((200..300).contains(&busy), "{busy}");
    }

    #[test]
    fn a_server_that_is_down_resets_every_request_until_it_is_cleared() {
        let faults = FaultHandle::new(1);
        faults.set(FaultPlan { down: true, ..FaultPlan::default() });
        assert_eq!(faults.fate(), Fate::Reset);
        faults.clear();
        assert_eq!(faults.fate(), Fate::Answered);
    }
}
