//! A real Prometheus scrapes real workers: it understands what they say, every query of the dashboard has an answer, and an
//! alert begins when its cause does.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use geofold::testkit::ports::free_port;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{CITIES, Event, Raw, TIMEOUT, Worker, World, WorldOptions, wait_at_most};

/// What is only there while something is wrong, or with parts of the configuration that this world has not.
const MAY_BE_EMPTY: [&str; 5] = ["distribution_", "tally_", "collector_", "refeed_", "audit"];

/// A running Prometheus with the alerts that ship. Killed on drop.
struct Prometheus {
    child: Child,
    url: String,
    http: reqwest::blocking::Client,
    dir: TempDir,
}

impl Prometheus {
    fn scraping(workers: &[&Worker]) -> Self {
        let dir = TempDir::new().unwrap();
        let alerts = concat!(env!("CARGO_MANIFEST_DIR"), "/dashboards/alerts.yml");
        let targets: Vec<&str> = workers.iter().map(|worker| worker.address()).collect();
        let config = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [alerts],
            "scrape_configs": [{"job_name": "geofold", "static_configs": [{"targets": targets}]}],
        });
        // JSON is YAML.
        std::fs::write(dir.path().join("prometheus.yml"), config.to_string()).unwrap();
        let port = free_port().unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", dir.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let http = reqwest::blocking::Client::builder().timeout(Duration::from_secs(120)).build().unwrap();
        let prometheus = Self { child, url: format!("http://127.0.0.1:{port}"), http, dir };
        wait_at_most("a Prometheus that is ready", TIMEOUT, || {
            prometheus
                .http
                .get(format!("{}/-/ready", prometheus.url))
                .send()
                .ok()?
                .status()
                .is_success()
                .then_some(())
        });
        prometheus
    }

    /// What an API path answers; a refusal fails the test.
    fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Value {
        let answer = self.http.post(format!("{}/api/v1/{path}", self.url)).form(parameters).send().unwrap();
        let answer: Value = answer.json().unwrap();
        assert_eq!(answer["status"], "success", "{path} {parameters:?}: {answer}");
        answer["data"].clone()
    }

    fn get(&self, path: &str) -> Value {
        let answer: Value =
            self.http.get(format!("{}/api/v1/{path}", self.url)).send().unwrap().json().unwrap();
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].clone()
    }

    /// The series that an expression gives now.
    fn query(&self, expr: &str) -> Vec<Value> {
        self.ask("query", &[("query", expr)])["result"].as_array().unwrap().clone()
    }

    /// The one number that an expression gives now.
    fn number(&self, expr: &str) -> Option<f64> {
        self.query(expr).first()?["value"][1].as_str()?.parse().ok()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default());
        }
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_here(tool: &str) -> bool {
    Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Whether Prometheus and its tool are here; with GEOFOLD_TOOLS=all they have to be.
fn has_prometheus() -> bool {
    let there = is_here("prometheus") && is_here("promtool");
    assert!(
        there || std::env::var("GEOFOLD_TOOLS").as_deref() != Ok("all"),
        "GEOFOLD_TOOLS=all, and there is no Prometheus"
    );
    if !there {
        eprintln!("skipped: no Prometheus here; on Debian: apt-get install prometheus");
    }
    there
}

fn events(count: usize) -> Vec<Event> {
    let event = |n: usize| {
        let (lat, lon) = CITIES[n % CITIES.len()];
        Event::Index {
            id: format!("p{}", n % 50),
            document: json!({"location": {"lat": lat, "lon": lon}, "n": n}),
        }
    };
    (0..count).map(event).collect()
}

/// The queries of the dashboard, with all of each variable.
fn dashboard_queries() -> Vec<String> {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/dashboards/geofold.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let all = |expr: &str| {
        ["$job", "$instance", "$partition"]
            .iter()
            .fold(expr.replace("$__rate_interval", "30s"), |expr, name| expr.replace(name, ".+"))
    };
    targets.map(|target| all(target["expr"].as_str().unwrap())).collect()
}

#[test]
fn a_prometheus_scrapes_workers_and_adds_up_what_they_did() {
    if !has_prometheus() {
        return;
    }
    let world = World::new(WorldOptions::default());
    let workers = [world.worker(), world.worker()];
    workers.iter().for_each(|worker| worker.wait_until_assigned(2));
    let prometheus = Prometheus::scraping(&[&workers[0], &workers[1]]);
    wait_at_most("two targets that are up", TIMEOUT, || {
        (prometheus.number("sum(up)") == Some(2.0)).then_some(())
    });

    world.send(&events(2_000));
    world.wait_until_committed(TIMEOUT);
    wait_at_most("all records, as Prometheus adds them up", TIMEOUT, || {
        (prometheus.number("sum(geofold_records_processed_total)") == Some(2_000.0)).then_some(())
    });
    // The end of a partition is asked for now and then only.
    wait_at_most("no lag", TIMEOUT, || {
        (prometheus.number("sum(geofold_watermark_lag_records)") == Some(0.0)).then_some(())
    });

    // What Prometheus itself finds bad style in what is served.
    for worker in &workers {
        let (_, text) = worker.get("/metrics").unwrap();
        let mut tool = Command::new("promtool");
        tool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut tool = tool.spawn().unwrap();
        tool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let said = tool.wait_with_output().unwrap();
        assert!(said.status.success() && said.stderr.is_empty(), "{}", String::from_utf8_lossy(&said.stderr));
    }

    let queries = dashboard_queries();
    assert!(queries.len() > 40);
    for query in queries {
        let may_be_empty = MAY_BE_EMPTY.iter().any(|part| query.contains(part));
        // Rates need two scrapes.
        wait_at_most(&format!("an answer to {query}"), TIMEOUT, || {
            (may_be_empty || !prometheus.query(&query).is_empty()).then_some(())
        });
        prometheus.query(&query);
    }
    workers.into_iter().for_each(Worker::stop);
    wait_at_most("targets that are down", TIMEOUT, || {
        (prometheus.number("sum(up)") == Some(0.0)).then_some(())
    });
}

#[test]
fn an_alert_begins_when_a_partition_stops() {
    if !has_prometheus() {
        return;
    }
    let world = World::new(WorldOptions {
        partitions: 2,
        config: vec![("dead_letter", "policy = \"stop\"".to_owned())],
    });
    let worker = world.worker();
    worker.wait_until_assigned(2);
    let prometheus = Prometheus::scraping(&[&worker]);
    let alerts = || {
        let groups = prometheus.get("rules")["groups"].as_array().unwrap().clone();
        let rules: Vec<Value> =
            groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect();
        assert!(rules.len() > 15, "{}", rules.len());
        rules
    };
    let begun = |rules: &[Value]| -> Vec<String> {
        let active = rules.iter().filter(|rule| rule["state"] != "inactive");
        active.map(|rule| rule["name"].as_str().unwrap().to_owned()).collect()
    };
    wait_at_most("rules that were all looked at, none of which has begun", TIMEOUT, || {
        let rules = alerts();
        let looked_at = rules.iter().all(|rule| rule["health"] == "ok");
        (looked_at && begun(&rules).is_empty() && prometheus.number("sum(up)") == Some(1.0)).then_some(())
    });
    world.produce(&[Raw {
        partition: Some(1),
        key: Some(b"bad".to_vec()),
        value: Some(b"[]".to_vec()),
        ..Raw::default()
    }]);
    wait_at_most("the alert", TIMEOUT, || {
        begun(&alerts()).contains(&"GeofoldPartitionStopped".to_owned()).then_some(())
    });
    drop(worker);
}
