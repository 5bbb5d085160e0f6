//! `geofold check`.

use std::process::ExitCode;

use clap::Args;

use super::{ConfigArgs, Failure, connect, output};
use crate::ops::check::{self, CheckTarget};

/// Check configuration, Kafka and Elasticsearch, and report problems with their solutions.
///
/// Prints one line per finding. It changes nothing except a test document in the meta index, written and removed.
/// Webhooks get only OPTIONS; database permissions are tested in a transaction that is rolled back. Exit code 0: a
/// worker could start (perhaps with warnings); 1: errors, or a server does not answer; 2: invalid configuration.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print the findings as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) async fn check(args: CheckArgs) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    let target = CheckTarget::new(&config, &*connect::map(&config)?).map_err(Failure::usage)?;
    let elastic = connect::elasticsearch(&config)?;
    let (report, beside) = tokio::join!(check::check(&target, &elastic), check::look_beside(&config));
    // Servers that do not answer are reported already.
    let group = match check::exit_code(&report.findings) {
        0 => check::look_at_group(&config, &elastic).await,
        _ => Vec::new(),
    };
    let findings = [report.findings, beside, group].concat();
    if args.json {
        output::json(&findings)?;
    } else {
        let colours = output::colours();
        for finding in &findings {
            output::line(finding.text(colours))?;
        }
    }
    Ok(ExitCode::from(check::exit_code(&findings)))
}
