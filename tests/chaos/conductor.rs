//! Carries the schedule out: on the workers, the proxy, the broker and Elasticsearch.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::audit::Findings;
use crate::command::Options;
use crate::crew::{Counted, Crew, DEADLINE, SESSION};
use crate::report::Status;
use crate::schedule::{Blow, Scene, Schedule};
use crate::support::{Faults, Proxy, World, ask_for, wait_at_most};

/// This long after its batch deadline, a worker that was cut off knows that it is no longer the owner.
const TO_LEARN: Duration = Duration::from_secs(5);

/// What is to happen may take so long, on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(180);

/// See the file's first lines.
pub struct Conductor<'a> {
    world: &'a World,
    proxy: &'a Proxy,
    crew: Crew<'a>,
    options: &'a Options,
    status: &'a Status,
    /// Since when no worker is frozen, cut off from the broker, or cut off from Elasticsearch.
    all_awake_since: Instant,
    /// How often the group's protocol was changed.
    changes: usize,
    played: Played,
}

/// What is seen while all is calm.
enum Next {
    MovesOn,
    AtRest,
}

/// What was survived, in scenes.
#[derive(Debug, Default)]
pub struct Played {
    pub blows: BTreeMap<&'static str, u64>,
    pub weathers: BTreeMap<String, u64>,
    pub protocols: BTreeMap<String, u64>,
    /// What the workers counted.
    pub counted: Counted,
}

impl<'a> Conductor<'a> {
    pub fn new(
        world: &'a World,
        proxy: &'a Proxy,
        crew: Crew<'a>,
        options: &'a Options,
        status: &'a Status,
    ) -> Self {
        Self {
            world,
            proxy,
            crew,
            options,
            status,
            all_awake_since: Instant::now(),
            changes: 0,
            played: Played::default(),
        }
    }

    /// Scene after scene, until it has lasted long enough.
    pub fn play(&mut self, findings: &mut Findings) {
        let schedule = Schedule::new(self.options.seed, self.crew.size(), SESSION);
        for scene in schedule {
            if self.status.elapsed() >= self.options.lasts {
                break;
            }
            self.scene(&scene);
            if let Some(words) = self.crew.ended_by_itself() {
                findings.add(words);
                self.crew.launch_all();
            }
        }
    }

    fn scene(&mut self, scene: &Scene) {
        let with = scene.blow.kind();
        let now = format!("{}; {}", self.crew.protocol(), scene.weather);
        self.status.set(format!("{now}; soon: {with}"));
        *self.played.protocols.entry(self.crew.protocol().to_string()).or_default() += 1;
        *self.played.weathers.entry(scene.weather.to_string()).or_default() += 1;
        self.proxy.set(scene.weather.faults());
        std::thread::sleep(scene.before);
        if scene.blow.forgets_tombstones() {
            self.wait_until_nobody_is_late(scene.weather.faults());
        }
        self.status.set(format!("{now}; {with}"));
        self.strike(scene.blow);
        *self.played.blows.entry(with).or_default() += 1;
        self.status.set(format!("{now}; after: {with}"));
        std::thread::sleep(scene.after);
    }

    /// Elasticsearch forgets by a restart which versions deleted documents had, so a request from before that is carried out
    /// after it is outside of what the protocol promises. Waits until there can be none.
    fn wait_until_nobody_is_late(&self, faults: Faults) {
        let awake = self.all_awake_since.elapsed();
        std::thread::sleep((DEADLINE + TO_LEARN).saturating_sub(awake));
        self.crew.wait_until_shared_out(self.options.partitions);
        // Block new requests for a moment, so that those in flight complete.
        self.proxy.set(Faults { resets: 100, ..Faults::default() });
        wait_at_most("the end of all requests", TIMEOUT, || (self.proxy.under_way() == 0).then_some(()));
        self.proxy.set(faults);
        // The requests that it is to fall upon.
        std::thread::sleep(Duration::from_secs(1));
    }

    fn strike(&mut self, blow: Blow) {
        let stack = &self.world.stack;
        match blow {
            Blow::KillWorker { worker, down } => {
                self.crew.kill(worker);
                std::thread::sleep(down);
                self.crew.launch(worker);
            }
            Blow::KillWorkers { down } => {
                (0..self.crew.size()).for_each(|worker| self.crew.kill(worker));
                std::thread::sleep(down);
                self.crew.launch_all();
            }
            Blow::Freeze { worker, lasts } => {
                self.crew.freeze(worker);
                std::thread::sleep(lasts);
                self.crew.thaw(worker);
                self.all_awake_since = Instant::now();
            }
            Blow::FreezeAndKill { frozen, killed, lasts } => {
                self.crew.freeze(frozen);
                std::thread::sleep(lasts / 2);
                self.crew.kill(killed);
                self.crew.launch(killed);
                std::thread::sleep(lasts / 2);
                self.crew.thaw(frozen);
                self.all_awake_since = Instant::now();
            }
            Blow::StopWorker { worker, down } => {
                self.crew.stop(worker);
                std::thread::sleep(down);
                self.crew.launch(worker);
            }
            Blow::RollWorkers => {
                for worker in 0..self.crew.size() {
                    self.crew.stop(worker);
                    self.crew.launch(worker);
                }
            }
            Blow::ChangeProtocol => {
                self.crew.stop_all();
                // Of those that were killed before, the group is to know as well.
                std::thread::sleep(SESSION);
                self.changes += 1;
                self.crew.set_protocol(self.options.protocol(self.changes));
                self.crew.launch_all();
            }
            Blow::KillBroker { down } => {
                stack.tell("kill", "kafka");
                std::thread::sleep(down);
                stack.tell("start", "kafka");
                self.all_awake_since = Instant::now();
            }
            Blow::RestartBroker => {
                stack.tell("restart", "kafka");
                self.all_awake_since = Instant::now();
            }
            Blow::PauseBroker { lasts } => {
                stack.tell("pause", "kafka");
                std::thread::sleep(lasts);
                stack.tell("resume", "kafka");
                self.all_awake_since = Instant::now();
            }
            Blow::KillElasticsearch { down } => {
                stack.tell("kill", "elasticsearch");
                std::thread::sleep(down);
                stack.tell("start", "elasticsearch");
            }
            Blow::RestartElasticsearch => stack.tell("restart", "elasticsearch"),
            Blow::PauseElasticsearch { lasts } => {
                stack.tell("pause", "elasticsearch");
                std::thread::sleep(lasts);
                stack.tell("resume", "elasticsearch");
                self.all_awake_since = Instant::now();
            }
        }
    }

    /// Everything runs and nothing goes wrong: waits until all that was written is done. What does not come to rest is found.
    pub fn calm(&mut self, findings: &mut Findings) {
        self.proxy.set(Faults::default());
        self.crew.launch_all();
        let mut committed = 0;
        loop {
            let mut offsets = Vec::new();
            // As long as offsets move on, however slowly, it is a matter of time.
            let next = ask_for(TIMEOUT, || {
                if let Some(words) = self.crew.ended_by_itself() {
                    findings.add(words);
                    self.crew.launch_all();
                }
                offsets = self.world.offsets();
                let sum = offsets.iter().map(|(committed, _)| committed).sum();
                if sum > committed {
                    committed = sum;
                    return Some(Next::MovesOn);
                }
                let is_committed = offsets.iter().all(|(committed, end)| committed == end);
                (is_committed && self.crew.in_flight() == 0.0 && self.proxy.under_way() == 0)
                    .then_some(Next::AtRest)
            });
            match next {
                Some(Next::MovesOn) => {}
                Some(Next::AtRest) => return,
                None => {
                    let (in_flight, complaints) = (self.crew.in_flight(), self.crew.complaints());
                    return findings.add(format!(
                        "it does not come to rest: committed and end offsets are {offsets:?}, {in_flight} records \
                         in flight; {complaints:?}"
                    ));
                }
            }
        }
    }

    /// All processes stop in order.
    pub fn finish(mut self) -> Played {
        self.crew.stop_all();
        Played { counted: self.crew.counted(), ..self.played }
    }
}
