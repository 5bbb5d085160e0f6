//! `geofold check`.

use std::process::ExitCode;

use clap::Args;

use super::{ConfigArgs, Failure, connect, output};
use crate::check::{self, CheckTarget};

/// Validate the configuration, dial both ends, and say what is wrong and what to do.
///
/// One line per finding. Nothing is changed but for one document in the meta index, which is written and removed to see
/// whether that is allowed. A webhook is asked what it takes (OPTIONS), and told nothing; what collectors do to their
/// database is tried in a transaction that is taken back. Exit code 0: a worker could start (there may be warnings). 1:
/// something is wrong or does not answer. 2: the configuration can not be used.
#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print the findings as JSON.
    #[arg(long)]
    json: bool,
}

pub async fn check(args: CheckArgs) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    let target = CheckTarget::new(&config, &*connect::map(&config)?).map_err(Failure::usage)?;
    let elastic = connect::elasticsearch(&config)?;
    let (report, beside) = tokio::join!(check::check(&target, &elastic), check::look_beside(&config));
    let findings = [report.findings, beside].concat();
    if args.json {
        output::json(&findings)?;
    } else {
        for finding in &findings {
            output::line(finding)?;
        }
    }
    Ok(ExitCode::from(check::exit_code(&findings)))
}
