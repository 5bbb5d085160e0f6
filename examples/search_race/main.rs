//! What geosharding does for searches: the same people in one index and in geoshards behind `geofold route`, on one Elasticsearch.
//!
//! `dev/search-race` starts the server, runs this, and stops it. The layouts take turns at each radius, round by round; who goes first
//! alternates.
//!
//! | file | what it holds |
//! |---|---|
//! | `crowd.rs` | people, and what is searched for |
//! | `layout.rs` | an index or geoshards with these people, a router, and writes to them |
//! | `ask.rs` | closed loops of searches, and what they cost |
//! | `report.rs` | what came out, as Markdown |

mod ask;
mod crowd;
#[path = "../race/frame.rs"]
mod frame;
mod layout;
#[path = "../race/median.rs"]
mod median;
#[expect(dead_code, reason = "only where people live is needed here")]
#[path = "../people.rs"]
mod people;
#[expect(dead_code, reason = "made for workers, too")]
#[path = "../race/process.rs"]
mod process;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Parser;

use crate::ask::{Conditions, Loop, SharedCost, early_stop, overhead};
use crate::crowd::Crowd;
use crate::layout::{Kind, Layout, Writes};
use crate::report::{Report, Row};

/// In miles.
const RADII: [u32; 4] = [1, 5, 25, 100];
/// The radius at which the most queries per second are looked for.
const PEAK_RADIUS: u32 = 25;
/// Clients at the same time, up to the most that is tried.
const PEAK_CLIENTS: [usize; 5] = [1, 2, 4, 8, 16];

/// Race searches over geoshards against searches over one index.
#[derive(Debug, Parser)]
struct Options {
    /// Address of an Elasticsearch node.
    #[arg(long, env = "GEOFOLD_TEST_ELASTICSEARCH")]
    elasticsearch: String,
    /// The folder of dev/stack, to find out what the server costs.
    #[arg(long, env = "GEOFOLD_STACK_DIR")]
    stack: PathBuf,
    /// The binary that routes; by default the one that was built with this program.
    #[arg(long)]
    geofold: Option<PathBuf>,
    /// People.
    #[arg(long, default_value_t = 2_000_000)]
    people: usize,
    /// Rounds of each measurement; best an even number.
    #[arg(long, default_value_t = 4)]
    rounds: usize,
    /// Seconds of one measurement in one round.
    #[arg(long, default_value_t = 15.0)]
    seconds: f64,
    /// Clients that search one query after the other.
    #[arg(long, default_value_t = 4)]
    clients: usize,
    /// Writes per second while there are writes.
    #[arg(long, default_value_t = 2_000)]
    writes: usize,
    /// The most that one query in a hundred may take where the most queries per second are looked for, in milliseconds.
    #[arg(long, default_value_t = 50.0)]
    p99: f64,
    /// Searches of each kind for the router's overhead and for the early stop.
    #[arg(long, default_value_t = 1_000)]
    singles: usize,
    /// What the server is, for the report.
    #[arg(long, default_value = "version not given")]
    server: String,
    /// The command that started this, for the report.
    #[arg(long, default_value = "cargo run --release --example search_race")]
    command: String,
    /// A Markdown file whose part between `<!-- search-race -->` and `<!-- /search-race -->` is replaced with the report.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let mut report = Report::begin(&options)?;
    let crowd = Crowd::new(options.people)?;
    let kinds = [Kind::One(1), Kind::One(5), Kind::Geoshards(40), Kind::Geoshards(100)];
    let mut layouts = Vec::new();
    for kind in kinds {
        let layout = Layout::load(&options, &crowd, kind)?;
        eprintln!("{}: {}", layout.name(), layout.loaded());
        report.add_load(layout.name(), layout.loaded());
        layouts.push(layout);
    }
    check_same_totals(&crowd, &layouts)?;
    races(&options, &crowd, &layouts, &mut report)?;
    peaks(&options, &crowd, &layouts, &mut report)?;
    for layout in layouts.iter().filter(|layout| layout.map().is_some()) {
        report.overheads.extend(overhead(&crowd, layout, options.singles)?);
        report.early_stops.extend(early_stop(&crowd, layout, options.singles / 10)?);
    }
    let text = report.to_markdown()?;
    println!("\n{text}");
    match &options.write {
        Some(file) => report.write(file),
        None => Ok(()),
    }
}

/// The layouts answer the same questions.
fn check_same_totals(crowd: &Crowd, layouts: &[Layout]) -> Result<()> {
    for radius in RADII {
        for n in 0..20 {
            let question = crowd.question(radius, n);
            let totals: Result<Vec<_>> = layouts
                .iter()
                .map(|layout| Ok(layout.ask(&question)?.body["hits"]["total"].clone()))
                .collect();
            let totals = totals?;
            if totals.iter().any(|total| *total != totals[0]) {
                bail!("the layouts answer {totals:?} to {}", question.body);
            }
        }
    }
    Ok(())
}

/// Latencies and costs at a fixed number of clients.
fn races(options: &Options, crowd: &Crowd, layouts: &[Layout], report: &mut Report) -> Result<()> {
    let time = Duration::from_secs_f64(options.seconds);
    // The first round is not counted: caches and the server's compiler warm up.
    for round in 0..=options.rounds {
        for writes in [0, options.writes] {
            for radius in RADII {
                for turn in 0..layouts.len() {
                    let layout = &layouts[(turn + round) % layouts.len()];
                    let conditions =
                        Conditions { radius, clients: options.clients, time, writes, seed: round };
                    let measured = measure(options, crowd, layout, conditions)?;
                    eprintln!(
                        "round {round}, {}: {radius} miles, {writes} writes/s: {measured}",
                        layout.name()
                    );
                    if round > 0 {
                        report.rows.push(Row { layout: layout.name(), radius, writes, measured });
                    }
                }
            }
        }
    }
    Ok(())
}

/// The most queries per second of which one in a hundred takes too long.
fn peaks(options: &Options, crowd: &Crowd, layouts: &[Layout], report: &mut Report) -> Result<()> {
    let time = Duration::from_secs_f64(options.seconds);
    for writes in [0, options.writes] {
        for layout in layouts {
            let mut best: Option<(usize, Loop)> = None;
            for clients in PEAK_CLIENTS {
                let conditions =
                    Conditions { radius: PEAK_RADIUS, clients, time, writes, seed: 1_000 + clients };
                let measured = measure(options, crowd, layout, conditions)?;
                eprintln!("{}: {clients} clients, {writes} writes/s: {measured}", layout.name());
                let is_better = best.as_ref().is_none_or(|(_, best)| measured.rate > best.rate);
                if measured.p99 <= options.p99 && is_better {
                    best = Some((clients, measured));
                }
            }
            report.peaks.push((layout.name(), writes, best));
        }
    }
    Ok(())
}

fn measure(options: &Options, crowd: &Crowd, layout: &Layout, conditions: Conditions) -> Result<Loop> {
    layout.settle()?;
    let cost = SharedCost { stack: &options.stack, router: layout.router_pid() };
    match conditions.writes {
        0 => ask::run(crowd, layout, &conditions, &cost),
        rate => std::thread::scope(|scope| {
            let writes = Writes::begin(scope, crowd, layout, rate, conditions.seed);
            let measured = ask::run(crowd, layout, &conditions, &cost);
            let written = writes.end()?;
            Ok(Loop { written: Some(written), ..measured? })
        }),
    }
}
