//! How long until a write is found, at loads that all racers can do: the peer and geofold with geoshards that Elasticsearch refreshes by
//! itself every second, and geofold with a refresh job instead.

use std::fmt::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::Options;
use crate::documents::Crowd;
use crate::field::{binary, configure, fresh_name, refresh_every};
use crate::peer::Peer;
use crate::probe::{Reach, Sender, probe_under_load};
use crate::process::Worker;
use crate::topic;

/// Numbers of geoshards.
const GEOSHARDS: [usize; 2] = [8, 55];

/// Records per second.
const LOADS: [u32; 2] = [1_000, 4_000];

/// Who writes documents over and over.
const PEOPLE: usize = 20_000;

/// Concurrent probers.
const PROBERS: u64 = 8;

/// What is left of one load is done before the next begins.
const PAUSE: Duration = Duration::from_secs(3);

/// Who makes writes be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Racer {
    /// The peer writes, and Elasticsearch refreshes every second.
    Peer,
    /// geofold writes, and Elasticsearch refreshes every second.
    Geofold,
    /// geofold writes, and a job of it refreshes.
    Job,
}

/// What was measured of one racer at one load.
#[derive(Debug, Clone, Copy)]
pub struct Freshness {
    geoshards: usize,
    load: u32,
    racer: Racer,
    reach: Reach,
    /// Milliseconds in which as many refreshes were done as there are geoshards.
    round: f64,
}

/// See the top of this file.
pub fn measure(options: &Options) -> Result<Vec<Freshness>> {
    // An Elasticsearch that has just started is several times slower, at the expense of the first racer.
    measure_with(options, GEOSHARDS[0], &mut Vec::new())?;
    let mut measured = Vec::new();
    for geoshards in GEOSHARDS {
        measure_with(options, geoshards, &mut measured)?;
    }
    Ok(measured)
}

/// All racers at all loads.
fn measure_with(options: &Options, geoshards: usize, measured: &mut Vec<Freshness>) -> Result<()> {
    let options = Options { geoshards: Some(geoshards), documents: PEOPLE, ..options.clone() };
    if let Some(binary) = &options.peer {
        let peer = Peer::prepare(&options, binary)?;
        let sender = Sender::new(&options.kafka, peer.name(), Some(peer.name()))?;
        let name = peer.name().to_owned();
        race(&options, geoshards, Racer::Peer, &name, &sender, measured)?;
        drop(peer);
        remove(&options.elasticsearch, &name)?;
    }
    for racer in [Racer::Geofold, Racer::Job] {
        let name = fresh_name("freshness")?;
        topic::make(&options.kafka, &name, options.partitions)?;
        let interval = &options.refresh_interval;
        let job = format!(
            "[[distribution.jobs]]\nname = \"searchable\"\nkind = \"refresh\"\ninterval = {interval:?}\n"
        );
        let dir = tempfile::tempdir()?;
        let more = if racer == Racer::Job { job.as_str() } else { "" };
        configure(&options, dir.path(), &name, &options.elasticsearch, more)?;
        let sender = Sender::new(&options.kafka, &name, None)?;
        let mut worker = Worker::start(&binary(&options)?, dir.path(), options.partitions)?;
        for event in Crowd::new(options.map()?, "person", PEOPLE)?.documents(0) {
            sender.send(&event)?;
        }
        sender.wait_until_done(&mut worker)?;
        race(&options, geoshards, racer, &name, &sender, measured)?;
        drop(worker);
        remove(&options.elasticsearch, &name)?;
    }
    Ok(())
}

/// All loads of a racer that has written everybody's first document.
fn race(
    options: &Options,
    geoshards: usize,
    racer: Racer,
    name: &str,
    sender: &Sender,
    measured: &mut Vec<Freshness>,
) -> Result<()> {
    let indices = format!("{}/{name}-", options.elasticsearch);
    refresh_every(&indices, if racer == Racer::Job { "-1" } else { "1s" })?;
    let mut crowd = Crowd::new(options.map()?, "person", PEOPLE)?;
    for (round, load) in (0_u64..).zip(LOADS) {
        let events = crowd.documents(1);
        thread::sleep(PAUSE);
        let (began, before) = (Instant::now(), refreshes(&indices)?);
        let until = began + Duration::from_secs(options.latency_seconds);
        let seed = round * PROBERS;
        let reach = probe_under_load(sender, &indices, &events, load.into(), until, seed..seed + PROBERS)?;
        let (milliseconds, done) = (began.elapsed().as_secs_f64() * 1e3, refreshes(&indices)? - before);
        #[expect(clippy::cast_precision_loss, reason = "counts of refreshes and geoshards")]
        let round = milliseconds * geoshards as f64 / done.max(1) as f64;
        let freshness = Freshness { geoshards, load, racer, reach, round };
        eprintln!("freshness: {freshness:?}");
        measured.push(freshness);
    }
    Ok(())
}

/// Who comes next has the server to itself.
fn remove(server: &str, name: &str) -> Result<()> {
    let pattern = format!("{name}-");
    let listed = reqwest::blocking::get(format!("{server}/_resolve/index/{pattern}*"))?.error_for_status()?;
    let listed: Value = listed.json()?;
    let listed = listed["indices"].as_array().context("a list of indices")?;
    let names: Vec<&str> = listed.iter().filter_map(|index| index["name"].as_str()).collect();
    for some in names.chunks(20) {
        let address = format!("{server}/{}", some.join(","));
        reqwest::blocking::Client::new().delete(address).send()?.error_for_status()?;
    }
    Ok(())
}

/// Refreshes that made something visible, in all geoshards.
fn refreshes(indices: &str) -> Result<u64> {
    let answer = reqwest::blocking::get(format!("{indices}s*/_stats/refresh"))?.error_for_status()?;
    let answer: Value = answer.json()?;
    answer["_all"]["primaries"]["refresh"]["external_total"].as_u64().context("a number of refreshes")
}

/// What was measured, as Markdown; nothing if it was not.
pub fn table(measured: &[Freshness]) -> String {
    if measured.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "\nFrom a record's sending to its document being found, at fixed loads:\n\n\
         | geoshards | records/s | racer | probes | half within, ms | 99 % within, ms | as many refreshes as geoshards, ms | 99 % in ratio to that |\n\
         |---:|---:|---|---:|---:|---:|---:|---:|\n",
    );
    for Freshness { geoshards, load, racer, reach: Reach { probes, p50, p99 }, round } in measured {
        let racer = match racer {
            Racer::Peer => "peer, refresh_interval 1s",
            Racer::Geofold => "geofold, refresh_interval 1s",
            Racer::Job => "geofold, refresh job",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {geoshards} | {load} | {racer} | {probes} | {p50:.0} | {p99:.0} | {round:.0} | {:.2} |",
            p99 / round
        );
    }
    text
}
