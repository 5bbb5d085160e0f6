//! `geofold shards show | locate | create`.

use std::fmt::Display;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{ConfigArgs, Failure, connect, output};
use crate::geo::GeoPoint;
use crate::geoshard::describe;
use crate::indices;

/// Geoshards: create their indices, show the map, locate a point.
#[derive(Debug, Args)]
pub struct ShardsArgs {
    #[command(subcommand)]
    command: ShardsCommand,
}

#[derive(Debug, Subcommand)]
enum ShardsCommand {
    /// Create the indices that are missing: one per geoshard, and geofold's own two. What exists is never changed; where
    /// it differs from what geofold needs, that is said, and the exit code is 1.
    Create {
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Show the map's geoshards.
    Show {
        #[command(flatten)]
        config: ConfigArgs,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Say which geoshard a point belongs to.
    Locate {
        #[command(flatten)]
        config: ConfigArgs,
        /// Latitude in degrees, -90 to 90.
        #[arg(allow_negative_numbers = true)]
        lat: f64,
        /// Longitude in degrees, -180 to 180.
        #[arg(allow_negative_numbers = true)]
        lon: f64,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

pub async fn shards(args: ShardsArgs) -> Result<ExitCode, Failure> {
    match args.command {
        ShardsCommand::Create { config } => create(config).await,
        ShardsCommand::Show { config, json } => {
            let config = config.load()?;
            print(&describe::show(&*connect::map(&config)?, &config.elasticsearch.prefix), json)
        }
        ShardsCommand::Locate { config, lat, lon, json } => {
            let point = GeoPoint::new(lat, lon).map_err(Failure::usage)?;
            let config = config.load()?;
            print(&describe::locate(&*connect::map(&config)?, &config.elasticsearch.prefix, point), json)
        }
    }
}

fn print(value: &(impl Serialize + Display), json: bool) -> Result<ExitCode, Failure> {
    if json {
        output::json(value)?;
    } else {
        output::line(value)?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn create(config: ConfigArgs) -> Result<ExitCode, Failure> {
    let config = config.load()?;
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
