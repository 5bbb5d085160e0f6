//! `geofold demo`: the whole job with nothing installed.
//!
//! librdkafka's mock broker and an in-process stand-in for Elasticsearch serve two real workers, child processes of this
//! one. Simulated people travel the globe, faults come as on a bad day, and at the end every document of the index is
//! compared with what it should be.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the course of the demo |
//! | `people.rs`, `cities.rs` | the simulation and its truth (pure) |
//! | `faults.rs` | which fault is on when (pure) |
//! | `topic.rs` | producing, and what is committed |
//! | `workers.rs` | the child processes |
//! | `audit.rs` | the index against the truth |
//! | `view.rs` | what a person sees |

mod audit;
pub mod cities;
mod faults;
mod people;
mod topic;
mod view;
mod workers;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use self::audit::Findings;
use self::faults::{Fault, fault_at};
use self::people::People;
use self::topic::Topic;
use self::view::{Moment, View};
use self::workers::{Counters, WorkerProcess};
use crate::clock::BootClock;
use crate::elastic::http::{Auth, HttpElastic, HttpOptions};
use crate::embedded::broker::EmbeddedBroker;
use crate::embedded::elasticsearch::{FaultPlan, Standin, StandinOptions};
use crate::geoshard::GeoshardMap;
use crate::indices::{self, Layout, Template};

const PREFIX: &str = "demo";
const PARTITIONS: i32 = 16;
const MAP: &str = include_str!("../../config/map-55.json");
/// How often the day goes on by a step.
const STEP: Duration = Duration::from_millis(20);
/// How often workers and topic are asked for the view.
const LOOK: Duration = Duration::from_millis(500);
/// A killed worker comes back after this.
const AWAY: Duration = Duration::from_secs(1);
const START_PATIENCE: Duration = Duration::from_secs(30);
const DRAIN_PATIENCE: Duration = Duration::from_secs(90);

/// How the demo runs.
#[derive(Debug, Clone, Copy)]
pub struct DemoOptions {
    /// People, one document each.
    pub docs: u32,
    /// Events per second after everybody woke up.
    pub rate: u32,
    /// Length of the day after that.
    pub seconds: u32,
    /// Of people and faults.
    pub seed: u64,
    /// No faults.
    pub calm: bool,
}

/// How it went.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    findings: Findings,
    events: u64,
    poison: u64,
    dead_lettered: u64,
    faults: u64,
    counters: Counters,
    took: Duration,
}

impl Verdict {
    /// Whether the index is exactly what it should be, and all poison is in the dead-letter topic.
    pub fn is_good(&self) -> bool {
        self.findings.is_clean() && self.dead_lettered == self.poison
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { findings, counters, .. } = self;
        let Findings { documents, misplaced, missing, doubled, stale, surplus, examples } = findings;
        let megabytes = counters.memory / f64::from(1 << 20);
        writeln!(f, "verdict: {}", if self.is_good() { "the index is right" } else { "THE INDEX IS WRONG" })?;
        writeln!(f, "  events           {:>9}  in {:.1} s", self.events, self.took.as_secs_f64())?;
        writeln!(f, "  faults survived  {:>9}", self.faults)?;
        writeln!(
            f,
            "  folded           {:>9}  records went into a newer write of the same document",
            counters.folded
        )?;
        writeln!(f, "  moves            {:>9}  between geoshards", counters.moves)?;
        writeln!(f, "  retries          {:>9}  items sent to Elasticsearch again", counters.retries)?;
        writeln!(f, "  worker memory    {megabytes:>9.0}  MiB at most, each")?;
        writeln!(f, "  documents        {documents:>9}  compared with the truth, one by one")?;
        for (what, count) in [
            ("in wrong place", misplaced),
            ("missing", missing),
            ("doubled", doubled),
            ("stale", stale),
            ("surplus", surplus),
        ] {
            writeln!(f, "  {what:<15}  {count:>9}")?;
        }
        write!(f, "  dead-lettered    {:>9}  of {} poison records sent", self.dead_lettered, self.poison)?;
        examples.iter().try_for_each(|example| write!(f, "\n  wrong: {example}"))
    }
}

/// Runs the demo to its verdict.
///
/// # Errors
/// If a part of it can not be started, a worker ends by itself, or the workers do not finish the work in time.
pub async fn run(options: DemoOptions, stop: CancellationToken) -> Result<Verdict> {
    let began = Instant::now();
    let mut stage = Stage::set(options).await?;
    let counters = tokio::select! {
        counters = stage.play() => counters?,
        () = stop.cancelled() => bail!("interrupted"),
    };
    stage.judge(counters, began).await
}

/// Everything that takes part.
struct Stage {
    options: DemoOptions,
    people: People,
    topic: Topic,
    standin: Standin,
    elastic: HttpElastic,
    map: GeoshardMap,
    config: PathBuf,
    workers: [Option<WorkerProcess>; 2],
    /// Counters of workers that were killed.
    past: Counters,
    fault: Option<Fault>,
    back_at: Option<Instant>,
    faults: u64,
    view: View,
    // Dropped last: the others have their files in it.
    _folder: TempDir,
    _broker: EmbeddedBroker,
}

impl Stage {
    async fn set(options: DemoOptions) -> Result<Self> {
        let broker = EmbeddedBroker::start().context("starting the embedded broker")?;
        let topic = Topic::create(&broker, PARTITIONS).context("creating the demo's topics")?;
        let standin = Standin::start(StandinOptions { seed: options.seed, ..StandinOptions::default() })
            .await
            .context("starting the Elasticsearch stand-in")?;
        let map = GeoshardMap::from_json(MAP).context("reading the sample map")?;
        let elastic = connect(&standin)?;
        create_indices(&elastic, &map).await?;
        let folder = TempDir::with_prefix("geofold-demo-").context("making a folder for the demo")?;
        let config = write_config(folder.path(), &broker, &standin)?;
        let mut stage = Self {
            people: People::new(options.docs, options.seed),
            options,
            topic,
            standin,
            elastic,
            map,
            config,
            workers: [None, None],
            past: Counters::default(),
            fault: None,
            back_at: None,
            faults: 0,
            view: View::new(),
            _folder: folder,
            _broker: broker,
        };
        for number in 0..stage.workers.len() {
            stage.start_worker(number)?;
        }
        stage.wait_until_ready().await?;
        Ok(stage)
    }

    /// The day, until everything is written and committed. Gives the counters of all workers.
    async fn play(&mut self) -> Result<Counters> {
        let wake_ups = u64::from(self.options.docs);
        let day = u64::from(self.options.rate) * u64::from(self.options.seconds);
        let mut step = tokio::time::interval(STEP);
        step.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut next_look = Instant::now();
        let mut day_began = None;
        while self.people.events() < wake_ups + day {
            step.tick().await;
            let sent = self.people.events();
            let target = if sent < wake_ups {
                wake_ups
            } else {
                let began = *day_began.get_or_insert_with(Instant::now);
                let passed = began.elapsed().as_millis();
                wake_ups
                    + day.min(u64::try_from(passed * u128::from(self.options.rate) / 1000).unwrap_or(day))
            };
            self.send_up_to(target)?;
            if !self.options.calm {
                self.apply(fault_at(self.people.events().saturating_sub(wake_ups), day)).await?;
            }
            if Instant::now() >= next_look {
                next_look = Instant::now() + LOOK;
                self.look(wake_ups + day).await?;
            }
        }
        self.apply(None).await?;
        let deadline = Instant::now() + DRAIN_PATIENCE;
        while !self.topic.is_committed().context("asking for committed offsets")? {
            ensure!(
                Instant::now() < deadline,
                "the workers did not finish within {DRAIN_PATIENCE:?}{}",
                self.logs()
            );
            self.look(wake_ups + day).await?;
            tokio::time::sleep(LOOK).await;
        }
        self.look(wake_ups + day).await?;
        let mut counters = self.past;
        for worker in self.workers.iter_mut().filter_map(Option::take) {
            counters = counters.plus(worker.last_counters());
            let tail = worker.log_tail();
            ensure!(worker.stop().await.context("stopping a worker")?, "a worker ended badly:\n{tail}");
        }
        Ok(counters)
    }

    async fn judge(mut self, counters: Counters, began: Instant) -> Result<Verdict> {
        self.view.end();
        let findings = audit::audit(&self.elastic, PREFIX, &self.map, self.people.truth())
            .await
            .context("reading the index for the verdict")?;
        let dead_lettered = self.topic.dead_letters().context("reading the dead-letter topic")?;
        Ok(Verdict {
            findings,
            events: self.people.events(),
            poison: self.people.poison_sent(),
            dead_lettered,
            faults: self.faults,
            counters,
            took: began.elapsed(),
        })
    }

    /// Sends events until there were `target` of them, or the backlog is as long as the broker can keep.
    fn send_up_to(&mut self, target: u64) -> Result<()> {
        while self.people.events() < target && self.topic.has_room() {
            let event = self.people.next_event();
            self.topic.produce(&event).context("producing an event")?;
        }
        Ok(())
    }

    /// Makes `fault` the one that is on.
    async fn apply(&mut self, fault: Option<Fault>) -> Result<()> {
        if self.back_at.is_some_and(|back_at| back_at <= Instant::now())
            || (fault.is_none() && self.back_at.is_some())
        {
            self.back_at = None;
            for number in 0..self.workers.len() {
                if self.workers[number].is_none() {
                    self.start_worker(number)?;
                }
            }
        }
        if fault == self.fault {
            return Ok(());
        }
        self.fault = fault;
        self.faults += u64::from(fault.is_some());
        self.standin.faults().clear();
        let plan = match fault {
            None => return Ok(()),
            Some(Fault::KillFirst) => return self.kill(0).await,
            Some(Fault::KillSecond) => return self.kill(1).await,
            Some(Fault::Slow) => FaultPlan { latency: Duration::from_millis(300), ..FaultPlan::default() },
            Some(Fault::PushedBack) => FaultPlan { busy: 0.3, busy_items: 0.1, ..FaultPlan::default() },
            Some(Fault::LostReplies) => FaultPlan { lost_replies: 0.2, ..FaultPlan::default() },
            Some(Fault::Down) => FaultPlan { down: true, ..FaultPlan::default() },
        };
        self.standin.faults().set(plan);
        Ok(())
    }

    async fn kill(&mut self, number: usize) -> Result<()> {
        if let Some(mut worker) = self.workers[number].take() {
            self.past = self.past.plus(worker.counters().await);
            self.past.oldest_dirty = 0.0;
            worker.kill().context("killing a worker")?;
            self.back_at = Some(Instant::now() + AWAY);
        }
        Ok(())
    }

    fn start_worker(&mut self, number: usize) -> Result<()> {
        let name = format!("worker-{}", number + 1);
        self.workers[number] = Some(WorkerProcess::start(&self.config, &name).context("starting a worker")?);
        Ok(())
    }

    async fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            let mut ready = 0;
            for worker in self.workers.iter_mut().flatten() {
                ready += usize::from(worker.is_ready().await);
                ensure!(worker.is_running(), "a worker could not start:\n{}", worker.log_tail());
            }
            if ready == self.workers.len() {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "the workers were not ready within {START_PATIENCE:?}{}",
                self.logs()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Shows how things are.
    async fn look(&mut self, events: u64) -> Result<()> {
        let mut counters = self.past;
        let mut pages = Vec::new();
        for worker in self.workers.iter_mut().flatten() {
            ensure!(worker.is_running(), "a worker ended by itself:\n{}", worker.log_tail());
            counters = counters.plus(worker.counters().await);
            pages.push(worker.page());
        }
        let lag = self.topic.update_lag().context("asking for committed offsets")?;
        self.view.show(&Moment {
            sent: self.people.events(),
            events,
            lag,
            counters,
            fault: self.fault.map(Fault::describe),
            pages,
        });
        Ok(())
    }

    fn logs(&self) -> String {
        let tails = self
            .workers
            .iter()
            .flatten()
            .map(|worker| format!("\n--- a worker's log:\n{}", worker.log_tail()));
        tails.collect()
    }
}

fn connect(standin: &Standin) -> Result<HttpElastic> {
    let options = HttpOptions {
        urls: vec![standin.url().parse().context("the stand-in's address")?],
        auth: Auth::None,
        ca_pem: None,
        prefix: PREFIX.to_owned(),
        request_timeout: Duration::from_secs(20),
    };
    HttpElastic::connect(&options, Arc::new(BootClock)).context("connecting to the stand-in")
}

async fn create_indices(elastic: &HttpElastic, map: &GeoshardMap) -> Result<()> {
    let layout = Layout {
        prefix: PREFIX,
        shards: map.shards(),
        location: "location",
        gc_deletes: Duration::from_secs(600),
    };
    let wanted = indices::wanted(&layout, &Template::default()).context("laying out the demo's indices")?;
    let report = indices::create_missing(elastic, PREFIX, &wanted, Duration::from_secs(20))
        .await
        .context("creating the demo's indices")?;
    ensure!(
        report.differences.is_empty(),
        "the stand-in's indices are not as asked for: {:?}",
        report.differences
    );
    Ok(())
}

fn write_config(folder: &Path, broker: &EmbeddedBroker, standin: &Standin) -> Result<PathBuf> {
    let (brokers, url) = (broker.address(), standin.url());
    let config = format!(
        r#"[kafka]
brokers = ["{brokers}"]
topic = "{topic}"
group_id = "{group}"
session_timeout = "3s"
heartbeat_interval = "300ms"

[elasticsearch]
urls = ["{url}"]
prefix = "{PREFIX}"
request_timeout = "3s"

[geoshards]
map = "map.json"

[batch]
deadline = "10s"

[memory]
total = "64MiB"
per_partition = "16MiB"
cached_placements = 100000

[commit]
interval = "300ms"

[retry]
max = "1s"

[dead_letter]
policy = "topic"
topic = "{dead_letters}"

[shutdown]
revoke = "1s"

[log]
filter = "warn,librdkafka=error"
"#,
        topic = topic::DOCUMENTS,
        group = topic::GROUP,
        dead_letters = topic::DEAD_LETTERS,
    );
    let path = folder.join("geofold.toml");
    std::fs::write(&path, config).context("writing the workers' configuration")?;
    std::fs::write(folder.join("map.json"), MAP).context("writing the map")?;
    Ok(path)
}
