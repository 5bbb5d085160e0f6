//! `geofold shards show`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, ValueEnum};

use super::input::RowArgs;
use super::{ConfigArgs, Failure, connect, output};
use crate::geoshard::load::CellLoad;
use crate::geoshard::picture::Density;
use crate::geoshard::{GeoshardMap, describe, geojson, outline, picture};

/// Show a map as a table, JSON, GeoJSON or picture, with --points including loads.
#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Show this map, without reading the configuration.
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// Prefix of index names, for --map.
    #[arg(long, value_name = "TEXT", default_value = "geofold", requires = "map")]
    prefix: String,
    /// Output format. HTML is a map to zoom in, in one file; browsers show SVG and can save it as PNG; QGIS and geojson.io
    /// read GeoJSON.
    #[arg(long = "as", value_enum, value_name = "FORM", default_value = "table")]
    form: Form,
    /// Print JSON; the same as --as json.
    #[arg(long, conflicts_with = "form")]
    json: bool,
    /// Points with a load, as for `shards plan`; `-` is standard input.
    #[arg(long, value_name = "FILE", help_heading = "Load")]
    points: Option<PathBuf>,
    #[command(flatten, next_help_heading = "Load")]
    rows: RowArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
enum Form {
    Table,
    Json,
    Geojson,
    Svg,
    Html,
}

pub(super) fn show(args: &ShowArgs) -> Result<ExitCode, Failure> {
    let (map, prefix) = match &args.map {
        Some(path) => {
            let map = GeoshardMap::load(path).context("--map").map_err(Failure::usage)?;
            (Arc::new(map), args.prefix.clone())
        }
        None => {
            let config = args.config.load()?;
            (connect::map(&config)?, config.elasticsearch.prefix)
        }
    };
    let mut description = describe::show(&map, &prefix);
    let mut density = None;
    if let Some(points) = &args.points {
        let density = density.insert(Density::default());
        let mut loads = vec![CellLoad::default(); map.shards().len()];
        args.rows.read(points, |point, load| {
            loads[map.locate_index(point)].add(CellLoad { load, points: 1 });
            density.add(point);
            Ok::<_, std::convert::Infallible>(())
        })?;
        description = description.with_loads(&loads);
    }
    match args.form {
        Form::Table => return output::text_or_json(&description, args.json),
        Form::Json => output::json(&description)?,
        Form::Geojson => {
            output::text(geojson::feature_collection(&description, &outline::outlines(&map)))?;
        }
        Form::Svg => output::text(picture::svg(&map, &description, density.as_ref()))?,
        Form::Html => output::text(picture::html(&map, &description, density.as_ref()))?,
    }
    Ok(ExitCode::SUCCESS)
}
