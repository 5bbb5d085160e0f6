//! Refeed: documents fetched again by their id, from the source of truth (docs/refeed.md).
//!
//! [`Source`] is the fetch alone: it asks once, tells of each id what came of it, and never tries again. A [`Feeder`] is what
//! a worker has around it: batches, tries again, leaves a source that fails alone for a while, and bounds what is held.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the source, whichever kind it is; what it may answer |
//! | `http.rs` | one GET for each document |
//! | `postgres.rs` | many documents with one query |
//! | `feeder.rs` | a worker's questions, and their answers |
//! | `breaker.rs` | when a source that fails is left alone (pure) |
//! | `held.rs` | how many bytes of answers are held |

mod breaker;
mod feeder;
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
pub use self::feeder::{Answered, Feeder, Question, Surroundings};
pub use self::held::Held;
use self::http::Http;
use self::postgres::Postgres;
use crate::config::{Config, SourceKind, SourceUrl};
use crate::ids::DocId;

/// The id that a probe asks for, if none is configured: no document should have it.
pub(crate) const UNLIKELY_ID: &str = "geofold-check-there-is-no-such-document";

/// What the source of truth says of one document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It is there: the bytes as they came, which may be anything.
    Found(Bytes),
    /// There is no such document.
    Gone,
    /// The source can not give the document in a form that geofold could use, now or later, or refuses to.
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

/// Why a source can not be used at all: the configuration.
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
    /// The certificates can not be read.
    #[error("reading source.ca_file {path}: {error}; check the path and its permissions")]
    CaFile {
        /// The file.
        path: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// The HTTP client can not be made.
    #[error("the http client for the source can not be set up: {0}; check source.ca_file and source.headers")]
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
    probe_id: DocId,
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
    /// If the configuration names none, or can not be used.
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
        let probe_id = source.probe_id.as_deref().unwrap_or(UNLIKELY_ID);
        let probe_id = DocId::from_key(Some(probe_id.as_bytes())).map_err(|_| OpenError::Incomplete)?;
        let max_in_flight = source.max_in_flight.max(1);
        let permits = Semaphore::new(max_in_flight);
        let (max_bytes, name) = (source.max_bytes.as_usize(), url.to_string());
        Ok(Self(Arc::new(Inner { way, permits, max_in_flight, batch, max_bytes, name, probe_id })))
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

    /// Asks for the configured id, or for one that should not be there: whether the source answers at all.
    ///
    /// # Errors
    /// If it does not, with what to do.
    pub async fn probe(&self) -> Result<Answer, Failure> {
        match self.fetch(std::slice::from_ref(&self.0.probe_id)).await.pop() {
            Some(Answer::Failed(failure)) => Err(failure),
            Some(answer) => Ok(answer),
            None => Err(Failure::new("the source gave no answer")),
        }
    }

    async fn request(&self, ids: &[DocId]) -> Vec<Answer> {
        let Ok(_permit) = self.0.permits.acquire().await else {
            return vec![Answer::Failed(Failure::new("the source was closed")); ids.len()];
        };
        match &self.0.way {
            Way::Http(http) => {
                let mut answers = Vec::with_capacity(ids.len());
                for id in ids {
                    answers.push(http.get(id).await);
                }
                answers
            }
            Way::Postgres(postgres) => postgres.select(ids).await,
        }
    }
}

/// An error with all of its causes, on one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
