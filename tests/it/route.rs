//! `geofold route`, the binary, on the stand-in for Elasticsearch: as a client sees it.
//!
//! | file | what it holds |
//! |---|---|
//! | `upstream.rs` | what the router and Elasticsearch say to each other |
//! | `tls.rs` | clients that speak TLS |
//! | `front.rs` | stands before the stand-in: notes requests, and answers in its place |

pub mod front;
pub mod tls;
mod upstream;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use geofold::testkit::embedded::elasticsearch::FaultPlan;
use reqwest::blocking::{Client, RequestBuilder, Response};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::standins::{GEOFOLD, Standins, Worker, wait_for};

/// Berlin, Paris, Tokyo: geoshards of their own in the sample map.
const PLACES: [(&str, f64, f64); 4] =
    [("berlin", 52.52, 13.4), ("spandau", 52.54, 13.2), ("paris", 48.85, 2.35), ("tokyo", 35.68, 139.69)];

pub struct Router {
    world: Standins,
    pub process: Worker,
    url: String,
    client: Client,
}

impl Router {
    fn start(more: &str) -> Self {
        let world = Standins::start();
        let config = world.config(more);
        Self::start_on(world, &config, &[])
    }

    fn start_on(world: Standins, config: &str, env: &[(&str, &str)]) -> Self {
        let router = Self::unready(world, config, env);
        wait_for("readiness", || router.get("/readyz").status().is_success().then_some(()));
        router
    }

    /// With fronts in the place of Elasticsearch, and further keys of `[elasticsearch]`.
    pub fn behind(
        world: Standins,
        fronts: &[&front::Front],
        keys: &str,
        more: &str,
        env: &[(&str, &str)],
    ) -> Self {
        let urls: Vec<&str> = fronts.iter().map(|front| front.url.as_str()).collect();
        let direct = format!("urls = [{:?}]", world.elasticsearch());
        let config = world.config(more).replace(&direct, &format!("urls = {urls:?}\n{keys}"));
        Self::start_on(world, &config, env)
    }

    /// One that may never be ready.
    fn unready(world: Standins, text: &str, env: &[(&str, &str)]) -> Self {
        let config = world.folder.path().join("route.toml");
        std::fs::write(&config, text).unwrap();
        let client = Client::builder().timeout(Duration::from_secs(120)).build().unwrap();
        for (id, lat, lon) in PLACES {
            let located = Command::new(GEOFOLD)
                .args(["shards", "locate", &lat.to_string(), &lon.to_string(), "--json", "--config"])
                .arg(&config)
                .output()
                .unwrap();
            let located: Value = serde_json::from_slice(&located.stdout).unwrap();
            let action = json!({"index": {"_index": located["index"], "_id": id, "version": 7, "version_type": "external"}});
            let document = json!({"location": {"lat": lat, "lon": lon}, "name": id});
            let answer = client
                .post(format!("{}/_bulk?refresh=true", world.elasticsearch()))
                .header("content-type", "application/x-ndjson")
                .body(format!("{action}\n{document}\n"))
                .send()
                .unwrap();
            assert_eq!(answer.json::<Value>().unwrap()["errors"], false);
        }
        let process =
            Worker::start_command(&["route", "--listen", "127.0.0.1:0"], world.folder.path(), &config, env);
        let log = process.wait_for("router listens address=");
        let (_, rest) = log.split_once("router listens address=").unwrap();
        let url = format!("http://{}", rest.split_whitespace().next().unwrap());
        Self { world, process, url, client }
    }

    fn get(&self, path: &str) -> Response {
        self.client.get(format!("{}{path}", self.url)).send().unwrap()
    }

    pub fn post(&self, path: &str) -> RequestBuilder {
        self.client.post(format!("{}{path}", self.url)).header("content-type", "application/json")
    }

    fn search(&self, body: &Value) -> Response {
        self.post("/geofold/_search").body(body.to_string()).send().unwrap()
    }

    fn metric(&self, series: &str) -> f64 {
        let text = self.get("/metrics").text().unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_else(|| panic!("there is no {series} in {text}"))
    }
}

pub fn near_berlin(distance: &str) -> Value {
    json!({"query": {"bool": {"filter": {"geo_distance": {"distance": distance, "location": {"lat": 52.52, "lon": 13.4}}}}},
           "sort": [{"_geo_distance": {"location": "52.52,13.4", "unit": "km"}}]})
}

fn ids(answer: &Value) -> Vec<&str> {
    answer["hits"]["hits"].as_array().unwrap().iter().map(|hit| hit["_id"].as_str().unwrap()).collect()
}

fn asked(answer: &Response) -> (String, String) {
    let header = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
    (header("x-geofold-geoshards-asked"), header("x-geofold-geoshards-total"))
}

#[test]
fn a_client_searches_one_index() {
    let router = Router::start("");
    let answer = router.search(&near_berlin("30km"));
    assert_eq!(asked(&answer), ("1".to_owned(), "55".to_owned()));
    assert_eq!(answer.headers()["x-elastic-product"], "Elasticsearch");
    let answer: Value = answer.json().unwrap();
    assert_eq!((ids(&answer), &answer["hits"]["total"]["value"]), (vec!["berlin", "spandau"], &json!(2)));

    let everywhere = router.get("/geofold/_search?size=2");
    assert_eq!(asked(&everywhere).0, "55");
    let everywhere: Value = everywhere.json().unwrap();
    assert_eq!((ids(&everywhere).len(), &everywhere["hits"]["total"]["value"]), (2, &json!(4)));

    let mut nearest = near_berlin("1km");
    nearest.as_object_mut().unwrap().remove("query");
    nearest["size"] = json!(2);
    nearest["track_total_hits"] = json!(false);
    let answer = router.search(&nearest);
    assert!(asked(&answer).0.parse::<u32>().unwrap() < 10, "{:?}", asked(&answer));
    assert_eq!(ids(&answer.json().unwrap()), ["berlin", "spandau"]);
    assert_eq!(router.metric("geofold_route_early_stops_total"), 1.0);

    let count: Value = router.get("/geofold/_count").json().unwrap();
    assert_eq!((&count["count"], &count["_shards"]["failed"]), (&json!(4), &json!(0)));

    let lines = format!("{{}}\n{}\n{{\"index\":\"geofold\"}}\n{{\"aggs\":{{}}}}\n", near_berlin("1km"));
    for path in ["/geofold/_msearch", "/_msearch"] {
        let several: Value = router.post(path).body(lines.clone()).send().unwrap().json().unwrap();
        let first = &several["responses"][0];
        match path {
            "/_msearch" => assert_eq!(first["status"], 400, "{first}"),
            _ => assert_eq!((ids(first), &first["status"]), (vec!["berlin"], &json!(200))),
        }
        let second = &several["responses"][1];
        assert_eq!(
            (&second["status"], &second["error"]["type"]),
            (&json!(400), &json!("unsupported_operation_exception"))
        );
    }

    let info = router.get("/");
    assert_eq!(info.headers()["x-elastic-product"], "Elasticsearch");
    let info: Value = info.json().unwrap();
    assert!(info["version"]["number"].is_string() && info["tagline"] == "You Know, for Search");
    assert_eq!(router.client.head(&router.url).send().unwrap().status(), 200);

    let load: Value = router.get("/load.json").json().unwrap();
    assert!(load["cells"][0]["queries"].as_f64().unwrap() > 2.0, "{load}");
    router.process.stop();
}

#[test]
fn unserved_requests_are_refused_like_elasticsearch() {
    let router = Router::start("[route]\nrequest_max_bytes = \"1KiB\"\nwithout_location = \"refuse\"\n");
    let long = json!({"query": {"terms": {"name": vec!["x".repeat(100); 20]}}}).to_string();
    for (path, body, status, kind, says) in [
        ("/geofold/_search", "{\"aggs\":{}}", 400, "unsupported_operation_exception", "[aggs]"),
        ("/geofold/_search", "{", 400, "parsing_exception", "not JSON"),
        ("/geofold/_search", "{}", 400, "illegal_argument_exception", "route.without_location"),
        ("/geofold/_search?scroll=1m", "{}", 400, "unsupported_operation_exception", "[scroll]"),
        ("/geofold/_search", &long, 413, "content_too_long_exception", "route.request_max_bytes"),
        ("/geofold/_count", "{\"size\":1}", 400, "parsing_exception", "[size]"),
        ("/geofold/_msearch", "{}\n", 400, "parsing_exception", "one line is missing"),
        ("/other/_search", "{}", 404, "index_not_found_exception", "no such index [other]"),
        ("/_search", "{}", 400, "illegal_argument_exception", "/geofold/_search"),
        (
            "/geofold/_doc/1",
            "{}",
            400,
            "illegal_argument_exception",
            "no handler found for uri [/geofold/_doc/1]",
        ),
        ("/healthz", "{}", 400, "illegal_argument_exception", "no handler found"),
    ] {
        let answer = router.post(path).body(body.to_owned()).send().unwrap();
        assert_eq!(answer.headers()["x-elastic-product"], "Elasticsearch", "{path}");
        assert_eq!(answer.status(), status, "{path} {body}");
        let answer: Value = answer.json().unwrap();
        let reason = answer["error"]["reason"].as_str().unwrap();
        assert!(answer["error"]["type"] == kind && reason.contains(says), "{path}: {answer}");
        assert_eq!(
            (&answer["status"], &answer["error"]["root_cause"][0]["reason"]),
            (&json!(status), &json!(reason))
        );
    }
    let put = router.client.put(format!("{}/geofold/_search", router.url)).send().unwrap();
    assert_eq!(put.status(), 405);
    let packed = router.post("/geofold/_search").header("content-encoding", "gzip").body("x").send().unwrap();
    assert_eq!(packed.status(), 415);
    // A body whose length is not announced.
    let mut stream = TcpStream::connect(router.url.strip_prefix("http://").unwrap()).unwrap();
    let head = "POST /geofold/_search HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(format!("800\r\n{}\r\n0\r\n\r\n", "x".repeat(0x800)).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert!(router.metric("geofold_route_requests_total{kind=\"search\",outcome=\"refused\"}") > 5.0);
    router.process.stop();
}

#[test]
fn a_search_under_way_is_answered_when_the_router_stops() {
    let router = Router::start("");
    router.world.faults().set(FaultPlan { latency: Duration::from_millis(1500), ..FaultPlan::default() });
    std::thread::scope(|scope| {
        let search = scope.spawn(|| router.search(&near_berlin("30km")));
        wait_for("the search", || (router.metric("geofold_route_in_flight") == 1.0).then_some(()));
        router.process.signal(Signal::TERM);
        router.process.wait_for("requests under way are answered");
        let late = router.search(&near_berlin("30km"));
        assert_eq!((late.status().as_u16(), late.headers().contains_key("retry-after")), (503, true));
        assert_eq!(router.get("/readyz").status(), 503);
        // Until the end, for longer than the router takes to look whether it is ready. Then nobody answers.
        while !search.is_finished()
            && let Ok(probe) = router.client.get(format!("{}/readyz", router.url)).send()
        {
            assert_eq!(probe.status(), 503);
        }
        let answer = search.join().unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(ids(&answer.json().unwrap()), ["berlin", "spandau"]);
    });
    let log = router.process.ended(0);
    assert!(log.contains("geofold route ends"), "{log}");
}

#[test]
fn too_many_searches_are_refused_with_the_time_to_come_back() {
    let router = Router::start("[route]\nmax_concurrent = 1\nmax_queued = 0\n");
    router.world.faults().set(FaultPlan { latency: Duration::from_secs(2), ..FaultPlan::default() });
    std::thread::scope(|scope| {
        let first = scope.spawn(|| router.search(&near_berlin("30km")).status());
        wait_for("the search", || (router.metric("geofold_route_in_flight") == 1.0).then_some(()));
        let second = router.search(&near_berlin("30km"));
        assert_eq!(
            (second.status().as_u16(), &second.headers()["retry-after"]),
            (429, &"1".parse().unwrap())
        );
        assert_eq!(second.json::<Value>().unwrap()["error"]["type"], "es_rejected_execution_exception");
        assert_eq!(first.join().unwrap(), 200);
    });
    // And where Elasticsearch pushes back, its own time.
    let retry_after = Some(Duration::from_secs(7));
    router.world.faults().set(FaultPlan { busy: 1.0, retry_after, ..FaultPlan::default() });
    let pushed_back = router.search(&near_berlin("30km"));
    assert_eq!(
        (pushed_back.status().as_u16(), &pushed_back.headers()["retry-after"]),
        (429, &"7".parse().unwrap())
    );
    assert_eq!(router.metric("geofold_route_requests_total{kind=\"search\",outcome=\"busy\"}"), 2.0);
    router.world.faults().clear();
    router.process.stop();
}

#[test]
fn without_elasticsearch_it_says_so_and_comes_back() {
    let router = Router::start("");
    router.world.faults().set(FaultPlan { down: true, ..FaultPlan::default() });
    let answer = router.search(&near_berlin("30km"));
    assert_eq!(answer.status(), 503);
    let answer: Value = answer.json().unwrap();
    assert!(answer["error"]["reason"].as_str().unwrap().contains("elasticsearch"), "{answer}");
    router.world.faults().clear();
    wait_for("an answer", || (router.search(&near_berlin("30km")).status() == 200).then_some(()));
    router.process.stop();
}

#[test]
fn a_configuration_that_cannot_be_used_is_refused() {
    let world = Standins::start();
    let run = |config: &Path, arguments: &[&str]| {
        let output =
            Command::new(GEOFOLD).arg("route").args(arguments).arg("--config").arg(config).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let bad = world.write("bad.toml", "[route]\nmax_concurrent = 0\n");
    let (code, says) = run(&bad, &[]);
    assert!(code == Some(2) && says.contains("route.max_concurrent"), "{says}");
    let good = world.write("good.toml", "");
    let missing = world
        .write("missing.toml", "[route]\ntls_certificate = \"/no/such.pem\"\ntls_key = \"/no/such.key\"\n");
    let (code, says) = run(&missing, &[]);
    assert!(code == Some(2) && says.contains("reading route.tls_certificate /no/such.pem"), "{says}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (code, says) = run(&good, &["--listen", &taken.local_addr().unwrap().to_string()]);
    assert!(code == Some(1) && says.contains("the router cannot listen on"), "{says}");
}

#[test]
fn a_plan_reads_where_the_searches_are() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("load.ndjson");
    let router = Router::start(&format!("[route]\nload_file = {file:?}\n"));
    for _ in 0..3 {
        assert_eq!(router.search(&near_berlin("30km")).status(), 200);
    }
    router.process.stop();
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    let planned = Command::new(GEOFOLD)
        .args(["shards", "plan", "--min", "1", "--max", "1", "--json", "--from-load"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(planned.status.success(), "{}", String::from_utf8_lossy(&planned.stderr));
}
