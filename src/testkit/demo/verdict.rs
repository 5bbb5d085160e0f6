//! How a demo went.

use std::fmt;
use std::time::Duration;

use super::audit::Findings;
use super::workers::Counters;

/// The verdict's figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    pub(super) findings: Findings,
    pub(super) truth: u64,
    pub(super) events: u64,
    pub(super) poison: u64,
    pub(super) faults: u64,
    pub(super) looks: u64,
    pub(super) searches: u64,
    pub(super) counters: Counters,
    pub(super) memory: Memory,
    pub(super) took: Duration,
}

/// Resident memory at its highest (`VmHWM`), in bytes. Workers that came one after the other in the same place count as
/// one, by the larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Memory {
    /// The demo itself: simulation, broker, Elasticsearch stand-in with all documents.
    pub own: u64,
    /// Its workers.
    pub workers: [u64; 2],
}

impl Memory {
    fn total(self) -> u64 {
        self.own + self.workers.iter().sum::<u64>()
    }
}

impl Verdict {
    /// Whether the index equals the expected state, and exactly the bad records are in the dead-letter topic.
    pub fn is_good(&self) -> bool {
        self.findings.is_clean()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { findings, counters, memory, .. } = self;
        let mebibytes = |bytes: u64| bytes >> 20;
        writeln!(f, "verdict: {}", if self.is_good() { "the index is right" } else { "THE INDEX IS WRONG" })?;
        let mut line = |what: &str, count: u64, about: &str| {
            writeln!(f, "{}", format!("  {what:<16} {count:>9}  {about}").trim_end())
        };
        line("events", self.events, &format!("in {:.1} s", self.took.as_secs_f64()))?;
        line("faults survived", self.faults, "")?;
        line("folded", counters.folded, "records went into a newer write of the same document")?;
        line("moves", counters.moves, "between geoshards")?;
        line("retries", counters.retries, "items sent to Elasticsearch again")?;
        line("documents", findings.documents, "compared with the truth, one by one")?;
        for (what, count, about) in [
            ("in wrong place", findings.misplaced, ""),
            ("missing", findings.missing, ""),
            ("doubled", findings.doubled, ""),
            ("stale", findings.stale, ""),
            ("surplus", findings.surplus, ""),
            ("misfiled", findings.misfiled, "placements that say something else"),
        ] {
            line(what, count, about)?;
        }
        let looks = format!("people, of those looked at {} times in the course of the day", self.looks);
        line("ever broken", findings.broken, &looks)?;
        let searches = format!("of those there all the time, by any of {} searches", self.searches);
        line("search misses", findings.missed, &searches)?;
        line("dead-lettered", findings.dead_lettered, &format!("of {} poison records sent", self.poison))?;
        let [first, second] = memory.workers.map(mebibytes);
        let parts =
            format!("MiB at most: the demo {}, its workers {first} and {second}", mebibytes(memory.own));
        line("memory", mebibytes(memory.total()), &parts)?;
        write!(f, "  truth     {:016x}  the same for the same arguments", self.truth)?;
        findings.examples.iter().try_for_each(|example| write!(f, "\n  wrong: {example}"))
    }
}
