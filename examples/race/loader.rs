//! The other racer: a loader that is fed from memory.
//!
//! It does the least that writes the same documents into the same indices: one operation each, without versions, which keeps no
//! order and survives no crash. Its requests are encoded before the clock starts, four connections send them, and of each answer
//! it only looks whether anything failed.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use geofold::base::ids::ShardId;
use reqwest::StatusCode;
use reqwest::blocking::Client;

use crate::documents::Event;

/// As many as a worker has requests in flight, by default.
const CONNECTIONS: usize = 4;

const BULK: &str = "/_bulk?filter_path=errors";
const DONE: &str = r#"{"errors":false}"#;

/// The bodies of requests with so many operations: each document, and with `from`, which says where each was by number, a delete
/// there.
pub fn requests(events: &[Event], from: Option<&[ShardId]>, operations: usize, prefix: &str) -> Vec<Bytes> {
    let body = |events: &[Event]| {
        let mut body = String::new();
        // Writing to a String cannot fail. Neither name needs escaping.
        for Event { number, id, shard, value, .. } in events {
            let (id, document) = (id.as_str(), value.as_deref().unwrap_or_default());
            let _ = writeln!(body, r#"{{"index":{{"_index":"{prefix}-{shard}","_id":"{id}"}}}}"#);
            let _ = writeln!(body, "{document}");
            if let Some(from) = from {
                let from = &from[*number];
                let _ = writeln!(body, r#"{{"delete":{{"_index":"{prefix}-{from}","_id":"{id}"}}}}"#);
            }
        }
        body.into()
    };
    let of_one = if from.is_some() { 2 } else { 1 };
    events.chunks((operations / of_one).max(1)).map(body).collect()
}

/// Sends all requests; gives the time from the first one sent to the last one answered.
pub fn run(elasticsearch: &str, requests: Vec<Bytes>) -> Result<Duration> {
    let clients = (0..CONNECTIONS)
        .map(|_| Client::builder().timeout(Duration::from_secs(120)).build())
        .collect::<Result<Vec<_>, _>>()?;
    let waiting = Mutex::new(requests);
    let next = || waiting.lock().ok()?.pop();
    let load = |client: Client| -> Result<()> {
        while let Some(request) = next() {
            send(&client, elasticsearch, &request)?;
        }
        Ok(())
    };
    let began = Instant::now();
    std::thread::scope(|scope| {
        let running: Vec<_> = clients.into_iter().map(|client| scope.spawn(|| load(client))).collect();
        running.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => bail!("a connection of the loader panicked"),
        })
    })?;
    Ok(began.elapsed())
}

/// Sends a request, again if Elasticsearch has no room for it now, and checks the answer.
fn send(client: &Client, elasticsearch: &str, body: &Bytes) -> Result<()> {
    const PAUSE: Duration = Duration::from_millis(100);
    /// Elasticsearch answers 429 also to a request that it will never have room for.
    const PATIENCE: Duration = Duration::from_secs(60);
    let began = Instant::now();
    let text = loop {
        let request =
            client.post(format!("{elasticsearch}{BULK}")).header("content-type", "application/x-ndjson");
        let response = request.body(body.clone()).send().context("a request of the loader")?;
        if response.status() != StatusCode::TOO_MANY_REQUESTS || began.elapsed() > PATIENCE {
            break response.error_for_status()?.text()?;
        }
        std::thread::sleep(PAUSE);
    };
    if text != DONE {
        bail!("a bulk request of the loader failed: {text}");
    }
    Ok(())
}
