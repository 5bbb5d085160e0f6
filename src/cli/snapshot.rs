//! `geofold snapshot`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::{ConfigArgs, Failure, connect, output, signals};
use crate::cli::progress::ProgressMeter;
use crate::ops::snapshot::{SnapshotPlace, Snapshots};

/// Take a snapshot of all indices that geofold restore can go on from, while producers write and searches are served.
///
/// The repository must be registered with Elasticsearch. First everything is copied while workers write; then writes are blocked, workers
/// wait as in an outage, and what changed meanwhile is copied. Take it regularly: a topic has to keep all records since the snapshot that
/// is restored. SIGTERM and Ctrl-C end the block first. Exit code 0: the snapshot can be restored.
#[derive(Debug, Args)]
#[command(after_help = "Example: geofold snapshot nightly/geofold-2026-11-26 -c geofold.toml")]
pub(super) struct SnapshotArgs {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    what: What,
    /// How long writes may be blocked; then the snapshot is deleted and writes go on.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = humantime::parse_duration)]
    max_pause: Duration,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct What {
    /// Repository and name of the new snapshot.
    #[arg(value_name = "REPOSITORY/NAME")]
    place: Option<SnapshotPlace>,
    /// End the block that a killed geofold snapshot has left.
    #[arg(long)]
    unblock: bool,
}

pub(super) async fn snapshot(args: SnapshotArgs) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    let stop = signals::stop_on_signal_or_hang_up()?;
    let elastic = connect::patient_elasticsearch(&config)?;
    let meter = ProgressMeter::new();
    let tell = |progress: crate::base::progress::Progress<'_>| meter.tell(progress);
    let snapshots = Snapshots { config: &config, elastic: &*elastic, tell: &tell, stop };
    match args.what.place {
        Some(place) => {
            let taken = snapshots.take(&place, args.max_pause).await?;
            meter.end();
            output::line(taken)?;
        }
        None => output::line(format_args!("{} indices take writes again", snapshots.unblock().await?))?,
    }
    Ok(ExitCode::SUCCESS)
}
