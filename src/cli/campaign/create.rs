//! `geofold campaign create`.

use std::fs::File;
use std::io::{BufRead, BufReader, stdin};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use clap::{ArgGroup, Args, ValueEnum};
use serde_json::Value;

use super::{ConfigArgs, Failure, connect, open, output, signals};
use crate::base::ids::ShardId;
use crate::base::progress::Progress;
use crate::cli::audit::LONG;
use crate::cli::progress::ProgressMeter;
use crate::cli::values;
use crate::geoshard::GeoshardMap;
use crate::ops::campaign::CampaignAction;
use crate::ops::campaign::create::{CreateError, IdSource, SortOptions, create as make};
use crate::ops::campaign::select::Selection;
use crate::ops::campaign::store::{MAX_NAME_BYTES, MAX_RATE, NewCampaign, is_name};
use crate::support::config::{ByteSize, Config};

/// Create a campaign; nothing happens to its documents until `campaign run`.
///
/// Ids are sorted and deduplicated within --memory, using temporary files. An incomplete list cannot run; after a crash
/// it is shown as broken, and `cancel` and `remove` delete it. Prints the campaign's number.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).args(["from", "shard", "all", "query", "map_diff"]))]
pub(super) struct CreateCampaignArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Action for each document: touch places it again, refeed reads it again from the source of truth ([source]),
    /// delete deletes it.
    #[arg(long, value_enum)]
    action: ActionArg,
    /// File of ids, one per line; `-` is standard input. A line that begins with `{` is JSON with "id", as `geofold
    /// audit --out` writes. Invalid ids are stored as failed.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Every document of this geoshard, by the placements; repeatable.
    #[arg(long, value_name = "ID")]
    shard: Vec<String>,
    /// Every document that is not deleted, by the placements.
    #[arg(long)]
    all: bool,
    /// Every document found by the Elasticsearch query in this JSON file, in any geoshard.
    #[arg(long, value_name = "FILE")]
    query: Option<PathBuf>,
    /// Every document whose geoshard differs between the two maps.
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"])]
    map_diff: Vec<PathBuf>,
    /// Display name; default: a description.
    #[arg(long)]
    name: Option<String>,
    /// Ids per chunk [default: campaigns.chunk_size], the unit that a killed run may send twice.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(crate::ops::campaign::chunk::MAX_IDS)))]
    chunk: Option<u32>,
    /// Maximum ids per second, all runs together; `campaign rate` changes it.
    #[arg(long, value_name = "N", value_parser = values::rate)]
    rate: Option<NonZeroU32>,
    /// Confirm --action delete with --all, or a campaign without documents.
    #[arg(long)]
    yes: bool,
    /// Start paused: runs wait until `campaign resume`.
    #[arg(long)]
    paused: bool,
    /// Memory for sorting ids.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    memory: ByteSize,
    /// Folder for temporary files, about the size of the ids.
    #[arg(long, value_name = "DIR")]
    temp_dir: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ActionArg {
    Touch,
    Refeed,
    Delete,
}

impl From<ActionArg> for CampaignAction {
    fn from(action: ActionArg) -> Self {
        match action {
            ActionArg::Touch => Self::Touch,
            ActionArg::Refeed => Self::Refeed,
            ActionArg::Delete => Self::Delete,
        }
    }
}

pub(super) async fn create(args: CreateCampaignArgs) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    let stop = signals::stop_on_signal_or_hang_up()?;
    let (new, selection) = wanted(&args, &config)?;
    let elastic = connect::patient_elasticsearch(&config)?;
    let source = match (selection, &args.from) {
        (Some(selection), _) => IdSource::Index {
            elastic: &*elastic,
            prefix: &config.elasticsearch.prefix,
            selection,
            timeout: config.elasticsearch.request_timeout.max(LONG),
        },
        (None, Some(path)) => IdSource::List(list(path)?),
        (None, None) => return Err(Failure::usage(anyhow!("no documents selected"))),
    };
    let store = open(&config).await?;
    let sort_options = SortOptions {
        folder: args.temp_dir.clone().unwrap_or_else(std::env::temp_dir),
        memory: args.memory.as_usize(),
    };
    let meter = ProgressMeter::new();
    let read = |done| meter.tell(Progress::Done { what: "documents read", done, of: None });
    let made = make(&store, &new, source, &sort_options, args.paused, &stop, &read).await;
    meter.end();
    store.close().await;
    let created = match made {
        Ok(Some(created)) => created,
        Ok(None) => return Err(anyhow!("this campaign was created concurrently").into()),
        Err(error @ CreateError::Empty) => {
            return Err(anyhow::Error::new(error).context("--yes makes an empty one").into());
        }
        Err(error @ CreateError::Interrupted) => return Err(error.into()),
        Err(error) => return Err(anyhow::Error::new(error).context("making a campaign").into()),
    };
    if args.json {
        output::json(&created)?;
    } else {
        output::line(format_args!(
            "campaign {}: {} ids of {} read{}; `geofold campaign run {}` begins it",
            created.id,
            created.ids,
            created.read,
            match created.bad {
                0 => String::new(),
                bad => format!(", {bad} of them invalid ids"),
            },
            created.id
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The campaign that the arguments ask for, and what it reads from Elasticsearch, if anything.
fn wanted(args: &CreateCampaignArgs, config: &Config) -> Result<(NewCampaign, Option<Selection>), Failure> {
    let action = CampaignAction::from(args.action);
    if args.all && action == CampaignAction::Delete && !args.yes {
        return Err(Failure::usage(anyhow!(
            "--all with --action delete deletes every document of {}; confirm it with --yes",
            config.kafka.topic
        )));
    }
    super::carries(config, action)?;
    let (selection, in_words) = which(args, config)?;
    let name = args.name.clone().unwrap_or_else(|| in_words.clone());
    if !is_name(&name) {
        return Err(Failure::usage(anyhow!("--name may have at most {MAX_NAME_BYTES} bytes and no NUL")));
    }
    if args.rate.is_some_and(|rate| rate.get() > MAX_RATE) {
        return Err(Failure::usage(anyhow!("--rate may be {MAX_RATE} at most")));
    }
    let new = NewCampaign {
        name,
        action,
        topic: config.kafka.topic.clone(),
        selection: in_words,
        chunk: args.chunk.unwrap_or(config.campaigns.chunk_size),
        rate: args.rate.map(NonZeroU32::get),
        every: None,
        request: None,
        may_be_empty: args.yes,
    };
    Ok((new, selection))
}

fn list(path: &Path) -> Result<Box<dyn BufRead + Send>, Failure> {
    const BUFFER: usize = 1 << 20;
    if path.as_os_str() == "-" {
        return Ok(Box::new(BufReader::with_capacity(BUFFER, stdin())));
    }
    let file =
        File::open(path).with_context(|| format!("opening {}", path.display())).map_err(Failure::usage)?;
    Ok(Box::new(BufReader::with_capacity(BUFFER, file)))
}

/// The selection to read from Elasticsearch, if any, and its description.
fn which(args: &CreateCampaignArgs, config: &Config) -> Result<(Option<Selection>, String), Failure> {
    if args.all {
        return Ok((Some(Selection::All), "all documents".to_owned()));
    }
    if !args.shard.is_empty() {
        let shards: Result<Vec<ShardId>, _> = args.shard.iter().map(|id| ShardId::new(id)).collect();
        let shards = shards.map_err(Failure::usage)?;
        return Ok((Some(Selection::Shards(shards)), format!("geoshards {}", args.shard.join(", "))));
    }
    if let Some(path) = &args.query {
        return Ok((Some(Selection::Query(query(path)?)), format!("query {}", path.display())));
    }
    if let [old, new] = args.map_diff.as_slice() {
        let in_words = format!("from map {} to {}", old.display(), new.display());
        let location = connect::location(config)?;
        let map = |path: &Path| GeoshardMap::load(path).map(Arc::new).map_err(Failure::usage);
        return Ok((Some(Selection::MapDiff { old: map(old)?, new: map(new)?, location }), in_words));
    }
    let from = args.from.as_deref().unwrap_or(Path::new("-"));
    Ok((None, if from.as_os_str() == "-" { "a list".to_owned() } else { from.display().to_string() }))
}

/// Reads a query from a file: either a bare query or a search body with `query`.
pub(super) fn query(path: &Path) -> Result<Value, Failure> {
    let doing = || format!("reading the query in {}", path.display());
    let text = std::fs::read_to_string(path).with_context(doing).map_err(Failure::usage)?;
    let mut query: Value = serde_json::from_str(&text).with_context(doing).map_err(Failure::usage)?;
    let is_search = query.as_object().is_some_and(|search| search.len() == 1 && search.contains_key("query"));
    Ok(if is_search { query["query"].take() } else { query })
}
