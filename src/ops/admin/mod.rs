//! The worker's HTTP server: metrics, health, readiness, covers, and a status page.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the routes |
//! | `status.rs` | [`WorkerStatus`](status::WorkerStatus): what the worker does now, as one value |
//! | `group.rs` | the whole group, from [`ops::group`](crate::ops::group) |
//! | `page/` | both as HTML pages |
//! | `minute.rs` | the same as a line in the log, once a minute |
//! | `cover.rs` | which geoshards a search has to ask |
//! | `document_counts.rs` | how many documents each geoshard holds |
//! | `load.rs` | writes and searches by place |
//! | `viewed.rs` | counts, load and group are asked for only while they are viewed |
//! | `server.rs` | the listener: limits on connections, header time and connection age; graceful shutdown |
//!
//! It only answers questions (GET and HEAD); nothing here changes the worker. It has no authentication and is meant
//! for a private network or loopback.

mod cover;
pub mod document_counts;
pub mod group;
pub mod load;
mod minute;
pub mod page;
mod server;
pub mod status;
mod viewed;

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;

pub use crate::support::telemetry::health::{Alive, Health};
pub use cover::{CoverSource, LiveNow};
pub use document_counts::DocumentCounts;
pub use group::GroupSource;
pub use load::{LoadSummary, ViewedLoad};
pub use server::{AdminError, ServerOptions, serve, serve_tls, serve_with};
pub use status::{LimitsNow, MapNow, ShownMap, StatusParts, StatusSource, Worker};

use crate::ops::group::UNVIEWED;
use crate::support::telemetry::Metrics;
use crate::support::telemetry::probes::probe_routes;

/// State of the routes.
#[derive(Clone)]
pub struct AdminState {
    /// For `/metrics`.
    pub metrics: Arc<Metrics>,
    /// For `/healthz` and `/readyz`.
    pub health: Arc<Health>,
    /// For `/` and `/status.json`.
    pub status: Arc<StatusSource>,
    /// For `/group` and `/group.json`.
    pub group: Arc<GroupSource>,
    /// For `/shards/cover`.
    pub cover: CoverSource,
}

/// The routes that every worker has. More can be merged in before [`serve`], which adds the answer for unknown paths.
pub fn routes(state: AdminState) -> Router {
    let (health, metrics) = (state.health.clone(), state.metrics.clone());
    Router::new()
        .route("/", get(page))
        .route("/status.json", get(status))
        .route("/group", get(group_page))
        .route("/group.json", get(group))
        .route("/group/figures.json", get(group_figures))
        .route("/shards/cover", get(cover))
        .merge(probe_routes(health, "the thread that polls kafka has not polled", move || metrics.render()))
        .with_state(state)
}

async fn page(State(state): State<AdminState>) -> Response {
    // The first time, the map is drawn.
    html(move || page::render(&state.status.status(), state.status.shown().drawing())).await
}

async fn group_page(State(state): State<AdminState>) -> Response {
    html(move || page::render_group(&state.group.figures())).await
}

/// A page, which takes longer to make than other requests should wait.
async fn html(render: impl FnOnce() -> String + Send + 'static) -> Response {
    match tokio::task::spawn_blocking(render).await {
        Ok(html) => {
            let headers = [
                (header::CONTENT_TYPE, "text/html; charset=utf-8"),
                (header::CONTENT_SECURITY_POLICY, page::CONTENT_SECURITY_POLICY),
                (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
                (header::REFERRER_POLICY, "no-referrer"),
                (header::CACHE_CONTROL, "no-store"),
            ];
            (headers, html).into_response()
        }
        Err(error) => {
            tracing::error!(%error, "a page could not be rendered");
            (StatusCode::INTERNAL_SERVER_ERROR, "the page could not be rendered\n").into_response()
        }
    }
}

async fn status(State(state): State<AdminState>, RawQuery(query): RawQuery) -> Response {
    json(match query.as_deref() {
        Some(UNVIEWED) => state.status.status_unviewed(),
        _ => state.status.status(),
    })
}

async fn group(State(state): State<AdminState>) -> Response {
    json(state.group.status())
}

async fn group_figures(State(state): State<AdminState>) -> Response {
    json(state.group.figures())
}

fn json(value: impl Serialize) -> Response {
    ([(header::CACHE_CONTROL, "no-store")], Json(value)).into_response()
}

async fn cover(State(state): State<AdminState>, RawQuery(query): RawQuery) -> Response {
    state.cover.answer(query.as_deref().unwrap_or_default()).await
}
