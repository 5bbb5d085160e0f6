use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State as Shared};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};

use super::*;
use crate::support::config::{Config, SaslMechanism, Secret, SecurityProtocol};
use crate::testkit::testing::tls::{answer_with_tls, authority};

/// A token endpoint that this process plays, on a thread of its own.
struct Played {
    url: String,
    requests: Arc<AtomicUsize>,
}

/// Answers the n-th request.
fn play(answer: impl Fn(usize) -> (StatusCode, String) + Clone + Send + Sync + 'static) -> Played {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}/token", listener.local_addr().unwrap());
    let requests = Arc::<AtomicUsize>::default();
    let counted = requests.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let handler = move |Shared(requests): Shared<Arc<AtomicUsize>>, request: Request| {
                let answer = answer.clone();
                async move { judged(request, answer(requests.fetch_add(1, Ordering::SeqCst))).await }
            };
            let router = Router::new().route("/token", post(handler)).with_state(counted);
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
    });
    Played { url, requests }
}

/// The answer, to the one who may ask.
async fn judged(request: Request, (status, body): (StatusCode, String)) -> Response {
    let (parts, form) = request.into_parts();
    let form = axum::body::to_bytes(form, 10_000).await.unwrap();
    assert_eq!(&form[..], b"grant_type=client_credentials&scope=kafka+rw");
    let expected = format!("Basic {}", STANDARD.encode("geo%26fold:s%C3%A9cret%3A"));
    assert_eq!(parts.headers["authorization"], expected.as_str());
    (status, body).into_response()
}

fn config(url: &str) -> Config {
    let mut config = Config::default();
    config.kafka.brokers = vec!["127.0.0.1:1".to_owned()];
    config.kafka.security_protocol = SecurityProtocol::SaslPlaintext;
    config.kafka.sasl_mechanism = Some(SaslMechanism::OauthBearer);
    config.kafka.oauth_token_url = Some(url.parse().unwrap());
    config.kafka.oauth_client_id = Some("geo&fold".to_owned());
    config.kafka.oauth_client_secret = Some(Secret::new("sécret:"));
    config.kafka.oauth_scope = Some("kafka rw".to_owned());
    config
}

fn setting(config: &Config) -> String {
    config.consumer_properties().get("sasl.oauthbearer.config").unwrap().to_owned()
}

/// Repeats `look` until it sees something.
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn grant(token: &str, seconds: u64) -> (StatusCode, String) {
    (StatusCode::OK, serde_json::json!({"access_token": token, "expires_in": seconds}).to_string())
}

#[test]
fn clients_of_one_source_share_its_token() {
    let endpoint = play(|number| grant(&format!("token {number}"), 3600));
    let config = config(&endpoint.url);
    let setting = setting(&config);
    for _ in 0..3 {
        let token = Login.generate_oauth_token(Some(&setting)).unwrap();
        assert_eq!((token.token.as_str(), token.principal_name.as_str()), ("token 0", "geo&fold"));
    }
    assert_eq!(endpoint.requests.load(Ordering::SeqCst), 1);
}

#[test]
fn the_next_token_is_fetched_when_half_of_a_lifetime_is_over() {
    let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
    let token = |left| Token { text: String::new(), principal: String::new(), end: now + left };
    assert_eq!(token(Duration::from_secs(900)).next_in(now), Duration::from_secs(450));
    assert_eq!(token(Duration::from_millis(500)).next_in(now), LEAST_INTERVAL, "never in a loop");
}

#[test]
fn a_token_is_fetched_again_without_being_asked_for() {
    let endpoint = play(|number| grant(&format!("token {number}"), 4));
    let setting = setting(&config(&endpoint.url));
    let first = token(Some(&setting)).unwrap();
    assert_eq!(first.token, "token 0");
    // Nobody asks in between.
    wait_for("the second request", || (endpoint.requests.load(Ordering::SeqCst) >= 2).then_some(()));
    let other = || token(Some(&setting)).ok().filter(|next| next.token != first.token);
    let next = wait_for("the answer", other);
    assert!(next.lifetime_ms > first.lifetime_ms);
}

#[test]
fn a_refusal_says_why_and_the_next_attempt_is_made() {
    let endpoint = play(|number| match number {
        0 => {
            let body = r#"{"error": "invalid_client", "error_description": "wrong secret"}"#;
            (StatusCode::UNAUTHORIZED, body.to_owned())
        }
        _ => grant("token", 3600),
    });
    let setting = setting(&config(&endpoint.url));
    let error = token(Some(&setting)).map(|token| token.token).unwrap_err().to_string();
    for part in [&endpoint.url, "401 invalid_client: wrong secret", "kafka.oauth_client_secret"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(!error.contains("sécret"), "{error}");
    let found = wait_for("a token", || token(Some(&setting)).ok());
    assert_eq!(found.token, "token");
}

#[test]
fn a_refusal_of_any_length_is_one_short_line() {
    let endpoint = play(|_| {
        let body =
            serde_json::json!({"error": "no\nline\u{1b}[31m", "error_description": "x".repeat(10_000)});
        (StatusCode::BAD_GATEWAY, body.to_string())
    });
    let error =
        token(Some(&setting(&config(&endpoint.url)))).map(|token| token.token).unwrap_err().to_string();
    assert!(error.contains("502 noline[31m: xxx") && error.len() < 500 && !error.contains('\n'), "{error}");
}

#[test]
fn nobody_at_the_endpoint_is_an_error_and_not_a_wait() {
    let setting = setting(&config("http://127.0.0.1:1/token"));
    let error = token(Some(&setting)).map(|token| token.token).unwrap_err().to_string();
    assert!(error.contains("http://127.0.0.1:1/token") && error.contains("refused"), "{error}");
    assert!(token(Some("principal=admin")).is_err(), "librdkafka's own tokens prove nothing");
}

#[test]
fn the_endpoints_certificate_is_trusted_by_the_authority_that_is_configured() {
    let address = answer_with_tls(r#"{"access_token": "token", "expires_in": 3600}"#);
    let mut config = config(&format!("https://{address}/token"));
    let token = |config: &Config| token(Some(&setting(config))).map(|token| token.token);
    let error = token(&config).unwrap_err().to_string();
    assert!(error.contains("kafka.oauth_ca_file"), "{error}");
    config.kafka.oauth_ca_file = Some(authority().into());
    assert_eq!(token(&config).unwrap(), "token");
    config.kafka.oauth_ca_file = Some("/there/is/no/such/file.pem".into());
    let error = token(&config).unwrap_err().to_string();
    assert!(error.contains("kafka.oauth_ca_file /there/is"), "{error}");
}

#[test]
fn what_may_pass_is_told_from_what_has_to_be_corrected() {
    let told = |status: u16| {
        let status = StatusCode::from_u16(status).unwrap();
        let endpoint = play(move |_| (status, "{}".to_owned()));
        current(&setting(&config(&endpoint.url))).map(drop).unwrap_err()
    };
    for status in [400, 401, 403, 404, 405] {
        assert!(matches!(told(status), NoToken::Refused(_)), "{status}");
    }
    for status in [200, 302, 429, 500, 503] {
        assert!(matches!(told(status), NoToken::Unavailable(_)), "{status}");
    }
    let nobody = current(&setting(&config("http://127.0.0.1:1/other"))).map(drop).unwrap_err();
    assert!(matches!(nobody, NoToken::Unavailable(_)), "{nobody}");
}

/// Only a build with TLS has the mechanism.
#[cfg(feature = "tls")]
#[test]
fn both_ways_reach_a_client_of_librdkafka() {
    let endpoint = play(|_| grant("token", 3600));
    let settings = super::super::client_config(&config(&endpoint.url).consumer_properties());
    // Through the context, when it is polled.
    let polled: BaseConsumer<Login> = settings.create_with_context(Login).unwrap();
    wait_for("its request", || {
        polled.poll(Duration::from_millis(10));
        (endpoint.requests.load(Ordering::SeqCst) > 0).then_some(())
    });
    // And before a request.
    let asked: BaseConsumer = settings.create().unwrap();
    log_in(asked.client()).unwrap();
    let other: BaseConsumer = ClientConfig::new().set("group.id", "g").create().unwrap();
    log_in(other.client()).expect("it logs in otherwise");
}

#[test]
fn end_and_owner_of_a_token() {
    use super::endpoint::granted;
    let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
    let jwt =
        |claims: &str| format!("{}.{}.sig", URL_SAFE_NO_PAD.encode("{}"), URL_SAFE_NO_PAD.encode(claims));
    let answer = |token: &str, more: &str| format!(r#"{{"access_token": "{token}"{more}}}"#);
    let read = |answer: &str| granted(answer.as_bytes(), "geofold", now);
    let good = [
        // The answer says it, whatever the token does.
        (answer(&jwt(r#"{"sub": "svc", "exp": 1000009}"#), r#", "expires_in": 60"#), "svc", 60),
        (answer(&jwt(r#"{"sub": "svc", "exp": 1000009.5}"#), ""), "svc", 9),
        (answer("opaque", r#", "expires_in": 60"#), "geofold", 60),
    ];
    for (answer, principal, seconds) in good {
        let token = read(&answer).ok().unwrap();
        assert_eq!(token.principal, principal);
        assert_eq!(token.end.duration_since(now).unwrap().as_secs(), seconds);
    }
    for (answer, part) in [
        (answer("opaque", ""), "expires_in"),
        (answer(&jwt(r#"{"exp": 999999}"#), ""), "clock"),
        (answer("opaque", r#", "expires_in": 18446744073709551615"#), "no time"),
        (r#"{"token": "x"}"#.to_owned(), "access_token"),
        ("<html>".to_owned(), "access_token"),
    ] {
        let error = read(&answer).err().unwrap();
        assert!(error.contains(part), "{error}");
    }
}
