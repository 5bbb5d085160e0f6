//! What came out, as Markdown.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;

use crate::ask::{EarlyStop, Loop, Overhead};
use crate::median::median;
use crate::{Options, PEAK_RADIUS, RADII, frame};

/// Around the report in a document.
const MARK: &str = "search-race";

/// One measurement of one layout.
pub struct Row {
    pub layout: String,
    pub radius: u32,
    pub writes: usize,
    pub measured: Loop,
}

/// A figure of a measurement, if it has it.
type Figure = fn(&Loop) -> Option<f64>;

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
        let head = format!(
            "{}, shared by clients, router and server\n\
             - Versions: geofold {}, {}\n- Command: `{}`\n\
             - {} people, 4 copies of them on one node; {} clients, {} rounds of {} s, medians\n",
            frame::date_and_machine()?,
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
            load_before: frame::load_average()?,
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
        writeln!(text, "- Load average before and after: {}; {}", self.load_before, frame::load_average()?)?;
        let loads: Vec<String> =
            self.loads.iter().map(|(layout, loaded)| format!("{layout} {loaded}")).collect();
        writeln!(text, "- First load by `_bulk`, and size after a merge: {}", loads.join("; "))?;
        self.races(&mut text)?;
        self.peaks(&mut text)?;
        self.overheads(&mut text)?;
        self.early_stops(&mut text)?;
        Ok(text)
    }

    /// The median over the rounds of one layout; nothing if nothing was measured.
    fn over_rounds(
        &self,
        layout: &str,
        radius: u32,
        writes: usize,
        value: impl Fn(&Loop) -> Option<f64>,
    ) -> Option<f64> {
        let rows = self
            .rows
            .iter()
            .filter(|row| row.layout == layout && row.radius == radius && row.writes == writes);
        let values: Vec<f64> = rows.filter_map(|row| value(&row.measured)).collect();
        (!values.is_empty()).then(|| median(values.into_iter()))
    }

    /// Rates, latencies and what they cost, with a column per layout.
    fn races(&self, text: &mut String) -> Result<()> {
        let by_radius: [(&str, usize, usize, Figure); 2] = [
            ("Writes/s reached", self.writes, 0, |row| row.written),
            ("Geoshards asked", 0, 1, |row| row.asked),
        ];
        for (what, writes, digits, value) in by_radius {
            let of = |layout: &str| {
                let values = RADII.map(|radius| self.over_rounds(layout, radius, writes, value));
                let shown: Vec<String> =
                    values.iter().flatten().map(|value| format!("{value:.digits$}")).collect();
                (!shown.is_empty()).then(|| format!("{layout} {}", shown.join(", ")))
            };
            let all: Vec<String> = self.loads.iter().filter_map(|(layout, _)| of(layout)).collect();
            writeln!(text, "- {what}, by radius: {}", all.join("; "))?;
        }
        writeln!(
            text,
            "\n**Searches**: queries/s; p50 and p99 in ms; CPU seconds of Elasticsearch and of the router per 1,000:\n"
        )?;
        let layouts: Vec<&str> = self.loads.iter().map(|(layout, _)| layout.as_str()).collect();
        let columns = "---:|".repeat(2 + layouts.len());
        writeln!(text, "| miles | writes | {} |\n|{columns}", layouts.join(" | "))?;
        for writes in [0, self.writes] {
            for radius in RADII {
                write!(text, "| {radius} | {} |", if writes == 0 { "no" } else { "yes" })?;
                for layout in &layouts {
                    let of = |value: fn(&Loop) -> f64| {
                        self.over_rounds(layout, radius, writes, |row| Some(value(row))).unwrap_or(f64::NAN)
                    };
                    let (rate, p50, p99) = (of(|row| row.rate), of(|row| row.p50), of(|row| row.p99));
                    write!(text, " {rate:.0}; {p50:.1}, {p99:.1}; {:.2}", of(|row| row.cpu[0]))?;
                    let router = of(|row| row.cpu[1]);
                    if router > 0.0 {
                        write!(text, ", {router:.2}")?;
                    }
                    text.push_str(" |");
                }
                text.push('\n');
            }
        }
        Ok(())
    }

    fn peaks(&self, text: &mut String) -> Result<()> {
        writeln!(
            text,
            "\n**The most queries per second** at {PEAK_RADIUS} miles with a p99 of at most {} ms, by 1 to 16 clients:\n\n\
             | | without writes | with writes |\n|---|---:|---:|",
            self.p99
        )?;
        for (layout, _) in &self.loads {
            let cell = |writes: usize| {
                let peak = self.peaks.iter().find(|(name, some, _)| name == layout && *some == writes);
                match peak {
                    Some((_, _, Some((clients, measured)))) => format!("{:.0} by {clients}", measured.rate),
                    Some((_, _, None)) => "never".to_owned(),
                    None => String::new(),
                }
            };
            writeln!(text, "| {layout} | {} | {} |", cell(0), cell(self.writes))?;
        }
        Ok(())
    }

    fn overheads(&self, text: &mut String) -> Result<()> {
        let mut layouts: Vec<&str> = self.overheads.iter().map(|one| one.layout.as_str()).collect();
        layouts.dedup();
        writeln!(
            text,
            "\n**The router's overhead**: the same searches directly to the right indices and through it, in ms, one client, in turn \
             (targets: at most 5 % and 1 ms more of the p50):\n\n\
             | miles | {} |\n|{}",
            layouts
                .iter()
                .map(|layout| format!("{layout}: p50 direct, routed, more; p99 direct, routed"))
                .collect::<Vec<_>>()
                .join(" | "),
            "---:|".repeat(1 + layouts.len())
        )?;
        for radius in RADII {
            write!(text, "| {radius} |")?;
            for Overhead { direct, routed, .. } in self.overheads.iter().filter(|one| one.radius == radius) {
                let percent = (routed[0] - direct[0]) / direct[0] * 100.0;
                write!(
                    text,
                    " {:.2}, {:.2}, {percent:.0} %; {:.1}, {:.1} |",
                    direct[0], routed[0], direct[1], routed[1]
                )?;
            }
            text.push('\n');
        }
        Ok(())
    }

    fn early_stops(&self, text: &mut String) -> Result<()> {
        let mut sizes: Vec<usize> = self.early_stops.iter().map(|stop| stop.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let heads: Vec<String> = sizes.iter().map(|size| format!("nearest {size}")).collect();
        writeln!(
            text,
            "\n**The early stop**: geoshards that the circle covers, and those asked for the nearest with a tag, with the p50 in ms:\n\n\
             | | miles | covered | {} |\n|---|---:|---:|{}",
            heads.join(" | "),
            "---:|".repeat(sizes.len())
        )?;
        for stops in
            self.early_stops.chunk_by(|one, next| one.layout == next.layout && one.radius == next.radius)
        {
            let EarlyStop { layout, radius, covered, .. } = &stops[0];
            let radius = radius.map_or("anywhere".to_owned(), |radius| radius.to_string());
            let cells: Vec<String> =
                stops.iter().map(|stop| format!("{:.1}, {:.1}", stop.asked, stop.p50)).collect();
            writeln!(text, "| {layout} | {radius} | {covered:.1} | {} |", cells.join(" | "))?;
        }
        Ok(())
    }

    /// Puts the report between the marks of a Markdown file.
    pub fn write(&self, file: &Path) -> Result<()> {
        frame::replace_marked_part(file, MARK, &self.to_markdown()?)
    }
}
