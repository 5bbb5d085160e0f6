use serde_json::json;

use super::*;
use crate::config::{Secret, ServerUrl};
use crate::testing::TestRegistry;

async fn asked(settings: &SchemaRegistry, id: u32) -> Result<Result<Fetched, Unreadable>, Trouble> {
    Client::new(settings).unwrap().schema(SchemaId(id)).await
}

#[tokio::test]
async fn a_schema_comes_with_all_that_it_refers_to_each_once_and_behind_its_own() {
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
        Fetched {
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
    server.put(3, json!({"schema": "{}", "schemaType": "JSON", "references": [reference("d")]}));
    assert_eq!(asked(&server.settings(), 3).await.unwrap().unwrap().kind, Kind::Json);
    server.put(4, json!({"schema": "", "schemaType": "XML"}));
    let why = asked(&server.settings(), 4).await.unwrap().unwrap_err();
    assert!(why.reason() == "bad_schema" && why.to_string().contains("XML"), "{why}");
}

#[tokio::test]
async fn only_a_registry_can_say_that_it_has_no_such_schema() {
    let server = TestRegistry::start().await;
    assert_eq!(asked(&server.settings(), 7).await, Ok(Err(Unreadable::UnknownSchema(SchemaId(7)))));
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
            .contains("no answer of a schema registry")
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
    let client = Client::new(&SchemaRegistry { urls: urls.to_vec(), ..good.settings() }).unwrap();
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
    let basic = SchemaRegistry {
        username: Some("user".to_owned()),
        password: Some(Secret::new("hunter2")),
        ..server.settings()
    };
    server.expect_authorization("Basic dXNlcjpodW50ZXIy");
    assert!(asked(&basic, 1).await.unwrap().is_ok());
    let bearer = SchemaRegistry { bearer_token: Some(Secret::new("hunter3")), ..server.settings() };
    let trouble = asked(&bearer, 1).await.unwrap_err();
    assert!(trouble.to_string().contains("401"), "{trouble}");
    server.expect_authorization("Bearer hunter3");
    let client = Client::new(&bearer).unwrap();
    assert!(client.schema(SchemaId(1)).await.unwrap().is_ok());
    assert_eq!(client.types().await.unwrap(), ["JSON", "PROTOBUF", "AVRO"]);
    assert!(!format!("{client:?} {trouble:?}").contains("hunter"));
}
