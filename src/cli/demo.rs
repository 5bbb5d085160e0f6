//! `geofold demo`.

use std::process::ExitCode;

use clap::Args;

use super::{Failure, output, signals};
use crate::testkit::demo::{self, DemoOptions, DemoVerdict};

/// Run everything on an embedded broker and a fake Elasticsearch; no server needed.
///
/// Two real workers process simulated people who walk, commute and fly, while faults happen: a worker killed with -9,
/// another frozen until it loses its partitions, Elasticsearch slow, overloaded, lossy, late and down. Finally every
/// document is compared with its expected state. Exit code 0: the index is right; 1: it is not, or the demo could not
/// run.
#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// Number of people, one document each.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    docs: u32,
    /// Events per second.
    #[arg(long, value_name = "N", default_value_t = 4_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Duration in seconds.
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// Seed of people and events.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// No faults.
    #[arg(long)]
    calm: bool,
    /// Keep the workers and their status pages up after the verdict, until Ctrl-C.
    #[arg(long)]
    hold: bool,
    /// Port of the first worker's status page; the second worker uses the next one [default: any that are free]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    port: u16,
    /// Break this protocol rule in the workers; the verdict must detect it.
    #[cfg(feature = "sabotage")]
    #[arg(long, value_name = "NAME", value_parser = names_of_sabotages())]
    sabotage: Option<String>,
}

pub(super) async fn demo(args: DemoArgs) -> Result<ExitCode, Failure> {
    let worker_arguments = worker_arguments(&args);
    let DemoArgs { docs, rate, seconds, seed, calm, hold, port, .. } = args;
    let stop = signals::stop_on_signal_or_hang_up()?;
    let options = DemoOptions { docs, rate, seconds, seed, calm, hold, port, worker_arguments };
    let colours = output::colours();
    let show = |verdict: &DemoVerdict, pages: &[String]| {
        // A reader that went away is not told.
        drop(output::text(verdict.text(colours)));
        if hold {
            drop(output::line(format_args!("\nstatus pages, until Ctrl-C: {}", pages.join("  "))));
        }
    };
    let verdict = demo::run(options, stop, show).await?;
    Ok(if verdict.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(not(feature = "sabotage"))]
fn worker_arguments(_: &DemoArgs) -> Vec<String> {
    Vec::new()
}

#[cfg(feature = "sabotage")]
fn worker_arguments(args: &DemoArgs) -> Vec<String> {
    args.sabotage.iter().flat_map(|name| ["--sabotage".to_owned(), name.clone()]).collect()
}

/// The rules known to the demo.
#[cfg(feature = "sabotage")]
fn names_of_sabotages() -> clap::builder::PossibleValuesParser {
    use clap::ValueEnum;

    let found = crate::base::sabotage::FOUND_BY_THE_DEMO.iter();
    found.filter_map(ValueEnum::to_possible_value).collect::<Vec<_>>().into()
}
