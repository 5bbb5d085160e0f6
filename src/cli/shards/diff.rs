//! `geofold shards diff`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::input::RowArgs;
use super::{Failure, output};
use crate::geoshard::GeoshardMap;
use crate::geoshard::diff::Comparison;

/// Show which parts of the globe, and with --points which load, change geoshard between two maps.
#[derive(Debug, Args)]
pub(super) struct DiffArgs {
    /// The map before.
    old: PathBuf,
    /// The map after.
    new: PathBuf,
    /// Points with a load, as for `shards plan`; `-` is standard input.
    #[arg(long, value_name = "FILE", help_heading = "Load")]
    points: Option<PathBuf>,
    #[command(flatten, next_help_heading = "Load")]
    rows: RowArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn diff(args: &DiffArgs) -> Result<ExitCode, Failure> {
    let load = |path: &Path| GeoshardMap::load(path).map_err(Failure::usage);
    let (old, new) = (load(&args.old)?, load(&args.new)?);
    let mut comparison = Comparison::new(&old, &new);
    if let Some(points) = &args.points {
        args.rows.read(points, |point, load| {
            comparison.add(point, load);
            Ok::<_, std::convert::Infallible>(())
        })?;
    }
    output::text_or_json(&comparison.finish(), args.json)
}
