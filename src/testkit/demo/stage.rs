//! Everything that takes part in the demo, and the course of the day.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tokio::time::MissedTickBehavior;

use super::DemoOptions;
use super::audit;
use super::faults::{Blow, Trouble, next_blow, trouble_at};
use super::onlooker::Observer;
use super::people::People;
use super::searcher::Searcher;
use super::setup::{self, MAP, PREFIX};
use super::topic::Topic;
use super::verdict::{Memory, Verdict};
use super::view::{Moment, View};
use super::workers::{Counters, WorkerProcess, free_port, peak_memory};
use crate::geoshard::GeoshardMap;
use crate::io::elastic::Index;
use crate::io::elastic::http::HttpElastic;
use crate::testkit::embedded::broker::EmbeddedBroker;
use crate::testkit::embedded::elasticsearch::{Standin, StandinOptions};

const PARTITIONS: i32 = 16;
/// How often the day goes on by a step.
const STEP: Duration = Duration::from_millis(20);
/// Interval at which workers and topic are polled for the view.
const LOOK: Duration = Duration::from_millis(500);
/// A killed worker comes back after this.
const AWAY: Duration = Duration::from_secs(1);
/// A frozen one goes on after this: its group has given it up (`SESSION`) and shared out its partitions, and the batch that
/// it had under way may still send.
const FROZEN: Duration = Duration::from_secs(5);
const START_PATIENCE: Duration = Duration::from_secs(30);
const DRAIN_PATIENCE: Duration = Duration::from_secs(90);

/// See the top of this file.
pub(super) struct Stage {
    options: DemoOptions,
    people: People,
    topic: Topic,
    standin: Standin,
    elastic: HttpElastic,
    map: GeoshardMap,
    config: PathBuf,
    workers: [Option<WorkerProcess>; 2],
    ports: [u16; 2],
    /// When a killed or frozen worker is to come back.
    back_at: [Option<Instant>; 2],
    /// Counters of workers that were killed.
    past: Counters,
    memory: Memory,
    trouble: Option<Trouble>,
    troubles: u64,
    blows: usize,
    onlooker: Observer,
    searcher: Searcher,
    view: View,
    // Dropped last: the others have their files in it.
    _folder: TempDir,
    _broker: EmbeddedBroker,
}

impl Stage {
    /// Starts everything; both workers are ready then.
    pub(super) async fn set(options: DemoOptions) -> Result<Self> {
        let ports = match options.port {
            0 => [0, 0],
            port => [
                port,
                port.checked_add(1).context("--port: there is no port above 65535 for the second worker")?,
            ],
        };
        for port in ports {
            free_port(port).with_context(|| {
                format!("port {port} cannot be had for a worker's status page; choose another with --port")
            })?;
        }
        let broker = EmbeddedBroker::start().context("starting the embedded broker")?;
        // Long enough for both workers to be there when the partitions are shared out.
        broker.set_initial_rebalance_delay(Duration::from_secs(1));
        let topic = Topic::create(&broker, PARTITIONS).context("creating the demo's topics")?;
        let standin = Standin::start(StandinOptions { seed: options.seed, ..StandinOptions::default() })
            .await
            .context("starting the Elasticsearch stand-in")?;
        let map = GeoshardMap::from_json(MAP).context("reading the sample map")?;
        let elastic = setup::connect(&standin)?;
        setup::create_indices(&elastic, &map).await?;
        let folder = TempDir::with_prefix("geofold-demo-").context("making a folder for the demo")?;
        let config = setup::write_config(folder.path(), &broker, &standin)?;
        let mut stage = Self {
            people: People::new(options.docs, options.seed),
            options,
            topic,
            standin,
            elastic,
            onlooker: Observer::new(PREFIX, map.shards()),
            searcher: Searcher::new(PREFIX, map.shards()),
            map,
            config,
            workers: [None, None],
            ports,
            back_at: [None, None],
            past: Counters::default(),
            memory: Memory::default(),
            trouble: None,
            troubles: 0,
            blows: 0,
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
    pub(super) async fn play(&mut self) -> Result<Counters> {
        let wake_ups = u64::from(self.options.docs);
        let day = u64::from(self.options.rate) * u64::from(self.options.seconds);
        let all = wake_ups + day;
        let mut step = tokio::time::interval(STEP);
        step.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut next_look = Instant::now();
        let mut day_began = None;
        while self.people.events() < all || self.people.is_midway() {
            step.tick().await;
            let sent = self.people.events();
            let target = if sent < wake_ups {
                wake_ups
            } else {
                let began = *day_began.get_or_insert_with(Instant::now);
                let passed = began.elapsed().as_millis() * u128::from(self.options.rate) / 1000;
                wake_ups + day.min(u64::try_from(passed).unwrap_or(day))
            };
            self.send_up_to(target, all)?;
            if !self.options.calm {
                let done = self.people.events().saturating_sub(wake_ups);
                self.set_trouble(trouble_at(done, day));
                if let Some(blow) = next_blow(done, day, self.blows) {
                    self.deal(blow).await?;
                }
            }
            self.tend()?;
            if Instant::now() >= next_look {
                next_look = Instant::now() + LOOK;
                self.look(all).await?;
            }
        }
        self.set_trouble(None);
        let deadline = Instant::now() + DRAIN_PATIENCE;
        while !self.is_over()? {
            ensure!(
                Instant::now() < deadline,
                "the workers did not finish within {DRAIN_PATIENCE:?}{}",
                self.logs()
            );
            step.tick().await;
            self.tend()?;
            if Instant::now() >= next_look {
                next_look = Instant::now() + LOOK;
                self.look(all).await?;
            }
        }
        self.look(all).await?;
        let mut counters = self.past;
        for worker in self.workers.iter_mut().filter_map(Option::take) {
            counters = counters.plus(worker.last_counters());
            let tail = worker.log_tail();
            ensure!(worker.stop().await.context("stopping a worker")?, "a worker ended badly:\n{tail}");
        }
        Ok(counters)
    }

    /// Compares everything with the truth.
    pub(super) async fn judge(mut self, counters: Counters, began: Instant) -> Result<Verdict> {
        self.view.end();
        let mut findings = audit::audit(&self.elastic, PREFIX, &self.map, self.people.truth())
            .await
            .context("reading the index for the verdict")?;
        let letters = self.topic.dead_letters().context("reading the dead-letter topic")?;
        findings.add_dead_letters(&letters, self.people.poison_keys());
        findings.add_broken(self.onlooker.broken());
        findings.add_missed(self.searcher.missed());
        self.memory.own = peak_memory(std::process::id());
        Ok(Verdict {
            findings,
            truth: self.people.digest(),
            events: self.people.events(),
            poison: self.people.poison_sent(),
            faults: self.troubles + self.blows as u64,
            looks: self.onlooker.looks(),
            searches: self.searcher.searches(),
            counters,
            memory: self.memory,
            took: began.elapsed(),
        })
    }

    /// Whether everything sent is committed, all workers run, and no delayed request is left.
    fn is_over(&mut self) -> Result<bool> {
        let is_whole = self.back_at.iter().all(Option::is_none) && self.standin.late_requests() == 0;
        Ok(is_whole && self.topic.is_committed().context("asking for committed offsets")?)
    }

    /// Sends events until there were `target` of them, or the backlog is as long as the broker can keep. The last one is
    /// not in the middle of a ping-pong.
    fn send_up_to(&mut self, target: u64, all: u64) -> Result<()> {
        let is_due =
            |people: &People| people.events() < target || (people.events() >= all && people.is_midway());
        while is_due(&self.people) && self.topic.has_room() {
            let event = self.people.next_event();
            self.topic.produce(&event).context("producing an event")?;
        }
        Ok(())
    }

    /// Makes `trouble` the one that there is.
    fn set_trouble(&mut self, trouble: Option<Trouble>) {
        if trouble != self.trouble {
            self.trouble = trouble;
            self.troubles += u64::from(trouble.is_some());
            self.standin.faults().set(trouble.map(Trouble::plan).unwrap_or_default());
        }
    }

    async fn deal(&mut self, blow: Blow) -> Result<()> {
        self.blows += 1;
        match blow {
            Blow::Kill(number) => {
                let Some(mut worker) = self.workers[number].take() else { return Ok(()) };
                self.note_memory(number, &worker);
                let last = Counters { assigned: 0, oldest_dirty: 0.0, ..worker.counters().await };
                self.past = self.past.plus(last);
                worker.kill().context("killing a worker")?;
                self.back_at[number] = Some(Instant::now() + AWAY);
            }
            Blow::Freeze(number) => {
                let Some(worker) = &mut self.workers[number] else { return Ok(()) };
                worker.freeze().context("stopping a worker with SIGSTOP")?;
                self.back_at[number] = Some(Instant::now() + FROZEN);
            }
        }
        Ok(())
    }

    /// Restarts workers that are due, and runs the searcher.
    fn tend(&mut self) -> Result<()> {
        for number in 0..self.workers.len() {
            if self.back_at[number].is_none_or(|back_at| Instant::now() < back_at) {
                continue;
            }
            self.back_at[number] = None;
            match &mut self.workers[number] {
                Some(worker) => worker.thaw().context("waking a worker up with SIGCONT")?,
                None => self.start_worker(number)?,
            }
        }
        self.onlooker.look(self.standin.store(), self.people.faithful());
        self.searcher.go_on(self.standin.store(), Instant::now(), self.people.faithful());
        Ok(())
    }

    fn start_worker(&mut self, number: usize) -> Result<()> {
        let name = format!("worker-{}", number + 1);
        let port = free_port(self.ports[number]).context("looking for a free port")?;
        let worker = WorkerProcess::start(&self.config, &name, port, &self.options.worker_arguments);
        self.workers[number] = Some(worker.context("starting a worker")?);
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
        for (number, place) in self.workers.iter_mut().enumerate() {
            let Some(worker) = place else { continue };
            ensure!(worker.is_running(), "a worker ended by itself:\n{}", worker.log_tail());
            counters = counters.plus(worker.counters().await);
            self.memory.workers[number] = self.memory.workers[number].max(worker.peak_memory());
            pages.push(worker.page());
        }
        let lag = self.topic.update_lag().context("asking for committed offsets")?;
        let store = self.standin.store();
        let changes = self.map.shards().iter().map(|shard| {
            let index = Index::Geoshard(shard.clone()).name(PREFIX);
            (shard.to_string(), store.changes(&index).unwrap_or_default())
        });
        self.view.show(&Moment {
            sent: self.people.events(),
            events,
            lag,
            counters,
            changes: changes.collect(),
            wrong: self.wrong(),
            pages,
        });
        Ok(())
    }

    /// Current faults, for the view.
    fn wrong(&self) -> Vec<String> {
        let mut wrong: Vec<String> =
            self.trouble.iter().map(|trouble| trouble.describe().to_owned()).collect();
        for (number, worker) in self.workers.iter().enumerate() {
            match worker {
                None => wrong.push(format!("worker {} was killed with -9", number + 1)),
                Some(_) if self.back_at[number].is_some() => {
                    wrong.push(format!("worker {} is frozen", number + 1));
                }
                Some(_) => {}
            }
        }
        wrong
    }

    fn note_memory(&mut self, number: usize, worker: &WorkerProcess) {
        let peak = &mut self.memory.workers[number];
        *peak = (*peak).max(worker.peak_memory());
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
