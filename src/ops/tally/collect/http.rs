//! A collector's HTTP server: the cloud, a stream of its versions, metrics and health.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures::stream::{self, StreamExt};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::notify::VersionNotice;
use super::store::CountsVersion;
use crate::support::telemetry::collector::CollectorMetrics;
use crate::support::telemetry::health::Health;
use crate::support::telemetry::probes::probe_routes;

/// Streams at once; each takes one of the server's connections.
const MAX_STREAMS: usize = 32;

/// State of the routes.
#[derive(Clone)]
pub struct CloudState {
    /// The latest version.
    pub latest: watch::Receiver<Option<Arc<CountsVersion>>>,
    /// Maximum values per facet.
    pub top: usize,
    /// For `/metrics`.
    pub metrics: Arc<CollectorMetrics>,
    /// For `/healthz` and `/readyz`.
    pub health: Arc<Health>,
    /// Ends the streams.
    pub stop: CancellationToken,
    /// How many streams there may be still.
    streams: Arc<Semaphore>,
}

impl CloudState {
    /// With no stream yet.
    pub fn new(
        latest: watch::Receiver<Option<Arc<CountsVersion>>>,
        top: usize,
        metrics: Arc<CollectorMetrics>,
        health: Arc<Health>,
        stop: CancellationToken,
    ) -> Self {
        Self { latest, top, metrics, health, stop, streams: Arc::new(Semaphore::new(MAX_STREAMS)) }
    }
}

/// A collector's routes.
pub fn routes(state: CloudState) -> Router {
    let (health, metrics) = (state.health.clone(), state.metrics.clone());
    Router::new()
        .route("/", get(index))
        .route("/cloud", get(cloud))
        .route("/cloud/stream", get(cloud_stream))
        .merge(probe_routes(health, "the collector has made no progress", move || metrics.render()))
        .with_state(state)
}

/// Requested part of the cloud.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    facet: Option<String>,
    top: Option<usize>,
}

/// The cloud as served and as printed by `geofold cloud --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloudAnswer {
    /// The version of the counts; 0 before the first.
    pub version: i64,
    /// When it was made; empty before the first.
    pub created: String,
    /// Facets by name, each with its values, those with most documents first.
    pub facets: std::collections::BTreeMap<String, Vec<Tag>>,
}

/// A value, and how many documents have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tag {
    /// The value.
    pub value: String,
    /// Documents.
    pub count: i64,
}

impl CloudAnswer {
    /// The best `top` of `facet`, or of all.
    pub fn new(version: Option<&CountsVersion>, facet: Option<&str>, top: usize) -> Self {
        let Some(version) = version else {
            return Self { version: 0, created: String::new(), facets: Default::default() };
        };
        let wanted = version.cloud.facets().filter(|name| facet.is_none_or(|facet| facet == *name));
        let tags = |name| {
            let best = version.cloud.top_of(name).map_or(&[][..], |list| list.best(top));
            best.iter().map(|(value, count)| Tag { value: value.clone(), count: *count }).collect()
        };
        let facets = wanted.map(|name| (name.to_owned(), tags(name))).collect();
        Self { version: version.number, created: version.created.clone(), facets }
    }
}

async fn index() -> &'static str {
    "geofold collector\n\n\
     /cloud?facet=NAME&top=N  the values that most documents have, as JSON\n\
     /cloud/stream            server-sent events: one for each version of the counts\n\
     /campaigns               campaigns, with campaigns.bearer_token (docs/campaigns.md)\n\
     /metrics                 for Prometheus\n\
     /healthz  /readyz        for probes\n"
}

async fn cloud(
    State(state): State<CloudState>,
    wanted: Result<Query<Wanted>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let wanted = match wanted {
        Ok(Query(wanted)) => wanted,
        Err(error) => {
            let error = format!("{}; write /cloud?facet=tags&top=100", error.body_text());
            return (StatusCode::BAD_REQUEST, Json(json!({ "error": error }))).into_response();
        }
    };
    let latest = state.latest.borrow().clone();
    let top = wanted.top.unwrap_or(state.top).min(state.top);
    let answer = CloudAnswer::new(latest.as_deref(), wanted.facet.as_deref(), top);
    ([(header::CACHE_CONTROL, "no-store")], Json(answer)).into_response()
}

/// Holds a place among the streams, and counts itself.
struct Place {
    _permit: OwnedSemaphorePermit,
    metrics: Arc<CollectorMetrics>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.metrics.streams.dec();
    }
}

/// One event for each version, beginning with the latest. A client that is slow misses versions, never the last one.
async fn cloud_stream(State(state): State<CloudState>) -> Response {
    let Ok(permit) = state.streams.clone().try_acquire_owned() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many streams; ask for /cloud instead\n")
            .into_response();
    };
    state.metrics.streams.inc();
    let place = Place { _permit: permit, metrics: state.metrics.clone() };
    let mut latest = state.latest.clone();
    latest.mark_changed();
    let events = stream::unfold((latest, place), |(mut latest, place)| async move {
        loop {
            latest.changed().await.ok()?;
            let Some(version) = latest.borrow_and_update().clone() else { continue };
            let event = Event::default().event("version").id(version.number.to_string());
            let data = serde_json::to_string(&VersionNotice::from(&*version)).unwrap_or_default();
            return Some((Ok::<_, Infallible>(event.data(data)), (latest, place)));
        }
    });
    let stop = state.stop.clone();
    let events = events.take_until(async move { stop.cancelled().await });
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use super::*;
    use crate::base::clock::BootClock;
    use crate::ops::admin;
    use crate::ops::tally::collect::cloud::{Cloud, TopN};
    use crate::support::supervisor::Supervisor;

    struct Server {
        address: SocketAddr,
        latest: watch::Sender<Option<Arc<CountsVersion>>>,
        metrics: Arc<CollectorMetrics>,
        health: Arc<Health>,
        stop: CancellationToken,
        ended: tokio::task::JoinHandle<()>,
    }

    fn version(number: i64) -> Option<Arc<CountsVersion>> {
        let mut cloud = Cloud::default();
        let best = (1..=5).map(|n| (format!("v{n}"), 10 - n)).collect();
        cloud.set_top("tags", TopN::from_counts(best, 4));
        cloud.set_top("gender", TopN::default());
        let created = "2026-11-21T10:00:00.000Z".to_owned();
        Some(Arc::new(CountsVersion { number, created, increments: 2, cloud }))
    }

    impl Server {
        async fn start() -> Self {
            let (latest, reader) = watch::channel(None);
            let metrics = CollectorMetrics::new().unwrap();
            let health =
                Health::with_gauge(Arc::new(BootClock), metrics.ready.clone(), Duration::from_secs(60));
            let stop = CancellationToken::new();
            let state = CloudState::new(reader, 3, metrics.clone(), health.clone(), stop.clone());
            let (address, ended) = admin::serve(
                "127.0.0.1:0".parse().unwrap(),
                routes(state),
                stop.clone(),
                &Supervisor::new().0,
            )
            .await
            .unwrap();
            Self { address, latest, metrics, health, stop, ended }
        }

        async fn open(&self, path: &str) -> reqwest::Response {
            reqwest::get(format!("http://{}{path}", self.address)).await.unwrap()
        }

        async fn get(&self, path: &str) -> (u16, String) {
            let answer = self.open(path).await;
            (answer.status().as_u16(), answer.text().await.unwrap())
        }
    }

    #[tokio::test]
    async fn cloud_has_the_requested_part_within_the_limit() {
        let server = Server::start().await;
        let cloud = |(status, body): (u16, String)| -> CloudAnswer {
            assert_eq!(status, 200, "{body}");
            serde_json::from_str(&body).unwrap()
        };
        assert_eq!(cloud(server.get("/cloud").await), CloudAnswer::new(None, None, 3));
        server.latest.send_replace(version(7));
        let all = cloud(server.get("/cloud").await);
        assert_eq!((all.version, all.facets.len()), (7, 2));
        let tags = cloud(server.get("/cloud?facet=tags&top=2").await).facets;
        let tag = |value: &str, count| Tag { value: value.to_owned(), count };
        assert_eq!(tags["tags"], [tag("v1", 9), tag("v2", 8)]);
        assert_eq!(cloud(server.get("/cloud?facet=tags&top=9999").await).facets["tags"].len(), 3);
        assert!(cloud(server.get("/cloud?facet=none").await).facets.is_empty());
        for bad in ["top=many", "top=-1", "colour=red"] {
            let (status, body) = server.get(&format!("/cloud?{bad}")).await;
            assert!(status == 400 && body.contains("facet=tags"), "{bad}: {body}");
        }
    }

    #[tokio::test]
    async fn a_stream_begins_with_the_latest_version_and_ends_with_the_server() {
        let server = Server::start().await;
        server.latest.send_replace(version(1));
        let mut stream = server.open("/cloud/stream").await;
        for number in 1..4 {
            let event = String::from_utf8(stream.chunk().await.unwrap().unwrap().to_vec()).unwrap();
            assert!(
                event.contains(&format!("id: {number}\n")) && event.contains("\"increments\":2"),
                "{event}"
            );
            server.latest.send_replace(version(number + 1));
        }
        assert_eq!(server.metrics.streams.get(), 1);
        server.stop.cancel();
        while stream.chunk().await.unwrap().is_some() {}
        server.ended.await.unwrap();
    }

    #[tokio::test]
    async fn there_are_only_so_many_streams() {
        let server = Server::start().await;
        let mut streams = Vec::new();
        for _ in 0..MAX_STREAMS {
            streams.push(server.open("/cloud/stream").await);
        }
        assert_eq!(server.get("/cloud/stream").await.0, 503);
        assert_eq!(server.get("/cloud").await.0, 200);
        drop(streams);
        while server.metrics.streams.get() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(server.open("/cloud/stream").await.status().as_u16(), 200);
    }

    #[tokio::test]
    async fn probes_and_metrics_are_there() {
        let server = Server::start().await;
        assert_eq!(server.get("/readyz").await.0, 503);
        server.health.ready(Health::STARTUP);
        for path in ["/", "/metrics", "/healthz", "/readyz"] {
            assert_eq!(server.get(path).await.0, 200, "{path}");
        }
    }
}
