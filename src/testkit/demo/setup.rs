//! Indices and worker configuration of the demo.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::topic;
use crate::base::clock::BootClock;
use crate::geoshard::GeoshardMap;
use crate::io::elastic::http::{HttpElastic, HttpOptions};
use crate::io::indices::{self, Layout, Template};
use crate::support::config::PlacementsConfig;
use crate::testkit::embedded::broker::EmbeddedBroker;
use crate::testkit::embedded::elasticsearch::Standin;

pub(super) const PREFIX: &str = "demo";
pub(super) const MAP: &str = include_str!("../../../config/map-55.json");
/// The group gives a worker up that is silent for this long.
const SESSION: Duration = Duration::from_secs(2);

pub(super) fn connect(standin: &Standin) -> Result<HttpElastic> {
    let options = HttpOptions::new(
        vec![standin.url().parse().context("the stand-in's address")?],
        PREFIX,
        Duration::from_secs(20),
    );
    HttpElastic::connect(&options, Arc::new(BootClock)).context("connecting to the stand-in")
}

pub(super) async fn create_indices(elastic: &HttpElastic, map: &GeoshardMap) -> Result<()> {
    let layout = Layout {
        prefix: PREFIX,
        shards: map.shards(),
        location: "location",
        gc_deletes: Duration::from_secs(600),
        placements: PlacementsConfig::default(),
    };
    let wanted = indices::wanted(&layout, &Template::default()).context("laying out the demo's indices")?;
    let report = indices::create_missing(elastic, PREFIX, &wanted, Duration::from_secs(20), &|_| ())
        .await
        .context("creating the demo's indices")?;
    ensure!(
        report.differences.is_empty(),
        "the stand-in's indices are not as asked for: {:?}",
        report.differences
    );
    Ok(())
}

pub(super) fn write_config(folder: &Path, broker: &EmbeddedBroker, standin: &Standin) -> Result<PathBuf> {
    let (brokers, url) = (broker.address(), standin.url());
    let config = format!(
        r#"[kafka]
brokers = ["{brokers}"]
topic = "{topic}"
group_id = "{group}"
session_timeout = "{session}ms"
heartbeat_interval = "250ms"

[elasticsearch]
urls = ["{url}"]
prefix = "{PREFIX}"
request_timeout = "3s"

[geoshards]
map = "map.json"

[batch]
timeout = "6s"

[memory]
total = "64MiB"
per_partition = "16MiB"
cached_placements = 100000

[commit]
interval = "300ms"

[retry]
max_backoff = "1s"

[dead_letter]
policy = "topic"
topic = "{dead_letters}"

[shutdown]
revoke_timeout = "1s"

[log]
filter = "warn,librdkafka=error"
"#,
        session = SESSION.as_millis(),
        topic = topic::DOCUMENTS,
        group = topic::GROUP,
        dead_letters = topic::DEAD_LETTERS,
    );
    let path = folder.join("geofold.toml");
    std::fs::write(&path, config).context("writing the workers' configuration")?;
    std::fs::write(folder.join("map.json"), MAP).context("writing the map")?;
    Ok(path)
}
