//! Traces for OpenTelemetry, with the feature `otel`: a span for each record that brings a trace context, one for each batch
//! with links to the records' spans, and below it one for each request to Elasticsearch. In a router, one for each request of a
//! client, and below it one for each request to Elasticsearch.
//!
//! | file | what it holds |
//! |---|---|
//! | `exporter.rs` | where spans go, by the `OTEL_…` variables, and which are sampled |
//! | `spans/` | the spans of one partition |
//! | `request.rs` | the spans of one request to a router |
//! | `off.rs` | the same without the feature: nothing, at no cost |
//!
//! Not by way of `tracing`: its spans would be filtered by the log's filter, and show in log lines. Without a configured
//! endpoint no header of a record is looked at, and a router passes its client's trace context on as it is.

#[cfg(feature = "otel")]
mod exporter;
#[cfg(not(feature = "otel"))]
mod off;
#[cfg(feature = "otel")]
mod request;
#[cfg(feature = "otel")]
mod spans;

use reqwest::header::{HeaderMap, HeaderName};
use thiserror::Error;

#[cfg(feature = "otel")]
pub use self::exporter::Traces;
#[cfg(not(feature = "otel"))]
pub use self::off::{PartitionTraces, RequestTrace, Traces, UpstreamTrace};
#[cfg(feature = "otel")]
pub use self::request::{RequestTrace, UpstreamTrace};
#[cfg(feature = "otel")]
pub use self::spans::PartitionTraces;

/// W3C Trace Context.
const CONTEXT: [HeaderName; 2] =
    [HeaderName::from_static("traceparent"), HeaderName::from_static("tracestate")];
/// Longer headers are dropped; W3C requires this length.
const MAX_CONTEXT_BYTES: usize = 512;

/// The headers of the trace context. Without a parent there is no state.
fn context_of(headers: &HeaderMap) -> HeaderMap {
    let mut context = HeaderMap::new();
    for name in CONTEXT {
        let Some(value) = headers.get(&name).filter(|value| value.len() <= MAX_CONTEXT_BYTES) else { break };
        context.insert(name, value.clone());
    }
    context
}

/// Why spans cannot be exported as configured.
#[derive(Debug, Error)]
pub enum TracesError {
    /// Another exporter than there is.
    #[error("OTEL_TRACES_EXPORTER is {0:?}, but traces go by \"otlp\" only; set that, or \"none\"")]
    Exporter(String),
    /// Another protocol than there is.
    #[error("{variable} is {value:?}, but traces go by \"http/protobuf\" only; unset it")]
    Protocol {
        /// Where it was given.
        variable: &'static str,
        /// The given value.
        value: String,
    },
    /// A time that is none.
    #[error("{variable} is {value:?}, which is no number of milliseconds; write for example 10000")]
    Timeout {
        /// Where it was given.
        variable: &'static str,
        /// The given value.
        value: String,
    },
    /// The file with the authorities' certificates cannot be used.
    #[error("reading {path} (OTEL_EXPORTER_OTLP_CERTIFICATE): {reason}; name a PEM file")]
    Certificate {
        /// The file.
        path: String,
        /// The error.
        reason: String,
    },
    /// The exporter cannot be made.
    #[error(
        "could not set up the trace exporter: {0}; check the OTEL_… variables: an endpoint is written like \
         \"http://collector:4318\", with its scheme"
    )]
    Setup(String),
}
