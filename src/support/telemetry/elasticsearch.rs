//! Requests to Elasticsearch: their metrics, and what observes them.

use std::sync::Arc;
use std::time::Duration;

use prometheus::{Counter, IntCounterVec, IntGauge, Result};

use super::events::{CredentialsRefused, IndexRefuses};
use super::families::{Counters, Gauges, Histograms, Label, Register, label};
use super::health::Health;
use super::metrics::{Metrics, Success, TIME_BUCKETS, level};
use crate::base::requests::{Index, ItemError, NodesObserver, RequestKind, RoundsObserver, ServerObserver};

label! {
    /// A request on the hot path.
    RequestLabel {
        /// Reads documents.
        Mget => "mget",
        /// Writes documents.
        Bulk => "bulk",
    }
}

label! {
    /// Whether a node of Elasticsearch answered last.
    NodeState {
        /// It answers, or was not used yet.
        Up => "up",
        /// It did not, and is passed over while others do.
        Down => "down",
    }
}

/// Requests to Elasticsearch, and what they wait for.
#[derive(Debug)]
pub struct ElasticsearchMetrics {
    /// Requests sent, by kind and how they went.
    pub(super) requests: IntCounterVec,
    /// Operations sent again, by reason.
    pub(super) retries: IntCounterVec,
    /// Time of one request to Elasticsearch, from sending to the decoded answer.
    pub request_seconds: Histograms<RequestLabel>,
    /// Operations sent, each time they are sent.
    pub operations: Counters<RequestLabel>,
    /// Bytes of request bodies sent.
    pub bytes: Counters<RequestLabel>,
    /// The configured nodes, by whether they answer.
    pub nodes: Gauges<NodeState>,
    /// Indices that refuse every document.
    pub refusing_indices: IntGauge,
    /// Maximum concurrent requests.
    pub permits: IntGauge,
    /// Requests under way, with those that wait to be sent again.
    pub permits_in_use: IntGauge,
    /// Requests that wait for a permit or for their next attempt.
    pub requests_waiting: IntGauge,
    /// Time that requests waited for the ceiling of operations.
    pub throttled_seconds: Counter,
}

impl ElasticsearchMetrics {
    pub(super) fn new(r: &mut Register) -> Result<Self> {
        let metrics = Self {
            requests: r.counter_vec(
                "geofold_elasticsearch_requests_total",
                "Requests sent to Elasticsearch, every attempt.",
                &["kind", "result"],
            )?,
            retries: r.by_reason(
                "geofold_elasticsearch_retries_total",
                "Retried operations, by reason.",
                &["429", "503", "connection", "timeout"],
            )?,
            request_seconds: r.histograms(
                "geofold_elasticsearch_request_seconds",
                "Duration of an Elasticsearch request.",
                "kind",
                &TIME_BUCKETS,
            )?,
            operations: r.counters(
                "geofold_elasticsearch_operations_total",
                "Operations sent to Elasticsearch, every attempt.",
                "kind",
            )?,
            bytes: r.counters(
                "geofold_elasticsearch_bytes_total",
                "Request body bytes sent to Elasticsearch, uncompressed.",
                "kind",
            )?,
            nodes: r.gauges(
                "geofold_elasticsearch_nodes",
                "Nodes of elasticsearch.urls, by state.",
                "state",
            )?,
            refusing_indices: r.gauge("geofold_refusing_indices", "Indices that refuse every document.")?,
            permits: r
                .gauge("geofold_elasticsearch_permits", "Permits for concurrent Elasticsearch requests.")?,
            permits_in_use: r.gauge(
                "geofold_elasticsearch_permits_in_use",
                "Elasticsearch requests in flight or waiting for a retry.",
            )?,
            requests_waiting: r.gauge(
                "geofold_elasticsearch_requests_waiting",
                "Elasticsearch requests waiting for a permit or a retry.",
            )?,
            throttled_seconds: r.float_counter(
                "geofold_elasticsearch_throttled_seconds_total",
                "Time that requests waited for elasticsearch.max_operations_per_second, summed.",
            )?,
        };
        for kind in RequestLabel::ALL {
            for result in Success::ALL {
                metrics.requests.with_label_values(&[kind.as_str(), result.as_str()]);
            }
        }
        Ok(metrics)
    }

    /// One attempt of a request came to its end.
    pub fn request(&self, kind: RequestLabel, result: Success, took: Duration) {
        self.requests.with_label_values(&[kind.as_str(), result.as_str()]).inc();
        self.request_seconds.of(kind).observe(took.as_secs_f64());
    }

    /// `items` operations will be sent again.
    pub fn retry(&self, reason: &'static str, items: u64) {
        self.retries.with_label_values(&[reason]).inc_by(items);
    }
}

impl RoundsObserver for Metrics {
    fn request(&self, kind: RequestKind, items: usize, bytes: usize, took: Duration, ok: bool) {
        let kind = match kind {
            RequestKind::Mget => RequestLabel::Mget,
            RequestKind::Bulk => RequestLabel::Bulk,
        };
        self.elasticsearch.request(kind, if ok { Success::Ok } else { Success::Failed }, took);
        self.elasticsearch.operations.of(kind).inc_by(items as u64);
        self.elasticsearch.bytes.of(kind).inc_by(bytes as u64);
    }

    fn answered(&self, _: RequestKind, _: usize, _: usize, _: Duration, _: bool) {}

    fn retry(&self, label: &'static str, items: usize) {
        self.elasticsearch.retry(label, items as u64);
    }

    fn waiting(&self, delta: i64) {
        self.elasticsearch.requests_waiting.add(delta);
    }

    fn throttled(&self, waited: Duration) {
        self.elasticsearch.throttled_seconds.inc_by(waited.as_secs_f64());
    }
}

/// Reports Elasticsearch's state in log, metrics and readiness.
pub struct ServerEvents {
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Readiness.
    pub health: Arc<Health>,
}

impl ServerObserver for ServerEvents {
    fn credentials_refused(&self, reason: Option<&str>) {
        match reason {
            Some(reason) => self.health.not_ready("elasticsearch", reason),
            None => self.health.ready("elasticsearch"),
        }
        CredentialsRefused { reason }.emit();
    }

    fn index_at_fault(&self, index: &Index, error: Option<&ItemError>) {
        let part = format!("index {}", index.suffix());
        match error {
            // Without the reason, which may quote a document.
            Some(error) => self.health.not_ready(part, format!("it refuses every document ({})", error.kind)),
            None => self.health.ready(&part),
        }
        IndexRefuses { index, error }.emit(&self.metrics);
    }
}

impl NodesObserver for Metrics {
    fn nodes(&self, up: usize, down: usize) {
        self.elasticsearch.nodes.of(NodeState::Up).set(level(up));
        self.elasticsearch.nodes.of(NodeState::Down).set(level(down));
    }
}
