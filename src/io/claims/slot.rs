//! One partition's claim as its owner sees it. Pure: times and answers are passed in.
//!
//! ```text
//!   wanted ──taken over, by compare-and-set──▶ held ──renewed──▶ held
//!      ▲                                        │
//!      │                                  somebody else's
//!      └──────── silent for a deadline ◀────── lost
//! ```

use std::time::Duration;

use super::record::Claim;
use crate::base::clock::Instant;
use crate::io::elastic::{SeqNo, WriteCondition};

/// A claim as its partition task sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimStanding {
    /// Just before the request was sent that confirmed the claim last.
    pub confirmed_at: Option<Instant>,
    /// The generation of the maps in that claim.
    pub generation: u64,
    /// Since when the partition is claimed; taken again, it is another time.
    pub taken: Option<Taken>,
    /// Display name of the owner that holds the claim instead.
    pub lost_to: Option<String>,
}

/// The beginning of an ownership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// When it was known that the claim is there. It was written before that.
    pub at: Instant,
    /// The longest `batch.timeout` of all earlier owners that may still act.
    pub deadline: Duration,
    /// For how long after `at` they may: see [`Claim::zombies`].
    pub zombies: Duration,
}

impl Taken {
    /// When the last zombie has sent its last request.
    pub fn zombies_end(&self) -> Instant {
        self.at + self.zombies
    }
}

/// Whom a claim is taken over from.
#[derive(Debug, Clone, Copy)]
struct Earlier {
    deadline: Duration,
    zombies: Duration,
}

/// A claim as found in the meta index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FoundClaim {
    pub claim: Claim,
    pub stamp: SeqNo,
}

/// One assignment's claim.
#[derive(Debug)]
pub(super) struct Slot {
    pub assignment: String,
    assigned_at: Instant,
    /// `batch.timeout` of this worker.
    deadline: Duration,
    /// The generation that the owner acts by.
    pub generation: u64,
    pub standing: ClaimStanding,
    /// The claim's state while it is this assignment's, as far as is known.
    stamp: Option<SeqNo>,
    /// Whom it is being taken from; kept until it is known whether that was carried out.
    taking_from: Option<Earlier>,
    /// Another owner's claim, and since when it was not renewed.
    other: Option<(SeqNo, Instant)>,
}

impl Slot {
    pub(super) fn new(assignment: String, assigned_at: Instant, deadline: Duration, generation: u64) -> Self {
        Self {
            assignment,
            assigned_at,
            deadline,
            generation,
            standing: ClaimStanding::default(),
            stamp: None,
            taking_from: None,
            other: None,
        }
    }

    /// When the next read or write is due.
    pub(super) fn due_at(&self) -> Instant {
        match self.standing.confirmed_at {
            Some(at) if self.stamp.is_some() && self.standing.generation == self.generation => {
                at + self.deadline / 3
            }
            _ => Instant::from_start(Duration::ZERO),
        }
    }

    /// Whether the claim has to be read before it can be written.
    pub(super) fn is_to_be_read(&self) -> bool {
        self.stamp.is_none()
    }

    /// Records the result of a read; then call [`Slot::write`].
    pub(super) fn found(&mut self, found: Option<FoundClaim>, now: Instant) {
        let silent_for = |slot: &Self, stamp: SeqNo| match slot.other {
            Some((seen, since)) if seen == stamp => now.since(since),
            _ => Duration::ZERO,
        };
        match found {
            Some(FoundClaim { claim, stamp }) if claim.assignment == self.assignment => {
                self.stamp = Some(stamp);
            }
            Some(FoundClaim { claim, stamp }) => {
                let silence = silent_for(self, stamp);
                if silence == Duration::ZERO {
                    self.other = Some((stamp, now));
                }
                // A silent holder may be the zombie; a live one renews its claim.
                let is_new = self.standing.taken.is_none() && now.since(self.assigned_at) <= self.deadline;
                if is_new || silence > self.deadline.max(claim.deadline()) {
                    self.taking_from = Some(Earlier { deadline: claim.deadline(), zombies: claim.zombies() });
                } else {
                    self.taking_from = None;
                    self.standing.lost_to = Some(claim.owner);
                }
            }
            None => {
                self.other = None;
                // Every owner claims before it sends anything.
                self.taking_from = Some(Earlier { deadline: Duration::ZERO, zombies: Duration::ZERO });
            }
        }
    }

    /// The claim to write and its write condition; `None` while another owner holds it.
    pub(super) fn write(&self, owner: &str, now: Instant) -> Option<(WriteCondition, Claim)> {
        let guard = match (self.stamp, self.taking_from, self.other) {
            (Some(stamp), _, _) => WriteCondition::Unchanged(stamp),
            (None, Some(_), Some((stamp, _))) => WriteCondition::Unchanged(stamp),
            (None, Some(_), None) => WriteCondition::Absent,
            (None, None, _) => return None,
        };
        let earlier = match (self.standing.taken, self.taking_from) {
            (_, Some(from)) if from.zombies.is_zero() => Duration::ZERO,
            (_, Some(from)) => from.deadline,
            (Some(taken), None) if now <= taken.zombies_end() => taken.deadline,
            _ => Duration::ZERO,
        };
        let claim = Claim {
            assignment: self.assignment.clone(),
            owner: owner.to_owned(),
            generation: self.generation,
            deadline_ms: milliseconds(self.deadline.max(earlier)),
            ended_ms: None,
        };
        Some((guard, claim))
    }

    /// The claim to leave behind by an owner that has nothing under way and sends nothing more; `None` if it is not known to be
    /// this assignment's.
    pub(super) fn end(&self, owner: &str, now: Instant) -> Option<(WriteCondition, Claim)> {
        let taken = self.standing.taken.filter(|_| self.standing.lost_to.is_none())?;
        self.stamp?;
        let (guard, claim) = self.write(owner, now)?;
        // Never too short by a fraction.
        let left = milliseconds(taken.zombies_end().since(now)).saturating_add(1);
        let ended_ms = if now > taken.zombies_end() { 0 } else { left };
        Some((guard, Claim { ended_ms: Some(ended_ms), ..claim }))
    }

    /// Records a successful write with this generation, sent at `asked`.
    pub(super) fn written(&mut self, generation: u64, stamp: Option<SeqNo>, asked: Instant, now: Instant) {
        // Without the state that it left it has to be read again.
        self.stamp = stamp;
        self.other = None;
        if let Some(from) = self.taking_from.take() {
            let deadline =
                if from.zombies.is_zero() { self.deadline } else { from.deadline.max(self.deadline) };
            self.standing.taken = Some(Taken { at: now, deadline, zombies: from.zombies });
        }
        self.standing.confirmed_at = Some(asked);
        self.standing.generation = generation;
        self.standing.lost_to = None;
    }

    /// It is not known whether the claim was written, or it was not: it is to be read again.
    pub(super) fn not_written(&mut self) {
        self.stamp = None;
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Instant {
        Instant::from_start(Duration::from_secs(1000 + seconds))
    }

    fn stamp(seq_no: u64) -> SeqNo {
        SeqNo { seq_no, primary_term: 1 }
    }

    /// The meta index as far as one claim goes.
    #[derive(Default)]
    struct Stored(Option<FoundClaim>, u64);

    impl Stored {
        fn write(&mut self, (guard, claim): (WriteCondition, Claim)) -> Option<SeqNo> {
            let holds = match guard {
                WriteCondition::Absent => self.0.is_none(),
                WriteCondition::Unchanged(stamp) => self.0.as_ref().is_some_and(|found| found.stamp == stamp),
                _ => unreachable!("a claim is compared and set"),
            };
            self.1 += 1;
            let stamp = stamp(self.1);
            if holds {
                self.0 = Some(FoundClaim { claim, stamp });
            }
            holds.then_some(stamp)
        }
    }

    /// What the keeper does; `false` if the claim was not confirmed.
    fn look(slot: &mut Slot, stored: &mut Stored, now: Instant) -> bool {
        for _ in 0..2 {
            if slot.is_to_be_read() {
                slot.found(stored.0.clone(), now);
            }
            let Some(write) = slot.write("me", now) else { return false };
            let generation = write.1.generation;
            match stored.write(write) {
                Some(stamp) => {
                    slot.written(generation, Some(stamp), now, now);
                    return true;
                }
                None => slot.not_written(),
            }
        }
        false
    }

    fn slot(assignment: &str, assigned_at: Instant, deadline: Duration) -> Slot {
        Slot::new(assignment.to_owned(), assigned_at, deadline, 0)
    }

    #[test]
    fn old_owner_does_not_retake_a_claim() {
        let mut stored = Stored::default();
        let (mut a, mut b) = (slot("a", at(0), D), slot("b", at(100), D));
        assert!(look(&mut a, &mut stored, at(0)) && look(&mut a, &mut stored, at(20)));
        assert_eq!(a.standing.taken, Some(Taken { at: at(0), deadline: D, zombies: Duration::ZERO }));
        assert!(look(&mut b, &mut stored, at(100)));
        assert!(!look(&mut a, &mut stored, at(101)));
        assert_eq!(a.standing.confirmed_at, Some(at(20)), "as it was");
        assert_eq!(a.standing.lost_to.as_deref(), Some("me"));
        for now in (120..1000).step_by(20).map(at) {
            assert!(look(&mut b, &mut stored, now) && !look(&mut a, &mut stored, now));
        }
    }

    #[test]
    fn claim_of_a_silent_holder_is_retaken_as_new_ownership() {
        let mut stored = Stored::default();
        let (mut a, mut b) = (slot("a", at(0), D), slot("b", at(10), D));
        assert!(look(&mut a, &mut stored, at(0)) && look(&mut b, &mut stored, at(10)));
        assert!(!look(&mut a, &mut stored, at(20)) && !look(&mut a, &mut stored, at(80)));
        assert!(look(&mut a, &mut stored, at(81)));
        assert_eq!(a.standing.taken.map(|taken| taken.at), Some(at(81)));
        assert_eq!(a.standing.lost_to, None);
        assert!(!look(&mut b, &mut stored, at(82)));
    }

    #[test]
    fn late_first_claim_does_not_take_a_renewed_one() {
        let mut stored = Stored::default();
        let (mut late, mut owner) = (slot("late", at(0), D), slot("owner", at(50), D));
        assert!(look(&mut owner, &mut stored, at(50)));
        assert!(!look(&mut late, &mut stored, at(61)));
        assert!(look(&mut owner, &mut stored, at(70)));
    }

    /// The worst that comes of it that a claim does not say how old its owner's assignment is.
    #[test]
    fn assignee_followed_before_its_first_claim_only_delays_the_owner() {
        let mut stored = Stored::default();
        // Stopped right after its assignment, and followed when its session had timed out.
        let (mut late, mut owner) = (slot("late", at(0), D), slot("owner", at(46), D));
        assert!(look(&mut owner, &mut stored, at(46)));
        assert!(look(&mut late, &mut stored, at(59)), "it does not know yet");
        assert!(
            !look(&mut owner, &mut stored, at(66)),
            "never two of them for longer than between two looks"
        );
        // The group revokes it, and it releases the claim.
        assert!(!look(&mut owner, &mut stored, at(126)) && look(&mut owner, &mut stored, at(127)));
        let taken = owner.standing.taken;
        assert_eq!(taken, Some(Taken { at: at(127), deadline: D, zombies: 2 * D }), "another ownership");
        assert!(!look(&mut late, &mut stored, at(128)));
    }

    #[test]
    fn longest_deadline_is_inherited_until_passed_twice() {
        let mut stored = Stored::default();
        let long = Duration::from_secs(300);
        let mut old = slot("old", at(0), long);
        assert!(look(&mut old, &mut stored, at(0)));
        let mut new = slot("new", at(10), D);
        assert!(look(&mut new, &mut stored, at(10)));
        assert_eq!(new.standing.taken, Some(Taken { at: at(10), deadline: long, zombies: 2 * long }));
        assert_eq!(new.standing.taken.unwrap().zombies_end(), at(610));
        let deadline = |stored: &Stored| stored.0.as_ref().unwrap().claim.deadline();
        let mut next = slot("next", at(100), D);
        assert!(look(&mut next, &mut stored, at(100)));
        assert_eq!(next.standing.taken.unwrap().deadline, long, "the oldest may still act");
        assert!(look(&mut next, &mut stored, at(700)));
        assert_eq!(deadline(&stored), long);
        assert!(look(&mut next, &mut stored, at(701)));
        assert_eq!(deadline(&stored), D);
        assert_eq!(old.due_at(), at(100), "a third of its deadline");
    }

    #[test]
    fn ended_owner_is_not_awaited_and_earlier_ones_are() {
        let mut stored = Stored::default();
        let (long, mut old) = (5 * D, slot("old", at(0), 5 * D));
        assert!(look(&mut old, &mut stored, at(0)), "a zombie from now on");
        let mut first = slot("first", at(10), D);
        assert!(look(&mut first, &mut stored, at(10)));
        assert!(stored.write(first.end("me", at(110)).unwrap()).is_some());
        let mut second = slot("second", at(120), D);
        assert!(look(&mut second, &mut stored, at(120)));
        let zombies = Duration::from_secs(500) + Duration::from_millis(1);
        assert_eq!(second.standing.taken, Some(Taken { at: at(120), deadline: long, zombies }));
        assert_eq!(stored.0.as_ref().unwrap().claim.deadline(), long);
        assert!(look(&mut second, &mut stored, at(700)));
        assert!(stored.write(second.end("me", at(701)).unwrap()).is_some());
        let mut third = slot("third", at(702), D);
        assert!(look(&mut third, &mut stored, at(702)));
        assert_eq!(third.standing.taken, Some(Taken { at: at(702), deadline: D, zombies: Duration::ZERO }));
        assert_eq!(stored.0.as_ref().unwrap().claim.ended_ms, None, "it has begun");
    }

    #[test]
    fn only_the_holder_can_end_a_claim() {
        let mut stored = Stored::default();
        let (mut a, mut b) = (slot("a", at(0), D), slot("b", at(10), D));
        assert!(a.end("me", at(0)).is_none(), "it was never taken");
        assert!(look(&mut a, &mut stored, at(0)));
        let late = a.end("me", at(9)).unwrap();
        assert!(look(&mut b, &mut stored, at(10)));
        assert!(stored.write(late).is_none(), "it is compared and set");
        assert!(!look(&mut a, &mut stored, at(20)));
        assert!(a.end("me", at(20)).is_none());
    }

    #[test]
    fn lost_response_is_recovered() {
        let mut stored = Stored::default();
        let mut slot = slot("a", at(0), D);
        slot.found(None, at(0));
        stored.write(slot.write("me", at(0)).unwrap()).unwrap();
        slot.not_written();
        assert_eq!(slot.standing, ClaimStanding::default());
        assert!(look(&mut slot, &mut stored, at(5)));
        assert_eq!(slot.standing.taken.unwrap().at, at(5));
        assert_eq!(slot.standing.confirmed_at, Some(at(5)));
    }

    #[test]
    fn another_generation_is_written_at_once() {
        let mut stored = Stored::default();
        let mut slot = slot("a", at(0), D);
        assert!(look(&mut slot, &mut stored, at(0)));
        assert_eq!(slot.due_at(), at(20));
        slot.generation = 7;
        assert!(slot.due_at() < at(0));
        assert!(look(&mut slot, &mut stored, at(1)));
        assert_eq!(slot.standing.generation, 7);
        assert_eq!(stored.0.unwrap().claim.generation, 7);
    }
}
