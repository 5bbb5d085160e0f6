//! What came out, as Markdown.

use std::fmt;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

const BEGIN: &str = "<!-- race -->";
const END: &str = "<!-- /race -->";

/// One round of one racer.
#[derive(Debug, Clone, Copy)]
pub struct Lap {
    /// Documents per second.
    pub speed: f64,
    /// CPU seconds per million documents, of the racer, of Elasticsearch and of Kafka.
    pub cpu: [f64; 3],
}

impl Lap {
    /// From the costs before and after it.
    #[expect(clippy::cast_precision_loss, reason = "a count of documents")]
    pub fn new(documents: usize, took: Duration, before: [f64; 3], after: [f64; 3]) -> Self {
        let documents = documents as f64;
        let cpu = [0, 1, 2].map(|who| (after[who] - before[who]) / documents * 1e6);
        Self { speed: documents / took.as_secs_f64(), cpu }
    }
}

impl fmt::Display for Lap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [racer, elasticsearch, kafka] = self.cpu;
        let speed = self.speed;
        write!(
            f,
            "{speed:.0}/s; CPU s per million: {racer:.1}, elasticsearch {elasticsearch:.0}, kafka {kafka:.1}"
        )
    }
}

/// All rounds, and where they were run.
#[derive(Debug)]
pub struct Report {
    head: String,
    load_before: String,
    /// The documents when they were new.
    pub new: Option<Lap>,
    /// Updates in place: the raw loader's lap and geofold's.
    pub in_place: Vec<(Lap, Lap)>,
    /// Every document to another geoshard.
    pub moves: Vec<Lap>,
    /// The most memory that the worker held.
    pub peak_mebibytes: f64,
}

impl Report {
    /// Notes date and machine.
    pub fn begin(servers: &str, command: &str, documents: usize, partitions: i32) -> Result<Self> {
        let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let cpus = fs::read_to_string("/proc/cpuinfo")?;
        let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let memory = fs::read_to_string("/proc/meminfo")?;
        let memory =
            memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
        let gibibytes = memory.context("/proc/meminfo has no MemTotal")?.parse::<f64>()? / 1024.0 / 1024.0;
        let head = format!(
            "- Date: {}\n- Machine: {} cores ({}), {gibibytes:.0} GiB, shared by racers and servers\n\
             - Versions: geofold {}, {servers}\n- Command: `{command}`\n\
             - {documents} documents of about 600 bytes, 55 geoshards, {partitions} partitions, one worker with default configuration\n",
            &date[..10],
            std::thread::available_parallelism()?,
            model.map_or("unknown", |(_, model)| model),
            env!("CARGO_PKG_VERSION"),
        );
        Ok(Self {
            head,
            load_before: load_average()?,
            new: None,
            in_place: Vec::new(),
            moves: Vec::new(),
            peak_mebibytes: 0.0,
        })
    }

    /// The report.
    pub fn to_markdown(&self) -> String {
        let median_of = |value: &dyn Fn(&(Lap, Lap)) -> f64| median(self.in_place.iter().map(value));
        let mut text = self.head.clone();
        // Writing to a String can not fail.
        let _ = writeln!(text, "- Load average (1, 5, 15 minutes) before the race: {}\n", self.load_before);
        text += "| updates in place | raw loader, documents/s | geofold, documents/s | ratio |\n|---|---:|---:|---:|\n";
        for (number, (raw, geofold)) in self.in_place.iter().enumerate() {
            let _ = writeln!(
                text,
                "| round {} | {:.0} | {:.0} | {:.2} |",
                number + 1,
                raw.speed,
                geofold.speed,
                geofold.speed / raw.speed
            );
        }
        let _ = writeln!(
            text,
            "| **median** | **{:.0}** | **{:.0}** | **{:.2}** |\n",
            median_of(&|(raw, _)| raw.speed),
            median_of(&|(_, geofold)| geofold.speed),
            median_of(&|(raw, geofold)| geofold.speed / raw.speed),
        );
        text += "| median | documents/s | racer's CPU s per million | Elasticsearch's | Kafka's |\n|---|---:|---:|---:|---:|\n";
        let raw: Vec<Lap> = self.in_place.iter().map(|(raw, _)| *raw).collect();
        let geofold: Vec<Lap> = self.in_place.iter().map(|(_, geofold)| *geofold).collect();
        let new: Vec<Lap> = self.new.into_iter().collect();
        for (what, laps) in [
            ("raw loader, in place", &raw),
            ("geofold, in place", &geofold),
            ("geofold, new documents (one round, cold)", &new),
            ("geofold, moves to another geoshard", &self.moves),
        ] {
            let cpu = |who: usize| median(laps.iter().map(|lap| lap.cpu[who]));
            if !laps.is_empty() {
                let speed = median(laps.iter().map(|lap| lap.speed));
                let _ =
                    writeln!(text, "| {what} | {speed:.0} | {:.1} | {:.0} | {:.1} |", cpu(0), cpu(1), cpu(2));
            }
        }
        let _ = writeln!(text, "\nPeak resident memory of the worker: {:.0} MiB.", self.peak_mebibytes);
        text
    }
}

/// Puts `text` between the marks of a Markdown file.
pub fn replace_marked_part(file: &Path, text: &str) -> Result<()> {
    let old = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let marked = || -> Option<String> {
        let (before, rest) = old.split_once(BEGIN)?;
        let (_, after) = rest.split_once(END)?;
        Some(format!("{before}{BEGIN}\n{text}{END}{after}"))
    };
    let new = marked().with_context(|| format!("{} has no {BEGIN} and {END}", file.display()))?;
    fs::write(file, new).with_context(|| format!("writing {}", file.display()))
}

fn load_average() -> Result<String> {
    let text = fs::read_to_string("/proc/loadavg")?;
    Ok(text.split(' ').take(3).collect::<Vec<_>>().join(", "))
}

/// The middle, or the mean of the two in the middle.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[odd / 2],
        even => f64::midpoint(values[even / 2 - 1], values[even / 2]),
    }
}
