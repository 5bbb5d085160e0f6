//! `geofold shards load`.

use std::fmt;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::plan::load_record;
use super::{ConfigArgs, Failure, connect, output};
use crate::geoshard::load::HotPlace;

/// Show the places with the most load, by what workers and routers counted.
///
/// Rates are those of the last day or two; the trend is the last hour or two over that.
#[derive(Debug, Args)]
pub(super) struct LoadArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// How many places.
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The hottest places.
#[derive(Debug, Serialize)]
struct Hottest {
    cells: usize,
    hottest: Vec<HotPlace>,
}

pub(super) async fn load(args: LoadArgs) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    let elastic = connect::elasticsearch(&config)?;
    let record = load_record(&config, &elastic).await?;
    let maps = connect::maps_record(&config, &elastic).await?;
    let hottest = record.hottest(maps.deciding(), args.top);
    let hottest = Hottest { cells: record.len(), hottest };
    output::text_or_json(&hottest, args.json)
}

impl fmt::Display for Hottest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} places; those with the most load:\n", self.cells)?;
        write!(f, "cell          lat      lon  shard       writes/s      bytes/s  searches/s  trend  place")?;
        for HotPlace { cell, place, lat, lon, shard, writes, bytes, queries, trend, .. } in &self.hottest {
            write!(
                f,
                "\n{cell:<8} {lat:>8.2} {lon:>8.2}  {shard:<8} {writes:>11.3} {bytes:>12.0} {queries:>11.3} {trend:>6.2}  {place}"
            )?;
        }
        Ok(())
    }
}
