//! Workers and routers export traces by OTLP over HTTP: what they send is received, taken apart, and looked at.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use rdkafka::message::{Header, OwnedHeaders};

use crate::route::front::Front;
use crate::route::{Router, near_berlin};
use crate::standins::{Standins, Worker, wait_for};

/// A span, as far as it is looked at here.
#[derive(Debug, Clone, Default)]
struct Span {
    name: String,
    trace: String,
    id: String,
    parent: String,
    state: String,
    links: Vec<(String, String)>,
    attributes: Vec<String>,
}

/// Fields of a protobuf message: number, and what is in it; numbers of fixed or variable length are skipped.
fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    fn varint(message: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (first, rest) = message.split_first().unwrap();
            *message = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let mut fields = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let length = match key & 7 {
            0 => {
                varint(&mut message);
                continue;
            }
            1 => 8,
            5 => 4,
            2 => usize::try_from(varint(&mut message)).unwrap(),
            kind => panic!("no such kind of field: {kind}"),
        };
        let (content, rest) = message.split_at(length);
        fields.push((key >> 3, content));
        message = rest;
    }
    fields
}

fn nested(message: &[u8], number: u64) -> impl Iterator<Item = &[u8]> {
    fields(message).into_iter().filter(move |(n, _)| *n == number).map(|(_, content)| content)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// opentelemetry/proto/trace/v1/trace.proto.
fn span(message: &[u8]) -> Span {
    let mut span = Span::default();
    let text = |content: &[u8]| String::from_utf8_lossy(content).into_owned();
    for (number, content) in fields(message) {
        match number {
            1 => span.trace = hex(content),
            2 => span.id = hex(content),
            3 => span.state = text(content),
            4 => span.parent = hex(content),
            5 => span.name = text(content),
            9 => span.attributes.push(text(content)),
            13 => {
                let of = |number| nested(content, number).next().map(hex).unwrap_or_default();
                span.links.push((of(1), of(2)));
            }
            _ => {}
        }
    }
    span
}

/// Receives what is exported.
struct Collector {
    address: String,
    spans: Arc<Mutex<Vec<Span>>>,
    resources: Arc<Mutex<String>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let collector = Self { address, spans: Arc::default(), resources: Arc::default() };
        let (spans, resources) = (collector.spans.clone(), collector.resources.clone());
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let body = one_request(connection.unwrap());
                for resource_spans in nested(&body, 1) {
                    for resource in nested(resource_spans, 1) {
                        resources.lock().unwrap().push_str(&String::from_utf8_lossy(resource));
                    }
                    let found = nested(resource_spans, 2).flat_map(|scope| nested(scope, 2)).map(span);
                    spans.lock().unwrap().extend(found);
                }
            }
        });
        collector
    }

    fn named(&self, name: &str) -> Vec<Span> {
        self.spans.lock().unwrap().iter().filter(|span| span.name == name).cloned().collect()
    }
}

/// Reads a POST and answers it.
fn one_request(mut connection: TcpStream) -> Vec<u8> {
    let mut read = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let n = connection.read(&mut chunk).unwrap();
        assert!(n > 0, "cut off");
        read.extend_from_slice(&chunk[..n]);
        let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&read[..end]).to_lowercase();
        let length = head.split("content-length: ").nth(1).unwrap().lines().next().unwrap();
        if read.len() < end + 4 + length.parse::<usize>().unwrap() {
            continue;
        }
        assert!(head.starts_with("post /v1/traces "), "{head}");
        assert!(head.contains("content-type: application/x-protobuf"), "{head}");
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        connection.write_all(answer).unwrap();
        return read.split_off(end + 4);
    }
}

/// The context of a producer's span.
fn traced(trace: u32, sampled: bool) -> OwnedHeaders {
    let parent = format!("00-{trace:032x}-{:016x}-{:02x}", trace + 7, u8::from(sampled));
    OwnedHeaders::new()
        .insert(Header { key: "traceparent", value: Some(&parent) })
        .insert(Header { key: "tracestate", value: Some("vendor=x") })
}

#[test]
fn records_batches_and_requests_have_spans_that_belong_together() {
    let world = Standins::start();
    let config =
        world.write("geofold.toml", "[batch]\nlinger = \"1h\"\nmax_dirty_age = \"2h\"\nmax_documents = 4\n");
    let collector = Collector::start();
    let env =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address.as_str()), ("OTEL_BSP_SCHEDULE_DELAY", "100")];
    let worker = Worker::start(world.folder.path(), &config, &env);
    let ids = ["a", "b", "c", "d"].map(str::to_owned);
    let headers = [traced(1, true), traced(2, true), OwnedHeaders::new(), traced(3, false)];
    world.produce(ids.into_iter().zip(headers));

    let batch = wait_for("the batch", || collector.named("batch t").pop());
    let mut records =
        wait_for("the records", || Some(collector.named("process t")).filter(|all| all.len() == 2));
    records.sort_by(|one, other| one.trace.cmp(&other.trace));
    for (n, record) in (1_u32..).zip(&records) {
        assert_eq!(record.trace, format!("{n:032x}"), "the producer's trace");
        assert_eq!(record.parent, format!("{:016x}", n + 7), "below the producer's span");
        assert_eq!(record.state, "vendor=x");
    }
    let mut links = batch.links.clone();
    links.sort();
    let expected: Vec<_> = records.iter().map(|record| (record.trace.clone(), record.id.clone())).collect();
    assert_eq!(links, expected, "what is not sampled, or not traced, is no link");
    assert_eq!(batch.parent, "", "a child of none");
    assert!(batch.attributes.iter().any(|text| text.contains("messaging.batch.message_count")));
    let all: Vec<Span> = collector.spans.lock().unwrap().clone();
    assert!(!all.iter().any(|span| span.trace == format!("{:032x}", 3)), "its producer said not to");

    for name in ["mget", "bulk"] {
        let requests = wait_for(name, || Some(collector.named(name)).filter(|all| !all.is_empty()));
        for request in requests {
            assert_eq!((&request.trace, &request.parent), (&batch.trace, &batch.id), "{name}");
        }
    }
    let resources = collector.resources.lock().unwrap().clone();
    assert!(resources.contains("service.name") && resources.contains("geofold"), "{resources}");
    worker.stop();
}

#[test]
fn a_batch_has_so_many_links_and_no_more_and_what_is_left_is_sent_at_the_end() {
    let world = Standins::start();
    let config = world
        .write("geofold.toml", "[batch]\nlinger = \"1h\"\nmax_dirty_age = \"2h\"\nmax_documents = 200\n");
    let collector = Collector::start();
    let endpoint = format!("{}/v1/traces", collector.address);
    let env = [
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint.as_str()),
        // Nothing is sent before the worker ends.
        ("OTEL_BSP_SCHEDULE_DELAY", "3600000"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2048"),
        ("OTEL_SERVICE_NAME", "another-name"),
        // Of what no producer decides on, nothing.
        ("OTEL_TRACES_SAMPLER", "parentbased_always_off"),
    ];
    let worker = Worker::start(world.folder.path(), &config, &env);
    world.produce((0..200).map(|n| (format!("d{n}"), traced(n + 1, true))));
    worker.wait_for_metric("geofold_batch_documents_count", 1.0);
    // Not sampled: a batch without a sampled record.
    world.produce((200..400).map(|n| (format!("d{n}"), OwnedHeaders::new())));
    worker.wait_for_metric("geofold_batch_documents_count", 2.0);
    worker.stop();
    let batches = collector.named("batch t");
    assert_eq!(batches.len(), 1, "as its records' producers decided");
    assert_eq!(batches[0].links.len(), 128);
    assert_eq!(collector.named("process t").len(), 200);
    let resources = collector.resources.lock().unwrap().clone();
    assert!(resources.contains("another-name"), "{resources}");
}

#[test]
fn a_search_continues_the_trace_of_its_client_up_to_elasticsearch() {
    let world = Standins::start();
    let (front, collector) = (Front::start(&world.elasticsearch()), Collector::start());
    let env =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address.as_str()), ("OTEL_BSP_SCHEDULE_DELAY", "100")];
    let router = Router::behind(world, &[&front], "", "", &env);
    let search = |parent: Option<&str>| {
        let mut search = router.post("/geofold/_search").body(near_berlin("30km").to_string());
        if let Some(parent) = parent {
            search = search.header("traceparent", parent).header("tracestate", "vendor=x");
        }
        assert_eq!(search.send().unwrap().status(), 200);
        let seen = front.searches().pop().unwrap();
        let parts: Vec<String> = seen.header("traceparent").unwrap().split('-').map(str::to_owned).collect();
        (parts, seen.header("tracestate").map(str::to_owned))
    };
    let trace = format!("{:032x}", 0xabc);
    let (sent, state) = search(Some(&format!("00-{trace}-{:016x}-01", 7)));
    let spans = |name: &str, count: usize| {
        wait_for(name, || Some(collector.named(name)).filter(|spans| spans.len() == count))
    };
    let (request, upstream) = (spans("route search", 1).remove(0), spans("search", 1).remove(0));
    assert_eq!((&request.trace, &request.parent), (&trace, &format!("{:016x}", 7)));
    assert_eq!((&upstream.trace, &upstream.parent), (&trace, &request.id));
    assert_eq!(
        (sent, state.as_deref()),
        (["00", &trace, &upstream.id, "01"].map(str::to_owned).to_vec(), Some("vendor=x"))
    );
    for span in [&request, &upstream] {
        assert!(span.attributes.iter().any(|text| text.contains("http.response.status_code")), "{span:?}");
    }

    // Not sampled: nothing is exported, and Elasticsearch is told so.
    let (sent, _) = search(Some(&format!("00-{:032x}-{:016x}-00", 0xdef, 9)));
    assert_eq!((&sent[1], &sent[3]), (&format!("{:032x}", 0xdef), &"00".to_owned()));
    // A trace begins here.
    let (sent, _) = search(None);
    let requests = spans("route search", 2);
    assert_eq!((&requests[1].parent, &requests[1].trace), (&String::new(), &sent[1]));
    assert_eq!(spans("search", 2)[1].parent, requests[1].id);

    let lines = format!("{{}}\n{0}\n{{}}\n{0}\n", near_berlin("1km"));
    assert_eq!(router.post("/geofold/_msearch").body(lines).send().unwrap().status(), 200);
    let several = spans("route msearch", 1).remove(0);
    let below = spans("search", 4).into_iter().filter(|span| span.parent == several.id);
    assert_eq!(below.count(), 2);
    router.process.stop();
}

#[test]
fn invalid_trace_exporters_are_refused_at_start() {
    let world = Standins::start();
    let config = world.write("geofold.toml", "");
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://127.0.0.1:4317");
    // No certificate is in the configuration's file.
    let path = config.to_str().unwrap();
    for (variable, expected) in [
        (("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), "OTEL_EXPORTER_OTLP_PROTOCOL is \"grpc\""),
        (("OTEL_EXPORTER_OTLP_TIMEOUT", "5s"), "OTEL_EXPORTER_OTLP_TIMEOUT is \"5s\""),
        (("OTEL_EXPORTER_OTLP_CERTIFICATE", path), "no PEM certificate is in it"),
        (("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such/file"), "/no/such/file"),
        (("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"), "like \"http://collector:4318\""),
    ] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_geofold"))
            .args(["run", "--config"])
            .arg(&config)
            .envs([endpoint, variable])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{variable:?} {said}");
        assert!(said.contains(expected), "{variable:?} {said}");
    }
}
