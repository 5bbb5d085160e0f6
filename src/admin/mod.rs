//! The worker's own HTTP server: metrics, health, readiness.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the routes |
//! | `health.rs` | [`Health`]: is the worker alive, is it ready, and if not, why |
//! | `server.rs` | the listener: limits on connections, header time and connection age; graceful shutdown |
//!
//! It only answers questions (GET and HEAD); nothing here changes the worker. It has no authentication and is meant
//! for a private network or loopback.

mod health;
mod server;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::json;

pub use health::{Alive, Health};
pub use server::{AdminError, serve};

use crate::telemetry::Metrics;

/// Content type of Prometheus' text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const INDEX: &str = "\
geofold

/metrics   metrics in Prometheus' text format
/healthz   200 as long as the process lives and polls Kafka: for a liveness probe
/readyz    200 when ready, else 503 with one reason per line as JSON: for a readiness probe
";

/// What the routes answer from.
#[derive(Debug, Clone)]
pub struct AdminState {
    /// For `/metrics`.
    pub metrics: Arc<Metrics>,
    /// For `/healthz` and `/readyz`.
    pub health: Arc<Health>,
}

/// The routes that every worker has. More can be merged in before [`serve`], which adds the answer for unknown paths.
pub fn routes(state: AdminState) -> Router {
    Router::new()
        .route("/", get(|| async { INDEX }))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(state)
}

async fn metrics(State(state): State<AdminState>) -> Response {
    match state.metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics could not be rendered");
            (StatusCode::INTERNAL_SERVER_ERROR, format!("metrics could not be rendered: {error}\n"))
                .into_response()
        }
    }
}

async fn healthz(State(state): State<AdminState>) -> Response {
    match state.health.alive() {
        Alive::Yes => "ok\n".into_response(),
        Alive::Silent(silence) => {
            let seconds = silence.as_secs();
            let text = format!("the thread that polls kafka has not polled for {seconds} s\n");
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }
}

async fn readyz(State(state): State<AdminState>) -> Response {
    let missing = state.health.missing();
    if missing.is_empty() {
        return "ready\n".into_response();
    }
    let lines: String = missing
        .iter()
        .map(|(part, reason)| format!("{}\n", json!({"part": part, "reason": reason})))
        .collect();
    (StatusCode::SERVICE_UNAVAILABLE, [(header::CONTENT_TYPE, "application/x-ndjson")], lines).into_response()
}
