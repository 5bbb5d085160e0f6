//! `geofold shards locate`.

use std::process::ExitCode;

use clap::Args;

use super::{ConfigArgs, Failure, connect, output};
use crate::base::geo::GeoPoint;
use crate::cli::values;
use crate::geoshard::describe;

/// Show the geoshard of a point.
#[derive(Debug, Args)]
pub(super) struct LocateArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Latitude in degrees, -90 to 90.
    #[arg(allow_negative_numbers = true, value_parser = values::degrees)]
    lat: f64,
    /// Longitude in degrees, -180 to 180.
    #[arg(allow_negative_numbers = true, value_parser = values::degrees)]
    lon: f64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn locate(args: LocateArgs) -> Result<ExitCode, Failure> {
    let point = GeoPoint::new(args.lat, args.lon).map_err(Failure::usage)?;
    let config = args.config.load()?;
    output::text_or_json(
        &describe::locate(&*connect::map(&config)?, &config.elasticsearch.prefix, point),
        args.json,
    )
}
