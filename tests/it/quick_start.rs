//! The README's quick start on the stand-ins: the binary makes indices, checks, sends, works, answers for itself, and
//! ends at SIGTERM. `tests/real/quick_start.rs` has the same on real services.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use geofold::testkit::embedded::broker::EmbeddedBroker;
use geofold::testkit::embedded::elasticsearch::{Standin, StandinOptions};
use geofold::testkit::ports::free_port;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::wait::wait_for;

fn geofold(config: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_geofold"));
    command.args(arguments).arg("--config").arg(config).stdin(Stdio::null()).output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn create_check_send_run_look_search_and_stop() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let standin = runtime.block_on(Standin::start(StandinOptions::default())).unwrap();
    let broker = EmbeddedBroker::start().unwrap();
    broker.set_initial_rebalance_delay(Duration::ZERO);
    broker.create_topic("documents", 4).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("geofold.toml");
    let port = free_port().unwrap();
    let map = concat!(env!("CARGO_MANIFEST_DIR"), "/config/map-55.json");
    let toml = format!(
        "[kafka]\nbrokers = [{:?}]\ntopic = \"documents\"\ngroup_id = \"g\"\n[elasticsearch]\nurls = [{:?}]\nprefix = \"p\"\n\
         [geoshards]\nmap = {map:?}\n[admin]\nlisten = \"127.0.0.1:{port}\"\n\
         [collector]\nlisten = \"127.0.0.1:1\"\n",
        broker.address(),
        standin.url()
    );
    std::fs::write(&config, toml).unwrap();

    let unready = geofold(&config, &["check"]);
    assert_eq!(unready.status.code(), Some(1), "there are no indices yet: {}", text(&unready));
    let created = geofold(&config, &["shards", "create"]);
    assert!(created.status.success() && text(&created).contains("57 indices created"), "{}", text(&created));
    let again = geofold(&config, &["shards", "create"]);
    assert!(again.status.success() && text(&again).starts_with("0 indices created"), "{}", text(&again));
    let checked = geofold(&config, &["check"]);
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked));

    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/config/example.ndjson");
    let sent = geofold(&config, &["send", example]);
    assert!(sent.status.success(), "{}", text(&sent));
    let located = geofold(&config, &["shards", "locate", "52.5163", "13.3777", "--json"]);
    let located: Value = serde_json::from_slice(&located.stdout).unwrap();
    let index = located["index"].as_str().unwrap();

    let mut worker = Command::new(env!("CARGO_BIN_EXE_geofold"));
    let worker = worker.args(["run", "--config"]).arg(&config).stdin(Stdio::null()).stderr(Stdio::null());
    let mut worker = worker.spawn().unwrap();
    let http = reqwest::blocking::Client::builder().timeout(Duration::from_secs(120)).build().unwrap();
    let get = |path: &str| {
        let answer = http.get(format!("http://127.0.0.1:{port}{path}")).send().ok()?;
        Some((answer.status().as_u16(), answer.text().ok()?))
    };
    wait_for("a ready worker", || get("/readyz").filter(|(status, _)| *status == 200));
    let done = "geofold_records_processed_total{";
    wait_for("five records done", || {
        let (_, metrics) = get("/metrics")?;
        let done: f64 = metrics
            .lines()
            .filter(|line| line.starts_with(done))
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum();
        (done >= 5.0).then_some(())
    });
    assert_eq!(get("/healthz").unwrap().0, 200);
    let alive = geofold(&config, &["health"]);
    assert!(alive.status.success(), "{}", text(&alive));
    let ready = geofold(&config, &["health", "--ready"]);
    assert!(ready.status.success(), "{}", text(&ready));
    let collector = geofold(&config, &["health", "--collector", "--timeout", "20s"]);
    assert_eq!(collector.status.code(), Some(1), "there is none: {}", text(&collector));
    let (status, page) = get("/").unwrap();
    assert!(status == 200 && page.contains("<title>") && page.contains("documents"), "{page}");
    let status: Value = serde_json::from_str(&get("/status.json").unwrap().1).unwrap();
    assert_eq!(status["worker"]["topic"], "documents", "{status}");
    assert_eq!(get("/nothing").unwrap().0, 404);

    let around =
        json!({"query": {"geo_distance": {"distance": "3km", "location": {"lat": 52.5163, "lon": 13.3777}}}});
    let found = wait_for("who is in Berlin, once Elasticsearch shows them", || {
        let url = format!("{}/{index}/_search", standin.url());
        let answer =
            http.post(url).header("content-type", "application/json").body(around.to_string()).send();
        let answer: Value = serde_json::from_str(&answer.unwrap().text().unwrap()).unwrap();
        let hits = answer["hits"]["hits"].as_array()?.clone();
        (hits.len() >= 3).then_some(hits)
    });
    let mut names: Vec<&str> = found.iter().map(|hit| hit["_id"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["ada", "bo", "dee"]);

    let (status, covered) = get("/shards/cover?lat=52.5163&lon=13.3777&radius=3km").unwrap();
    let covered: Value = serde_json::from_str(&covered).unwrap();
    assert_eq!((status, &covered["indices"]), (200, &json!([index])));
    // Values that begin with a minus, and every shape.
    for shape in
        [["--circle", "-33.9,151.2,25mi"], ["--box", "-10,175,-20,-175"], ["--polygon", "-1,0 -1,1 1,1"]]
    {
        let told = geofold(&config, &[&["shards", "cover"][..], &shape].concat());
        assert!(told.status.success() && text(&told).contains("p-s"), "{shape:?} {}", text(&told));
    }
    let circle = ["--circle", "52.5163,13.3777,3km", "--json"];
    let told = geofold(&config, &[&["shards", "cover"][..], &circle].concat());
    assert_eq!(serde_json::from_slice::<Value>(&told.stdout).unwrap(), covered, "{}", text(&told));
    let searched = geofold(&config, &[&["search"][..], &circle].concat());
    assert!(searched.status.success(), "{}", text(&searched));
    let searched: Value = serde_json::from_slice(&searched.stdout).unwrap();
    let mut names: Vec<&str> =
        searched["hits"].as_array().unwrap().iter().map(|hit| hit["id"].as_str().unwrap()).collect();
    assert_eq!(
        searched["hits"][0]["metres"].as_f64().map(f64::round),
        Some(0.0),
        "the nearest first: {searched}"
    );
    names.sort_unstable();
    assert_eq!((names, &searched["asked"]), (vec!["ada", "bo", "dee"], &json!(1)));

    // An index that is gone is named: what the others hold is not all.
    http.delete(format!("{}/p-s37", standin.url())).send().unwrap();
    let wide = geofold(&config, &["search", "--circle", "50,8,600km"]);
    assert!(
        wide.status.code() == Some(1) && text(&wide).contains("no such index [p-s37]"),
        "{}",
        text(&wide)
    );
    for bad in
        [&["search", "--circle", "52,13,0m"][..], &["search", "--circle", "92,13,1m"], &["shards", "cover"]]
    {
        assert_eq!(geofold(&config, bad).status.code(), Some(2), "{bad:?}");
    }

    kill_process(Pid::from_child(&worker), Signal::TERM).unwrap();
    let ended = wait_for("a worker that has drained", || worker.try_wait().unwrap());
    assert_eq!(ended.code(), Some(0));
    let gone = geofold(&config, &["health"]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(text(&gone).contains("is it running, with this configuration?"), "{}", text(&gone));
    runtime.block_on(standin.stop());
}
