//! `geofold audit --tally`.

use std::process::ExitCode;

use anyhow::{Context, anyhow};
use serde_json::json;

use super::LONG;
use crate::base::progress::Progress;
use crate::cli::progress::ProgressMeter;
use crate::cli::{Failure, output};
use crate::core::counting::facets::FacetRules;
use crate::io::database::Database;
use crate::io::elastic::{Elastic, Index, scan};
use crate::io::indices;
use crate::ops::tally::collect::store::CountStore;
use crate::ops::tally::recount::{CountDifference, FacetCounts, differences, recount};
use crate::support::config::Config;
use crate::support::config::database_url::DatabaseUrl;

/// Maximum differences printed.
const PRINTED: usize = 100;

/// Recounts all documents and compares with the counts in the database; corrects them if `repairs`.
pub(super) async fn run(
    config: &Config,
    elastic: &dyn Elastic,
    repairs: bool,
    as_json: bool,
) -> Result<ExitCode, Failure> {
    let rules = FacetRules::configured(&config.tally)
        .ok_or_else(|| Failure::usage(anyhow!("counting is off: enable [tally] in the configuration")))?;
    if let DatabaseUrl::Sqlite(path) = &config.database.url
        && !path.exists()
    {
        return Err(anyhow!("database {} does not exist; geofold collect creates it", path.display()).into());
    }
    let database = Database::open(&config.database).await?;
    let store = CountStore::new(database.clone(), config.collector.top, config.collector.keep_versions);
    let result = compare(config, elastic, &rules, &store, repairs).await;
    database.close().await;
    let wrong = result?;
    if as_json {
        let wrong: Vec<_> = wrong
            .iter()
            .map(|CountDifference { facet, value, counted, found }| {
                json!({"facet": facet, "value": value, "counted": counted, "found": found})
            })
            .collect();
        output::json(&json!({"wrong": wrong, "repaired": repairs}))?;
    } else {
        for CountDifference { facet, value, counted, found } in wrong.iter().take(PRINTED) {
            output::line(format_args!("{facet}  {value}  counted {counted}, found {found}"))?;
        }
        match wrong.len() {
            0 => output::line("every count is what the documents say")?,
            count if repairs => output::line(format_args!("{count} counts were wrong and are corrected"))?,
            count => output::line(format_args!(
                "{count} counts differ from the documents; expected while writes continue or increments are not merged"
            ))?,
        }
    }
    Ok(if wrong.is_empty() || repairs { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn compare(
    config: &Config,
    elastic: &dyn Elastic,
    rules: &FacetRules,
    store: &CountStore,
    repairs: bool,
) -> Result<Vec<CountDifference>, Failure> {
    if repairs {
        nobody_merges(config, store).await?;
    }
    let prefix = &config.elasticsearch.prefix;
    let timeout = config.elasticsearch.request_timeout.max(LONG);
    let shards = indices::geoshards(elastic, prefix, timeout).await?;
    for chunk in shards.chunks(50) {
        let chunk: Vec<Index> = chunk.iter().cloned().map(Index::Geoshard).collect();
        elastic.refresh(&chunk, timeout).await.context("refreshing the indices")?;
    }
    let fields: Vec<String> = config.tally.facets.values().cloned().collect();
    let meter = ProgressMeter::new();
    let names: Vec<String> = shards.iter().map(|shard| Index::Geoshard(shard.clone()).name(prefix)).collect();
    // Only for the time left.
    let of = scan::count(elastic, &names, None, timeout).await.ok();
    let seen = |done| meter.tell(Progress::Done { what: "documents counted", done, of });
    let found = recount(elastic, prefix, &shards, rules, &fields, timeout, seen).await?;
    meter.end();
    if repairs {
        return Ok(store.correct(&found).await?);
    }
    let counts = store.counts().await?.into_iter();
    let kept: FacetCounts = counts.map(|(facet, value, count)| ((facet, value), count)).collect();
    Ok(differences(&kept, &found))
}

/// Waits a while for the heartbeat of a merging collector.
async fn nobody_merges(config: &Config, store: &CountStore) -> Result<(), Failure> {
    let before = store.leader().await?;
    tokio::time::sleep(config.collector.takeover_timeout).await;
    if store.leader().await? != before {
        return Err(anyhow!(
            "a collector is running; stop all collectors and workers before correcting counts"
        )
        .into());
    }
    Ok(())
}
