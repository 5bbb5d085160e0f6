//! Metrics of the request sender.

use std::sync::Arc;
use std::time::Duration;

use super::events::{CredentialsRefused, IndexRefuses};
use super::metrics::{Metrics, NodeState, RequestLabel as Kind, Success, level};
use crate::base::requests::NodesObserver;
use crate::base::requests::{Index, ItemError};
use crate::base::requests::{RequestKind, RoundsObserver, ServerObserver};
use crate::support::telemetry::health::Health;

impl RoundsObserver for Metrics {
    fn request(&self, kind: RequestKind, items: usize, bytes: usize, took: Duration, ok: bool) {
        let kind = match kind {
            RequestKind::Mget => Kind::Mget,
            RequestKind::Bulk => Kind::Bulk,
        };
        self.elasticsearch_request(kind, if ok { Success::Ok } else { Success::Failed }, took);
        self.elasticsearch_operations.of(kind).inc_by(items as u64);
        self.elasticsearch_bytes.of(kind).inc_by(bytes as u64);
    }

    fn answered(&self, _: RequestKind, _: usize, _: usize, _: Duration, _: bool) {}

    fn retry(&self, label: &'static str, items: usize) {
        self.elasticsearch_retry(label, items as u64);
    }

    fn waiting(&self, delta: i64) {
        self.elasticsearch_requests_waiting.add(delta);
    }

    fn throttled(&self, waited: Duration) {
        self.elasticsearch_throttled_seconds.inc_by(waited.as_secs_f64());
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
        self.elasticsearch_nodes.of(NodeState::Up).set(level(up));
        self.elasticsearch_nodes.of(NodeState::Down).set(level(down));
    }
}
