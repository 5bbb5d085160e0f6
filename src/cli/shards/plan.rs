//! `geofold shards plan`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use tempfile::NamedTempFile;

use super::input::RowArgs;
use super::{ConfigArgs, Failure, connect, output};
use crate::geoshard::GeoshardMap;
use crate::geoshard::balance::capacity::{Assumptions, Capacity, Demand};
use crate::geoshard::load::{CellRates, LoadRecord, PlaceCounts};
use crate::geoshard::plan::{
    By, CellLoads, CellOptions, MapChange, MapPlan, Naming, PlanOptions, PlanReport, TriedCounts, change,
};
use crate::geoshard::tracks::{Crossings, TrackFollower};
use crate::io::elastic::Elastic;
use crate::io::load::LoadStore;
use crate::support::config::Config;

/// Plan a map of geoshards with about equal load.
///
/// Points are summed by S2 cell, and the cells are cut along the Hilbert curve with the least sum of squared loads.
/// Every count from --min to --max is tried, and the most even one is kept (--counts shows all, with a greedy cut for
/// comparison). The report shows evenness and how many geoshards circles touch (docs/geoshards.md).
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct PlanArgs {
    /// Points: CSV with a header, or one JSON object per line; `-` is standard input.
    #[arg(required_unless_present_any = ["from_index", "from_load"], conflicts_with_all = ["from_index", "from_load"])]
    points: Option<PathBuf>,
    /// Use the documents of these indices of the configured Elasticsearch, as searches see them; `*` is a wildcard.
    /// Documents without a location, or without a column of --weight, are left out and counted.
    #[arg(long, value_name = "INDEX", value_delimiter = ',')]
    from_index: Vec<String>,
    /// Plan by the load of the last days. Without FILE: what workers and routers counted (docs/balance.md), by default
    /// "writes + queries"; --weight may name writes, bytes, queries and seconds, all per second. With FILE, that of
    /// route.load_file: by default the number of searches; --weight may name queries, geoshards and seconds.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = false, conflicts_with = "from_index")]
    from_load: Option<Option<PathBuf>>,
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    rows: RowArgs,
    /// S2 level of the cells to cut between: 7 is about 70 km wide, each further level half of that.
    #[arg(long, value_name = "N", default_value_t = 7, help_heading = "Plan")]
    level: u8,
    /// Split cells with more than this share of an average geoshard's load, at the largest count.
    #[arg(long, value_name = "PART", default_value_t = 0.25, help_heading = "Plan")]
    split: f64,
    /// Level of the smallest cells after splitting.
    #[arg(long, value_name = "N", default_value_t = 12, help_heading = "Plan")]
    finest: u8,
    /// Minimum number of geoshards [default: 40; with --max-moved, the number of --after].
    #[arg(long, value_name = "N", help_heading = "Plan")]
    min: Option<usize>,
    /// Maximum number of geoshards [default: 100; with --max-moved, the number of --after].
    #[arg(long, value_name = "N", help_heading = "Plan")]
    max: Option<usize>,
    /// How the count is chosen: by the least coefficient of variation, or the least standard deviation, which decreases
    /// with the count anyway.
    #[arg(long, value_enum, default_value = "cv", help_heading = "Plan")]
    by: ByArg,
    /// Sample of tracks, to report the share of writes that cross a border: rows with an id and a point in time order,
    /// in the format of the points.
    #[arg(long, value_name = "FILE", help_heading = "Report")]
    tracks: Option<PathBuf>,
    /// Column or dotted path of the id in --tracks.
    #[arg(long, value_name = "NAME", default_value = "id", help_heading = "Report")]
    track_id: String,
    /// Print JSON.
    #[arg(long, help_heading = "Report")]
    json: bool,
    /// Also show all counts that were tried.
    #[arg(long, conflicts_with = "max_moved", help_heading = "Report")]
    counts: bool,
    #[command(flatten)]
    capacity: CapacityArgs,
    #[command(flatten)]
    map: MapArgs,
    /// The map's version.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "after", help_heading = "Map")]
    map_version: u64,
    /// Map to be replaced: the new version is one higher, and ids stay where most of their load stays, to minimise
    /// moves.
    #[arg(long, value_name = "FILE", help_heading = "Map")]
    after: Option<PathBuf>,
    /// Maximum share of the load that may get another geoshard, such as 5%: of all such maps the one with the smallest
    /// maximum load, and of those the one that moves the least.
    #[arg(long, value_name = "PERCENT", value_parser = percent, requires = "after", conflicts_with = "by", help_heading = "Map")]
    max_moved: Option<f64>,
}

/// Output of the map.
#[derive(Debug, Args)]
#[command(next_help_heading = "Map")]
pub(super) struct MapArgs {
    /// Write the map to this file, which must not exist.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Overwrite the file of --out.
    #[arg(long, requires = "out")]
    force: bool,
    /// The map's name.
    #[arg(long, value_name = "TEXT", default_value = "planned")]
    pub name: String,
}

/// What the servers have to carry.
#[derive(Debug, Args)]
#[command(next_help_heading = "Capacity")]
struct CapacityArgs {
    /// Also print nodes, heap and disk that the plan needs, with all assumptions.
    #[arg(long, conflicts_with = "max_moved")]
    capacity: bool,
    /// Documents [default: one for each point].
    #[arg(long, value_name = "N", requires = "capacity")]
    document_count: Option<u64>,
    /// Bytes of a document, as JSON.
    #[arg(long, value_name = "BYTES", default_value_t = 1024, requires = "capacity")]
    document_bytes: u64,
    /// Documents written per second, on average.
    #[arg(long, value_name = "N", default_value_t = 0.0, requires = "capacity")]
    writes_per_second: f64,
    /// The share of the writes that moves a document to another geoshard [default: that of --tracks, or 1%].
    #[arg(long, value_name = "PERCENT", value_parser = percent, requires = "capacity")]
    moving: Option<f64>,
    /// Searches per second, on average.
    #[arg(long, value_name = "N", default_value_t = 0.0, requires = "capacity")]
    searches_per_second: f64,
    /// Geoshards that a search asks [default: those of circles of 25 miles].
    #[arg(long, value_name = "N", requires = "capacity")]
    geoshards_asked: Option<f64>,
    /// Copies of each geoshard, the primary included.
    #[arg(long, value_name = "N", default_value_t = 2, requires = "capacity")]
    copies: usize,
    /// Writes to one copy that a core does per second.
    #[arg(long, value_name = "N", default_value_t = Assumptions::default().writes_per_core, requires = "capacity")]
    writes_per_core: f64,
    /// Searches of one geoshard that a core does per second.
    #[arg(long, value_name = "N", default_value_t = Assumptions::default().searches_per_core, requires = "capacity")]
    searches_per_core: f64,
    /// Cores of a node.
    #[arg(long, value_name = "N", default_value_t = Assumptions::default().node_cores, requires = "capacity")]
    node_cores: f64,
    /// Heap of a node, in GiB.
    #[arg(long, value_name = "GIB", default_value_t = Assumptions::default().node_heap_gib, requires = "capacity")]
    node_heap: f64,
    /// Disk of a node, in GiB.
    #[arg(long, value_name = "GIB", default_value_t = Assumptions::default().node_disk_gib, requires = "capacity")]
    node_disk: f64,
}

impl CapacityArgs {
    /// What a plan needs, if that was asked for.
    fn of(&self, report: &PlanReport) -> Option<Capacity> {
        /// Where nothing is known of tracks.
        const MOVING: f64 = 0.01;
        const MILES: u32 = 25;
        if !self.capacity {
            return None;
        }
        let tracked = report.crossings.as_ref().map(|crossings| crossings.share);
        let asked = report.circles.iter().find(|circles| circles.radius_miles == MILES);
        let demand = Demand {
            documents: self.document_count.unwrap_or(report.points) as f64,
            document_bytes: self.document_bytes as f64,
            writes: self.writes_per_second,
            moving: self.moving.or(tracked).unwrap_or(MOVING),
            queries: self.searches_per_second,
            geoshards_asked: self.geoshards_asked.or(asked.map(|circles| circles.mean)).unwrap_or(1.0),
            geoshards: report.shards.len(),
            copies: self.copies,
            max_over_mean: report.shards.iter().map(|shard| shard.over_mean).fold(1.0, f64::max),
        };
        let assumptions = Assumptions {
            writes_per_core: self.writes_per_core,
            searches_per_core: self.searches_per_core,
            node_cores: self.node_cores,
            node_heap_gib: self.node_heap,
            node_disk_gib: self.node_disk,
            ..Assumptions::default()
        };
        Some(Capacity::of(demand, assumptions))
    }
}

const EXAMPLES: &str = "\
Examples:
  geofold shards plan people.csv --out map.json
  geofold shards plan users.ndjson --location home.at --weight \"0.2 + queries_per_day\" --min 20 --max 60
  geofold shards plan people-today.csv --after map.json --out map-2.json
  geofold shards plan people-today.csv --after map.json --max-moved 5% --out map-2.json
  geofold shards plan --from-load --after map.json --max-moved 5% --out map-2.json
  geofold shards plan people.csv --capacity --writes-per-second 5000 --searches-per-second 800";

/// `5%` as 0.05.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    let share = text.strip_suffix('%').and_then(|number| number.trim_end().parse::<f64>().ok());
    match share.map(|percent| percent / 100.0) {
        Some(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("give a percentage from 0% to 100%, such as 5%".to_owned()),
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ByArg {
    Cv,
    Sd,
}

pub(super) async fn plan(args: &PlanArgs) -> Result<ExitCode, Failure> {
    let after = match &args.after {
        None => None,
        Some(path) => Some(GeoshardMap::load(path).context("--after").map_err(Failure::usage)?),
    };
    args.map.check()?;
    let mut loads = match (&after, args.max_moved) {
        (Some(old), Some(_)) => CellLoads::within(args.finest, old),
        _ => CellLoads::new(args.finest),
    };
    match (&args.points, &args.from_load) {
        (Some(points), _) => args.rows.read(points, |point, load| loads.add(point, load))?,
        (None, Some(None)) => {
            let rows = args.rows.clone().with_default_weight("writes + queries")?;
            let config = args.config.load()?;
            let text = stored_load(&config).await?;
            rows.read_text(&text, |point, load| loads.add(point, load))?;
        }
        (None, Some(Some(file))) => {
            let rows = args.rows.clone().with_default_weight("queries")?;
            rows.read(file, |point, load| loads.add(point, load))?;
        }
        (None, None) => {
            let config = args.config.load()?;
            args.rows.scan(&config, &args.from_index, |point, load| loads.add(point, load)).await?;
        }
    }
    if let (Some(old), Some(max_moved)) = (&after, args.max_moved) {
        return within_budget(args, &loads, old, max_moved);
    }

    let options = PlanOptions {
        level: args.level,
        split_above: args.split,
        counts: args.min.unwrap_or(40)..=args.max.unwrap_or(100),
        by: match args.by {
            ByArg::Cv => By::Cv,
            ByArg::Sd => By::Sd,
        },
    };

    let plan = MapPlan::make(&loads, &options).context("planning geoshards").map_err(Failure::usage)?;

    let (version, naming) = match &after {
        None => (args.map_version, Naming::Fresh),
        Some(old) => (old.version() + 1, Naming::After(old)),
    };
    let map = plan.map(version, &args.map.name, &naming).context("making the map").map_err(Failure::usage)?;
    let crossings = crossings(args, &map)?;
    let report = plan.report(&map, crossings);
    match (args.capacity.of(&report), args.json) {
        (None, true) => output::json(&report)?,
        (Some(capacity), true) => {
            output::json(&serde_json::json!({"plan": report, "capacity": capacity}))?;
        }
        (capacity, false) => {
            output::text(&report)?;
            if args.counts {
                output::text(format_args!("\n{}", TriedCounts(&report)))?;
            }
            if let Some(capacity) = capacity {
                output::line(format_args!("\n{capacity}"))?;
            }
        }
    }
    args.map.write(&map)?;
    Ok(ExitCode::SUCCESS)
}

/// What workers and routers counted.
pub(super) async fn load_record(config: &Config, elastic: &dyn Elastic) -> Result<LoadRecord, Failure> {
    let store = LoadStore::new(elastic, &config.kafka.topic, config.elasticsearch.request_timeout);
    match store.read().await.context("reading the load from the meta index")? {
        Some((record, _)) => Ok(record),
        None => Err(anyhow!(
            "no load is stored of the topic {}: workers and routers store it every load.interval; is one running?",
            config.kafka.topic
        )
        .into()),
    }
}

/// The same as rows.
async fn stored_load(config: &Config) -> Result<String, Failure> {
    let record = load_record(config, &connect::elasticsearch(config)?).await?;
    let row = |rates: CellRates| {
        let middle = rates.middle()?;
        let PlaceCounts { writes, bytes, queries, seconds } = rates.day;
        let row = serde_json::json!({
            "cell": rates.cell.to_token(), "location": {"lat": middle.lat(), "lon": middle.lon()},
            "writes": writes, "bytes": bytes, "queries": queries, "seconds": seconds,
        });
        Some(row.to_string() + "\n")
    };
    Ok(record.rates().filter_map(row).collect())
}

fn within_budget(
    args: &PlanArgs,
    loads: &CellLoads,
    old: &GeoshardMap,
    max_moved: f64,
) -> Result<ExitCode, Failure> {
    let cells = CellOptions { level: args.level, split_above: args.split };
    let count = old.shards().len();
    let counts = args.min.unwrap_or(args.max.map_or(count, |max| max.min(count)))
        ..=args.max.unwrap_or(args.min.map_or(count, |min| min.max(count)));
    let change = change::within_budget(loads, old, &args.map.name, cells, Some(counts), max_moved);
    let MapChange { map, mut report } =
        change.context("planning within the budget").map_err(Failure::usage)?;
    report.crossings = crossings(args, &map)?;
    let code = output::text_or_json(&report, args.json)?;
    args.map.write(&map)?;
    Ok(code)
}

fn crossings(args: &PlanArgs, map: &GeoshardMap) -> Result<Option<Crossings>, Failure> {
    let Some(tracks) = &args.tracks else { return Ok(None) };
    let mut follower = TrackFollower::new(map);
    args.rows.read_tracks(tracks, &args.track_id, |id, point| follower.step(id, point))?;
    Ok(Some(follower.crossings()))
}

impl MapArgs {
    /// Refuses a file that is there, before anything is read.
    pub(super) fn check(&self) -> Result<(), Failure> {
        match self.out.as_ref().filter(|out| out.exists() && !self.force) {
            Some(out) => Err(Failure::usage(exists(out))),
            None => Ok(()),
        }
    }

    /// Writes the map, if it is to be written, and says so on standard error.
    pub(super) fn write(&self, map: &GeoshardMap) -> Result<(), Failure> {
        let Some(out) = &self.out else { return Ok(()) };
        write(map, out, self.force)?;
        let (path, version) = (out.display(), map.version());
        eprintln!("wrote {path}: version {version}, {} geoshards", map.shards().len());
        Ok(())
    }
}

fn exists(path: &Path) -> anyhow::Error {
    anyhow!("{} exists; choose another file, or give --force", path.display())
}

/// Writes the map whole or not at all.
fn write(map: &GeoshardMap, path: &Path, force: bool) -> Result<(), Failure> {
    let writing = || format!("writing {}", path.display());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = NamedTempFile::new_in(folder).with_context(writing)?;
    file.write_all(map.to_json().as_bytes()).with_context(writing)?;
    make_readable(&file).with_context(writing)?;
    if force {
        file.persist(path).with_context(writing)?;
    } else if let Err(error) = file.persist_noclobber(path) {
        if error.error.kind() == std::io::ErrorKind::AlreadyExists {
            return Err(Failure::usage(exists(path)));
        }
        return Err(error).with_context(writing)?;
    }
    Ok(())
}

/// A temporary file is its owner's alone; a map is for the workers to read.
fn make_readable(file: &NamedTempFile) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))
}
