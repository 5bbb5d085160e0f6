//! `geofold search`.

use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::Args;

use super::{ConfigArgs, Failure, connect, output};
use crate::geoshard::cover::Shape;
use crate::ops::search::{self, Search};

/// Find documents in a circle, nearest first: a minimal client.
///
/// Asks only the geoshards of the circle's cover. A document found twice during a move is printed once, in its newer
/// version. Exit code 1: Elasticsearch did not answer, or not for all indices.
#[derive(Debug, Args)]
pub struct SearchArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Circle; the radius with a unit, for example 48.85,2.35,25mi (default: metres).
    #[arg(long, value_name = "LAT,LON,RADIUS", value_parser = Shape::parse_circle, allow_hyphen_values = true)]
    circle: Shape,
    /// Maximum documents.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = limit)]
    limit: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn limit(text: &str) -> anyhow::Result<usize> {
    let limit = text.parse()?;
    if limit == 0 || limit > search::MAX_LIMIT {
        bail!("it must be 1 to {}", search::MAX_LIMIT);
    }
    Ok(limit)
}

pub async fn search(args: SearchArgs) -> Result<ExitCode, Failure> {
    let Shape::Circle { centre, radius } = args.circle else {
        return Err(Failure::usage(anyhow!("only a circle can be searched")));
    };
    if radius.metres() == 0.0 {
        return Err(Failure::usage(anyhow!("the radius is 0, but geo_distance wants one above; use 1m")));
    }
    let config = args.config.load()?;
    let elastic = connect::elasticsearch(&config)?;
    let wanted = Search {
        maps: &connect::live_maps(&config, &elastic).await?,
        prefix: &config.elasticsearch.prefix,
        location: &config.documents.location,
        centre,
        radius,
        limit: args.limit,
        timeout: config.elasticsearch.request_timeout,
    };
    let found = search::search(&elastic, &wanted).await?;
    for index in &found.missing {
        eprintln!("note: there is no index {index}; geofold shards create makes it");
    }
    for failure in &found.failures {
        eprintln!("error: the answer is not complete: {failure}");
    }
    output::text_or_json(&found, args.json)?;
    Ok(if found.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
