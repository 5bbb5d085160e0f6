//! `geofold restore`.

use std::process::ExitCode;

use clap::Args;

use super::{ConfigArgs, Failure, connect, output, signals};
use crate::cli::progress::ProgressMeter;
use crate::ops::snapshot::{SnapshotError, SnapshotPlace, Snapshots};

/// Replace all indices by those of a snapshot, and set the group back to go on from there, while producers write.
///
/// Only for a snapshot of geofold snapshot, and with all workers of the group stopped. Waits until nothing that they sent can arrive any
/// more, sets the group's offsets back, deletes all indices of the prefix, restores those of the snapshot. It may be killed; repeat the
/// command to continue. Then start the workers: they read again what was written since.
#[derive(Debug, Args)]
#[command(after_help = "Example: geofold restore nightly/geofold-2026-11-26 -c geofold.toml --yes")]
pub(super) struct RestoreArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Repository and name of the snapshot.
    #[arg(value_name = "REPOSITORY/NAME")]
    place: SnapshotPlace,
    /// Delete the existing indices.
    #[arg(long)]
    yes: bool,
}

pub(super) async fn restore(args: RestoreArgs) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    let stop = signals::stop_on_signal_or_hang_up()?;
    let elastic = connect::patient_elasticsearch(&config)?;
    let meter = ProgressMeter::new();
    let tell = |progress: crate::base::progress::Progress<'_>| meter.tell(progress);
    let snapshots = Snapshots { config: &config, elastic: &*elastic, tell: &tell, stop };
    let restored = match snapshots.restore(&args.place, args.yes).await {
        Err(error @ SnapshotError::WouldDelete { .. }) => return Err(Failure::usage(error)),
        restored => restored?,
    };
    meter.end();
    output::line(restored)?;
    if config.tally.is_on() {
        output::line(
            "counts: what is read again is counted again; recount once the workers have caught up (geofold audit --tally)",
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
