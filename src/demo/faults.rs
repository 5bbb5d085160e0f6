//! A bad day: which fault is on when. Pure; the demo carries it out.

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Worker 1 is killed with SIGKILL, and started again.
    KillFirst,
    /// Every request to Elasticsearch takes longer.
    Slow,
    /// A third of the requests to Elasticsearch are refused with 429, and a tenth of the items.
    PushedBack,
    /// Worker 2 is killed with SIGKILL, and started again.
    KillSecond,
    /// Requests are carried out, but a fifth of the answers never arrives.
    LostReplies,
    /// Elasticsearch refuses connections.
    Down,
}

impl Fault {
    /// For the live view.
    pub fn describe(self) -> &'static str {
        match self {
            Self::KillFirst => "worker 1 killed with -9",
            Self::Slow => "elasticsearch is slow",
            Self::PushedBack => "elasticsearch pushes back (429)",
            Self::KillSecond => "worker 2 killed with -9",
            Self::LostReplies => "answers of elasticsearch are lost",
            Self::Down => "elasticsearch is down",
        }
    }
}

/// Parts of the day, in percent: when a fault begins, when it is over.
const BAD_DAY: [(u64, u64, Fault); 6] = [
    (15, 20, Fault::KillFirst),
    (25, 35, Fault::Slow),
    (40, 50, Fault::PushedBack),
    (55, 60, Fault::KillSecond),
    (65, 78, Fault::LostReplies),
    (82, 90, Fault::Down),
];

/// The fault that is on when `done` of `all` events were sent.
pub fn fault_at(done: u64, all: u64) -> Option<Fault> {
    let percent = (done * 100).checked_div(all)?;
    BAD_DAY.into_iter().find(|(from, to, _)| (*from..*to).contains(&percent)).map(|(_, _, fault)| fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_its_time_and_the_day_ends_well() {
        let mut seen: Vec<Fault> = (0..1000).filter_map(|done| fault_at(done, 1000)).collect();
        seen.dedup();
        assert_eq!(seen.len(), BAD_DAY.len());
        assert_eq!(fault_at(999, 1000), None);
        assert_eq!(fault_at(0, 0), None);
    }
}
