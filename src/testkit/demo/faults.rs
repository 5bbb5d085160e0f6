//! A bad day: what goes wrong when. Pure; the demo carries it out.

use std::time::Duration;

use crate::testkit::embedded::elasticsearch::FaultPlan;

/// How Elasticsearch does for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DemoFault {
    /// Requests are carried out, but a fifth of the answers never arrives.
    LostReplies,
    /// Every request takes longer.
    Slow,
    /// A third of the requests are refused with 429, and a tenth of the items.
    PushedBack,
    /// A fifth of the requests is carried out seconds after its connection broke.
    Late,
    /// It refuses connections.
    Down,
}

impl DemoFault {
    /// For the live view.
    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::LostReplies => "answers of elasticsearch are lost",
            Self::Slow => "elasticsearch is slow",
            Self::PushedBack => "elasticsearch pushes back (429)",
            Self::Late => "elasticsearch carries requests out late",
            Self::Down => "elasticsearch is down",
        }
    }

    /// For the stand-in.
    pub(super) fn plan(self) -> FaultPlan {
        let plan = FaultPlan::default();
        match self {
            Self::LostReplies => FaultPlan { lost_replies: 0.2, ..plan },
            Self::Slow => FaultPlan { latency: Duration::from_millis(300), ..plan },
            Self::PushedBack => FaultPlan { busy: 0.3, busy_items: 0.1, ..plan },
            // Long after they were sent again; sooner than tombstones are forgotten.
            Self::Late => FaultPlan { late: 0.2, late_by: Duration::from_secs(5), ..plan },
            Self::Down => FaultPlan { down: true, ..plan },
        }
    }
}

/// A fault of a worker, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blow {
    /// SIGKILL, and a new one a moment later.
    Kill(usize),
    /// SIGSTOP for longer than the session timeout, then SIGCONT: the worker continues as a zombie, unaware that its partitions
    /// were reassigned.
    Freeze(usize),
}

impl Blow {
    /// For the live view.
    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::Kill(0) => "worker 1 is killed with -9",
            Self::Kill(_) => "worker 2 is killed with -9",
            Self::Freeze(0) => "worker 1 is frozen",
            Self::Freeze(_) => "worker 2 is frozen",
        }
    }
}

/// Parts of the day, in percent: from when until when. The first begins while people still wake up.
const TROUBLES: [(u64, u64, DemoFault); 6] = [
    (0, 4, DemoFault::LostReplies),
    (8, 18, DemoFault::Slow),
    (36, 44, DemoFault::PushedBack),
    (48, 56, DemoFault::LostReplies),
    (72, 88, DemoFault::Late),
    (92, 96, DemoFault::Down),
];

/// Parts of the day, in percent: each in the middle of some trouble.
const BLOWS: [(u64, Blow); 3] = [(12, Blow::Freeze(0)), (53, Blow::Kill(1)), (86, Blow::Kill(0))];

/// The trouble there is when `done` of `all` events were sent.
pub(super) fn trouble_at(done: u64, all: u64) -> Option<DemoFault> {
    let percent = (done * 100).checked_div(all)?;
    TROUBLES.into_iter().find(|(from, to, _)| (*from..*to).contains(&percent)).map(|(_, _, trouble)| trouble)
}

/// The blows that are due when `done` of `all` events were sent and `dealt` blows came before.
pub(super) fn next_blow(done: u64, all: u64, dealt: usize) -> Option<Blow> {
    let percent = (done * 100).checked_div(all)?;
    BLOWS.get(dealt).filter(|(at, _)| *at <= percent).map(|(_, blow)| *blow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trouble_has_its_time_and_the_day_ends_well() {
        let mut seen: Vec<DemoFault> = (0..1000).filter_map(|done| trouble_at(done, 1000)).collect();
        seen.dedup();
        assert_eq!(seen.len(), TROUBLES.len());
        assert_eq!(trouble_at(999, 1000), None);
        assert_eq!(trouble_at(0, 0), None);
    }

    #[test]
    fn every_blow_is_dealt_once_in_the_middle_of_some_trouble() {
        let mut dealt = 0;
        for done in 0..1000 {
            if next_blow(done, 1000, dealt).is_some() {
                dealt += 1;
                assert!(trouble_at(done, 1000).is_some(), "{done}");
                assert_eq!(next_blow(done, 1000, dealt), None);
            }
        }
        assert_eq!(dealt, BLOWS.len());
        assert_eq!(next_blow(0, 0, 0), None);
    }
}
