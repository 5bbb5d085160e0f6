//! `geofold where`.

use std::io::{IsTerminal, stderr};
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use super::{ConfigArgs, Failure, connect, output, signals};
use crate::base::ids::DocId;
use crate::io::elastic::Elastic;
use crate::ops::document::Lookup;
use crate::ops::records::Bound;

/// Show where a document is, and whether that is right.
///
/// Prints its location and the geoshard of that by each live map, its placement, every copy with its version (epoch:offset), the last
/// record of its key in the topic, and a verdict in one sentence. The topic is searched backwards from the end, down to the version in
/// the index. It changes nothing and joins no group. Exit code 0: the document is right; 1: it moves, waits or is wrong, or a server
/// does not answer.
#[derive(Debug, Args)]
pub(super) struct WhereArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// The document's id.
    #[arg(value_name = "ID")]
    id: String,
    /// Do not read the topic.
    #[arg(long)]
    no_topic: bool,
    /// Maximum offsets to search in the topic.
    #[arg(long, value_name = "N", default_value = "1000000")]
    max_records: NonZeroU64,
    /// Maximum time of the search in the topic.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    max_time: Duration,
    /// Time until what looks wrong is read again.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    settle: Duration,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) async fn where_is(args: WhereArgs) -> Result<ExitCode, Failure> {
    let id = DocId::from_key(Some(args.id.as_bytes())).map_err(Failure::usage)?;
    let config = args.config.load()?;
    let stop = signals::stop_on_signal_or_hang_up()?;
    let location = connect::location(&config)?;
    let elastic: Arc<dyn Elastic> = Arc::new(connect::elasticsearch(&config)?);
    let maps = connect::maps_record(&config, &*elastic).await?;
    let bound = Bound { records: args.max_records.get(), time: args.max_time };
    let lookup = Lookup {
        config: &config,
        elastic,
        maps: &maps,
        location: &location,
        topic: (!args.no_topic).then_some(bound),
        settle: args.settle,
        timeout: config.elasticsearch.request_timeout,
        stop: stop.clone(),
    };
    let is_terminal = stderr().is_terminal();
    let say = move |done: u64, most: u64| {
        if is_terminal {
            eprint!("\r{done} of at most {most} records read");
        }
    };
    let report = lookup.run(&id, say).await;
    if is_terminal {
        // Ends the line of progress, if there is one.
        eprint!("\r\x1b[K");
    }
    let report = report?;
    let is_right = report.verdict.is_right();
    output::text_or_json(&report, args.json)?;
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
