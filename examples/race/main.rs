//! geofold against others, on a real Kafka and a real Elasticsearch: what does it cost to go through geofold?
//!
//! `dev/race` starts the servers, runs this, and stops them. The racers take turns at each workload, and each round
//! begins with the next of them, so that a machine that gets faster or slower favours none over as many rounds as there are racers.
//!
//! | file | what it holds |
//! |---|---|
//! | `documents.rs` | people, and what they do |
//! | `topic.rs` | records, a round at a time |
//! | `field.rs` | where the race takes place: worker, indices, laps |
//! | `loader.rs` | the loader of plain operations, which has everything in memory |
//! | `naive.rs` | one document after the other |
//! | `peer.rs` | Redpanda Connect |
//! | `null.rs`, `consumer.rs` | an Elasticsearch that does nothing; a consumer that does nothing |
//! | `latency.rs` | how long until a write is found, at shares of what the worker can do |
//! | `freshness.rs` | the same at fixed loads, with and without a refresh job, beside the peer |
//! | `placements.rs` | new documents and moves with several numbers of primaries of the placements index |
//! | `compression.rs`, `link.rs` | what compressed requests cost and save, on links of several speeds |
//! | `process.rs` | what a process costs; the worker as such a process |
//! | `searches.rs` | how fast searches are while a backlog is drained |
//! | `probe.rs` | looks how long it takes until a write is found |
//! | `report.rs`, `rounds.rs`, `median.rs`, `frame.rs`, `plot.rs` | what came out |

mod compression;
mod consumer;
mod documents;
mod field;
mod frame;
mod freshness;
mod latency;
mod link;
mod loader;
mod median;
mod naive;
mod null;
mod peer;
mod placements;
mod plot;
mod probe;
mod process;
mod report;
mod rounds;
mod searches;
mod topic;

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use geofold::geoshard::map::GeoshardMap;

use crate::documents::{Crowd, fewer_geoshards};
use crate::field::Field;
use crate::peer::Peer;
use crate::report::{Racer, Report, Workload};

const MAP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/map-55.json");
/// People in a race without Elasticsearch: so many that none comes again before the first document was sent, where one partition
/// is far ahead of the others.
const SINK_PEOPLE: usize = 400_000;
/// People of the backlog.
const BACKLOG_PEOPLE: usize = 200_000;
/// Records of a round with a null sink: about ten seconds, so that how it begins and ends does not matter.
const SINK_RECORDS: usize = 4_800_000;
/// Writes of a round with hot keys, for each record of one with a null sink. Most are folded, so the round takes as long.
const HOT_WRITES_PER_SINK_RECORD: usize = 2;

/// Race geofold against a loader of plain operations, a peer and the naive flow. Variables GEOFOLD_SECTION__KEY change the
/// worker's configuration.
#[derive(Debug, Clone, Parser)]
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
    /// A Redpanda Connect; without one, the peer does not take part.
    #[arg(long)]
    peer: Option<PathBuf>,
    /// Documents; by default so many that a lap takes about ten seconds or more.
    #[arg(long, default_value_t = 350_000)]
    documents: usize,
    /// Rounds of each workload; best a multiple of the racers, which are three at most workloads, or two without a peer.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Records of the workloads without Elasticsearch, and of the backlog.
    #[arg(long, default_value_t = 5_000_000)]
    backlog: usize,
    /// The map of geoshards.
    #[arg(long, default_value = MAP)]
    map: PathBuf,
    /// Only so many geoshards: each has neighbours of the map in it.
    #[arg(long)]
    geoshards: Option<usize>,
    /// Seconds over which the latency and the freshness are looked at, at each load.
    #[arg(long, default_value_t = 60)]
    latency_seconds: u64,
    /// The refresh job's interval while the latency is looked at.
    #[arg(long, default_value = "400ms")]
    refresh_interval: String,
    /// Operations in a request of the loader.
    #[arg(long, default_value_t = 2_000)]
    loader_operations: usize,
    /// Partitions of the topic.
    #[arg(long, default_value_t = 8)]
    partitions: i32,
    /// Records of the backlog beside which is searched.
    #[arg(long, default_value_t = 1_000_000)]
    searched_backlog: usize,
    /// Ceilings of operations for the workload `searches`, as shares of what is done without one.
    #[arg(long, value_delimiter = ',', default_values_t = [0.5, 0.25])]
    ceilings: Vec<f64>,
    /// Only these workloads: new, in-place, cold, hot-keys, moves, day, latency, freshness, null-sink,
    /// partitions, backlog; or compression or searches, which run by their names only.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only this: new documents and moves with each of these numbers of primaries of the placements index, such as 1,4,8.
    #[arg(long, value_delimiter = ',')]
    placements: Vec<u16>,
    /// Count tags, ages and geoshards (docs/counts.md), to see what that costs: compare the ratio to the loader with and without.
    #[arg(long)]
    tally: bool,
    /// What the servers are, for the report.
    #[arg(long, default_value = "versions not given")]
    servers: String,
    /// Who runs on which cores, for the report.
    #[arg(long, default_value = "shared by racers and servers")]
    layout: String,
    /// The command that started this, for the report.
    #[arg(long, default_value = "cargo run --release --example race")]
    command: String,
    /// A Markdown file whose part between `<!-- race -->` and `<!-- /race -->` is replaced with the report. A plot goes beside
    /// it, as race.svg.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Only consume: brokers, topic, records. What a race against no sink is compared with runs as a process of its own.
    #[arg(long, hide = true, num_args = 3)]
    consume: Option<Vec<String>>,
}

impl Options {
    fn map(&self) -> Result<GeoshardMap> {
        let map = GeoshardMap::load(&self.map)?;
        match self.geoshards {
            Some(geoshards) => fewer_geoshards(&map, geoshards),
            None => Ok(map),
        }
    }

    fn runs(&self, workload: &str) -> bool {
        let is_any = self.only.is_empty() && self.placements.is_empty();
        is_any || self.only.iter().any(|only| only == workload)
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    if let Some([brokers, topic, records]) = options.consume.as_deref() {
        return consumer::run(brokers, topic, records.parse()?);
    }
    let mut report = Report::begin(&options)?;
    if ["new", "in-place", "cold", "hot-keys", "moves", "day"].iter().any(|some| options.runs(some)) {
        with_elasticsearch(&options, &mut report)?;
    }
    report.placements = placements::measure(&options, &options.placements)?;
    if options.runs("latency") {
        report.latency = latency::measure(&options)?;
    }
    if options.runs("freshness") {
        report.freshness = freshness::measure(&options)?;
    }
    if options.only.iter().any(|only| only == "compression") {
        report.compression = compression::measure(&options)?;
    }
    if options.only.iter().any(|only| only == "searches") {
        report.searches = searches::measure(&options)?;
    }
    if options.runs("null-sink") || options.runs("partitions") {
        without_elasticsearch(&options, &mut report)?;
    }
    if options.runs("backlog") {
        let mut field = Field::far_behind(&options, BACKLOG_PEOPLE.min(options.backlog))?;
        report.backlog = Some(field.backlog(options.backlog)?);
    }
    let text = report.to_markdown();
    println!("\n{text}");
    match &options.write {
        Some(file) => report.write(file),
        None => Ok(()),
    }
}

fn with_elasticsearch(options: &Options, report: &mut Report) -> Result<()> {
    let mut field =
        Field::prepare(options, &options.elasticsearch, options.partitions, options.documents, "")?;
    let mut peer = match &options.peer {
        Some(binary) => Some(Peer::prepare(options, binary)?),
        None => None,
    };
    // Everybody has a document before anything is measured.
    field.first_documents()?;
    let mut plain = field.plain_documents()?;
    let rounds = options.rounds;
    let with_peer = |racers: &[Racer]| {
        let mut racers = racers.to_vec();
        racers.extend(options.peer.as_ref().map(|_| Racer::Peer));
        racers
    };
    let racers = with_peer(&[Racer::Geofold, Racer::Plain]);
    if options.runs("new") {
        for round in 0..=rounds {
            for racer in in_turn(round, &racers) {
                let lap = match (racer, &mut peer) {
                    (Racer::Plain, _) => field.plain_new_documents(round)?,
                    (Racer::Peer, Some(peer)) => peer.new_documents(round)?,
                    _ => field.new_documents(round)?,
                };
                report.add(round, Workload::New, racer, lap);
            }
        }
    }
    for (name, workload) in [("in-place", Workload::InPlace), ("cold", Workload::Cold)] {
        if !options.runs(name) {
            continue;
        }
        // The first round of each is not counted: caches and the servers' compilers warm up.
        for round in 0..=rounds {
            for racer in in_turn(round, &racers) {
                let lap = match (racer, &mut peer) {
                    (Racer::Plain, _) => field.plain_in_place(&mut plain)?,
                    (Racer::Peer, Some(peer)) => peer.in_place()?,
                    _ => field.in_place(round, workload == Workload::Cold)?,
                };
                report.add(round, workload, racer, lap);
            }
        }
    }
    if options.runs("hot-keys") {
        let racers = with_peer(&[Racer::Geofold]);
        for round in 0..=rounds {
            for racer in in_turn(round, &racers) {
                let lap = match (racer, &mut peer) {
                    (Racer::Peer, Some(peer)) => peer.hot_keys()?,
                    _ => field.hot_keys(options.backlog.min(SINK_RECORDS) * HOT_WRITES_PER_SINK_RECORD)?,
                };
                report.add(round, Workload::HotKeys, racer, lap);
            }
        }
    }
    if options.runs("moves") {
        race_moves(options, &mut field, &mut plain, report)?;
    }
    if options.runs("day") {
        for round in 0..=rounds.min(2) {
            report.add(round, Workload::Day, Racer::Geofold, field.day()?);
        }
    }
    report.peaks.push(("in the race", field.peak_mebibytes()?));
    field.check_count()
}

/// Who races in a round, in order: each round begins with another racer, since the first may find what a round before has left.
fn in_turn(round: usize, racers: &[Racer]) -> impl Iterator<Item = Racer> {
    racers.iter().copied().cycle().skip(round % racers.len()).take(racers.len())
}

/// Everybody moves, in indices that are refreshed as those that somebody searches.
fn race_moves(options: &Options, field: &mut Field, plain: &mut Crowd, report: &mut Report) -> Result<()> {
    let more = "[moves]\nvisibility = \"realtime\"\n";
    let mut realtime =
        Field::prepare(options, &options.elasticsearch, options.partitions, options.documents, more)?;
    realtime.first_documents()?;
    for field in [&*field, &realtime] {
        field.refresh_every("1s")?;
    }
    for round in 0..=options.rounds {
        for racer in in_turn(round, &[Racer::Geofold, Racer::Realtime, Racer::Plain, Racer::Naive]) {
            let lap = match racer {
                Racer::Plain => field.plain_moves(plain)?,
                Racer::Naive => field.naive_moves()?,
                Racer::Realtime => realtime.moves()?,
                _ => field.moves()?,
            };
            report.add(round, Workload::Moves, racer, lap);
        }
    }
    realtime.check_count()
}

/// geofold against an Elasticsearch that does nothing, beside a consumer that does nothing.
fn without_elasticsearch(options: &Options, report: &mut Report) -> Result<()> {
    let nothing = null::NullElasticsearch::start(&options.elasticsearch)?;
    let people = SINK_PEOPLE.min(options.backlog).max(1);
    let steps = options.backlog.min(SINK_RECORDS) / people;
    if options.runs("null-sink") {
        let mut field = Field::prepare(options, nothing.url(), options.partitions, people, "")?;
        field.first_documents()?;
        for round in 0..=options.rounds {
            report.add(round, Workload::NullSink, Racer::Geofold, field.steps(steps, 0.98)?);
            let lap = field.consumed(options, steps * people)?;
            report.add(round, Workload::NullSink, Racer::Consumer, lap);
        }
        report.peaks.push((Workload::NullSink.name(), field.peak_mebibytes()?));
    }
    if options.runs("partitions") {
        let mut one = Field::prepare(options, nothing.url(), 1, people, "")?;
        let mut many = Field::prepare(options, nothing.url(), 64, people, "")?;
        one.first_documents()?;
        many.first_documents()?;
        for round in 0..=options.rounds {
            report.add(round, Workload::OnePartition, Racer::Geofold, one.steps(steps, 0.98)?);
            // A partition of 64 has few people. What is read ahead of it may have some of them twice.
            report.add(round, Workload::ManyPartitions, Racer::Geofold, many.steps(steps, 0.5)?);
        }
        report.peaks.push((Workload::OnePartition.name(), one.peak_mebibytes()?));
        report.peaks.push((Workload::ManyPartitions.name(), many.peak_mebibytes()?));
    }
    Ok(())
}
