//! `geofold demo`.

use std::process::ExitCode;

use clap::Args;

use super::{Failure, output, signals};
use crate::demo::{self, DemoOptions};

/// Show the whole job on stand-ins, with no server installed.
///
/// An embedded broker and a stand-in for Elasticsearch serve two real workers. Simulated people wake up in real cities,
/// walk, commute and fly; faults come as on a bad day: a worker killed -9, Elasticsearch slow, pushing back, losing
/// answers, down. At the end every document is compared with what it should be. Exit code 0: the index is right. 1: it is
/// not, or the demo could not run.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// How many people, one document each.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    docs: u32,
    /// Events per second, after everybody woke up.
    #[arg(long, value_name = "N", default_value_t = 4_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// How long that lasts, in seconds.
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// The same seed gives the same people and the same events.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// No faults.
    #[arg(long)]
    calm: bool,
}

pub async fn demo(args: DemoArgs) -> Result<ExitCode, Failure> {
    let DemoArgs { docs, rate, seconds, seed, calm } = args;
    let stop = signals::stop_on_signal()?;
    let verdict = demo::run(DemoOptions { docs, rate, seconds, seed, calm }, stop).await?;
    output::line(&verdict)?;
    Ok(if verdict.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
