//! How a demo went.

use std::time::Duration;

use super::audit::Findings;
use super::timeline::Timeline;
use super::workers::WorkerCounters;
use crate::base::colours::Colours;
use crate::base::figures::{bytes, count, grouped};

/// The verdict's figures.
#[derive(Debug, Clone, PartialEq)]
pub struct DemoVerdict {
    pub(super) findings: Findings,
    pub(super) people: u64,
    pub(super) truth: u64,
    pub(super) events: u64,
    pub(super) poison: u64,
    pub(super) timeline: Timeline,
    pub(super) looks: u64,
    pub(super) searches: u64,
    pub(super) counters: WorkerCounters,
    pub(super) memory: ResidentMemory,
    pub(super) took: Duration,
}

/// Resident memory at its highest (`VmHWM`), in bytes. Workers that came one after the other in the same place count as
/// one, by the larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ResidentMemory {
    /// The demo itself: simulation, broker, Elasticsearch stand-in with all documents.
    pub own: u64,
    /// Its workers.
    pub workers: [u64; 2],
}

impl ResidentMemory {
    fn total(self) -> u64 {
        self.own + self.workers.iter().sum::<u64>()
    }
}

impl DemoVerdict {
    /// Whether the index equals the expected state, and exactly the bad records are in the dead-letter topic.
    pub fn is_good(&self) -> bool {
        self.findings.is_clean()
    }
}

impl DemoVerdict {
    /// What a person reads, within 80 columns, the examples of what is wrong aside.
    pub fn text(&self, colours: Colours) -> String {
        let Self { findings, counters, memory, .. } = self;
        let mut text = match self.is_good() {
            true => format!("verdict: {}\n", colours.good("the index is right")),
            false => format!("verdict: {}\n", colours.bad("THE INDEX IS WRONG")),
        };
        let mut add = |line: String| {
            text.push_str(line.trim_end());
            text.push('\n');
        };
        if self.timeline.len() > 0 {
            add(format!("\n{}", colours.bold("What went wrong, and how far the workers fell behind")));
            self.timeline.lines(self.took, colours).into_iter().for_each(&mut add);
        }
        add(format!("\n{}", colours.bold("What happened")));
        let line = |what: &str, figure: String, about: &str| {
            format!("  {what:<15} {figure:>10}  {}", colours.faint(about))
        };
        let people = "one document each, unless they have left";
        let per_second = self.events as f64 / self.took.as_secs_f64().max(0.1);
        let pace = format!("in {:.1} s, {}/s", self.took.as_secs_f64(), grouped(&format!("{per_second:.0}")));
        let parts = format!(
            "the demo {}, workers {} and {}",
            bytes(memory.own),
            bytes(memory.workers[0]),
            bytes(memory.workers[1])
        );
        for (what, figure, about) in [
            ("people", count(self.people), people),
            ("events", count(self.events), &pace),
            ("faults survived", count(self.timeline.len()), ""),
            ("folded", count(counters.folded), "went into a newer write of the same document"),
            ("moves", count(counters.moves), "of documents between geoshards"),
            ("retries", count(counters.retries), "items sent to Elasticsearch again"),
            ("memory", bytes(memory.total()), &parts),
        ] {
            add(line(what, figure, about));
        }
        add(format!("\n{}", colours.bold("What was found")));
        let left = self.people.saturating_sub(findings.documents);
        let documents = format!("compared one by one; {} people had left", count(left));
        add(line("documents", count(findings.documents), &documents));
        let looks = format!("people, in {} looks during the day", count(self.looks));
        let searches = format!("of those there all the time, by {} searches", count(self.searches));
        for (what, wrong, about) in [
            ("in wrong place", findings.misplaced, "in another geoshard than their location's"),
            ("missing", findings.missing, "should be there and are not"),
            ("doubled", findings.doubled, "have more than one copy"),
            ("stale", findings.stale, "say something else than the last write"),
            ("surplus", findings.surplus, "of people who left, or of nobody"),
            ("misfiled", findings.misfiled, "placements that name another geoshard"),
            ("ever broken", findings.broken, &looks),
            ("search misses", findings.missed, &searches),
        ] {
            let figure = format!("{:>10}", count(wrong));
            let figure = if wrong == 0 { colours.good(figure) } else { colours.bad(figure) };
            add(line(what, figure, about));
        }
        let poison = format!("of {} bad records sent", count(self.poison));
        add(line("dead-lettered", count(findings.dead_lettered), &poison));
        add(format!("  truth     {:016x}  {}", self.truth, colours.faint("the same for the same arguments")));
        for example in &findings.examples {
            add(format!("  {} {example}", colours.bad("wrong:")));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(findings: Findings) -> DemoVerdict {
        let mut timeline = Timeline::default();
        timeline.begin("elasticsearch is down", Duration::from_secs(1), 1_000);
        DemoVerdict {
            findings: Findings { documents: 987_654, dead_lettered: 12, ..findings },
            people: 1_000_000,
            truth: 7,
            events: 87_400_000,
            poison: 12,
            timeline,
            looks: 12_345_678,
            searches: 1_234_567,
            counters: WorkerCounters { folded: 12_345_678, ..WorkerCounters::default() },
            memory: ResidentMemory { own: 5 << 30, workers: [200 << 20; 2] },
            took: Duration::from_secs(86_400),
        }
    }

    #[test]
    fn numbers_are_explained_within_80_columns() {
        let text = verdict(Findings::default()).text(Colours::NONE);
        assert!(text.starts_with("verdict: the index is right\n"), "{text}");
        assert!(text.contains("people           1,000,000  one document each"), "{text}");
        assert!(text.contains("987,654  compared one by one; 12,346 people had left"), "{text}");
        assert!(text.contains("elasticsearch is down"), "{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{}: {line}", line.chars().count());
        }
    }

    #[test]
    fn what_is_wrong_is_red_and_named() {
        let wrong = Findings {
            doubled: 1,
            examples: vec!["person7 is there twice".to_owned()],
            ..Findings::default()
        };
        let text = verdict(wrong).text(Colours::of(true, |_| None));
        assert!(text.contains("\u{1b}[1;31mTHE INDEX IS WRONG"), "{text}");
        assert!(text.contains("\u{1b}[1;31m         1\u{1b}[0m"), "{text}");
        assert!(text.contains("person7 is there twice"), "{text}");
    }
}
