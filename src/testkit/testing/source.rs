//! A source of truth over HTTP, controlled by a test.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::{StreamExt, stream};

use super::http::{Served, lock, serve};

/// What is answered for an id; 404 for those of which nothing is said.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reply {
    Document(&'static str),
    Status(u16),
    /// 503 with so many seconds.
    RetryAfter(u64),
    /// A body without an end that anybody waits for, and without a length.
    Huge,
    /// No answer.
    Hang,
    /// The beginning of one.
    HangInBody,
}

#[derive(Default)]
struct Shared {
    replies: Mutex<HashMap<String, Reply>>,
    expected: Mutex<HashMap<&'static str, &'static str>>,
    asked: Mutex<Vec<String>>,
    now: AtomicUsize,
    most: AtomicUsize,
}

/// It ends when it is dropped.
pub(crate) struct TestSource {
    served: Served,
    shared: Arc<Shared>,
}

impl TestSource {
    pub(crate) async fn start() -> Self {
        let shared = Arc::new(Shared::default());
        let routes = Router::new().route("/documents/{id}", get(answer)).with_state(shared.clone());
        Self { served: serve(routes).await, shared }
    }

    pub(crate) fn template(&self) -> String {
        format!("http://{}/documents/{{id}}", self.served.address)
    }

    pub(crate) fn put(&self, id: &str, reply: Reply) {
        lock(&self.shared.replies).insert(id.to_owned(), reply);
    }

    pub(crate) fn expect_header(&self, name: &'static str, value: &'static str) {
        lock(&self.shared.expected).insert(name, value);
    }

    /// The most requests that were under way at once.
    pub(crate) fn most_at_once(&self) -> usize {
        self.shared.most.load(Ordering::Relaxed)
    }

    /// All ids that were asked for, in order.
    pub(crate) fn asked(&self) -> Vec<String> {
        lock(&self.shared.asked).clone()
    }
}

async fn answer(State(shared): State<Arc<Shared>>, Path(id): Path<String>, headers: HeaderMap) -> Response {
    lock(&shared.asked).push(id.clone());
    let now = shared.now.fetch_add(1, Ordering::Relaxed) + 1;
    shared.most.fetch_max(now, Ordering::Relaxed);
    tokio::task::yield_now().await;
    shared.now.fetch_sub(1, Ordering::Relaxed);
    let is_known = |(name, value): (&&str, &&str)| {
        headers.get(*name).is_some_and(|given| given.as_bytes() == value.as_bytes())
    };
    if !lock(&shared.expected).iter().all(is_known) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let reply = lock(&shared.replies).get(&id).copied();
    let spaces =
        || stream::repeat_with(|| Ok::<_, std::convert::Infallible>(Bytes::from_static(&[b' '; 400])));
    match reply {
        None => StatusCode::NOT_FOUND.into_response(),
        Some(Reply::Document(document)) => document.into_response(),
        Some(Reply::Status(status)) => StatusCode::from_u16(status).unwrap().into_response(),
        Some(Reply::RetryAfter(seconds)) => {
            (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, seconds.to_string())]).into_response()
        }
        Some(Reply::Huge) => Body::from_stream(spaces()).into_response(),
        Some(Reply::Hang) => std::future::pending().await,
        Some(Reply::HangInBody) => {
            Body::from_stream(spaces().take(1).chain(stream::pending())).into_response()
        }
    }
}
