//! Looks how long it takes until a search finds what was sent: single documents, beside a steady load.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use serde_json::{Value, json};

use crate::documents::{Event, Random};
use crate::process::Worker;
use crate::topic::{PARTITIONER, index_header};

/// How long a prober waits before its next document.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// How long it waits between two looks: so much too long a time may be, and so seldom that looking is not most of the work.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// After so long a write is lost.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How long it took until writes were found.
#[derive(Debug, Clone, Copy)]
pub struct Reach {
    /// Writes that were looked for.
    pub probes: usize,
    /// Milliseconds that half of the probes took at most.
    pub p50: f64,
    /// Milliseconds that all but one in a hundred took at most.
    pub p99: f64,
}

/// Sends records, and counts them.
pub struct Sender {
    topic: String,
    /// What names of indices begin with, for a racer that does not know where a document belongs.
    prefix: Option<String>,
    producer: ThreadedProducer<DefaultProducerContext>,
    sent: AtomicU64,
}

impl Sender {
    pub fn new(brokers: &str, topic: &str, prefix: Option<&str>) -> Result<Self> {
        let producer = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .set("partitioner", PARTITIONER)
            .set("linger.ms", "5")
            .set("queue.buffering.max.messages", "1000000")
            .create()?;
        Ok(Self {
            topic: topic.to_owned(),
            prefix: prefix.map(str::to_owned),
            producer,
            sent: AtomicU64::new(0),
        })
    }

    pub fn send(&self, event: &Event) -> Result<()> {
        let value = event.value.as_deref().context("a document")?;
        let mut record = BaseRecord::<str, str>::to(&self.topic).key(event.id.as_str()).payload(value);
        if let Some(prefix) = &self.prefix {
            record = record.headers(index_header(prefix, event));
        }
        self.producer.send(record).map_err(|(error, _)| error).context("sending a record")?;
        self.sent.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The same documents over and over, so many a second.
    fn send_evenly(&self, events: &[Event], load: f64, until: Instant) -> Result<()> {
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
            self.send(event)?;
        }
        Ok(())
    }

    /// Waits until the worker has come to the end of all that was sent.
    pub fn wait_until_done(&self, worker: &mut Worker) -> Result<()> {
        self.producer.flush(TIMEOUT)?;
        let sent = self.sent.load(Ordering::Relaxed);
        worker.wait_until_done(sent, &BTreeMap::new(), &["indexed", "folded"])
    }
}

/// Sends `events` over and over, `load` a second, while each of `probers` looks for one document after the other in the geoshards, whose
/// names begin with `indices`.
pub fn probe_under_load(
    sender: &Sender,
    indices: &str,
    events: &[Event],
    load: f64,
    until: Instant,
    probers: Range<u64>,
) -> Result<Reach> {
    let mut milliseconds = thread::scope(|scope| {
        let probers: Vec<_> = probers
            .map(|prober| scope.spawn(move || probe(prober, sender, indices, events, until)))
            .collect();
        sender.send_evenly(events, load, until)?;
        let mut milliseconds = Vec::new();
        for prober in probers {
            match prober.join() {
                Ok(took) => milliseconds.extend(took?),
                Err(_) => bail!("a prober panicked"),
            }
        }
        anyhow::Ok(milliseconds)
    })?;
    milliseconds.sort_by(f64::total_cmp);
    let at = |share: usize| milliseconds.get(milliseconds.len().saturating_sub(1) * share / 100).copied();
    let (p50, p99) = (at(50).context("no probes")?, at(99).context("no probes")?);
    Ok(Reach { probes: milliseconds.len(), p50, p99 })
}

/// Writes a document with a unique step, and searches until it is found.
fn probe(prober: u64, sender: &Sender, indices: &str, events: &[Event], until: Instant) -> Result<Vec<f64>> {
    let http = reqwest::blocking::Client::builder().timeout(TIMEOUT).build()?;
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
        // A document of their own, which no other event overwrites before it is found.
        let id =
            geofold::base::ids::DocId::from_key(Some(format!("probe-{prober}-{}", somebody.id).as_bytes()))?;
        document["id"] = json!(id.as_str());
        let began = Instant::now();
        sender.send(&Event { id, value: Some(document.to_string()), ..somebody.clone() })?;
        let search = json!({"query": {"term": {"step": step}}, "size": 0, "track_total_hits": 1});
        loop {
            let answer = http.post(format!("{indices}{}/_search", somebody.shard)).json(&search).send()?;
            let answer: Value = answer.error_for_status()?.json()?;
            if answer["hits"]["total"]["value"].as_u64() > Some(0) {
                break;
            }
            if began.elapsed() > TIMEOUT {
                bail!("a write was not found within {TIMEOUT:?}");
            }
            thread::sleep(LOOK_INTERVAL);
        }
        took.push(began.elapsed().as_secs_f64() * 1e3);
        thread::sleep(PROBE_INTERVAL);
    }
    Ok(took)
}
