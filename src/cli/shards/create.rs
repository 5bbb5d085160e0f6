//! `geofold shards create`.

use std::process::ExitCode;

use clap::Args;

use super::{ConfigArgs, Failure, connect, output};
use crate::cli::progress::ProgressMeter;
use crate::io::indices;

/// Create missing indices: one per geoshard and two internal ones. Existing indices are never changed; differences from
/// the requirements (exit code 1) or from the index template are reported.
#[derive(Debug, Args)]
pub(super) struct CreateShardsArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) async fn create(args: CreateShardsArgs) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    let (elastic, wanted) = (connect::elasticsearch(&config)?, connect::wanted_indices(&config)?);
    let prefix = &config.elasticsearch.prefix;
    let meter = ProgressMeter::new();
    let timeout = config.elasticsearch.request_timeout;
    let report =
        indices::create_missing(&elastic, prefix, &wanted, timeout, &|progress| meter.tell(progress)).await?;
    meter.end();
    output::line(format_args!(
        "{} indices created, {} were there",
        report.created.len(),
        report.existing.len()
    ))?;
    for difference in &report.differences {
        output::line(format_args!("{}: {}", difference.index, difference.problem))?;
    }
    let is_wrong = report.differences.iter().any(|difference| !difference.problem.is_warning());
    Ok(if is_wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
