//! `geofold status`.

use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use super::{ConfigArgs, Failure, connect, output, signals};
use crate::ops::group::Question;

/// Show the whole group: members, partitions, lag and its trend, stopped partitions and why, maps, Elasticsearch, dead letters.
///
/// Runs on any machine and joins no group. Why a partition is stopped only its worker knows: workers are asked at --workers, or else at
/// admin.listen on this machine and, unless that is a loopback address, on the hosts of the group's members. Exit code 0: nothing needs a
/// person; 1: something does, and the last lines say what, or the brokers do not answer.
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Workers' admin servers, as HOST:PORT or URL.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    workers: Vec<String>,
    /// Time between two samples of offsets, for the trend [default: commit.interval and a second].
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    sample: Option<Duration>,
    /// Repeat each interval until interrupted.
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = "5s", value_parser = humantime::parse_duration)]
    watch: Option<Duration>,
    /// Print JSON; with --watch, one object per line.
    #[arg(long)]
    json: bool,
}

/// Dead letters counted, of each partition.
const NEWEST_LETTERS: i64 = 10_000;
/// Clears a terminal.
const CLEAR: &str = "\x1b[2J\x1b[H";

pub(super) async fn status(args: StatusArgs) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    let stop = signals::stop_on_signal_or_hang_up()?;
    let pause = args.sample.unwrap_or(config.commit.interval + Duration::from_secs(1));
    let elastic = Arc::new(connect::elasticsearch(&config)?);
    let question = Question {
        config,
        elastic,
        workers: args.workers,
        newest_letters: NEWEST_LETTERS,
        letters_every: Duration::ZERO,
        stop: stop.clone(),
    };
    let mut before = None;
    loop {
        let asked = tokio::select! {
            asked = question.ask(before.take(), pause) => asked,
            () = stop.cancelled() => return Ok(ExitCode::SUCCESS),
        };
        let (report, sample) = asked?;
        let code = if report.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        match (args.json, args.watch) {
            (true, None) => output::json(&report)?,
            (true, Some(_)) => output::line(serde_json::to_string(&report)?)?,
            (false, Some(_)) if stdout().is_terminal() => output::line(format_args!("{CLEAR}{report}"))?,
            (false, _) => output::line(&report)?,
        }
        let Some(interval) = args.watch else { return Ok(code) };
        before = Some(sample);
        tokio::select! {
            () = tokio::time::sleep(interval.max(Duration::from_secs(1))) => {}
            () = stop.cancelled() => return Ok(code),
        }
    }
}
