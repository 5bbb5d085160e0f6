//! `geofold shards autopilot`.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use tokio_util::sync::CancellationToken;

use super::plan::percent;
use super::{ConfigArgs, Failure, connect, output};
use crate::base::progress::Progress;
use crate::cli::progress::ProgressMeter;
use crate::cli::{logging, signals};
use crate::geoshard::balance::Weights;
use crate::geoshard::balance::decide::{BalanceLimits, QuietHours};
use crate::geoshard::load::Over;
use crate::geoshard::plan::CellOptions;
use crate::io::elastic::Elastic;
use crate::ops::admin::{self, ServerOptions};
use crate::ops::autopilot::measure::MeasureOptions;
use crate::ops::autopilot::record::UnderWay;
use crate::ops::autopilot::{Autopilot, AutopilotOptions, AutopilotReport};
use crate::ops::check::{self, CheckTarget};
use crate::ops::migrate::Listener;
use crate::support::supervisor::Supervisor;
use crate::support::telemetry::autopilot::AutopilotMetrics;
use crate::support::telemetry::health::Health;
use crate::support::telemetry::probes::probe_routes;

const EXAMPLES: &str = "\
Examples:
  geofold shards autopilot --once                    # what it would do, why, what it costs; changes nothing
  geofold shards autopilot --apply --max-moved 5% --quiet 17:00-23:00
  geofold shards autopilot --apply --once            # for cron
  geofold shards autopilot --stop                    # nothing begins any more, wherever it runs; --resume goes on";

/// Keep geoshards balanced: measure the load, forecast the coming hours, change the map within limits.
///
/// Without --apply it only says what it would do, and writes nothing. With --apply it changes the map as `shards migrate` does, one
/// change at a time, within --max-moved of all documents a day. One process may apply; a second one waits until the first is gone. It
/// may be killed at any time: at the next start it goes on with the change that is under way. The load is what workers and
/// routers count (docs/balance.md).
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct AutopilotArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Change the map.
    #[arg(long)]
    apply: bool,
    /// One decision and what follows from it, then exit.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    switch: Switch,
    /// From one decision to the next.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = humantime::parse_duration)]
    interval: Duration,
    /// A process that is silent for so long is taken for dead.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    lease: Duration,
    /// Address for /metrics, /healthz and /readyz; none if not given.
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Print a JSON object per decision.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    measure: MeasureArgs,
    #[command(flatten)]
    limits: LimitArgs,
    /// Maximum touches per second of a change.
    #[arg(long, value_name = "N", default_value = "2000", help_heading = "Limits")]
    touch_rate: NonZeroU32,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct Switch {
    /// Stop: nothing begins any more, wherever the autopilot runs. A change that is under way ends.
    #[arg(long, conflicts_with_all = ["apply", "once"])]
    stop: bool,
    /// Undo --stop.
    #[arg(long, conflicts_with_all = ["apply", "once"])]
    resume: bool,
    /// Show the last decision, the lease, and what is under way.
    #[arg(long, conflicts_with_all = ["apply", "once"])]
    status: bool,
}

/// What is measured, and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "Load")]
pub(super) struct MeasureArgs {
    /// How much the share of documents counts.
    #[arg(long, value_name = "WEIGHT", default_value_t = 1.0)]
    documents: f64,
    /// How much the share of writes counts.
    #[arg(long, value_name = "WEIGHT", default_value_t = 1.0)]
    writes: f64,
    /// How much the share of searches counts.
    #[arg(long, value_name = "WEIGHT", default_value_t = 1.0)]
    queries: f64,
    /// How many hours it looks ahead. With less than 24 the map follows day and night.
    #[arg(long, value_name = "HOURS", default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=168))]
    horizon: u64,
    /// How the hours ahead become one number.
    #[arg(long, value_enum, default_value = "mean")]
    over: OverArg,
    /// Level of the smallest cells.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u8).range(4..=20))]
    finest: u8,
    /// How long counts of documents are used before all are read again.
    #[arg(long, value_name = "TIME", default_value = "6h", value_parser = humantime::parse_duration)]
    documents_every: Duration,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OverArg {
    Mean,
    Max,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
struct LimitArgs {
    /// Largest expected load over mean above which a change begins.
    #[arg(long, value_name = "RATIO", default_value_t = 1.25)]
    start_above: f64,
    /// Largest expected load over mean below which no further change follows.
    #[arg(long, value_name = "RATIO", default_value_t = 1.1)]
    stop_below: f64,
    /// The share of all documents that may move within 24 hours.
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = percent)]
    max_moved: f64,
    /// A change that improves largest load over mean by less is not made.
    #[arg(long, value_name = "RATIO", default_value_t = 0.02)]
    min_gain: f64,
    /// Time from the end of a change to the next.
    #[arg(long, value_name = "TIME", default_value = "6h", value_parser = humantime::parse_duration)]
    cool_down: Duration,
    /// When no change begins, in UTC; repeatable.
    #[arg(long, value_name = "FROM-TO")]
    quiet: Vec<QuietHours>,
    /// The fewest geoshards [default: as many as there are].
    #[arg(long, value_name = "N", requires = "max")]
    min: Option<usize>,
    /// The most geoshards [default: as many as there are].
    #[arg(long, value_name = "N", requires = "min")]
    max: Option<usize>,
    /// S2 level of the cells to cut between.
    #[arg(long, value_name = "N", default_value_t = 7)]
    level: u8,
    /// Split cells with more than this share of an average geoshard's load.
    #[arg(long, value_name = "PART", default_value_t = 0.25)]
    split: f64,
}

impl MeasureArgs {
    /// As options; refuses weights that are none.
    pub(super) fn options(&self) -> Result<MeasureOptions, Failure> {
        let weights = [self.documents, self.writes, self.queries];
        if weights.iter().any(|weight| !weight.is_finite() || *weight < 0.0)
            || weights.iter().sum::<f64>() <= 0.0
        {
            return Err(Failure::usage(anyhow!(
                "--documents, --writes and --queries are weights: give numbers from 0 on, one of them above 0"
            )));
        }
        let [documents, writes, queries] = weights;
        Ok(MeasureOptions {
            weights: Weights { documents, writes, queries },
            horizon: self.horizon,
            over: match self.over {
                OverArg::Mean => Over::Mean,
                OverArg::Max => Over::Max,
            },
            finest: self.finest,
            documents_every: self.documents_every,
        })
    }
}

impl LimitArgs {
    fn options(&self) -> Result<BalanceLimits, Failure> {
        let Self { start_above, stop_below, .. } = *self;
        if !(stop_below >= 1.0 && start_above >= stop_below && start_above.is_finite()) {
            return Err(Failure::usage(anyhow!(
                "--start-above {start_above} and --stop-below {stop_below}: give two numbers from 1 on, the second not above the first"
            )));
        }
        let counts = self.min.zip(self.max).map(|(min, max)| min..=max);
        Ok(BalanceLimits {
            start_above,
            stop_below,
            moved_per_day: self.max_moved,
            min_gain: self.min_gain,
            quiet: self.quiet.clone(),
            cool_down: self.cool_down.as_secs(),
            counts,
            cells: CellOptions { level: self.level, split_above: self.split },
        })
    }
}

pub(super) async fn autopilot(args: AutopilotArgs) -> Result<ExitCode, Failure> {
    let options = AutopilotOptions {
        apply: args.apply,
        once: args.once,
        interval: args.interval,
        lease: args.lease,
        measure: args.measure.options()?,
        limits: args.limits.options()?,
        touch_rate: args.touch_rate,
    };
    if args.lease < Duration::from_secs(1) {
        return Err(Failure::usage(anyhow!("--lease must be at least 1s; 30s is usual")));
    }
    let config = args.config.load()?;
    let stop = signals::stop_on_signal_or_hang_up()?;
    let runs = !(args.switch.stop || args.switch.resume || args.switch.status);
    if runs && !args.once {
        logging::start(&config)?;
    }
    let configured = connect::map(&config)?;
    let target = CheckTarget::new(&config, &configured).map_err(Failure::usage)?;
    let elastic: Arc<dyn Elastic> = Arc::new(connect::elasticsearch(&config)?);
    if args.apply {
        checked(&target, &*elastic).await?;
    }
    let metrics = AutopilotMetrics::new().context("registering metrics")?;
    let (supervisor, mut lost) = Supervisor::new();
    let server_stop = CancellationToken::new();
    if let Some(listen) = args.listen {
        serve(listen, metrics.clone(), server_stop.clone(), &supervisor).await?;
    }
    // A reader that went away is no reason to stop half-way.
    let meter = ProgressMeter::with(|line| drop(output::line(line)));
    let tell: Listener = Arc::new(move |progress: Progress<'_>| meter.tell(progress));
    let autopilot = Autopilot {
        name: name(),
        process: RandomState::new().hash_one(std::process::id()),
        clock: connect::clock(),
        config,
        elastic,
        configured,
        target,
        options,
        metrics,
        tell,
    };
    if args.switch.stop || args.switch.resume {
        let changed = autopilot.switch(args.switch.stop).await?;
        let what = if args.switch.stop { "stopped" } else { "not stopped" };
        output::line(format_args!(
            "the autopilot is {what}{}",
            if changed { "" } else { ", as it was before" }
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.switch.status {
        return status(&autopilot).await;
    }
    let json = args.json;
    let report = move |report: &AutopilotReport| drop(if json { output::json(report) } else { say(report) });
    let work = async { autopilot.run(&stop, report).await.map_err(Failure::from) };
    let result = lost.or_else_stop(&stop, work).await.unwrap_or_else(|lost| Err(lost.into()));
    server_stop.cancel();
    result.map(|()| ExitCode::SUCCESS)
}

/// As before `shards migrate`: an unusable index would be found half-way.
async fn checked(target: &CheckTarget, elastic: &dyn Elastic) -> Result<(), Failure> {
    let report = check::check(target, elastic).await;
    for finding in report.findings.iter().filter(|finding| finding.is_error() || finding.is_unreachable()) {
        output::line(finding)?;
    }
    match check::exit_code(&report.findings) {
        0 => Ok(()),
        _ => Err(anyhow!("nothing was started; fix the problems above, or run geofold check").into()),
    }
}

fn say(report: &AutopilotReport) -> Result<(), Failure> {
    output::line(&report.decision)?;
    match &report.proposal {
        Some(proposal) => output::line(proposal),
        None => Ok(()),
    }
}

async fn status(autopilot: &Autopilot) -> Result<ExitCode, Failure> {
    let (record, under_way) = autopilot.stored().await?;
    match &record.holder {
        Some(holder) => {
            output::line(format_args!("the lease is held by {}, for {} ms", holder.name, holder.lease_ms))?
        }
        None => output::line("nobody holds the lease")?,
    }
    if let Some(stopped) = &record.stopped {
        output::line(format_args!("stopped by {}; --resume goes on", stopped.by))?;
    }
    output::line(match under_way {
        UnderWay::Nothing => "no change is under way",
        UnderWay::NeverBegun => "a change was planned and did not begin: it is forgotten at the next start",
        UnderWay::Own => "a change is under way: an autopilot with --apply goes on with it",
        UnderWay::OwnReturns => "a change is being called off: an autopilot with --apply goes on with that",
        UnderWay::Ended => "a change has ended",
        UnderWay::CalledOff => "a change was called off",
        UnderWay::Foreign => "a change that the autopilot did not begin is under way: it is waited for",
    })?;
    let moved = record.history.moved_today(crate::io::load::unix_seconds());
    output::line(format_args!("{moved:.0} documents moved within 24 hours"))?;
    if let Some(last) = &record.last {
        output::line(format_args!("last decision: {}", last.decision))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn serve(
    listen: SocketAddr,
    metrics: Arc<AutopilotMetrics>,
    stop: CancellationToken,
    supervisor: &Supervisor,
) -> Result<(), Failure> {
    // It is alive and ready as long as its process answers: a turn that fails is counted, and the next one tries again.
    let ready = prometheus::IntGauge::new("ready", "not exported").context("a gauge")?;
    let health = Health::with_gauge(connect::clock(), ready, Duration::MAX);
    health.ready(Health::STARTUP);
    let routes = probe_routes(health, "the autopilot has made no progress", move || metrics.render());
    let options = ServerOptions {
        name: "autopilot",
        max_connections: 64,
        close_timeout: Duration::from_secs(1),
        tls: None,
    };
    admin::serve_with(options, listen, routes, stop, supervisor).await?;
    Ok(())
}

/// This process, for people: host and number.
fn name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("process {} on {}", std::process::id(), host.trim())
}
