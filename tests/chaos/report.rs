//! What a run prints: a line every ten seconds, and the summary.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::audit::Findings;
use crate::command::Options;
use crate::conductor::Played;
use crate::count::Count;
use crate::support::World;
use crate::tally::Counted;

/// Time between two lines.
const PACE: Duration = Duration::from_secs(10);

/// How long the broker may take to return offsets, for a line.
const TIMEOUT: Duration = Duration::from_secs(3);

/// What goes on, for all threads of the run.
pub struct Status {
    began: Instant,
    now: Mutex<String>,
    /// Everything that was said, for the folder that a failed run leaves.
    said: Mutex<String>,
    pub sent: AtomicU64,
    /// Records that are not committed, when it was last known.
    pub lag: AtomicU64,
    is_over: AtomicBool,
}

impl Status {
    pub fn new() -> Self {
        Self {
            began: Instant::now(),
            now: Mutex::default(),
            said: Mutex::default(),
            sent: AtomicU64::new(0),
            lag: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        }
    }

    /// Since the run began.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// What is on from now.
    pub fn set(&self, now: String) {
        self.note(&format!("{:>6.1} s  {now}", self.elapsed().as_secs_f64()));
        *self.now.lock().unwrap() = now;
    }

    /// Prints a line.
    pub fn say(&self, line: &str) {
        println!("{line}");
        self.note(line);
    }

    /// Keeps a line without printing it.
    pub fn note(&self, line: &str) {
        let mut said = self.said.lock().unwrap();
        said.push_str(line);
        said.push('\n');
    }

    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Nothing more is written.
    pub fn end(&self) {
        self.is_over.store(true, Relaxed);
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    /// Prints what is on, now and then, until it is over.
    pub fn tell(&self, world: &World) {
        let mut last: Option<Instant> = None;
        while !self.is_over() {
            std::thread::sleep(Duration::from_millis(500));
            let offsets = world.try_offsets(TIMEOUT);
            let lag =
                offsets.map(|offsets| offsets.iter().map(|(done, end)| (end - done).max(0) as u64).sum());
            if let Ok(lag) = lag {
                self.lag.store(lag, Relaxed);
            }
            if last.is_none_or(|last| last.elapsed() >= PACE) {
                last = Some(Instant::now());
                let lag = lag.map_or_else(|_| "unknown".to_owned(), |lag: u64| lag.to_string());
                self.say(&format!(
                    "{:>5} s  {:>8} records sent  lag {lag:>7}  {}",
                    self.elapsed().as_secs(),
                    self.sent.load(Relaxed),
                    self.now.lock().unwrap(),
                ));
            }
        }
    }
}

/// Ends the run's threads, however the run ends.
pub struct EndsWith<'a>(pub &'a Status);

impl Drop for EndsWith<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// How a run went.
pub struct Report<'a> {
    pub options: &'a Options,
    pub took: Duration,
    pub played: &'a Played,
    /// What the proxy did.
    pub network: BTreeMap<&'static str, u64>,
    pub findings: &'a Findings,
    pub count: &'a Count,
    /// What the collectors lived through.
    pub collectors: &'a BTreeMap<&'static str, u64>,
    pub tally: &'a Counted,
}

impl Report<'_> {
    pub fn lines(&self) -> Vec<String> {
        let Self { options, findings, count, played, tally, .. } = self;
        let verdict = if findings.wrong.is_empty() {
            "index and counts are right"
        } else {
            "index or counts are WRONG"
        };
        let mut lines = vec![
            format!("verdict: {verdict}"),
            format!(
                "  run           seed {}, {} workers, {} partitions, {:.0} s from the first record to the verdict",
                options.seed,
                options.workers,
                options.partitions,
                self.took.as_secs_f64(),
            ),
            format!("  records       {}", listed(&findings.records)),
            format!(
                "  documents     {} compared with their records, and {} placements; {} dead letters",
                findings.documents, findings.placements, findings.letters
            ),
            format!(
                "  counted       {} documents in {} indices, by _count and by the topic",
                count.documents(),
                count.elasticsearch.len()
            ),
            format!(
                "  tally         {} counts against the records and against the indices; {} increments in {} versions",
                tally.values(),
                tally.increments,
                tally.kept.versions
            ),
            format!(
                "  moves         {:.0}, of {} changes of place in the topic; {:.0} records folded, {:.0} entries parked",
                played.counted.moves, findings.changes_of_place, played.counted.folded, played.counted.parked
            ),
            format!(
                "  retries       {:.0} requests or items sent to Elasticsearch again (counters of a killed worker: until its death)",
                played.counted.retries
            ),
            format!(
                "  zombies       {:.0} times a worker found its partitions given away",
                played.counted.lost
            ),
        ];
        lines.extend(played.blows.iter().map(|(kind, times)| format!("  {times:>7} times  {kind}")));
        lines.extend(self.collectors.iter().map(|(kind, times)| format!("  {times:>7} times  {kind}")));
        lines.extend(played.weathers.iter().map(|(kind, times)| format!("  {times:>7} scenes with {kind}")));
        lines.extend(
            played.protocols.iter().map(|(kind, times)| format!("  {times:>7} scenes in a group: {kind}")),
        );
        lines.extend(self.network.iter().map(|(kind, times)| format!("  {times:>7} {kind}")));
        lines
    }
}

fn listed(counts: &BTreeMap<&'static str, u64>) -> String {
    let sum: u64 = counts.values().sum();
    let parts: Vec<String> = counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    format!("{sum}: {}", parts.join(", "))
}
