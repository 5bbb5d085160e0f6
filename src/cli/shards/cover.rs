//! `geofold shards cover`.

use std::process::ExitCode;

use clap::Args;

use super::{ConfigArgs, Failure, connect, output};
use crate::geoshard::cover::Shape;
use crate::geoshard::{LiveMaps, describe};

/// Say which geoshards a search within a circle, a box or a polygon has to ask: whatever Elasticsearch would find there is
/// in one of them. While the map is changed, those of the old and of the new one.
#[derive(Debug, Args)]
pub struct CoverArgs {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    shape: ShapeArgs,
    /// Believe geoshards.map, and do not ask Elasticsearch which maps are in force.
    #[arg(long)]
    offline: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct ShapeArgs {
    /// A circle; the radius with a unit, for example 48.85,2.35,25mi. Without one, metres.
    #[arg(long, value_name = "LAT,LON,RADIUS", value_parser = Shape::parse_circle, allow_hyphen_values = true)]
    circle: Option<Shape>,
    /// A box, in degrees; over the antimeridian if LEFT is greater than RIGHT.
    #[arg(long = "box", value_name = "TOP,LEFT,BOTTOM,RIGHT", value_parser = Shape::parse_box, allow_hyphen_values = true)]
    bounding_box: Option<Shape>,
    /// A polygon, in one argument: its vertices in degrees. To cross the antimeridian, write longitudes beyond ±180.
    #[arg(long, value_name = "LAT,LON LAT,LON …", value_parser = Shape::parse_polygon, allow_hyphen_values = true)]
    polygon: Option<Shape>,
}

pub async fn cover(args: CoverArgs) -> Result<ExitCode, Failure> {
    let ShapeArgs { circle, bounding_box, polygon } = args.shape;
    // clap has seen to it that there is exactly one.
    let shape = circle.or(bounding_box).or(polygon);
    let shape = shape.ok_or_else(|| Failure::usage(anyhow::anyhow!("give --circle, --box or --polygon")))?;
    let config = args.config.load()?;
    let maps = if args.offline {
        LiveMaps::One(connect::map(&config)?)
    } else {
        connect::live_maps(&config, &connect::elasticsearch(&config)?).await.map_err(|failure| {
            failure
                .context("no cover can be given (with --offline, geoshards.map is believed and nobody asked)")
        })?
    };
    let covered = describe::covered(&maps, &config.elasticsearch.prefix, &shape);
    output::text_or_json(&covered, args.json)
}
