//! `geofold check`.

use std::process::ExitCode;

use clap::Args;

use super::{ConfigArgs, Failure};

/// Validate the configuration, dial both ends, and say what is wrong and what to do.
#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

pub async fn check(args: CheckArgs) -> Result<ExitCode, Failure> {
    let _ = args.config.load()?;
    Ok(ExitCode::SUCCESS)
}
