//! What came out, as Markdown.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result};

use crate::ask::{EarlyStop, Loop, Overhead};
use crate::{Options, PEAK_RADIUS, RADII};

const BEGIN: &str = "<!-- search-race -->";
const END: &str = "<!-- /search-race -->";

/// One measurement of one layout.
pub struct Row {
    pub layout: String,
    pub radius: u32,
    pub writes: usize,
    pub measured: Loop,
}

/// Layout, writes per second, and the best number of clients with its result.
pub type Peak = (String, usize, Option<(usize, Loop)>);

/// See the file's first line.
pub struct Report {
    head: String,
    load_before: String,
    writes: usize,
    p99: f64,
    loads: Vec<(String, String)>,
    pub rows: Vec<Row>,
    pub peaks: Vec<Peak>,
    pub overheads: Vec<Overhead>,
    pub early_stops: Vec<EarlyStop>,
}

impl Report {
    /// Notes date and machine.
    pub fn begin(options: &Options) -> Result<Self> {
        let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let cpus = fs::read_to_string("/proc/cpuinfo")?;
        let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let cores = cpus.lines().filter(|line| line.starts_with("processor")).count();
        let memory = fs::read_to_string("/proc/meminfo")?;
        let memory =
            memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
        let gibibytes = memory.context("/proc/meminfo has no MemTotal")?.parse::<f64>()? / 1024.0 / 1024.0;
        let head = format!(
            "- Date: {}\n- Machine: {cores} cores ({}), {gibibytes:.0} GiB, shared by clients, router and server\n\
             - Versions: geofold {}, {}\n- Command: `{}`\n\
             - {} people, 4 copies of them on one node; {} clients, {} rounds of {} s, medians\n",
            &date[..10],
            model.map_or("unknown", |(_, model)| model),
            env!("CARGO_PKG_VERSION"),
            options.server,
            options.command,
            options.people,
            options.clients,
            options.rounds,
            options.seconds,
        );
        Ok(Self {
            head,
            load_before: load_average()?,
            writes: options.writes,
            p99: options.p99,
            loads: Vec::new(),
            rows: Vec::new(),
            peaks: Vec::new(),
            overheads: Vec::new(),
            early_stops: Vec::new(),
        })
    }

    pub fn add_load(&mut self, layout: String, loaded: String) {
        self.loads.push((layout, loaded));
    }

    pub fn to_markdown(&self) -> Result<String> {
        let mut text = self.head.clone();
        writeln!(text, "- Load average before and after: {}; {}", self.load_before, load_average()?)?;
        let loads: Vec<String> =
            self.loads.iter().map(|(layout, loaded)| format!("{layout} {loaded}")).collect();
        writeln!(text, "- First load by `_bulk`, and size after a merge: {}", loads.join("; "))?;
        for writes in [0, self.writes] {
            let head = if writes == 0 { "Without writes" } else { "With writes" };
            writeln!(
                text,
                "\n**{head}**, a circle around a person, a tag, an age and two words, the best 20:\n"
            )?;
            self.races(&mut text, writes)?;
        }
        self.peaks(&mut text)?;
        self.overheads(&mut text)?;
        self.early_stops(&mut text)?;
        Ok(text)
    }

    fn races(&self, text: &mut String, writes: usize) -> Result<()> {
        writeln!(
            text,
            "| miles | | queries/s | p50 ms | p99 ms | CPU s of Elasticsearch per 1,000 | of the router | geoshards asked | writes/s |\n\
             |---:|---|---:|---:|---:|---:|---:|---:|---:|"
        )?;
        for radius in RADII {
            for (layout, _) in &self.loads {
                let rows = || {
                    self.rows
                        .iter()
                        .filter(|row| row.layout == *layout && row.radius == radius && row.writes == writes)
                        .map(|row| row.measured)
                };
                let of = |value: fn(&Loop) -> f64| median(rows().map(|row| value(&row)));
                let some = |value: fn(&Loop) -> Option<f64>, digits: usize| {
                    let values: Vec<f64> = rows().filter_map(|row| value(&row)).collect();
                    if values.is_empty() {
                        String::new()
                    } else {
                        format!("{:.digits$}", median(values.into_iter()))
                    }
                };
                let router = of(|row| row.cpu[1]);
                writeln!(
                    text,
                    "| {radius} | {layout} | {:.0} | {:.1} | {:.1} | {:.2} | {} | {} | {} |",
                    of(|row| row.rate),
                    of(|row| row.p50),
                    of(|row| row.p99),
                    of(|row| row.cpu[0]),
                    if router > 0.0 { format!("{router:.2}") } else { String::new() },
                    some(|row| row.asked, 1),
                    some(|row| row.written, 0),
                )?;
            }
        }
        Ok(())
    }

    fn peaks(&self, text: &mut String) -> Result<()> {
        writeln!(
            text,
            "\n**The most queries per second** at {PEAK_RADIUS} miles with a p99 of at most {} ms, by 1 to 16 clients:\n\n\
             | | without writes | clients | with writes | clients |\n|---|---:|---:|---:|---:|",
            self.p99
        )?;
        for (layout, _) in &self.loads {
            let cell = |writes: usize| {
                let peak = self.peaks.iter().find(|(name, some, _)| name == layout && *some == writes);
                match peak {
                    Some((_, _, Some((clients, measured)))) => format!("{:.0} | {clients}", measured.rate),
                    Some((_, _, None)) => "never | ".to_owned(),
                    None => " | ".to_owned(),
                }
            };
            writeln!(text, "| {layout} | {} | {} |", cell(0), cell(self.writes))?;
        }
        Ok(())
    }

    fn overheads(&self, text: &mut String) -> Result<()> {
        writeln!(
            text,
            "\n**The router's overhead**: the same searches through it and directly to the right indices, one client, in turn (targets: at \
             most 5 % and 1 ms of the p50):\n\n\
             | | miles | direct p50 ms | routed p50 ms | more | | direct p99 ms | routed p99 ms |\n|---|---:|---:|---:|---:|---:|---:|---:|"
        )?;
        for Overhead { layout, radius, direct, routed } in &self.overheads {
            let more = routed[0] - direct[0];
            let percent = more / direct[0] * 100.0;
            writeln!(
                text,
                "| {layout} | {radius} | {:.2} | {:.2} | {more:.2} ms | {percent:.0} % | {:.2} | {:.2} |",
                direct[0], routed[0], direct[1], routed[1]
            )?;
        }
        Ok(())
    }

    fn early_stops(&self, text: &mut String) -> Result<()> {
        writeln!(
            text,
            "\n**The early stop**: geoshards asked for the nearest with a tag, of those that the circle covers:\n\n\
             | | miles | nearest | asked | covered | share | p50 ms |\n|---|---:|---:|---:|---:|---:|---:|"
        )?;
        for EarlyStop { layout, radius, size, asked, covered, p50 } in &self.early_stops {
            let radius = radius.map_or("anywhere".to_owned(), |radius| radius.to_string());
            let share = asked / covered * 100.0;
            writeln!(
                text,
                "| {layout} | {radius} | {size} | {asked:.1} | {covered:.1} | {share:.0} % | {p50:.1} |"
            )?;
        }
        Ok(())
    }

    /// Puts the report between the marks of a Markdown file.
    pub fn write(&self, file: &Path) -> Result<()> {
        let old = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        let (before, rest) =
            old.split_once(BEGIN).with_context(|| format!("no {BEGIN} in {}", file.display()))?;
        let (_, after) = rest.split_once(END).with_context(|| format!("no {END} in {}", file.display()))?;
        let new = format!("{before}{BEGIN}\n{}{END}{after}", self.to_markdown()?);
        fs::write(file, new).with_context(|| format!("writing {}", file.display()))
    }
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
