//! The metrics of the schema registry, as a worker has them.

use prometheus::{IntGauge, Result};

use super::families::{Counters, Register, label};

label! {
    /// What the schema registry said of a schema.
    SchemaAnswer {
        /// It has it.
        Found => "found",
        /// It has no such schema.
        Unknown => "unknown",
        /// What it has is no schema that geofold can read by.
        Unusable => "unusable",
        /// Nothing; it is asked again.
        Failed => "failed",
    }
}

/// What a worker asks the schema registry, and what waits for it.
#[derive(Debug)]
pub struct SchemaMetrics {
    /// Schemas asked for, by what was said; one that failed counts with each attempt.
    pub answers: Counters<SchemaAnswer>,
    /// Partitions that wait for a schema.
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
