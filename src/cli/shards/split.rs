//! `geofold shards split` and `geofold shards merge`: the smallest changes of a map.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use super::input::RowArgs;
use super::plan::MapArgs;
use super::{ConfigArgs, Failure, output};
use crate::geoshard::GeoshardMap;
use crate::geoshard::plan::{CellLoads, CellOptions, ChangeError, MapChange, change};

const SPLIT_EXAMPLES: &str = "\
Examples:
  geofold shards split s07 people-today.csv --after map.json --out map-2.json
  geofold shards split s07 --from-index 'people-*' --after map.json --out map-2.json
  geofold shards migrate --to map-2.json";

const MERGE_EXAMPLES: &str = "\
Examples:
  geofold shards merge s03 s04 people-today.csv --after map.json --out map-2.json
  geofold shards merge s03 s04 --after map.json --out map-2.json      # s03 keeps its id
  geofold shards migrate --to map-2.json";

/// Split a geoshard into two of about the same load.
///
/// The border makes the halves as even as possible. The half with more load keeps the id, so only the other half's
/// documents move. All other geoshards stay as they are.
#[derive(Debug, Args)]
#[command(after_help = SPLIT_EXAMPLES)]
pub(super) struct SplitArgs {
    /// The geoshard's id.
    shard: String,
    #[command(flatten)]
    load: LoadArgs,
    /// S2 level of the cells to cut between: 7 is about 70 km wide, each further level half of that.
    #[arg(long, value_name = "N", default_value_t = 7, help_heading = "Plan")]
    level: u8,
    /// Split cells with more than this share of half the geoshard's load.
    #[arg(long, value_name = "PART", default_value_t = 0.25, help_heading = "Plan")]
    split: f64,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Merge two geoshards that are adjacent on the curve.
///
/// With points, the geoshard with more load keeps its id, so only the other one's documents move; without points, the
/// first. All other geoshards stay as they are.
#[derive(Debug, Args)]
#[command(after_help = MERGE_EXAMPLES)]
pub(super) struct MergeArgs {
    /// The id of one geoshard.
    a: String,
    /// The id of the other.
    b: String,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Where the load comes from, as for `shards plan`.
#[derive(Debug, Args)]
struct LoadArgs {
    /// Points: CSV with a header, or one JSON object per line; `-` is standard input.
    #[arg(conflicts_with = "from_index")]
    points: Option<PathBuf>,
    /// Take the load from the documents of these indices of the configured Elasticsearch; `*` is a wildcard.
    #[arg(long, value_name = "INDEX", value_delimiter = ',')]
    from_index: Vec<String>,
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    rows: RowArgs,
    /// Level of the smallest cells.
    #[arg(long, value_name = "N", default_value_t = 12)]
    finest: u8,
}

/// The map before and after.
#[derive(Debug, Args)]
struct ChangeArgs {
    /// The map to change. The new version is one higher.
    #[arg(long, value_name = "FILE", help_heading = "Map")]
    after: PathBuf,
    #[command(flatten)]
    map: MapArgs,
    /// Print JSON.
    #[arg(long, help_heading = "Report")]
    json: bool,
}

impl LoadArgs {
    /// The load, if one is given.
    async fn read(&self, old: &GeoshardMap) -> Result<Option<CellLoads>, Failure> {
        let mut loads = CellLoads::within(self.finest, old);
        match &self.points {
            Some(points) => self.rows.read(points, |point, load| loads.add(point, load))?,
            None if self.from_index.is_empty() => return Ok(None),
            None => {
                let config = self.config.load()?;
                self.rows.scan(&config, &self.from_index, |point, load| loads.add(point, load)).await?;
            }
        }
        Ok(Some(loads))
    }
}

impl ChangeArgs {
    fn before(&self) -> Result<GeoshardMap, Failure> {
        self.map.check()?;
        GeoshardMap::load(&self.after).context("--after").map_err(Failure::usage)
    }

    fn finish(&self, change: Result<MapChange, ChangeError>) -> Result<ExitCode, Failure> {
        let MapChange { map, report } = change.map_err(Failure::usage)?;
        self.map.write(&map)?;
        output::text_or_json(&report, self.json)
    }
}

pub(super) async fn split(args: &SplitArgs) -> Result<ExitCode, Failure> {
    let old = args.change.before()?;
    let Some(loads) = args.load.read(&old).await? else {
        return Err(Failure::usage(anyhow::anyhow!(
            "a geoshard is split by its load; give a file of points or --from-index"
        )));
    };
    let cells = CellOptions { level: args.level, split_above: args.split };
    args.change.finish(change::split(&loads, &old, &args.change.map.name, cells, &args.shard))
}

pub(super) async fn merge(args: &MergeArgs) -> Result<ExitCode, Failure> {
    let old = args.change.before()?;
    let loads = args.load.read(&old).await?;
    args.change.finish(change::merge(loads.as_ref(), &old, &args.change.map.name, &args.a, &args.b))
}
