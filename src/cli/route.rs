//! `geofold route`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{ConfigArgs, Failure, certificates, connect, reload, signals};
use crate::io::elastic::Elastic;
use crate::io::load::{LoadKeeper, LoadSender};
use crate::io::maps::{MapsReader, MapsRecord, Watcher};
use crate::ops::admin::{ServerOptions, serve_with};
use crate::route::hedge::Hedging;
use crate::route::http::{self, RouteState};
use crate::route::load::SearchLoad;
use crate::route::service::{Places, Service};
use crate::route::upstream::Upstream;
use crate::support::config::{Config, RouteConfig, RouteCredentials};
use crate::support::supervisor::Supervisor;
use crate::support::telemetry::health::Health;
use crate::support::telemetry::route::RouteMetrics;
use crate::support::telemetry::traces::Traces;

/// The router is taken for hung by `/healthz` if nothing of it has run for so long.
const MAX_SILENCE: Duration = Duration::from_secs(30);
/// How often readiness is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// How often the load is written to its file.
const LOAD_INTERVAL: Duration = Duration::from_secs(60);
/// How often counts are handed to the task that adds them to the shared record.
const HAND_OVER: Duration = Duration::from_secs(5);
/// Of clients; further ones wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 4096;
/// The part of the health that is about the maps.
const MAPS: &str = "maps";

/// Answer searches over the geoshards by one address, as if they were one index.
///
/// Point an Elasticsearch client at it, and search the index that is called like elasticsearch.prefix. It finds the geo constraint
/// of a query, asks only the geoshards that it covers, and merges what they answer; of a document that is just moving it keeps
/// the newer copy. docs/route.md says what it takes and what it refuses. It keeps no state: run as many as you like.
///
/// SIGTERM or SIGINT: requests under way are answered, further ones refused with 503, and it exits with 0. SIGHUP: the
/// configuration is read again, as it is when the file changes, with reload.interval; log.filter is followed.
#[derive(Debug, Args)]
pub(super) struct RouteArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Address to listen on, in place of route.listen.
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
}

pub(super) async fn route(args: RouteArgs) -> Result<ExitCode, Failure> {
    let metrics = RouteMetrics::new().context("registering metrics")?;
    let (supervisor, mut lost) = Supervisor::new();
    let config = reload::begin(args.config, Some(metrics.reload.clone()), &supervisor).await?;
    let stop = signals::stop_on_signal()?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), pid = std::process::id(), "geofold route starts");
    tracing::info!("configuration:\n{}", config.to_redacted_toml());
    let traces = Traces::from_env(&config.kafka.topic, &config.kafka.group_id).map_err(Failure::usage)?;
    let clock = connect::clock();
    let health = Health::with_gauge(clock.clone(), metrics.ready.clone(), MAX_SILENCE);
    let own: Arc<dyn Elastic> = Arc::new(connect::elasticsearch(&config)?);
    let configured = MapsRecord::unwritten(connect::map(&config)?, config.positions.epoch);
    let (watcher, maps) = Watcher::new(
        own.clone(),
        &config.kafka.topic,
        configured,
        config.batch.timeout,
        clock,
        metrics.maps.clone(),
    );
    let service = Arc::new(service(&config, maps.clone(), metrics)?);
    let state = RouteState {
        service: service.clone(),
        prefix: config.elasticsearch.prefix.as_str().into(),
        health: health.clone(),
        traces: traces.clone(),
        is_draining: Arc::new(AtomicBool::new(false)),
        under_way: TaskTracker::new(),
    };
    let server_stop = CancellationToken::new();
    let options = ServerOptions {
        name: "router",
        max_connections: MAX_CONNECTIONS,
        close_timeout: config.route.timeout,
        tls: certificates::followed(config.route.tls_files(), "router", &supervisor, &server_stop)?,
    };
    let listen = args.listen.unwrap_or(config.route.listen);
    let (_, server) =
        serve_with(options, listen, http::routes(state.clone()), server_stop.clone(), &supervisor).await?;

    let load = config.load.is_on().then(|| {
        let (topic, timeout) = (&config.kafka.topic, config.elasticsearch.request_timeout);
        let (keeper, to) = LoadKeeper::new(own, topic, timeout, config.load.interval, maps.clone());
        let keeping = supervisor.spawn("load", server_stop.clone(), keeper.run(server_stop.clone()));
        (keeping, to)
    });
    let (keeping, to) = load.unzip();

    let told = stop.clone();
    let work = async {
        if let Some(to) = to.clone() {
            let handing_over = hand_over(service.clone(), to, server_stop.clone());
            supervisor.spawn("load to hand over", server_stop.clone(), handing_over);
        }
        supervisor.spawn("map watcher", server_stop.clone(), watcher.run(server_stop.clone()));
        supervisor.spawn("readiness", server_stop.clone(), look(health.clone(), maps, server_stop.clone()));
        if let Some(path) = config.route.load_file.clone() {
            let writing = write_load(service.clone(), path, server_stop.clone());
            supervisor.spawn("load file", server_stop.clone(), writing);
        }
        stop.cancelled().await;
        drain(&state, &health, config.route.timeout).await;
        Ok::<(), Failure>(())
    };
    let result: Result<(), Failure> =
        lost.or_else_stop(&told, work).await.unwrap_or_else(|lost| Err(lost.into()));
    if let Some(to) = &to {
        service.load.hand_over(to);
    }
    server_stop.cancel();
    if let Some(keeping) = keeping {
        // A measurement: what is lost of it changes nothing.
        let _ = keeping.await;
    }
    // The server only answers questions; how it ended changes nothing.
    let _ = server.await;
    traces.flush().await;
    if let Some(path) = &config.route.load_file {
        write(&service, path);
    }
    if result.is_ok() {
        tracing::info!("geofold route ends");
    }
    result.map(|()| ExitCode::SUCCESS)
}

/// Takes no further requests, and waits for those under way.
async fn drain(state: &RouteState, health: &Health, most: Duration) {
    // Load balancers see the probe fail; clients that connect meanwhile get 503.
    state.is_draining.store(true, Ordering::Relaxed);
    health.not_ready(Health::SHUTDOWN, "it is stopping");
    tracing::info!(under_way = state.under_way.len(), "stopping: requests under way are answered");
    state.under_way.close();
    if tokio::time::timeout(most, state.under_way.wait()).await.is_err() {
        let under_way = state.under_way.len();
        tracing::warn!(under_way, "requests are still under way; stopping anyway");
    }
}

/// What answers searches, by this configuration.
pub(super) fn service(
    config: &Config,
    maps: MapsReader,
    metrics: Arc<RouteMetrics>,
) -> Result<Service, Failure> {
    let passes_credentials = config.route.credentials == RouteCredentials::Pass;
    let elastic = match passes_credentials {
        true => connect::elasticsearch_as(config, None)?,
        false => connect::elasticsearch(config)?,
    };
    let max_bytes = config.route.response_max_bytes.as_usize();
    // A cover may be used for no longer than a batch deadline. A worker's short one is no mistake of a configuration that never
    // mentions the router.
    let options =
        RouteConfig { timeout: config.route.timeout.min(config.batch.timeout), ..config.route.clone() };
    Ok(Service {
        places: Places::new(&options),
        options,
        location: config.documents.searched(),
        search_grace: config.moves.search_grace,
        maps,
        upstream: Upstream {
            elastic,
            passes_credentials,
            max_bytes,
            hedging: config.route.hedge_after.map(Hedging::new),
            metrics: metrics.clone(),
        },
        metrics,
        load: if config.load.is_on() { SearchLoad::shared(config.load.level) } else { SearchLoad::default() },
        clock: connect::clock(),
    })
}

/// Ready while it is known which maps are live.
async fn look(health: Arc<Health>, maps: MapsReader, stop: CancellationToken) {
    loop {
        health.poll_heartbeat();
        match maps.is_fresh() {
            true => {
                health.ready(MAPS);
                health.ready(Health::STARTUP);
            }
            false => health.not_ready(MAPS, "elasticsearch does not tell which map is live"),
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

/// Gives the searches of this router to the record that workers and routers share.
async fn hand_over(service: Arc<Service>, to: LoadSender, stop: CancellationToken) {
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(HAND_OVER) => service.load.hand_over(&to),
        }
    }
}

async fn write_load(service: Arc<Service>, path: PathBuf, stop: CancellationToken) {
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOAD_INTERVAL) => {}
        }
        let (service, path) = (service.clone(), path.clone());
        // It waits for the disk. A panic in it was reported where it happened.
        let _ = tokio::task::spawn_blocking(move || write(&service, &path)).await;
    }
}

fn write(service: &Service, path: &std::path::Path) {
    if let Err(error) = service.load.write(path, service.clock.now()) {
        let path = path.display();
        tracing::warn!(%error, "writing the load to route.load_file {path}; check its folder and permissions");
    }
}
