//! `geofold shards migrate`.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;

use super::{ConfigArgs, Failure, connect, output};
use crate::base::progress::Progress;
use crate::cli::progress::ProgressMeter;
use crate::cli::{signals, values};
use crate::geoshard::GeoshardMap;
use crate::ops::check::{self, CheckTarget};
use crate::ops::migrate::{Listener, Migration};

/// Change the map while workers run and writes go on.
///
/// `--to FILE` creates missing indices, announces both maps to all workers, lets the new map decide once all have
/// confirmed, moves every document, and ends with the new map alone. It may be interrupted or killed; repeat the
/// command to continue. Workers need no restart; afterwards set geoshards.map of all of them. Exit code 0: completed.
#[derive(Debug, Args)]
pub(super) struct MigrateArgs {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    what: What,
    /// Maximum touches per second.
    #[arg(long, value_name = "N", default_value = "2000", value_parser = values::rate)]
    touch_rate: NonZeroU32,
    /// Read every document, not only those in places that change their geoshard: also moves documents misplaced for
    /// other reasons; takes time in proportion to all documents.
    #[arg(long)]
    scan_all: bool,
    /// Break this rule of the protocol.
    #[cfg(feature = "sabotage")]
    #[arg(long, value_name = "NAME", hide = true)]
    sabotage: Option<crate::base::sabotage::Sabotage>,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct What {
    /// New map: start or continue the change.
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// Show progress and missing confirmations.
    #[arg(long)]
    status: bool,
    /// Abort the change: return to the old map in the same way.
    #[arg(long)]
    abort: bool,
    /// Delete the empty indices of geoshards that only earlier maps had.
    #[arg(long)]
    retire: bool,
}

pub(super) async fn migrate(args: MigrateArgs) -> Result<ExitCode, Failure> {
    #[cfg(feature = "sabotage")]
    args.sabotage.into_iter().for_each(crate::base::sabotage::choose);
    let config = args.config.load()?;
    let stop = signals::stop_on_signal_or_hang_up()?;
    let configured = connect::map(&config)?;
    let location = connect::location(&config)?;
    let new = args.what.to.as_deref().map(GeoshardMap::load).transpose().map_err(Failure::usage)?;
    let target = CheckTarget::new(&config, &configured).map_err(Failure::usage)?;
    let elastic = connect::patient_elasticsearch(&config)?;
    // A closed pipe must not interrupt the change.
    let meter = Arc::new(ProgressMeter::with(|line| drop(output::line(line))));
    let told = meter.clone();
    let listener: Listener = Arc::new(move |progress: Progress<'_>| told.tell(progress));
    let work = async {
        if new.is_some() || args.what.abort {
            connect::warn_of_stops(&config, "a document that its new geoshard refuses");
        }
        if new.is_some() {
            let report = check::check(&target, &*elastic).await;
            let wrong = |finding: &&check::CheckFinding| finding.is_error() || finding.is_unreachable();
            for finding in report.findings.iter().filter(wrong) {
                output::line(finding)?;
            }
            if check::exit_code(&report.findings) != 0 {
                let message = "nothing was started; fix the problems above, or run geofold check";
                return Err(anyhow::anyhow!(message).into());
            }
        }
        let (clock, rate) = (connect::clock(), args.touch_rate);
        let migration =
            Migration::connect(&config, elastic, clock, configured, location, rate, listener).await?;
        let migration = migration.scanning_all(args.scan_all);
        if args.what.status {
            output::line(migration.status().await?)?;
        } else if args.what.abort {
            migration.abort().await?;
        } else if args.what.retire {
            let names = migration.retire().await?;
            meter.end();
            output::line(format_args!("{} indices deleted", names.len()))?;
        } else if let Some(new) = new {
            let wanted = target.wanted(new.shards()).map_err(Failure::usage)?;
            migration.forward(Arc::new(new), &wanted).await?;
            meter.end();
            output::line(
                "change completed; put the new map into geoshards.map of every worker, then run --retire",
            )?;
        }
        Ok(ExitCode::SUCCESS)
    };
    tokio::select! {
        ended = work => ended,
        () = stop.cancelled() => Err(anyhow::anyhow!("interrupted; repeat the command to continue").into()),
    }
}
