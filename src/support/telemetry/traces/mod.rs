//! Traces for OpenTelemetry, with the feature `otel`: a span for each record that brings a trace context, one for each batch
//! with links to the records' spans, and below it one for each request to Elasticsearch.
//!
//! | file | what it holds |
//! |---|---|
//! | `exporter.rs` | where spans go, by the `OTEL_…` variables, and which are sampled |
//! | `spans/` | the spans of one partition |
//! | `off.rs` | the same without the feature: nothing, at no cost |
//!
//! Not by way of `tracing`: its spans would be filtered by the log's filter, and show in log lines. Without a configured
//! endpoint no header is looked at.

#[cfg(feature = "otel")]
mod exporter;
#[cfg(not(feature = "otel"))]
mod off;
#[cfg(feature = "otel")]
mod spans;

use thiserror::Error;

#[cfg(feature = "otel")]
pub use self::exporter::Traces;
#[cfg(not(feature = "otel"))]
pub use self::off::{PartitionTraces, Traces};
#[cfg(feature = "otel")]
pub use self::spans::PartitionTraces;

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
