//! The listener of the admin server, with a limit on everything that a client can take.
//!
//! It drives hyper itself, since `axum::serve` has no limit on the number of connections nor on the time that a client
//! takes to send its request's headers: half-open connections of a forgotten client would collect for ever.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use crate::support::supervisor::Supervisor;
use crate::support::tls::Tls;

/// What a server is called in the log, and what its clients may take.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Its name.
    pub name: &'static str,
    /// Connections open at once; further ones wait in the kernel's queue.
    pub max_connections: usize,
    /// For the request under way when a connection is to be closed, or the server shut down.
    pub close_timeout: Duration,
    /// Clients speak TLS.
    pub tls: Option<Tls>,
}

/// Of admin servers and collectors.
const ADMIN: ServerOptions = ServerOptions {
    name: "admin server",
    max_connections: 64,
    close_timeout: Duration::from_secs(5),
    tls: None,
};

/// For a request's headers; between two requests of a connection too.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// After this, a connection is closed once its request under way is answered. Clients simply connect again.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(600);
/// After an error of `accept`: most likely no file descriptor is free, and trying at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// Why the admin server could not start.
#[derive(Debug, Error)]
pub enum AdminError {
    /// The address cannot be listened on.
    #[error("the {server} cannot listen on {listen}: {source}; change its address or free the port")]
    Listen {
        /// What could not listen.
        server: &'static str,
        /// The configured address.
        listen: SocketAddr,
        /// The I/O error.
        source: io::Error,
    },
}

/// Listens on `listen` (port 0: a free one) and answers from `routes`, unknown paths with 404, until `shutdown`.
/// The address is the one that was bound; the handle ends when the last connection is closed, at most a few seconds
/// after `shutdown`.
///
/// # Errors
/// If the address cannot be listened on.
pub async fn serve(
    listen: SocketAddr,
    routes: Router,
    shutdown: CancellationToken,
    supervisor: &Supervisor,
) -> Result<(SocketAddr, JoinHandle<()>), AdminError> {
    serve_tls(None, listen, routes, shutdown, supervisor).await
}

/// [`serve`] for clients that speak TLS, if it is given.
///
/// # Errors
/// If the address cannot be listened on.
pub async fn serve_tls(
    tls: Option<Tls>,
    listen: SocketAddr,
    routes: Router,
    shutdown: CancellationToken,
    supervisor: &Supervisor,
) -> Result<(SocketAddr, JoinHandle<()>), AdminError> {
    let routes =
        routes.fallback(|| async { (StatusCode::NOT_FOUND, "no such path; / lists what there is\n") });
    serve_with(ServerOptions { tls, ..ADMIN }, listen, routes, shutdown, supervisor).await
}

/// [`serve`] with other limits, and with the routes' own answer to unknown paths.
///
/// # Errors
/// If the address cannot be listened on.
pub async fn serve_with(
    options: ServerOptions,
    listen: SocketAddr,
    routes: Router,
    shutdown: CancellationToken,
    supervisor: &Supervisor,
) -> Result<(SocketAddr, JoinHandle<()>), AdminError> {
    let name = options.name;
    let failed = |source| AdminError::Listen { server: name, listen, source };
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    info!(address = %bound, tls = options.tls.is_some(), "{name} listens");
    let serving = accept_all(options, listener, routes, shutdown.clone());
    Ok((bound, supervisor.spawn(name, shutdown, serving)))
}

async fn accept_all(
    options: ServerOptions,
    listener: TcpListener,
    routes: Router,
    shutdown: CancellationToken,
) {
    let permits = Arc::new(Semaphore::new(options.max_connections));
    let connections = TaskTracker::new();
    loop {
        // The semaphore is never closed; if it were, there would be nothing left to serve.
        let Ok(permit) = permits.clone().acquire_owned().await else { break };
        let accepted = tokio::select! {
            // Shutdown first, so that a stream of new connections cannot keep the server open.
            biased;
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                // Answers are written at once: waiting for more would cost a delayed acknowledgement each time.
                let _ = stream.set_nodelay(true);
                let (routes, shutdown, close_timeout) =
                    (routes.clone(), shutdown.clone(), options.close_timeout);
                let acceptor = options.tls.as_ref().map(Tls::acceptor);
                connections.spawn(async move {
                    match acceptor {
                        None => serve_connection(stream, peer, routes, shutdown, close_timeout).await,
                        Some(acceptor) => {
                            let handshake = tokio::select! {
                                biased;
                                () = shutdown.cancelled() => return,
                                handshake = timeout(HEADER_TIMEOUT, acceptor.accept(stream)) => handshake,
                            };
                            match handshake {
                                Ok(Ok(stream)) => {
                                    serve_connection(stream, peer, routes, shutdown, close_timeout).await;
                                }
                                Ok(Err(error)) => debug!(%peer, %error, "a TLS handshake failed"),
                                Err(_) => debug!(%peer, "a TLS handshake took too long"),
                            }
                        }
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                warn!(%error, "the {} could not accept a connection", options.name);
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    peer: SocketAddr,
    routes: Router,
    shutdown: CancellationToken,
    close_timeout: Duration,
) {
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes))
    );
    let closing = async {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = sleep(MAX_CONNECTION_AGE) => {}
        }
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = closing => None,
    };
    let ended = match ended {
        Some(ended) => Ok(ended),
        None => {
            connection.as_mut().graceful_shutdown();
            timeout(close_timeout, connection).await
        }
    };
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%peer, %error, "a connection ended early"),
        Err(_) => debug!(%peer, "a connection is cut off: its client did not take the answer"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use reqwest::{Client, StatusCode};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::watch;

    use super::*;
    use crate::geoshard::LiveMaps;
    use crate::ops::admin::group::tests::source;
    use crate::ops::admin::page::tests::sources;
    use crate::ops::admin::{
        AdminState, CoverSource, DocumentCounts, GroupSource, LiveNow, StatusSource, ViewedLoad, routes,
    };
    use crate::ops::group::UNVIEWED;
    use crate::support::telemetry::health::Health;
    use crate::support::telemetry::health::tests::HandClock;

    struct Server {
        address: SocketAddr,
        clock: Arc<HandClock>,
        health: Arc<Health>,
        maps: watch::Sender<Option<LiveMaps>>,
        group: Arc<GroupSource>,
        counts: Arc<DocumentCounts>,
        load: Arc<ViewedLoad>,
        shutdown: CancellationToken,
        ended: JoinHandle<()>,
        client: Client,
    }

    impl Server {
        async fn start() -> Self {
            let clock = Arc::new(HandClock::default());
            let (parts, _) = sources(clock.clone());
            let (metrics, health) = (parts.metrics.clone(), parts.health.clone());
            let (maps, live) = watch::channel(Some(LiveMaps::One((parts.map)())));
            let maps_now: LiveNow = Arc::new(move || live.borrow().clone());
            let cover = CoverSource { maps: maps_now, prefix: "people".to_owned() };
            let shutdown = CancellationToken::new();
            let (group, counts, load) = (source(clock.clone()), parts.counts.clone(), parts.load.clone());
            let state = AdminState {
                metrics,
                health: health.clone(),
                status: StatusSource::new(parts),
                group: group.clone(),
                cover,
            };
            let (address, ended) =
                serve("127.0.0.1:0".parse().unwrap(), routes(state), shutdown.clone(), &Supervisor::new().0)
                    .await
                    .unwrap();
            let client = Client::new();
            Self { address, clock, health, maps, group, counts, load, shutdown, ended, client }
        }

        async fn get(&self, path: &str) -> (StatusCode, String) {
            let answer = self.client.get(format!("http://{}{path}", self.address)).send().await.unwrap();
            (answer.status(), answer.text().await.unwrap())
        }
    }

    #[tokio::test]
    async fn every_path_that_the_page_links_to_is_there_and_others_are_not() {
        let server = Server::start().await;
        server.health.ready(Health::STARTUP);
        for page in ["/", "/group"] {
            let (status, page) = server.get(page).await;
            assert_eq!(status, StatusCode::OK);
            let links = page.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
            let links: Vec<&str> = links.filter(|link| !link.starts_with('#')).collect();
            assert_eq!(links.len(), 9, "{links:?}");
            for path in links {
                assert_eq!(server.get(path).await.0, StatusCode::OK, "{path}");
            }
        }
        assert_eq!(server.get("/nothing").await.0, StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn the_page_may_load_nothing_from_elsewhere() {
        let server = Server::start().await;
        for page in ["/", "/group"] {
            let answer = server.client.get(format!("http://{}{page}", server.address)).send().await.unwrap();
            assert_eq!(answer.headers()["content-type"], "text/html; charset=utf-8");
            let policy = answer.headers()["content-security-policy"].to_str().unwrap();
            assert!(policy.starts_with("default-src 'none';"), "{policy}");
            assert_eq!(answer.headers()["referrer-policy"], "no-referrer");
        }
    }

    /// Otherwise workers would ask each other without end, and all of them Elasticsearch.
    #[tokio::test]
    async fn workers_that_are_asked_about_the_group_do_not_ask_themselves() {
        let server = Server::start().await;
        let (status, body) = server.get(&format!("/status.json?{UNVIEWED}")).await;
        assert!(status == StatusCode::OK && body.contains("\"partitions\""), "{body}");
        assert!(!server.counts.is_looked_at() && !server.load.is_looked_at());
        for path in ["/", "/status.json", "/metrics", "/readyz", "/shards/cover?lat=1&lon=2&radius=3km"] {
            server.get(path).await;
        }
        assert!(server.counts.is_looked_at() && server.load.is_looked_at());
        assert!(!server.group.is_viewed());
        for path in ["/group", "/group.json", "/group/figures.json"] {
            let server = Server::start().await;
            assert_eq!(server.get(path).await.0, StatusCode::OK);
            assert!(server.group.is_viewed(), "{path}");
        }
    }

    #[tokio::test]
    async fn status_json_matches_the_probes() {
        let server = Server::start().await;
        let status = || async {
            let (code, body) = server.get("/status.json").await;
            assert_eq!(code, StatusCode::OK);
            serde_json::from_str::<serde_json::Value>(&body).unwrap()
        };
        assert_eq!(status().await["reasons"][0]["part"], "startup");
        server.health.ready(Health::STARTUP);
        server.health.poll_heartbeat();
        server.clock.0.store(31, Ordering::Relaxed);
        let after = status().await;
        assert_eq!((&after["ready"], &after["silent_seconds"]), (&true.into(), &31.into()));
        assert_eq!(after["documents"]["shards"].as_array().unwrap().len(), 55);
        assert_eq!(after["documents"]["shards"][0]["documents"], serde_json::Value::Null);
    }

    #[tokio::test]
    async fn a_cover_is_json_and_a_bad_query_says_what_is_wrong() {
        let server = Server::start().await;
        let (status, body) = server.get("/shards/cover?lat=48.85&lon=2.35&radius=25mi").await;
        assert_eq!(status, StatusCode::OK, "{body}");
        let answer: serde_json::Value = serde_json::from_str(&body).unwrap();
        let expected = serde_json::json!({"shards": ["s37"], "indices": ["people-s37"], "map_versions": [1]});
        assert_eq!(answer, expected);
        let (status, body) = server.get("/shards/cover?top=10&left=179&bottom=-10&right=-179").await;
        assert!(status == StatusCode::OK && body.contains("s"), "{body}");
        let (status, body) = server.get("/shards/cover?polygon=48,2;49,2;49,3").await;
        assert!(status == StatusCode::OK && body.contains("s37"), "{body}");
        for bad in ["", "?lat=1", "?lat=91&lon=0&radius=1km", "?%ff=%00&&&==", "?polygon=0,0"] {
            let (status, body) = server.get(&format!("/shards/cover{bad}")).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{bad}");
            let answer: serde_json::Value = serde_json::from_str(&body).unwrap();
            assert!(answer["error"].as_str().is_some_and(|error| !error.is_empty()), "{bad}: {body}");
        }
        let vertices = vec!["0,0"; 1002].join(";");
        assert_eq!(server.get(&format!("/shards/cover?polygon={vertices}")).await.0, StatusCode::BAD_REQUEST);
        let endless = "9".repeat(60_000);
        assert!(server.get(&format!("/shards/cover?polygon={endless}")).await.0.is_client_error());
    }

    #[tokio::test]
    async fn while_it_is_not_known_which_map_is_live_no_cover_is_given() {
        let server = Server::start().await;
        let path = "/shards/cover?lat=48.85&lon=2.35&radius=25mi";
        let known = server.maps.send_replace(None);
        let (status, body) = server.get(path).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(body.contains("the live map is unknown"), "{body}");
        let map = known.unwrap().iter().next().unwrap().clone();
        server.maps.send_replace(Some(LiveMaps::Two { old: map.clone(), new: map }));
        let (status, body) = server.get(path).await;
        assert!(status == StatusCode::OK && body.contains("\"map_versions\":[1,1]"), "{body}");
    }

    #[tokio::test]
    async fn metrics_come_in_the_text_format_that_prometheus_asks_for() {
        let server = Server::start().await;
        let answer = server.client.get(format!("http://{}/metrics", server.address)).send().await.unwrap();
        let content_type = answer.headers()["content-type"].to_str().unwrap().to_owned();
        assert!(content_type.starts_with("text/plain; version=0.0.4"), "{content_type}");
        let text = answer.text().await.unwrap();
        assert!(text.contains("# TYPE geofold_moves_total counter\ngeofold_moves_total 0\n"));
        assert!(text.contains("geofold_build_info{version="));
        #[cfg(target_os = "linux")]
        assert!(text.contains("process_resident_memory_bytes"));
    }

    #[tokio::test]
    async fn only_get_and_head_are_allowed() {
        let server = Server::start().await;
        let url = format!("http://{}/metrics", server.address);
        for method in [reqwest::Method::POST, reqwest::Method::PUT, reqwest::Method::DELETE] {
            let answer = server.client.request(method, &url).body("x").send().await.unwrap();
            assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED);
        }
        let answer = server.client.head(&url).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        assert!(answer.text().await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn readiness_names_its_reasons_and_comes_and_goes() {
        let server = Server::start().await;
        server.health.ready(Health::STARTUP);
        assert_eq!(server.get("/readyz").await, (StatusCode::OK, "ready\n".to_owned()));
        server.health.not_ready("partition 3", "stopped: \"no dead-letter topic\"");
        server.health.not_ready("elasticsearch", "refused the credentials");
        let (status, reasons) = server.get("/readyz").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        let reasons: Vec<serde_json::Value> =
            reasons.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(reasons[0]["part"], "elasticsearch");
        assert_eq!(reasons[1]["reason"], "stopped: \"no dead-letter topic\"");
    }

    #[tokio::test]
    async fn a_silent_poll_thread_makes_the_liveness_probe_fail() {
        let server = Server::start().await;
        assert_eq!(server.get("/healthz").await.0, StatusCode::OK);
        server.health.poll_heartbeat();
        server.clock.0.store(31, Ordering::Relaxed);
        assert_eq!(server.get("/healthz").await.0, StatusCode::SERVICE_UNAVAILABLE);
        server.health.poll_heartbeat();
        assert_eq!(server.get("/healthz").await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn bad_bytes_and_silent_clients_do_not_keep_others_from_an_answer() {
        let server = Server::start().await;
        let mut silent = Vec::new();
        for bytes in [&b"\x16\x03\x01\xff\xff"[..], b"GET", b"\r\n\r\n\0", b"POST / HTTP/9.9\r\n\r\n", b""] {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            stream.write_all(bytes).await.unwrap();
            silent.push(stream);
        }
        assert_eq!(server.get("/metrics").await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn shutdown_closes_idle_connections_and_frees_the_port() {
        let server = Server::start().await;
        let mut idle = TcpStream::connect(server.address).await.unwrap();
        idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        assert!(idle.read(&mut [0; 512]).await.unwrap() > 0);
        server.shutdown.cancel();
        timeout(Duration::from_secs(2), server.ended).await.unwrap().unwrap();
        assert!(TcpStream::connect(server.address).await.is_err());
    }

    #[tokio::test]
    async fn an_address_that_is_taken_is_named_in_the_error() {
        let server = Server::start().await;
        let error = serve(server.address, Router::new(), CancellationToken::new(), &Supervisor::new().0)
            .await
            .unwrap_err();
        assert!(error.to_string().contains(&server.address.to_string()), "{error}");
    }
}
