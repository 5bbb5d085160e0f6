//! `geofold dry-run`.

use std::num::NonZeroU64;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use clap::Args;
use serde_json::json;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::{ConfigArgs, Failure, connect, output, signals};
use crate::base::retry::RetryPolicy;
use crate::core::mover::{MoverState, Rules};
use crate::core::placement::PlacementCache;
use crate::io::elastic::Elastic;
use crate::io::elastic::rounds::{self, RequestSender, Unobserved};
use crate::io::maps::MapsStore;
use crate::io::registry::Registry;
use crate::ops::dry_run::{DryRun, DryRunStep, Sums, reader};
use crate::support::config::{Config, DeadLetterPolicy};
use crate::worker::record::Record;

/// Maximum records per batch.
const AT_ONCE: usize = 500;

/// Maximum wait of a batch for more records.
const LINGER: Duration = Duration::from_millis(200);

/// Print what a worker would do with each record, and why, without writing anything.
///
/// Uses the worker's decoder and decisions and the current index; writes are remembered instead of sent, so that later
/// records see them. It joins no group and commits no offset. It cannot predict refusals by Elasticsearch, answers of
/// the source of truth (not asked), or folding. Exit code 1: a record would become a dead letter or stop its partition.
#[derive(Debug, Args)]
pub(super) struct DryRunArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Start: `committed` (the next records of a worker), `earliest`, or a time like 2026-11-21T08:00:00Z.
    #[arg(long, value_name = "PLACE", default_value = "committed", value_parser = parse_from)]
    from: reader::From,
    /// Maximum records to read.
    #[arg(long, value_name = "N", default_value = "1000")]
    limit: NonZeroU64,
    /// Print one JSON object per line, totals last.
    #[arg(long)]
    json: bool,
}

fn parse_from(text: &str) -> Result<reader::From, String> {
    match text {
        "committed" => return Ok(reader::From::Committed),
        "earliest" => return Ok(reader::From::Earliest),
        _ => {}
    }
    let time = humantime::parse_rfc3339_weak(text)
        .map_err(|_| "write committed, earliest, or a time like 2026-11-21T08:00:00Z".to_owned())?;
    let since = time.duration_since(UNIX_EPOCH).map_err(|_| "the time is before 1970".to_owned())?;
    i64::try_from(since.as_millis())
        .map(reader::From::Time)
        .map_err(|_| "the time is out of range".to_owned())
}

pub(super) async fn dry_run(args: DryRunArgs) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    let stop = signals::stop_on_signal_or_hang_up()?;
    let elastic: Arc<dyn Elastic> = Arc::new(connect::elasticsearch(&config)?);
    let prepared = tokio::select! {
        prepared = prepare(&config, elastic) => prepared,
        () = stop.cancelled() => Err(anyhow!("interrupted; nothing was read").into()),
    };
    let mut run = prepared?;
    let (sender, receiver) = mpsc::channel(AT_ONCE);
    let reading = {
        let (config, stop) = (config.clone(), stop.clone());
        let (from, limit) = (args.from, args.limit.get());
        tokio::task::spawn_blocking(move || reader::read(&config, from, limit, &sender, &stop))
    };
    let sums = look_at_all(&mut run, receiver, &stop, args.json).await?;
    reading.await.context("reading the topic")??;
    if args.json {
        output::line(json!({"sums": sums}))?;
    } else {
        output::line(&sums)?;
        if sums.records == 0 {
            eprintln!("no records from this start; use --from earliest to read the whole topic");
        }
    }
    Ok(if sums.is_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn prepare(config: &Config, elastic: Arc<dyn Elastic>) -> Result<DryRun, Failure> {
    let stored = MapsStore::new(&*elastic, &config.kafka.topic, config.elasticsearch.request_timeout)
        .read()
        .await
        .context("asking which maps are in force")?;
    let rules = connect::rules(config)?;
    let rules = Rules { map: stored.map_or(rules.map, |stored| stored.record.deciding().clone()), ..rules };
    let decoder = connect::decoder(config)?;
    let registry = match config.reads_registry() {
        true => Some(
            Registry::open(&config.schema_registry, None)
                .context("setting up the way to the schema registry")?,
        ),
        false => None,
    };
    let rounds = RequestSender {
        elastic,
        permits: Arc::new(Semaphore::new(config.elasticsearch.max_in_flight)),
        queue: None,
        server: Arc::default(),
        look: 0,
        limits: rounds::RequestLimits {
            max_operations: config.elasticsearch.request_max_operations,
            max_bytes: config.elasticsearch.request_max_bytes.as_usize(),
            request_timeout: config.elasticsearch.request_timeout,
        },
        retry: RetryPolicy { initial: config.retry.initial_backoff, max: config.retry.max_backoff },
        clock: connect::clock(),
        observer: Arc::new(Unobserved),
    };
    // The dry run keeps everything it read.
    let state = MoverState::new(rules, PlacementCache::new(std::num::NonZeroUsize::MIN));
    let stops = config.dead_letter.policy == DeadLetterPolicy::Stop;
    Ok(DryRun::new(rounds, decoder, state, stops, config.batch.timeout).with_registry(registry))
}

async fn look_at_all(
    run: &mut DryRun,
    mut records: mpsc::Receiver<(i32, Record)>,
    stop: &CancellationToken,
    json: bool,
) -> Result<Sums, Failure> {
    let mut sums = Sums::default();
    while !stop.is_cancelled() {
        let batch = next_batch(&mut records).await;
        if batch.is_empty() {
            break;
        }
        for step in run.run(batch).await? {
            sums.add(&step);
            print(&step, json)?;
        }
        if run.is_full() {
            eprintln!(
                "stopped here: the documents read so far fill the memory of a dry run; give a smaller --limit"
            );
            break;
        }
    }
    Ok(sums)
}

/// The next record and those that arrive within `LINGER`; empty at the end.
async fn next_batch(records: &mut mpsc::Receiver<(i32, Record)>) -> Vec<(i32, Record)> {
    let mut batch = Vec::new();
    let Some(first) = records.recv().await else { return batch };
    batch.push(first);
    let until = tokio::time::Instant::now() + LINGER;
    while batch.len() < AT_ONCE {
        match tokio::time::timeout_at(until, records.recv()).await {
            Ok(Some(record)) => batch.push(record),
            Ok(None) | Err(_) => break,
        }
    }
    batch
}

fn print(step: &DryRunStep, json: bool) -> Result<(), Failure> {
    if json {
        return output::line(serde_json::to_string(step).context("writing JSON")?);
    }
    output::line(step)
}
