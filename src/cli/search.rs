//! `geofold search`.

use std::fmt;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{ConfigArgs, Failure, connect, output, route};
use crate::geoshard::cover::Shape;
use crate::io::maps::MapsReader;
use crate::route::error::SearchFailure as NoAnswer;
use crate::route::request::{MAX_WINDOW, SearchRequest};
use crate::route::upstream::Caller;
use crate::support::config::RouteCredentials;
use crate::support::telemetry::route::RouteMetrics;

/// Find documents in a circle, nearest first: one search as `geofold route` makes it.
///
/// Asks only the geoshards of the circle's cover. A document found twice during a move is printed once, in its newer
/// version. Exit code 1: Elasticsearch did not answer, or not for all indices.
#[derive(Debug, Args)]
pub(super) struct SearchArgs {
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
    if limit == 0 || limit > MAX_WINDOW {
        bail!("it must be 1 to {MAX_WINDOW}");
    }
    Ok(limit)
}

/// One document.
#[derive(Debug, Serialize)]
struct Hit {
    id: String,
    /// Its geoshard's index.
    index: String,
    /// Metres from the centre.
    metres: f64,
    /// The document's position.
    version: u64,
}

/// What came of a search.
#[derive(Debug, Serialize)]
struct Found {
    /// The nearest first.
    hits: Vec<Hit>,
    /// Geoshards that were asked, and that there are.
    asked: usize,
    geoshards: usize,
}

pub(super) async fn search(args: SearchArgs) -> Result<ExitCode, Failure> {
    let Shape::Circle { centre, radius } = args.circle else {
        return Err(Failure::usage(anyhow!("only a circle can be searched")));
    };
    if radius.metres() == 0.0 {
        return Err(Failure::usage(anyhow!("the radius is 0, but geo_distance wants one above; use 1m")));
    }
    let mut config = args.config.load()?;
    config.route.credentials = RouteCredentials::Own;
    let elastic = connect::elasticsearch(&config)?;
    let record = connect::maps_record(&config, &elastic).await?;
    let maps = MapsReader::as_read(record, connect::clock());
    let metrics = RouteMetrics::new().context("registering metrics")?;
    let service = route::service(&config, maps, metrics)?;

    let location = &config.documents.searched();
    let centre = json!({"lat": centre.lat(), "lon": centre.lon()});
    let body = json!({
        "size": args.limit,
        "version": true,
        "_source": false,
        "track_total_hits": false,
        "query": {"bool": {"filter": [
            {"geo_distance": {"distance": format!("{}m", radius.metres()), location: centre}},
        ]}},
        "sort": [{"_geo_distance": {location: centre, "order": "asc", "unit": "m"}}],
    });
    let body = body.as_object().cloned().unwrap_or_default();
    let request = SearchRequest::new(body, &[], location).map_err(|refusal| anyhow!(refusal.reason))?;
    let answer =
        service.search(&request, Caller::default()).await.map_err(|failure| anyhow!(no_answer(&failure)))?;
    let found = Found {
        hits: hits(&answer.body).context("reading the answer of Elasticsearch")?,
        asked: answer.asked,
        geoshards: answer.total,
    };
    output::text_or_json(&found, args.json)
}

fn hits(body: &[u8]) -> serde_json::Result<Vec<Hit>> {
    #[derive(Deserialize)]
    struct Answer {
        hits: Hits,
    }
    #[derive(Deserialize)]
    struct Hits {
        hits: Vec<RawHit>,
    }
    #[derive(Deserialize)]
    struct RawHit {
        _id: String,
        _index: String,
        _version: u64,
        sort: [f64; 1],
    }
    let answer: Answer = serde_json::from_slice(body)?;
    let hit =
        |hit: RawHit| Hit { id: hit._id, index: hit._index, metres: hit.sort[0], version: hit._version };
    Ok(answer.hits.hits.into_iter().map(hit).collect())
}

/// Why there is no answer.
fn no_answer(failure: &NoAnswer) -> String {
    match failure {
        NoAnswer::Own(refusal) => refusal.reason.clone(),
        NoAnswer::Upstream { status, body, .. } => {
            let (_, reason) = crate::io::elastic::decode::error_body(body);
            format!("elasticsearch answered {status}: {reason}")
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hits, asked, geoshards } = self;
        writeln!(f, "{} documents, from {asked} of {geoshards} geoshards", hits.len())?;
        let wide = hits.iter().map(|hit| hit.index.len()).chain(["index".len()]).max().unwrap_or_default();
        writeln!(f, "{:>12}  {:wide$}  {:>20}  id", "metres", "index", "version")?;
        for Hit { id, index, metres, version } in hits {
            writeln!(f, "{metres:>12.1}  {index:wide$}  {version:>20}  {id}")?;
        }
        Ok(())
    }
}
