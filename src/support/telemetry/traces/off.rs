//! A build without the feature `otel`: no traces.

use std::sync::Arc;

use rdkafka::message::OwnedHeaders;
use reqwest::header::HeaderMap;

use crate::base::ids::DocId;
use crate::base::requests::RoundsObserver;
use crate::core::mover::{Entry, Settled};
use crate::support::telemetry::traces::{TracesError, context_of};

/// Nothing.
#[derive(Debug, Clone, Default)]
pub struct Traces(());

impl Traces {
    /// No traces: this build has none. Warns if a variable requests them.
    ///
    /// # Errors
    /// Never.
    pub fn from_env(_: &str, _: &str) -> Result<Self, TracesError> {
        for variable in ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] {
            if std::env::var_os(variable).is_some_and(|value| !value.is_empty()) {
                tracing::warn!("{variable} is set, but this build has no traces; build with --features otel");
            }
        }
        Ok(Self(()))
    }

    /// For a partition.
    pub fn partition(&self, _: i32) -> PartitionTraces {
        PartitionTraces
    }

    /// A request of a client: its context is passed on.
    pub fn request(&self, _: &'static str, headers: &HeaderMap) -> RequestTrace {
        RequestTrace(context_of(headers))
    }

    /// Nothing is left to send.
    pub async fn flush(self) {}
}

/// The client's context, as it came.
#[derive(Debug)]
pub struct RequestTrace(HeaderMap);

/// The same for one request to Elasticsearch.
#[derive(Debug)]
pub struct UpstreamTrace(HeaderMap);

impl RequestTrace {
    /// For a request to Elasticsearch.
    pub fn upstream(&self, _: &'static str) -> UpstreamTrace {
        UpstreamTrace(self.0.clone())
    }

    /// Does nothing.
    pub fn ended(&self, _: u16) {}
}

impl UpstreamTrace {
    /// The context for Elasticsearch.
    pub fn headers(&self) -> HeaderMap {
        self.0.clone()
    }

    /// Does nothing.
    pub fn ended(self, _: Option<u16>) {}
}

/// Nothing.
#[derive(Debug)]
pub struct PartitionTraces;

impl PartitionTraces {
    /// Does nothing.
    #[inline]
    pub fn note(&mut self, _: &DocId, _: Option<&OwnedHeaders>, _: i64) {}

    /// The same observer.
    #[inline]
    pub fn begin(&mut self, _: &[Entry], observer: Arc<dyn RoundsObserver>) -> Arc<dyn RoundsObserver> {
        observer
    }

    /// Does nothing.
    #[inline]
    pub fn end(&mut self, _: &[Settled]) {}
}
