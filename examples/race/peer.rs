//! The peer: Redpanda Connect, from the same Kafka into the same Elasticsearch, into indices of its own. It does not know where
//! a document belongs, so each record says so in a header; it knows no placements and moves nothing.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::Options;
use crate::documents::{Crowd, Event};
use crate::field::{HOT_IDS, HOT_WRITES, configure, costs, fresh_name, settle};
use crate::process::Looks;
use crate::report::Lap;
use crate::topic::Topic;

/// Records of a partition that the peer may have read and not yet written: enough for several of its batches. By default it is
/// 1,024, less than one batch, so that each partition waits for each of its requests.
const IN_FLIGHT_PER_PARTITION: u32 = 20_000;

/// See the top of this file.
pub struct Peer {
    name: String,
    topic: Topic,
    crowd: Crowd,
    child: Child,
    metrics: String,
    elasticsearch: String,
    stack: PathBuf,
    step: u32,
    http: reqwest::blocking::Client,
    _dir: tempfile::TempDir,
}

impl Peer {
    /// Makes its topic and its indices, starts it, and lets it write everybody's first document.
    pub fn prepare(options: &Options, binary: &Path) -> Result<Self> {
        let name = fresh_name("peer")?;
        let topic = Topic::create(&options.kafka, &name, options.partitions)?;
        let dir = tempfile::tempdir()?;
        configure(options, dir.path(), &name, &options.elasticsearch, "")?;
        let listen = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let config = dir.path().join("peer.yaml");
        fs::write(
            &config,
            format!(
                r#"http: {{address: "{listen}"}}
input:
  kafka_franz:
    seed_brokers: ["{}"]
    topics: ["{name}"]
    consumer_group: "{name}"
    start_from_oldest: true
    transaction_isolation_level: read_committed
    checkpoint_limit: {IN_FLIGHT_PER_PARTITION}
    batching: {{count: 2000, period: 200ms}}
output:
  elasticsearch_v8:
    urls: ["{}"]
    index: '${{! meta("index") }}'
    id: '${{! meta("kafka_key") }}'
    action: index
    max_in_flight: 4
metrics: {{prometheus: {{}}}}
logger: {{level: WARN}}
"#,
                options.kafka, options.elasticsearch
            ),
        )?;
        let log = File::create(dir.path().join("peer.log"))?;
        let child = Command::new(binary)
            .arg("run")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {}", binary.display()))?;
        let mut peer = Self {
            name,
            topic,
            crowd: Crowd::new(options.map()?, "person", options.documents)?,
            child,
            metrics: format!("http://{listen}/metrics"),
            elasticsearch: options.elasticsearch.clone(),
            stack: options.stack.clone(),
            step: 0,
            http: reqwest::blocking::Client::builder().timeout(Duration::from_secs(120)).build()?,
            _dir: dir,
        };
        peer.in_place()?;
        Ok(peer)
    }

    /// What names of its topic and its indices begin with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// As many new documents.
    pub fn new_documents(&mut self, round: usize) -> Result<Lap> {
        let mut crowd = self.crowd.others(&format!("peer-{round}"), self.crowd.people.len())?;
        let events = crowd.documents(0);
        self.lap(&events)
    }

    /// Everybody takes a step.
    pub fn in_place(&mut self) -> Result<Lap> {
        self.crowd.take_a_step()?;
        self.step += 1;
        let events = self.crowd.documents(self.step);
        self.lap(&events)
    }

    /// Many writes of a few people.
    pub fn hot_keys(&mut self) -> Result<Lap> {
        self.step += 1;
        let events = self.crowd.hot_writes(HOT_WRITES, HOT_IDS, self.step);
        self.lap(&events)
    }

    fn lap(&mut self, events: &[Event]) -> Result<Lap> {
        const TIMEOUT: Duration = Duration::from_secs(600);
        self.topic.produce(events, Some(&self.name))?;
        settle(&self.http, &self.elasticsearch)?;
        let (before, costs_before) = (self.sent().unwrap_or(0), costs(&self.stack, self.child.id())?);
        let looks = Looks::begin(events.len() as u64);
        self.topic.show()?;
        loop {
            let sent = self.sent().unwrap_or(0).saturating_sub(before);
            if sent >= events.len() as u64 {
                break;
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("the peer ended: {status}");
            }
            if looks.elapsed() > TIMEOUT {
                bail!("the peer did not write {} records in {TIMEOUT:?}", events.len());
            }
            looks.pause(sent);
        }
        Ok(Lap::new(events.len(), looks.elapsed(), costs_before, costs(&self.stack, self.child.id())?))
    }

    /// Records that Elasticsearch has taken from it.
    fn sent(&self) -> Result<u64> {
        let text = self.http.get(&self.metrics).send()?.text()?;
        let line = text.lines().find(|line| line.starts_with("output_sent")).context("output_sent")?;
        let (_, count) = line.rsplit_once(' ').context("a metric's value")?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count, written as 1e+06"
        )]
        let count = count.parse::<f64>()? as u64;
        Ok(count)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
