//! Documents fetched from the source of truth: despite crashes each is there once, and no newer write is overwritten.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::support::{Random, Raw, TIMEOUT, Truth, World, WorldOptions, seed, wait_at_most};

fn quick_to_take_over() -> Vec<(&'static str, String)> {
    vec![
        ("kafka", "session_timeout = \"3s\"".to_owned()),
        ("kafka", "heartbeat_interval = \"300ms\"".to_owned()),
        ("shutdown", "revoke_timeout = \"2s\"".to_owned()),
        ("batch", "max_documents = 50".to_owned()),
        ("retry", "max_backoff = \"1s\"".to_owned()),
    ]
}

fn record(id: &str, op: &str, value: Option<&Value>) -> Raw {
    Raw {
        key: Some(id.as_bytes().to_vec()),
        value: value.map(|value| value.to_string().into_bytes()),
        headers: vec![("geofold-op", op.to_owned())],
        ..Raw::default()
    }
}

fn document(random: &mut Random, from: &str) -> Value {
    let lat = f64::from(random.below(160) as i32 - 80);
    let lon = f64::from(random.below(340) as i32 - 170);
    json!({"location": {"lat": lat, "lon": lon}, "from": from})
}

/// A database of PostgreSQL that no other test uses, with a table of documents.
struct Postgres {
    runtime: Runtime,
    options: sqlx::postgres::PgConnectOptions,
    lines: Vec<(&'static str, String)>,
}

impl Postgres {
    fn new() -> Self {
        let url = std::env::var("GEOFOLD_TEST_POSTGRES")
            .expect("a stack with PostgreSQL: dev/stack up --postgresql");
        let password = std::env::var("GEOFOLD_TEST_POSTGRES_PASSWORD").unwrap();
        let name = format!("s{:x}", std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos());
        let runtime = Runtime::new().unwrap();
        let options: sqlx::postgres::PgConnectOptions = url.parse().unwrap();
        let options = options.password(&password);
        let (server, _) = url.rsplit_once('/').unwrap();
        let lines = vec![
            ("source", "kind = \"postgresql\"".to_owned()),
            ("source", format!("url = \"{server}/{name}\"")),
            ("source", format!("password = {password:?}")),
            ("source", "query = \"SELECT id, document FROM truth WHERE id = ANY($1)\"".to_owned()),
            ("source", "batch_size = 40".to_owned()),
        ];
        let this = Self { runtime, options, lines };
        this.run(&format!("CREATE DATABASE {name}"));
        let this = Self { options: this.options.clone().database(&name), ..this };
        this.run("CREATE TABLE truth (id text PRIMARY KEY, document json)");
        this
    }

    fn run(&self, sql: &str) {
        self.runtime.block_on(async {
            let mut connection =
                <sqlx::PgConnection as sqlx::Connection>::connect_with(&self.options).await.unwrap();
            let sql = sqlx::AssertSqlSafe(sql.to_owned());
            sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
        });
    }

    fn fill<'a>(&self, documents: impl Iterator<Item = (&'a String, &'a Value)>) {
        let rows: Vec<String> = documents.map(|(id, document)| format!("('{id}', '{document}')")).collect();
        self.run(&format!("INSERT INTO truth VALUES {}", rows.join(",")));
    }
}

/// Each document once, in its geoshard, with this content; and no other.
fn assert_is(world: &World, expected: &BTreeMap<String, Value>) {
    let truth = Truth::new();
    let copies = world.copies();
    for (id, document) in expected {
        let found = copies.get(id).map_or(&[][..], Vec::as_slice);
        let [copy] = found else { panic!("{id}: {found:?}, and it should be {document}") };
        assert_eq!(copy.source, *document, "{id}");
        assert!(copy.index.ends_with(&format!("-{}", truth.shard_of(document))), "{id}: {copy:?}");
    }
    let others: Vec<_> = copies.keys().filter(|id| !expected.contains_key(*id)).collect();
    assert!(others.is_empty(), "{others:?} should be gone");
}

#[test]
fn documents_from_postgresql_exist_once_despite_kills_and_newer_writes_win() {
    let mut random = Random::new(seed("what_is_fetched_from_postgresql"));
    let postgres = Postgres::new();
    let config = quick_to_take_over().into_iter().chain(postgres.lines.clone()).collect();
    let world = World::new(WorldOptions { partitions: 4, config });
    let ids: Vec<String> = (0..3_000).map(|n| format!("d{n}")).collect();
    let mut truth = BTreeMap::new();
    for id in &ids {
        if random.below(10) > 0 {
            truth.insert(id.clone(), document(&mut random, "truth"));
        }
    }
    postgres.fill(truth.iter());
    let mut expected = truth.clone();
    let mut records = Vec::new();
    // What is there before is something else, somewhere else.
    for id in &ids {
        records.push(record(id, "index", Some(&document(&mut random, "before"))));
    }
    for id in &ids {
        records.push(record(id, "refeed", None));
        match random.below(6) {
            0 => {
                let newer = document(&mut random, "newer");
                records.push(record(id, "index", Some(&newer)));
                expected.insert(id.clone(), newer);
            }
            1 => {
                records.push(record(id, "delete", None));
                expected.remove(id);
            }
            2 => {
                records.push(record(id, "patch", Some(&json!({"patched": true}))));
                if let Some(document) = expected.get_mut(id) {
                    document["patched"] = json!(true);
                }
            }
            _ => {}
        }
    }
    let steady = world.worker();
    let mut victim = world.worker();
    steady.wait_until_ready();
    let kills = 4;
    for part in records.chunks(records.len() / kills) {
        world.produce(part);
        // In the middle of its work, wherever that is.
        std::thread::sleep(Duration::from_millis(600));
        victim.kill();
        victim = world.worker();
    }
    world.wait_until_committed(TIMEOUT);
    assert!(steady.metric("geofold_refeed_answers_total", "result=\"found\"") > 0.0);
    victim.stop();
    steady.stop();
    assert_is(&world, &expected);
    assert_eq!(world.dead_letters().len(), 0);
}

/// A web server with one document for every id, while it is up.
struct Web {
    address: std::net::SocketAddr,
    is_up: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
}

const DOCUMENT: &str = r#"{"location":{"lat":1.0,"lon":2.0},"from":"truth"}"#;

impl Web {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (is_up, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (up, counted) = (is_up.clone(), asked.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (up, counted) = (up.clone(), counted.clone());
                std::thread::spawn(move || serve(stream, &up, &counted));
            }
        });
        Self { address, is_up, asked }
    }
}

/// Until the client closes, or something is odd.
fn serve(stream: TcpStream, is_up: &AtomicBool, asked: &AtomicUsize) {
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    let mut answer = stream;
    loop {
        let mut line = String::new();
        while line.trim_end() != "" || line.is_empty() {
            line.clear();
            if lines.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
        }
        asked.fetch_add(1, Ordering::Relaxed);
        let (status, body) = match is_up.load(Ordering::Relaxed) {
            true => ("200 OK", DOCUMENT),
            false => ("500 Internal Server Error", ""),
        };
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
        if answer.write_all(format!("{head}{body}").as_bytes()).is_err() {
            return;
        }
    }
}

#[test]
fn a_source_that_is_down_slows_only_what_needs_it_and_a_worker_killed_meanwhile_loses_nothing() {
    let web = Web::start();
    let mut config = quick_to_take_over();
    config.push(("source", "kind = \"http\"".to_owned()));
    config.push(("source", format!("url = \"http://{}/{{id}}\"", web.address)));
    config.push(("source", "probe_id = \"p0\"".to_owned()));
    let world = World::new(WorldOptions { partitions: 2, config });
    let mut random = Random::new(seed("a_source_that_is_down"));
    let mut expected = BTreeMap::new();
    let patched: Vec<String> = (0..100).map(|n| format!("p{n}")).collect();
    let whole: Vec<String> = (0..1_000).map(|n| format!("w{n}")).collect();
    let mut records: Vec<Raw> =
        patched.iter().map(|id| record(id, "patch", Some(&json!({"patched": true})))).collect();
    for id in &whole {
        let document = document(&mut random, "topic");
        records.push(record(id, "index", Some(&document)));
        expected.insert(id.clone(), document);
    }
    let worker = world.worker();
    worker.wait_until_ready();
    world.produce(&records);
    wait_at_most("all that does not need the source", TIMEOUT, || {
        (world.copies().len() == whole.len()).then_some(())
    });
    assert_is(&world, &expected);
    wait_at_most("readiness to say why", TIMEOUT, || {
        worker.not_ready_because().contains("source").then_some(())
    });
    let asked = web.asked.load(Ordering::Relaxed);
    worker.kill();
    let worker = world.worker();
    wait_at_most("the next one asks", TIMEOUT, || (web.asked.load(Ordering::Relaxed) > asked).then_some(()));
    web.is_up.store(true, Ordering::Relaxed);
    world.wait_until_committed(TIMEOUT);
    worker.wait_until_ready();
    worker.stop();
    for id in patched {
        let mut document: Value = serde_json::from_str(DOCUMENT).unwrap();
        document["patched"] = json!(true);
        expected.insert(id, document);
    }
    assert_is(&world, &expected);
    assert_eq!(world.dead_letters().len(), 0);
}

#[test]
fn differences_from_postgresql_are_found_and_refetched_during_writes() {
    const EACH: usize = 40;
    let mut random = Random::new(seed("what_differs_from_postgresql"));
    let postgres = Postgres::new();
    let config = quick_to_take_over().into_iter().chain(postgres.lines.clone()).collect();
    let world = World::new(WorldOptions { partitions: 4, config });
    let mut truth = BTreeMap::new();
    let mut records = Vec::new();
    let mut planted: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (kind, n) in
        ["same", "different", "missing", "extra"].iter().flat_map(|kind| (0..EACH).map(move |n| (*kind, n)))
    {
        let id = format!("{kind}-{n}");
        let (there, here) = (document(&mut random, "truth"), document(&mut random, "index"));
        match kind {
            "same" => records.push(record(&id, "index", Some(&there))),
            "different" | "extra" => records.push(record(&id, "index", Some(&here))),
            _ => records.push(record(&id, "delete", None)),
        }
        if kind != "extra" {
            truth.insert(id.clone(), there);
        }
        if kind != "same" {
            planted.entry(kind).or_default().push(id);
        }
    }
    postgres.fill(truth.iter());
    world.produce(&records);
    let worker = world.worker();
    world.wait_until_committed(TIMEOUT);

    let audit = |args: &[&str]| {
        let output = world.geofold(&[&["audit", "--source", "--json", "--settle", "1s"], args].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        let report: Value = serde_json::from_str(&text)
            .unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)));
        (output.status.success(), report)
    };
    let out = world.dir().join("differs");
    let (is_well, report) = audit(&["--out", out.to_str().unwrap()]);
    assert!(!is_well);
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in std::fs::read_to_string(&out).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| line[key].as_str().unwrap().to_owned();
        found.entry(text("difference")).or_default().push(text("id"));
    }
    for (kind, planted) in &mut planted {
        planted.sort_unstable();
        let found = found.get_mut(*kind).unwrap_or_else(|| panic!("no {kind} in {report}"));
        found.sort_unstable();
        assert_eq!(found, planted, "{kind}");
    }
    assert_eq!(report["documents"], json!(4 * EACH), "{report}");
    assert_eq!(report["wrong"], json!(3 * EACH), "{report}");
    let (is_well, report) = audit(&["--sample", "10"]);
    assert!(is_well || report["wrong"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["documents"], json!(10), "{report}");

    // Writes that the source knows of go on meanwhile, and end as it says.
    let (done, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let writes: Vec<(String, Value)> = truth
        .iter()
        .filter(|(id, _)| id.starts_with("same"))
        .map(|(id, it)| (id.clone(), it.clone()))
        .collect();
    let feed = world.feed();
    let (counted, stopped) = (done.clone(), stop.clone());
    let writer = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            let (id, document) = &writes[counted.fetch_add(1, Ordering::Relaxed) % writes.len()];
            feed.send(&[record(id, "index", Some(document))]);
            std::thread::sleep(Duration::from_millis(5));
        }
        feed.flush();
    });
    let (is_well, report) = audit(&["--repair"]);
    assert!(is_well, "{report}");
    assert_eq!(report["refed"], json!(3 * EACH), "{report}");
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    assert!(done.load(Ordering::Relaxed) > 10);
    world.wait_until_committed(TIMEOUT);
    assert_is(&world, &truth);
    let (is_well, report) = audit(&[]);
    assert!(is_well, "{report}");
    // What geofold never heard of is found by its id.
    postgres.fill([("unheard".to_owned(), document(&mut random, "truth"))].iter().map(|(id, it)| (id, it)));
    let ids = world.dir().join("ids");
    std::fs::write(&ids, "unheard\nsame-1\n").unwrap();
    let (is_well, report) = audit(&["--ids", ids.to_str().unwrap(), "--repair"]);
    assert!(is_well);
    assert_eq!(report["differences"], json!({"missing": 1}), "{report}");
    world.wait_until_committed(TIMEOUT);
    wait_at_most("it is there", TIMEOUT, || world.copies().contains_key("unheard").then_some(()));
    worker.stop();
}
