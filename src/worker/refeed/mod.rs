//! Refeed: fetches documents by id from the source of truth (docs/refeed.md).
//!
//! [`DocumentSource`] only fetches: it asks once, returns one answer per id, and never retries. A [`SourceFetcher`] wraps it for a
//! worker: it batches, retries, applies a circuit breaker, and bounds held bytes.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the source of either kind; its answers |
//! | `gone.rs` | when a missing document is trusted |
//! | `http.rs` | one GET for each document |
//! | `postgres.rs` | many documents per query |
//! | `feeder.rs` | a worker's requests and their answers |
//! | `held.rs` | bytes of held answers |

mod feeder;
mod gone;
mod held;
mod http;
mod postgres;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::stream::{self, StreamExt as _};
use thiserror::Error;
use tokio::sync::Semaphore;

#[cfg(test)]
pub(crate) use self::feeder::WaitingFetch;
pub use self::feeder::{FetchRequest, FetchResponse, FetchWaiter, FetcherDependencies, SourceFetcher};
use self::gone::GoneGuard;
pub use self::held::Held;
use self::http::Http;
use self::postgres::Postgres;
use crate::base::ids::DocId;
use crate::support::config::{Config, SourceKind, SourceUrl};
use crate::support::tls::TlsError;

/// The id that a probe of a database requests by default: no document should have it.
pub(crate) const UNLIKELY_ID: &str = "geofold-check-there-is-no-such-document";

const CLOSED: &str = "the source was closed";

/// The source's answer for one document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchAnswer {
    /// Found: the bytes as received, unvalidated.
    Found(Bytes),
    /// There is no such document.
    Gone,
    /// The source refuses the document permanently, or has it in an unusable form.
    Unusable {
        /// Reason code for a dead letter's headers and metrics.
        reason: &'static str,
        /// Human-readable detail.
        detail: String,
    },
    /// No information: ask again.
    Failed(FetchFailure),
}

/// Why a request failed. The text names the action and the remedy, and never contains a secret or an id.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct FetchFailure {
    reason: Arc<str>,
    /// The source asked not to be called before.
    pub retry_after: Option<Duration>,
}

impl FetchFailure {
    fn new(reason: impl Into<Arc<str>>) -> Self {
        Self { reason: reason.into(), retry_after: None }
    }

    #[cfg(test)]
    pub(crate) fn for_test(reason: &str) -> Self {
        Self::new(reason)
    }
}

/// Why the configured source is unusable.
#[derive(Debug, Error)]
pub enum SourceOpenError {
    /// Nothing is configured.
    #[error("no source of truth is configured: set source.kind and source.url (docs/refeed.md)")]
    None,
    /// Required keys are missing.
    #[error("[source] is incomplete; `geofold check` names the missing keys")]
    Incomplete,
    /// The certificates cannot be used.
    #[error(transparent)]
    Ca(#[from] TlsError),
    /// The HTTP client could not be created.
    #[error("could not set up the http client for the source: {0}; check source.ca_file and source.headers")]
    Client(String),
}

/// The source of truth. Cheap to clone; all clones share its limits.
#[derive(Debug, Clone)]
pub struct DocumentSource(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    way: Way,
    /// One per concurrent request.
    permits: Semaphore,
    max_in_flight: usize,
    batch: usize,
    max_bytes: usize,
    name: String,
    /// Id of a document that exists; always set for a web server.
    probe_id: Option<DocId>,
    gone: GoneGuard,
}

#[derive(Debug)]
enum Way {
    Http(Http),
    Postgres(Postgres),
}

impl DocumentSource {
    /// Opens the configured source without connecting: a worker starts even if the source is down.
    ///
    /// # Errors
    /// If none is configured, or the configuration is unusable.
    pub fn open(config: &Config) -> Result<Self, SourceOpenError> {
        let source = &config.source;
        let kind = source.kind.ok_or(SourceOpenError::None)?;
        let url = source.url.as_ref().ok_or(SourceOpenError::Incomplete)?;
        let max_document = config.documents.max_bytes.as_usize();
        let (way, batch) = match (kind, url) {
            (SourceKind::Http, SourceUrl::Http(template)) => {
                (Way::Http(Http::new(source, template.clone(), max_document)?), 1)
            }
            (SourceKind::Postgresql, SourceUrl::Postgres(url)) => {
                let way = Postgres::new(source, url, max_document).ok_or(SourceOpenError::Incomplete)?;
                (Way::Postgres(way), source.batch_size.max(1))
            }
            _ => return Err(SourceOpenError::Incomplete),
        };
        let probe_id = source.probe_id.as_ref().map(|id| DocId::from_key(Some(id.as_bytes())));
        let probe_id = probe_id.transpose().map_err(|_| SourceOpenError::Incomplete)?;
        if probe_id.is_none() && kind == SourceKind::Http {
            return Err(SourceOpenError::Incomplete);
        }
        let max_in_flight = source.max_in_flight.max(1);
        let permits = Semaphore::new(max_in_flight);
        let (max_bytes, name) = (source.max_bytes.as_usize(), url.to_string());
        Ok(Self(Arc::new(Inner {
            way,
            permits,
            max_in_flight,
            batch,
            max_bytes,
            name,
            probe_id,
            gone: GoneGuard::default(),
        })))
    }

    /// Its address, without secrets.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Ids per request.
    pub fn batch(&self) -> usize {
        self.0.batch
    }

    /// Maximum concurrent requests.
    pub fn max_in_flight(&self) -> usize {
        self.0.max_in_flight
    }

    /// Limit on held bytes of answers.
    pub fn max_bytes(&self) -> usize {
        self.0.max_bytes
    }

    /// The source's answer for each id, in order. Sends each request once, concurrently within
    /// [`DocumentSource::max_in_flight`], without retries. All answers are held at once: fetch many ids in parts.
    pub async fn fetch(&self, ids: &[DocId]) -> Vec<FetchAnswer> {
        let parts: Vec<_> = ids.chunks(self.0.batch).map(|ids| self.request(ids).boxed()).collect();
        let answers: Vec<Vec<FetchAnswer>> =
            stream::iter(parts).buffered(self.0.max_in_flight).collect().await;
        answers.into_iter().flatten().collect()
    }

    /// Requests the configured id, which should exist, or one that should not: tests whether the source answers.
    ///
    /// # Errors
    /// If it does not, with a remedy.
    pub async fn probe(&self) -> Result<FetchAnswer, FetchFailure> {
        let Ok(_permit) = self.0.permits.acquire().await else { return Err(FetchFailure::new(CLOSED)) };
        let unlikely = DocId::from_key(Some(UNLIKELY_ID.as_bytes())).ok();
        match self.0.probe_id.as_ref().or(unlikely.as_ref()) {
            Some(id) => match self.ask_for(id).await {
                FetchAnswer::Failed(failure) => Err(failure),
                answer => Ok(answer),
            },
            None => Err(FetchFailure::new("no id to fetch")),
        }
    }

    /// Whether the source has a document even for an id that should not exist.
    pub async fn has_everything(&self) -> bool {
        let Ok(_permit) = self.0.permits.acquire().await else { return false };
        match DocId::from_key(Some(UNLIKELY_ID.as_bytes())) {
            Ok(id) => matches!(self.ask_for(&id).await, FetchAnswer::Found(_)),
            Err(_) => false,
        }
    }

    /// Fetches one document. The caller holds a permit.
    async fn ask_for(&self, id: &DocId) -> FetchAnswer {
        let answer = match &self.0.way {
            Way::Http(http) => Some(http.get(id).await),
            Way::Postgres(postgres) => postgres.select(std::slice::from_ref(id)).await.pop(),
        };
        answer.unwrap_or_else(|| FetchAnswer::Failed(FetchFailure::new("the source gave no answer")))
    }

    async fn request(&self, ids: &[DocId]) -> Vec<FetchAnswer> {
        let Ok(_permit) = self.0.permits.acquire().await else {
            return vec![FetchAnswer::Failed(FetchFailure::new(CLOSED)); ids.len()];
        };
        let before = self.0.gone.before();
        let answers = match &self.0.way {
            Way::Http(http) => {
                let mut answers = Vec::with_capacity(ids.len());
                for id in ids {
                    answers.push(http.get(id).await);
                }
                answers
            }
            Way::Postgres(postgres) => postgres.select(ids).await,
        };
        match &self.0.probe_id {
            Some(probe_id) => self.0.gone.check(before, answers, || self.ask_for(probe_id)).await,
            None => answers,
        }
    }
}
