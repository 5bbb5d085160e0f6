//! The metrics of refeeds, as a worker has them.

use prometheus::{Histogram, IntGauge, Result};

use super::families::{Counters, Register, label};

label! {
    /// Result of a fetch from the source of truth.
    Asked {
        /// It has it.
        Found => "found",
        /// Not found.
        Gone => "gone",
        /// The document cannot be placed.
        Unusable => "unusable",
        /// No response; retried.
        Failed => "failed",
    }
}

/// Seconds of a request to the source.
const TIME_BUCKETS: [f64; 11] = [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// Requests to the source of truth.
#[derive(Debug)]
pub struct RefeedMetrics {
    /// Fetched documents by result; a failed one counts with each attempt.
    pub answers: Counters<Asked>,
    /// Documents waiting to be fetched.
    pub waiting: IntGauge,
    /// Requests under way.
    pub requests_in_flight: IntGauge,
    /// Bytes of fetched documents that are not written yet.
    pub held_bytes: IntGauge,
    /// Whether the source is left alone, after it failed.
    pub breaker_open: IntGauge,
    /// Time of one request.
    pub request_seconds: Histogram,
}

impl RefeedMetrics {
    pub(super) fn new(r: &mut Register) -> Result<Self> {
        Ok(Self {
            answers: r.counters(
                "geofold_refeed_answers_total",
                "Documents requested from the source of truth, every attempt.",
                "result",
            )?,
            waiting: r.gauge(
                "geofold_refeed_waiting",
                "Documents waiting to be requested from the source of truth.",
            )?,
            requests_in_flight: r
                .gauge("geofold_refeed_requests_in_flight", "Requests to the source of truth in flight.")?,
            held_bytes: r
                .gauge("geofold_refeed_held_bytes", "Held bytes of fetched documents not yet written.")?,
            breaker_open: r.gauge(
                "geofold_refeed_breaker_open",
                "1 while requests to a failing source are suspended.",
            )?,
            request_seconds: r.histogram(
                "geofold_refeed_request_seconds",
                "Duration of a request to the source of truth.",
                &TIME_BUCKETS,
            )?,
        })
    }
}
