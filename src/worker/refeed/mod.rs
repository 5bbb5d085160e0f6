//! Refeed: documents fetched again by their id, from the source of truth (docs/refeed.md).
//!
//! [`Source`] is the fetch alone: it asks once, tells of each id what came of it, and never tries again. A [`SourceFetcher`] is what
//! a worker has around it: batches, tries again, leaves a source that fails alone for a while, and bounds what is held.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the source, whichever kind it is; what it may answer |
//! | `gone.rs` | when it is believed that a document is gone |
//! | `http.rs` | one GET for each document |
//! | `postgres.rs` | many documents with one query |
//! | `feeder.rs` | a worker's questions, and their answers |
//! | `breaker.rs` | when a source that fails is left alone (pure) |
//! | `held.rs` | how many bytes of answers are held |

mod breaker;
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
pub(crate) use self::feeder::Waiting;
pub use self::feeder::{Dependencies, FetchRequest, FetchResponse, SourceFetcher, Waiter};
use self::gone::GoneGuard;
pub use self::held::Held;
use self::http::Http;
use self::postgres::Postgres;
use crate::base::ids::DocId;
use crate::support::config::{Config, SourceKind, SourceUrl};

/// The id that a probe of a database asks for, if none is configured: no document should have it.
pub(crate) const UNLIKELY_ID: &str = "geofold-check-there-is-no-such-document";

const CLOSED: &str = "the source was closed";

/// What the source of truth says of one document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It is there: the bytes as they came, which may be anything.
    Found(Bytes),
    /// There is no such document.
    Gone,
    /// The source cannot give the document in a form that geofold could use, now or later, or refuses to.
    Unusable {
        /// One word, for a dead letter's headers and for metrics.
        reason: &'static str,
        /// For a person.
        detail: String,
    },
    /// Nothing was learnt: ask again.
    Failed(Failure),
}

/// Why nothing was learnt. Its text says what was being done, and what to do; it never holds a secret, nor an id.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct Failure {
    reason: Arc<str>,
    /// The source asks not to be asked before.
    pub retry_after: Option<Duration>,
}

impl Failure {
    fn new(reason: impl Into<Arc<str>>) -> Self {
        Self { reason: reason.into(), retry_after: None }
    }

    #[cfg(test)]
    pub(crate) fn for_test(reason: &str) -> Self {
        Self::new(reason)
    }
}

/// Why a source cannot be used at all: the configuration.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Nothing is configured.
    #[error(
        "there is no source of truth: set source.kind and source.url in the configuration (docs/refeed.md)"
    )]
    None,
    /// The keys do not go together.
    #[error("[source] in the configuration is not whole; `geofold check` says what is missing")]
    Incomplete,
    /// The certificates cannot be read.
    #[error("reading source.ca_file {path}: {error}; check the path and its permissions")]
    CaFile {
        /// The file.
        path: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// The HTTP client cannot be made.
    #[error("could not set up the http client for the source: {0}; check source.ca_file and source.headers")]
    Client(String),
}

/// The source of truth. Cheap to clone; all clones share its limits.
#[derive(Debug, Clone)]
pub struct Source(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    way: Way,
    /// One for each request that may be under way.
    permits: Semaphore,
    max_in_flight: usize,
    batch: usize,
    max_bytes: usize,
    name: String,
    /// Of a document that exists; always there for a web server.
    probe_id: Option<DocId>,
    gone: GoneGuard,
}

#[derive(Debug)]
enum Way {
    Http(Http),
    Postgres(Postgres),
}

impl Source {
    /// The configured source. Nothing is dialled yet: a source that is down is no reason not to begin.
    ///
    /// # Errors
    /// If the configuration names none, or cannot be used.
    pub fn open(config: &Config) -> Result<Self, OpenError> {
        let source = &config.source;
        let kind = source.kind.ok_or(OpenError::None)?;
        let url = source.url.as_ref().ok_or(OpenError::Incomplete)?;
        let max_document = config.documents.max_bytes.as_usize();
        let (way, batch) = match (kind, url) {
            (SourceKind::Http, SourceUrl::Http(template)) => {
                (Way::Http(Http::new(source, template.clone(), max_document)?), 1)
            }
            (SourceKind::Postgresql, SourceUrl::Postgres(url)) => {
                let way = Postgres::new(source, url, max_document).ok_or(OpenError::Incomplete)?;
                (Way::Postgres(way), source.batch.max(1))
            }
            _ => return Err(OpenError::Incomplete),
        };
        let probe_id = source.probe_id.as_ref().map(|id| DocId::from_key(Some(id.as_bytes())));
        let probe_id = probe_id.transpose().map_err(|_| OpenError::Incomplete)?;
        if probe_id.is_none() && kind == SourceKind::Http {
            return Err(OpenError::Incomplete);
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

    /// Where it is, without secrets.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// How many ids go with one request.
    pub fn batch(&self) -> usize {
        self.0.batch
    }

    /// How many requests may be under way.
    pub fn max_in_flight(&self) -> usize {
        self.0.max_in_flight
    }

    /// Bytes of answers that may be held.
    pub fn max_bytes(&self) -> usize {
        self.0.max_bytes
    }

    /// What the source says of each id, in their order. It asks once, with as many requests as it takes, side by side within
    /// [`Source::max_in_flight`], and tries nothing again. All answers are held at once: who asks for many, asks in parts.
    pub async fn fetch(&self, ids: &[DocId]) -> Vec<Answer> {
        let parts: Vec<_> = ids.chunks(self.0.batch).map(|ids| self.request(ids).boxed()).collect();
        let answers: Vec<Vec<Answer>> = stream::iter(parts).buffered(self.0.max_in_flight).collect().await;
        answers.into_iter().flatten().collect()
    }

    /// Asks for the configured id, which should be there, or for one that should not: whether the source answers at all.
    ///
    /// # Errors
    /// If it does not, with what to do.
    pub async fn probe(&self) -> Result<Answer, Failure> {
        let Ok(_permit) = self.0.permits.acquire().await else { return Err(Failure::new(CLOSED)) };
        let unlikely = DocId::from_key(Some(UNLIKELY_ID.as_bytes())).ok();
        match self.0.probe_id.as_ref().or(unlikely.as_ref()) {
            Some(id) => match self.ask_for(id).await {
                Answer::Failed(failure) => Err(failure),
                answer => Ok(answer),
            },
            None => Err(Failure::new("there is no id to ask for")),
        }
    }

    /// Whether the source has a document even for an id that should not exist.
    pub async fn has_everything(&self) -> bool {
        let Ok(_permit) = self.0.permits.acquire().await else { return false };
        match DocId::from_key(Some(UNLIKELY_ID.as_bytes())) {
            Ok(id) => matches!(self.ask_for(&id).await, Answer::Found(_)),
            Err(_) => false,
        }
    }

    /// One document. The caller holds a permit.
    async fn ask_for(&self, id: &DocId) -> Answer {
        let answer = match &self.0.way {
            Way::Http(http) => Some(http.get(id).await),
            Way::Postgres(postgres) => postgres.select(std::slice::from_ref(id)).await.pop(),
        };
        answer.unwrap_or_else(|| Answer::Failed(Failure::new("the source gave no answer")))
    }

    async fn request(&self, ids: &[DocId]) -> Vec<Answer> {
        let Ok(_permit) = self.0.permits.acquire().await else {
            return vec![Answer::Failed(Failure::new(CLOSED)); ids.len()];
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
