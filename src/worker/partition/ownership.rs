//! The partition's claim and the remaining power of earlier owners (protocol, "Claims").

use std::time::Duration;

use crate::base::clock::Instant;
use crate::io::claims::{ClaimStanding, Claimed, Taken};

/// The claim, as far as the task has taken note of it.
pub(super) struct Ownership {
    claim: Claimed,
    noted: NotedClaim,
    /// When the partition was assigned.
    assigned_at: Instant,
    /// `batch.timeout`.
    deadline: Duration,
}

#[derive(Debug, Default)]
struct NotedClaim {
    /// When the claim was taken; `None` before that.
    taken: Option<Taken>,
    /// Another worker holds the claim.
    is_lost: bool,
}

/// What has changed about the claim.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ClaimUpdate {
    /// It was taken, perhaps back from another worker.
    pub taken: Option<Taken>,
    /// It was lost, or is no longer lost.
    pub change: Option<ClaimChange>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClaimChange {
    /// To the worker of this name.
    LostTo(String),
    Regained,
}

impl Ownership {
    pub(super) fn new(claim: Claimed, assigned_at: Instant, deadline: Duration) -> Self {
        Self { claim, noted: NotedClaim::default(), assigned_at, deadline }
    }

    /// Takes note of how the claim stands.
    pub(super) fn update(&mut self) -> ClaimUpdate {
        self.noted.update(self.claim.standing())
    }

    /// Waits until the claim changes or is confirmed again.
    pub(super) async fn changed(&mut self) {
        self.claim.changed().await;
    }

    /// The claim says from now on that its owner acts by this generation of the maps.
    pub(super) fn act_by(&self, generation: u64) {
        self.claim.act_by(generation);
    }

    /// Whether a batch may be sent: the claim noted was confirmed recently, with this generation of the maps.
    pub(super) fn is_confirmed(&self, generation: u64) -> bool {
        self.claim.is_confirmed(self.noted.taken, generation)
    }

    /// Whether another worker holds the claim.
    pub(super) fn is_lost(&self) -> bool {
        self.noted.is_lost
    }

    /// When the partition was assigned.
    pub(super) fn assigned_at(&self) -> Instant {
        self.assigned_at
    }

    /// Whether another worker may act on records that this owner never reads. Also after an owner that has ended in good
    /// order: a worker that was assigned the partition between the two, and has not claimed it yet, can still claim it
    /// within a deadline of that; this owner begins no batch later than another deadline after that.
    pub(super) fn others_may_act(&self, now: Instant) -> bool {
        self.noted.zombies_may_act(now) || now <= self.assigned_at + self.deadline.saturating_mul(2)
    }

    /// Releases the claim: the next owner need not wait for this one.
    pub(super) fn release(&self) {
        self.claim.end();
    }
}

impl NotedClaim {
    fn update(&mut self, standing: ClaimStanding) -> ClaimUpdate {
        let taken = standing.taken.filter(|taken| self.taken != Some(*taken));
        self.taken = taken.or(self.taken);
        let change = match standing.lost_to {
            Some(other) if !self.is_lost => Some(ClaimChange::LostTo(other)),
            None if self.is_lost => Some(ClaimChange::Regained),
            _ => None,
        };
        if let Some(change) = &change {
            self.is_lost = *change != ClaimChange::Regained;
        }
        ClaimUpdate { taken, change }
    }

    /// Whether an earlier owner may still send requests.
    fn zombies_may_act(&self, now: Instant) -> bool {
        self.taken.is_none_or(|taken| now <= taken.zombies_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Instant {
        Instant::from_start(Duration::from_secs(second))
    }

    fn taken(second: u64) -> Taken {
        let deadline = Duration::from_secs(60);
        Taken { at: at(second), deadline, zombies: 2 * deadline }
    }

    fn standing(taken: Option<Taken>, lost_to: Option<&str>) -> ClaimStanding {
        ClaimStanding { taken, lost_to: lost_to.map(str::to_owned), ..ClaimStanding::default() }
    }

    #[test]
    fn each_change_is_reported_once() {
        let mut claim = NotedClaim::default();
        let none = ClaimUpdate::default();
        assert_eq!(claim.update(standing(None, None)), none);
        let first = standing(Some(taken(1)), None);
        assert_eq!(claim.update(first.clone()), ClaimUpdate { taken: Some(taken(1)), change: None });
        assert_eq!(claim.update(first), none);
        let lost = standing(None, Some("other"));
        let change = Some(ClaimChange::LostTo("other".into()));
        assert_eq!(claim.update(lost.clone()), ClaimUpdate { taken: None, change });
        assert_eq!(claim.update(lost), none);
        assert!(claim.is_lost && claim.taken == Some(taken(1)));
        let update = claim.update(standing(Some(taken(9)), None));
        assert_eq!(update, ClaimUpdate { taken: Some(taken(9)), change: Some(ClaimChange::Regained) });
        assert!(!claim.is_lost);
    }

    #[test]
    fn zombies_may_act_until_their_time_after_the_claim_has_passed() {
        let mut claim = NotedClaim::default();
        assert!(claim.zombies_may_act(at(1_000)), "not claimed yet");
        claim.update(standing(Some(taken(10)), None));
        assert!(claim.zombies_may_act(at(130)));
        assert!(!claim.zombies_may_act(at(131)));
    }
}
