//! `geofold collect`.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{ConfigArgs, Failure, certificates, connect, reload, signals};
use crate::base::retry::RetryPolicy;
use crate::io::database::Database;
use crate::ops::admin;
use crate::ops::campaign::http::CampaignRoutes;
use crate::ops::campaign::store::CampaignStore;
use crate::ops::tally::collect::http::{self, CloudState};
use crate::ops::tally::collect::store::CountStore;
use crate::ops::tally::collect::{Allowances, Collector, DATABASE, Notifier};
use crate::support::config::Config;
use crate::support::supervisor::Supervisor;
use crate::support::telemetry::collector::CollectorMetrics;
use crate::support::telemetry::health::Health;

/// `/healthz` fails after this long without progress. No wait of the collector is longer.
const MAX_SILENCE: Duration = Duration::from_secs(120);

/// Merge increments into live counts. Run two or three; one merges at a time.
///
/// Workers with [tally] send changes of counts to the topic of increments; collectors apply each exactly once to
/// [database] and take over from each other within seconds. SIGTERM or SIGINT: steps down and exits with 0; kill -9 is
/// safe. SIGHUP (or a change of the file with reload.interval) reloads log.filter. With campaigns.bearer_token it also takes
/// campaigns by HTTP (docs/campaigns.md).
///
/// An invalid increment, or increments deleted before they were merged, end it with exit code 1 and instructions, since
/// counts need every increment.
#[derive(Debug, Args)]
pub(super) struct CollectArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Skip the record at this position of the topic of increments if it is not an increment; repeatable.
    #[arg(long, value_name = "PARTITION:OFFSET", value_parser = place)]
    skip: Vec<(i32, i64)>,
    /// Continue although increments were lost; counts are wrong until a recount.
    #[arg(long)]
    accept_loss: bool,
}

fn place(text: &str) -> anyhow::Result<(i32, i64)> {
    let (partition, offset) = text.split_once(':').context("write it like 3:1234567")?;
    Ok((partition.parse()?, offset.parse()?))
}

pub(super) async fn collect(args: CollectArgs) -> Result<ExitCode, Failure> {
    let metrics = CollectorMetrics::new().context("registering metrics")?;
    let (supervisor, mut lost) = Supervisor::new();
    let config = reload::begin(args.config, Some(metrics.reload.clone()), &supervisor).await?;
    let stop = signals::stop_on_signal()?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), pid = std::process::id(), "geofold collect starts");
    tracing::info!("configuration:\n{}", config.to_redacted_toml());
    if !config.tally.is_on() {
        tracing::warn!(
            "[tally] counts nothing: workers with this configuration send no increments; set tally.facets or tally.geoshard"
        );
    }
    let health = Health::with_gauge(connect::clock(), metrics.ready.clone(), MAX_SILENCE);
    let (latest, reader) = watch::channel(None);
    let admin_stop = CancellationToken::new();
    let state =
        CloudState::new(reader, config.collector.top, metrics.clone(), health.clone(), admin_stop.clone());
    let campaigns = CampaignRoutes::new(&config, &supervisor, stop.clone());
    let mut routes = http::routes(state);
    if let Some(campaigns) = &campaigns {
        routes = routes.merge(campaigns.routes());
    }
    let tls = certificates::followed(config.collector.tls_files(), "collector", &supervisor, &admin_stop)?;
    let (_, server) =
        admin::serve_tls(tls, config.collector.listen, routes, admin_stop.clone(), &supervisor).await?;

    let allowances =
        Allowances { skip: args.skip.into_iter().collect::<BTreeSet<_>>(), accept_loss: args.accept_loss };
    let told = stop.clone();
    let work = async {
        let Some(database) = open(&config, &health, &stop).await? else { return Ok(()) };
        if let Some(campaigns) = campaigns {
            let store = CampaignStore::new(database.clone());
            store.prepare().await?;
            campaigns.open(store);
        }
        let notifier = Notifier::start(&config, metrics.clone(), &supervisor)
            .map_err(|error| anyhow!("could not create the kafka producer: {error}; check [kafka]"))
            .map_err(Failure::usage)?;
        let store = CountStore::new(database.clone(), config.collector.top, config.collector.keep_versions);
        let collector = Collector {
            store,
            allowances,
            metrics: metrics.clone(),
            health: Arc::clone(&health),
            latest,
            notifier,
            stop,
        };
        let result = collector.run(&config).await;
        database.close().await;
        Ok(result?)
    };
    let result: Result<(), Failure> =
        lost.or_else_stop(&told, work).await.unwrap_or_else(|lost| Err(lost.into()));
    admin_stop.cancel();
    // What it was asked is answered or given up; its result does not matter at exit.
    let _ = server.await;
    if result.is_ok() {
        tracing::info!("geofold collect ends");
    }
    result.map(|()| ExitCode::SUCCESS)
}

/// Opens the database: retries while it is unreachable, fails if it refuses. `None` if stopped meanwhile.
async fn open(
    config: &Config,
    health: &Health,
    stop: &CancellationToken,
) -> Result<Option<Database>, Failure> {
    let mut delays =
        RetryPolicy { initial: config.retry.initial_backoff, max: config.retry.max_backoff }.delays();
    loop {
        match Database::open(&config.database).await {
            Ok(database) => return Ok(Some(database)),
            Err(error) if error.is_passing() => {
                let delay = delays.next(None);
                tracing::warn!(%error, ?delay, "waiting to start");
                health.not_ready(DATABASE, error.to_string());
                tokio::select! {
                    () = tokio::time::sleep(delay) => {}
                    () = stop.cancelled() => return Ok(None),
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}
