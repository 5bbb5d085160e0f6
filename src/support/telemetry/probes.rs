//! The HTTP routes that every process serves: `/healthz`, `/readyz` and `/metrics`.

use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::json;

use super::health::{Alive, Health};

/// Content type of Prometheus' text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The three routes. `stalled` begins the answer of a failing `/healthz` ("the poll thread has not polled kafka"); `render`
/// gives the metrics in Prometheus' text format.
pub fn probe_routes<S, R>(health: Arc<Health>, stalled: &'static str, render: R) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
    R: Fn() -> prometheus::Result<String> + Clone + Send + Sync + 'static,
{
    let readiness_of = health.clone();
    Router::new()
        .route("/healthz", get(move || async move { liveness(&health, stalled) }))
        .route("/readyz", get(move || async move { readiness(&readiness_of) }))
        .route("/metrics", get(move || async move { metrics(render()) }))
}

fn liveness(health: &Health, stalled: &str) -> Response {
    match health.alive() {
        Alive::Yes => "ok\n".into_response(),
        Alive::Silent(silence) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("{stalled} for {} s\n", silence.as_secs()))
                .into_response()
        }
    }
}

/// One JSON object per line for each part that is not ready.
fn readiness(health: &Health) -> Response {
    let missing = health.missing();
    if missing.is_empty() {
        return "ready\n".into_response();
    }
    let lines: String = missing
        .iter()
        .map(|(part, reason)| format!("{}\n", json!({"part": part, "reason": reason})))
        .collect();
    (StatusCode::SERVICE_UNAVAILABLE, [(header::CONTENT_TYPE, "application/x-ndjson")], lines).into_response()
}

fn metrics(rendered: prometheus::Result<String>) -> Response {
    match rendered {
        Ok(text) => ([(header::CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics could not be rendered");
            let text = format!("metrics could not be rendered: {error}\n");
            (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use axum::body::to_bytes;
    use serde_json::Value;

    use super::*;
    use crate::support::telemetry::Metrics;
    use crate::support::telemetry::health::tests::HandClock;

    async fn parts(response: Response) -> (u16, String, String) {
        let status = response.status().as_u16();
        let content_type = response.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
        let body = to_bytes(response.into_body(), 10_000).await.unwrap();
        (status, content_type, String::from_utf8(body.to_vec()).unwrap())
    }

    fn health() -> (Arc<HandClock>, Arc<Health>) {
        let clock = Arc::new(HandClock::default());
        let health = Health::new(clock.clone(), Metrics::new().unwrap(), Duration::from_secs(30));
        (clock, health)
    }

    #[tokio::test]
    async fn liveness_fails_while_there_is_no_heartbeat() {
        let (clock, health) = health();
        assert_eq!(parts(liveness(&health, "x")).await.0, 200, "not started yet");
        health.poll_heartbeat();
        clock.0.store(31, Ordering::Relaxed);
        let (status, _, text) = parts(liveness(&health, "the collector made no progress")).await;
        assert_eq!((status, text.as_str()), (503, "the collector made no progress for 31 s\n"));
        health.poll_heartbeat();
        assert_eq!(parts(liveness(&health, "x")).await.0, 200);
    }

    #[tokio::test]
    async fn readiness_names_its_reasons() {
        let (_, health) = health();
        health.ready(Health::STARTUP);
        assert_eq!(parts(readiness(&health)).await.2, "ready\n");
        health.not_ready("partition 3", "stopped: \"no dead-letter topic\"");
        health.not_ready("elasticsearch", "refused the credentials");
        let (status, content_type, text) = parts(readiness(&health)).await;
        assert_eq!((status, content_type.as_str()), (503, "application/x-ndjson"));
        let reasons: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(reasons[0]["part"], "elasticsearch");
        assert_eq!(reasons[1]["reason"], "stopped: \"no dead-letter topic\"");
    }

    #[tokio::test]
    async fn metrics_are_text_or_an_error() {
        let (status, content_type, text) = parts(metrics(Ok("a 1\n".to_owned()))).await;
        assert_eq!((status, content_type.as_str(), text.as_str()), (200, METRICS_TYPE, "a 1\n"));
        let (status, _, text) = parts(metrics(Err(prometheus::Error::AlreadyReg))).await;
        assert!(status == 500 && text.starts_with("metrics could not be rendered: "), "{text}");
    }
}
