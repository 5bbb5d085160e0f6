//! How many tokens of a campaign can be reserved: `cargo bench --bench campaign`. docs/campaigns.md has figures.
//!
//! Sixteen runners on one PostgreSQL, of a list of 1,000 ids and of one of 10,000,000, in turns; docs/campaigns.svg is drawn of
//! it. GEOFOLD_TEST_POSTGRES says where one is (`dev/stack up --postgresql`); a database of its own is made there, which
//! stays. Without one it is SQLite and shorter. Without `--bench`, as in `cargo test`, a small round to see that it works.

#![expect(clippy::unwrap_used, reason = "a benchmark that fails is one that does not run")]

use std::fmt::Write as _;
use std::time::{Duration, Instant, SystemTime};

use futures::future::join_all;
use geofold::io::database::Database;
use geofold::ops::campaign::reserve::{Lease, Reservation};
use geofold::ops::campaign::store::{CampaignStore, NewCampaign};
use geofold::ops::campaign::{CampaignAction, chunk};
use geofold::support::config::{DatabaseConfig as Config, Secret};

const RUNNERS: usize = 16;
/// Tokens of one measurement.
const TOKENS: usize = 1_000;
const LEASE: Duration = Duration::from_secs(3600);

/// A list: its ids, and how many of them are in a chunk.
#[derive(Clone, Copy)]
struct List {
    ids: u64,
    chunk: u32,
}

fn main() {
    let full = std::env::args().any(|argument| argument == "--bench");
    let (lists, rounds, tokens) = match full {
        true => ([List { ids: 1_000, chunk: 1 }, List { ids: 10_000_000, chunk: 100 }], 15, TOKENS),
        false => ([List { ids: 50, chunk: 1 }, List { ids: 2_000, chunk: 10 }], 2, 50),
    };
    let folder = tempfile::tempdir().unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let (config, postgres) = match std::env::var("GEOFOLD_TEST_POSTGRES") {
            Ok(url) => (fresh_postgres(&url).await, true),
            Err(_) => {
                let url = format!("sqlite:{}", folder.path().join("bench.db").display()).parse().unwrap();
                (Config { url, ..Config::default() }, false)
            }
        };
        let config = Config { timeout: Duration::from_secs(60), max_connections: 2, ..config };
        let stores =
            join_all((0..RUNNERS).map(async |_| CampaignStore::new(Database::open(&config).await.unwrap())))
                .await;
        stores[0].prepare().await.unwrap();

        // The long list is made once, and its tokens last for all rounds.
        let began = Instant::now();
        let long = make(&stores[0], lists[1]).await;
        println!(
            "a list of {} ids, {} to a chunk, made in {:.0} s",
            lists[1].ids,
            lists[1].chunk,
            began.elapsed().as_secs_f64()
        );
        let mut rates: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
        // The first round warms up, and is not counted.
        for round in 0..=rounds {
            let short = make(&stores[0], lists[0]).await;
            for (which, id) in [short, long].into_iter().enumerate() {
                let rate = measure(&stores, id, tokens).await;
                if round > 0 {
                    rates[which].push(rate);
                }
            }
        }
        let database = if postgres { "PostgreSQL" } else { "SQLite" };
        println!("{database}, {RUNNERS} runners, {tokens} tokens each time, {rounds} times in turns:");
        println!("ids in the list    chunks   tokens/s: least  median    most");
        for (list, rates) in lists.iter().zip(&mut rates) {
            rates.sort_by(f64::total_cmp);
            let chunks = list.ids / u64::from(list.chunk);
            let (least, median, most) = (rates[0], rates[rates.len() / 2], rates[rates.len() - 1]);
            println!("{:>15} {chunks:>9} {least:>17.0} {median:>7.0} {most:>7.0}", list.ids);
        }
        if full && postgres {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/campaigns.svg");
            std::fs::write(path, picture(&lists, &rates)).unwrap();
            println!("drawn: docs/campaigns.svg");
        }
    });
}

async fn fresh_postgres(url: &str) -> Config {
    let password = std::env::var("GEOFOLD_TEST_POSTGRES_PASSWORD").ok();
    let mut options: sqlx::postgres::PgConnectOptions = url.parse().unwrap();
    if let Some(password) = &password {
        options = options.password(password);
    }
    let mut admin = <sqlx::PgConnection as sqlx::Connection>::connect_with(&options).await.unwrap();
    let name = format!("campaign{:x}", SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos());
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut admin).await.unwrap();
    let (server, _) = url.rsplit_once('/').unwrap();
    Config {
        url: format!("{server}/{name}").parse().unwrap(),
        password: password.map(Secret::new),
        ..Config::default()
    }
}

/// A campaign whose list is written as `geofold campaign create` does, but for reading and sorting.
async fn make(store: &CampaignStore, list: List) -> i64 {
    const AT_ONCE: u64 = 2_000;
    let new = NewCampaign {
        name: "a measurement".to_owned(),
        action: CampaignAction::Touch,
        topic: "documents".to_owned(),
        selection: "numbers".to_owned(),
        chunk: list.chunk,
        rate: None,
        every: None,
        request: None,
        may_be_empty: false,
    };
    let id = store.create(&new).await.unwrap().unwrap();
    let size = u64::from(list.chunk);
    let chunks = list.ids / size;
    let mut next = 0;
    while next < chunks {
        let to = chunks.min(next + AT_ONCE);
        let some: Vec<Vec<u8>> = (next..to)
            .map(|number| {
                let mut bytes = Vec::new();
                for id in number * size..(number + 1) * size {
                    chunk::push(&mut bytes, format!("user-{id}").as_bytes());
                }
                bytes
            })
            .collect();
        let ids = i64::try_from((to - next) * size).unwrap();
        assert!(store.append(id, &some, ids).await.unwrap());
        next = to;
    }
    assert!(store.seal(id, false).await.unwrap());
    id
}

/// Tokens per second while all runners reserve `tokens` of them together.
async fn measure(stores: &[CampaignStore], id: i64, tokens: usize) -> f64 {
    let left = std::sync::atomic::AtomicUsize::new(tokens);
    let take = || {
        use std::sync::atomic::Ordering::Relaxed;
        left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    };
    let began = Instant::now();
    let leases = join_all(stores.iter().enumerate().map(async |(number, store)| {
        let (runner, mut leases) = (format!("runner-{number}"), Vec::new());
        while take() {
            match store.reserve(id, &runner, LEASE).await.unwrap() {
                Reservation::Chunk(lease) => leases.push(lease),
                other => panic!("{other:?}"),
            }
        }
        leases
    }))
    .await;
    let took = began.elapsed().as_secs_f64();
    let leases: Vec<Lease> = leases.into_iter().flatten().collect();
    let mut reserved: Vec<i64> = leases.iter().map(|lease| lease.token).collect();
    reserved.sort_unstable();
    reserved.dedup();
    assert_eq!(reserved.len(), tokens, "a token was given twice");
    for lease in &leases {
        assert!(stores[0].finish(lease, 1, &[]).await.unwrap());
    }
    f64::from(u32::try_from(tokens).unwrap()) / took
}

/// Every measurement as a dot, and the medians as lines.
fn picture(lists: &[List; 2], rates: &[Vec<f64>; 2]) -> String {
    const WIDTH: f64 = 640.0;
    const HEIGHT: f64 = 320.0;
    const LEFT: f64 = 70.0;
    const BOTTOM: f64 = 270.0;
    const TOP: f64 = 40.0;
    let most = rates.iter().flatten().copied().fold(1.0, f64::max);
    let step = 10_f64.powf(most.log10().floor());
    let top = (most / step).ceil() * step;
    let y = |rate: f64| BOTTOM - rate / top * (BOTTOM - TOP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">Tokens per second, {RUNNERS} runners on one PostgreSQL</text>\n"
    );
    for line in 0..=4 {
        let rate = top * f64::from(line) / 4.0;
        let at = y(rate);
        writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{rate:.0}</text>",
            WIDTH - 20.0,
            LEFT - 8.0,
            at + 4.0
        )
        .unwrap();
    }
    for (number, (list, rates)) in (0_u8..).zip(lists.iter().zip(rates)) {
        let middle = LEFT + (WIDTH - 20.0 - LEFT) * (0.25 + 0.5 * f64::from(number));
        let count = f64::from(u32::try_from(rates.len()).unwrap());
        for (place, rate) in (0_u32..).zip(rates) {
            let x = middle + (f64::from(place) - count / 2.0) * 8.0;
            writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"#2a6f97\"/>", y(*rate)).unwrap();
        }
        let median = rates[rates.len() / 2];
        writeln!(
            svg,
            "<path d=\"M{:.1} {1:.1}H{2:.1}\" stroke=\"#d1495b\" stroke-width=\"2\"/><text x=\"{2:.1}\" y=\"{3:.1}\" \
             text-anchor=\"end\" fill=\"#d1495b\">median {median:.0}</text>\n\
             <text x=\"{middle:.1}\" y=\"{4}\" text-anchor=\"middle\">a list of {5} ids, {6} chunks</text>",
            middle - 100.0,
            y(median),
            middle + 100.0,
            y(median) - 6.0,
            BOTTOM + 24.0,
            list.ids,
            list.ids / u64::from(list.chunk)
        )
        .unwrap();
    }
    svg.push_str("</svg>\n");
    svg
}
