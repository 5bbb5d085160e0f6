use bytes::Bytes;

use super::*;
use crate::testkit::testing::TestRegistry;

const LONG: &str = r#""long""#;

fn open(registry: &TestRegistry, cached_schemas: usize) -> Registry {
    Registry::open(&SchemaRegistryConfig { cached_schemas, ..registry.settings() }, None).unwrap()
}

#[tokio::test]
async fn a_schema_is_asked_for_once_by_however_many() {
    let server = TestRegistry::start().await;
    server.put_avro(1, LONG);
    let registry = open(&server, 10);
    let all = futures::future::join_all((0..50).map(|_| registry.schema(SchemaId(1)))).await;
    assert!(all.iter().all(|answer| matches!(answer, Ok(Ok(_)))));
    assert!(registry.schema(SchemaId(1)).await.unwrap().is_ok());
    assert_eq!(server.asked(), ["1"]);
}

#[tokio::test]
async fn no_more_schemas_are_kept_than_configured() {
    let server = TestRegistry::start().await;
    (1..=3).for_each(|id| server.put_avro(id, LONG));
    let registry = open(&server, 2);
    for id in [1, 2, 1, 3, 1, 2] {
        assert!(registry.schema(SchemaId(id)).await.unwrap().is_ok());
    }
    assert_eq!(server.asked(), ["1", "2", "3", "2"]);
}

#[tokio::test]
async fn failure_is_retried_and_unknown_id_only_after_a_while() {
    let server = TestRegistry::start().await;
    let registry = open(&server, 10);
    server.be(500);
    assert!(registry.schema(SchemaId(1)).await.is_err());
    assert!(registry.schema(SchemaId(1)).await.is_err());
    assert_eq!(server.asked().len(), 2);
    server.be_well();
    let unknown = || Ok(Err(UnreadablePayload::UnknownSchema(SchemaId(1))));
    assert_eq!(registry.schema(SchemaId(1)).await.map(|looked| looked.map(|_| ())), unknown());
    assert_eq!(server.asked().len(), 4, "it was asked twice");
    server.put_avro(1, LONG);
    assert_eq!(registry.schema(SchemaId(1)).await.map(|looked| looked.map(|_| ())), unknown());
    assert_eq!(server.asked().len(), 4, "it is believed for a while");
    {
        let mut state = registry.0.state.lock().unwrap();
        state.known.get_mut(&SchemaId(1)).unwrap().1 -= BELIEVED;
    }
    assert!(registry.schema(SchemaId(1)).await.unwrap().is_ok());
}

#[tokio::test]
async fn late_schema_is_not_unknown() {
    let server = TestRegistry::start().await;
    let registry = open(&server, 10);
    let asking = tokio::spawn(async move { registry.schema(SchemaId(1)).await });
    while server.asked().is_empty() {
        tokio::task::yield_now().await;
    }
    server.put_avro(1, LONG);
    assert!(asking.await.unwrap().unwrap().is_ok());
}

#[tokio::test]
async fn abandoned_fetch_is_taken_over() {
    let server = TestRegistry::start().await;
    server.put_avro(1, LONG);
    let registry = open(&server, 10);
    let first = registry.clone();
    let first = tokio::spawn(async move { first.schema(SchemaId(1)).await });
    let second = registry.clone();
    let second = tokio::spawn(async move { second.schema(SchemaId(1)).await });
    tokio::task::yield_now().await;
    first.abort();
    assert!(second.await.unwrap().unwrap().is_ok());
    assert!(registry.schema(SchemaId(1)).await.unwrap().is_ok());
}

#[tokio::test]
async fn concurrent_requests_get_their_own_schemas() {
    let server = TestRegistry::start().await;
    server.put_avro(1, LONG);
    server.put_avro(2, r#""string""#);
    let registry = open(&server, 10);
    let (one, two) = tokio::join!(registry.schema(SchemaId(1)), registry.schema(SchemaId(2)));
    let again = (registry.schema(SchemaId(1)).await, registry.schema(SchemaId(2)).await);
    let read = |looked: Result<CachedSchema, SchemaFetchError>| {
        let json = looked.unwrap().unwrap().json(&Bytes::from_static(&[6, b'a', b'b', b'c']), 0, 100);
        json.map(|json| String::from_utf8(json.to_vec()).unwrap()).map_err(|_| ())
    };
    assert_eq!(
        (read(one), read(two)),
        (Err(()), Ok("\"abc\"".to_owned())),
        "four bytes are more than a long needs"
    );
    assert_eq!((read(again.0), read(again.1)), (Err(()), Ok("\"abc\"".to_owned())));
}
