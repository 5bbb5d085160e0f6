//! How long until a write is found: from the moment when its record is sent to the moment when a search finds it, while a
//! worker is half as busy as it can be and refreshes what it wrote (`distribution`, docs/distribution.md).

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use serde_json::{Value, json};

use crate::Options;
use crate::documents::{Crowd, Event, Random};
use crate::field::{configure, fresh_name, map};
use crate::process::Worker;
use crate::topic;

const REFRESH: &str =
    "[[distribution.jobs]]\nname = \"searchable\"\nkind = \"refresh\"\ninterval = \"400ms\"\n";

/// People, at least. So many that what the worker can do is seen for seconds, and nobody is folded.
const PEOPLE: usize = 100_000;

/// Who looks for somebody, side by side.
const PROBERS: u64 = 4;

/// How long each of them waits before looking for somebody else.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// After so long a write is lost.
const PATIENCE: Duration = Duration::from_secs(60);

/// What was measured.
#[derive(Debug, Clone, Copy)]
pub struct Latency {
    /// Writes that were looked for.
    pub probes: usize,
    /// Records per second that were sent: half of what the worker did when it had a backlog.
    pub load: f64,
    /// Milliseconds that half of the probes took at most.
    pub p50: f64,
    /// Milliseconds that all but one in a hundred took at most.
    pub p99: f64,
}

/// See the top of this file.
pub fn measure(options: &Options) -> Result<Latency> {
    let name = fresh_name("latency")?;
    topic::make(&options.kafka, &name, options.partitions)?;
    let dir = tempfile::tempdir()?;
    configure(options, dir.path(), &name, &options.elasticsearch, REFRESH)?;
    let binary = crate::field::binary(options)?;
    let mut worker = Worker::start(&binary, dir.path(), options.partitions)?;
    let mut crowd = Crowd::new(map()?, "person", options.documents.max(PEOPLE))?;
    let producer: ThreadedProducer<DefaultProducerContext> = ClientConfig::new()
        .set("bootstrap.servers", &options.kafka)
        .set("linger.ms", "2")
        .set("queue.buffering.max.messages", "1000000")
        .create()?;
    let send = |event: &Event| -> Result<()> {
        let value = event.value.as_deref().context("a document")?;
        let record = BaseRecord::<str, str>::to(&name).key(event.id.as_str()).payload(value);
        producer.send(record).map_err(|(error, _)| error).context("sending a record")
    };

    // What it can do with a backlog, once everybody is known.
    let nobody_is_last = |_: usize| false;
    let mut speed = 0.0;
    for step in 1..=3 {
        let (before, began) = (worker.done()?, Instant::now());
        let events = crowd.documents(step, nobody_is_last);
        events.iter().try_for_each(send)?;
        producer.flush(PATIENCE)?;
        worker.wait_until_done(events.len() as u64, &before, &["indexed", "folded"])?;
        #[expect(clippy::cast_precision_loss, reason = "a count of documents")]
        let documents = events.len() as f64;
        speed = documents / began.elapsed().as_secs_f64();
        // Once waited for, it is over.
        worker.settle_in();
    }

    let load = speed / 2.0;
    let url = format!("{}/{name}-", options.elasticsearch);
    let until = Instant::now() + Duration::from_secs(options.latency_seconds);
    let events = crowd.documents(4, nobody_is_last);
    let mut milliseconds = thread::scope(|scope| {
        let probers: Vec<_> = (0..PROBERS)
            .map(|prober| {
                let (url, events, send) = (&url, &events, &send);
                scope.spawn(move || probe(prober, url, events, send, until))
            })
            .collect();
        send_evenly(&events, load, &send, until)?;
        let mut milliseconds = Vec::new();
        for prober in probers {
            match prober.join() {
                Ok(took) => milliseconds.extend(took?),
                Err(_) => bail!("a prober panicked"),
            }
        }
        anyhow::Ok(milliseconds)
    })?;
    producer.flush(PATIENCE)?;
    milliseconds.sort_by(f64::total_cmp);
    let at = |share: usize| milliseconds.get(milliseconds.len().saturating_sub(1) * share / 100).copied();
    let (p50, p99) = (at(50).context("no probes")?, at(99).context("no probes")?);
    Ok(Latency { probes: milliseconds.len(), load, p50, p99 })
}

/// The same documents over and over, so many a second.
fn send_evenly(
    events: &[Event],
    load: f64,
    send: &(impl Fn(&Event) -> Result<()> + Sync),
    until: Instant,
) -> Result<()> {
    let began = Instant::now();
    for (n, event) in events.iter().cycle().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "a count of documents")]
        let due = began + Duration::from_secs_f64(n as f64 / load);
        if due >= until {
            break;
        }
        if let Some(wait) = due.checked_duration_since(Instant::now()) {
            thread::sleep(wait);
        }
        send(event)?;
    }
    Ok(())
}

/// Writes somebody with a step that nobody else has, and searches until it is found.
fn probe(
    prober: u64,
    url: &str,
    events: &[Event],
    send: &(impl Fn(&Event) -> Result<()> + Sync),
    until: Instant,
) -> Result<Vec<f64>> {
    let http = reqwest::blocking::Client::builder().timeout(PATIENCE).build()?;
    let mut random = Random::new(7 + prober);
    let mut took = Vec::new();
    for step in (prober + 1) * 1_000_000.. {
        if Instant::now() >= until {
            break;
        }
        let somebody = &events[random.index(events.len())];
        let document = somebody.value.as_deref().context("a document")?;
        let mut document: Value = serde_json::from_str(document)?;
        document["step"] = json!(step);
        // Somebody of their own, whom no other event writes over before they are found.
        let id = geofold::ids::DocId::from_key(Some(format!("probe-{prober}-{}", somebody.id).as_bytes()))?;
        document["id"] = json!(id.as_str());
        let began = Instant::now();
        send(&Event { id, value: Some(document.to_string()), ..somebody.clone() })?;
        let search = json!({"query": {"term": {"step": step}}, "size": 0, "track_total_hits": 1});
        loop {
            let answer = http.post(format!("{url}{}/_search", somebody.shard)).json(&search).send()?;
            let answer: Value = answer.error_for_status()?.json()?;
            if answer["hits"]["total"]["value"].as_u64() > Some(0) {
                break;
            }
            if began.elapsed() > PATIENCE {
                bail!("a write was not found within {PATIENCE:?}");
            }
            thread::sleep(Duration::from_millis(2));
        }
        took.push(began.elapsed().as_secs_f64() * 1e3);
        thread::sleep(PROBE_INTERVAL);
    }
    Ok(took)
}
