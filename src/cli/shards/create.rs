//! `geofold shards create`.

use std::process::ExitCode;

use clap::Args;

use super::{ConfigArgs, Failure, connect, output};
use crate::indices;

/// Create the indices that are missing: one per geoshard, and geofold's own two. What exists is never changed; where it
/// differs from what geofold needs, that is said, and the exit code is 1; where it differs from the index template, that is
/// said too.
#[derive(Debug, Args)]
pub struct CreateArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

pub async fn create(args: CreateArgs) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    let (elastic, wanted) = (connect::elasticsearch(&config)?, connect::wanted_indices(&config)?);
    let prefix = &config.elasticsearch.prefix;
    let report =
        indices::create_missing(&elastic, prefix, &wanted, config.elasticsearch.request_timeout).await?;
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
