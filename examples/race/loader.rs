//! The other racer: a raw `_bulk` loader that is fed from memory.
//!
//! It does what can be done least for the same documents in the same indices, with the same operations that geofold needs for
//! them: the requests are encoded before the clock starts, four connections send them, and of each answer it only looks
//! whether anything failed. Or less: plain operations for documents of its own, which keep no order and survive no crash.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use geofold::base::ids::ShardId;
use geofold::base::position::Position;
use geofold::core::placement::Placement;
use geofold::io::elastic::{BulkOp, Get, Index, WriteCondition, encode};
use reqwest::StatusCode;
use reqwest::blocking::Client;

use crate::documents::Event;

/// As many as a worker has requests in flight, by default.
const CONNECTIONS: usize = 4;

/// Requests that one connection sends one after the other, and the answer that each must have.
pub struct Errand(Vec<Request>);

struct Request {
    path: &'static str,
    body: Bytes,
    answer: Option<&'static str>,
}

const BULK: &str = "/_bulk?filter_path=errors";

fn bulk(operations: &[BulkOp], prefix: &str) -> Request {
    Request { path: BULK, body: encode::bulk_body(operations, prefix), answer: Some(r#"{"errors":false}"#) }
}

fn document(event: &Event, guard: WriteCondition) -> BulkOp {
    BulkOp::Index {
        index: Index::Geoshard(event.shard.clone()),
        id: event.id.clone(),
        guard,
        source: Bytes::from(event.value.clone().unwrap_or_default()),
    }
}

/// What geofold does with documents in place: each document, one version above what it has, which `versions` then has too;
/// with `cold`, after a look at the placements. So many operations per request.
pub fn in_place(
    events: &[Event],
    operations: usize,
    prefix: &str,
    versions: &mut [Position],
    cold: bool,
) -> Vec<Errand> {
    let errand = |events: &[Event]| {
        let operations: Vec<BulkOp> = events
            .iter()
            .map(|event| {
                let version = &mut versions[event.number];
                *version = Position::from_version(version.version() + 1);
                document(event, WriteCondition::External(*version))
            })
            .collect();
        let gets: Vec<Get> =
            events.iter().map(|event| Get::realtime(Index::Placements, event.id.clone())).collect();
        let look = Request { path: encode::MGET_PATH, body: encode::mget_body(&gets, prefix), answer: None };
        Errand(cold.then_some(look).into_iter().chain([bulk(&operations, prefix)]).collect())
    };
    events.chunks(operations.max(1)).map(errand).collect()
}

/// What geofold does with documents that it does not know: a look at the placements, a placement for each, each document.
pub fn new(events: &[Event], operations: usize, prefix: &str) -> Vec<Errand> {
    let errand = |events: &[Event]| {
        let version = Position::from_version(1);
        let gets: Vec<Get> =
            events.iter().map(|event| Get::realtime(Index::Placements, event.id.clone())).collect();
        let look = Request { path: encode::MGET_PATH, body: encode::mget_body(&gets, prefix), answer: None };
        let placement = |event: &Event| BulkOp::Index {
            index: Index::Placements,
            id: event.id.clone(),
            guard: WriteCondition::Absent,
            source: Placement::new(version, Some(event.shard.clone()), []).stored(&event.id),
        };
        let placements: Vec<BulkOp> = events.iter().map(placement).collect();
        let documents: Vec<BulkOp> =
            events.iter().map(|event| document(event, WriteCondition::External(version))).collect();
        Errand(vec![look, bulk(&placements, prefix), bulk(&documents, prefix)])
    };
    events.chunks(operations.max(1)).map(errand).collect()
}

/// The least that writes documents, without versions; with `from`, which says where each was by number, also a delete there.
pub fn plain(events: &[Event], from: Option<&[ShardId]>, operations: usize, prefix: &str) -> Vec<Errand> {
    let errand = |events: &[Event]| {
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
        Errand(vec![Request { path: BULK, body: body.into(), answer: Some(r#"{"errors":false}"#) }])
    };
    let of_one = if from.is_some() { 2 } else { 1 };
    events.chunks((operations / of_one).max(1)).map(errand).collect()
}

/// Runs all errands; gives the time from the first request sent to the last one answered.
pub fn run(elasticsearch: &str, errands: Vec<Errand>) -> Result<Duration> {
    let clients = (0..CONNECTIONS)
        .map(|_| Client::builder().timeout(Duration::from_secs(120)).build())
        .collect::<Result<Vec<_>, _>>()?;
    let waiting = Mutex::new(errands);
    let next = || waiting.lock().ok()?.pop();
    let load = |client: Client| -> Result<()> {
        while let Some(Errand(requests)) = next() {
            for request in &requests {
                send(&client, elasticsearch, request)?;
            }
        }
        Ok(())
    };
    let began = Instant::now();
    std::thread::scope(|scope| {
        let running: Vec<_> = clients.into_iter().map(|client| scope.spawn(|| load(client))).collect();
        running.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => bail!("a connection of the raw loader panicked"),
        })
    })?;
    Ok(began.elapsed())
}

/// Sends a request, again if Elasticsearch has no room for it now, and checks the answer.
fn send(client: &Client, elasticsearch: &str, Request { path, body, answer }: &Request) -> Result<()> {
    const PAUSE: Duration = Duration::from_millis(100);
    /// Elasticsearch answers 429 also to a request that it will never have room for.
    const PATIENCE: Duration = Duration::from_secs(60);
    let began = Instant::now();
    let kind = if *path == BULK { "application/x-ndjson" } else { "application/json" };
    let text = loop {
        let request = client.post(format!("{elasticsearch}{path}")).header("content-type", kind);
        let response = request.body(body.clone()).send().context("a request of the raw loader")?;
        if response.status() != StatusCode::TOO_MANY_REQUESTS || began.elapsed() > PATIENCE {
            break response.error_for_status()?.text()?;
        }
        std::thread::sleep(PAUSE);
    };
    if answer.is_some_and(|answer| text != answer) {
        bail!("a bulk request of the raw loader failed: {text}");
    }
    Ok(())
}
