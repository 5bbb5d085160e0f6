//! `geofold shards cover`.

use std::process::ExitCode;

use clap::Args;

use super::{ConfigArgs, Failure, connect, output};
use crate::geoshard::cover::Shape;
use crate::geoshard::{LiveMaps, describe};

/// List the geoshards that a search in a circle, box or polygon must query: together they contain every hit. During a
/// change of the map, those of both maps.
#[derive(Debug, Args)]
pub(super) struct CoverArgs {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    shape: ShapeArgs,
    /// Use geoshards.map without asking Elasticsearch which maps are in force.
    #[arg(long)]
    offline: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct ShapeArgs {
    /// Circle; the radius with a unit, for example 48.85,2.35,25mi (default: metres).
    #[arg(long, value_name = "LAT,LON,RADIUS", value_parser = Shape::parse_circle, allow_hyphen_values = true)]
    circle: Option<Shape>,
    /// Box in degrees; crosses the antimeridian if LEFT is greater than RIGHT.
    #[arg(long = "box", value_name = "TOP,LEFT,BOTTOM,RIGHT", value_parser = Shape::parse_box, allow_hyphen_values = true)]
    bounding_box: Option<Shape>,
    /// Polygon as one argument: vertices in degrees. To cross the antimeridian use longitudes beyond ±180.
    #[arg(long, value_name = "LAT,LON LAT,LON …", value_parser = Shape::parse_polygon, allow_hyphen_values = true)]
    polygon: Option<Shape>,
}

pub(super) async fn cover(args: CoverArgs) -> Result<ExitCode, Failure> {
    let ShapeArgs { circle, bounding_box, polygon } = args.shape;
    // clap has seen to it that there is exactly one.
    let shape = circle.or(bounding_box).or(polygon);
    let shape = shape.ok_or_else(|| Failure::usage(anyhow::anyhow!("give --circle, --box or --polygon")))?;
    let config = args.config.load()?;
    let maps = if args.offline {
        LiveMaps::One(connect::map(&config)?)
    } else {
        connect::live_maps(&config, &connect::elasticsearch(&config)?).await.map_err(|failure| {
            failure.context("no cover available (--offline uses geoshards.map without asking)")
        })?
    };
    let covered = describe::covered(&maps, &config.elasticsearch.prefix, &shape).with_cities(&maps);
    output::text_or_json(&covered, args.json)
}
