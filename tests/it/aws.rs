//! Amazon OpenSearch Service's authentication: `geofold` with `elasticsearch.aws_region`, before a domain that
//! computes each signature itself, from what came over the wire, and passes on what is well signed to a search server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use geofold::testkit::embedded::elasticsearch::{Standin, StandinOptions};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

const KEY: &str = "AKIDEXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const SCOPE: &str = "eu-central-1/es/aws4_request";
const MAP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/support/map-12.json");

/// A domain before a search server.
struct Domain {
    standin: Standin,
    url: String,
    let_in: Arc<AtomicUsize>,
}

struct Gate {
    behind: String,
    /// How far its clock is ahead, in seconds.
    ahead: i64,
    token: Option<String>,
    let_in: Arc<AtomicUsize>,
}

impl Domain {
    async fn start(ahead: i64, token: Option<&str>) -> Self {
        let standin = Standin::start(StandinOptions::default()).await.unwrap();
        let let_in = Arc::new(AtomicUsize::new(0));
        let token = token.map(str::to_owned);
        let gate = Arc::new(Gate { behind: standin.url(), ahead, token, let_in: let_in.clone() });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(any(pass)).with_state(gate);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { standin, url, let_in }
    }

    /// geofold with this domain: exit code, and all that it printed.
    async fn geofold(&self, variables: &[(&str, &str)], arguments: &[&str]) -> (Option<i32>, String) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("geofold.toml");
        let text = format!(
            "kafka.brokers = [\"127.0.0.1:1\"]\nkafka.topic = \"documents\"\n\
             elasticsearch.urls = [\"{}\"]\nelasticsearch.aws_region = \"eu-central-1\"\n\
             geoshards.map = {MAP:?}\nlog.filter = \"trace\"\n",
            self.url
        );
        std::fs::write(&file, text).unwrap();
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_geofold"));
        for name in ["AWS_SESSION_TOKEN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"]
        {
            command.env_remove(name);
        }
        command
            .env("AWS_ACCESS_KEY_ID", KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET)
            .envs(variables.iter().copied());
        command.args(arguments).arg("--config").arg(&file).kill_on_drop(true);
        let output = tokio::time::timeout(Duration::from_secs(120), command.output()).await.unwrap().unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        assert!(!text.contains(SECRET) && !text.contains("planted"), "{text}");
        (output.status.code(), text)
    }
}

async fn pass(State(gate): State<Arc<Gate>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 64 << 20).await.unwrap();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    if let Err(message) = gate.judge(&parts, &body, now.checked_add_signed(gate.ahead).unwrap()) {
        return (StatusCode::FORBIDDEN, serde_json::json!({ "message": message }).to_string())
            .into_response();
    }
    gate.let_in.fetch_add(1, Ordering::Relaxed);
    let path = parts.uri.path_and_query().unwrap();
    let request = reqwest::Client::new().request(parts.method, format!("{}{path}", gate.behind));
    let request = request.header("content-type", &parts.headers["content-type"]).body(body);
    let answer = request.send().await.unwrap();
    (answer.status(), answer.bytes().await.unwrap()).into_response()
}

impl Gate {
    /// In Amazon's words, as they are documented.
    fn judge(&self, parts: &Parts, body: &[u8], now: u64) -> Result<(), String> {
        let header = |name: &str| header(&parts.headers, name);
        let authorization = header("authorization").ok_or("Missing Authentication Token")?;
        let (_, rest) = authorization.split_once("AWS4-HMAC-SHA256 Credential=").ok_or("no SigV4")?;
        let (credential, rest) = rest.split_once(", SignedHeaders=").ok_or("no SignedHeaders")?;
        let (signed, signature) = rest.split_once(", Signature=").ok_or("no Signature")?;
        let time = header("x-amz-date").ok_or("no date")?;
        let day = time.split('T').next().unwrap_or_default();
        let scope = format!("{day}/{SCOPE}");
        if credential != format!("{KEY}/{scope}") {
            return Err(format!("Credential should be scoped to {SCOPE}"));
        }
        for name in ["host", "content-type", "x-amz-date", "x-amz-content-sha256"] {
            assert!(signed.split(';').any(|one| one == name), "{name} is not signed: {signed}");
        }
        if header("x-amz-security-token") != self.token {
            return Err("The security token included in the request is invalid.".to_owned());
        }
        let hash = hex(&Sha256::digest(body));
        if header("x-amz-content-sha256").as_ref() != Some(&hash) {
            return Err("the body is another one than was signed".to_owned());
        }
        let lines: String = signed
            .split(';')
            .map(|name| format!("{name}:{}\n", header(name).unwrap_or_default().trim()))
            .collect();
        let (path, query) =
            (canonical_path(parts.uri.path()), canonical_query(parts.uri.query().unwrap_or_default()));
        let request = format!("{}\n{path}\n{query}\n{lines}\n{signed}\n{hash}", parts.method);
        let to_sign = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex(&Sha256::digest(request)));
        let mut key = format!("AWS4{SECRET}").into_bytes();
        for part in scope.split('/') {
            key = mac(&key, part);
        }
        if hex(&mac(&key, &to_sign)) != signature {
            return Err(
                "The request signature we calculated does not match the signature you provided.".to_owned()
            );
        }
        let signed_at = seconds(&time);
        if signed_at + 300 < now {
            return Err(format!(
                "Signature expired: {time} is now earlier than (it is {now}, and five minutes count)"
            ));
        }
        if signed_at > now + 300 {
            return Err(format!(
                "Signature not yet current: {time} is still later than {now} and five minutes"
            ));
        }
        Ok(())
    }
}

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().unwrap().to_owned())
}

/// Each segment encoded once more than it came.
fn canonical_path(path: &str) -> String {
    path.split('/').map(|segment| encoded(segment.as_bytes())).collect::<Vec<_>>().join("/")
}

fn canonical_query(query: &str) -> String {
    let mut pairs: Vec<(String, String)> = url::form_urlencoded::parse(query.as_bytes())
        .map(|(name, value)| (encoded(name.as_bytes()), encoded(value.as_bytes())))
        .collect();
    pairs.sort();
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

fn encoded(bytes: &[u8]) -> String {
    let one = |&byte: &u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    bytes.iter().map(one).collect()
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Since 1970, of `20261121T120000Z`.
fn seconds(time: &str) -> u64 {
    let t: Vec<char> = time.chars().collect();
    let part = |range: std::ops::Range<usize>| t[range].iter().collect::<String>();
    let text = format!(
        "{}-{}-{}T{}:{}:{}Z",
        part(0..4),
        part(4..6),
        part(6..8),
        part(9..11),
        part(11..13),
        part(13..15)
    );
    humantime::parse_rfc3339(&text).unwrap().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn the_domain_computes_the_signature_of_amazons_own_example() {
    // "post-vanilla-query" of Amazon's signing test suite.
    let key = ["20150830", "us-east-1", "service", "aws4_request"]
        .iter()
        .fold(format!("AWS4{SECRET}").into_bytes(), |key, part| mac(&key, part));
    let empty = hex(&Sha256::digest(b""));
    let request = format!(
        "POST\n{}\n{}\nhost:example.amazonaws.com\nx-amz-date:20150830T123600Z\n\nhost;x-amz-date\n{empty}",
        canonical_path("/"),
        canonical_query("Param1=value1")
    );
    let scope = "20150830/us-east-1/service/aws4_request";
    let to_sign = format!("AWS4-HMAC-SHA256\n20150830T123600Z\n{scope}\n{}", hex(&Sha256::digest(request)));
    assert_eq!(hex(&mac(&key, &to_sign)), "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11");
}

#[tokio::test(flavor = "multi_thread")]
async fn indices_are_made_and_checked_with_signed_requests() {
    let domain = Domain::start(0, Some("planted-token")).await;
    let token = [("AWS_SESSION_TOKEN", "planted-token")];
    let (code, text) = domain.geofold(&token, &["shards", "create"]).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(domain.let_in.load(Ordering::Relaxed) > 12, "{text}");
    let (_, text) = domain.geofold(&token, &["check"]).await;
    for words in
        ["reachable, health is ", "exist and are correct", ", in 1 primary", "was written to the meta index"]
    {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    let (code, text) = domain.geofold(&token, &["search", "--circle", "48.85,2.35,25km"]).await;
    assert_eq!(code, Some(0), "{text}");
    domain.standin.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_signatures_name_the_reason() {
    let domain = Domain::start(0, None).await;
    for (variables, words) in [
        (
            [("AWS_SECRET_ACCESS_KEY", "planted")],
            ["signature we calculated does not match", "AWS_SECRET_ACCESS_KEY"],
        ),
        (
            [("AWS_SESSION_TOKEN", "planted")],
            ["token included in the request is invalid", "AWS_SESSION_TOKEN"],
        ),
        (
            [("GEOFOLD_ELASTICSEARCH__AWS_REGION", "us-east-1")],
            ["should be scoped to eu-central-1/es", "aws_region"],
        ),
    ] {
        let (code, text) = domain.geofold(&variables, &["check"]).await;
        assert!(
            code == Some(1) && words.iter().all(|words| text.contains(words)),
            "{words:?} {code:?} {text}"
        );
    }
    let (code, text) = domain.geofold(&[("AWS_SECRET_ACCESS_KEY", "")], &["check"]).await;
    assert!(code == Some(2) && text.contains("AWS_SECRET_ACCESS_KEY is not"), "{code:?} {text}");
    assert_eq!(domain.let_in.load(Ordering::Relaxed), 0);
    domain.standin.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_wrong_is_named() {
    for (ahead, words) in [(600, "is behind that of AWS"), (-600, "is ahead of that of AWS")] {
        let domain = Domain::start(ahead, None).await;
        for command in ["check", "run"] {
            // Somebody's own worker may have the usual port.
            let listen = ("GEOFOLD_ADMIN__LISTEN", "127.0.0.1:0");
            let (code, text) = domain.geofold(&[listen], &[command]).await;
            let told = text.contains(words) && text.contains("NTP");
            assert!(code == Some(1) && told, "{command}: {code:?} {text}");
        }
        assert_eq!(domain.let_in.load(Ordering::Relaxed), 0);
        domain.standin.stop().await;
    }
}
