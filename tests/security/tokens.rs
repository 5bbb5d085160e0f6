//! Logins with tokens that soon end, of an endpoint that is not always there.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::json;

use crate::support::{World, wait_at_most};

const SECRET: &str = "planted-client-secret";
/// Seconds that a token is good. Clients and brokers leave a tenth of it for a login.
const LIFETIME: u32 = 12;
const PATIENCE: Duration = Duration::from_secs(120);

/// A token endpoint that this process plays.
struct Endpoint {
    url: String,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    granted: AtomicU64,
    failed: AtomicU64,
    is_down: AtomicBool,
}

impl Endpoint {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/token", listener.local_addr().unwrap());
        let state = Arc::<State>::default();
        let shared = state.clone();
        std::thread::spawn(move || listener.incoming().for_each(|stream| shared.answer(stream.unwrap())));
        Self { url, state }
    }
}

impl State {
    fn answer(&self, mut stream: TcpStream) {
        let mut lines = BufReader::new(stream.try_clone().unwrap());
        let (mut authorization, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            lines.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim().split_once(": ") else {
                if line.trim().is_empty() { break } else { continue }
            };
            match name.to_ascii_lowercase().as_str() {
                "authorization" => value.clone_into(&mut authorization),
                "content-length" => length = value.parse().unwrap(),
                _ => {}
            }
        }
        let mut form = vec![0; length];
        lines.read_exact(&mut form).unwrap();
        assert_eq!(form, b"grant_type=client_credentials");

        let is_known = authorization == format!("Basic {}", STANDARD.encode(format!("geofold:{SECRET}")));
        let (status, body) = if self.is_down.load(Ordering::SeqCst) {
            self.failed.fetch_add(1, Ordering::SeqCst);
            ("503 Service Unavailable", json!({}))
        } else if is_known {
            self.granted.fetch_add(1, Ordering::SeqCst);
            ("200 OK", json!({"access_token": token(), "token_type": "Bearer", "expires_in": LIFETIME}))
        } else {
            ("401 Unauthorized", json!({"error": "invalid_client"}))
        };
        let body = body.to_string();
        let head =
            format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes()).unwrap();
    }
}

/// A JWT without a signature, which the stack's Kafka takes.
fn token() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let claims = json!({"sub": "token-user", "iat": now, "exp": now + f64::from(LIFETIME)});
    let part = |part: serde_json::Value| URL_SAFE_NO_PAD.encode(part.to_string());
    format!("{}.{}.", part(json!({"alg": "none"})), part(claims))
}

#[test]
fn a_worker_outlives_its_tokens_and_an_endpoint_that_is_down() {
    let world = World::new();
    world.allow("token-user");
    let endpoint = Endpoint::start();
    let mut settings = world.settings();
    world.with_tokens(&mut settings, &endpoint.url, SECRET);
    world.succeeds(&settings, &["shards", "create"]);
    world.succeeds(&settings, &["check"]);
    world.does_its_work(&settings);

    // It waits for the endpoint at its start, as for brokers.
    let state = &endpoint.state;
    state.is_down.store(true, Ordering::SeqCst);
    let worker = world.worker(&settings);
    wait_at_most("two requests that fail", PATIENCE, || {
        (state.failed.load(Ordering::SeqCst) >= 2).then_some(())
    });
    state.is_down.store(false, Ordering::SeqCst);
    worker.wait_until_ready();
    let mut sent = 0.0;
    let mut write_until = |what: &str, done: &dyn Fn() -> bool| {
        wait_at_most(what, PATIENCE, || {
            world.produce("d1", r#"{"location": [2.3, 48.8]}"#);
            sent += 1.0;
            done().then_some(())
        });
        wait_at_most("its records to be written", PATIENCE, || {
            // Most are folded into the next.
            let written = worker.metric("geofold_records_processed_total", "");
            (written >= sent).then_some(())
        });
    };
    let granted = || state.granted.load(Ordering::SeqCst);
    let before = granted();
    write_until("three more tokens", &|| granted() >= before + 3);
    state.is_down.store(true, Ordering::SeqCst);
    let failed = state.failed.load(Ordering::SeqCst);
    write_until("two requests that fail", &|| state.failed.load(Ordering::SeqCst) >= failed + 2);
    state.is_down.store(false, Ordering::SeqCst);
    let before = granted();
    write_until("two tokens", &|| granted() >= before + 2);
    let log = worker.log_once_stopped();
    assert!(log.contains("no token for Kafka from"), "{log}");
    world.printed(&log);
}

#[test]
fn a_wrong_secret_for_the_endpoint_is_explained() {
    let world = World::new();
    let endpoint = Endpoint::start();
    let mut settings = world.settings();
    world.with_tokens(&mut settings, &endpoint.url, "planted-but-wrong");
    for command in ["check", "run"] {
        let (code, text) = world.geofold(&settings, &[command]);
        assert_eq!(code, 1, "{text}");
        for part in [&endpoint.url, "401 invalid_client", "kafka.oauth_client_secret"] {
            assert!(text.contains(part), "geofold {command} does not say {part:?}: {text}");
        }
    }
}
