use reqwest::header::LOCATION;
use serde_json::json;

use super::*;
use crate::support::config::{Secret, ServerUrl};
use crate::testkit::testing::TestRegistry;
use crate::testkit::testing::tls::{answer_with_tls, authority};

async fn asked(
    settings: &SchemaRegistryConfig,
    id: u32,
) -> Result<Result<RegisteredSchema, UnreadablePayload>, SchemaFetchError> {
    Client::new(settings).unwrap().schema(SchemaId(id)).await
}

#[tokio::test]
async fn schema_is_fetched_with_references_in_dependency_order() {
    let server = TestRegistry::start().await;
    let reference = |name: &str| json!({"name": name, "subject": format!("s/{name}"), "version": 3});
    server.put(
        1,
        json!({"schema": "main", "schemaType": "PROTOBUF", "references": [reference("a"), reference("b")]}),
    );
    server.put_version("s/a", 3, json!({"schema": "A", "references": [reference("c"), reference("b")]}));
    server.put_version("s/b", 3, json!({"schema": "B", "references": [reference("c")]}));
    server.put_version("s/c", 3, json!({"schema": "C", "id": 12}));
    let fetched = asked(&server.settings(), 1).await.unwrap().unwrap();
    let named = |name: &str, text: &str| Reference { name: name.to_owned(), text: text.to_owned() };
    assert_eq!(
        fetched,
        RegisteredSchema {
            kind: Kind::Protobuf,
            text: "main".to_owned(),
            references: vec![named("c", "C"), named("b", "B"), named("a", "A")],
        }
    );
    server.put_version("s/c", 3, json!({"schema": "C", "references": [reference("a")]}));
    assert!(asked(&server.settings(), 1).await.unwrap().is_ok(), "a circle has an end");
    server.put(2, json!({"schema": "main", "references": [reference("d")]}));
    let why = asked(&server.settings(), 2).await.unwrap().unwrap_err();
    assert!(why.to_string().contains("no version 3 of the subject s/d"), "{why}");
    server.put_version("s/d", 2, json!({"schema": "D"}));
    let why = asked(&server.settings(), 2).await.unwrap().unwrap_err();
    assert!(why.to_string().contains("no version 3 of the subject s/d"), "{why}");
    server.put(3, json!({"schema": "{}", "schemaType": "JSON", "references": [reference("d")]}));
    assert_eq!(asked(&server.settings(), 3).await.unwrap().unwrap().kind, Kind::Json);
    server.put(4, json!({"schema": "", "schemaType": "XML"}));
    let why = asked(&server.settings(), 4).await.unwrap().unwrap_err();
    assert!(why.reason() == "bad_schema" && why.to_string().contains("XML"), "{why}");
}

#[tokio::test]
async fn a_schema_refers_to_a_hundred_others_and_to_no_more() {
    let server = TestRegistry::start().await;
    let refers = |to: usize| json!({"schema": "x", "references": [{"name": to.to_string(), "subject": "s", "version": to}]});
    (2..=102).for_each(|n| server.put_version("s", n, refers(n as usize + 1)));
    server.put(1, refers(2));
    let why = asked(&server.settings(), 1).await.unwrap().unwrap_err();
    assert!(why.to_string().contains("more than 100 others"), "{why}");
    server.put_version("s", 101, json!({"schema": "x"}));
    assert_eq!(asked(&server.settings(), 1).await.unwrap().unwrap().references.len(), 100);
}

#[tokio::test]
async fn only_a_registry_can_say_that_it_has_no_such_schema() {
    let server = TestRegistry::start().await;
    assert_eq!(asked(&server.settings(), 7).await, Ok(Err(UnreadablePayload::UnknownSchema(SchemaId(7)))));
    for (status, words) in [
        (404, "check the path"),
        (401, "schema_registry.username"),
        (403, "all subjects"),
        (302, "redirections"),
        (429, "tried again"),
        (500, "log"),
    ] {
        server.be(status);
        let trouble = asked(&server.settings(), 7).await.unwrap_err().to_string();
        assert!(trouble.contains(&status.to_string()) && trouble.contains(words), "{trouble}");
    }
    server.be_well();
    server.put(8, json!({"no": "schema"}));
    assert!(
        asked(&server.settings(), 8)
            .await
            .unwrap_err()
            .to_string()
            .contains("not a response of a schema registry")
    );
    server.put(9, json!({"schema": "x".repeat(MAX_ANSWER)}));
    assert!(asked(&server.settings(), 9).await.unwrap_err().to_string().contains("4 MiB"));
}

#[tokio::test]
async fn the_next_address_is_asked_where_one_does_not_answer() {
    let (bad, good) = (TestRegistry::start().await, TestRegistry::start().await);
    good.put_avro(1, r#""long""#);
    bad.be(500);
    let nobody: ServerUrl = "http://127.0.0.1:1".parse().unwrap();
    let urls = [nobody, bad.settings().urls[0].clone(), good.settings().urls[0].clone()];
    let client = Client::new(&SchemaRegistryConfig { urls: urls.to_vec(), ..good.settings() }).unwrap();
    assert!(client.schema(SchemaId(1)).await.unwrap().is_ok());
    assert!(client.schema(SchemaId(1)).await.unwrap().is_ok());
    assert_eq!((bad.asked().len(), good.asked().len()), (1, 2), "the one that answered is asked first");
    good.be(503);
    assert!(
        client.schema(SchemaId(1)).await.unwrap_err().to_string().contains("asking the schema registry http")
    );
}

#[tokio::test]
async fn credentials_are_sent_and_never_shown() {
    let server = TestRegistry::start().await;
    server.put_avro(1, r#""long""#);
    let basic = SchemaRegistryConfig {
        username: Some("user".to_owned()),
        password: Some(Secret::new("hunter2")),
        ..server.settings()
    };
    server.expect_authorization("Basic dXNlcjpodW50ZXIy");
    assert!(asked(&basic, 1).await.unwrap().is_ok());
    let bearer = SchemaRegistryConfig { bearer_token: Some(Secret::new("hunter3")), ..server.settings() };
    let trouble = asked(&bearer, 1).await.unwrap_err();
    assert!(trouble.to_string().contains("401"), "{trouble}");
    server.expect_authorization("Bearer hunter3");
    let client = Client::new(&bearer).unwrap();
    assert!(client.schema(SchemaId(1)).await.unwrap().is_ok());
    assert_eq!(client.types().await.unwrap(), ["JSON", "PROTOBUF", "AVRO"]);
    assert!(!format!("{client:?} {trouble:?}").contains("hunter"));
}

#[tokio::test]
async fn credentials_do_not_follow_a_redirection() {
    let (server, elsewhere) = (TestRegistry::start().await, TestRegistry::start().await);
    elsewhere.put_avro(1, r#""long""#);
    let settings = SchemaRegistryConfig { bearer_token: Some(Secret::new("hunter3")), ..server.settings() };
    for status in [301, 302, 307, 308] {
        server.be_with(status, LOCATION, format!("{}schemas/ids/1", elsewhere.settings().urls[0]));
        let trouble = asked(&settings, 1).await.unwrap_err().to_string();
        assert!(trouble.contains("redirections are not followed"), "{trouble}");
    }
    assert!(elsewhere.asked().is_empty());
}

#[tokio::test]
async fn registry_retry_after_is_honoured() {
    let server = TestRegistry::start().await;
    server.be_with(429, RETRY_AFTER, "7");
    assert_eq!(asked(&server.settings(), 1).await.unwrap_err().retry_after, Some(Duration::from_secs(7)));
    server.be_with(503, RETRY_AFTER, "tomorrow");
    assert_eq!(asked(&server.settings(), 1).await.unwrap_err().retry_after, None);
}

#[tokio::test]
async fn silent_registry_times_out() {
    // The kernel accepts the connections, and no one reads them.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let settings = SchemaRegistryConfig {
        urls: vec![format!("http://{}", silent.local_addr().unwrap()).parse().unwrap()],
        request_timeout: Duration::from_millis(100),
        ..SchemaRegistryConfig::default()
    };
    let trouble = asked(&settings, 1).await.unwrap_err().to_string();
    assert!(trouble.contains("no whole answer in 100ms (schema_registry.request_timeout)"), "{trouble}");
}

#[tokio::test]
async fn a_certificate_is_trusted_by_the_authority_that_is_configured() {
    let address = answer_with_tls(r#"{"schema":"\"long\""}"#);
    let urls = vec![format!("https://{address}").parse().unwrap()];
    let unknown = SchemaRegistryConfig { urls, ..SchemaRegistryConfig::default() };
    let trouble = asked(&unknown, 1).await.unwrap_err().to_string();
    assert!(trouble.contains("set schema_registry.ca_file"), "{trouble}");
    let known = SchemaRegistryConfig { ca_file: Some(authority().into()), ..unknown };
    assert!(asked(&known, 1).await.unwrap().is_ok());
    let none = SchemaRegistryConfig { ca_file: Some("/there/is/no/such/file.pem".into()), ..known };
    let error = Client::new(&none).unwrap_err().to_string();
    assert!(error.contains("schema_registry.ca_file /there/is"), "{error}");
}
