//! A stand-in for Elasticsearch: one node in this process, on a loopback port, that speaks as much of Elasticsearch's HTTP
//! as geofold uses, and means by it what Elasticsearch 8.19 means.
//!
//! It is for the demo and for fast tests: nothing is persistent, every search looks at every document, and there is no
//! security. What it does answer is held to one suite of cases with the real server (`tests/contract/`). Calls,
//! queries and sorts that it does not know are refused. Known to be missing: aliases, updates, scripts, aggregations,
//! scores, scrolls, sorting by fields, replicas, more than one shard for each index. More lenient than the real one:
//! settings and URL parameters that do not exist are ignored, and values of rarer field types are not checked.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the listener: starts, stops, and lets faults happen to requests |
//! | `api.rs` | requests into calls of the store |
//! | `store.rs` | all indices; who may create one; the limit on what is stored |
//! | `index.rs` | one index: versions, tombstones, realtime reads and refreshed searches |
//! | `mapping.rs` | what a mapping asks of a document |
//! | `geo.rs` | points, circles and boxes by Lucene's arithmetic |
//! | `bulk.rs` | `_bulk`: lines into operations, outcomes into an answer |
//! | `search/` | `_search` and `_count` |
//! | `pit.rs` | points in time: what searches saw at one moment |
//! | `names.rs` | names and patterns of indices |
//! | `error.rs` | errors in Elasticsearch's words |
//! | `faults.rs` | trouble on request |

mod api;
mod bulk;
mod error;
mod faults;
mod geo;
mod index;
mod mapping;
mod names;
mod pit;
mod search;
mod store;

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::HeaderMap;
use flate2::read::GzDecoder;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use error::EsError;
pub use faults::{FaultHandle, FaultPlan};
pub use index::{Doc, WriteGuard, WriteResult};
pub use store::{IndexStore, WriteContent};

use crate::base::clock::{BootClock, Clock};
use faults::Fate;

/// `http.max_content_length`.
const MAX_BODY_BYTES: usize = 100 << 20;
/// Interval of checks for due refreshes.
const REFRESH_TICK: Duration = Duration::from_millis(100);
/// After an error of `accept`, which trying at once would only repeat.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How a stand-in differs from the usual one.
#[derive(Debug, Clone)]
pub struct StandinOptions {
    /// Where it listens; by default a free port on loopback.
    pub listen: SocketAddr,
    /// Clock of tombstones and refreshes.
    pub clock: Arc<dyn Clock>,
    /// Default of `action.auto_create_index`. Elasticsearch's own is `true`; the stand-in's is `false`, as geofold advises.
    pub auto_create_index: String,
    /// Writes are refused (429, `circuit_breaking_exception`) once current sources have this many bytes.
    pub max_stored_bytes: u64,
    /// Seed of the faults.
    pub seed: u64,
}

impl Default for StandinOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            clock: Arc::new(BootClock),
            auto_create_index: "false".to_owned(),
            max_stored_bytes: 256 << 20,
            seed: 0,
        }
    }
}

/// A stand-in that runs. Dropped, it stops answering; [`Standin::stop`] also waits until it has.
#[derive(Debug)]
pub struct Standin {
    addr: SocketAddr,
    shared: Arc<Inner>,
    shutdown: CancellationToken,
    ended: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Inner {
    store: IndexStore,
    faults: FaultHandle,
    /// Requests that are carried out later than they came.
    late: TaskTracker,
    shutdown: CancellationToken,
}

impl Standin {
    /// Starts on the current Tokio runtime.
    ///
    /// # Errors
    /// If the address cannot be listened on.
    pub async fn start(options: StandinOptions) -> io::Result<Self> {
        let listener = TcpListener::bind(options.listen).await?;
        let addr = listener.local_addr()?;
        let store = IndexStore::new(&options.auto_create_index, options.max_stored_bytes, options.clock);
        let shutdown = CancellationToken::new();
        let shared = Arc::new(Inner {
            store,
            faults: FaultHandle::new(options.seed),
            late: TaskTracker::new(),
            shutdown: shutdown.clone(),
        });
        #[expect(clippy::disallowed_methods, reason = "a stand-in for tests and the demo")]
        let ended = tokio::spawn(run(listener, shared.clone(), shutdown.clone()));
        Ok(Self { addr, shared, shutdown, ended: Some(ended) })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its address as a client wants it: `http://127.0.0.1:…`.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The store.
    pub fn store(&self) -> &IndexStore {
        &self.shared.store
    }

    /// The handle through which trouble is made.
    pub fn faults(&self) -> &FaultHandle {
        &self.shared.faults
    }

    /// How many requests came and are still to be carried out, because of [`FaultPlan::late`].
    pub fn late_requests(&self) -> usize {
        self.shared.late.len()
    }

    /// Closes every connection and waits until all requests have ended. The data is dropped.
    pub async fn stop(mut self) {
        self.shutdown.cancel();
        if let Some(ended) = self.ended.take() {
            // It ends with a panic only if one of ours did, which has been reported where it happened.
            let _ = ended.await;
        }
    }
}

impl Drop for Standin {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

async fn run(listener: TcpListener, shared: Arc<Inner>, shutdown: CancellationToken) {
    let connections = TaskTracker::new();
    let mut refresh = tokio::time::interval(REFRESH_TICK);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => break,
            _ = refresh.tick() => shared.store.refresh_due(),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if !shared.faults.plan().down => {
                    let connection = serve(stream, shared.clone());
                    let shutdown = shutdown.clone();
                    connections.spawn(async move {
                        tokio::select! { () = shutdown.cancelled() => {}, () = connection => {} }
                    });
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "the elasticsearch stand-in could not accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
    shared.late.close();
    shared.late.wait().await;
}

async fn serve(stream: TcpStream, shared: Arc<Inner>) {
    // Answers are written at once: waiting for more would cost a delayed acknowledgement each time.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| answer(request, shared.clone()));
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection to the elasticsearch stand-in ended early");
    }
}

/// A connection that is to be closed without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the stand-in was told to close this connection")]
struct Closed;

async fn answer(request: Request<Incoming>, shared: Arc<Inner>) -> Result<Response<Body>, Closed> {
    let (head, body) = request.into_parts();
    let query = head.uri.query().unwrap_or_default().as_bytes();
    let query: HashMap<String, String> = url::form_urlencoded::parse(query).into_owned().collect();
    let (method, path) = (head.method.as_str().to_owned(), head.uri.path().to_owned());
    let Ok(body) = to_bytes(Body::new(body), MAX_BODY_BYTES).await else {
        return Ok(response(413, Vec::new(), None));
    };
    let body = match uncompressed(&head.headers, body) {
        Ok(body) => body,
        Err(status) => return Ok(response(status, Vec::new(), None)),
    };
    let latency = shared.faults.plan().latency;
    if !latency.is_zero() {
        tokio::time::sleep(latency).await;
    }
    let fate = shared.faults.fate();
    match fate {
        Fate::Reset => return Err(Closed),
        Fate::Refused(status) => {
            let kind = if status == 429 {
                "es_rejected_execution_exception"
            } else {
                "unavailable_shards_exception"
            };
            let error = EsError::new(status, kind, "refused, as the stand-in was told to");
            let retry_after = shared.faults.plan().retry_after;
            return Ok(response(status, error.body().to_string().into_bytes(), retry_after));
        }
        Fate::Answered | Fate::ReplyLost | Fate::Late(_) => {}
    }
    let request = api::Request { method, path, query, body };
    if let Fate::Late(delay) = fate {
        let (late, shutdown) = (shared.late.clone(), shared.shutdown.clone());
        late.spawn(async move {
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = tokio::time::sleep(delay) => {
                    // The connection is closed: no response.
                    let _ = carry_out(shared, request).await;
                }
            }
        });
        return Err(Closed);
    }
    let answered = carry_out(shared, request).await;
    match answered {
        Ok(_) if fate == Fate::ReplyLost => Err(Closed),
        Ok(api::HttpAnswer { status, body }) => Ok(response(status, body, None)),
        Err(closed) => Err(closed),
    }
}

/// The body as it was before gzip, if that is what it says; a status if it is not, or is too large.
fn uncompressed(headers: &HeaderMap, body: Bytes) -> Result<Bytes, u16> {
    if headers.get("content-encoding").is_none_or(|encoding| encoding != "gzip") {
        return Ok(body);
    }
    let mut whole = Vec::new();
    let decoder = GzDecoder::new(&body[..]);
    decoder.take(MAX_BODY_BYTES as u64 + 1).read_to_end(&mut whole).map_err(|_| 400_u16)?;
    if whole.len() > MAX_BODY_BYTES { Err(413) } else { Ok(whole.into()) }
}

/// Beside the runtime's own threads; and carried out even if the client goes away, as a server does it.
async fn carry_out(shared: Arc<Inner>, request: api::Request) -> Result<api::HttpAnswer, Closed> {
    let work = move || api::answer(&shared.store, &shared.faults, &request);
    // It fails with a panic, reported where it happened, or with the end of the runtime.
    tokio::task::spawn_blocking(work).await.map_err(|_| Closed)
}

fn response(status: u16, body: Vec<u8>, retry_after: Option<Duration>) -> Response<Body> {
    let mut builder = Response::builder()
        .status(status)
        .header("content-type", "application/json")
        // Clients refuse to speak to a server that does not say this.
        .header("x-elastic-product", "Elasticsearch");
    if let Some(after) = retry_after {
        builder = builder.header("retry-after", after.as_secs());
    }
    builder.body(Body::from(body)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bytes::Bytes;

    use super::*;
    use crate::base::clock::Instant;
    use crate::base::position::Position;
    use crate::io::elastic::http::{HttpElastic, HttpOptions};
    use crate::io::elastic::{BulkOp, CallError, Elastic, Get, GetAnswer, Index, WriteCondition};
    use crate::testkit::testing::id;

    const LIMIT: Duration = Duration::from_secs(60);

    #[derive(Debug, Default)]
    struct HandClock(Mutex<Duration>);

    impl Clock for HandClock {
        fn now(&self) -> Instant {
            Instant::from_start(*self.0.lock().unwrap())
        }
    }

    async fn standin(options: StandinOptions) -> (Standin, HttpElastic) {
        let standin = Standin::start(options).await.unwrap();
        let options = HttpOptions::new(vec![standin.url().parse().unwrap()], "p", LIMIT);
        let elastic = HttpElastic::connect(&options, Arc::new(BootClock)).unwrap();
        standin.store().create_index("p-meta", Default::default(), Default::default()).unwrap();
        (standin, elastic)
    }

    fn write(name: &str, version: u64, source: &'static str) -> BulkOp {
        let guard = WriteCondition::External(Position::from_version(version));
        BulkOp::Index {
            index: Index::Meta,
            id: id(name),
            guard,
            source: Bytes::from_static(source.as_bytes()),
        }
    }

    async fn statuses(elastic: &HttpElastic, ops: &[BulkOp]) -> Vec<u16> {
        elastic.bulk(ops, LIMIT).await.unwrap().iter().map(|answer| answer.status).collect()
    }

    async fn is_there(elastic: &HttpElastic, name: &str) -> bool {
        let gets = [Get::realtime(Index::Meta, id(name))];
        let answers = elastic.mget(&gets, LIMIT).await.unwrap();
        matches!(answers[0], GetAnswer::Found(_))
    }

    #[tokio::test]
    async fn a_tombstone_lasts_for_gc_deletes_by_the_clock_it_was_given() {
        let clock = Arc::new(HandClock::default());
        let (standin, elastic) =
            standin(StandinOptions { clock: clock.clone(), ..StandinOptions::default() }).await;
        let delete = BulkOp::Delete { index: Index::Meta, id: id("a"), version: Position::from_version(9) };
        assert_eq!(statuses(&elastic, &[delete]).await, [404]);
        *clock.0.lock().unwrap() = Duration::from_secs(60);
        assert_eq!(statuses(&elastic, &[write("a", 5, "{}")]).await, [409]);
        *clock.0.lock().unwrap() = Duration::from_millis(60_001);
        assert_eq!(statuses(&elastic, &[write("a", 5, "{}")]).await, [201]);
        standin.stop().await;
    }

    #[tokio::test]
    async fn a_lost_reply_was_carried_out_and_a_reset_request_was_not() {
        let (standin, elastic) = standin(StandinOptions::default()).await;
        let set = |lost_replies, resets| {
            standin.faults().set(FaultPlan { lost_replies, resets, ..FaultPlan::default() });
        };
        for (name, lost, resets, carried_out) in [("lost", 1.0, 0.0, true), ("reset", 0.0, 1.0, false)] {
            set(lost, resets);
            let error = elastic.bulk(&[write(name, 1, "{}")], LIMIT).await.unwrap_err();
            assert!(matches!(error, CallError::Connection(_)), "{error:?}");
            standin.faults().clear();
            assert_eq!(is_there(&elastic, name).await, carried_out, "{name}");
        }
        standin.stop().await;
    }

    #[tokio::test]
    async fn a_late_request_is_carried_out_after_its_connection_was_closed() {
        let (standin, elastic) = standin(StandinOptions::default()).await;
        let late_by = Duration::from_secs(60);
        standin.faults().set(FaultPlan { late: 1.0, late_by, ..FaultPlan::default() });
        let error = elastic.bulk(&[write("never", 1, "{}")], LIMIT).await.unwrap_err();
        assert!(matches!(error, CallError::Connection(_)), "{error:?}");
        let late_by = Duration::from_millis(300);
        standin.faults().set(FaultPlan { late: 1.0, late_by, ..FaultPlan::default() });
        let names: Vec<String> = (0..20).map(|n| n.to_string()).collect();
        for name in &names {
            elastic.bulk(&[write(name, 1, "{}")], LIMIT).await.unwrap_err();
        }
        standin.faults().clear();
        assert!(standin.late_requests() > 10);
        while standin.late_requests() > 1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for name in &names {
            assert!(is_there(&elastic, name).await, "{name}");
        }
        assert!(!is_there(&elastic, "never").await);
        // Does not wait for the minute.
        standin.stop().await;
    }

    #[tokio::test]
    async fn a_busy_server_refuses_requests_or_items_and_says_when_to_come_back() {
        let (standin, elastic) = standin(StandinOptions::default()).await;
        let retry_after = Some(Duration::from_secs(7));
        standin.faults().set(FaultPlan { busy: 1.0, retry_after, ..FaultPlan::default() });
        let error = elastic.bulk(&[write("a", 1, "{}")], LIMIT).await.unwrap_err();
        assert!(
            matches!(&error, CallError::Status { status: 429, retry_after: after, .. } if *after == retry_after),
            "{error:?}"
        );
        standin.faults().set(FaultPlan { unavailable: 1.0, ..FaultPlan::default() });
        let error = elastic.bulk(&[write("a", 1, "{}")], LIMIT).await.unwrap_err();
        assert!(matches!(&error, CallError::Status { status: 503, retry_after: None, .. }), "{error:?}");
        standin.faults().set(FaultPlan { busy_items: 0.5, ..FaultPlan::default() });
        let ops: Vec<BulkOp> = (0..100).map(|n| write(&n.to_string(), 1, "{}")).collect();
        let statuses = statuses(&elastic, &ops).await;
        let refused = statuses.iter().filter(|status| **status == 429).count();
        assert!((25..75).contains(&refused), "{refused}");
        assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 100 - refused);
        standin.stop().await;
    }

    #[tokio::test]
    async fn a_server_that_is_down_answers_nothing_and_forgets_nothing() {
        let (standin, elastic) = standin(StandinOptions::default()).await;
        assert_eq!(statuses(&elastic, &[write("a", 1, "{}")]).await, [201]);
        standin.faults().set(FaultPlan { down: true, ..FaultPlan::default() });
        for _ in 0..2 {
            let error = elastic.bulk(&[write("b", 1, "{}")], LIMIT).await.unwrap_err();
            assert!(matches!(error, CallError::Connection(_)), "{error:?}");
        }
        standin.faults().clear();
        assert!(is_there(&elastic, "a").await);
        assert!(!is_there(&elastic, "b").await);
        standin.stop().await;
        assert!(elastic.bulk(&[write("b", 1, "{}")], LIMIT).await.is_err());
    }

    #[tokio::test]
    async fn writes_are_refused_once_the_store_is_full_and_taken_again_after_deletes() {
        let options = StandinOptions { max_stored_bytes: 20, ..StandinOptions::default() };
        let (standin, elastic) = standin(options).await;
        let ops = [write("a", 1, r#"{"n":12345}"#), write("b", 1, r#"{"n":12345}"#), write("c", 1, "{}")];
        let answers = elastic.bulk(&ops, LIMIT).await.unwrap();
        let kind = answers[1].error.as_ref().map(|error| error.kind.as_str());
        assert_eq!(
            (answers[0].status, answers[1].status, kind),
            (201, 429, Some("circuit_breaking_exception"))
        );
        assert_eq!((answers[2].status, standin.store().stored_bytes()), (201, 13));
        let delete = BulkOp::Delete { index: Index::Meta, id: id("a"), version: Position::from_version(2) };
        assert_eq!(statuses(&elastic, &[delete, ops[1].clone()]).await, [200, 201]);
        standin.stop().await;
    }

    #[tokio::test]
    async fn latency_is_added_to_each_request() {
        let (standin, elastic) = standin(StandinOptions::default()).await;
        standin.faults().set(FaultPlan { latency: Duration::from_millis(200), ..FaultPlan::default() });
        let began = std::time::Instant::now();
        assert!(!is_there(&elastic, "a").await);
        assert!(began.elapsed() >= Duration::from_millis(200));
        standin.stop().await;
    }
}
