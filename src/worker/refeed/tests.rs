//! The fetch, and a feeder around it, against a small web server.

use std::sync::{Arc, Mutex};

use tokio::sync::{mpsc, watch};

use super::*;
use crate::base::clock::{BootClock, Clock};
use crate::base::position::{Epoch, Position};
use crate::base::retry::RetryPolicy;
use crate::core::decode::{Decoder, LocationPath};
use crate::core::mover::SourceAnswer;
use crate::support::config::Secret;
use crate::support::supervisor::Supervisor;
use crate::support::telemetry::Metrics;
use crate::support::telemetry::health::Health;
use crate::support::telemetry::refeed::Asked;
use crate::testkit::testing::id;
use crate::testkit::testing::source::{Reply, TestSource};
use crate::testkit::testing::tls::{answer_with_tls, authority};

/// Every server of these tests has it.
const PROBE: &str = "probe";

async fn start() -> TestSource {
    let server = TestSource::start().await;
    server.put(PROBE, Reply::Document("{}"));
    server
}

fn config(url: &str) -> Config {
    let mut config = Config::default();
    config.source.kind = Some(SourceKind::Http);
    config.source.url = Some(url.parse().unwrap());
    config.source.probe_id = Some(PROBE.to_owned());
    config.source.request_timeout = Duration::from_secs(5);
    config.documents.max_bytes = crate::support::config::ByteSize::new(1000);
    config
}

fn failure(answer: &FetchAnswer) -> &FetchFailure {
    match answer {
        FetchAnswer::Failed(failure) => failure,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_certificate_is_trusted_by_the_authority_that_is_configured() {
    let mut config = config(&format!("https://{}/documents/{{id}}", answer_with_tls(r#"{"n":1}"#)));
    let untrusted = DocumentSource::open(&config).unwrap().fetch(&[id("a")]).await;
    assert!(failure(&untrusted[0]).to_string().contains("set source.ca_file"), "{untrusted:?}");
    config.source.ca_file = Some(authority().into());
    let trusted = DocumentSource::open(&config).unwrap().fetch(&[id("a")]).await;
    assert_eq!(trusted, [FetchAnswer::Found(Bytes::from_static(br#"{"n":1}"#))]);
}

#[tokio::test]
async fn each_id_has_its_own_answer() {
    let server = start().await;
    server.put("a/b", Reply::Document(r#"{"n":1.10}"#));
    server.put("down", Reply::Status(500));
    server.put("gone", Reply::Status(410));
    server.put("huge", Reply::Huge);
    server.put("moved", Reply::Status(302));
    server.put("odd", Reply::Status(422));
    let source = DocumentSource::open(&config(&server.template())).unwrap();
    let ids = ["a/b", "missing", "gone", "down", "huge", "moved", "..", "odd"].map(id);
    let answers = source.fetch(&ids).await;
    assert_eq!(answers[0], FetchAnswer::Found(Bytes::from_static(br#"{"n":1.10}"#)));
    assert_eq!(answers[1..3], [FetchAnswer::Gone, FetchAnswer::Gone]);
    assert!(failure(&answers[3]).to_string().contains("500"), "{:?}", answers[3]);
    assert!(matches!(answers[4], FetchAnswer::Unusable { reason: "too_large", .. }), "{:?}", answers[4]);
    assert!(failure(&answers[5]).to_string().contains("redirects"), "{:?}", answers[5]);
    assert!(matches!(answers[6], FetchAnswer::Unusable { reason: "unfetchable_id", .. }), "{:?}", answers[6]);
    let refused = FetchAnswer::Unusable {
        reason: "refused_by_source",
        detail: "the source answered 422 Unprocessable Entity for this id; if it does so for all, check source.url and \
                 what the source expects"
            .to_owned(),
    };
    assert_eq!(answers[7], refused);
}

#[tokio::test]
async fn unreachable_source_is_a_failure_without_url_or_secrets() {
    let server = start().await;
    server.put("x", Reply::Hang);
    server.put("y", Reply::HangInBody);
    let mut config = config(&format!("{}?key=hunter2", server.template()));
    config.source.request_timeout = Duration::from_millis(200);
    config.source.bearer_token = Some(Secret::new("hunter2"));
    let source = DocumentSource::open(&config).unwrap();
    let answers = source.fetch(&[id("x"), id("y")]).await;
    assert!(answers.iter().all(|answer| failure(answer).to_string().contains("200ms")), "{answers:?}");
    drop(server);
    let refused = source.fetch(&[id("z")]).await.remove(0);
    let shown = format!("{refused:?} {source:?} {} {}", failure(&refused), source.name());
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[tokio::test]
async fn credentials_headers_and_retry_after_are_passed_on() {
    let server = start().await;
    server.expect_header("authorization", "Bearer t");
    server.expect_header("x-api-key", "k");
    server.put("a", Reply::Document("{}"));
    server.put("later", Reply::RetryAfter(7));
    let mut config = config(&server.template());
    let without = DocumentSource::open(&config).unwrap().probe().await.unwrap_err();
    assert!(without.to_string().contains("401") && without.to_string().contains("source.bearer_token"));
    config.source.bearer_token = Some(Secret::new("t"));
    config.source.headers.insert("x-api-key".to_owned(), Secret::new("k"));
    let source = DocumentSource::open(&config).unwrap();
    assert_eq!(source.probe().await, Ok(FetchAnswer::Found(Bytes::from_static(b"{}"))));
    let answers = source.fetch(&[id("a"), id("later")]).await;
    assert_eq!(answers[0], FetchAnswer::Found(Bytes::from_static(b"{}")));
    assert_eq!(failure(&answers[1]).retry_after, Some(Duration::from_secs(7)));
    server.expect_header("authorization", "Basic dTpw");
    config.source.bearer_token = None;
    (config.source.username, config.source.password) = (Some("u".to_owned()), Some(Secret::new("p")));
    assert_eq!(
        DocumentSource::open(&config).unwrap().probe().await,
        Ok(FetchAnswer::Found(Bytes::from_static(b"{}")))
    );
}

#[tokio::test]
async fn concurrent_requests_stay_within_the_limit() {
    let server = start().await;
    let mut config = config(&server.template());
    config.source.max_in_flight = 2;
    let source = Arc::new(DocumentSource::open(&config).unwrap());
    let ids: Vec<DocId> = (0..40).map(|n| id(&n.to_string())).collect();
    let (some, others) = tokio::join!(source.fetch(&ids), source.fetch(&ids));
    assert!(some.iter().chain(&others).all(|answer| *answer == FetchAnswer::Gone));
    assert!((1..=2).contains(&server.most_at_once()), "{}", server.most_at_once());
}

#[test]
fn incomplete_configuration_opens_no_source() {
    assert!(matches!(DocumentSource::open(&Config::default()), Err(SourceOpenError::None)));
    let mut config = config("https://host/{id}");
    config.source.ca_file = Some("/there/is/no/such/file.pem".into());
    let error = DocumentSource::open(&config).unwrap_err().to_string();
    assert!(error.contains("source.ca_file /there/is"), "{error}");
    (config.source.ca_file, config.source.probe_id) = (None, None);
    assert!(
        matches!(DocumentSource::open(&config), Err(SourceOpenError::Incomplete)),
        "a 404 cannot be checked"
    );
    config.source.kind = Some(SourceKind::Postgresql);
    assert!(matches!(DocumentSource::open(&config), Err(SourceOpenError::Incomplete)));
}

/// A feeder over a server, and its answers.
struct Fed {
    server: TestSource,
    feeder: SourceFetcher,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    asked: mpsc::UnboundedSender<FetchResponse>,
    waiters: Mutex<Vec<FetchWaiter>>,
    answers: mpsc::UnboundedReceiver<FetchResponse>,
    sources: watch::Sender<DocumentSource>,
    config: Config,
    _stop: tokio_util::sync::DropGuard,
}

const DOCUMENT: &str = r#"{"location":[1,2]}"#;

async fn fed(change: impl FnOnce(&mut Config)) -> Fed {
    let server = start().await;
    let mut config = config(&server.template());
    config.source.max_in_flight = 1;
    change(&mut config);
    let metrics = Metrics::new().unwrap();
    let clock: Arc<dyn Clock> = Arc::new(BootClock);
    let health = Health::new(clock.clone(), metrics.clone(), Duration::from_secs(60));
    health.ready(Health::STARTUP);
    let (sources, source) = watch::channel(DocumentSource::open(&config).unwrap());
    let around = FetcherDependencies {
        source,
        decoder: Decoder::new(LocationPath::new("location").unwrap(), Epoch::default(), 1000),
        retry: RetryPolicy { initial: Duration::from_millis(2), max: Duration::from_millis(20) },
        clock,
        metrics: metrics.clone(),
        health: health.clone(),
    };
    let stop = tokio_util::sync::CancellationToken::new();
    let feeder = SourceFetcher::start(around, stop.clone(), &Supervisor::new().0);
    let (asked, answers) = mpsc::unbounded_channel();
    let (waiters, _stop) = (Mutex::default(), stop.drop_guard());
    Fed { server, feeder, health, metrics, asked, waiters, answers, sources, config, _stop }
}

impl Fed {
    fn ask(&self, text: &str) {
        let waiter = self.ask_only(text);
        self.waiters.lock().unwrap().push(waiter);
    }

    fn ask_only(&self, text: &str) -> FetchWaiter {
        let (request, waiter) = FetchRequest::new(id(text), Position::from_version(1));
        self.feeder.request(request, self.asked.clone());
        waiter
    }

    async fn answered(&mut self) -> FetchResponse {
        tokio::time::timeout(Duration::from_secs(60), self.answers.recv()).await.unwrap().unwrap()
    }

    async fn until(&self, what: &str, wanted: impl Fn(&Self) -> bool) {
        let waiting = async {
            while !wanted(self) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(tokio::time::timeout(Duration::from_secs(60), waiting).await.is_ok(), "never came: {what}");
    }
}

#[tokio::test]
async fn failing_source_opens_the_breaker_until_it_answers() {
    let mut fed = fed(|_| ()).await;
    fed.server.put("a", Reply::Status(500));
    fed.server.put("b", Reply::Status(503));
    fed.ask("a");
    fed.ask("b");
    fed.until("an open breaker", |fed| fed.metrics.refeed.breaker_open.get() == 1).await;
    fed.until("it shows", |fed| fed.health.missing().contains_key("source")).await;
    fed.server.put("a", Reply::Document(DOCUMENT));
    fed.server.put("b", Reply::Document(DOCUMENT));
    for _ in 0..2 {
        assert_eq!(fed.answered().await.answer, SourceAnswer::Document(DOCUMENT.into()));
    }
    fed.until("a closed breaker", |fed| fed.metrics.refeed.breaker_open.get() == 0).await;
    assert!(!fed.health.missing().contains_key("source"));
    assert_eq!(fed.metrics.refeed.answers.of(Asked::Found).get(), 2);
    assert!(fed.metrics.refeed.answers.of(Asked::Failed).get() >= 5);
}

#[tokio::test]
async fn failing_document_delays_no_other() {
    let mut fed = fed(|_| ()).await;
    fed.server.put("bad", Reply::Status(500));
    fed.ask("bad");
    for n in 0..20 {
        fed.ask(&n.to_string());
    }
    for _ in 0..20 {
        let answered = fed.answered().await;
        assert_eq!((answered.answer, answered.request.id == id("bad")), (SourceAnswer::Gone, false));
    }
}

#[tokio::test]
async fn refused_document_is_final_but_refused_credentials_are_retried() {
    let mut fed = fed(|_| ()).await;
    fed.server.put("odd", Reply::Status(400));
    fed.ask("odd");
    match fed.answered().await.answer {
        SourceAnswer::Unusable(refusal) => assert_eq!(refusal.reason, "refused_by_source", "{refusal:?}"),
        answer => panic!("{answer:?}"),
    }
    assert_eq!(fed.server.asked(), ["odd"]);
    assert_eq!(fed.metrics.refeed.answers.of(Asked::Unusable).get(), 1);
    assert_eq!(fed.metrics.refeed.answers.of(Asked::Failed).get(), 0);

    for status in [401, 403, 407, 408, 429] {
        fed.server.put("a", Reply::Status(status));
        let failed = fed.metrics.refeed.answers.of(Asked::Failed).get();
        fed.ask("a");
        fed.until("it is asked again", |fed| {
            fed.metrics.refeed.answers.of(Asked::Failed).get() >= failed + 2
        })
        .await;
        fed.server.put("a", Reply::Document(DOCUMENT));
        assert_eq!(fed.answered().await.answer, SourceAnswer::Document(DOCUMENT.into()), "{status}");
    }
}

#[tokio::test]
async fn raised_request_limit_applies_at_once() {
    let mut fed = fed(|_| ()).await;
    for name in ["a", "b", "c"] {
        fed.server.put(name, Reply::Hang);
        fed.ask(name);
    }
    fed.until("the first", |fed| fed.server.asked() == ["a"]).await;
    fed.config.source.max_in_flight = 2;
    fed.sources.send_replace(DocumentSource::open(&fed.config).unwrap());
    fed.until("the second", |fed| fed.server.asked() == ["a", "b"]).await;
    assert_eq!(fed.metrics.refeed.requests_in_flight.get(), 2, "requests in flight count");
}

#[tokio::test]
async fn unplaceable_document_says_why() {
    let mut fed = fed(|_| ()).await;
    for (name, document, expected) in [
        ("nowhere", r#"{"n":1}"#, "no_location"),
        ("list", "[1]", "not_an_object"),
        ("torn", r#"{"location":"#, "unparsable_json"),
    ] {
        fed.server.put(name, Reply::Document(document));
        fed.ask(name);
        match fed.answered().await.answer {
            SourceAnswer::Unusable(refusal) => assert_eq!(refusal.reason, expected, "{name}: {refusal:?}"),
            answer => panic!("{name}: {answer:?}"),
        }
    }
}

#[tokio::test]
async fn requests_stop_at_the_limit_of_held_bytes() {
    let mut fed = fed(|config| config.source.max_bytes = crate::support::config::ByteSize::new(30)).await;
    let names = ["a", "b", "c", "d"];
    names.iter().for_each(|name| fed.server.put(name, Reply::Document(DOCUMENT)));
    names.iter().for_each(|name| fed.ask(name));
    let held = [fed.answered().await, fed.answered().await];
    // Two exceed the limit. That the third is not requested shows only by its absence.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(fed.server.asked().len(), 2);
    drop(held);
    let _held = [fed.answered().await, fed.answered().await];
    assert_eq!(fed.server.asked().len(), 4);
}

#[tokio::test]
async fn requests_of_a_revoked_partition_are_dropped() {
    let mut fed = fed(|_| ()).await;
    fed.server.put("a", Reply::Status(500));
    let (asked, answers) = mpsc::unbounded_channel();
    let (request, _waiter) = FetchRequest::new(id("a"), Position::from_version(1));
    fed.feeder.request(request, asked);
    fed.until("it was asked for", |fed| !fed.server.asked().is_empty()).await;
    drop(answers);
    fed.until("nothing waits", |fed| fed.metrics.refeed.waiting.get() == 0).await;
    fed.ask("b");
    fed.answered().await;
}

#[tokio::test]
async fn abandoned_requests_do_not_pile_up_while_the_source_is_down() {
    let mut fed = fed(|_| ()).await;
    fed.server.put("a", Reply::Status(500));
    fed.ask("a");
    fed.until("an open breaker", |fed| fed.metrics.refeed.breaker_open.get() == 1).await;
    let old: Vec<String> = (0..1000).map(|n| format!("old{n}")).collect();
    old.iter().for_each(|id| fed.server.put(id, Reply::Status(500)));
    let waiters: Vec<FetchWaiter> = old.iter().map(|id| fed.ask_only(id)).collect();
    fed.until("they wait", |fed| fed.metrics.refeed.waiting.get() > 900).await;
    let asked = |fed: &Fed| fed.server.asked().iter().filter(|id| id.starts_with("old")).count();
    let before = asked(&fed);
    drop(waiters);
    fed.ask("b");
    fed.until("they are dropped", |fed| fed.metrics.refeed.waiting.get() <= 2).await;
    fed.server.put("a", Reply::Document(DOCUMENT));
    let answered = [fed.answered().await, fed.answered().await];
    assert!(answered.iter().all(|answered| answered.request.is_wanted()));
    // One may have been in flight.
    assert!(asked(&fed) <= before + 1);
}

#[tokio::test]
async fn server_that_answers_404_for_everything_deletes_nothing() {
    let mut fed = fed(|config| config.source.max_in_flight = 4).await;
    let documents = (0..30).map(|n| format!("d{n}"));
    documents.clone().for_each(|name| fed.server.put(&name, Reply::Document(DOCUMENT)));
    // An ingress without a backend.
    fed.server.put(PROBE, Reply::Status(404));
    documents.clone().for_each(|name| fed.server.put(&name, Reply::Status(404)));
    documents.clone().for_each(|name| fed.ask(&name));
    fed.until("an open breaker", |fed| fed.metrics.refeed.breaker_open.get() == 1).await;
    fed.until("it shows", |fed| fed.health.missing().contains_key("source")).await;
    let shown = fed.health.missing()["source"].clone();
    assert!(shown.contains("source.probe_id"), "{shown}");
    // All return but one, which is really gone.
    documents.clone().skip(1).for_each(|name| fed.server.put(&name, Reply::Document(DOCUMENT)));
    fed.server.put(PROBE, Reply::Document(DOCUMENT));
    let mut gone = 0;
    for _ in 0..30 {
        let FetchResponse { request, answer, .. } = fed.answered().await;
        if request.id == id("d0") {
            assert_eq!(answer, SourceAnswer::Gone);
            gone += 1;
        } else {
            assert_eq!(answer, SourceAnswer::Document(DOCUMENT.into()), "{:?}", request.id);
        }
    }
    assert_eq!((gone, fed.metrics.refeed.answers.of(Asked::Gone).get()), (1, 1));
}
