//! geofold against a raw `_bulk` loader, on a real Kafka and a real Elasticsearch: what does it cost to go through geofold?
//!
//! `dev/race` starts the servers, runs this, and stops them. One worker process stays up over the whole race, so that it
//! knows where documents are, as a worker in production does. First it writes documents that are new. Then the two
//! take turns at updates in place: the same documents, in the same indices, each once per round in an order of the
//! round's own, at positions a few metres from the last. At last everybody moves to another geoshard, which a raw loader
//! has no answer to.

mod documents;
mod loader;
mod process;
mod report;
mod topic;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use geofold::geoshard::map::GeoshardMap;
use geofold::position::Position;

use crate::documents::{Crowd, INDEX_TEMPLATE};
use crate::process::{Worker, cpu_seconds, peak_mebibytes};
use crate::report::{Lap, Report};
use crate::topic::Topic;

const MAP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/map-55.json");

/// Race geofold against a raw _bulk loader. Variables GEOFOLD_SECTION__KEY change the worker's configuration.
#[derive(Debug, Parser)]
struct Options {
    /// host:port of a Kafka broker.
    #[arg(long, env = "GEOFOLD_TEST_KAFKA")]
    kafka: String,
    /// Address of an Elasticsearch node.
    #[arg(long, env = "GEOFOLD_TEST_ELASTICSEARCH")]
    elasticsearch: String,
    /// The folder of dev/stack, to find out what the servers cost.
    #[arg(long, env = "GEOFOLD_STACK_DIR")]
    stack: PathBuf,
    /// The binary under test; by default the one that was built with this program.
    #[arg(long)]
    geofold: Option<PathBuf>,
    /// Documents.
    #[arg(long, default_value_t = 200_000)]
    documents: usize,
    /// Rounds of updates in place, each once by either; best an even number, since who goes first alternates.
    #[arg(long, default_value_t = 6)]
    rounds: usize,
    /// Rounds in which every document moves to another geoshard.
    #[arg(long, default_value_t = 2)]
    moves: usize,
    /// Partitions of the topic.
    #[arg(long, default_value_t = 8)]
    partitions: i32,
    /// Count tags, ages and geoshards (docs/counts.md), to see what that costs: compare the ratio to the raw loader with and
    /// without.
    #[arg(long)]
    tally: bool,
    /// What the servers are, for the report.
    #[arg(long, default_value = "versions not given")]
    servers: String,
    /// The command that started this, for the report.
    #[arg(long, default_value = "cargo run --release --example race")]
    command: String,
    /// A Markdown file whose part between `<!-- race -->` and `<!-- /race -->` is replaced with the report.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let mut report =
        Report::begin(&options.servers, &options.command, options.documents, options.partitions)?;
    let mut race = Race::prepare(&options)?;

    race.settle()?;
    report.new = Some(race.lap_of_geofold("new documents")?);
    // The first round of each is not counted: caches and the servers' compilers warm up.
    for round in 0..=options.rounds {
        let name = if round == 0 { "warm-up".to_owned() } else { format!("in place, round {round}") };
        // Who goes first alternates: a machine that gets faster or slower all the time favours nobody over two rounds.
        let (raw, geofold) = if round % 2 == 1 {
            let raw = race.raw(&name)?;
            (raw, race.through_geofold(&name)?)
        } else {
            let geofold = race.through_geofold(&name)?;
            (race.raw(&name)?, geofold)
        };
        if round > 0 {
            report.in_place.push((raw, geofold));
        }
    }
    for round in 1..=options.moves {
        race.crowd.travel()?;
        report.moves.push(race.lap_of_geofold(&format!("moves, round {round}"))?);
    }
    report.peak_mebibytes = peak_mebibytes(race.worker.pid())?;
    race.check_count()?;

    let text = report.to_markdown();
    println!("\n{text}");
    match &options.write {
        Some(file) => report::replace_marked_part(file, &text),
        None => Ok(()),
    }
}

/// Everything that takes part.
struct Race {
    name: String,
    elasticsearch: String,
    stack: PathBuf,
    crowd: Crowd,
    topic: Topic,
    worker: Worker,
    /// The version of each person's document.
    versions: Vec<Position>,
    step: u32,
    http: reqwest::blocking::Client,
    /// Configuration and log of the worker; removed at the end.
    _dir: tempfile::TempDir,
}

impl Race {
    fn prepare(options: &Options) -> Result<Self> {
        let geofold = match &options.geofold {
            Some(path) => path.clone(),
            // target/release/examples/race, target/release/geofold
            None => std::env::current_exe()?.with_file_name("..").join("geofold"),
        };
        let name = format!("race{:x}", std::time::UNIX_EPOCH.elapsed()?.as_secs());
        let topic = Topic::create(&options.kafka, &name, options.partitions)?;
        let dir = tempfile::tempdir()?;
        let config = dir.path().join("geofold.toml");
        let template = dir.path().join("index-template.json");
        fs::write(&template, INDEX_TEMPLATE)?;
        let counted = if options.tally {
            topic::make(&options.kafka, &format!("{name}-increments"), 1)?;
            "[tally]\ngeoshard = true\n\n[tally.facets]\ntags = \"tags\"\nage = \"age\"\n"
        } else {
            ""
        };
        fs::write(
            &config,
            format!(
                "[kafka]\nbrokers = [{:?}]\ntopic = {name:?}\ngroup_id = {name:?}\n\n\
                 [elasticsearch]\nurls = [{:?}]\nprefix = {name:?}\n\n\
                 [geoshards]\nmap = {MAP:?}\nindex_template = {template:?}\n\n{counted}",
                options.kafka, options.elasticsearch
            ),
        )?;
        let created = Command::new(&geofold).args(["shards", "create", "--config"]).arg(&config).status()?;
        if !created.success() {
            bail!("{} shards create: {created}", geofold.display());
        }
        let mut worker = Worker::start(&geofold, &config, &dir.path().join("worker.log"))?;
        worker.wait_until_up()?;
        let crowd = Crowd::new(GeoshardMap::load(Path::new(MAP))?, options.documents)?;
        Ok(Self {
            name,
            elasticsearch: options.elasticsearch.clone(),
            stack: options.stack.clone(),
            versions: vec![Position::from_version(0); crowd.people.len()],
            crowd,
            topic,
            worker,
            step: 0,
            http: reqwest::blocking::Client::builder().timeout(Duration::from_secs(120)).build()?,
            _dir: dir,
        })
    }

    /// One lap of updates in place by geofold.
    fn through_geofold(&mut self, name: &str) -> Result<Lap> {
        self.crowd.take_a_step()?;
        self.lap_of_geofold(name)
    }

    /// One lap of geofold: from the moment when its backlog can be seen to the last document written.
    fn lap_of_geofold(&mut self, name: &str) -> Result<Lap> {
        let order = self.next_order();
        self.topic.produce(&self.crowd, &order, self.step, &mut self.versions)?;
        self.settle()?;
        let before = self.worker.done()?;
        let costs = self.costs(self.worker.pid())?;
        let began = Instant::now();
        self.topic.show()?;
        self.worker.wait_until_indexed(order.len() as u64, &before)?;
        let lap = Lap::new(order.len(), began.elapsed(), costs, self.costs(self.worker.pid())?);
        eprintln!("{name}: geofold {lap}");
        Ok(lap)
    }

    /// One lap of the raw loader.
    fn raw(&mut self, name: &str) -> Result<Lap> {
        self.crowd.take_a_step()?;
        let order = self.next_order();
        let requests = loader::encode(&self.crowd, &order, self.step, &self.name, &mut self.versions);
        self.settle()?;
        let pid = std::process::id();
        let costs = self.costs(pid)?;
        let took = loader::run(&self.elasticsearch, requests)?;
        let lap = Lap::new(order.len(), took, costs, self.costs(pid)?);
        eprintln!("{name}: raw {lap}");
        Ok(lap)
    }

    fn next_order(&mut self) -> Vec<usize> {
        self.step += 1;
        let topic = &self.topic;
        self.crowd.shuffled(|number| topic.is_last(number))
    }

    /// Both begin with what the other wrote refreshed and its garbage cooled down.
    fn settle(&self) -> Result<()> {
        const PAUSE: Duration = Duration::from_secs(2);
        self.http
            .post(format!("{}/{}-*/_refresh", self.elasticsearch, self.name))
            .send()?
            .error_for_status()?;
        std::thread::sleep(PAUSE);
        Ok(())
    }

    /// CPU seconds so far of the racer with this process id, of Elasticsearch and of Kafka.
    fn costs(&self, racer: u32) -> Result<[f64; 3]> {
        let server = |name: &str| -> Result<f64> {
            let file = self.stack.join(name).join("pid");
            let pid = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
            cpu_seconds(pid.trim().parse().context("a process id")?)
        };
        Ok([cpu_seconds(racer)?, server("elasticsearch")?, server("kafka")?])
    }

    /// Every document is there, once.
    fn check_count(&self) -> Result<()> {
        self.settle()?;
        let url = format!("{}/{}-s*/_count", self.elasticsearch, self.name);
        let answer: serde_json::Value = self.http.get(url).send()?.error_for_status()?.json()?;
        if answer["count"] != self.crowd.people.len() {
            bail!(
                "{} documents went in, and Elasticsearch counts {}",
                self.crowd.people.len(),
                answer["count"]
            );
        }
        Ok(())
    }
}
