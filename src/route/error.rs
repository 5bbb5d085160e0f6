//! Why there is no answer, in Elasticsearch's shape.

use bytes::Bytes;
use serde_json::{Value, json};

/// A request that is not answered with hits.
#[derive(Debug, Clone, PartialEq)]
pub enum SearchFailure {
    /// The router says so.
    Own(RouterRefusal),
    /// Elasticsearch said so; its answer is passed on as it is.
    Upstream {
        /// HTTP status.
        status: u16,
        /// Seconds of its `Retry-After` header.
        retry_after: Option<u64>,
        /// The body.
        body: Bytes,
    },
}

/// What the router itself answers with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouterRefusal {
    /// HTTP status.
    pub status: u16,
    /// `error.type`.
    pub kind: &'static str,
    /// `error.reason`: what is wrong and what to do.
    pub reason: String,
}

/// Bytes of a client's words that are quoted in an error.
const QUOTED: usize = 100;

impl RouterRefusal {
    /// A request that cannot be carried out as it is.
    pub fn bad(reason: impl Into<String>) -> Self {
        Self { status: 400, kind: "illegal_argument_exception", reason: reason.into() }
    }

    /// A request that is no JSON, or has a member of the wrong type.
    pub fn parsing(reason: impl Into<String>) -> Self {
        Self { status: 400, kind: "parsing_exception", reason: reason.into() }
    }

    /// A feature of Elasticsearch that the router cannot merge exactly.
    pub fn unsupported(feature: &str, why: &str) -> Self {
        let reason = format!("geofold route does not support [{}]: {why}", quoted(feature));
        Self { status: 400, kind: "unsupported_operation_exception", reason }
    }

    /// No more requests at once.
    pub fn busy(reason: impl Into<String>) -> Self {
        Self { status: 429, kind: "es_rejected_execution_exception", reason: reason.into() }
    }

    /// It is not known what to ask, or who.
    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self { status: 503, kind: "service_unavailable_exception", reason: reason.into() }
    }

    /// No answer in time.
    pub fn timeout(reason: impl Into<String>) -> Self {
        Self { status: 504, kind: "timeout_exception", reason: reason.into() }
    }

    /// The body of the answer.
    pub fn body(&self) -> Value {
        let cause = json!({"type": self.kind, "reason": self.reason});
        json!({"error": {"root_cause": [cause], "type": self.kind, "reason": self.reason}, "status": self.status})
    }
}

impl From<RouterRefusal> for SearchFailure {
    fn from(refusal: RouterRefusal) -> Self {
        Self::Own(refusal)
    }
}

impl SearchFailure {
    /// HTTP status of the answer.
    pub fn status(&self) -> u16 {
        match self {
            Self::Own(refusal) => refusal.status,
            Self::Upstream { status, .. } => *status,
        }
    }

    /// After how many seconds to ask again.
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Own(refusal) => matches!(refusal.status, 429 | 503).then_some(1),
            Self::Upstream { retry_after, .. } => *retry_after,
        }
    }

    /// The body of the answer.
    pub fn body(&self) -> Bytes {
        match self {
            Self::Own(refusal) => refusal.body().to_string().into(),
            Self::Upstream { body, .. } => body.clone(),
        }
    }
}

/// So much of a client's text that it can be recognized.
pub fn quoted(text: &str) -> &str {
    let mut end = text.len().min(QUOTED);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
