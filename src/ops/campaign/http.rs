//! `/campaigns` of a collector: campaigns made and controlled by requests, which bear a token.
//!
//! A request that makes a campaign may bring a key (`Idempotency-Key`). It may then be repeated: the campaign is made once.

use std::io::{self, BufReader, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::create::{CreateError, IdSource, SortOptions, create};
use super::select::SelectError;
use super::store::{
    CampaignStatus, CampaignStore, CampaignStoreError, MAX_NAME_BYTES, MAX_RATE, NewCampaign, is_name,
};
use super::{CampaignAction, Command, chunk, run};
use crate::io::database::DatabaseError;
use crate::support::config::Config;
use crate::support::config::secret::Secret;
use crate::support::supervisor::Supervisor;

/// Lists received at the same time.
const MAX_LISTS: usize = 4;
/// Bytes for sorting the ids of one list; more go to temporary files.
const MEMORY: usize = 16 << 20;
/// A client that sends nothing for so long is given up.
const SILENCE: Duration = Duration::from_secs(30);
/// Failed ids that are shown of a campaign.
const SHOWN_FAILURES: u32 = 100;
/// Of an `Idempotency-Key`, in bytes.
const MAX_KEY_BYTES: usize = 200;
/// Clients that have to wait are asked to come back after this, in seconds.
const RETRY_AFTER: &str = "2";

const KEY: &str = "idempotency-key";
const USAGE: &str = "write POST /campaigns?action=touch (or refeed, delete), optionally with name, rate, chunk and paused=true";

/// The routes, and what they need. Cheap to clone.
#[derive(Clone)]
pub struct CampaignRoutes(Arc<Shared>);

struct Shared {
    store: OnceLock<CampaignStore>,
    token: Secret,
    topic: String,
    chunk: u32,
    max_bytes: u64,
    can_refeed: bool,
    lists: Arc<Semaphore>,
    made: AtomicU64,
    process: String,
    supervisor: Supervisor,
    stop: CancellationToken,
}

impl CampaignRoutes {
    /// For the configured token; `None` without one. Lists that are being received at `stop` are given up.
    pub fn new(config: &Config, supervisor: &Supervisor, stop: CancellationToken) -> Option<Self> {
        Some(Self(Arc::new(Shared {
            store: OnceLock::new(),
            token: config.campaigns.bearer_token.clone()?,
            topic: config.kafka.topic.clone(),
            chunk: config.campaigns.chunk_size,
            max_bytes: config.campaigns.request_max_bytes.as_usize() as u64,
            can_refeed: config.source.kind.is_some(),
            lists: Arc::new(Semaphore::new(MAX_LISTS)),
            made: AtomicU64::new(0),
            process: run::name(),
            supervisor: supervisor.clone(),
            stop,
        })))
    }

    /// From now on requests are answered from this store; until then with 503.
    pub fn open(&self, store: CampaignStore) {
        // A second store would be of the same database.
        let _ = self.0.store.set(store);
    }

    /// `/campaigns` and what is below it.
    pub fn routes(&self) -> Router {
        Router::new()
            .route("/campaigns", get(list).post(make))
            .route("/campaigns/{id}", get(show).delete(remove))
            .route("/campaigns/{id}/rate", post(set_rate))
            .route("/campaigns/{id}/{command}", post(execute))
            .layer(middleware::from_fn_with_state(self.0.clone(), only_with_token))
            .with_state(self.0.clone())
    }
}

impl Shared {
    fn store(&self) -> Result<&CampaignStore, Problem> {
        let later = || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the database has not been reached yet");
        self.store.get().ok_or_else(later)
    }
}

/// Why a request is refused or failed, as the client sees it.
#[derive(Debug)]
struct Problem {
    status: StatusCode,
    reason: String,
}

impl Problem {
    fn new(status: StatusCode, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into() }
    }

    fn bad_request(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, reason)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(json!({ "error": self.reason }))).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE | StatusCode::CONFLICT => {
                headers.insert(header::RETRY_AFTER, header::HeaderValue::from_static(RETRY_AFTER));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}

impl From<DatabaseError> for Problem {
    fn from(error: DatabaseError) -> Self {
        tracing::warn!(%error, "a request about campaigns failed");
        // The text may name the database's host and user.
        match error.is_passing() {
            true => Self::new(StatusCode::SERVICE_UNAVAILABLE, "the database does not answer; try again"),
            false => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the database refused it; see the collector's log",
            ),
        }
    }
}

impl From<CampaignStoreError> for Problem {
    fn from(error: CampaignStoreError) -> Self {
        match error {
            CampaignStoreError::Database(error) => error.into(),
            CampaignStoreError::Unknown(id) => {
                Self::new(StatusCode::NOT_FOUND, format!("campaign {id} does not exist"))
            }
            // Not in this state, and perhaps never: nothing to wait for.
            refused @ CampaignStoreError::Refused(..) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, refused.to_string())
            }
        }
    }
}

async fn only_with_token(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = given.and_then(|given| given.split_once(' '));
    let is_right = token.is_some_and(|(scheme, token)| {
        scheme.eq_ignore_ascii_case("bearer") && is_same(token.trim(), shared.token.expose())
    });
    if !is_right {
        let reason = "send the token of campaigns.bearer_token: \"Authorization: Bearer …\"";
        return Problem::new(StatusCode::UNAUTHORIZED, reason).into_response();
    }
    let mut response = next.run(request).await;
    response.headers_mut().insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    response
}

/// Compares in a time that says nothing about where two texts of one length differ.
fn is_same(given: &str, wanted: &str) -> bool {
    let differing = given.bytes().zip(wanted.bytes()).fold(0, |differing, (a, b)| differing | (a ^ b));
    given.len() == wanted.len() && std::hint::black_box(differing) == 0
}

/// What the query of a new campaign may say.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    action: CampaignAction,
    name: Option<String>,
    rate: Option<u32>,
    chunk: Option<u32>,
    #[serde(default)]
    paused: bool,
}

/// A query of the wrong form is answered as any other problem.
type QueryOf<T> = Result<Query<T>, axum::extract::rejection::QueryRejection>;

async fn make(
    State(shared): State<Arc<Shared>>,
    wanted: QueryOf<Wanted>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let Query(wanted) =
        wanted.map_err(|error| Problem::bad_request(format!("{}; {USAGE}", error.body_text())))?;
    let new = shared.new_campaign(&wanted, &headers)?;
    let store = shared.store()?.clone();
    if let Some(made_before) = shared.made_before(&new).await? {
        return Ok(made_before);
    }
    let Ok(permit) = shared.lists.clone().try_acquire_owned() else {
        let reason = format!("{MAX_LISTS} lists are being received already; try again");
        return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, reason));
    };
    // Goes on when the client leaves, so that what was begun is cleared away.
    let (answer, answered) = oneshot::channel();
    let (stop, max_bytes) = (shared.stop.clone(), shared.max_bytes);
    let making = {
        let (store, new) = (store.clone(), new.clone());
        async move {
            let _permit = permit;
            // Nobody waits for it when the client has left.
            let _ = answer.send(receive(&store, &new, body, max_bytes, wanted.paused, &stop).await);
        }
    };
    shared.supervisor.spawn_until_done("request for a campaign", making);
    let lost = |_| {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the campaign was not made; see the collector's log")
    };
    match answered.await.map_err(lost)?? {
        // At the same time as another request with this key.
        None => match shared.made_before(&new).await? {
            Some(made_before) => Ok(made_before),
            None => Err(Problem::new(
                StatusCode::CONFLICT,
                "another request with this key has just failed; try again",
            )),
        },
        Some(created) => {
            let value = described(&store, store.status(created).await?).await?;
            let place = format!("/campaigns/{created}");
            Ok((StatusCode::CREATED, [(header::LOCATION, place)], Json(value)).into_response())
        }
    }
}

impl Shared {
    fn new_campaign(&self, wanted: &Wanted, headers: &HeaderMap) -> Result<NewCampaign, Problem> {
        if wanted.action == CampaignAction::Refeed && !self.can_refeed {
            return Err(Problem::bad_request(
                "a refeed needs [source] in the configuration of workers and collectors",
            ));
        }
        if wanted.rate.is_some_and(|rate| rate == 0 || rate > MAX_RATE) {
            return Err(Problem::bad_request(format!("rate may be 1 to {MAX_RATE} ids per second")));
        }
        if wanted.chunk.is_some_and(|size| size == 0 || size > chunk::MAX_IDS) {
            return Err(Problem::bad_request(format!("chunk may be 1 to {} ids", chunk::MAX_IDS)));
        }
        let name = wanted.name.clone().unwrap_or_else(|| "a request".to_owned());
        if !is_name(&name) {
            return Err(Problem::bad_request(format!(
                "name may have at most {MAX_NAME_BYTES} bytes and no NUL"
            )));
        }
        let request = match headers.get(KEY).map(|key| key.to_str()) {
            None => format!("{}-{}", self.process, self.made.fetch_add(1, Ordering::Relaxed)),
            Some(Ok(key)) if (1..=MAX_KEY_BYTES).contains(&key.len()) => key.to_owned(),
            Some(_) => {
                let reason = format!("Idempotency-Key must be 1 to {MAX_KEY_BYTES} visible ASCII characters");
                return Err(Problem::bad_request(reason));
            }
        };
        Ok(NewCampaign {
            name,
            action: wanted.action,
            topic: self.topic.clone(),
            selection: "a list in a request".to_owned(),
            chunk: wanted.chunk.unwrap_or(self.chunk),
            rate: wanted.rate,
            every: None,
            request: Some(request),
            may_be_empty: false,
        })
    }

    /// The answer, if a request with this key has made a campaign before. A list that is still being received is a conflict.
    async fn made_before(&self, new: &NewCampaign) -> Result<Option<Response>, Problem> {
        let store = self.store()?;
        let Some(id) = store.of_request(new.request.as_deref().unwrap_or_default()).await? else {
            return Ok(None);
        };
        let status = match store.status(id).await {
            Err(CampaignStoreError::Unknown(_)) => return Ok(None),
            status => status?,
        };
        if status.broken_off {
            return Ok(None);
        }
        if status.state == super::CampaignState::Creating {
            let reason = format!(
                "the list of campaign {id}, of a request with this key, is being received; try again"
            );
            return Err(Problem::new(StatusCode::CONFLICT, reason));
        }
        if status.action != new.action {
            let reason =
                format!("a request with this key made campaign {id}, a {}; use another key", status.action);
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, reason));
        }
        Ok(Some(Json(described(store, status).await?).into_response()))
    }
}

/// Makes a campaign of the list in `body`; `None` if another request with this key does. Nothing is left if it fails.
async fn receive(
    store: &CampaignStore,
    new: &NewCampaign,
    body: Body,
    max_bytes: u64,
    paused: bool,
    stop: &CancellationToken,
) -> Result<Option<i64>, Problem> {
    let (sender, pieces) = mpsc::channel(4);
    let list = IdSource::List(Box::new(BufReader::new(Incoming { pieces, piece: Bytes::new() })));
    let sort_options = SortOptions { folder: std::env::temp_dir(), memory: MEMORY };
    let told = |_| {};
    let making = create(store, new, list, &sort_options, paused, stop, &told);
    let (made, received) = tokio::join!(making, feed(body, sender, max_bytes));
    received?;
    match made {
        Ok(created) => Ok(created.map(|created| created.id)),
        Err(error @ (CreateError::Empty | CreateError::Select(SelectError::Io(_)))) => {
            Err(Problem::bad_request(error.to_string()))
        }
        Err(CreateError::Database(error)) => Err(error.into()),
        Err(CreateError::Interrupted) => {
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the collector ends; try again"))
        }
        Err(error) => {
            tracing::warn!(%error, "a request for a campaign failed");
            Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
        }
    }
}

/// Passes the body on, piece by piece, and says why if that ends early. The reader then sees an error, not the end.
async fn feed(body: Body, sender: mpsc::Sender<io::Result<Bytes>>, max_bytes: u64) -> Result<(), Problem> {
    let mut stream = body.into_data_stream();
    let (mut received, mut last) = (0, b'\n');
    let problem = loop {
        match timeout(SILENCE, stream.next()).await {
            // Some clients end a body that they could not send whole as if it were; half an id may be another one's.
            Ok(None) if last != b'\n' => {
                let reason = "the list's last line has no line break, so the list may have been cut; end every line with one";
                break Problem::bad_request(reason);
            }
            Ok(None) => return Ok(()),
            Ok(Some(Ok(piece))) => {
                received += piece.len() as u64;
                last = piece.last().copied().unwrap_or(last);
                if received > max_bytes {
                    let reason = format!(
                        "the list has more than campaigns.request_max_bytes, {max_bytes} bytes; send parts of it, or use `geofold campaign create`"
                    );
                    break Problem::new(StatusCode::PAYLOAD_TOO_LARGE, reason);
                }
                // Gone if the list is refused: that error is told.
                if sender.send(Ok(piece)).await.is_err() {
                    return Ok(());
                }
            }
            Ok(Some(Err(error))) => break Problem::bad_request(format!("the list did not arrive: {error}")),
            Err(_) => {
                let reason = format!("nothing arrived for {} s", SILENCE.as_secs());
                break Problem::new(StatusCode::REQUEST_TIMEOUT, reason);
            }
        }
    };
    let _ = sender.send(Err(io::Error::other(problem.reason.clone()))).await;
    Err(problem)
}

/// The body, for who reads it in a thread of its own.
struct Incoming {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.piece = piece?,
                None => return Ok(0),
            }
        }
        let taken = self.piece.split_to(buffer.len().min(self.piece.len()));
        buffer[..taken.len()].copy_from_slice(&taken);
        Ok(taken.len())
    }
}

async fn list(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, Problem> {
    Ok(Json(json!({ "campaigns": shared.store()?.list().await? })))
}

async fn show(State(shared): State<Arc<Shared>>, Path(id): Path<i64>) -> Result<Json<Value>, Problem> {
    let store = shared.store()?;
    Ok(Json(described(store, store.status(id).await?).await?))
}

/// A status with the first ids that failed.
async fn described(store: &CampaignStore, status: CampaignStatus) -> Result<Value, Problem> {
    let failed = if status.failed > 0 { store.failed(status.id, SHOWN_FAILURES).await? } else { vec![] };
    Ok(status.to_json(&failed))
}

async fn execute(
    State(shared): State<Arc<Shared>>,
    Path((id, command)): Path<(i64, String)>,
) -> Result<Json<Value>, Problem> {
    let store = shared.store()?;
    match command.as_str() {
        "pause" => _ = store.execute(id, Command::Pause).await?,
        "resume" => _ = store.execute(id, Command::Resume).await?,
        "cancel" => _ = store.execute(id, Command::Cancel).await?,
        "retry" => _ = store.retry(id).await?,
        _ => {
            let reason = format!("{command} is no command; write pause, resume, cancel, retry or rate");
            return Err(Problem::new(StatusCode::NOT_FOUND, reason));
        }
    }
    Ok(Json(described(store, store.status(id).await?).await?))
}

/// A new rate.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewRate {
    per_second: String,
}

async fn set_rate(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<i64>,
    rate: QueryOf<NewRate>,
) -> Result<Json<Value>, Problem> {
    let usage =
        || Problem::bad_request(format!("write rate?per_second=N, 1 to {MAX_RATE}, or per_second=none"));
    let Query(NewRate { per_second }) = rate.map_err(|_| usage())?;
    let rate = match per_second.as_str() {
        "none" => None,
        number => Some(number.parse().ok().filter(|rate| (1..=MAX_RATE).contains(rate)).ok_or_else(usage)?),
    };
    let store = shared.store()?;
    store.set_rate(id, rate).await?;
    Ok(Json(described(store, store.status(id).await?).await?))
}

async fn remove(State(shared): State<Arc<Shared>>, Path(id): Path<i64>) -> Result<StatusCode, Problem> {
    shared.store()?.remove(id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use reqwest::{Method, RequestBuilder};
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpStream;

    use super::*;
    use crate::io::database::tests::{Fresh, each};
    use crate::ops::admin;
    use crate::ops::campaign::CampaignState;
    use crate::support::config::ByteSize;

    const TOKEN: &str = "abc-123";

    struct Server {
        address: SocketAddr,
        campaigns: CampaignRoutes,
        store: CampaignStore,
        client: reqwest::Client,
        _fresh: Fresh,
        _stop: tokio_util::sync::DropGuard,
    }

    impl Server {
        async fn closed() -> Self {
            let fresh = each().await.swap_remove(0);
            let store = CampaignStore::new(fresh.database.clone());
            store.prepare().await.unwrap();
            let mut config = Config::default();
            config.kafka.topic = "documents".to_owned();
            config.campaigns.bearer_token = Some(Secret::new(TOKEN));
            config.campaigns.request_max_bytes = ByteSize::new(1000);
            let (supervisor, stop) = (Supervisor::new().0, CancellationToken::new());
            let campaigns = CampaignRoutes::new(&config, &supervisor, stop.clone()).unwrap();
            let listen = "127.0.0.1:0".parse().unwrap();
            let (address, _) =
                admin::serve(listen, campaigns.routes(), stop.clone(), &supervisor).await.unwrap();
            let (client, stop) = (reqwest::Client::new(), stop.drop_guard());
            Self { address, campaigns, store, client, _fresh: fresh, _stop: stop }
        }

        async fn open() -> Self {
            let server = Self::closed().await;
            server.campaigns.open(server.store.clone());
            server
        }

        fn request(&self, method: Method, path: &str) -> RequestBuilder {
            self.client.request(method, format!("http://{}{path}", self.address))
        }

        async fn ask(&self, method: Method, path: &str, list: &str) -> (u16, Value) {
            self.answer(self.request(method, path).bearer_auth(TOKEN).body(list.to_owned())).await
        }

        async fn answer(&self, request: RequestBuilder) -> (u16, Value) {
            let answer = request.send().await.unwrap();
            let status = answer.status().as_u16();
            let text = answer.text().await.unwrap();
            (status, if text.is_empty() { Value::Null } else { serde_json::from_str(&text).expect(&text) })
        }

        async fn post(&self, query: &str, key: Option<&str>, list: &str) -> (u16, Value) {
            let request = self.request(Method::POST, &format!("/campaigns?{query}"));
            let request = key.into_iter().fold(request, |request, key| request.header(KEY, key));
            self.answer(request.bearer_auth(TOKEN).body(list.to_owned())).await
        }

        async fn ids(&self) -> Vec<i64> {
            self.store.list().await.unwrap().iter().map(|status| status.id).collect()
        }
    }

    #[tokio::test]
    async fn only_requests_with_the_token_are_answered() {
        let server = Server::open().await;
        for (method, path) in [
            (Method::GET, "/campaigns"),
            (Method::POST, "/campaigns?action=delete"),
            (Method::GET, "/campaigns/1"),
            (Method::DELETE, "/campaigns/1"),
            (Method::POST, "/campaigns/1/cancel"),
            (Method::POST, "/campaigns/1/rate?per_second=1"),
        ] {
            for token in [None, Some(""), Some("abc-124"), Some("abc-12"), Some("abc-1234")] {
                let request = server.request(method.clone(), path).body("a\n");
                let request = token.into_iter().fold(request, |request, token| request.bearer_auth(token));
                let (status, answer) = server.answer(request).await;
                assert_eq!(status, 401, "{method} {path} {token:?}: {answer}");
                assert!(!answer.to_string().contains(TOKEN));
            }
            let basic =
                server.request(method.clone(), path).header("authorization", format!("Basic {TOKEN}"));
            assert_eq!(server.answer(basic).await.0, 401);
        }
        assert!(server.ids().await.is_empty());
        assert_eq!(server.ask(Method::GET, "/campaigns", "").await.0, 200);
        let without = CampaignRoutes::new(&Config::default(), &Supervisor::new().0, CancellationToken::new());
        assert!(without.is_none(), "no token, no path");
    }

    #[tokio::test]
    async fn a_repeated_request_makes_one_campaign() {
        let server = Server::open().await;
        let query = "action=touch&name=order%2017&rate=500&chunk=2";
        let (status, made) = server.post(query, Some("order-17"), "a\nb\n\nb\n{\"id\":\"c\"}\n").await;
        assert_eq!((status, &made["ids"], &made["chunks"]), (201, &json!(3), &json!(2)), "{made}");
        let expected = json!(["order 17", "touch", "documents", "ready", 500]);
        let told = ["name", "action", "topic", "state", "rate_limit"].map(|key| made[key].clone());
        assert_eq!(json!(told), expected);
        let (status, again) = server.post(query, Some("order-17"), "a\n").await;
        assert_eq!((status, &again["id"], &again["ids"]), (200, &made["id"], &json!(3)));
        let (status, other) = server.post("action=delete", Some("order-17"), "a\n").await;
        assert!(status == 422 && other["error"].as_str().unwrap().contains("another key"), "{other}");
        // Without a key each is a request of its own.
        for _ in 0..2 {
            assert_eq!(server.post("action=touch", None, "a\n").await.0, 201);
        }
        assert_eq!(server.ids().await.len(), 3);
        assert_eq!(server.store.requested("documents").await.unwrap().len(), 3);
        assert!(server.store.requested("other").await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn of_two_requests_with_one_key_at_the_same_time_one_makes_the_campaign() {
        let server = Server::open().await;
        let both = futures::join!(
            server.post("action=touch", Some("k"), "a\n"),
            server.post("action=touch", Some("k"), "a\n")
        );
        let mut statuses = [both.0.0, both.1.0];
        statuses.sort_unstable();
        assert!(matches!(statuses, [200 | 201, 201 | 409]) && statuses.contains(&201), "{both:?}");
        assert_eq!(server.ids().await.len(), 1);
        let (status, _) = server.post("action=touch", Some("k"), "a\n").await;
        assert_eq!(status, 200);
    }

    #[tokio::test]
    async fn what_is_refused_leaves_nothing() {
        let server = Server::open().await;
        let (long, large) = ("x".repeat(900), "x\n".repeat(501));
        let key = "k".repeat(201);
        for (query, key, list, status, says) in [
            ("", None, "a\n", 400, "POST /campaigns?action=touch"),
            ("action=burn", None, "a\n", 400, "POST /campaigns?action=touch"),
            ("action=touch&colour=red", None, "a\n", 400, "POST /campaigns?action=touch"),
            ("action=refeed", None, "a\n", 400, "[source]"),
            ("action=touch&rate=0", None, "a\n", 400, "rate"),
            ("action=touch&chunk=0", None, "a\n", 400, "chunk"),
            ("action=touch&name=%00", None, "a\n", 400, "name"),
            ("action=touch", Some(""), "a\n", 400, "Idempotency-Key"),
            ("action=touch", Some(key.as_str()), "a\n", 400, "Idempotency-Key"),
            ("action=touch", Some("k"), "", 400, "no document"),
            ("action=touch", Some("k"), "\n\n", 400, "no document"),
            ("action=touch", Some("k"), "a\nb", 400, "may have been cut"),
            ("action=touch", Some("k"), large.as_str(), 413, "request_max_bytes"),
        ] {
            let (got, answer) = server.post(query, key, list).await;
            let error = answer["error"].as_str().unwrap();
            assert!(got == status && error.contains(says), "{query} {key:?}: {got} {error}");
            assert!(server.ids().await.is_empty(), "{query}");
        }
        // An id that cannot be one is a failure of its campaign.
        let (status, made) = server.post("action=touch", Some("k"), &format!("{long}\na\n")).await;
        assert_eq!(
            (status, &made["ids"], &made["failed"]),
            (201, &json!(2), &json!(1)),
            "the key is free; {made}"
        );
        assert!(made["failures"][0]["reason"].as_str().unwrap().contains("bytes"), "{made}");
    }

    #[tokio::test]
    async fn a_client_that_leaves_leaves_nothing() {
        let server = Server::open().await;
        for begin in
            ["content-length: 900\r\n\r\na\nb\n", "transfer-encoding: chunked\r\n\r\n4\r\na\nb\n\r\n"]
        {
            let mut client = TcpStream::connect(server.address).await.unwrap();
            let head = format!(
                "POST /campaigns?action=touch HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\nidempotency-key: k\r\n"
            );
            client.write_all((head + begin).as_bytes()).await.unwrap();
            while server.ids().await.is_empty() {
                tokio::task::yield_now().await;
            }
            let (status, answer) = server.post("action=touch", Some("k"), "a\n").await;
            assert_eq!(status, 409, "its list is being received: {answer}");
            drop(client);
            while !server.ids().await.is_empty() {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(server.post("action=touch", Some("k"), "a\n").await.0, 201);
    }

    #[tokio::test]
    async fn lists_are_received_by_a_few_clients_at_the_same_time() {
        let server = Server::open().await;
        let permits: Vec<_> =
            (0..MAX_LISTS).map(|_| server.campaigns.0.lists.try_acquire().unwrap()).collect();
        assert_eq!(server.post("action=touch", Some("k"), "a\n").await.0, 429);
        assert_eq!(server.ask(Method::GET, "/campaigns", "").await.0, 200);
        drop(permits);
        assert_eq!(server.post("action=touch", Some("k"), "a\n").await.0, 201);
    }

    #[tokio::test]
    async fn campaigns_are_shown_and_controlled() {
        let server = Server::open().await;
        let id = server.post("action=touch&paused=true", None, "a\n").await.1["id"].as_i64().unwrap();
        let ask = async |method, path: &str| server.ask(method, &format!("/campaigns/{id}{path}"), "").await;
        assert_eq!(ask(Method::GET, "").await.1["state"], "paused");
        for (path, key, value) in [
            ("/resume", "state", json!("ready")),
            ("/pause", "state", json!("paused")),
            ("/rate?per_second=7", "rate_limit", json!(7)),
            ("/rate?per_second=none", "rate_limit", json!(0)),
            ("/retry", "state", json!("paused")),
        ] {
            let (status, answer) = ask(Method::POST, path).await;
            assert_eq!((status, &answer[key]), (200, &value), "{path}: {answer}");
        }
        assert_eq!(ask(Method::DELETE, "").await.0, 422, "it is not over");
        assert_eq!(ask(Method::POST, "/cancel").await.1["state"], "cancelled");
        assert_eq!(ask(Method::POST, "/resume").await.0, 422);
        assert_eq!(ask(Method::POST, "/burn").await.0, 404);
        assert_eq!(ask(Method::POST, "/rate?per_second=0").await.0, 400);
        assert_eq!(server.ask(Method::GET, "/campaigns", "").await.1["campaigns"][0]["id"], id);
        assert_eq!(ask(Method::DELETE, "").await.0, 204);
        assert_eq!(ask(Method::GET, "").await.0, 404);
    }

    #[tokio::test]
    async fn requests_wait_for_the_database() {
        let server = Server::closed().await;
        let request = server.request(Method::GET, "/campaigns").bearer_auth(TOKEN);
        let answer = request.send().await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.headers()["retry-after"].as_bytes()), (503, &b"2"[..]));
        server.campaigns.open(server.store.clone());
        assert_eq!(server.ask(Method::GET, "/campaigns", "").await.0, 200);
    }

    #[tokio::test]
    async fn the_key_of_a_list_whose_receiver_died_is_free_again() {
        let server = Server::open().await;
        let wanted =
            Wanted { action: CampaignAction::Touch, name: None, rate: None, chunk: None, paused: false };
        let mut headers = HeaderMap::new();
        headers.insert(KEY, "k".parse().unwrap());
        let new = server.campaigns.0.new_campaign(&wanted, &headers).unwrap();
        let dead = server.store.create(&new).await.unwrap().unwrap();
        assert_eq!(server.post("action=touch", Some("k"), "a\n").await.0, 409);
        let mut transaction = server.store.database.begin("ageing").await.unwrap();
        transaction.execute("UPDATE campaign SET beat = 1", &[]).await.unwrap();
        transaction.commit().await.unwrap();
        assert_eq!(server.post("action=touch", Some("k"), "a\n").await.0, 201);
        assert_eq!(server.store.status(dead).await.unwrap().state, CampaignState::Cancelled);
    }
}
