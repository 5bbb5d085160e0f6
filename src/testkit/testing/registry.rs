//! A schema registry whose schemas and answers a test controls.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{AppendHeaders, IntoResponse, Json, Response};
use axum::routing::get;
use serde_json::{Value, json};

use super::http::{Served, lock, serve};
use crate::support::config::SchemaRegistryConfig;

/// 200: it answers as it should.
const WELL: u16 = 200;

#[derive(Default)]
struct Shared {
    schemas: Mutex<HashMap<String, Value>>,
    versions: Mutex<HashMap<(String, String), Value>>,
    asked: Mutex<Vec<String>>,
    authorization: Mutex<Option<String>>,
    /// Sent with each answer that is not as it should be.
    header: Mutex<Option<(HeaderName, String)>>,
    status: AtomicU16,
}

/// It ends when it is dropped.
pub(crate) struct TestRegistry {
    served: Served,
    shared: Arc<Shared>,
}

impl TestRegistry {
    pub(crate) async fn start() -> Self {
        let shared = Arc::new(Shared { status: AtomicU16::new(WELL), ..Shared::default() });
        let routes = Router::new()
            .route("/base/schemas/types", get(types))
            .route("/base/schemas/ids/{id}", get(schema))
            .route("/base/subjects/{subject}/versions/{version}", get(version))
            .with_state(shared.clone());
        Self { served: serve(routes).await, shared }
    }

    /// What leads to it.
    pub(crate) fn settings(&self) -> SchemaRegistryConfig {
        let url = format!("http://{}/base/", self.served.address).parse().unwrap();
        SchemaRegistryConfig { urls: vec![url], ..SchemaRegistryConfig::default() }
    }

    /// Gives it a schema, as it is sent.
    pub(crate) fn put(&self, id: u32, sent: Value) {
        lock(&self.shared.schemas).insert(id.to_string(), sent);
    }

    /// An Avro schema.
    pub(crate) fn put_avro(&self, id: u32, schema: &str) {
        self.put(id, json!({ "schema": schema }));
    }

    /// A version of a subject, softly deleted since.
    pub(crate) fn put_version(&self, subject: &str, version: u32, sent: Value) {
        lock(&self.shared.versions).insert((subject.to_owned(), version.to_string()), sent);
    }

    /// From now on it answers all with this status.
    pub(crate) fn be(&self, status: u16) {
        self.shared.status.store(status, Ordering::Relaxed);
    }

    /// The same, with this header.
    pub(crate) fn be_with(&self, status: u16, name: HeaderName, value: impl Into<String>) {
        *lock(&self.shared.header) = Some((name, value.into()));
        self.be(status);
    }

    /// And now it answers well.
    pub(crate) fn be_well(&self) {
        self.be(WELL);
    }

    /// Requests without this are refused.
    pub(crate) fn expect_authorization(&self, value: &str) {
        *lock(&self.shared.authorization) = Some(value.to_owned());
    }

    /// What was asked for, in order.
    pub(crate) fn asked(&self) -> Vec<String> {
        lock(&self.shared.asked).clone()
    }
}

/// The answer in place of the usual one, if there is one.
fn instead(shared: &Shared, asked: String, headers: &HeaderMap) -> Option<Response> {
    lock(&shared.asked).push(asked);
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if lock(&shared.authorization).as_deref().is_some_and(|expected| given != Some(expected)) {
        return Some(StatusCode::UNAUTHORIZED.into_response());
    }
    let status = shared.status.load(Ordering::Relaxed);
    let header = lock(&shared.header).clone();
    (status != WELL).then(|| (StatusCode::from_u16(status).unwrap(), AppendHeaders(header)).into_response())
}

fn found(sent: Option<Value>, code: i32) -> Response {
    match sent {
        Some(sent) => Json(sent).into_response(),
        None => {
            (StatusCode::NOT_FOUND, Json(json!({"error_code": code, "message": "not found"}))).into_response()
        }
    }
}

async fn types(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let well = || Json(json!(["JSON", "PROTOBUF", "AVRO"])).into_response();
    instead(&shared, "types".to_owned(), &headers).unwrap_or_else(well)
}

async fn schema(State(shared): State<Arc<Shared>>, Path(id): Path<String>, headers: HeaderMap) -> Response {
    let well = || found(lock(&shared.schemas).get(&id).cloned(), 40_403);
    instead(&shared, id.clone(), &headers).unwrap_or_else(well)
}

async fn version(
    State(shared): State<Arc<Shared>>,
    Path(at): Path<(String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let well = || {
        let versions = lock(&shared.versions);
        let has_subject = versions.keys().any(|(subject, _)| *subject == at.0);
        let seen = versions.get(&at).filter(|_| query.as_deref() == Some("deleted=true"));
        found(seen.cloned(), if has_subject { 40_402 } else { 40_401 })
    };
    instead(&shared, format!("{} {}", at.0, at.1), &headers).unwrap_or_else(well)
}
