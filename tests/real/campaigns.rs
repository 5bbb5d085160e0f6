//! Campaigns: a dead process loses nothing of a list, selections find what they say, and periodic ones are made once.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use geofold::testkit::ports::free_address;
use rdkafka::Message;
use rdkafka::message::Headers;
use reqwest::blocking::{Client, RequestBuilder};
use serde_json::{Value, json};

use crate::support::postgres::OwnDatabase;
use crate::support::{CITIES, Event, Random, TIMEOUT, World, WorldOptions, seed, text, wait_at_most};

const CHUNK: u64 = 100;

/// A database that no other test uses, as lines of the configuration: of PostgreSQL, if the stack has one, with the password in a
/// file; otherwise SQLite's, in this folder.
fn database(folder: &Path) -> Vec<(&'static str, String)> {
    let line = |line: String| ("database", line);
    let Some(own) = OwnDatabase::new() else {
        return vec![line(format!("url = \"sqlite:{}\"", folder.join("campaigns.db").display()))];
    };
    let password_file = folder.join("password");
    std::fs::write(&password_file, &own.password).unwrap();
    let password_file = format!("password_file = {:?}", password_file.display().to_string());
    vec![line(format!("url = {:?}", own.url)), line(password_file), line("max_connections = 2".to_owned())]
}

/// A process that runs, and its log. Killed on drop.
struct Process(Child, PathBuf);

impl Process {
    fn start(world: &World, number: u64, args: &[&str]) -> Self {
        Self::start_command(world, number, &[&["campaign"], args].concat(), &[])
    }

    /// Another command that runs on.
    fn start_command(world: &World, number: u64, args: &[&str], environment: &[(&str, &str)]) -> Self {
        let path = world.dir().join(format!("campaign-{number}.log"));
        let log = std::fs::File::create(&path).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_geofold"))
            .args(args)
            .arg("--config")
            .arg(&world.config)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self(child, path)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.1).unwrap()
    }

    fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn campaign(world: &World, args: &[&str]) -> Value {
    let output = world.geofold(&[&["campaign"], args, &["--json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", text(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// How often each id was sent, with this operation alone.
fn sent(world: &World, op: &str) -> BTreeMap<String, u64> {
    let mut sent = BTreeMap::new();
    world.records(|record| {
        let header = record.headers().unwrap().get(0);
        assert_eq!((header.key, header.value), ("geofold-op", Some(op.as_bytes())));
        assert!(record.payload().is_none());
        *sent.entry(String::from_utf8(record.key().unwrap().to_vec()).unwrap()).or_insert(0) += 1;
    });
    sent
}

#[test]
fn runners_killed_at_random_send_every_id_and_repeat_only_what_was_at_work() {
    const IDS: u64 = 100_000;
    const RUNNERS: u64 = 8;
    let folder = tempfile::TempDir::new().unwrap();
    let mut config = database(folder.path());
    config.push(("campaigns", "lease_duration = \"3s\"".to_owned()));
    config.push(("campaigns", format!("chunk_size = {CHUNK}")));
    config.push(("retry", "max_backoff = \"1s\"".to_owned()));
    // No worker runs that would ask it; a refeed without one is refused.
    for line in ["kind = \"http\"", "url = \"http://127.0.0.1:9/{id}\"", "probe_id = \"a\""] {
        config.push(("source", line.to_owned()));
    }
    let world = World::new(WorldOptions { config, ..WorldOptions::default() });
    let mut random = Random::new(seed("runners_killed_at_random_send_every_id"));
    let list = world.dir().join("ids");
    let wanted: BTreeSet<String> = (0..IDS).map(|number| format!("id-{number:06}")).collect();
    std::fs::write(&list, wanted.iter().map(|id| format!("{id}\n")).collect::<String>()).unwrap();
    let list = list.to_str().unwrap();
    // The rate gives the killer time.
    let made = campaign(&world, &["create", "--action", "refeed", "--from", list, "--rate", "4000"]);
    assert_eq!((made["ids"].as_u64(), made["bad"].as_u64()), (Some(IDS), Some(0)));
    let id = made["id"].as_i64().unwrap().to_string();

    let mut number = 0;
    let mut start = || {
        number += 1;
        Process::start(&world, number, &["run", &id])
    };
    let mut runners: Vec<Process> = (0..RUNNERS).map(|_| start()).collect();
    let (began, mut kills) = (Instant::now(), 0);
    let status = loop {
        std::thread::sleep(Duration::from_millis(random.below(1500)));
        let status = campaign(&world, &["status", &id]);
        if status["state"] == "done" {
            break status;
        }
        assert!(began.elapsed() < TIMEOUT, "{status:#}");
        let victim = random.below(RUNNERS) as usize;
        // Towards the end everybody is left alone, or it would never come.
        if kills < 60 && runners[victim].is_running() && status["produced"].as_u64() > Some(0) {
            runners[victim] = start();
            kills += 1;
        }
    };
    for runner in &mut runners {
        wait_at_most("runners to see that it is done", TIMEOUT, || (!runner.is_running()).then_some(()));
    }
    assert_eq!((status["produced"].as_u64(), status["failed"].as_u64()), (Some(IDS), Some(0)), "{status:#}");
    let sent = sent(&world, "refeed");
    assert!(sent.keys().eq(wanted.iter()), "{} of {IDS} ids were sent", sent.len());
    let extra = sent.values().sum::<u64>() - IDS;
    eprintln!(
        "{IDS} ids, {RUNNERS} runners, {kills} kills: {extra} records more than ids, in {:.0} s",
        began.elapsed().as_secs_f64()
    );
    assert!(kills >= 5, "{kills} kills are no test");
    assert!(extra <= kills * CHUNK, "{extra} more after {kills} kills");
}

#[test]
fn selections_find_what_they_say_and_workers_carry_out_what_runners_send() {
    let world = World::new(WorldOptions::default());
    let worker = world.worker();
    let document = |number: usize| {
        let (lat, lon) = CITIES[number % CITIES.len()];
        json!({"location": {"lat": lat, "lon": lon}, "even": number.is_multiple_of(2)})
    };
    let events = (0..60).map(|number| Event::Index { id: format!("d{number}"), document: document(number) });
    let gone = (0..10).map(|number| Event::Delete { id: format!("d{number}") });
    world.send(&events.chain(gone).collect::<Vec<_>>());
    world.wait_until_committed(TIMEOUT);
    let copies = world.copies();
    assert_eq!(copies.len(), 50);
    let index = copies.values().next().unwrap()[0].index.clone();
    let shard = index.strip_prefix(&format!("{}-", world.name)).unwrap();
    let in_shard: BTreeSet<&String> =
        copies.iter().filter(|(_, copies)| copies[0].index == index).map(|(id, _)| id).collect();
    let count = |args: &[&str]| {
        let made = campaign(&world, &[&["create", "--action", "touch"], args].concat());
        assert_eq!(made["bad"], 0);
        (made["id"].as_i64().unwrap().to_string(), made["ids"].as_u64().unwrap())
    };

    let (all, ids) = count(&["--all"]);
    assert_eq!(ids, 50, "the deleted ones are left out");
    let query = world.dir().join("query.json");
    std::fs::write(&query, r#"{"query": {"term": {"even": true}}}"#).unwrap();
    assert_eq!(count(&["--query", query.to_str().unwrap()]).1, 25);
    let map = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/support/map-12.json");
    assert_eq!(count(&["--map-diff", map, map, "--yes"]).1, 0, "made only since it is said twice");
    let (one_shard, ids) = count(&["--shard", shard]);
    assert_eq!(ids, in_shard.len() as u64);

    for id in [&all, &one_shard] {
        let output = world.geofold(&["campaign", "run", id]);
        assert!(output.status.success(), "{}", text(&output));
    }
    world.wait_until_committed(TIMEOUT);
    // What is in its place stays there, and each was touched.
    let touched = world.copies();
    assert!(touched.keys().eq(copies.keys()));
    for (id, before) in &copies {
        let (before, after) = (&before[0], &touched[id][0]);
        assert_eq!((&before.index, &before.source), (&after.index, &after.source));
        assert!(after.version > before.version, "{id} was not touched");
    }
    // A second run has nothing to do; a campaign that is not there is a wrong argument.
    assert!(world.geofold(&["campaign", "run", &all]).status.success());
    assert_eq!(world.geofold(&["campaign", "run", "999"]).status.code(), Some(2));

    let made = campaign(&world, &["create", "--action", "delete", "--shard", shard]);
    assert!(world.geofold(&["campaign", "run", &made["id"].to_string()]).status.success());
    world.wait_until_committed(TIMEOUT);
    let left = world.copies();
    assert_eq!(left.len(), copies.len() - in_shard.len());
    assert!(in_shard.iter().all(|id| !left.contains_key(*id)));
    worker.stop();
}

/// A collector with a token. Killed on drop.
struct Collector {
    address: String,
    _process: Process,
}

impl Collector {
    const TOKEN: &str = "a-token-of-a-test";

    fn start(world: &World, number: u64) -> Self {
        let address = free_address().unwrap().to_string();
        let environment = [("GEOFOLD_COLLECTOR__LISTEN", address.as_str())];
        let process = Process::start_command(world, number, &["collect"], &environment);
        let collector = Self { address, _process: process };
        wait_at_most("a ready collector", TIMEOUT, || {
            collector.ask("GET", "/readyz").send().ok()?.error_for_status().ok()
        });
        collector
    }

    fn ask(&self, method: &str, path: &str) -> RequestBuilder {
        let client = Client::builder().timeout(TIMEOUT).no_proxy().build().unwrap();
        let url = format!("http://{}{path}", self.address);
        client.request(method.parse().unwrap(), url).bearer_auth(Self::TOKEN)
    }

    /// Sends the head of a request and a part of its body.
    fn begin(&self, path: &str, key: &str, length: usize, part: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\nidempotency-key: {key}\r\n\
             content-length: {length}\r\n\r\n",
            Self::TOKEN
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(part.as_bytes()).unwrap();
        stream
    }
}

/// A customer's request deletes documents, although the collector that takes the list is killed.
#[test]
fn a_list_by_http_is_one_campaign_although_the_collector_that_takes_it_is_killed() {
    const IDS: usize = 3_000;
    let folder = tempfile::TempDir::new().unwrap();
    let mut config = database(folder.path());
    config.push(("campaigns", format!("bearer_token = {:?}", Collector::TOKEN)));
    config.push(("tally", "geoshard = true".to_owned()));
    let world = World::new(WorldOptions { config, ..WorldOptions::default() });
    world.stack.create_topic(&format!("{}-increments", world.name), 1);
    let worker = world.worker();
    let (lat, lon) = CITIES[0];
    let event = |number| Event::Index {
        id: format!("d{number}"),
        document: json!({"location": {"lat": lat, "lon": lon}}),
    };
    world.send(&(0..IDS + 10).map(event).collect::<Vec<_>>());
    world.wait_until_committed(TIMEOUT);
    let list: String = (0..IDS).map(|number| format!("d{number}\n")).collect();
    let (path, key) = ("/campaigns?action=delete&name=order-17", "order-17");

    let first = Collector::start(&world, 1);
    let half = first.begin(path, key, list.len(), &list[..list.len() / 2]);
    wait_at_most("the half of a list", TIMEOUT, || {
        let campaigns: Value = first.ask("GET", "/campaigns").send().ok()?.json().ok()?;
        (campaigns["campaigns"][0]["state"] == "creating").then_some(())
    });
    drop(first);
    drop(half);

    let second = Collector::start(&world, 2);
    let post = || second.ask("POST", path).header("idempotency-key", key).body(list.clone()).send().unwrap();
    // Until it is certain that the other is dead, a repetition has to wait.
    let made = wait_at_most("the campaign", TIMEOUT, || {
        let answer = post();
        match answer.status().as_u16() {
            201 => Some(answer.json::<Value>().unwrap()),
            status => {
                assert_eq!(status, 409, "{}", answer.text().unwrap());
                std::thread::sleep(Duration::from_secs(2));
                None
            }
        }
    });
    assert_eq!((made["ids"].as_u64(), made["failed"].as_u64()), (Some(IDS as u64), Some(0)), "{made}");
    let again = post();
    assert_eq!(again.status(), 200);
    assert_eq!(again.json::<Value>().unwrap()["id"], made["id"]);
    let without_token = reqwest::blocking::get(format!("http://{}/campaigns", second.address)).unwrap();
    assert_eq!(without_token.status(), 401);

    let _watcher = Process::start(&world, 3, &["watch"]);
    let one = format!("/campaigns/{}", made["id"]);
    wait_at_most("the end of the campaign", TIMEOUT, || {
        let status: Value = second.ask("GET", &one).send().unwrap().json().unwrap();
        (status["state"] == "done").then_some(())
    });
    world.wait_until_committed(TIMEOUT);
    let left: Vec<String> = world.copies().into_keys().collect();
    let expected: BTreeSet<String> = (IDS..IDS + 10).map(|number| format!("d{number}")).collect();
    assert!(left.iter().eq(&expected), "{left:?}");
    worker.stop();
}

#[test]
fn of_a_periodic_campaign_each_period_has_one_however_many_watch() {
    let periodic =
        "periodic = [{ name = \"yearly\", interval = \"3650d\", action = \"touch\", what = \"all\" }]";
    let world = World::new(WorldOptions {
        config: vec![("campaigns", periodic.to_owned())],
        ..WorldOptions::default()
    });
    let worker = world.worker();
    let (lat, lon) = CITIES[0];
    let event = |number| Event::Index {
        id: format!("d{number}"),
        document: json!({"location": {"lat": lat, "lon": lon}}),
    };
    world.send(&(0..10).map(event).collect::<Vec<_>>());
    world.wait_until_committed(TIMEOUT);
    let mut watchers: Vec<Process> =
        (0..3).map(|number| Process::start(&world, number, &["watch"])).collect();
    let is_done = || {
        let list = campaign(&world, &["list"]);
        (list[0]["state"] == "done").then_some(list)
    };
    wait_at_most("the campaign of this period", TIMEOUT, is_done);
    // All of them look again some times.
    std::thread::sleep(Duration::from_secs(12));
    let list = campaign(&world, &["list"]);
    assert_eq!(list.as_array().unwrap().len(), 1, "{list:#}");
    assert_eq!((list[0]["produced"].as_u64(), list[0]["name"].as_str()), (Some(10), Some("yearly")));
    for watcher in &mut watchers {
        let id = watcher.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let status = wait_at_most("a watcher that ends", TIMEOUT, || watcher.0.try_wait().unwrap());
        assert!(status.success(), "{status}: {}", watcher.log());
    }
    worker.stop();
}
