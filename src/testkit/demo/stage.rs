//! Everything that takes part in the demo, and the course of the day.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tokio::time::MissedTickBehavior;

use super::DemoOptions;
use super::audit;
use super::faults::{Blow, DemoFault, next_blow, trouble_at};
use super::onlooker::Observer;
use super::people::People;
use super::searcher::Searcher;
use super::setup::{self, MAP, PREFIX};
use super::timeline::Timeline;
use super::topic::DemoTopic;
use super::verdict::{DemoVerdict, ResidentMemory};
use super::view::{DemoView, Moment};
use super::workers::{WorkerCounters, WorkerProcess, admin_port, peak_memory};
use crate::base::figures::count;
use crate::geoshard::GeoshardMap;
use crate::geoshard::cities::largest_cities;
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
pub(super) struct DemoStage {
    options: DemoOptions,
    people: People,
    topic: DemoTopic,
    standin: Standin,
    elastic: HttpElastic,
    map: GeoshardMap,
    /// The largest in each geoshard.
    cities: Vec<Option<&'static str>>,
    config: PathBuf,
    workers: [Option<WorkerProcess>; 2],
    ports: [u16; 2],
    /// When a killed or frozen worker is to come back.
    back_at: [Option<Instant>; 2],
    /// Counters of workers that were killed.
    past: WorkerCounters,
    memory: ResidentMemory,
    trouble: Option<DemoFault>,
    blows: usize,
    /// Of each worker that is killed or frozen now.
    blow: [Option<Blow>; 2],
    began: Instant,
    lag: u64,
    timeline: Timeline,
    onlooker: Observer,
    searcher: Searcher,
    view: DemoView,
    // Dropped last: the others have their files in it.
    _folder: TempDir,
    _broker: EmbeddedBroker,
}

/// What is to be seen.
fn title(options: &DemoOptions, indices: usize) -> String {
    let people = count(u64::from(options.docs));
    let failing = if options.calm { "" } else { " while servers fail" };
    format!("{people} people move between {indices} indices{failing}; nothing may be lost")
}

impl DemoStage {
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
            admin_port(port).with_context(|| {
                format!("port {port} cannot be had for a worker's status page; choose another with --port")
            })?;
        }
        let broker = EmbeddedBroker::start().context("starting the embedded broker")?;
        // Long enough for both workers to be there when the partitions are shared out.
        broker.set_initial_rebalance_delay(Duration::from_secs(1));
        let topic = DemoTopic::create(&broker, PARTITIONS).context("creating the demo's topics")?;
        let standin = Standin::start(StandinOptions { seed: options.seed, ..StandinOptions::default() })
            .await
            .context("starting the Elasticsearch stand-in")?;
        let map = GeoshardMap::from_json(MAP).context("reading the sample map")?;
        let elastic = setup::connect(&standin)?;
        setup::create_indices(&elastic, &map).await?;
        let folder = TempDir::with_prefix("geofold-demo-").context("making a folder for the demo")?;
        let config = setup::write_config(folder.path(), &broker, &standin)?;
        let title = title(&options, map.shards().len());
        let mut stage = Self {
            people: People::new(options.docs, options.seed),
            options,
            topic,
            standin,
            elastic,
            onlooker: Observer::new(PREFIX, map.shards()),
            searcher: Searcher::new(PREFIX, map.shards()),
            cities: largest_cities(&map),
            map,
            config,
            workers: [None, None],
            ports,
            back_at: [None, None],
            past: WorkerCounters::default(),
            memory: ResidentMemory::default(),
            trouble: None,
            blows: 0,
            blow: [None, None],
            began: Instant::now(),
            lag: 0,
            timeline: Timeline::default(),
            view: DemoView::new(title),
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
    pub(super) async fn play(&mut self) -> Result<WorkerCounters> {
        let wake_ups = u64::from(self.options.docs);
        let day = u64::from(self.options.rate) * u64::from(self.options.seconds);
        let all = wake_ups + day;
        let mut step = tokio::time::interval(STEP);
        step.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut next_look = Instant::now();
        let mut day_began = None;
        self.began = Instant::now();
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
        // Old copies of moved documents go once searches find the new ones, or at the latest with an orderly stop.
        while self.options.hold && self.counters().sweeps > 0 {
            ensure!(
                Instant::now() < deadline,
                "old copies are still there after {DRAIN_PATIENCE:?}{}",
                self.logs()
            );
            tokio::time::sleep(LOOK).await;
            self.tend()?;
            self.look(all).await?;
        }
        let counters = self.counters();
        self.view.end();
        Ok(counters)
    }

    /// Of all workers, as they were last.
    fn counters(&self) -> WorkerCounters {
        let workers = self.workers.iter().flatten();
        workers.fold(self.past, |sum, worker| sum.plus(worker.last_counters()))
    }

    /// Stops both workers; they have to end well.
    pub(super) async fn stop_workers(&mut self) -> Result<()> {
        for worker in self.workers.iter_mut().filter_map(Option::take) {
            let tail = worker.log_tail();
            ensure!(worker.stop().await.context("stopping a worker")?, "a worker ended badly:\n{tail}");
        }
        Ok(())
    }

    /// The status pages of the workers that run.
    pub(super) fn pages(&self) -> Vec<String> {
        self.workers.iter().flatten().map(WorkerProcess::page).collect()
    }

    /// Compares everything with the truth.
    pub(super) async fn judge(&mut self, counters: WorkerCounters, began: Instant) -> Result<DemoVerdict> {
        let mut findings = audit::audit(&self.elastic, PREFIX, &self.map, self.people.truth())
            .await
            .context("reading the index for the verdict")?;
        let letters = self.topic.dead_letters().context("reading the dead-letter topic")?;
        findings.add_dead_letters(&letters, self.people.poison_keys());
        findings.add_broken(self.onlooker.broken());
        findings.add_missed(self.searcher.missed());
        self.memory.own = peak_memory(std::process::id());
        Ok(DemoVerdict {
            findings,
            people: u64::from(self.options.docs),
            truth: self.people.digest(),
            events: self.people.events(),
            poison: self.people.poison_sent(),
            timeline: self.timeline.clone(),
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
    fn set_trouble(&mut self, trouble: Option<DemoFault>) {
        if trouble != self.trouble {
            let now = self.began.elapsed();
            if let Some(over) = self.trouble {
                self.timeline.end(over.describe(), now);
            }
            if let Some(begins) = trouble {
                self.timeline.begin(begins.describe(), now, self.lag);
            }
            self.trouble = trouble;
            self.standin.faults().set(trouble.map(DemoFault::plan).unwrap_or_default());
        }
    }

    async fn deal(&mut self, blow: Blow) -> Result<()> {
        self.blows += 1;
        match blow {
            Blow::Kill(number) => {
                let Some(mut worker) = self.workers[number].take() else { return Ok(()) };
                self.note_memory(number, &worker);
                let last =
                    WorkerCounters { assigned: 0, sweeps: 0, oldest_dirty: 0.0, ..worker.counters().await };
                self.past = self.past.plus(last);
                worker.kill().context("killing a worker")?;
                self.back_at[number] = Some(Instant::now() + AWAY);
                self.begin_blow(number, blow);
            }
            Blow::Freeze(number) => {
                let Some(worker) = &mut self.workers[number] else { return Ok(()) };
                worker.freeze().context("stopping a worker with SIGSTOP")?;
                self.back_at[number] = Some(Instant::now() + FROZEN);
                self.begin_blow(number, blow);
            }
        }
        Ok(())
    }

    /// A worker that was frozen and is killed is frozen no longer.
    fn begin_blow(&mut self, number: usize, blow: Blow) {
        self.end_blow(number);
        self.blow[number] = Some(blow);
        self.timeline.begin(blow.describe(), self.began.elapsed(), self.lag);
    }

    fn end_blow(&mut self, number: usize) {
        if let Some(blow) = self.blow[number].take() {
            self.timeline.end(blow.describe(), self.began.elapsed());
        }
    }

    /// Restarts workers that are due, and runs the searcher.
    fn tend(&mut self) -> Result<()> {
        for number in 0..self.workers.len() {
            if self.back_at[number].is_none_or(|back_at| Instant::now() < back_at) {
                continue;
            }
            self.back_at[number] = None;
            self.end_blow(number);
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
        let port = admin_port(self.ports[number]).context("looking for a free port")?;
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
        for (number, place) in self.workers.iter_mut().enumerate() {
            let Some(worker) = place else { continue };
            ensure!(worker.is_running(), "a worker ended by itself:\n{}", worker.log_tail());
            counters = counters.plus(worker.counters().await);
            self.memory.workers[number] = self.memory.workers[number].max(worker.peak_memory());
        }
        self.lag = self.topic.update_lag().context("asking for committed offsets")?;
        let now = self.began.elapsed();
        self.timeline.lag(now, self.lag);
        let store = self.standin.store();
        let changes = self.map.shards().iter().zip(&self.cities).map(|(shard, city)| {
            let index = Index::Geoshard(shard.clone()).name(PREFIX);
            let name = city.map_or_else(|| shard.to_string(), |city| format!("{shard} {city}"));
            (name, store.changes(&index).unwrap_or_default())
        });
        self.view.show(&Moment {
            sent: self.people.events(),
            events,
            lag: self.lag,
            counters,
            changes: changes.collect(),
            wrong: self.wrong(),
            timeline: self.timeline.lines(now, self.view.colours()),
            pages: self.pages(),
        });
        Ok(())
    }

    /// Current faults, for the view.
    fn wrong(&self) -> Vec<&'static str> {
        let blows = self.blow.iter().flatten().map(|blow| blow.describe());
        self.trouble.iter().map(|trouble| trouble.describe()).chain(blows).collect()
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
