//! Where a race takes place: the indices, the topic, everybody in it, and one worker process, which stays up from lap to lap,
//! so that it knows where documents are, as a worker in production does.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use geofold::base::ids::ShardId;
use geofold::support::config;

use crate::documents::{Crowd, Event, INDEX_TEMPLATE};
use crate::process::{DEADLINE, REQUEST_TIMEOUT, Worker, cpu_seconds, peak_mebibytes};
use crate::report::{Backlog, Lap};
use crate::topic::{self, Topic};
use crate::{Options, consumer, loader, naive};

/// Ids of the hot keys.
pub const HOT_IDS: usize = 2_000;

/// How often they are written at once, and by the peer in a round.
pub const HOT_WRITES: usize = 400_000;

/// Documents of the naive flow: it is so slow that more would only take time.
const NAIVE_DOCUMENTS: usize = 1_000;

/// See the top of this file.
pub struct Field {
    /// What names of topic, group and indices begin with.
    pub name: String,
    /// The topic.
    pub topic: Topic,
    /// Everybody.
    pub crowd: Crowd,
    elasticsearch: String,
    /// Of each request of the loader.
    loader_operations: usize,
    stack: PathBuf,
    geofold: PathBuf,
    worker: Worker,
    step: u32,
    /// Documents that must be there at the end.
    documents: usize,
    http: reqwest::blocking::Client,
    /// Configuration and log of the worker; removed at the end.
    dir: tempfile::TempDir,
}

/// The binary under test.
pub fn binary(options: &Options) -> Result<PathBuf> {
    match &options.geofold {
        Some(path) => Ok(path.clone()),
        // target/release/examples/race, target/release/geofold
        None => Ok(std::env::current_exe()?.with_file_name("..").join("geofold")),
    }
}

/// Writes a worker's configuration into `dir`, and creates the indices that it asks for. `more`: keys of `[elasticsearch]`, then
/// further sections.
pub fn configure(
    options: &Options,
    dir: &Path,
    name: &str,
    elasticsearch: &str,
    more: &str,
) -> Result<PathBuf> {
    let (config, template) = (dir.join("geofold.toml"), dir.join("index-template.json"));
    let map = dir.join("map.json");
    fs::write(&map, options.map()?.to_json())?;
    fs::write(&template, INDEX_TEMPLATE)?;
    fs::write(
        &config,
        format!(
            "[kafka]\nbrokers = [{:?}]\ntopic = {name:?}\ngroup_id = {name:?}\n\n\
             [batch]\ntimeout = \"{DEADLINE:?}\"\n\n\
             [geoshards]\nmap = {map:?}\nindex_template = {template:?}\n\n\
             [elasticsearch]\nurls = [{elasticsearch:?}]\nprefix = {name:?}\nrequest_timeout = \"{REQUEST_TIMEOUT:?}\"\n{more}",
            options.kafka
        ),
    )?;
    let created =
        Command::new(binary(options)?).args(["shards", "create", "--config"]).arg(&config).status()?;
    if !created.success() {
        bail!("geofold shards create: {created}");
    }
    Ok(config)
}

/// Elasticsearch refreshes the geoshards, whose names begin with `indices`, so often by itself.
pub fn refresh_every(indices: &str, interval: &str) -> Result<()> {
    let settings = serde_json::json!({"index": {"refresh_interval": interval}});
    let http = reqwest::blocking::Client::new();
    http.put(format!("{indices}s*/_settings")).json(&settings).send()?.error_for_status()?;
    Ok(())
}

/// A name that no race before had.
pub fn fresh_name(what: &str) -> Result<String> {
    Ok(format!("{what}{:x}", std::time::UNIX_EPOCH.elapsed()?.as_millis()))
}

/// A lap begins when nothing is left to do of the one before, whoever ran it: no index holds unrefreshed documents in memory,
/// none is due to be flushed, no segments are merged, garbage has cooled down.
///
/// Elasticsearch flushes a shard that is written to a minute after its last flush (`index.translog.flush_threshold_age`). Without
/// flushing here, a lap paid for that if a minute had passed since its racer's last one, and not if the racer had just raced.
pub fn settle(http: &reqwest::blocking::Client, elasticsearch: &str) -> Result<()> {
    const PAUSE: Duration = Duration::from_secs(2);
    const MERGES_END_WITHIN: Duration = Duration::from_secs(60);
    http.post(format!("{elasticsearch}/_refresh")).send()?.error_for_status()?;
    // Forced: only a flush begins the minute anew.
    http.post(format!("{elasticsearch}/_flush?force=true")).send()?.error_for_status()?;
    let began = Instant::now();
    loop {
        std::thread::sleep(PAUSE);
        let url = format!("{elasticsearch}/_stats/merge?filter_path=_all.total.merges.current");
        let stats: serde_json::Value = http.get(url).send()?.error_for_status()?.json()?;
        let current = stats["_all"]["total"]["merges"]["current"].as_u64();
        if current.context("elasticsearch counts no merges")? == 0 {
            return Ok(());
        }
        if began.elapsed() > MERGES_END_WITHIN {
            bail!("elasticsearch still merges segments, {} s after a lap", MERGES_END_WITHIN.as_secs());
        }
    }
}

/// CPU seconds so far of the racer with this process id, of Elasticsearch with all its nodes, and of Kafka.
pub fn costs(stack: &Path, racer: u32) -> Result<[f64; 3]> {
    let server = |name: &str| -> Result<f64> {
        let file = stack.join(name).join("pid");
        let pid = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        cpu_seconds(pid.trim().parse().context("a process id")?)
    };
    let mut elasticsearch = server("elasticsearch")?;
    for more in ["node2", "node3"].into_iter().filter(|name| stack.join(name).exists()) {
        elasticsearch += server(more)?;
    }
    Ok([cpu_seconds(racer)?, elasticsearch, server("kafka")?])
}

impl Field {
    /// Makes topic, indices and people, and starts a worker. `elasticsearch` is where the worker writes to; `more` is added to
    /// its configuration.
    pub fn prepare(
        options: &Options,
        elasticsearch: &str,
        partitions: i32,
        documents: usize,
        more: &str,
    ) -> Result<Self> {
        Self::with_worker(options, elasticsearch, partitions, documents, more, false)
    }

    /// The same with a worker that reads ahead when it is far behind.
    pub fn far_behind(options: &Options, documents: usize) -> Result<Self> {
        Self::with_worker(options, &options.elasticsearch, options.partitions, documents, "", true)
    }

    fn with_worker(
        options: &Options,
        elasticsearch: &str,
        partitions: i32,
        documents: usize,
        more: &str,
        looks_ahead: bool,
    ) -> Result<Self> {
        let name = fresh_name("race")?;
        let topic = Topic::create(&options.kafka, &name, partitions)?;
        // Each partition has its share of the placements, and not exactly its share of the people.
        let cached = config::MemoryConfig::default().cached_placements.max(documents / 3 * 4);
        // Where each write is meant to be written, none is superseded by another.
        let look_ahead = if looks_ahead { config::MemoryConfig::default().look_ahead } else { 0 };
        let mut more = format!("{more}[memory]\ncached_placements = {cached}\nlook_ahead = {look_ahead}\n");
        if options.tally {
            topic::make(&options.kafka, &format!("{name}-increments"), 1)?;
            more += "[tally]\ngeoshard = true\n\n[tally.facets]\ntags = \"tags\"\nage = \"age\"\n";
        }
        let dir = tempfile::tempdir()?;
        configure(options, dir.path(), &name, elasticsearch, &more)?;
        let geofold = binary(options)?;
        let worker = Worker::start(&geofold, dir.path(), partitions)?;
        let crowd = Crowd::new(options.map()?, "person", documents)?;
        Ok(Self {
            name,
            topic,
            crowd,
            elasticsearch: elasticsearch.to_owned(),
            loader_operations: options.loader_operations,
            stack: options.stack.clone(),
            geofold,
            worker,
            step: 0,
            documents: 0,
            http: reqwest::blocking::Client::builder().timeout(Duration::from_secs(120)).build()?,
            dir,
        })
    }

    /// Every document, for the first time, and a second time by a worker that knows where they are from then on; nobody
    /// measures.
    pub fn first_documents(&mut self) -> Result<()> {
        self.documents += self.crowd.people.len();
        for what in ["first document", "second"] {
            let events = self.everybody();
            let lap = self.lap_of_geofold(&events, &["indexed"])?;
            eprintln!("everybody's {what}: {lap}");
            self.worker.settle_in();
        }
        Ok(())
    }

    /// As many new documents.
    pub fn new_documents(&mut self, round: usize) -> Result<Lap> {
        let mut crowd = self.crowd.others(&format!("geofold-{round}"), self.crowd.people.len())?;
        self.documents += crowd.people.len();
        self.lap_of_geofold(&crowd.documents(0), &["indexed"])
    }

    /// Everybody takes a step; `cold`: without knowing where anybody is. In the first round it may happen that not all are
    /// known; in others this is an error.
    pub fn in_place(&mut self, round: usize, cold: bool) -> Result<Lap> {
        self.crowd.take_a_step()?;
        let events = self.everybody();
        if cold {
            self.worker.restart(&self.geofold, self.dir.path())?;
            self.worker.settle_in();
        }
        let lap = self.lap_of_geofold(&events, &["indexed"])?;
        // A look at each placement or at none, and one write.
        let meant = [if cold { 1.0 } else { 0.0 }, 1.0];
        let is_off = |(did, meant): (f64, f64)| (did - meant).abs() > 0.02;
        if round > 0 && lap.operations.is_none_or(|did| did.into_iter().zip(meant).any(is_off)) {
            bail!("{meant:?} reads and writes per event were meant, and it was: {lap}");
        }
        Ok(lap)
    }

    /// Everybody takes so many steps, one after the other. `wanted`: how many writes for an event, at least; the others are folded.
    pub fn steps(&mut self, steps: usize, wanted: f64) -> Result<Lap> {
        for _ in 0..steps {
            self.crowd.take_a_step()?;
            let events = self.everybody();
            self.topic.produce(&events, None)?;
        }
        let lap = self.lap_of_what_was_produced(steps * self.crowd.people.len(), &["indexed", "folded"])?;
        match lap.operations {
            Some([_, writes]) if writes > wanted => Ok(lap),
            _ => bail!("at least {wanted} writes for each event were meant, and it was: {lap}"),
        }
    }

    /// So many writes of a few people.
    pub fn hot_keys(&mut self, writes: usize) -> Result<Lap> {
        let mut left = writes;
        while left > 0 {
            self.crowd.take_a_step()?;
            self.step += 1;
            let events = self.crowd.hot_writes(left.min(HOT_WRITES), HOT_IDS, self.step);
            left -= events.len();
            self.topic.produce(&events, None)?;
        }
        self.lap_of_what_was_produced(writes, &["indexed", "folded"])
    }

    /// Elasticsearch refreshes the geoshards so often by itself.
    pub fn refresh_every(&self, interval: &str) -> Result<()> {
        refresh_every(&format!("{}/{}-", self.elasticsearch, self.name), interval)
    }

    /// Everybody to another geoshard.
    pub fn moves(&mut self) -> Result<Lap> {
        self.crowd.travel()?;
        let events = self.everybody();
        // Whose answer came too late was written already when it was tried again.
        self.lap_of_geofold(&events, &["indexed", "already_applied"])
    }

    /// As many documents as there are people, for plain operations alone.
    pub fn plain_documents(&mut self) -> Result<Crowd> {
        let mut crowd = self.crowd.others("plain", self.crowd.people.len())?;
        self.documents += crowd.people.len();
        self.plain(&crowd.documents(0), None)?;
        Ok(crowd)
    }

    /// As many new documents, each by one plain operation.
    pub fn plain_new_documents(&mut self, round: usize) -> Result<Lap> {
        let mut crowd = self.crowd.others(&format!("plain-{round}"), self.crowd.people.len())?;
        self.documents += crowd.people.len();
        self.plain(&crowd.documents(0), None)
    }

    /// Everybody in `crowd` takes a step.
    pub fn plain_in_place(&mut self, crowd: &mut Crowd) -> Result<Lap> {
        crowd.take_a_step()?;
        self.step += 1;
        self.plain(&crowd.documents(self.step), None)
    }

    /// Everybody in `crowd` to another geoshard: each document, and a delete where it was.
    pub fn plain_moves(&mut self, crowd: &mut Crowd) -> Result<Lap> {
        let from: Vec<ShardId> = crowd.people.iter().map(|person| person.shard.clone()).collect();
        crowd.travel()?;
        self.step += 1;
        self.plain(&crowd.documents(self.step), Some(&from))
    }

    fn plain(&mut self, events: &[Event], from: Option<&[ShardId]>) -> Result<Lap> {
        let requests = loader::requests(events, from, self.loader_operations, &self.name);
        self.settle()?;
        let pid = std::process::id();
        let before = costs(&self.stack, pid)?;
        let took = loader::run(&self.elasticsearch, requests)?;
        Ok(Lap::new(events.len(), took, before, costs(&self.stack, pid)?))
    }

    /// A mixed day.
    pub fn day(&mut self) -> Result<Lap> {
        self.step += 1;
        let (events, came, left) = self.crowd.day(self.crowd.people.len(), self.step)?;
        self.documents = self.documents + came - left;
        self.lap_of_geofold(&events, &["indexed", "folded", "deleted"])
    }

    /// Some documents to another geoshard, the naive way.
    pub fn naive_moves(&mut self) -> Result<Lap> {
        let count = NAIVE_DOCUMENTS.min(self.crowd.people.len());
        let mut crowd = self.crowd.others(&fresh_name("naive")?, count)?;
        let first = crowd.documents(0);
        naive::run(&self.elasticsearch, &self.name, &first)?;
        self.documents += count;
        crowd.travel()?;
        let events = crowd.documents(1);
        self.settle()?;
        let before = costs(&self.stack, std::process::id())?;
        let took = naive::run(&self.elasticsearch, &self.name, &events)?;
        Ok(Lap::new(count, took, before, costs(&self.stack, std::process::id())?))
    }

    /// What was produced last, read once more by a consumer that does nothing with it.
    pub fn consumed(&self, options: &Options, records: usize) -> Result<Lap> {
        consumer::lap(&options.kafka, self.topic.name(), records, &self.stack)
    }

    /// A worker that comes to a backlog of so many records.
    pub fn backlog(&mut self, records: usize) -> Result<Backlog> {
        self.worker.stop()?;
        self.produce_steps(records, true)?;
        self.worker.restart(&self.geofold, self.dir.path())?;
        let (nothing, began) = (BTreeMap::new(), Instant::now());
        let outcomes = ["indexed", "folded", "already_applied"];
        self.worker.wait_until_done(records as u64, &nothing, &outcomes)?;
        Ok(Backlog {
            records,
            documents: self.crowd.people.len(),
            took: began.elapsed(),
            peak_mebibytes: self.peak_mebibytes()?,
            writes: self.worker.operations()?.writes as f64 / records as f64,
        })
    }

    /// Restarts the worker with these lines in the section `elasticsearch` of its configuration, in place of former ones.
    pub fn restart_with(&mut self, lines: &str) -> Result<()> {
        const SECTION: &str = "[elasticsearch]\n";
        const END: &str = "# (end of more)\n";
        let file = self.dir.path().join("geofold.toml");
        let text = fs::read_to_string(&file)?;
        let (before, rest) = text.split_once(SECTION).context("the section elasticsearch")?;
        let rest = rest.split_once(END).map_or(rest, |(_, rest)| rest);
        fs::write(&file, format!("{before}{SECTION}{lines}{END}{rest}"))?;
        self.worker.restart(&self.geofold, self.dir.path())?;
        self.worker.settle_in();
        Ok(())
    }

    /// A backlog of so many records, while `meanwhile` runs until it is told to stop: how long the worker took.
    pub fn drain<T: Send>(
        &mut self,
        records: usize,
        meanwhile: impl FnOnce(&AtomicBool) -> Result<T> + Send,
    ) -> Result<(Duration, T)> {
        self.produce_steps(records, false)?;
        self.settle()?;
        let before = self.worker.done()?;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| meanwhile(&is_over));
            let began = Instant::now();
            let drained = self
                .topic
                .show()
                .and_then(|()| self.worker.wait_until_done(records as u64, &before, &["indexed", "folded"]));
            let took = began.elapsed();
            is_over.store(true, Ordering::Relaxed);
            let Ok(other) = other.join() else { bail!("a thread panicked") };
            drained?;
            Ok((took, other?))
        })
    }

    /// So many records of everybody's steps; nobody sees them yet unless they are shown.
    fn produce_steps(&mut self, records: usize, are_shown: bool) -> Result<()> {
        let mut left = records;
        while left > 0 {
            self.crowd.take_a_step()?;
            let mut events = self.everybody();
            events.truncate(left);
            left -= events.len();
            self.topic.produce(&events, None)?;
            if are_shown {
                self.topic.show()?;
            }
        }
        Ok(())
    }

    /// The most memory that the worker held, in MiB.
    pub fn peak_mebibytes(&self) -> Result<f64> {
        peak_mebibytes(self.worker.pid())
    }

    fn everybody(&mut self) -> Vec<Event> {
        self.step += 1;
        self.crowd.documents(self.step)
    }

    /// One lap of geofold: from the moment when its backlog can be seen to the last document written.
    fn lap_of_geofold(&mut self, events: &[Event], outcomes: &[&str]) -> Result<Lap> {
        self.topic.produce(events, None)?;
        self.lap_of_what_was_produced(events.len(), outcomes)
    }

    fn lap_of_what_was_produced(&mut self, events: usize, outcomes: &[&str]) -> Result<Lap> {
        self.settle()?;
        let before = self.worker.done()?;
        let operations_before = self.worker.operations()?;
        let costs_before = costs(&self.stack, self.worker.pid())?;
        let began = Instant::now();
        self.topic.show()?;
        self.worker.wait_until_done(events as u64, &before, outcomes)?;
        let took = began.elapsed();
        // That old copies of documents that moved go later is part of the costs.
        self.worker.wait_until_swept()?;
        let lap = Lap::new(events, took, costs_before, costs(&self.stack, self.worker.pid())?);
        Ok(lap.with_operations(events, operations_before, self.worker.operations()?))
    }

    fn settle(&self) -> Result<()> {
        settle(&self.http, &self.elasticsearch)
    }

    /// Every document is there, once.
    pub fn check_count(&self) -> Result<()> {
        self.settle()?;
        let url = format!("{}/{}-s*/_count", self.elasticsearch, self.name);
        let answer: serde_json::Value = self.http.get(url).send()?.error_for_status()?.json()?;
        if answer["count"] != self.documents {
            bail!(
                "{} documents should be there, and Elasticsearch counts {}",
                self.documents,
                answer["count"]
            );
        }
        Ok(())
    }
}
