//! Tests of the crate and of the binary from outside, in one program: each of them used to be linked by itself. They need no server
//! and no network; the servers are the embedded ones, on ports of their own, so that all of them run at once.
//!
//! A new test is a function of the module that it fits, or a new module here. Run those of one module with
//! `cargo test --features "$(dev/features)" --test it MODULE::`.
#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod aws;
mod balance;
mod collector;
mod compression;
mod configuration;
mod cover;
mod dashboards;
mod demo;
mod dirty_set_model;
mod distribution;
mod docs;
mod files;
mod formats;
mod fuzz;
mod hang_up;
mod ick_vectors;
mod layers;
mod locations;
mod messages;
mod migrate;
#[path = "../clients/mod.rs"]
mod official_clients;
mod operators;
mod packaging;
mod page;
mod quick_start;
mod race_rounds;
mod reload;
mod route;
mod route_clients;
mod run_after;
mod s2_vectors;
mod sample_map;
mod schema_registry;
mod shards_plan;
mod shards_show;
mod standins;
mod tables;
mod throttles;
mod tools;
#[cfg(feature = "otel")]
mod traces;
mod transcript;
#[path = "../wait.rs"]
mod wait;
