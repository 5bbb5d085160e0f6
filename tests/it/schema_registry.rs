//! Records by a schema registry, on the stand-ins, with the binary: Avro, JSON Schema and Protobuf become documents, a registry that
//! is not there yet delays them, and what it does not know becomes a dead letter. With `GEOFOLD_TEST_REGISTRY` the registry is a real one.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use axum::Router;
use axum::extract::Path as Id;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use geofold::testkit::embedded::broker::EmbeddedBroker;
use geofold::testkit::embedded::elasticsearch::{Standin, StandinOptions};
use geofold::testkit::ports::free_address;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, Headers, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Message, Offset, TopicPartitionList};
use reqwest::Url;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::wait::{TIMEOUT, wait_for};

/// "user" and "hunter2".
const AUTHORIZATION: &str = "Basic dXNlcjpodW50ZXIy";

/// The address of a real registry, which then takes the place of the stand-in: `dev/stack up --registry` has one. It may hold what an
/// earlier run of these tests has registered, and nothing else under the subjects below.
const REAL: &str = "GEOFOLD_TEST_REGISTRY";

/// Where the stand-in has Confluent's interface: not at the root, as with Apicurio.
const PATH: &str = "/apis/ccompat/v7";

/// No registry gives this one so soon.
const UNKNOWN: u32 = 1_000_000;

/// Schemas by their subjects, as they are registered. What is referred to comes first.
fn schemas() -> [(&'static str, Value); 7] {
    let point = r#"{"type":"record","name":"Point","namespace":"geo","fields":[
        {"name":"lat","type":"double"},{"name":"lon","type":"double"}]}"#;
    let avro = r#"{"type":"record","name":"Place","fields":[
        {"name":"location","type":"geo.Point"},
        {"name":"seen","type":{"type":"long","logicalType":"timestamp-millis"}}]}"#;
    let json = r#"{"$schema":"http://json-schema.org/draft-07/schema#","type":"object"}"#;
    let point_proto = "syntax = \"proto3\"; message Point { double lat = 1; double lon = 2; }";
    let proto = r#"syntax = "proto3"; import "point.proto";
        message Place { Point location = 1; int64 people = 2; string name = 3; }"#;
    let event = r#"{"type":"record","name":"Envelope","fields":[
        {"name":"before","type":["null",{"type":"record","name":"Value","fields":[
            {"name":"id","type":"int"},{"name":"location","type":"string"}]}]},
        {"name":"after","type":["null","Value"]},{"name":"op","type":"string"}]}"#;
    let key = r#"{"type":"record","name":"Key","fields":[{"name":"id","type":"int"}]}"#;
    let refers = |name: &str| json!([{"name": name, "subject": name, "version": 1}]);
    [
        ("geo.Point", json!({ "schema": point })),
        ("avro", json!({"schema": avro, "references": refers("geo.Point")})),
        ("json", json!({"schema": json, "schemaType": "JSON"})),
        ("point.proto", json!({"schema": point_proto, "schemaType": "PROTOBUF"})),
        ("protobuf", json!({"schema": proto, "schemaType": "PROTOBUF", "references": refers("point.proto")})),
        ("event", json!({ "schema": event })),
        ("key", json!({ "schema": key })),
    ]
}

/// The registry that the tests are to use, if one is configured.
fn real_registry() -> Option<Url> {
    let address = std::env::var(REAL).ok()?;
    Some(address.parse().unwrap_or_else(|error| panic!("{REAL} is {address:?}: {error}")))
}

/// The ids of the schemas, by their subjects. A real registry is given them, once in this process.
fn ids() -> &'static HashMap<&'static str, u32> {
    static IDS: OnceLock<HashMap<&'static str, u32>> = OnceLock::new();
    IDS.get_or_init(|| match real_registry() {
        Some(registry) => {
            let http = reqwest::blocking::Client::new();
            let register = |(subject, schema): (&'static str, Value)| {
                let url = format!("{}/subjects/{subject}/versions", registry.as_str().trim_end_matches('/'));
                let request = http.post(url).header("content-type", "application/vnd.schemaregistry.v1+json");
                let answer = request.body(schema.to_string()).send().unwrap();
                let (status, text) = (answer.status(), answer.text().unwrap());
                assert!(status.is_success(), "registering {subject}: {status} {text}");
                let answer: Value = serde_json::from_str(&text).unwrap();
                (subject, answer["id"].as_u64().unwrap().try_into().unwrap())
            };
            schemas().into_iter().map(register).collect()
        }
        None => schemas().into_iter().zip(1..).map(|((subject, _), id)| (subject, id)).collect(),
    })
}

/// From now on there is a registry: the real one, or one that knows these schemas.
fn serve(runtime: &Runtime, at: SocketAddr) {
    let listener = runtime.block_on(tokio::net::TcpListener::bind(at)).unwrap();
    match real_registry() {
        Some(registry) => runtime.spawn(forward(listener, registry.socket_addrs(|| None).unwrap()[0])),
        None => runtime.spawn(async move { axum::serve(listener, standin()).await.unwrap() }),
    };
}

/// Passes on what comes, both ways.
async fn forward(listener: tokio::net::TcpListener, to: SocketAddr) {
    while let Ok((mut client, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut server = tokio::net::TcpStream::connect(to).await.unwrap();
            // Either may break off.
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        });
    }
}

fn standin() -> Router {
    fn answer(headers: &HeaderMap, schema: Option<Value>) -> Response {
        if headers.get("authorization").is_none_or(|given| given != AUTHORIZATION) {
            return StatusCode::UNAUTHORIZED.into_response();
        }
        match schema {
            Some(schema) => Json(schema).into_response(),
            None => (StatusCode::NOT_FOUND, Json(json!({"error_code": 40403}))).into_response(),
        }
    }
    async fn by_id(Id(id): Id<u32>, headers: HeaderMap) -> Response {
        let is_asked_for = |subject: &str| ids().get(subject) == Some(&id);
        let found = schemas().into_iter().find(|(subject, _)| is_asked_for(subject));
        answer(&headers, found.map(|(_, schema)| schema))
    }
    async fn by_subject(Id(asked): Id<String>, headers: HeaderMap) -> Response {
        let found = schemas().into_iter().find(|(subject, _)| *subject == asked);
        answer(&headers, found.map(|(_, schema)| schema))
    }
    let routes = Router::new()
        .route("/schemas/types", get(|| async { Json(json!(["AVRO", "JSON", "PROTOBUF"])) }))
        .route("/schemas/ids/{id}", get(by_id))
        .route("/subjects/{subject}/versions/1", get(by_subject));
    Router::new().nest(PATH, routes)
}

/// Everything that a worker needs, and its configuration.
struct World {
    runtime: Runtime,
    standin: Standin,
    broker: EmbeddedBroker,
    _folder: tempfile::TempDir,
    config: PathBuf,
    admin: SocketAddr,
    registry: SocketAddr,
}

/// Key, value, and the value of the header `geofold-op`.
type Produced<'a> = (&'a [u8], Option<Vec<u8>>, Option<&'a str>);

impl World {
    /// `kafka`: more keys of that section.
    fn new(kafka: &str) -> Self {
        let runtime = Runtime::new().unwrap();
        let standin = runtime.block_on(Standin::start(StandinOptions::default())).unwrap();
        let broker = EmbeddedBroker::start().unwrap();
        broker.set_initial_rebalance_delay(Duration::ZERO);
        broker.create_topic("documents", 1).unwrap();
        broker.create_topic("dead", 1).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("geofold.toml");
        let (admin, registry) = (free_address().unwrap(), free_address().unwrap());
        let path = real_registry().map_or(PATH.to_owned(), |url| url.path().to_owned());
        let map = concat!(env!("CARGO_MANIFEST_DIR"), "/config/map-55.json");
        let toml = format!(
            "[kafka]\nbrokers = [{:?}]\ntopic = \"documents\"\ngroup_id = \"g\"\n{kafka}\n\
             [schema_registry]\nurls = [\"http://{registry}{path}\"]\nusername = \"user\"\npassword = \"hunter2\"\n\
             [elasticsearch]\nurls = [{:?}]\nprefix = \"p\"\n[geoshards]\nmap = {map:?}\n\
             [dead_letter]\npolicy = \"topic\"\ntopic = \"dead\"\n[admin]\nlisten = \"{admin}\"\n\
             [retry]\ninitial_backoff = \"50ms\"\nmax_backoff = \"500ms\"\n",
            broker.address(),
            standin.url()
        );
        std::fs::write(&config, toml).unwrap();
        let world = Self { runtime, standin, broker, _folder: folder, config, admin, registry };
        let created = world.geofold(&["shards", "create"]);
        assert!(created.status.success(), "{}", text(&created));
        world
    }

    fn geofold(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_geofold"));
        command.args(arguments).arg("--config").arg(&self.config).stdin(Stdio::null()).output().unwrap()
    }

    fn start(&self, log: &Path) -> Worker {
        let mut worker = Command::new(env!("CARGO_BIN_EXE_geofold"));
        let worker = worker.args(["run", "--config"]).arg(&self.config).stdin(Stdio::null());
        let log = std::fs::File::create(log).unwrap();
        Worker(worker.stderr(log.try_clone().unwrap()).stdout(log).spawn().unwrap())
    }

    fn produce(&self, records: &[Produced<'_>]) {
        let mut client = ClientConfig::new();
        let producer: BaseProducer = client.set("bootstrap.servers", self.broker.address()).create().unwrap();
        for (key, value, op) in records {
            let mut headers = OwnedHeaders::new().insert(Header { key: "trace", value: Some("abc") });
            if let Some(op) = op {
                headers = headers.insert(Header { key: "geofold-op", value: Some(*op) });
            }
            let mut record: BaseRecord<'_, [u8], [u8]> =
                BaseRecord::to("documents").key(*key).headers(headers);
            if let Some(value) = value {
                record = record.payload(value.as_slice());
            }
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        producer.flush(TIMEOUT).unwrap();
    }

    fn get(&self, path: &str) -> Option<(u16, String)> {
        let http = reqwest::blocking::Client::builder().timeout(Duration::from_secs(120)).build().unwrap();
        let answer = http.get(format!("http://{}{path}", self.admin)).send().ok()?;
        Some((answer.status().as_u16(), answer.text().ok()?))
    }

    /// All documents, by their ids.
    fn documents(&self) -> HashMap<String, Value> {
        let http = reqwest::blocking::Client::new();
        let url = format!("{}/p-s*/_search?size=100", self.standin.url());
        let _ = http.post(format!("{}/p-s*/_refresh", self.standin.url())).send();
        let answer = http
            .post(url)
            .header("content-type", "application/json")
            .body(r#"{"query":{"match_all":{}},"size":100}"#)
            .send()
            .unwrap();
        let answer: Value = serde_json::from_str(&answer.text().unwrap()).unwrap();
        let hits = answer["hits"]["hits"].as_array().cloned().unwrap_or_default();
        hits.iter().map(|hit| (hit["_id"].as_str().unwrap().to_owned(), hit["_source"].clone())).collect()
    }

    fn metric(&self, series: &str) -> Option<f64> {
        let (_, metrics) = self.get("/metrics")?;
        let line = metrics.lines().find(|line| line.starts_with(series))?;
        line.rsplit_once(' ')?.1.parse().ok()
    }

    /// Key, value, the reason, and whether the record's own header is there.
    fn dead_letter(&self) -> (Vec<u8>, Vec<u8>, String, bool) {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", self.broker.address()).set("group.id", "reader");
        let consumer: BaseConsumer = client.create().unwrap();
        let mut from = TopicPartitionList::new();
        from.add_partition_offset("dead", 0, Offset::Beginning).unwrap();
        consumer.assign(&from).unwrap();
        wait_for("a dead letter", || {
            let message = consumer.poll(Duration::from_millis(100))?.unwrap();
            let headers = message.headers()?;
            let value_of = |key: &str| {
                let header = headers.iter().find(|header| header.key == key)?;
                Some(String::from_utf8_lossy(header.value?).into_owned())
            };
            Some((
                message.key()?.to_vec(),
                message.payload()?.to_vec(),
                value_of("geofold-error-reason")?,
                value_of("trace").as_deref() == Some("abc"),
            ))
        })
    }
}

/// Ends with the test.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Worker {
    fn stop(mut self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn framed_by(id: u32, payload: &[u8]) -> Option<Vec<u8>> {
    Some([&[0][..], &id.to_be_bytes(), payload].concat())
}

fn framed(schema: &str, payload: &[u8]) -> Option<Vec<u8>> {
    framed_by(ids()[schema], payload)
}

fn point(lat: f64, lon: f64) -> Vec<u8> {
    [lat.to_le_bytes(), lon.to_le_bytes()].concat()
}

/// The first message of its file: a place whose `lat` is 0 and so is not sent.
fn protobuf_place() -> Vec<u8> {
    let location = [&[0x11][..], &13.5_f64.to_le_bytes()].concat();
    [&[0, 0x0a, 9][..], &location, &[0x10, 0x96, 0x01]].concat()
}

#[test]
fn records_in_each_format_become_documents_once_the_registry_is_there() {
    let world = World::new("format = \"registry\"");
    // 2026-11-21T08:00:00Z
    let seen = [0x80, 0xb0, 0xf4, 0xd1, 0xbf, 0x68];
    world.produce(&[
        (b"avro", framed("avro", &[point(52.5, 13.25), seen.to_vec()].concat()), None),
        (b"json", framed("json", br#"{"location":[13.4,52.5],"n":1.10}"#), None),
        (b"unknown", framed_by(UNKNOWN, b"anything"), None),
        (b"protobuf", framed("protobuf", &protobuf_place()), None),
        (b"plain", Some(br#"{"location":[13.4,52.5]}"#.to_vec()), Some("index")),
        (b"gone", framed("json", br#"{"location":[13.4,52.5]}"#), None),
        (b"gone", None, None),
    ]);
    let log = world.config.with_file_name("log");
    let checked = world.geofold(&["check"]);
    assert!(text(&checked).contains("unreachable  schema registry"), "{}", text(&checked));
    let tried = world.geofold(&["dry-run"]);
    assert!(
        !tried.status.success() && text(&tried).contains("asking the schema registry"),
        "{}",
        text(&tried)
    );

    let worker = world.start(&log);
    let reason = wait_for("a worker that waits for the registry", || {
        world.get("/readyz").filter(|(status, text)| *status == 503 && text.contains("schema registry"))
    });
    let waits = format!("waiting for schema {}:", ids()["avro"]);
    assert!(reason.1.contains(&waits), "{reason:?}");
    assert_eq!(world.metric("geofold_schema_waiting_partitions"), Some(1.0));
    assert!(world.documents().is_empty());

    serve(&world.runtime, world.registry);
    wait_for("all records done", || {
        world.documents().contains_key("plain").then_some(())?;
        (world.documents().len() == 4).then_some(())
    });
    let documents = world.documents();
    assert_eq!(
        documents["avro"],
        json!({"location": {"lat": 52.5, "lon": 13.25}, "seen": "2026-11-21T08:00:00Z"})
    );
    assert_eq!(documents["json"], json!({"location": [13.4, 52.5], "n": 1.1}));
    assert_eq!(
        documents["protobuf"],
        json!({"location": {"lat": 0.0, "lon": 13.5}, "people": 150, "name": ""})
    );
    assert_eq!(documents["plain"], json!({"location": [13.4, 52.5]}));
    let (key, value, reason, has_own_headers) = world.dead_letter();
    assert_eq!((key, reason.as_str(), has_own_headers), (b"unknown".to_vec(), "unknown_schema", true));
    assert_eq!(Some(value), framed_by(UNKNOWN, b"anything"));
    wait_for("a ready worker", || world.get("/readyz").filter(|(status, _)| *status == 200));
    assert_eq!(world.metric("geofold_schema_waiting_partitions"), Some(0.0));
    assert_eq!(world.metric("geofold_schema_answers_total{result=\"found\"}"), Some(3.0));
    worker.stop();
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("the schema registry answered") && !log.contains("hunter2"), "{log}");

    let checked = world.geofold(&["check"]);
    assert!(text(&checked).contains("ok           schema registry"), "{}", text(&checked));
    let tried = world.geofold(&["dry-run", "--from", "earliest", "--json"]);
    let steps: Vec<Value> = String::from_utf8_lossy(&tried.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let does = |id: &str| steps.iter().find(|step| step["id"] == id).map(|step| step["does"].clone());
    assert_eq!(does("unknown"), Some(json!("dead_letter")), "{}", text(&tried));
    assert!(does("protobuf").is_some_and(|does| does != "dead_letter"), "{}", text(&tried));
}

#[test]
fn debeziums_events_in_avro_are_keyed_by_a_field_of_an_avro_key() {
    let world = World::new("format = \"registry\"\nkey = \"registry:id\"\nenvelope = \"debezium\"");
    serve(&world.runtime, world.registry);
    let key = |id: u8| framed("key", &[id << 1]).unwrap();
    let row = |id: u8, lat: u8| [&[2, id << 1, 8][..], &[b'0' + lat], b",13"].concat();
    let event = |before: Option<Vec<u8>>, after: Option<Vec<u8>>, op: u8| {
        let side = |row: Option<Vec<u8>>| row.unwrap_or_else(|| vec![0]);
        framed("event", &[side(before), side(after), vec![2, op]].concat())
    };
    world.produce(&[
        (&key(7), event(None, Some(row(7, 1)), b'c'), None),
        (&key(8), event(None, Some(row(8, 1)), b'c'), None),
        (&key(7), event(Some(row(7, 1)), Some(row(7, 2)), b'u'), None),
        (&key(8), event(Some(row(8, 1)), None, b'd'), None),
        (&key(8), None, None),
        (b"9", event(None, Some(row(9, 1)), b'c'), None),
    ]);
    let worker = world.start(&world.config.with_file_name("log"));
    let (dead, _, reason, _) = world.dead_letter();
    assert_eq!((dead, reason.as_str()), (b"9".to_vec(), "bad_key"));
    let documents = wait_for("one document", || {
        let documents = world.documents();
        (documents.len() == 1 && documents.contains_key("7") && documents["7"]["location"] == "2,13")
            .then_some(documents)
    });
    assert_eq!(documents["7"], json!({"id": 7, "location": "2,13"}));
    worker.stop();
    for arguments in [&["send"][..], &["audit", "--repair"]] {
        let refused = world.geofold(arguments);
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
        assert!(text(&refused).contains("kafka.key is \"registry:id\""), "{}", text(&refused));
    }
}
