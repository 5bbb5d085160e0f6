//! What is counted, and whether the counts are right: those in the database against a count of what the records make of each
//! document, which knows no placement, no history and no increment; and `geofold audit --tally`, which counts the indices.

use std::collections::BTreeMap;
use std::time::Duration;

use geofold::io::database::{Database, DatabaseError};
use geofold::ops::tally::collect::store::CountStore;
use geofold::support::config::Config;
use tokio::runtime::Runtime;

use crate::collectors::TAKEOVER;
use crate::records::{self, What};
use crate::support::postgres::OwnDatabase;
use crate::support::{Truth, World, ask_for, text};

/// Partitions of the topic of increments.
const PARTITIONS: i32 = 2;

/// So long may it take until something more is merged, on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(180);

/// Counts by facet and value.
type Counts = BTreeMap<(String, String), i64>;

/// What the database says.
#[derive(Default)]
pub struct Kept {
    counts: Counts,
    /// Of each partition of increments, up to where it is merged.
    merged: BTreeMap<i32, i64>,
    pub versions: i64,
}

/// How the counts came out.
#[derive(Default)]
pub struct Counted {
    pub kept: Kept,
    /// Records in the topic of increments.
    pub increments: i64,
    expected: Counts,
}

/// Lines of the configuration: what is counted, and where; with a database of PostgreSQL if there is one.
pub fn config(database: Option<&OwnDatabase>) -> Vec<(&'static str, String)> {
    let line = |table, line: &str| (table, line.to_owned());
    let mut lines = vec![
        line("tally", "geoshard = true"),
        line("tally", "emit_interval = \"500ms\""),
        line("tally.facets", "tags = \"tags\""),
        line("tally.facets", "mood = \"mood.is\""),
        line("tally.facets", "at = \"at\""),
        line("collector", "merge_interval = \"300ms\""),
        ("collector", format!("takeover_timeout = \"{}s\"", TAKEOVER.as_secs())),
    ];
    lines.extend(database.into_iter().flat_map(OwnDatabase::config));
    lines
}

/// Makes the topic of increments.
pub fn prepare(world: &World) {
    world.stack.create_topic(&topic(world), PARTITIONS);
}

fn topic(world: &World) -> String {
    format!("{}-increments", world.name)
}

/// Waits until every increment is merged. Workers send no more, and collectors are up.
pub fn wait_until_merged(world: &World) -> Counted {
    let ends: BTreeMap<i32, i64> = world.ends(&topic(world), PARTITIONS);
    let runtime = Runtime::new().unwrap();
    let config = Config::load(&world.config, &BTreeMap::new()).unwrap();
    let mut last = Kept::default();
    loop {
        let before = last.merged.clone();
        // As long as merging goes on, however slowly, it is a matter of time.
        let next = ask_for(TIMEOUT, || {
            // It may be starting yet.
            last = runtime.block_on(kept(&config)).ok()?;
            (last.merged != before || last.merged == ends).then_some(())
        });
        if next.is_none() || last.merged == ends {
            break;
        }
    }
    Counted { kept: last, increments: ends.values().sum(), expected: expected(world) }
}

async fn kept(config: &Config) -> Result<Kept, DatabaseError> {
    let database = Database::open(&config.database).await?;
    let read = async {
        let counts = CountStore::new(database.clone(), 1, 1).counts().await?;
        let counts = counts.into_iter().map(|(facet, value, count)| ((facet, value), count)).collect();
        let mut transaction = database.read("reading what is merged").await?;
        let mut merged = BTreeMap::new();
        for row in transaction.rows("SELECT partition, next FROM increment_offset", &[]).await? {
            let partition = transaction.cell(row.int(0))?;
            merged.insert(i32::try_from(partition).unwrap(), transaction.cell(row.int(1))?);
        }
        let rows = transaction.rows("SELECT COALESCE(MAX(version), 0) FROM tag_list", &[]).await?;
        let versions = transaction.cell(rows[0].int(0))?;
        transaction.rollback().await?;
        Ok(Kept { counts, merged, versions })
    };
    let kept = read.await;
    database.close().await;
    kept
}

/// Record by record.
fn expected(world: &World) -> Counts {
    let mut truth = Truth::new();
    records::read(world, |record| {
        if let What::Write(event) = record.what {
            truth.apply(&event);
        }
    });
    let mut counts = Counts::new();
    let mut add = |facet: &str, value: String| *counts.entry((facet.to_owned(), value)).or_default() += 1;
    for document in truth.documents.values() {
        add("geoshard", truth.shard_of(document).to_owned());
        for tag in document["tags"].as_array().into_iter().flatten() {
            add("tags", tag.as_str().unwrap().to_owned());
        }
        if let Some(mood) = document["mood"]["is"].as_i64() {
            add("mood", mood.to_string());
        }
        if let Some(at) = document["at"].as_str() {
            add("at", at.to_owned());
        }
    }
    counts
}

impl Counted {
    /// The counts that are not what the records say, and increments that were not merged.
    pub fn differences(&self) -> Vec<String> {
        let Self { kept, increments, expected } = self;
        let merged: i64 = kept.merged.values().sum();
        let behind = (merged != *increments)
            .then(|| format!("of {increments} increments {merged} are merged, and it does not go on"));
        let of = |counts: &Counts, key| counts.get(key).copied().unwrap_or_default();
        let values = kept.counts.keys().chain(expected.keys().filter(|key| !kept.counts.contains_key(*key)));
        let wrong = values.filter_map(|key| {
            let (counted, right) = (of(&kept.counts, key), of(expected, key));
            let (facet, value) = key;
            (counted != right).then(|| {
                format!("{facet} {value} is counted {counted} times, and the records have it {right} times")
            })
        });
        behind.into_iter().chain(wrong).collect()
    }

    pub fn values(&self) -> usize {
        self.expected.len()
    }
}

/// What `geofold audit --tally` has to say, if the counts are not what is in the indices.
pub fn audit(world: &World) -> Option<String> {
    let audited = world.geofold(&["audit", "--tally"]);
    (!audited.status.success()).then(|| format!("geofold audit --tally says: {}", text(&audited)))
}
