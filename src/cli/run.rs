//! `geofold run`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio_util::sync::CancellationToken;

use super::{ConfigArgs, Failure, connect, signals};
use crate::admin::{self, AdminState, Health};
use crate::check::CheckTarget;
use crate::clock::Clock;
use crate::config::{Config, LogFormat};
use crate::telemetry::{Metrics, logging};
use crate::worker::{self, Surroundings, preflight};

/// A poll thread that has not polled for this long is taken for hung by `/healthz`. It may wait as long as a revoked
/// partition may finish its batch, so that is added.
const MAX_POLL_SILENCE: Duration = Duration::from_secs(30);

/// Run a worker: one member of the consumer group.
///
/// It reads the topic's partitions that the group gives it until it is told to stop. SIGTERM or SIGINT: it writes what
/// is dirty, commits, leaves the group, and exits with 0. A second signal exits at once (130), which loses nothing: the
/// next owner reads again what was not committed. Kill -9 is as safe.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

pub async fn run(args: RunArgs) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    start_logging(&config)?;
    let stop = signals::stop_on_signal()?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), pid = std::process::id(), "geofold starts");
    tracing::info!("configuration:\n{}", config.to_redacted_toml());

    let clock = connect::clock();
    let metrics = Metrics::new().context("registering metrics")?;
    let health = Health::new(clock.clone(), metrics.clone(), MAX_POLL_SILENCE + config.shutdown.revoke);
    let admin_stop = CancellationToken::new();
    let state = AdminState { metrics: metrics.clone(), health: health.clone() };
    let (_, admin_server) =
        admin::serve(config.admin.listen, admin::routes(state), admin_stop.clone()).await?;

    let result = work(&config, clock, metrics, health, stop).await;
    admin_stop.cancel();
    // The server only answers questions; how it ended changes nothing.
    let _ = admin_server.await;
    if result.is_ok() {
        tracing::info!("geofold ends");
    }
    result.map(|()| ExitCode::SUCCESS)
}

async fn work(
    config: &Config,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    stop: CancellationToken,
) -> Result<(), Failure> {
    let elastic = Arc::new(connect::elasticsearch(config)?);
    let rules = connect::rules(config)?;
    let target = CheckTarget::new(config, &rules.map).map_err(Failure::usage)?;
    let topic = tokio::select! {
        topic = preflight::pass(&target, &*elastic, &config.retry, &health) => topic?,
        () = stop.cancelled() => return Ok(()),
    };
    let partitions = topic.partitions;
    let surroundings = Surroundings { elastic, rules, partitions, clock, metrics, health, stop };
    Ok(worker::run(config, surroundings).await?)
}

fn start_logging(config: &Config) -> Result<(), Failure> {
    let format = match config.log.format {
        LogFormat::Text => logging::LogFormat::Text,
        LogFormat::Json => logging::LogFormat::Json,
    };
    logging::init(format, &config.log.filter).map_err(Failure::usage)
}
