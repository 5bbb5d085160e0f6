//! The workers: child processes by number, each of which may be down or frozen for a while, and what their counters said.

use std::fmt;
use std::time::Duration;

use crate::support::{Proxy, Worker, World, wait_at_most};

/// How a group shares its partitions out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Cooperative,
    Range,
    Consumer,
}

impl Protocol {
    pub const ALL: &'static [Self] = &[Self::Cooperative, Self::Consumer, Self::Range];

    /// Those that an argument names.
    pub fn named(text: &str) -> Result<&'static [Self], String> {
        match text {
            "all" => Ok(Self::ALL),
            "classic" => Ok(&[Self::Cooperative, Self::Range]),
            "cooperative" => Ok(&[Self::Cooperative]),
            "range" => Ok(&[Self::Range]),
            "consumer" => Ok(&[Self::Consumer]),
            _ => Err(format!("{text:?} is none of all, classic, cooperative, range, consumer")),
        }
    }

    fn env(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Cooperative => &[
                ("GEOFOLD_KAFKA__GROUP_PROTOCOL", "classic"),
                ("GEOFOLD_KAFKA__PARTITION_ASSIGNMENT_STRATEGY", "cooperative-sticky"),
                ("GEOFOLD_KAFKA__SESSION_TIMEOUT", "4s"),
                ("GEOFOLD_KAFKA__HEARTBEAT_INTERVAL", "500ms"),
            ],
            Self::Range => &[
                ("GEOFOLD_KAFKA__GROUP_PROTOCOL", "classic"),
                ("GEOFOLD_KAFKA__PARTITION_ASSIGNMENT_STRATEGY", "range"),
                ("GEOFOLD_KAFKA__SESSION_TIMEOUT", "4s"),
                ("GEOFOLD_KAFKA__HEARTBEAT_INTERVAL", "500ms"),
            ],
            // The broker of dev/stack waits for 6 s.
            Self::Consumer => &[("GEOFOLD_KAFKA__GROUP_PROTOCOL", "consumer")],
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cooperative => "classic, cooperative",
            Self::Range => "classic, range",
            Self::Consumer => "consumer protocol",
        })
    }
}

/// After so long without a sign of life any group here has given a member up.
pub const SESSION: Duration = Duration::from_secs(7);

/// `batch.timeout` of the workers: after this time no worker that was stopped or cut off continues an earlier batch.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// Sums over all processes, as far as they were reported before they died.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted {
    pub moves: f64,
    pub folded: f64,
    pub retries: f64,
    pub parked: f64,
    /// How often a process found that partitions of it had been given away.
    pub lost: f64,
}

/// See the file's first lines.
pub struct Crew<'a> {
    world: &'a World,
    proxy: &'a Proxy,
    sabotage: Option<&'a str>,
    protocol: Protocol,
    /// `None` while one is down.
    slots: Vec<Option<Worker>>,
    counted: Counted,
}

impl<'a> Crew<'a> {
    /// All of them started.
    pub fn start(
        world: &'a World,
        proxy: &'a Proxy,
        workers: usize,
        protocol: Protocol,
        sabotage: Option<&'a str>,
    ) -> Self {
        let slots = std::iter::repeat_with(|| None).take(workers).collect();
        let mut crew = Self { world, proxy, sabotage, protocol, slots, counted: Counted::default() };
        crew.launch_all();
        crew
    }

    pub fn size(&self) -> usize {
        self.slots.len()
    }

    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// For those that are launched from now on.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    pub fn launch(&mut self, number: usize) {
        let mut args = Vec::new();
        if let Some(sabotage) = self.sabotage {
            args.extend(["--sabotage", sabotage]);
        }
        let mut env = self.protocol.env().to_vec();
        let deadline = format!("{}s", DEADLINE.as_secs());
        env.extend([
            ("GEOFOLD_ELASTICSEARCH__URLS", self.proxy.url()),
            ("GEOFOLD_ELASTICSEARCH__REQUEST_TIMEOUT", "4s"),
            ("GEOFOLD_BATCH__TIMEOUT", &deadline),
        ]);
        self.slots[number] = Some(self.world.worker_of(&args, &env));
    }

    /// Launches those that are down.
    pub fn launch_all(&mut self) {
        for number in 0..self.slots.len() {
            if self.slots[number].is_none() {
                self.launch(number);
            }
        }
    }

    /// SIGKILL.
    pub fn kill(&mut self, number: usize) {
        if let Some(worker) = self.slots[number].take() {
            self.count(&worker);
            worker.kill();
        }
    }

    /// SIGTERM, and waits for the end.
    pub fn stop(&mut self, number: usize) {
        if let Some(worker) = self.slots[number].take() {
            self.count(&worker);
            worker.stop();
        }
    }

    /// SIGTERM to all of them at once.
    pub fn stop_all(&mut self) {
        let workers: Vec<Worker> = self.slots.iter_mut().filter_map(Option::take).collect();
        workers.iter().for_each(|worker| self.count(worker));
        workers.iter().for_each(|worker| worker.signal("TERM"));
        workers.into_iter().for_each(|worker| drop(worker.log_once_ended()));
    }

    pub fn freeze(&self, number: usize) {
        self.slots[number].iter().for_each(|worker| worker.signal("STOP"));
    }

    pub fn thaw(&self, number: usize) {
        self.slots[number].iter().for_each(|worker| worker.signal("CONT"));
    }

    /// The last log lines of a worker that ended by itself.
    pub fn ended_by_itself(&mut self) -> Option<String> {
        for (number, slot) in self.slots.iter_mut().enumerate() {
            if let Some(worker) = slot
                && !worker.is_running()
            {
                let log = worker.log();
                let lines: Vec<&str> = log.lines().collect();
                let tail = lines[lines.len().saturating_sub(8)..].join("\n");
                *slot = None;
                return Some(format!("worker {number} ended by itself; its last words:\n{tail}"));
            }
        }
        None
    }

    /// Waits until every partition has exactly one owner. No worker may be frozen.
    pub fn wait_until_shared_out(&self, partitions: i32) {
        wait_at_most("partitions that are shared out", Duration::from_secs(300), || {
            (self.sum("geofold_assigned_partitions", "") == f64::from(partitions)).then_some(())
        });
    }

    /// Records that were read and are not done.
    pub fn in_flight(&self) -> f64 {
        self.sum("geofold_records_in_flight", "")
    }

    /// Why those are not ready that are not.
    pub fn complaints(&self) -> Vec<String> {
        let complaints = self.slots.iter().flatten().map(Worker::not_ready_because);
        complaints.filter(|complaint| !complaint.is_empty()).collect()
    }

    /// What was counted by those that are gone; all, once all have stopped.
    pub fn counted(&self) -> Counted {
        self.counted
    }

    fn sum(&self, name: &str, labels: &str) -> f64 {
        self.slots.iter().flatten().map(|worker| worker.metric(name, labels)).sum()
    }

    fn count(&mut self, worker: &Worker) {
        // One that has just begun does not answer yet, and has done nothing.
        let read = |name: &str, labels: &str| Some(worker.metric(name, labels)).filter(|sum| !sum.is_nan());
        let Some(moves) = read("geofold_moves_total", "") else { return };
        self.counted.moves += moves;
        let others = [
            (&mut self.counted.folded, "geofold_records_processed_total", "outcome=\"folded\""),
            (&mut self.counted.retries, "geofold_elasticsearch_retries_total", ""),
            (&mut self.counted.parked, "geofold_parked_total", ""),
            (&mut self.counted.lost, "geofold_rebalances_total", "lost"),
        ];
        for (sum, name, labels) in others {
            *sum += read(name, labels).unwrap_or_default();
        }
    }
}
