//! How long until a write is found: from the moment when its record is sent to the moment when a search finds it, while a
//! worker has a share of what it can do to do, and refreshes what it wrote (`distribution`, docs/distribution.md).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
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

/// What is sent, as a share of what the worker does when it has a backlog. The last is the one that a target is set for.
const SHARES: [f64; 3] = [0.1, 0.25, 0.5];

/// People, at least. So many that what the worker can do is seen for seconds, and nobody is folded.
const PEOPLE: usize = 100_000;

/// Who looks for somebody, side by side.
const PROBERS: u64 = 4;

/// How long each of them waits before looking for somebody else.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// How long they wait between two looks: so much too long a time may be, and so seldom that looking is not most of the work.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// After so long a write is lost.
const PATIENCE: Duration = Duration::from_secs(60);

/// What was measured at one load.
#[derive(Debug, Clone, Copy)]
pub struct Latency {
    /// What was sent, as a share of what the worker did when it had a backlog.
    pub share: f64,
    /// Records per second that were sent.
    pub load: f64,
    /// Writes that were looked for.
    pub probes: usize,
    /// Milliseconds that half of the probes took at most.
    pub p50: f64,
    /// Milliseconds that all but one in a hundred took at most.
    pub p99: f64,
    /// Seconds from the last record's sending to the end of all.
    pub rest: f64,
}

/// Sends records, and counts them.
struct Sender {
    topic: String,
    producer: ThreadedProducer<DefaultProducerContext>,
    sent: AtomicU64,
}

impl Sender {
    fn new(options: &Options, topic: &str) -> Result<Self> {
        let producer = ClientConfig::new()
            .set("bootstrap.servers", &options.kafka)
            .set("linger.ms", "5")
            .set("queue.buffering.max.messages", "1000000")
            .create()?;
        Ok(Self { topic: topic.to_owned(), producer, sent: AtomicU64::new(0) })
    }

    fn send(&self, event: &Event) -> Result<()> {
        let value = event.value.as_deref().context("a document")?;
        let record = BaseRecord::<str, str>::to(&self.topic).key(event.id.as_str()).payload(value);
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
    fn wait_until_done(&self, worker: &mut Worker) -> Result<()> {
        self.producer.flush(PATIENCE)?;
        let sent = self.sent.load(Ordering::Relaxed);
        worker.wait_until_done(sent, &BTreeMap::new(), &["indexed", "folded"])
    }
}

/// See the top of this file.
pub fn measure(options: &Options) -> Result<Vec<Latency>> {
    let name = fresh_name("latency")?;
    topic::make(&options.kafka, &name, options.partitions)?;
    let dir = tempfile::tempdir()?;
    let job = format!(
        "[[distribution.jobs]]\nname = \"searchable\"\nkind = \"refresh\"\ninterval = {:?}\n",
        options.refresh_interval
    );
    configure(options, dir.path(), &name, &options.elasticsearch, &job)?;
    let indices = format!("{}/{name}-", options.elasticsearch);
    only_refreshed_by_the_job(&indices)?;
    let binary = crate::field::binary(options)?;
    let mut worker = Worker::start(&binary, dir.path(), options.partitions)?;
    let mut crowd = Crowd::new(map()?, "person", options.documents.max(PEOPLE))?;
    let sender = Sender::new(options, &name)?;

    // What it can do with a backlog, once everybody is known.
    let nobody_is_last = |_: usize| false;
    let mut speed = 0.0;
    for step in 1..=3 {
        let began = Instant::now();
        let events = crowd.documents(step, nobody_is_last);
        events.iter().try_for_each(|event| sender.send(event))?;
        sender.wait_until_done(&mut worker)?;
        #[expect(clippy::cast_precision_loss, reason = "a count of documents")]
        let documents = events.len() as f64;
        speed = documents / began.elapsed().as_secs_f64();
        // Once waited for, it is over.
        worker.settle_in();
    }

    let mut measured = Vec::new();
    for (round, share) in (0_u64..).zip(SHARES) {
        let load = speed * share;
        let until = Instant::now() + Duration::from_secs(options.latency_seconds);
        let events = crowd.documents(4, nobody_is_last);
        let mut milliseconds = thread::scope(|scope| {
            let probers: Vec<_> = (0..PROBERS)
                .map(|prober| {
                    let (indices, events, sender) = (&indices, &events, &sender);
                    scope.spawn(move || probe(round * PROBERS + prober, indices, events, sender, until))
                })
                .collect();
            sender.send_evenly(&events, load, until)?;
            let mut milliseconds = Vec::new();
            for prober in probers {
                match prober.join() {
                    Ok(took) => milliseconds.extend(took?),
                    Err(_) => bail!("a prober panicked"),
                }
            }
            anyhow::Ok(milliseconds)
        })?;
        sender.wait_until_done(&mut worker)?;
        let rest = until.elapsed().as_secs_f64();
        milliseconds.sort_by(f64::total_cmp);
        let at = |share: usize| milliseconds.get(milliseconds.len().saturating_sub(1) * share / 100).copied();
        let (p50, p99) = (at(50).context("no probes")?, at(99).context("no probes")?);
        let latency = Latency { share, load, probes: milliseconds.len(), p50, p99, rest };
        eprintln!("latency: {latency:?}");
        measured.push(latency);
    }
    Ok(measured)
}

/// Elasticsearch does not refresh by itself, as docs/distribution.md says where a job does.
fn only_refreshed_by_the_job(indices: &str) -> Result<()> {
    let settings = json!({"index": {"refresh_interval": "-1"}});
    let http = reqwest::blocking::Client::new();
    http.put(format!("{indices}s*/_settings")).json(&settings).send()?.error_for_status()?;
    Ok(())
}

/// Writes somebody with a step that nobody else has, and searches until it is found.
fn probe(prober: u64, indices: &str, events: &[Event], sender: &Sender, until: Instant) -> Result<Vec<f64>> {
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
        sender.send(&Event { id, value: Some(document.to_string()), ..somebody.clone() })?;
        let search = json!({"query": {"term": {"step": step}}, "size": 0, "track_total_hits": 1});
        loop {
            let answer = http.post(format!("{indices}{}/_search", somebody.shard)).json(&search).send()?;
            let answer: Value = answer.error_for_status()?.json()?;
            if answer["hits"]["total"]["value"].as_u64() > Some(0) {
                break;
            }
            if began.elapsed() > PATIENCE {
                bail!("a write was not found within {PATIENCE:?}");
            }
            thread::sleep(LOOK_INTERVAL);
        }
        took.push(began.elapsed().as_secs_f64() * 1e3);
        thread::sleep(PROBE_INTERVAL);
    }
    Ok(took)
}
