//! What goes wrong when: scenes, each with its weather on the way to Elasticsearch and one blow. A seed gives the scenes;
//! what the processes are doing when one begins is their own. Pure.

use std::fmt;
use std::time::Duration;

use crate::support::{Faults, Random};

/// How the way to Elasticsearch is during a scene.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weather {
    Calm,
    /// Requests are refused, with 429 and 503.
    Refusals,
    /// Items are refused, with 429 and 503, by the shard.
    ItemRefusals,
    /// Requests take longer.
    Latency,
    /// Connections break before a request is passed on, or in the middle of the answer.
    Resets,
    /// Requests are carried out and their answers lost.
    LostReplies,
    /// Requests are carried out seconds after their connection broke.
    Late,
    /// A little of everything.
    Everything,
}

/// All but calm.
const WEATHERS: [Weather; 7] = [
    Weather::Refusals,
    Weather::ItemRefusals,
    Weather::Latency,
    Weather::Resets,
    Weather::LostReplies,
    Weather::Late,
    Weather::Everything,
];

/// Sooner than tombstones are forgotten, and than a batch's deadline.
pub const LATE_BY: Duration = Duration::from_secs(6);

impl Weather {
    /// For the proxy.
    pub fn faults(self) -> Faults {
        let none = Faults::default();
        match self {
            Self::Calm => none,
            Self::Refusals => Faults { busy: 15, unavailable: 15, ..none },
            Self::ItemRefusals => Faults { busy_items: 10, unavailable_items: 10, ..none },
            Self::Latency => Faults { latency: Duration::from_secs(1), ..none },
            Self::Resets => Faults { resets: 12, cut_replies: 12, ..none },
            Self::LostReplies => Faults { lost_replies: 25, ..none },
            Self::Late => Faults { late: 20, late_by: LATE_BY, ..none },
            Self::Everything => Faults {
                busy: 3,
                unavailable: 3,
                busy_items: 4,
                unavailable_items: 4,
                resets: 4,
                cut_replies: 4,
                lost_replies: 5,
                late: 4,
                late_by: LATE_BY,
                latency: Duration::from_millis(200),
                ..none
            },
        }
    }

    /// Whether a request can be carried out after its sender has given it up.
    pub fn delays(self) -> bool {
        !matches!(self, Self::Calm | Self::Refusals | Self::ItemRefusals)
    }
}

impl fmt::Display for Weather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Calm => "calm",
            Self::Refusals => "requests refused",
            Self::ItemRefusals => "items refused",
            Self::Latency => "latency",
            Self::Resets => "connections break",
            Self::LostReplies => "answers lost",
            Self::Late => "requests carried out late",
            Self::Everything => "a little of everything",
        })
    }
}

/// What happens to a process. Workers by their number; times are how long it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blow {
    /// SIGKILL, and a new one later.
    KillWorker {
        worker: usize,
        down: Duration,
    },
    /// SIGKILL to every worker at once.
    KillWorkers {
        down: Duration,
    },
    /// SIGSTOP for longer than the group waits, then SIGCONT.
    Freeze {
        worker: usize,
        lasts: Duration,
    },
    /// The same, and another is killed meanwhile.
    FreezeAndKill {
        frozen: usize,
        killed: usize,
        lasts: Duration,
    },
    /// SIGTERM, and a new one later.
    StopWorker {
        worker: usize,
        down: Duration,
    },
    /// SIGTERM and a new one, worker after worker.
    RollWorkers,
    /// SIGTERM to all; the new ones share partitions out in another way.
    ChangeProtocol,
    KillBroker {
        down: Duration,
    },
    RestartBroker,
    PauseBroker {
        lasts: Duration,
    },
    KillElasticsearch {
        down: Duration,
    },
    RestartElasticsearch,
    PauseElasticsearch {
        lasts: Duration,
    },
}

impl Blow {
    /// Its kind, for the summary.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::KillWorker { .. } => "worker killed",
            Self::KillWorkers { .. } => "all workers killed at once",
            Self::Freeze { .. } => "worker frozen, for longer than its session",
            Self::FreezeAndKill { .. } => "worker frozen, and another killed meanwhile",
            Self::StopWorker { .. } => "worker stopped in good order",
            Self::RollWorkers => "workers replaced one by one",
            Self::ChangeProtocol => "group protocol changed",
            Self::KillBroker { .. } => "broker killed",
            Self::RestartBroker => "broker restarted in good order",
            Self::PauseBroker { .. } => "broker paused",
            Self::KillElasticsearch { .. } => "Elasticsearch killed",
            Self::RestartElasticsearch => "Elasticsearch restarted in good order",
            Self::PauseElasticsearch { .. } => "Elasticsearch paused",
        }
    }

    /// Whether Elasticsearch forgets its tombstones by it.
    pub fn forgets_tombstones(&self) -> bool {
        matches!(self, Self::KillElasticsearch { .. } | Self::RestartElasticsearch)
    }
}

/// A while of the run.
#[derive(Debug, Clone, Copy)]
pub struct Scene {
    pub weather: Weather,
    /// From the weather to the blow.
    pub before: Duration,
    pub blow: Blow,
    /// From the blow's end to the next scene.
    pub after: Duration,
}

/// The scenes of a seed, without an end. Each kind of blow and each weather comes once before any comes again.
pub struct Schedule {
    random: Random,
    workers: u64,
    /// The shortest time to freeze a worker for: the group has given it up by then.
    session: Duration,
    blows: Vec<u64>,
    weathers: Vec<Weather>,
}

/// Numbers of blows, as [`Schedule::blow`] knows them; some are dealt twice.
const BLOWS: [u64; 15] = [0, 0, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

impl Schedule {
    pub fn new(seed: u64, workers: usize, session: Duration) -> Self {
        Self {
            random: Random::new(seed),
            workers: workers as u64,
            session,
            blows: Vec::new(),
            weathers: Vec::new(),
        }
    }

    fn blow(&mut self, number: u64) -> Blow {
        let worker = self.random.below(self.workers) as usize;
        let other = (worker + 1 + self.random.below(self.workers - 1) as usize) % self.workers as usize;
        let down = self.seconds(0, 6);
        match number {
            0 => Blow::KillWorker { worker, down },
            1 => Blow::KillWorkers { down },
            2 => Blow::Freeze { worker, lasts: self.session + self.seconds(1, 8) },
            3 => Blow::FreezeAndKill {
                frozen: worker,
                killed: other,
                lasts: self.session + self.seconds(1, 8),
            },
            4 => Blow::StopWorker { worker, down },
            5 => Blow::RollWorkers,
            6 => Blow::ChangeProtocol,
            7 => Blow::KillBroker { down },
            8 => Blow::RestartBroker,
            9 => Blow::PauseBroker { lasts: self.seconds(3, 10) },
            10 => Blow::KillElasticsearch { down },
            11 => Blow::RestartElasticsearch,
            _ => Blow::PauseElasticsearch { lasts: self.seconds(3, 8) },
        }
    }

    fn seconds(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from * 1000 + self.random.below((to - from) * 1000))
    }
}

impl Iterator for Schedule {
    type Item = Scene;

    fn next(&mut self) -> Option<Scene> {
        if self.blows.is_empty() {
            self.blows = shuffled(&mut self.random, &BLOWS);
        }
        if self.weathers.is_empty() {
            self.weathers = shuffled(&mut self.random, &WEATHERS);
        }
        let number = self.blows.pop()?;
        let blow = self.blow(number);
        let mut weather = self.weathers.pop()?;
        // A request that outlives the tombstones would be outside of what the protocol promises.
        if blow.forgets_tombstones() && weather.delays() {
            weather =
                [Weather::Calm, Weather::Refusals, Weather::ItemRefusals][self.random.below(3) as usize];
        }
        Some(Scene { weather, before: self.seconds(1, 4), blow, after: self.seconds(2, 6) })
    }
}

fn shuffled<T: Copy>(random: &mut Random, items: &[T]) -> Vec<T> {
    let mut left = items.to_vec();
    let mut shuffled = Vec::with_capacity(left.len());
    while !left.is_empty() {
        shuffled.push(left.swap_remove(random.below(left.len() as u64) as usize));
    }
    shuffled
}

/// What must hold of every seed's schedule; what is wrong with this one.
pub fn is_sound(seed: u64) -> Result<(), String> {
    let session = Duration::from_secs(7);
    let scenes: Vec<Scene> = Schedule::new(seed, 3, session).take(2 * BLOWS.len()).collect();
    for scene in &scenes {
        let is_sound = match scene.blow {
            Blow::Freeze { lasts, .. } => lasts > session,
            Blow::FreezeAndKill { frozen, killed, lasts } => lasts > session && frozen != killed,
            _ => !scene.blow.forgets_tombstones() || !scene.weather.delays(),
        };
        if !is_sound {
            return Err(format!("seed {seed} has {scene:?}"));
        }
    }
    let kinds = scenes[..BLOWS.len()].iter().map(|scene| scene.blow.kind());
    let mut kinds: Vec<&str> = kinds.collect();
    kinds.sort_unstable();
    kinds.dedup();
    let again: Vec<String> =
        Schedule::new(seed, 3, session).take(5).map(|scene| format!("{scene:?}")).collect();
    let first: Vec<String> = scenes[..5].iter().map(|scene| format!("{scene:?}")).collect();
    if kinds.len() != 13 || again != first {
        return Err(format!("seed {seed} has {kinds:?}, and when asked again {again:?} for {first:?}"));
    }
    Ok(())
}
