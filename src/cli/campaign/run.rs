//! `geofold campaign run` and `geofold campaign watch`.

use std::io::{IsTerminal, stderr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use futures::future::try_join_all;
use indicatif::{ProgressBar, ProgressStyle};

use super::{ConfigArgs, Failure, connect, create, open, refused, signals};
use crate::base::retry::RetryPolicy;
use crate::cli::audit::LONG;
use crate::cli::{reload, values};
use crate::io::send::Destinations;
use crate::ops::campaign::CampaignState;
use crate::ops::campaign::create::SortOptions;
use crate::ops::campaign::produce::Producing;
use crate::ops::campaign::run::{Ended, RunError, RunTimes, Runner};
use crate::ops::campaign::select::Selection;
use crate::ops::campaign::store::{CampaignStatus, CampaignStore, NewCampaign};
use crate::ops::campaign::watch::{ScheduledCampaign, Watch};
use crate::ops::group::stopped_partitions;
use crate::support::config::Config;
use crate::support::config::campaigns::CampaignDocuments;
use crate::support::supervisor::Supervisor;

/// Interval of progress updates.
const BAR_INTERVAL: Duration = Duration::from_secs(1);
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Bytes for sorting the ids of a periodic campaign.
const MEMORY: usize = 64 << 20;

/// Work on a campaign until nothing is left; may run concurrently on any machines.
///
/// Needs [database], Kafka, and Elasticsearch (for partitions of documents), and waits for them. SIGTERM or SIGINT:
/// finishes its chunk within shutdown.drain_timeout. SIGHUP: the same at a terminal; elsewhere reloads the configuration (as
/// does a change of the file with reload.interval) for log.filter. Killing is safe: when the lease (campaigns.lease_duration)
/// expires, another run sends the chunk again. Exit code 0: done without failures; 1: ids failed (see `campaign
/// status`, `campaign retry`), cancelled, or this run was stopped; 2: no such campaign.
#[derive(Debug, Args)]
pub(super) struct RunCampaignArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// The campaign's number.
    #[arg(value_parser = values::campaign)]
    id: i64,
}

/// Create and run the campaigns in [[campaigns.periodic]] at the start of each period; run those that requests have made.
///
/// Run two for availability: each period has one campaign, shared by all. While the last campaign of a name is not
/// over, none is added. The last five finished are kept. With campaigns.bearer_token, campaigns made by requests to a
/// collector (docs/campaigns.md) are run too, and forgotten a week after their end. SIGTERM or SIGINT: ends like `campaign run`, with exit code 0.
/// SIGHUP (or a change of the file with reload.interval): log.filter is reloaded; added campaigns wait for a restart.
#[derive(Debug, Args)]
pub(super) struct WatchArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) async fn run(args: RunCampaignArgs) -> Result<ExitCode, Failure> {
    let is_terminal = stderr().is_terminal();
    let (supervisor, mut lost) = Supervisor::new();
    let (config, stop) = match is_terminal {
        true => (args.config.load()?, signals::stop_on_signal_or_hang_up()?),
        false => (reload::begin(args.config, None, &supervisor).await?, signals::stop_on_signal()?),
    };
    let store = open(&config).await?;
    let status = store.status(args.id).await.map_err(refused)?;
    super::carries(&config, status.action)?;
    if status.broken_off {
        let error = anyhow!(
            "the writer of the list of campaign {} has died; cancel and remove it, then create it again",
            args.id
        );
        return Err(Failure::usage(error));
    }
    let runner = runner(&config, &store).await?;
    let bar = if is_terminal { Some(bar()) } else { None };
    let work = async {
        tokio::select! {
            ended = runner.run(args.id, &stop) => ended,
            never = show_progress(&store, args.id, bar.as_ref()) => match never {},
            never = name_stopped_partitions(&config) => match never {},
        }
    };
    let ended = lost.or_else_stop(&stop, work).await;
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let ended = match ended? {
        Err(error @ RunError::OtherTopic { .. }) => return Err(Failure::usage(error)),
        ended => ended?,
    };
    let status = store.status(args.id).await;
    store.close().await;
    let status = status?;
    eprintln!(
        "campaign {}: {} of {} ids sent, {} failed",
        status.id, status.produced, status.ids, status.failed
    );
    match ended {
        Ended::Over(CampaignState::Done) if status.failed == 0 => Ok(ExitCode::SUCCESS),
        Ended::Over(CampaignState::Done) => Err(anyhow!(
            "{} ids failed; `geofold campaign status {}` shows them, `campaign retry` tries them again",
            status.failed,
            status.id
        )
        .into()),
        Ended::Over(state) => Err(anyhow!("campaign {} is {state}", status.id).into()),
        Ended::Stopped => Err(anyhow!("stopped; repeat the command to continue").into()),
    }
}

async fn runner(config: &Config, store: &CampaignStore) -> Result<Runner, Failure> {
    connect::plain_keys(config, "a campaign")?;
    let retry = RetryPolicy { initial: config.retry.initial_backoff, max: config.retry.max_backoff };
    let properties = config.topic_producer_properties().into_iter().collect();
    let topic = config.kafka.topic.clone();
    let destinations = Destinations::new(config, Arc::new(connect::elasticsearch(config)?));
    let connecting =
        tokio::task::spawn_blocking(move || Producing::connect(&properties, &topic, destinations, retry));
    let producing = connecting.await.context("connecting to kafka")??;
    let times =
        RunTimes { lease: config.campaigns.lease_duration, drain: config.shutdown.drain_timeout, retry };
    Ok(Runner::new(store.clone(), producing, &config.kafka.topic, times))
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::no_length();
    let template = "{bar:30} {percent:>3} %  {human_pos} of {human_len} ids  {msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Warns once of each partition that is stopped, as far as workers can be asked: its records wait.
async fn name_stopped_partitions(config: &Config) -> std::convert::Infallible {
    let mut named = std::collections::BTreeSet::new();
    loop {
        for (partition, reason) in stopped_partitions(config).await {
            if named.insert(partition) {
                eprintln!(
                    "warning: partition {partition} is stopped: {reason}; records of this campaign wait there (geofold status)"
                );
            }
        }
        tokio::time::sleep(LOG_INTERVAL).await;
    }
}

/// Shows the progress of all runners together.
async fn show_progress(
    store: &CampaignStore,
    id: i64,
    bar: Option<&ProgressBar>,
) -> std::convert::Infallible {
    loop {
        // The runner reports database errors.
        if let Ok(status) = store.status(id).await {
            match bar {
                Some(bar) => {
                    bar.set_length(status.ids.unsigned_abs());
                    bar.set_position(status.done().unsigned_abs());
                    bar.set_message(in_short(&status));
                }
                None => tracing::info!(
                    campaign = id,
                    state = status.state.as_str(),
                    ids = status.ids,
                    sent = status.produced,
                    failed = status.failed,
                    "{}",
                    in_short(&status)
                ),
            }
        }
        tokio::time::sleep(if bar.is_some() { BAR_INTERVAL } else { LOG_INTERVAL }).await;
    }
}

fn in_short(status: &CampaignStatus) -> String {
    let mut text = match status.state {
        CampaignState::Ready => format!("{:.0}/s", status.rate),
        state => state.to_string(),
    };
    if status.failed > 0 {
        text.push_str(&format!(", {} failed", status.failed));
    }
    if let Some(seconds) = status.seconds_left {
        text.push_str(&format!(", {} left", super::show::duration(seconds)));
    }
    text
}

pub(super) async fn watch(args: WatchArgs) -> Result<ExitCode, Failure> {
    let (supervisor, mut lost) = Supervisor::new();
    let config = reload::begin(args.config, None, &supervisor).await?;
    let stop = signals::stop_on_signal()?;
    let periodic: Result<Vec<ScheduledCampaign>, Failure> = config
        .campaigns
        .periodic
        .iter()
        .map(|periodic| {
            let (selection, in_words) = match &periodic.what {
                CampaignDocuments::All => (Selection::All, "all documents".to_owned()),
                CampaignDocuments::Shard(shard) => {
                    (Selection::Shards(vec![shard.clone()]), format!("geoshard {shard}"))
                }
                CampaignDocuments::Query(path) => {
                    (Selection::Query(create::query(path)?), format!("query {}", path.display()))
                }
            };
            let new = NewCampaign {
                may_be_empty: true,
                name: periodic.name.clone(),
                action: periodic.action,
                topic: config.kafka.topic.clone(),
                selection: in_words,
                chunk: config.campaigns.chunk_size,
                rate: periodic.rate,
                every: Some(periodic.interval),
                request: None,
            };
            Ok(ScheduledCampaign { new, selection })
        })
        .collect();
    let periodic = periodic?;
    let takes_requests = config.campaigns.bearer_token.is_some();
    if periodic.is_empty() && !takes_requests {
        return Err(Failure::usage(anyhow!(
            "there is nothing to watch; add [[campaigns.periodic]], or campaigns.bearer_token for requests to a collector"
        )));
    }
    for periodic in &config.campaigns.periodic {
        super::carries(&config, periodic.action)?;
    }
    let store = open(&config).await?;
    let runner = runner(&config, &store).await?;
    let elastic = connect::elasticsearch(&config)?;
    let watch = Watch {
        store: &store,
        runner: &runner,
        elastic: &elastic,
        prefix: &config.elasticsearch.prefix,
        timeout: config.elasticsearch.request_timeout.max(LONG),
        sort_options: SortOptions { folder: std::env::temp_dir(), memory: MEMORY },
        retry: RetryPolicy { initial: config.retry.initial_backoff, max: config.retry.max_backoff },
    };
    tracing::info!(runner = runner.name(), campaigns = periodic.len(), "geofold campaign watch begins");
    let watching = async {
        let scheduled = try_join_all(periodic.iter().map(|periodic| watch.run(periodic, &stop)));
        let requested = async { if takes_requests { watch.run_requested(&stop).await } else { Ok(()) } };
        futures::try_join!(scheduled, requested)
    };
    lost.or_else_stop(&stop, watching).await??;
    store.close().await;
    tracing::info!("geofold campaign watch ends");
    Ok(ExitCode::SUCCESS)
}
