//! `geofold cloud`.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use serde::Serialize;

use super::{ConfigArgs, Failure, output};
use crate::io::database::Database;
use crate::ops::tally::collect::http::{CloudAnswer, Tag};
use crate::ops::tally::collect::store::CountStore;
use crate::ops::tally::collect::svg;
use crate::support::config::ServerUrl;
use crate::support::config::database_url::DatabaseUrl;
use crate::support::{http, tls};

/// Timeout of a request to a collector.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum response size, in bytes: 32 facets of 10,000 values.
const MAX_ANSWER: usize = 256 << 20;

/// Show the most frequent values as a table, picture or JSON.
///
/// Reads the configured database, or asks a collector (--url) without a configuration. Exit code 1: no answer, or
/// nothing is counted yet.
#[derive(Debug, Args)]
pub(super) struct CloudArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Collector to ask instead of the database, for example http://127.0.0.1:9465.
    #[arg(long, value_name = "URL")]
    url: Option<ServerUrl>,
    /// Authorities (PEM) that may have signed the certificate of --url; default: the built-in ones.
    #[arg(long, value_name = "FILE", requires = "url")]
    ca_file: Option<PathBuf>,
    /// Only this facet, for example tags; default: all.
    #[arg(long, value_name = "NAME")]
    facet: Option<String>,
    /// Maximum values per facet; collectors keep collector.top.
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
    /// Write a picture of one facet to this file; - is standard output.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    svg: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) async fn cloud(args: CloudArgs) -> Result<ExitCode, Failure> {
    let answer = match &args.url {
        Some(url) => ask_collector(url, &args).await?,
        None => read_database(&args).await?,
    };
    if args.json {
        output::json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    if answer.version == 0 {
        return Err(anyhow!(
            "nothing is counted yet: check that [tally] is on for the workers and that a collector runs"
        )
        .into());
    }
    if let Some(facet) = &args.facet
        && !answer.facets.contains_key(facet)
    {
        return Err(anyhow!("facet {facet} is not counted; omit --facet to show all").into());
    }
    match &args.svg {
        None => output::text_or_json(&Table(&answer), false),
        Some(file) => write_picture(&answer, file),
    }
}

async fn read_database(args: &CloudArgs) -> Result<CloudAnswer, Failure> {
    let config = args.config.load()?;
    if let DatabaseUrl::Sqlite(path) = &config.database.url
        && !path.exists()
    {
        return Err(anyhow!("database {} does not exist; geofold collect creates it", path.display()).into());
    }
    let database = Database::open(&config.database).await?;
    let store = CountStore::new(database.clone(), config.collector.top, config.collector.keep_versions);
    let latest = store.later_than(0).await;
    database.close().await;
    let top = args.top.min(config.collector.top);
    Ok(CloudAnswer::new(latest?.as_ref(), args.facet.as_deref(), top))
}

async fn ask_collector(url: &ServerUrl, args: &CloudArgs) -> Result<CloudAnswer, Failure> {
    let authorities = args.ca_file.as_deref().map(|file| ("--ca-file", file));
    let client = tls::trusting(reqwest::Client::builder().timeout(TIMEOUT), authorities);
    let client = client.map_err(Failure::usage)?;
    let client = client.build().context("making an HTTP client")?;
    let mut wanted = url.as_url().clone();
    wanted.set_path(&format!("{}/cloud", wanted.path().trim_end_matches('/')));
    wanted.query_pairs_mut().append_pair("top", &args.top.to_string());
    if let Some(facet) = &args.facet {
        wanted.query_pairs_mut().append_pair("facet", facet);
    }
    let requesting = || format!("requesting the collector at {url}; check its address and that it runs");
    let mut answer = client.get(wanted).send().await.with_context(requesting)?;
    let status = answer.status();
    let body = http::body(&mut answer, MAX_ANSWER).await.with_context(requesting)?;
    let body = body.ok_or_else(|| anyhow!("the answer of {url} is too long to be a collector's"))?;
    if !status.is_success() {
        let said = String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
        return Err(anyhow!("{url} answered {status}: {said}").into());
    }
    Ok(serde_json::from_slice(&body).with_context(|| format!("{url} does not answer as a collector does"))?)
}

fn write_picture(answer: &CloudAnswer, file: &std::path::Path) -> Result<ExitCode, Failure> {
    let (facet, tags) = only_facet(answer).map_err(Failure::usage)?;
    let picture = svg::render(facet, tags);
    if file.as_os_str() == "-" {
        output::text(picture)?;
    } else {
        std::fs::write(file, picture).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn only_facet(answer: &CloudAnswer) -> anyhow::Result<(&str, &[Tag])> {
    let mut facets = answer.facets.iter();
    match (facets.next(), facets.next()) {
        (Some((name, tags)), None) => Ok((name, tags)),
        _ => {
            let names: Vec<&str> = answer.facets.keys().map(String::as_str).collect();
            bail!("a picture is of one facet: give --facet, one of {}", names.join(", "))
        }
    }
}

/// Prints the answer as a table.
#[derive(Serialize)]
struct Table<'a>(&'a CloudAnswer);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(answer) = self;
        write!(f, "version {} of {}", answer.version, answer.created)?;
        for (facet, tags) in &answer.facets {
            let width = tags.iter().map(|tag| tag.count.to_string().len()).max().unwrap_or(0);
            write!(f, "\n\n{facet}")?;
            if tags.is_empty() {
                write!(f, "\n  no document has a value")?;
            }
            for tag in tags {
                // Values come from documents: keep control characters from the terminal.
                let value: String =
                    tag.value.chars().map(|c| if c.is_control() { '\u{FFFD}' } else { c }).collect();
                write!(f, "\n  {:>width$}  {value}", tag.count)?;
            }
        }
        Ok(())
    }
}
