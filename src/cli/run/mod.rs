//! `geofold run`: what a worker consists of, from its configuration to its end.

mod admin;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::admin::Admin;
use super::reload::{self, ConfigFollower, InForce, OfWorker, Readers, WatchedFile};
use super::{ConfigArgs, Failure, connect, logging, signals};
use crate::core::mover::Rules;
use crate::io::elastic::Elastic;
use crate::io::elastic::repeat::RepeatedReads;
use crate::io::maps::{MapsRecord, Watcher};
use crate::io::meta::TopicFacts;
use crate::ops::audit::periodic::PeriodicAudit;
use crate::ops::check::CheckTarget;
use crate::ops::check::preflight;
use crate::support::config::Config;
use crate::support::supervisor::Supervisor;
use crate::support::telemetry::Metrics;
use crate::support::telemetry::health::Health;
use crate::support::telemetry::logging::Logging;
use crate::support::telemetry::traces::Traces;
use crate::worker::{self, WorkerDependencies};

/// `/healthz` fails if the poll thread has not polled for this long plus `shutdown.revoke_timeout`, for which it may wait while a
/// revoked partition finishes its batch.
const MAX_POLL_SILENCE: Duration = Duration::from_secs(30);

/// Run a worker, a member of the consumer group.
///
/// Runs until SIGTERM or SIGINT: then it writes what is dirty, commits, leaves the group, and exits with 0. A second
/// signal exits at once (130); that and kill -9 are safe: the next owner reads again what was not committed. SIGHUP
/// reloads the configuration (so does a change of the file with reload.interval): limits, rates and log.filter apply at
/// once, other changes are logged and need a restart. The map is changed by `geofold shards migrate`; another map in
/// the file is refused.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// End, as by kill -9, when this process does; it must be the parent. For `geofold demo`.
    #[arg(long, value_name = "PID", hide = true)]
    with_parent: Option<i32>,
    /// Break this rule of the protocol.
    #[cfg(feature = "sabotage")]
    #[arg(long, value_name = "NAME", hide = true)]
    sabotage: Option<crate::base::sabotage::Sabotage>,
}

pub(super) async fn run(args: RunArgs) -> Result<ExitCode, Failure> {
    if let Some(parent) = args.with_parent {
        end_with(parent)?;
    }
    #[cfg(feature = "sabotage")]
    args.sabotage.into_iter().for_each(crate::base::sabotage::choose);
    // From here on SIGHUP does not end the process.
    let hang_ups = signals::hang_ups()?;
    let file = WatchedFile::new(reload::digest(&args.config.config).await);
    let config = args.config.load()?;
    let map_file = WatchedFile::new(reload::digest(&config.geoshards.map).await);
    let Logging { recent, filter } = logging::start(&config)?;
    let stop = signals::stop_on_signal()?;
    let traces = Traces::from_env(&config.kafka.topic, &config.kafka.group_id).map_err(Failure::usage)?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        pid = std::process::id(),
        configuration = %args.config.config.display(),
        topic = config.kafka.topic,
        group = config.kafka.group_id,
        prefix = config.elasticsearch.prefix,
        "geofold starts"
    );
    tracing::debug!("configuration:\n{}", config.to_redacted_toml());

    let clock = connect::clock();
    let metrics = Metrics::new().context("registering metrics")?;
    let (in_force, Readers { config: now, limits, source, audit_rate }) = InForce::new(&config)?;
    let health =
        Health::new(clock.clone(), metrics.clone(), MAX_POLL_SILENCE + config.shutdown.revoke_timeout);
    let elastic: Arc<dyn Elastic> = Arc::new(connect::elasticsearch(&config)?.observed_by(metrics.clone()));
    let rules = connect::rules(&config)?;
    let configured = MapsRecord::unwritten(rules.map.clone(), config.positions.epoch);
    let (watcher, maps) = Watcher::new(
        elastic.clone(),
        &config.kafka.topic,
        configured,
        config.batch.timeout,
        clock.clone(),
        metrics.maps.clone(),
    );
    let follower = ConfigFollower {
        args: args.config,
        running: config.clone(),
        file,
        filter,
        worker: Some(OfWorker { in_force, maps: maps.clone(), map_file }),
        metrics: Some(metrics.reload.clone()),
    };
    let (supervisor, mut lost) = Supervisor::new();
    follower.start(hang_ups, &supervisor);
    let (partition_status, partition_status_reader) = watch::channel(Vec::new());
    let admin_stop = CancellationToken::new();
    let admin = Admin {
        config: &config,
        in_force: now,
        clock: clock.clone(),
        metrics: metrics.clone(),
        health: health.clone(),
        elastic: elastic.clone(),
        maps: maps.clone(),
        partition_status: partition_status_reader.clone(),
        recent,
    };
    let admin_server = admin.start(&supervisor, &admin_stop).await?;

    let stop_requested = stop.clone();
    let work = async {
        let Some(topic) = may_join(&config, &rules, &*elastic, &health, &stop).await? else { return Ok(()) };
        supervisor.spawn("map watcher", admin_stop.clone(), watcher.run(admin_stop.clone()));
        let periodic = config.audit.interval.map(|every| PeriodicAudit {
            config: config.clone(),
            every,
            elastic: Arc::new(RepeatedReads::new(elastic.clone())),
            location: rules.location.clone(),
            maps: maps.clone(),
            rate: audit_rate,
            partition_status: partition_status_reader,
            metrics: metrics.clone(),
        });
        let told = stop.clone();
        let dependencies = WorkerDependencies {
            elastic,
            rules,
            maps,
            limits,
            source,
            topic,
            clock,
            metrics,
            traces: traces.clone(),
            health,
            partition_status,
            stop,
            supervisor,
        };
        // Runs on this thread, which is otherwise idle, and ends with the worker at the latest.
        let auditing = async {
            if let Some(periodic) = periodic {
                periodic.run(told).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = worker::run(&config, dependencies) => Ok(ended?),
            () = auditing => Ok(()),
        }
    };
    let result: Result<(), Failure> =
        lost.or_else_stop(&stop_requested, work).await.unwrap_or_else(|lost| Err(lost.into()));
    admin_stop.cancel();
    // The server is read-only; its result does not matter at exit.
    let _ = admin_server.await;
    traces.flush().await;
    if result.is_ok() {
        tracing::info!("geofold ends");
    }
    result.map(|()| ExitCode::SUCCESS)
}

/// Asks the kernel to kill this process when its parent ends.
#[cfg(target_os = "linux")]
fn end_with(parent: i32) -> Result<(), Failure> {
    use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

    set_parent_process_death_signal(Some(Signal::KILL)).context("tying the worker to its parent")?;
    // The parent may have ended before the call.
    if getppid().map(Pid::as_raw_pid) != Some(parent) {
        return Err(
            anyhow::anyhow!("process {parent} is not the parent of this process, or has ended").into()
        );
    }
    Ok(())
}

/// No-op: only Linux supports it.
#[cfg(not(target_os = "linux"))]
fn end_with(_: i32) -> Result<(), Failure> {
    Ok(())
}

/// Retries the preflight check until it passes; `None` if stopped before that.
async fn may_join(
    config: &Config,
    rules: &Rules,
    elastic: &dyn Elastic,
    health: &Health,
    stop: &CancellationToken,
) -> Result<Option<TopicFacts>, Failure> {
    let target = CheckTarget::new(config, &rules.map).map_err(Failure::usage)?;
    tokio::select! {
        topic = preflight::pass(&target, elastic, &config.retry, health) => Ok(Some(topic?)),
        () = stop.cancelled() => Ok(None),
    }
}
