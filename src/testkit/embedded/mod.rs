//! Servers that run inside the process: for the demo and for fast tests, never for production.

pub mod broker;
pub mod elasticsearch;
