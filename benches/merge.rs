//! How long a merge takes: `cargo bench --bench merge`. docs/counts.md has figures.
//!
//! On SQLite, and on PostgreSQL where GEOFOLD_TEST_POSTGRES says where one is (`dev/stack up --postgresql`); there it makes a
//! database of its own, which stays. Without `--bench`, as in `cargo test`, a small round to see that it works.

#![expect(clippy::unwrap_used, reason = "a benchmark that fails is one that does not run")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use geofold::base::position::{Epoch, Position};
use geofold::base::random::Random;
use geofold::core::counting::increment::{Delta, Edge, Increment};
use geofold::io::database::Database;
use geofold::ops::tally::collect::batch::{IncrementBatch, read_increment};
use geofold::ops::tally::collect::store::{CountStore, KnownTopic, MergeOutcome};
use geofold::support::config::{DatabaseConfig as Config, Secret};

/// Documents change from one value to another, so that each edge has two.
const VALUES_PER_EDGE: usize = 2;

struct Case {
    increments: usize,
    values: usize,
    distinct: u64,
}

fn main() {
    let full = std::env::args().any(|argument| argument == "--bench");
    let case = |distinct| match full {
        true => Case { increments: 100, values: 5_000, distinct },
        false => Case { increments: 3, values: 20, distinct: distinct.min(30) },
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    println!(
        "database    increments  values each  different  in counts  reading     merging, median of {}",
        rounds(full)
    );
    runtime.block_on(async {
        for distinct in [5_000, 50_000] {
            let folder = tempfile::tempdir().unwrap();
            let url = format!("sqlite:{}", folder.path().join("merge.db").display()).parse().unwrap();
            measure("SQLite", &Config { url, ..Config::default() }, &case(distinct), full).await;
            if let Ok(url) = std::env::var("GEOFOLD_TEST_POSTGRES") {
                measure("PostgreSQL", &fresh_postgres(&url).await, &case(distinct), full).await;
            }
        }
    });
}

fn rounds(full: bool) -> usize {
    if full { 5 } else { 1 }
}

async fn fresh_postgres(url: &str) -> Config {
    let password = std::env::var("GEOFOLD_TEST_POSTGRES_PASSWORD").ok();
    let mut options: sqlx::postgres::PgConnectOptions = url.parse().unwrap();
    if let Some(password) = &password {
        options = options.password(password);
    }
    let mut admin = <sqlx::PgConnection as sqlx::Connection>::connect_with(&options).await.unwrap();
    let name = format!("merge{:x}", SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos());
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut admin).await.unwrap();
    let (server, _) = url.rsplit_once('/').unwrap();
    Config {
        url: format!("{server}/{name}").parse().unwrap(),
        password: password.map(Secret::new),
        ..Config::default()
    }
}

/// The records of one merge, as they come from Kafka.
fn records(case: &Case, random: &mut Random, round: usize) -> Vec<Vec<u8>> {
    let edges_each = case.values / VALUES_PER_EDGE;
    let mut records = Vec::new();
    for number in 0..case.increments {
        let first = i64::try_from((round * case.increments + number) * edges_each).unwrap();
        let at = |offset| Position::new(Epoch::default(), offset).unwrap();
        let edge = |offset| {
            let mut delta = Delta::default();
            for by in [1, 1] {
                delta.add("tags", &format!("a value of some length {}", random.below(case.distinct)), by);
            }
            Edge { pos: at(offset), delta }
        };
        let to = first + i64::try_from(edges_each).unwrap();
        let increment = Increment {
            id: format!("{round}-{number}"),
            topic: "documents".to_owned(),
            partition: 0,
            to: at(to),
            edges: (first..to).map(edge).collect(),
        };
        records.push(increment.to_json());
    }
    records
}

async fn measure(name: &str, config: &Config, case: &Case, full: bool) {
    let database = Database::open(config).await.unwrap();
    let store = CountStore::new(database.clone(), 100, 1_000);
    store.prepare().await.unwrap();
    store.take_over("bench", &store.leader().await.unwrap()).await.unwrap().unwrap();
    let topic = KnownTopic { topic: "increments".to_owned(), topic_id: None, partitions: 1 };
    assert!(store.settle("bench", &topic, &BTreeMap::from([(0, 0)])).await.unwrap());

    let mut random = Random::new(1);
    let (mut reading, mut merging, mut offset) = (Vec::new(), Vec::new(), 0);
    // The first round fills the table, and is not counted.
    for round in 0..=rounds(full) {
        let records = records(case, &mut random, round);
        let began = Instant::now();
        let mut batch = IncrementBatch::default();
        let from = offset;
        for record in &records {
            batch.take(0, from, offset, Some(read_increment(Some(record)).unwrap()));
            offset += 1;
        }
        let read = began.elapsed();
        let began = Instant::now();
        let MergeOutcome::Done(_) = store.merge("bench", &batch).await.unwrap() else {
            panic!("it was not merged")
        };
        if round > 0 {
            reading.push(read);
            merging.push(began.elapsed());
        }
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort();
        times[times.len() / 2]
    };
    println!(
        "{name:<10}  {:>10}  {:>11}  {:>9}  {:>9}  {:>7.2?}  {:>10.2?}",
        case.increments,
        case.values,
        case.distinct,
        store.counts().await.unwrap().len(),
        median(&mut reading),
        median(&mut merging),
    );
    database.close().await;
}
