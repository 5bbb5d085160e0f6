//! The naive flow: one document after the other. Where is it? What does it say? Write it where it belongs, delete it where
//! it was, and note where it is now. It survives no crash and loses every race with another writer.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use reqwest::StatusCode;
use reqwest::blocking::{Client, Response};
use serde_json::{Value, json};

use crate::documents::Event;

/// Carries out all events; gives the time that they took.
pub fn run(elasticsearch: &str, prefix: &str, events: &[Event]) -> Result<Duration> {
    let http = Client::builder().timeout(Duration::from_secs(60)).build()?;
    let url = |index: &str, id: &str| format!("{elasticsearch}/{prefix}-{index}/_doc/{id}");
    let checked = |answer: Response| answer.error_for_status().context("a step of the naive flow");
    let began = Instant::now();
    for event in events {
        let (id, to) = (event.id.as_str(), event.shard.as_str());
        let placement = http.get(url("placements", id)).send()?;
        let from = match placement.status() {
            StatusCode::NOT_FOUND => None,
            _ => {
                let placement: Value = checked(placement)?.json()?;
                Some(placement["_source"]["shard"].as_str().context("a placement's shard")?.to_owned())
            }
        };
        if let Some(from) = &from {
            checked(http.get(url(from, id)).send()?)?.bytes()?;
        }
        let document = event.value.clone().unwrap_or_default();
        let written = http.put(url(to, id)).header("content-type", "application/json").body(document);
        checked(written.send()?)?.bytes()?;
        if let Some(from) = from.filter(|from| from != to) {
            checked(http.delete(url(&from, id)).send()?)?.bytes()?;
        }
        let placement = json!({"pos": 1, "shard": to});
        checked(http.put(url("placements", id)).json(&placement).send()?)?.bytes()?;
    }
    Ok(began.elapsed())
}
