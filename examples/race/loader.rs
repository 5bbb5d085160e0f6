//! The other racer: a raw `_bulk` loader that is fed from memory.
//!
//! It does what can be done least for the same documents in the same indices: the requests are encoded before the clock
//! starts, four connections send them, and of each answer it only looks whether anything failed.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use geofold::elastic::{BulkOp, Guard, Index, encode};
use geofold::position::Position;
use reqwest::blocking::Client;

use crate::documents::Crowd;

/// The setting that loads fastest: with more or fewer connections, or larger or smaller requests, it is slower.
const CONNECTIONS: usize = 4;
const OPERATIONS: usize = 2000;

/// Requests for everybody in `order`, one version above what their documents have, which `versions` then has too.
pub fn encode(
    crowd: &Crowd,
    order: &[usize],
    step: u32,
    prefix: &str,
    versions: &mut [Position],
) -> Vec<Bytes> {
    let requests = order.chunks(OPERATIONS).map(|numbers| {
        let operations: Vec<BulkOp> = numbers
            .iter()
            .map(|&number| {
                let person = &crowd.people[number];
                versions[number] = Position::from_version(versions[number].version() + 1);
                BulkOp::Index {
                    index: Index::Geoshard(person.shard.clone()),
                    id: person.id.clone(),
                    guard: Guard::External(versions[number]),
                    source: Bytes::from(person.document(step)),
                }
            })
            .collect();
        encode::bulk_body(&operations, prefix)
    });
    requests.collect()
}

/// Sends all requests; gives the time from the first one sent to the last one answered.
pub fn run(elasticsearch: &str, requests: Vec<Bytes>) -> Result<Duration> {
    let url = format!("{elasticsearch}/_bulk?filter_path=errors");
    let clients = (0..CONNECTIONS)
        .map(|_| Client::builder().timeout(Duration::from_secs(120)).build())
        .collect::<Result<Vec<_>, _>>()?;
    let waiting = Mutex::new(requests);
    let next = || waiting.lock().ok()?.pop();
    let load = |client: Client| -> Result<()> {
        while let Some(request) = next() {
            let response = client
                .post(&url)
                .header("content-type", "application/x-ndjson")
                .body(request)
                .send()
                .context("sending a bulk request")?;
            let answer = response.text()?;
            if answer != r#"{"errors":false}"# {
                bail!("a bulk request of the raw loader failed: {answer}");
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
