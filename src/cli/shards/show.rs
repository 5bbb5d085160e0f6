//! `geofold shards show`.

use std::process::ExitCode;

use clap::Args;

use super::{ConfigArgs, Failure, connect, output};
use crate::geoshard::describe;

/// Show the map's geoshards.
#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub fn show(args: ShowArgs) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    output::text_or_json(&describe::show(&*connect::map(&config)?, &config.elasticsearch.prefix), args.json)
}
