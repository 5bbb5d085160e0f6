//! The HTTP client against a real Elasticsearch: run with `GEOFOLD_TEST_ELASTICSEARCH` set to its address.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use geofold::clock::BootClock;
use geofold::elastic::http::{Auth, HttpElastic, HttpOptions};
use geofold::elastic::{
    AdminCall, BulkOp, CallError, Elastic, Found, Get, GetAnswer, Guard, Index, Method, Stamp,
};
use geofold::ids::{DocId, ShardId};
use geofold::position::Position;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(20);

struct Server(HttpElastic);

impl Server {
    /// `None`, with a word about it, where no server is configured.
    async fn with_prefix(name: &str) -> Option<Self> {
        let Ok(url) = std::env::var("GEOFOLD_TEST_ELASTICSEARCH") else {
            eprintln!("skipped: GEOFOLD_TEST_ELASTICSEARCH is not set");
            return None;
        };
        let options = HttpOptions {
            urls: vec![url.parse().unwrap()],
            auth: Auth::None,
            ca_pem: None,
            prefix: format!("test-http-{name}-{}", std::process::id()),
            request_timeout: LIMIT,
        };
        let server = Self(HttpElastic::connect(&options, Arc::new(BootClock)).unwrap());
        let point = json!({"properties": {"location": {"type": "geo_point"}}});
        for (index, mappings) in [(shard(), point), (Index::Placements, json!({"enabled": false}))] {
            let body = json!({"settings": {"number_of_replicas": 0}, "mappings": mappings});
            let answer = server.admin(Method::Put, &index, Some(body)).await;
            assert_eq!(answer["acknowledged"], true, "{answer}");
        }
        Some(server)
    }

    async fn admin(&self, method: Method, index: &Index, body: Option<Value>) -> Value {
        let path = format!("/{}", index.name(self.0.prefix()));
        self.0.admin(AdminCall { method, path, body }, LIMIT).await.unwrap().body
    }

    async fn statuses(&self, ops: &[BulkOp]) -> Vec<(u16, String)> {
        let answers = self.0.bulk(ops, LIMIT).await.unwrap();
        let kind =
            |error: Option<Box<geofold::elastic::ItemError>>| error.map_or_else(String::new, |e| e.kind);
        answers.into_iter().map(|answer| (answer.status, kind(answer.error))).collect()
    }

    async fn get(&self, index: Index, name: &str) -> GetAnswer {
        self.0.mget(&[Get { index, id: id(name) }], LIMIT).await.unwrap().remove(0)
    }

    async fn clean_up(self) {
        for index in [shard(), Index::Placements] {
            self.admin(Method::Delete, &index, None).await;
        }
    }
}

fn shard() -> Index {
    Index::Geoshard(ShardId::new("s01").unwrap())
}

fn id(name: &str) -> DocId {
    DocId::from_key(Some(name.as_bytes())).unwrap()
}

fn write(index: Index, name: &str, guard: Guard, source: &'static str) -> BulkOp {
    BulkOp::Index { index, id: id(name), guard, source: Bytes::from_static(source.as_bytes()) }
}

fn at(version: u64) -> Position {
    Position::from_version(version)
}

fn delete(name: &str, version: u64) -> BulkOp {
    BulkOp::Delete { index: shard(), id: id(name), version: at(version) }
}

#[tokio::test]
async fn versions_fence_writes_and_deletes() {
    let Some(server) = Server::with_prefix("versions").await else { return };
    let external = |version| Guard::External(at(version));
    let nasty = "quote\" backslash\\ tab\t ünï\u{2028}";
    let answers = server
        .statuses(&[
            write(shard(), nasty, external(5), r#"{"location":{"lat":1,"lon":2}}"#),
            write(shard(), nasty, external(5), "{}"),
            write(shard(), nasty, Guard::ExternalOrEqual(at(5)), "{}"),
            delete("absent", 9),
            write(shard(), "absent", external(5), "{}"),
            delete(nasty, 5),
            delete(nasty, 6),
            write(shard(), "bad", external(1), r#"{"location":{"lat":100,"lon":2}}"#),
        ])
        .await;
    let conflict = "version_conflict_engine_exception";
    let expected = [
        (201, ""),
        (409, conflict),
        (200, ""),
        (404, ""),
        (409, conflict),
        (409, conflict),
        (200, ""),
        (400, "document_parsing_exception"),
    ];
    assert_eq!(answers, expected.map(|(status, kind)| (status, kind.to_owned())));
    assert_eq!(server.get(shard(), nasty).await, GetAnswer::Missing);
    server.clean_up().await;
}

#[tokio::test]
async fn placements_are_compared_and_set_by_their_stamps() {
    let Some(server) = Server::with_prefix("stamps").await else { return };
    let placement = |guard| [write(Index::Placements, "a", guard, r#"{"pos":1}"#)];
    let created = server.0.bulk(&placement(Guard::Absent), LIMIT).await.unwrap().remove(0);
    let stamp = created.stamp.expect("a placement's answer has its stamp");
    assert_eq!(server.statuses(&placement(Guard::Absent)).await[0].0, 409);

    let GetAnswer::Found(found) = server.get(Index::Placements, "a").await else { panic!("it was written") };
    assert_eq!(found.stamp, stamp);
    let updated = server.0.bulk(&placement(Guard::Unchanged(stamp)), LIMIT).await.unwrap().remove(0);
    assert!(updated.stamp.is_some_and(|new| new.seq_no > stamp.seq_no));
    assert_eq!(server.statuses(&placement(Guard::Unchanged(stamp))).await[0].0, 409);
    let never = [write(Index::Placements, "b", Guard::Unchanged(stamp), "{}")];
    assert_eq!(server.statuses(&never).await[0].0, 409);
    server.clean_up().await;
}

#[tokio::test]
async fn a_source_is_read_byte_for_byte_before_any_refresh() {
    let Some(server) = Server::with_prefix("source").await else { return };
    let source = r#"{ "price" : 1.10, "n":12345678901234567890123, "t":"é\u00e9\/" }"#;
    server.statuses(&[write(Index::Placements, "a", Guard::External(at(7)), source)]).await;
    let expected = Found {
        version: 7,
        stamp: Stamp { seq_no: 0, primary_term: 1 },
        source: Bytes::from_static(source.as_bytes()),
    };
    assert_eq!(server.get(Index::Placements, "a").await, GetAnswer::Found(expected));
    server.clean_up().await;
}

#[tokio::test]
async fn a_missing_index_is_a_failure_and_not_a_missing_document() {
    let Some(server) = Server::with_prefix("missing").await else { return };
    assert_eq!(server.get(shard(), "a").await, GetAnswer::Missing);
    let nowhere = Index::Geoshard(ShardId::new("nowhere").unwrap());
    let answer = server.get(nowhere, "a").await;
    assert!(
        matches!(&answer, GetAnswer::Failed(error) if error.kind == "index_not_found_exception"),
        "{answer:?}"
    );
    server.clean_up().await;
}

#[tokio::test]
async fn a_request_that_fails_validation_says_why() {
    let Some(server) = Server::with_prefix("invalid").await else { return };
    // An external version beyond 63 bits spoils the whole request.
    let error = server.0.bulk(&[delete("a", u64::MAX)], LIMIT).await.unwrap_err();
    assert!(matches!(&error, CallError::Status { status: 400, kind, .. } if !kind.is_empty()), "{error:?}");
    server.clean_up().await;
}
