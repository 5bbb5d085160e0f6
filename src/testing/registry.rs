//! A schema registry that has what a test gives it, and answers as a test tells it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::config::SchemaRegistry;

/// 200: it answers as it should.
const WELL: u16 = 200;

#[derive(Default)]
struct Shared {
    schemas: Mutex<HashMap<String, Value>>,
    versions: Mutex<HashMap<(String, String), Value>>,
    asked: Mutex<Vec<String>>,
    authorization: Mutex<Option<String>>,
    status: AtomicU16,
}

/// It ends when it is dropped.
pub(crate) struct TestRegistry {
    address: std::net::SocketAddr,
    shared: Arc<Shared>,
    _stop: DropGuard,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TestRegistry {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { status: AtomicU16::new(WELL), ..Shared::default() });
        let routes = Router::new()
            .route("/base/schemas/types", get(types))
            .route("/base/schemas/ids/{id}", get(schema))
            .route("/base/subjects/{subject}/versions/{version}", get(version))
            .with_state(shared.clone());
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = axum::serve(listener, routes) => {}
                () = stopped.cancelled() => {}
            }
        });
        Self { address, shared, _stop: stop.drop_guard() }
    }

    /// What leads to it.
    pub(crate) fn settings(&self) -> SchemaRegistry {
        let url = format!("http://{}/base/", self.address).parse().unwrap();
        SchemaRegistry { urls: vec![url], ..SchemaRegistry::default() }
    }

    /// Gives it a schema, as it is sent.
    pub(crate) fn put(&self, id: u32, sent: Value) {
        lock(&self.shared.schemas).insert(id.to_string(), sent);
    }

    /// An Avro schema.
    pub(crate) fn put_avro(&self, id: u32, schema: &str) {
        self.put(id, json!({ "schema": schema }));
    }

    pub(crate) fn put_version(&self, subject: &str, version: u32, sent: Value) {
        lock(&self.shared.versions).insert((subject.to_owned(), version.to_string()), sent);
    }

    /// From now on it answers all with this status.
    pub(crate) fn be(&self, status: u16) {
        self.shared.status.store(status, Ordering::Relaxed);
    }

    /// And now it answers well.
    pub(crate) fn be_well(&self) {
        self.be(WELL);
    }

    /// Whoever does not say this is refused.
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
    (status != WELL).then(|| StatusCode::from_u16(status).unwrap().into_response())
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
    headers: HeaderMap,
) -> Response {
    let well = || found(lock(&shared.versions).get(&at).cloned(), 40_402);
    instead(&shared, format!("{} {}", at.0, at.1), &headers).unwrap_or_else(well)
}
