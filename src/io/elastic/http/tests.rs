//! The client against small servers in this process.

use std::future::IntoFuture;
use std::io::Read;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{any, post};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use sha2::Digest;
use tokio::sync::Notify;

use super::*;
use crate::base::clock::{BootClock, Instant};
use crate::base::ids::{DocId, ShardId};
use crate::io::aws::credentials::KeySource;
use crate::io::elastic::{Index, SeqNo, WriteCondition};
use crate::support::telemetry::Metrics;
use crate::support::telemetry::elasticsearch::NodeState;
use crate::support::tls::{ClientIdentity, Tls, TlsFiles};

mod placements;

const SOON: Duration = Duration::from_secs(5);

fn options(urls: &[&str]) -> HttpOptions {
    HttpOptions::new(urls.iter().map(|url| url.parse().unwrap()).collect(), "p", SOON)
}

fn client(options: &HttpOptions) -> HttpElastic {
    HttpElastic::connect(options, Arc::new(BootClock)).unwrap()
}

fn ops() -> [BulkOp; 1] {
    let id = DocId::from_key(Some(b"a")).unwrap();
    [BulkOp::Index {
        index: Index::Placements,
        id,
        guard: WriteCondition::Absent,
        source: Bytes::from_static(b"{}"),
    }]
}

/// Serves until the test ends; gives its address.
async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

async fn one_answer(answer: impl Fn() -> Response + Clone + Send + Sync + 'static) -> String {
    serve(Router::new().fallback(any(move || std::future::ready(answer())))).await
}

#[tokio::test]
async fn bulk_is_sent_as_ndjson_with_credentials() {
    async fn bulk(request: Request) -> Response {
        assert_eq!(request.headers()["content-type"], "application/x-ndjson");
        assert_eq!(request.headers()["authorization"], "Basic dTpw");
        assert!(request.uri().query().unwrap().contains("filter_path=errors,items.*.status"));
        let body = axum::body::to_bytes(request.into_body(), 1_000).await.unwrap();
        assert_eq!(body, "{\"create\":{\"_index\":\"p-placements\",\"_id\":\"a\"}}\n{}\n".as_bytes());
        r#"{"errors":false,"items":[{"create":{"status":201,"_seq_no":0,"_primary_term":1}}]}"#
            .into_response()
    }
    let url = serve(Router::new().route("/behind/_bulk", post(bulk))).await;
    let mut options = options(&[&format!("{url}/behind")]);
    options.auth = Auth::Basic { user: "u".to_owned(), password: "p".to_owned() };
    let answers = client(&options).bulk(&ops(), SOON).await.unwrap();
    assert_eq!(answers[0].status, 201);
    assert!(answers[0].stamp.is_some());
}

#[tokio::test]
async fn a_status_is_an_error_with_its_reason_and_the_time_to_wait() {
    let url =
        one_answer(|| (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "7")], "slow\ndown").into_response())
            .await;
    let error = client(&options(&[&url])).bulk(&ops(), SOON).await.unwrap_err();
    let expected = CallError::Status {
        status: 429,
        kind: String::new(),
        reason: "slow down".to_owned(),
        retry_after: Some(Duration::from_secs(7)),
    };
    assert_eq!(error, expected);
}

#[tokio::test]
async fn an_admin_call_takes_any_status_as_an_answer() {
    let url = one_answer(|| (StatusCode::NOT_FOUND, r#"{"found":false}"#).into_response()).await;
    let call = AdminCall { method: Method::Get, path: "/p-meta/_doc/x".to_owned(), body: None };
    let answer = client(&options(&[&url])).admin(call, SOON).await.unwrap();
    assert_eq!((answer.status, &answer.body["found"]), (404, &Value::Bool(false)));
}

#[tokio::test]
async fn redirect_is_an_error() {
    let target = one_answer(|| "{}".into_response()).await;
    let url = one_answer(move || Redirect::permanent(&target).into_response()).await;
    let error = client(&options(&[&url])).bulk(&ops(), SOON).await.unwrap_err();
    assert!(matches!(&error, CallError::Undecodable(text) if text.contains("redirects")), "{error}");
}

#[tokio::test]
async fn timeout_differs_from_connection_failure() {
    let slow = serve(Router::new().fallback(any(|| async {
        tokio::time::sleep(SOON).await;
    })))
    .await;
    let limit = Duration::from_millis(50);
    let error = client(&options(&[&slow])).bulk(&ops(), limit).await.unwrap_err();
    assert_eq!(error, CallError::Timeout(limit));

    let error = client(&options(&["http://127.0.0.1:1"])).bulk(&ops(), SOON).await.unwrap_err();
    let CallError::Connection(text) = &error else { panic!("{error}") };
    assert!(text.starts_with("http://127.0.0.1:1/: ") && text.contains("refused"), "{text}");
}

#[tokio::test]
async fn tls_to_a_server_without_it_is_explained() {
    let url = one_answer(|| "{}".into_response()).await.replace("http:", "https:");
    let error = client(&options(&[&url])).bulk(&ops(), SOON).await.unwrap_err();
    assert!(error.to_string().contains("does not speak TLS"), "{error}");
}

/// So many operations that their bulk is compressed; with `bytes` in each document.
fn many_ops(bytes: usize) -> Vec<BulkOp> {
    let source = Bytes::from(format!(r#"{{"text":"{}"}}"#, "x".repeat(bytes)));
    let op = |n: usize| BulkOp::Index {
        index: Index::Placements,
        id: DocId::from_key(Some(n.to_string().as_bytes())).unwrap(),
        guard: WriteCondition::Absent,
        source: source.clone(),
    };
    (0..100).map(op).collect()
}

/// Answers each request with its headers, and with its body as it was before compression.
async fn echo(request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let header = |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let encoding = header("content-encoding");
    let mut whole = String::new();
    match encoding.as_deref() {
        Some("gzip") => drop(flate2::read::GzDecoder::new(&body[..]).read_to_string(&mut whole).unwrap()),
        _ => whole = String::from_utf8(body.to_vec()).unwrap(),
    }
    let hash: String = sha2::Sha256::digest(&body).iter().map(|byte| format!("{byte:02x}")).collect();
    serde_json::json!({
        "encoding": encoding, "type": header("content-type"), "length": header("content-length"),
        "signed": header("x-amz-content-sha256"), "hash": hash, "bytes": body.len(), "body": whole,
    })
    .to_string()
    .into_response()
}

async fn echoed(options: &HttpOptions, body: Bytes) -> Value {
    let kind = "application/x-ndjson";
    let answer = client(options).post("/_bulk", kind, body, SOON).await.unwrap();
    serde_json::from_slice(&answer).unwrap()
}

#[tokio::test]
async fn bodies_are_compressed_if_they_are_large_and_that_is_wanted() {
    let url = serve(Router::new().fallback(any(echo))).await;
    let plain = options(&[&url]);
    let compressing = HttpOptions { compress_requests: true, ..plain.clone() };
    let bulk = |ops: &[BulkOp]| encode::bulk_body(ops, "p");
    for (options, body, is_compressed) in [
        (&plain, bulk(&many_ops(2_000)), false),
        (&compressing, bulk(&ops()), false),
        (&compressing, bulk(&many_ops(100)), true),
        (&compressing, bulk(&many_ops(2_000)), true),
    ] {
        let came = echoed(options, body.clone()).await;
        assert_eq!(came["body"].as_str().unwrap().as_bytes(), body);
        assert_eq!(came["encoding"], if is_compressed { "gzip".into() } else { Value::Null });
        assert_eq!(came["type"], "application/x-ndjson");
        assert_eq!(came["length"], came["bytes"].to_string());
        let bytes = usize::try_from(came["bytes"].as_u64().unwrap()).unwrap();
        assert_eq!(bytes < body.len() / 2, is_compressed, "{bytes}");
    }
}

#[tokio::test]
async fn signature_is_of_the_compressed_body() {
    let url = serve(Router::new().fallback(any(echo))).await;
    let keys =
        |name: &str| matches!(name, "AWS_ACCESS_KEY_ID" | "AWS_SECRET_ACCESS_KEY").then(|| "key".to_owned());
    let source = KeySource::from_environment(keys, "eu-central-1").unwrap();
    let auth = Auth::Aws { region: "eu-central-1".to_owned(), service: "es", source };
    for compress_requests in [false, true] {
        let options = HttpOptions { auth: auth.clone(), compress_requests, ..options(&[&url]) };
        let came = echoed(&options, encode::bulk_body(&many_ops(100), "p")).await;
        assert_eq!(came["encoding"] == "gzip", compress_requests);
        assert_eq!(came["signed"], came["hash"]);
    }
}

/// A server's certificate and its authority.
const SERVER_FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/support/tls");

/// A client's certificate and its authority, which is another.
const CLIENT_FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/route/tls");

/// Demands certificates of [`CLIENT_FILES`]. Its answers are the `Authorization` header that came.
async fn serve_holders_of_certificates() -> String {
    let file = |folder: &str, name: &str| ("a file", format!("{folder}/{name}").into());
    let files = TlsFiles {
        certificate: file(SERVER_FILES, "endpoint.pem"),
        key: file(SERVER_FILES, "endpoint.key"),
        client_authorities: Some(file(CLIENT_FILES, "authority.pem")),
    };
    let tls = Tls::read(files).unwrap();
    let router = Router::new().fallback(any(|request: Request| async move {
        let authorization = request.headers().get(AUTHORIZATION).map(|value| value.to_str().unwrap());
        serde_json::json!({ "authorization": authorization }).to_string()
    }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            match tls.acceptor().accept(stream).into_fallible().await {
                Ok(stream) => {
                    let service = TowerToHyperService::new(router.clone());
                    tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
                }
                // What came is read, so that the connection is closed and not reset, which could overtake the alert.
                Err((_, mut stream)) => {
                    let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
                }
            }
        }
    });
    url
}

#[tokio::test]
async fn server_that_demands_certificates_lets_their_holders_in() {
    let url = serve_holders_of_certificates().await;
    let client_with = |certificate: Option<String>, auth: Auth| {
        let identity = certificate.map(|at| {
            let [certificate, key] =
                ["pem", "key"].map(|end| std::path::PathBuf::from(format!("{at}.{end}")));
            ClientIdentity::read(("a file", &certificate), ("a file", &key)).unwrap()
        });
        let ca_pem = Some(std::fs::read(format!("{SERVER_FILES}/authority.pem")).unwrap());
        client(&HttpOptions { ca_pem, identity, auth, ..options(&[&url]) })
    };
    let call = AdminCall { method: Method::Get, path: "/".to_owned(), body: None };
    for (auth, expected) in [
        (Auth::None, Value::Null),
        (Auth::Basic { user: "u".to_owned(), password: "p".to_owned() }, "Basic dTpw".into()),
        (Auth::ApiKey("ZQ==".to_owned()), "ApiKey ZQ==".into()),
    ] {
        let client = client_with(Some(format!("{CLIENT_FILES}/client")), auth);
        let answer = client.admin(call.clone(), SOON).await.unwrap();
        assert_eq!((answer.status, &answer.body["authorization"]), (200, &expected));
    }
    for (certificate, says) in [
        (None, "demands a client certificate: set elasticsearch.client_cert_file and client_key_file"),
        (Some(format!("{SERVER_FILES}/endpoint")), "refuses the client certificate, or demands one"),
    ] {
        let error = client_with(certificate, Auth::None).admin(call.clone(), SOON).await.unwrap_err();
        assert!(matches!(&error, CallError::Connection(text) if text.contains(says)), "{error}");
    }
}

#[tokio::test]
async fn a_dead_node_is_passed_over_after_its_first_failure() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let alive = one_answer(|| {
        CALLS.fetch_add(1, Ordering::Relaxed);
        r#"{"errors":false,"items":[{"create":{"status":201}}]}"#.into_response()
    })
    .await;
    let client = client(&options(&["http://127.0.0.1:1", &alive]));
    assert!(client.bulk(&ops(), SOON).await.is_err());
    for _ in 0..4 {
        client.bulk(&ops(), SOON).await.unwrap();
    }
    assert_eq!(CALLS.load(Ordering::Relaxed), 4);
}

#[test]
fn options_that_can_not_work_are_refused_without_showing_a_secret() {
    let refused = |options: &HttpOptions| {
        let error = HttpElastic::connect(options, Arc::new(BootClock)).unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
        error
    };
    assert_eq!(refused(&options(&[])), ConnectError::NoUrl);
    for url in ["http://me:secret@h:9200", "http://secret@h", "ftp://h", "http://h/?a=1"] {
        assert!(matches!(refused(&options(&[url])), ConnectError::Url { .. }), "{url}");
    }
    let good = options(&["http://h:9200"]);
    for prefix in ["", "P", "-p", "p/x", &"p".repeat(65)] {
        let options = HttpOptions { prefix: prefix.to_owned(), ..good.clone() };
        assert_eq!(refused(&options), ConnectError::Prefix(prefix.to_owned()));
    }
    let options = HttpOptions { auth: Auth::ApiKey("secret\n".to_owned()), ..good.clone() };
    assert_eq!(refused(&options), ConnectError::ApiKey);
    assert!(!format!("{options:?}").contains("secret"));
    let options = HttpOptions { ca_pem: Some(b"secret".to_vec()), ..good.clone() };
    assert!(matches!(refused(&options), ConnectError::Ca(_)));

    let auth = Auth::Basic { user: "me".to_owned(), password: "secret".to_owned() };
    let client = client(&HttpOptions { auth, ..good });
    assert_eq!(format!("{client:?}"), r#"HttpElastic { urls: ["http://h:9200/"], prefix: "p", .. }"#);
}

/// A node with adjustable behaviour that counts requests.
#[derive(Default)]
struct Node {
    calls: AtomicUsize,
    /// The status of its answers; 0: none until it is released.
    status: AtomicU16,
    released: Notify,
}

/// A clock that advances only when a test sets it.
#[derive(Debug, Default)]
struct StillClock(Mutex<Duration>);

impl StillClock {
    fn go_on(&self, time: Duration) {
        *self.0.lock().unwrap() += time;
    }
}

impl Clock for StillClock {
    fn now(&self) -> Instant {
        Instant::from_start(*self.0.lock().unwrap())
    }
}

impl Node {
    async fn serve(self: &Arc<Self>, listener: tokio::net::TcpListener) -> String {
        let url = format!("http://{}", listener.local_addr().unwrap());
        let node = self.clone();
        let answer = move || {
            let node = node.clone();
            async move {
                node.calls.fetch_add(1, Ordering::Relaxed);
                if node.status.load(Ordering::Relaxed) == 0 {
                    node.released.notified().await;
                }
                let status = node.status.load(Ordering::Relaxed);
                let body = r#"{"errors":false,"items":[{"create":{"status":201}}]}"#;
                (StatusCode::from_u16(status).unwrap(), body).into_response()
            }
        };
        let router = Router::new().fallback(any(answer));
        tokio::spawn(async move { axum::serve(listener, router).await });
        url
    }

    async fn start(status: u16) -> (Arc<Self>, String) {
        let node = Arc::new(Self { status: AtomicU16::new(status), ..Self::default() });
        let url = node.serve(tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap()).await;
        (node, url)
    }

    fn calls(&self) -> usize {
        self.calls.swap(0, Ordering::Relaxed)
    }
}

/// A client of these nodes, its clock, and the metrics that it keeps.
fn watched(urls: &[&str]) -> (HttpElastic, Arc<StillClock>, Arc<Metrics>) {
    let (clock, metrics) = (Arc::new(StillClock::default()), Metrics::new().unwrap());
    let client = HttpElastic::connect(&options(urls), clock.clone()).unwrap();
    (client.observed_by(metrics.clone()), clock, metrics)
}

fn up_and_down(metrics: &Metrics) -> (i64, i64) {
    let state = |state| metrics.elasticsearch.nodes.of(state).get();
    (state(NodeState::Up), state(NodeState::Down))
}

/// An address without a listener, which can be bound later.
async fn nobody() -> (std::net::SocketAddr, String) {
    let address = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    (address, format!("http://{address}"))
}

#[tokio::test]
async fn recovered_node_is_used_after_its_pause() {
    let (alive, alive_url) = Node::start(200).await;
    let (address, dead_url) = nobody().await;
    let (client, clock, metrics) = watched(&[&dead_url, &alive_url]);
    assert_eq!(up_and_down(&metrics), (2, 0));
    assert!(matches!(client.bulk(&ops(), SOON).await, Err(CallError::Connection(_))));
    assert_eq!(up_and_down(&metrics), (1, 1));
    for _ in 0..4 {
        client.bulk(&ops(), SOON).await.unwrap();
    }
    assert_eq!(alive.calls(), 4);
    let back = Arc::new(Node { status: AtomicU16::new(200), ..Node::default() });
    back.serve(tokio::net::TcpListener::bind(address).await.unwrap()).await;
    clock.go_on(Duration::from_secs(2));
    for _ in 0..4 {
        client.bulk(&ops(), SOON).await.unwrap();
    }
    assert_eq!((alive.calls(), back.calls()), (2, 2));
    assert_eq!(up_and_down(&metrics), (2, 0));
}

#[tokio::test]
async fn first_recovered_node_is_used_at_once_if_all_were_dead() {
    let (address, first) = nobody().await;
    let (_, second) = nobody().await;
    let (client, _, metrics) = watched(&[&first, &second]);
    for _ in 0..4 {
        assert!(matches!(client.bulk(&ops(), SOON).await, Err(CallError::Connection(_))));
    }
    assert_eq!(up_and_down(&metrics), (0, 2));
    let back = Arc::new(Node { status: AtomicU16::new(200), ..Node::default() });
    back.serve(tokio::net::TcpListener::bind(address).await.unwrap()).await;
    client.bulk(&ops(), SOON).await.unwrap();
    client.bulk(&ops(), SOON).await.unwrap();
    assert_eq!((back.calls(), up_and_down(&metrics)), (2, (1, 1)));
}

#[tokio::test]
async fn unavailable_node_is_skipped_and_busy_one_is_not() {
    for (status, is_down) in [(502, true), (503, true), (429, false), (500, false), (504, false)] {
        let (odd, odd_url) = Node::start(status).await;
        let (_alive, alive_url) = Node::start(200).await;
        let (client, ..) = watched(&[&odd_url, &alive_url]);
        let error = client.bulk(&ops(), SOON).await.unwrap_err();
        assert!(matches!(error, CallError::Status { status: got, .. } if got == status), "{error}");
        for _ in 0..4 {
            let _ = client.bulk(&ops(), SOON).await;
        }
        assert_eq!(odd.calls(), if is_down { 1 } else { 3 }, "{status}");
    }
}

#[tokio::test]
async fn a_node_that_hangs_holds_one_request_up_at_a_time() {
    const LIMIT: Duration = Duration::from_millis(200);
    let (hangs, hangs_url) = Node::start(0).await;
    let (alive, alive_url) = Node::start(200).await;
    let (client, clock, metrics) = watched(&[&hangs_url, &alive_url]);
    assert_eq!(client.bulk(&ops(), LIMIT).await, Err(CallError::Timeout(LIMIT)));
    assert_eq!((hangs.calls(), up_and_down(&metrics)), (1, (1, 1)));
    clock.go_on(Duration::from_secs(2));
    // One of them is its trial.
    let ops = ops();
    let requests = futures::future::join_all((0..8).map(|_| client.bulk(&ops, 12 * SOON)));
    let release = async {
        while alive.calls.load(Ordering::Relaxed) < 7 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(up_and_down(&metrics), (1, 1));
        hangs.status.store(200, Ordering::Relaxed);
        hangs.released.notify_one();
    };
    let (answers, ()) = tokio::join!(requests, release);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!((hangs.calls(), alive.calls(), up_and_down(&metrics)), (1, 7, (2, 0)));
}

#[tokio::test]
async fn a_name_is_looked_up_again_when_its_server_is_gone() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let answer = || async { r#"{"errors":false,"items":[{"create":{"status":201}}]}"# };
    let router = Router::new().fallback(any(answer));
    let served = axum::serve(listener, router).with_graceful_shutdown(async { drop(stopped.await) });
    let served = tokio::spawn(served.into_future());
    let (client, ..) = watched(&[&format!("http://localhost:{port}")]);
    client.bulk(&ops(), SOON).await.unwrap();
    drop(stop);
    served.await.unwrap().unwrap();

    // Another server, at another address of the same name where this machine gives it one.
    let listener = tokio::net::TcpListener::bind(("::1", port)).await;
    let has_two =
        listener.is_ok() && tokio::net::lookup_host(("localhost", port)).await.unwrap().any(|a| a.is_ipv6());
    let listener = match listener {
        Ok(listener) if has_two => listener,
        _ => tokio::net::TcpListener::bind(("127.0.0.1", port)).await.unwrap(),
    };
    let other = Arc::new(Node { status: AtomicU16::new(200), ..Node::default() });
    other.serve(listener).await;
    client.bulk(&ops(), SOON).await.unwrap();
    assert_eq!(other.calls(), 1);
}

#[tokio::test]
async fn repeated_reads_rotate_nodes() {
    let answering = |version: u64| {
        let body = format!(
            r#"{{"docs":[{{"found":true,"_version":{version},"_seq_no":1,"_primary_term":1,"_source":{{}}}}]}}"#
        );
        one_answer(move || body.clone().into_response())
    };
    let urls = [answering(0).await, answering(1).await, answering(2).await];
    let client = client(&options(&urls.each_ref().map(String::as_str)));
    let gets = [Get::realtime(Index::Placements, DocId::from_key(Some(b"a")).unwrap())];
    for look in [1, 2, 3, 1, 1, 2] {
        let answers = client.mget_again(&gets, look, SOON).await.unwrap();
        let [GetAnswer::Found(found)] = answers.as_slice() else { panic!("{answers:?}") };
        assert_eq!(found.version, look as u64 % 3);
    }
}
