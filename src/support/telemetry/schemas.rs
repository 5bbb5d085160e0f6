//! The metrics of the schema registry, as a worker has them.

use prometheus::{IntGauge, Result};

use super::families::{Counters, Register, label};

label! {
    /// Result of a schema fetch.
    SchemaAnswer {
        /// It has it.
        Found => "found",
        /// It has no such schema.
        Unknown => "unknown",
        /// Not usable by geofold.
        Unusable => "unusable",
        /// No response; retried.
        Failed => "failed",
    }
}

/// Requests to the schema registry.
#[derive(Debug)]
pub struct SchemaMetrics {
    /// Fetched schemas by result; a failed one counts with each attempt.
    pub answers: Counters<SchemaAnswer>,
    /// Partitions waiting for a schema.
    pub waiting: IntGauge,
}

impl SchemaMetrics {
    pub(super) fn new(r: &mut Register) -> Result<Self> {
        Ok(Self {
            answers: r.counters(
                "geofold_schema_answers_total",
                "Schemas requested from the registry, every attempt.",
                "result",
            )?,
            waiting: r.gauge("geofold_schema_waiting_partitions", "Partitions waiting for a schema.")?,
        })
    }
}
