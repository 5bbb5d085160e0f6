//! The fetch against a small web server.

use std::sync::Arc;

use super::*;
use crate::config::Secret;
use crate::testing::source::{Reply, TestSource};

fn id(text: &str) -> DocId {
    DocId::from_key(Some(text.as_bytes())).unwrap()
}

fn config(url: &str) -> Config {
    let mut config = Config::default();
    config.source.kind = Some(SourceKind::Http);
    config.source.url = Some(url.parse().unwrap());
    config.source.timeout = Duration::from_secs(5);
    config.documents.max_bytes = crate::config::ByteSize::new(1000);
    config
}

fn failure(answer: &Answer) -> &Failure {
    match answer {
        Answer::Failed(failure) => failure,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn each_id_has_its_own_answer() {
    let server = TestSource::start().await;
    server.put("a/b", Reply::Document(r#"{"n":1.10}"#));
    server.put("down", Reply::Status(500));
    server.put("gone", Reply::Status(410));
    server.put("huge", Reply::Huge);
    server.put("moved", Reply::Status(302));
    let source = Source::open(&config(&server.template())).unwrap();
    let ids = ["a/b", "missing", "gone", "down", "huge", "moved", ".."].map(id);
    let answers = source.fetch(&ids).await;
    assert_eq!(answers[0], Answer::Found(Bytes::from_static(br#"{"n":1.10}"#)));
    assert_eq!(answers[1..3], [Answer::Gone, Answer::Gone]);
    assert!(failure(&answers[3]).to_string().contains("500"), "{:?}", answers[3]);
    assert!(matches!(answers[4], Answer::Unusable { reason: "too_large", .. }), "{:?}", answers[4]);
    assert!(failure(&answers[5]).to_string().contains("redirections"), "{:?}", answers[5]);
    assert!(matches!(answers[6], Answer::Unusable { reason: "unfetchable_id", .. }), "{:?}", answers[6]);
}

#[tokio::test]
async fn a_source_that_hangs_or_is_not_there_is_a_failure_without_address_and_secrets() {
    let server = TestSource::start().await;
    server.put("x", Reply::Hang);
    server.put("y", Reply::HangInBody);
    let mut config = config(&format!("{}?key=hunter2", server.template()));
    config.source.timeout = Duration::from_millis(200);
    config.source.bearer_token = Some(Secret::new("hunter2"));
    let source = Source::open(&config).unwrap();
    let answers = source.fetch(&[id("x"), id("y")]).await;
    assert!(answers.iter().all(|answer| failure(answer).to_string().contains("200ms")), "{answers:?}");
    drop(server);
    let refused = source.fetch(&[id("z")]).await.remove(0);
    let shown = format!("{refused:?} {source:?} {} {}", failure(&refused), source.name());
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[tokio::test]
async fn credentials_and_headers_go_with_each_request_and_a_retry_after_comes_back() {
    let server = TestSource::start().await;
    server.expect_header("authorization", "Bearer t");
    server.expect_header("x-api-key", "k");
    server.put("a", Reply::Document("{}"));
    server.put("later", Reply::RetryAfter(7));
    let mut config = config(&server.template());
    let without = Source::open(&config).unwrap().probe().await.unwrap_err();
    assert!(without.to_string().contains("401") && without.to_string().contains("source.bearer_token"));
    config.source.bearer_token = Some(Secret::new("t"));
    config.source.headers.insert("x-api-key".to_owned(), Secret::new("k"));
    let source = Source::open(&config).unwrap();
    assert_eq!(source.probe().await, Ok(Answer::Gone));
    let answers = source.fetch(&[id("a"), id("later")]).await;
    assert_eq!(answers[0], Answer::Found(Bytes::from_static(b"{}")));
    assert_eq!(failure(&answers[1]).retry_after, Some(Duration::from_secs(7)));
    server.expect_header("authorization", "Basic dTpw");
    config.source.bearer_token = None;
    (config.source.username, config.source.password) = (Some("u".to_owned()), Some(Secret::new("p")));
    assert_eq!(Source::open(&config).unwrap().probe().await, Ok(Answer::Gone));
}

#[tokio::test]
async fn no_more_requests_are_under_way_than_the_source_may_be_asked() {
    let server = TestSource::start().await;
    let mut config = config(&server.template());
    config.source.max_in_flight = 2;
    let source = Arc::new(Source::open(&config).unwrap());
    let ids: Vec<DocId> = (0..40).map(|n| id(&n.to_string())).collect();
    let (some, others) = tokio::join!(source.fetch(&ids), source.fetch(&ids));
    assert!(some.iter().chain(&others).all(|answer| *answer == Answer::Gone));
    assert!((1..=2).contains(&server.most_at_once()), "{}", server.most_at_once());
}

#[test]
fn without_a_source_that_can_be_asked_there_is_none() {
    assert!(matches!(Source::open(&Config::default()), Err(OpenError::None)));
    let mut config = config("https://host/{id}");
    config.source.ca_file = Some("/there/is/no/such/file.pem".into());
    let error = Source::open(&config).unwrap_err().to_string();
    assert!(error.contains("source.ca_file /there/is"), "{error}");
    config.source.kind = Some(SourceKind::Postgresql);
    assert!(matches!(Source::open(&config), Err(OpenError::Incomplete)));
}
