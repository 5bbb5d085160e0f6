//! The collectors: two `geofold collect` as processes, killed, frozen and replaced while they merge, and with them their
//! database where it is a server of its own. A seed gives what happens in which order, beside the scenes.

use std::collections::BTreeMap;
use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use geofold::testkit::ports::free_port;

use crate::report::Status;
use crate::support::{Random, World, wait_at_most};

/// How many there are: one merges, the other stands by.
const COLLECTORS: usize = 2;

/// `collector.takeover_timeout`: after so long without a sign of life, another one merges.
pub const TAKEOVER: Duration = Duration::from_secs(2);

/// An orderly stop may take so long, on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What happens to them. Each comes once before any comes again.
#[derive(Debug, Clone, Copy)]
enum Blow {
    /// SIGKILL to one, and a new one later.
    Kill,
    /// SIGKILL to both.
    KillAll,
    /// SIGSTOP for longer than the other waits, then SIGCONT: two that believe they merge.
    Freeze,
    /// The same, and the other is killed meanwhile.
    FreezeAndKill,
    /// SIGTERM to one, and a new one.
    Stop,
    /// SIGKILL to the database.
    KillDatabase,
    /// SIGSTOP to the database for a while.
    PauseDatabase,
}

/// Killing and freezing one come more often: they are what the counts are most likely to suffer from.
const BLOWS: [Blow; 7] =
    [Blow::Kill, Blow::Kill, Blow::Freeze, Blow::Freeze, Blow::KillAll, Blow::FreezeAndKill, Blow::Stop];

/// Where the database is a server of its own, these too.
const BLOWS_TO_A_SERVER: [Blow; 2] = [Blow::KillDatabase, Blow::PauseDatabase];

impl Blow {
    fn kind(self) -> &'static str {
        match self {
            Self::Kill => "collector killed",
            Self::KillAll => "all collectors killed at once",
            Self::Freeze => "collector frozen, for longer than the other waits",
            Self::FreezeAndKill => "collector frozen, and the other killed meanwhile",
            Self::Stop => "collector stopped in good order",
            Self::KillDatabase => "PostgreSQL killed",
            Self::PauseDatabase => "PostgreSQL paused",
        }
    }
}

/// See the file's first lines. Killed on drop.
pub struct Collectors<'a> {
    world: &'a World,
    /// Whether the database is a server that can be troubled.
    has_server: bool,
    /// `None` while one is down.
    slots: Vec<Option<Collector>>,
    launched: u32,
    /// What they have lived through, and how often.
    pub blows: BTreeMap<&'static str, u64>,
    /// The last log lines of those that ended by themselves.
    pub deserted: Vec<String>,
}

struct Collector {
    child: Child,
    number: u32,
}

impl<'a> Collectors<'a> {
    /// All of them started.
    pub fn start(world: &'a World, has_server: bool) -> Self {
        let slots = std::iter::repeat_with(|| None).take(COLLECTORS).collect();
        let (blows, deserted) = (BTreeMap::new(), Vec::new());
        let mut collectors = Self { world, has_server, slots, launched: 0, blows, deserted };
        collectors.launch_all();
        collectors
    }

    /// Blow after blow, until the run is over; then all of them are up and awake.
    pub fn suffer(&mut self, seed: u64, status: &Status) {
        let mut random = Random::new(seed ^ 0x636f_6c6c_6563_746f);
        let mut dealt: Vec<Blow> = Vec::new();
        while !status.is_over() {
            rest(Duration::from_millis(1000 + random.below(4000)), status);
            if dealt.is_empty() {
                dealt.extend(BLOWS);
                dealt.extend(BLOWS_TO_A_SERVER.iter().filter(|_| self.has_server));
            }
            let blow = dealt.swap_remove(random.below(dealt.len() as u64) as usize);
            status.note(&format!("{:>6.1} s  {}", status.elapsed().as_secs_f64(), blow.kind()));
            self.strike(blow, &mut random);
            *self.blows.entry(blow.kind()).or_default() += 1;
            self.look_after();
        }
    }

    fn strike(&mut self, blow: Blow, random: &mut Random) {
        let one = random.below(COLLECTORS as u64) as usize;
        let a_while = Duration::from_millis(random.below(3000));
        match blow {
            Blow::Kill => self.kill(one),
            Blow::KillAll => (0..COLLECTORS).for_each(|number| self.kill(number)),
            Blow::Freeze | Blow::FreezeAndKill => {
                self.signal(one, "STOP");
                std::thread::sleep(TAKEOVER);
                if matches!(blow, Blow::FreezeAndKill) {
                    self.kill((one + 1) % COLLECTORS);
                    self.launch_all();
                }
                std::thread::sleep(TAKEOVER + a_while);
                return self.signal(one, "CONT");
            }
            Blow::Stop => self.stop(one),
            Blow::KillDatabase => self.world.stack.tell("kill", "postgresql"),
            Blow::PauseDatabase => self.world.stack.tell("pause", "postgresql"),
        }
        std::thread::sleep(a_while);
        match blow {
            Blow::KillDatabase => self.world.stack.tell("start", "postgresql"),
            Blow::PauseDatabase => self.world.stack.tell("resume", "postgresql"),
            _ => self.launch_all(),
        }
    }

    /// Launches those that are down.
    fn launch_all(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.is_none()) {
            *slot = Some(Collector::start(self.world, self.launched));
            self.launched += 1;
        }
    }

    /// Takes note of those that ended by themselves, and launches others.
    fn look_after(&mut self) {
        for slot in &mut self.slots {
            if let Some(collector) = slot
                && collector.child.try_wait().unwrap().is_some()
            {
                self.deserted
                    .push(format!("a collector ended by itself; {}", collector.last_words(self.world)));
                *slot = None;
            }
        }
        self.launch_all();
    }

    /// SIGTERM to all, one after the other: each has to end well.
    pub fn stop_all(&mut self) {
        self.look_after();
        (0..COLLECTORS).for_each(|number| self.stop(number));
    }

    fn kill(&mut self, number: usize) {
        drop(self.slots[number].take());
    }

    fn stop(&mut self, number: usize) {
        let Some(mut collector) = self.slots[number].take() else { return };
        collector.signal("TERM");
        let status =
            wait_at_most("a collector that steps down", TIMEOUT, || collector.child.try_wait().unwrap());
        if !status.success() {
            self.deserted.push(format!(
                "a collector that was told to stop ended with {status}; {}",
                collector.last_words(self.world)
            ));
        }
    }

    fn signal(&self, number: usize, name: &str) {
        self.slots[number].iter().for_each(|collector| collector.signal(name));
    }
}

impl Collector {
    fn start(world: &World, number: u32) -> Self {
        let port = free_port().unwrap();
        let log = File::create(world.dir().join(log_name(number))).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_geofold"))
            .args(["collect", "--config"])
            .arg(&world.config)
            .env("GEOFOLD_COLLECTOR__LISTEN", format!("127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child, number }
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        // One that ended by itself is found by its end.
        let _ = Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap();
    }

    fn last_words(&self, world: &World) -> String {
        let log = std::fs::read_to_string(world.dir().join(log_name(self.number))).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        format!("its last words:\n{}", lines[lines.len().saturating_sub(8)..].join("\n"))
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn log_name(number: u32) -> String {
    format!("collector-{number}.log")
}

/// For so long, unless the run is over before.
fn rest(time: Duration, status: &Status) {
    let began = Instant::now();
    while began.elapsed() < time && !status.is_over() {
        std::thread::sleep(Duration::from_millis(100));
    }
}
