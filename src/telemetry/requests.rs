//! What the sender of rounds tells, as metrics.

use std::time::Duration;

use super::metrics::{Metrics, NodeState, RequestKind as Kind, Success, level};
use crate::elastic::nodes::NodesObserver;
use crate::elastic::rounds::{RequestKind, RoundsObserver};

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

    fn retry(&self, label: &'static str, items: usize) {
        self.elasticsearch_retry(label, items as u64);
    }

    fn waiting(&self, delta: i64) {
        self.elasticsearch_requests_waiting.add(delta);
    }
}

impl NodesObserver for Metrics {
    fn nodes(&self, up: usize, down: usize) {
        self.elasticsearch_nodes.of(NodeState::Up).set(level(up));
        self.elasticsearch_nodes.of(NodeState::Down).set(level(down));
    }
}
