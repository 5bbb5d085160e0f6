//! What every process needs: configuration, metrics, events, logs, traces, background tasks; TLS, and answers over HTTP.
//!
//! It imports `core` and below.

pub mod blocking;
pub mod config;
pub mod http;
pub mod supervisor;
pub mod telemetry;
pub mod tls;
