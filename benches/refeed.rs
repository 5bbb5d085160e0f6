//! How many documents a second come from a PostgreSQL by their id: `DocumentSource::fetch`, as the worker asks.
//!
//! ```text
//! dev/stack up --postgresql && eval "$(dev/stack env)"
//! cargo bench --bench refeed
//! ```
//!
//! Without a PostgreSQL it says so, and that is all.

#![allow(missing_docs, reason = "a bench")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a bench that fails")]

use std::time::Instant;

use geofold::base::ids::DocId;
use geofold::base::random::Random;
use geofold::support::config::{Config, Secret, SourceKind};
use geofold::worker::refeed::{DocumentSource, FetchAnswer};

/// Rows in the table.
const ROWS: u64 = 200_000;

/// Ids asked for in one call, as a few batches of a worker do.
const AT_ONCE: usize = 5_000;

#[tokio::main]
async fn main() {
    let Ok(url) = std::env::var("GEOFOLD_TEST_POSTGRES") else {
        return println!("refeed: no PostgreSQL: dev/stack up --postgresql, then eval \"$(dev/stack env)\"");
    };
    let password = std::env::var("GEOFOLD_TEST_POSTGRES_PASSWORD").unwrap();
    // `cargo test` runs benches too, so that they stay whole.
    let is_bench = std::env::args().any(|arg| arg == "--bench");
    let (rows, rounds) = if is_bench { (ROWS, 60) } else { (2_000, 1) };
    let table = format!("refeed_bench_{}", std::process::id());
    let options: sqlx::postgres::PgConnectOptions = url.parse().unwrap();
    let options = options.password(&password);
    let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect_with(&options).await.unwrap();
    let fill = format!(
        "CREATE TABLE {table} AS SELECT n::text AS id, json_build_object('location', json_build_object('lat', n % 80, 'lon', \
         n % 170), 'name', 'document ' || n, 'text', repeat('x', 200))::text AS document FROM generate_series(1, {rows}) n; \
         ALTER TABLE {table} ADD PRIMARY KEY (id); ANALYZE {table}"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(fill)).execute(&mut connection).await.unwrap();
    for (batch, max_in_flight) in [(500, 1), (500, 4), (2_000, 4)] {
        let mut config = Config::default();
        config.source.kind = Some(SourceKind::Postgresql);
        config.source.url = Some(url.parse().unwrap());
        config.source.password = Some(Secret::new(password.clone()));
        config.source.query = Some(format!("SELECT id, document FROM {table} WHERE id = ANY($1)"));
        config.source.batch_size = batch;
        config.source.max_in_flight = max_in_flight;
        let source = DocumentSource::open(&config).unwrap();
        let mut random = Random::new(7);
        // The first opens connections.
        measure(&source, &mut random, rows, 1).await;
        let (documents, bytes, seconds) = measure(&source, &mut random, rows, rounds).await;
        println!(
            "refeed: batch {batch}, {max_in_flight} at once: {:.0} ids/s, {:.1} MB/s ({documents} documents in {seconds:.2} s)",
            f64::from(documents) / seconds,
            bytes as f64 / 1e6 / seconds,
        );
    }
    let drop = sqlx::AssertSqlSafe(format!("DROP TABLE {table}"));
    sqlx::raw_sql(drop).execute(&mut connection).await.unwrap();
}

/// Documents, bytes, seconds.
async fn measure(source: &DocumentSource, random: &mut Random, rows: u64, rounds: u32) -> (u32, usize, f64) {
    let (mut documents, mut bytes) = (0, 0);
    let began = Instant::now();
    for _ in 0..rounds {
        let id = |random: &mut Random| {
            DocId::from_key(Some((random.below(rows) + 1).to_string().as_bytes())).unwrap()
        };
        let mut ids: Vec<DocId> = (0..AT_ONCE).map(|_| id(random)).collect();
        ids.sort_unstable();
        ids.dedup();
        for answer in source.fetch(&ids).await {
            match answer {
                FetchAnswer::Found(document) => {
                    documents += 1;
                    bytes += document.len();
                }
                other => panic!("{other:?}"),
            }
        }
    }
    (documents, bytes, began.elapsed().as_secs_f64())
}
