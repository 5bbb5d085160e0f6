//! Counts are exact despite failures of collectors and database.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use geofold::core::counting::increment::Increment;
use geofold::io::database::Database;
use geofold::ops::tally::collect::history::SimulatedHistory;
use geofold::ops::tally::collect::store::CountStore;
use geofold::support::config::{DatabaseConfig, Secret};
use geofold::testkit::ports::free_port;
use rdkafka::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::support::postgres::OwnDatabase;
use crate::support::{Random, Stack, TIMEOUT, seed, wait_at_most};

const PARTITIONS: i32 = 3;

/// A topic of increments and a database of PostgreSQL that no other test uses.
struct Rig {
    stack: Stack,
    topic: String,
    database: DatabaseConfig,
    config: PathBuf,
    dir: TempDir,
    runtime: Runtime,
    producer: FutureProducer,
}

/// A running `geofold collect`. Killed on drop.
struct Collector {
    child: Child,
    url: String,
    log: PathBuf,
}

impl Rig {
    fn new() -> Self {
        let stack = Stack::alone();
        let own = OwnDatabase::new().expect("a stack with PostgreSQL: dev/stack up --postgresql");
        let name = format!("t{:x}", std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos());
        let (dir, runtime) = (TempDir::new().unwrap(), Runtime::new().unwrap());
        let topic = format!("{name}-increments");
        stack.create_topic(&topic, PARTITIONS);
        let client = ClientConfig::new().set("bootstrap.servers", &stack.kafka).clone();
        let producer = runtime.block_on(async { client.create().unwrap() });
        let database = DatabaseConfig {
            url: own.url.parse().unwrap(),
            password: Some(Secret::new(own.password.clone())),
            ..DatabaseConfig::default()
        };
        let config = dir.path().join("geofold.toml");
        std::fs::write(dir.path().join("password"), own.password).unwrap();
        let text = format!(
            "[kafka]\nbrokers = [\"{}\"]\ntopic = \"{name}\"\ngroup_id = \"{name}\"\n[elasticsearch]\nurls = [\"{}\"]\n\
             [tally]\ngeoshard = true\n[database]\nurl = \"{}\"\npassword_file = \"password\"\ntimeout = \"5s\"\n\
             [collector]\nmerge_interval = \"100ms\"\ntakeover_timeout = \"1s\"\n[retry]\nmax_backoff = \"1s\"\n",
            stack.kafka, stack.elasticsearch, own.url
        );
        std::fs::write(&config, text).unwrap();
        Self { stack, topic, database, config, dir, runtime, producer }
    }

    fn collector(&self, number: u32) -> Collector {
        let port = free_port().unwrap();
        let log = self.dir.path().join(format!("collector-{number}.log"));
        let file = std::fs::File::create(&log).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_geofold"))
            .args(["collect", "--config"])
            .arg(&self.config)
            .env("GEOFOLD_COLLECTOR__LISTEN", format!("127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Collector { child, url: format!("http://127.0.0.1:{port}"), log }
    }

    fn send(&self, increments: &[Increment]) {
        self.runtime.block_on(async {
            for increment in increments {
                let (key, value) = (increment.key(), increment.to_json());
                let record = FutureRecord::to(&self.topic).key(&key).payload(&value);
                self.producer.send(record, Timeout::After(TIMEOUT)).await.unwrap();
            }
        });
    }

    /// The counts; `None` while the database does not answer or has no tables yet.
    fn counts(&self) -> Option<Vec<(String, String, i64)>> {
        self.runtime.block_on(async {
            let database = Database::open(&self.database).await.ok()?;
            let counts = CountStore::new(database.clone(), 10, 10).counts().await.ok();
            database.close().await;
            counts
        })
    }

    fn wait_for_counts(&self, expected: &[(String, String, i64)]) {
        let mut last = None;
        let equal = crate::support::ask_for(TIMEOUT, || {
            last = self.counts();
            last.as_deref().is_some_and(|counts| counts == expected).then_some(())
        });
        assert!(equal.is_some(), "counts are\n{last:?}\nand should be\n{expected:?}");
    }
}

impl Collector {
    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
    }

    fn get(&self, path: &str) -> Option<String> {
        let client = reqwest::blocking::Client::builder().timeout(Duration::from_secs(2)).build().unwrap();
        let answer = client.get(format!("{}{path}", self.url)).send().ok()?;
        answer.status().is_success().then(|| answer.text().ok())?
    }

    fn is_leading(&self) -> bool {
        self.get("/metrics")
            .is_some_and(|text| text.lines().any(|line| line == "geofold_collector_leading 1"))
    }

    fn stop(mut self) {
        self.signal("CONT");
        self.signal("TERM");
        let status = wait_at_most("a collector that steps down", TIMEOUT, || self.child.try_wait().unwrap());
        assert!(status.success(), "{status}\n{}", std::fs::read_to_string(&self.log).unwrap());
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(30).collect();
            eprintln!("--- the last lines of {}:", self.log.display());
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How long collectors are troubled: more for a longer look.
fn rounds() -> u64 {
    std::env::var("GEOFOLD_COLLECTOR_ROUNDS").map_or(20, |rounds| rounds.parse().expect("a number"))
}

#[test]
fn collectors_killed_and_frozen_at_random_count_every_change_once() {
    let rig = Rig::new();
    let mut random = Random::new(seed("collectors_killed_and_frozen_at_random"));
    let mut history = SimulatedHistory::new(random.bits(), "documents", 5, 300);
    let mut sent: Vec<Increment> = Vec::new();
    let mut collectors: Vec<Collector> = (0..2).map(|number| rig.collector(number)).collect();
    for round in 0..rounds() {
        let mut increments = Vec::new();
        for _ in 0..20 {
            increments.push(history.next_increment(random.below(20)));
            if random.below(4) == 0 && !sent.is_empty() {
                increments.push(sent[random.below(sent.len() as u64) as usize].clone());
            }
        }
        rig.send(&increments);
        sent.extend(increments);
        let victim = random.below(collectors.len() as u64) as usize;
        match random.below(4) {
            // In the middle of its work, wherever that is.
            0 => {
                drop(collectors.remove(victim));
                collectors.push(rig.collector(10 + round as u32));
            }
            1 => collectors[victim].signal("STOP"),
            2 => collectors.iter().for_each(|collector| collector.signal("CONT")),
            _ => {}
        }
        if round == rounds() / 2 {
            rig.stack.tell("kill", "postgresql");
            rig.stack.tell("start", "postgresql");
        }
        std::thread::sleep(Duration::from_millis(random.below(1500)));
    }
    collectors.iter().for_each(|collector| collector.signal("CONT"));
    rig.send(&history.last_increments());
    rig.wait_for_counts(&history.counts());
    collectors.into_iter().for_each(Collector::stop);
    assert_eq!(rig.counts().unwrap(), history.counts());
}

#[test]
fn a_collector_that_stands_by_takes_over_from_one_that_is_killed_or_frozen() {
    let rig = Rig::new();
    let mut history = SimulatedHistory::new(1, "documents", 2, 50);
    let mut collectors = vec![rig.collector(0), rig.collector(1)];
    for how in ["STOP", "KILL"] {
        let leading = wait_at_most("a collector that merges", TIMEOUT, || {
            collectors.iter().position(Collector::is_leading)
        });
        let before = collectors.remove(leading);
        before.signal(how);
        wait_at_most("the other one to take over", TIMEOUT, || collectors[0].is_leading().then_some(()));
        rig.send(&[history.next_increment(10), history.next_increment(10)]);
        rig.send(&history.last_increments());
        rig.wait_for_counts(&history.counts());
        if how == "STOP" {
            before.signal("CONT");
            wait_at_most("who was frozen to stand by", TIMEOUT, || {
                before.get("/metrics").filter(|text| text.contains("geofold_collector_leading 0"))
            });
        }
        let cloud = wait_at_most("the cloud", TIMEOUT, || collectors[0].get("/cloud?facet=tags&top=3"));
        let cloud: serde_json::Value = serde_json::from_str(&cloud).unwrap();
        assert_eq!(cloud["facets"]["tags"].as_array().unwrap().len(), 3, "{cloud}");
        if how == "STOP" {
            collectors.push(before);
        }
    }
    collectors.into_iter().for_each(Collector::stop);
}
