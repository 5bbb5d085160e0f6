//! What came out, as Markdown: a table of all racers, and one of the targets.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::compression::{self, Compression};
use crate::freshness::{self, Freshness};
use crate::latency::Latency;
use crate::median::median;
use crate::placements::{self, Primaries};
use crate::process::Operations;
use crate::rounds::{self, Target, Wanted};
use crate::searches::{self, Searched};
use crate::{Options, frame, plot};

/// Around the report in a document.
const MARK: &str = "race";

/// What is raced at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// New documents.
    New,
    /// In place, with known placements.
    InPlace,
    /// In place, with unknown placements.
    Cold,
    /// Few documents, each written very often.
    HotKeys,
    /// Every document to another geoshard.
    Moves,
    /// A bit of everything.
    Day,
    /// In place, into an Elasticsearch that does nothing.
    NullSink,
    /// The same from one partition.
    OnePartition,
    /// The same from 64 partitions.
    ManyPartitions,
}

impl Workload {
    /// For a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::New => "new documents",
            Self::InPlace => "in place, placements known",
            Self::Cold => "in place, placements not known",
            Self::HotKeys => "hot keys",
            Self::Moves => "moves to another geoshard",
            Self::Day => "a mixed day",
            Self::NullSink => "null sink",
            Self::OnePartition => "null sink, 1 partition",
            Self::ManyPartitions => "null sink, 64 partitions",
        }
    }
}

/// Who races.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Racer {
    /// What it is all about.
    Geofold,
    /// The same with `moves.visibility = "realtime"`: searches miss documents that move.
    Realtime,
    /// The loader of plain operations, which survive no crash and keep no order.
    Plain,
    /// Redpanda Connect.
    Peer,
    /// One document after the other.
    Naive,
    /// A consumer that does nothing.
    Consumer,
}

impl Racer {
    /// For a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Geofold => "geofold",
            Self::Realtime => "geofold, realtime",
            Self::Plain => "plain",
            Self::Peer => "peer",
            Self::Naive => "naive",
            Self::Consumer => "consumer",
        }
    }
}

/// One round of one racer.
#[derive(Debug, Clone, Copy)]
pub struct Lap {
    /// What it took, in seconds.
    seconds: f64,
    /// Events per second.
    pub speed: f64,
    /// CPU seconds per million events, of the racer, of Elasticsearch and of Kafka.
    pub cpu: [f64; 3],
    /// Reads and writes of Elasticsearch per event, as far as the racer counts them.
    pub operations: Option<[f64; 2]>,
}

impl Lap {
    /// From the costs before and after it.
    #[expect(clippy::cast_precision_loss, reason = "a count of documents")]
    pub fn new(events: usize, took: Duration, before: [f64; 3], after: [f64; 3]) -> Self {
        let (events, seconds) = (events as f64, took.as_secs_f64());
        let cpu = [0, 1, 2].map(|who| (after[who] - before[who]) / events * 1e6);
        Self { seconds, speed: events / seconds, cpu, operations: None }
    }

    /// With the operations counted before and after it.
    #[expect(clippy::cast_precision_loss, reason = "a count of operations")]
    pub fn with_operations(self, events: usize, before: Operations, after: Operations) -> Self {
        let per_event = |before: u64, after: u64| (after - before) as f64 / events as f64;
        let operations = [per_event(before.gets, after.gets), per_event(before.writes, after.writes)];
        Self { operations: Some(operations), ..self }
    }

    /// Reads of Elasticsearch per event, if they were counted.
    fn gets(&self) -> Option<f64> {
        self.operations.map(|[gets, _]| gets)
    }

    /// Writes of Elasticsearch per event, if they were counted.
    fn writes(&self) -> Option<f64> {
        self.operations.map(|[_, writes]| writes)
    }
}

impl fmt::Display for Lap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [racer, elasticsearch, kafka] = self.cpu;
        let speed = self.speed;
        write!(
            f,
            "{speed:.0}/s; CPU s per million: {racer:.1}, elasticsearch {elasticsearch:.0}, kafka {kafka:.1}"
        )?;
        match self.operations {
            Some([gets, writes]) => write!(f, "; {gets:.3} reads and {writes:.3} writes each"),
            None => Ok(()),
        }
    }
}

/// A worker that came to a backlog.
#[derive(Debug)]
pub struct Backlog {
    pub records: usize,
    pub documents: usize,
    /// Until everything was done.
    pub took: Duration,
    pub peak_mebibytes: f64,
    /// Operations that it wrote, per record.
    pub writes: f64,
}

/// All rounds, and where they were run.
#[derive(Debug)]
pub struct Report {
    head: String,
    load_before: String,
    laps: BTreeMap<(Workload, Racer), Vec<Lap>>,
    has_peer: bool,
    /// The most memory that a worker held, MiB, and in what.
    pub peaks: Vec<(&'static str, f64)>,
    /// That of the job, while it was looked at how long it takes until a write is found.
    refresh_interval: String,
    /// New documents and moves, by primaries of the placements index.
    pub placements: Vec<Primaries>,
    /// How long until a write is found.
    pub latency: Vec<Latency>,
    /// The same at fixed loads, beside the peer.
    pub freshness: Vec<Freshness>,
    /// What compressed requests cost and save.
    pub compression: Vec<Compression>,
    /// Searches while a backlog is drained.
    pub searches: Vec<Searched>,
    /// A worker that came to a backlog.
    pub backlog: Option<Backlog>,
}

impl Report {
    /// Notes date and machine.
    pub fn begin(options: &Options) -> Result<Self> {
        let head = format!(
            "{}; {}\n\
             - Versions: geofold {}, {}\n- Command: `{}`\n\
             - {} documents of about 600 bytes, {} geoshards, {} partitions, one worker\n",
            frame::date_and_machine()?,
            options.layout,
            env!("CARGO_PKG_VERSION"),
            options.servers,
            options.command,
            options.documents,
            options.map()?.shards().len(),
            options.partitions,
        );
        Ok(Self {
            head,
            load_before: frame::load_average()?,
            laps: BTreeMap::new(),
            has_peer: options.peer.is_some(),
            peaks: Vec::new(),
            refresh_interval: options.refresh_interval.clone(),
            placements: Vec::new(),
            latency: Vec::new(),
            freshness: Vec::new(),
            compression: Vec::new(),
            searches: Vec::new(),
            backlog: None,
        })
    }

    /// Takes note of a lap; that of round 0 is not counted.
    pub fn add(&mut self, round: usize, workload: Workload, racer: Racer, lap: Lap) {
        let name = if round == 0 { "warm-up".to_owned() } else { format!("round {round}") };
        eprintln!("{}, {name}: {} {lap}", workload.name(), racer.name());
        if round > 0 {
            self.laps.entry((workload, racer)).or_default().push(lap);
        }
    }

    /// The median of something over the laps of a racer.
    pub fn median(&self, workload: Workload, racer: Racer, of: impl Fn(&Lap) -> f64) -> Option<f64> {
        self.laps.get(&(workload, racer)).map(|laps| median(laps.iter().map(of)))
    }

    /// What one racer took or did in each round, in ratio to another.
    fn ratios(
        &self,
        one: (Workload, Racer),
        other: (Workload, Racer),
        of: impl Fn(&Lap) -> f64,
    ) -> Option<Vec<f64>> {
        let (ours, theirs) = (self.laps.get(&one)?, self.laps.get(&other)?);
        Some(ours.iter().zip(theirs).map(|(ours, theirs)| of(ours) / of(theirs)).collect())
    }

    /// Geofold's speed in each round, in ratio to another racer's.
    fn speeds(&self, workload: Workload, racer: Racer) -> Option<Vec<f64>> {
        self.ratios((workload, Racer::Geofold), (workload, racer), |lap| lap.speed)
    }

    /// Workloads and racers that have laps, in order.
    pub fn raced(&self) -> impl Iterator<Item = (Workload, Racer)> {
        self.laps.keys().copied()
    }

    /// The report.
    pub fn to_markdown(&self) -> String {
        let mut text = self.head.clone();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "- Load average (1, 5, 15 minutes) before the race: {}", self.load_before);
        if !self.has_peer {
            text += "- The peer did not take part\n";
        }
        text += "\n| workload | racer | events/s, median (lowest–highest) | geofold's ratio to it | CPU s per million: its, Elasticsearch's, Kafka's | reads, writes per event | shortest lap, s |\n|---|---|---:|---:|---:|---:|---:|\n";
        let mut above = None;
        for ((workload, racer), laps) in &self.laps {
            let speeds = || laps.iter().map(|lap| lap.speed);
            let (lowest, highest) = (speeds().fold(f64::INFINITY, f64::min), speeds().fold(0.0, f64::max));
            let shortest = laps.iter().map(|lap| lap.seconds).fold(f64::INFINITY, f64::min);
            let cpu = |who: usize| median(laps.iter().map(|lap| lap.cpu[who]));
            let operations = |of: fn(&Lap) -> Option<f64>| {
                let counted: Vec<f64> = laps.iter().filter_map(of).collect();
                (!counted.is_empty()).then(|| format!("{:.3}", median(counted.into_iter())))
            };
            let operations: Vec<String> =
                [operations(Lap::gets), operations(Lap::writes)].into_iter().flatten().collect();
            let ratio = match self.speeds(*workload, *racer).map(|rounds| median(rounds.into_iter())) {
                Some(ratio) if *racer != Racer::Geofold => format!("{ratio:.2}"),
                _ => String::new(),
            };
            let _ = writeln!(
                text,
                "| {} | {} | {:.0} ({lowest:.0}–{highest:.0}) | {ratio} | {:.1}, {:.0}, {:.1} | {} | {shortest:.1} |",
                if above.replace(*workload) == Some(*workload) { "" } else { workload.name() },
                racer.name(),
                median(speeds()),
                cpu(0),
                cpu(1),
                cpu(2),
                operations.join(", "),
            );
        }
        text.push_str(&placements::table(&self.placements));
        text.push_str(&self.latency_table());
        text.push_str(&freshness::table(&self.freshness));
        text.push_str(&compression::table(&self.compression));
        text.push_str(&searches::table(&self.searches));
        for (what, peak) in &self.peaks {
            let _ = writeln!(text, "\nPeak resident memory of the worker, {what}: {peak:.0} MiB.");
        }
        if let Some(Backlog { records, documents, took, peak_mebibytes, writes }) = &self.backlog {
            let speed = *records as f64 / took.as_secs_f64();
            let _ = writeln!(
                text,
                "\nA worker that came to a backlog of {records} writes of {documents} documents: {speed:.0}/s, {writes:.2} \
                 operations written per record, peak resident memory {peak_mebibytes:.0} MiB."
            );
        }
        text += &self.targets();
        text
    }

    fn latency_table(&self) -> String {
        if self.latency.is_empty() {
            return String::new();
        }
        let mut text = format!(
            "\nFrom a record's sending to its document being found, with a refresh job of {}:\n\n\
             | of what the worker can do | records/s | probes | half within, ms | 99 % within, ms | after the last record it worked for, s |\n\
             |---:|---:|---:|---:|---:|---:|\n",
            self.refresh_interval
        );
        for Latency { share, load, probes, p50, p99, rest } in &self.latency {
            let _ = writeln!(text, "| {share:.2} | {load:.0} | {probes} | {p50:.0} | {p99:.0} | {rest:.1} |");
        }
        text
    }

    /// Each target with what was measured, as far as it was.
    fn targets(&self) -> String {
        use Racer::{Consumer, Geofold, Naive, Peer, Plain, Realtime};
        use Wanted::{AtLeast, AtMost};
        use Workload::{Cold, HotKeys, InPlace, ManyPartitions, Moves, New, NullSink, OnePartition};
        let once = |measured: Option<f64>| measured.map(|measured| vec![measured]);
        let cpu = |lap: &Lap| lap.cpu[0];
        let servers = |lap: &Lap| lap.cpu[1];
        let null_sink = self.laps.get(&(NullSink, Geofold));
        let targets = [
            ("in place, known: × plain operations", AtLeast(1.0), self.speeds(InPlace, Plain)),
            ("in place, known: × peer", AtLeast(2.0), self.speeds(InPlace, Peer)),
            ("in place, not known: × plain operations", AtLeast(0.85), self.speeds(Cold, Plain)),
            ("in place, not known: × peer", AtLeast(1.5), self.speeds(Cold, Peer)),
            ("new documents: × plain operations", AtLeast(0.85), self.speeds(New, Plain)),
            ("hot keys: × peer", AtLeast(20.0), self.speeds(HotKeys, Peer)),
            ("moves: × plain operations", AtLeast(0.7), self.speeds(Moves, Plain)),
            ("moves: × naive flow", AtLeast(20.0), self.speeds(Moves, Naive)),
            (
                "moves that searches never miss: × those that they may miss",
                AtLeast(0.9),
                self.speeds(Moves, Realtime),
            ),
            (
                "null sink, records per CPU second: × bare consumer",
                AtLeast(0.5),
                self.ratios((NullSink, Consumer), (NullSink, Geofold), cpu),
            ),
            (
                "null sink: records/s",
                AtLeast(400_000.0),
                null_sink.map(|laps| laps.iter().map(|lap| lap.speed).collect()),
            ),
            (
                "64 partitions: × one partition",
                AtLeast(0.9),
                self.ratios((ManyPartitions, Geofold), (OnePartition, Geofold), |lap| lap.speed),
            ),
            (
                "CPU in place, known: × the peer's",
                AtMost(0.2),
                self.ratios((InPlace, Geofold), (InPlace, Peer), cpu),
            ),
            (
                "Elasticsearch's CPU in place, not known: × with the peer",
                AtMost(1.05),
                self.ratios((Cold, Geofold), (Cold, Peer), servers),
            ),
            (
                "memory with a backlog, MiB",
                AtMost(128.0),
                once(self.backlog.as_ref().map(|backlog| backlog.peak_mebibytes)),
            ),
            (
                "operations written per record of a backlog",
                AtMost(0.2),
                once(self.backlog.as_ref().map(|backlog| backlog.writes)),
            ),
            ("found, 99 %, ms", AtMost(1_000.0), once(self.latency.last().map(|latency| latency.p99))),
        ];
        let targets = targets.map(|(what, wanted, rounds)| Target { what, wanted, rounds });
        format!("\n{}", rounds::table(&targets))
    }

    /// Puts the report between the marks of a Markdown file, and its plot beside that.
    pub fn write(&self, file: &Path) -> Result<()> {
        frame::replace_marked_part(file, MARK, &self.to_markdown())?;
        let plot = file.with_file_name("race.svg");
        fs::write(&plot, plot::svg(self)).with_context(|| format!("writing {}", plot.display()))
    }
}
