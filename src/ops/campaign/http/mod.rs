//! `/campaigns` of a collector: campaigns made and controlled by requests, which bear a token.
//!
//! A request that makes a campaign may bring a key (`Idempotency-Key`). It may then be repeated: the campaign is made once.

mod problem;
mod receive;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use self::problem::RequestProblem;
use self::receive::receive;
use super::store::{
    CampaignStatus, CampaignStore, CampaignStoreError, MAX_NAME_BYTES, MAX_RATE, NewCampaign, is_name,
};
use super::{CampaignAction, Command, chunk, run};
use crate::support::config::Config;
use crate::support::config::secret::Secret;
use crate::support::supervisor::Supervisor;

/// Lists received at the same time.
const MAX_LISTS: usize = 4;
/// Failed ids that are shown of a campaign.
const SHOWN_FAILURES: u32 = 100;
/// Of an `Idempotency-Key`, in bytes.
const MAX_KEY_BYTES: usize = 200;

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
    fn store(&self) -> Result<&CampaignStore, RequestProblem> {
        let later =
            || RequestProblem::new(StatusCode::SERVICE_UNAVAILABLE, "the database has not been reached yet");
        self.store.get().ok_or_else(later)
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
        return RequestProblem::new(StatusCode::UNAUTHORIZED, reason).into_response();
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
) -> Result<Response, RequestProblem> {
    let Query(wanted) =
        wanted.map_err(|error| RequestProblem::bad_request(format!("{}; {USAGE}", error.body_text())))?;
    let new = shared.new_campaign(&wanted, &headers)?;
    let store = shared.store()?.clone();
    if let Some(made_before) = shared.made_before(&new).await? {
        return Ok(made_before);
    }
    let Ok(permit) = shared.lists.clone().try_acquire_owned() else {
        let reason = format!("{MAX_LISTS} lists are being received already; try again");
        return Err(RequestProblem::new(StatusCode::TOO_MANY_REQUESTS, reason));
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
        RequestProblem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the campaign was not made; see the collector's log",
        )
    };
    match answered.await.map_err(lost)?? {
        // At the same time as another request with this key.
        None => match shared.made_before(&new).await? {
            Some(made_before) => Ok(made_before),
            None => Err(RequestProblem::new(
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
    fn new_campaign(&self, wanted: &Wanted, headers: &HeaderMap) -> Result<NewCampaign, RequestProblem> {
        if wanted.action == CampaignAction::Refeed && !self.can_refeed {
            return Err(RequestProblem::bad_request(
                "a refeed needs [source] in the configuration of workers and collectors",
            ));
        }
        if wanted.rate.is_some_and(|rate| rate == 0 || rate > MAX_RATE) {
            return Err(RequestProblem::bad_request(format!("rate may be 1 to {MAX_RATE} ids per second")));
        }
        if wanted.chunk.is_some_and(|size| size == 0 || size > chunk::MAX_IDS) {
            return Err(RequestProblem::bad_request(format!("chunk may be 1 to {} ids", chunk::MAX_IDS)));
        }
        let name = wanted.name.clone().unwrap_or_else(|| "a request".to_owned());
        if !is_name(&name) {
            return Err(RequestProblem::bad_request(format!(
                "name may have at most {MAX_NAME_BYTES} bytes and no NUL"
            )));
        }
        let request = match headers.get(KEY).map(|key| key.to_str()) {
            None => format!("{}-{}", self.process, self.made.fetch_add(1, Ordering::Relaxed)),
            Some(Ok(key)) if (1..=MAX_KEY_BYTES).contains(&key.len()) => key.to_owned(),
            Some(_) => {
                let reason = format!("Idempotency-Key must be 1 to {MAX_KEY_BYTES} visible ASCII characters");
                return Err(RequestProblem::bad_request(reason));
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
    async fn made_before(&self, new: &NewCampaign) -> Result<Option<Response>, RequestProblem> {
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
            return Err(RequestProblem::new(StatusCode::CONFLICT, reason));
        }
        if status.action != new.action {
            let reason =
                format!("a request with this key made campaign {id}, a {}; use another key", status.action);
            return Err(RequestProblem::new(StatusCode::UNPROCESSABLE_ENTITY, reason));
        }
        Ok(Some(Json(described(store, status).await?).into_response()))
    }
}

async fn list(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, RequestProblem> {
    Ok(Json(json!({ "campaigns": shared.store()?.list().await? })))
}

async fn show(State(shared): State<Arc<Shared>>, Path(id): Path<i64>) -> Result<Json<Value>, RequestProblem> {
    let store = shared.store()?;
    Ok(Json(described(store, store.status(id).await?).await?))
}

/// A status with the first ids that failed.
async fn described(store: &CampaignStore, status: CampaignStatus) -> Result<Value, RequestProblem> {
    let failed = if status.failed > 0 { store.failed(status.id, SHOWN_FAILURES).await? } else { vec![] };
    Ok(status.to_json(&failed))
}

async fn execute(
    State(shared): State<Arc<Shared>>,
    Path((id, command)): Path<(i64, String)>,
) -> Result<Json<Value>, RequestProblem> {
    let store = shared.store()?;
    match command.as_str() {
        "pause" => _ = store.execute(id, Command::Pause).await?,
        "resume" => _ = store.execute(id, Command::Resume).await?,
        "cancel" => _ = store.execute(id, Command::Cancel).await?,
        "retry" => _ = store.retry(id).await?,
        _ => {
            let reason = format!("{command} is no command; write pause, resume, cancel, retry or rate");
            return Err(RequestProblem::new(StatusCode::NOT_FOUND, reason));
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
) -> Result<Json<Value>, RequestProblem> {
    let usage = || {
        RequestProblem::bad_request(format!("write rate?per_second=N, 1 to {MAX_RATE}, or per_second=none"))
    };
    let Query(NewRate { per_second }) = rate.map_err(|_| usage())?;
    let rate = match per_second.as_str() {
        "none" => None,
        number => Some(number.parse().ok().filter(|rate| (1..=MAX_RATE).contains(rate)).ok_or_else(usage)?),
    };
    let store = shared.store()?;
    store.set_rate(id, rate).await?;
    Ok(Json(described(store, store.status(id).await?).await?))
}

async fn remove(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<i64>,
) -> Result<StatusCode, RequestProblem> {
    shared.store()?.remove(id).await?;
    Ok(StatusCode::NO_CONTENT)
}
