//! What every process needs: configuration, metrics, events, logs, traces, background tasks; and TLS of a listener.
//!
//! It imports `core` and below.

pub mod config;
pub mod supervisor;
pub mod telemetry;
pub mod tls;
