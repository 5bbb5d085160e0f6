//! One run: a single-threaded runtime in virtual time, and the driver of its events. A run is a function of its
//! scenario: repeated, it has the same events at the same times.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use geofold::base::retry;
use geofold::worker::partition::Mode;
use tokio::runtime::Builder;
use tokio::time::sleep;

use crate::audit;
use crate::process::{Process, Shared, next_partition};
use crate::scenario::{Change, Kind, Scenario, Trouble, What, When};
use crate::searches;
use crate::world::{Line, Violation, World};

/// A run must end this long after the last fault. Zombies may sleep for 30 s.
const TIMEOUT: u64 = 120_000;

/// The result of a run.
pub struct Outcome {
    pub broken: Option<Violation>,
    /// Equal for equal runs.
    pub digest: u64,
    /// If requested.
    pub history: Vec<Line>,
}

/// Runs a scenario.
pub fn run(scenario: &Scenario, shared: &Shared, with_history: bool) -> Outcome {
    LAST_PANIC.take();
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let scenario = Arc::new(scenario.clone());
    let seed = scenario.seed;
    let mut world = None;
    let work = AssertUnwindSafe(|| {
        retry::with_seed(seed, || {
            runtime.block_on(async {
                let world = world.insert(World::new(scenario, with_history));
                Conductor::new(world.clone(), shared.clone()).conduct().await;
            });
        });
    });
    let panicked = catch_unwind(work).is_err();
    let Some(world) = world else { return Outcome { broken: None, digest: 0, history: Vec::new() } };
    if panicked {
        world.fail("panic", None, last_panic().unwrap_or_default());
    }
    let (broken, digest) = {
        let state = world.state();
        (state.broken.clone(), state.digest)
    };
    Outcome { broken, digest, history: world.take_history() }
}

thread_local! {
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The panic of this thread's current run.
pub fn last_panic() -> Option<String> {
    LAST_PANIC.with_borrow(Clone::clone)
}

/// Keeps panics for the report. A search for a sabotage causes thousands.
pub fn keep_panics() {
    std::panic::set_hook(Box::new(|info: &PanicHookInfo<'_>| LAST_PANIC.set(Some(info.to_string()))));
}

/// A process that finishes its batch before it gives up the partition.
struct Leaving {
    process: Process,
    cancel_at: u64,
    gap: u64,
}

struct Conductor {
    world: Arc<World>,
    shared: Shared,
    partition: i32,
    /// The records that compaction has left.
    is_there: Vec<bool>,
    committed: i64,
    committed_at: u64,
    changes: Vec<Change>,
    owner: Option<Process>,
    leaving: Option<Leaving>,
    /// They have lost the partition without knowing.
    zombies: Vec<Process>,
    next_owner_at: u64,
    processes: usize,
    is_calm: bool,
}

impl Conductor {
    fn new(world: Arc<World>, shared: Shared) -> Self {
        let scenario = world.scenario.clone();
        Self {
            world,
            shared,
            partition: next_partition(),
            is_there: vec![true; scenario.records.len()],
            committed: 0,
            committed_at: 0,
            changes: scenario.changes.clone(),
            owner: None,
            leaving: None,
            zombies: Vec::new(),
            next_owner_at: 0,
            processes: 0,
            is_calm: false,
        }
    }

    async fn conduct(&mut self) {
        if self.world.scenario.kind == Kind::TwoMaps {
            self.world.set_maps(&self.shared.both_known[self.world.scenario.other_map()]);
        }
        searches::begin(&self.world);
        let give_up_at = self.world.scenario.calm_from + TIMEOUT;
        while !self.has_come_to_rest() {
            let now = self.world.clock.awake();
            if now > give_up_at {
                let watermark = self.owner.as_ref().and_then(Process::watermark);
                let (end, panic) = (self.world.end_of_log(), last_panic().unwrap_or_default());
                let what = format!(
                    "nothing goes wrong any more, but the watermark stays at {watermark:?} of {end} {panic}"
                );
                return self.world.fail("stuck", None, what);
            }
            self.step(now);
            if self.is_broken() {
                return;
            }
            tokio::select! {
                biased;
                () = self.world.told.notified() => {}
                () = sleep(Duration::from_millis(self.pause(now))) => {}
            }
        }
        self.end().await;
    }

    /// Time until the next check, unless Elasticsearch reports a write first.
    fn pause(&self, now: u64) -> u64 {
        let is_waiting = self.is_calm && self.owner.as_ref().is_some_and(Process::is_done);
        let tick = self.world.scenario.setup.tick;
        let wakes = |zombie: &Process| zombie.frozen_until.or(zombie.acts_until);
        let next = self.zombies.iter().filter_map(wakes).min().filter(|_| is_waiting);
        next.map_or(tick, |next| next.saturating_sub(now).max(tick))
    }

    fn is_broken(&self) -> bool {
        self.world.state().broken.is_some()
    }

    fn has_come_to_rest(&self) -> bool {
        self.is_calm
            && self.zombies.is_empty()
            && self.world.state().under_way == 0
            && self.owner.as_ref().is_some_and(|owner| owner.is_done() && owner.frozen_until.is_none())
    }

    /// Stops the owner, then runs the final checks.
    async fn end(&mut self) {
        let Some(owner) = &mut self.owner else { return };
        owner.tell(Mode::Drain);
        let give_up_at = self.world.clock.awake() + TIMEOUT;
        while !(owner.has_ended() && self.world.state().under_way == 0) {
            if self.world.clock.awake() > give_up_at {
                return self.world.fail("stuck", None, "the last owner was told to stop, and does not");
            }
            sleep(Duration::from_millis(20)).await;
        }
        owner.check(true);
        owner.check_ended();
        let watermark = owner.watermark();
        self.commit(watermark, true);
        audit::end(&self.world);
    }

    fn step(&mut self, now: u64) {
        if !self.is_calm && now >= self.world.scenario.calm_from {
            self.calm_down();
        }
        while let Some(due) = self.due_change(now) {
            let change = self.changes.remove(due);
            self.change(now, change.what);
        }
        self.see_off(now);
        self.lead_owner(now);
        self.lead_zombies(now);
    }

    fn calm_down(&mut self) {
        self.is_calm = true;
        self.changes.clear();
        self.world.note(None, || "nothing goes wrong from here on".to_owned());
        let mut state = self.world.state();
        state.trouble = Trouble::default();
        state.outages.clear();
        state.no_letters_until = 0;
    }

    fn due_change(&self, now: u64) -> Option<usize> {
        let writes = self.world.state().writes;
        let is_due = |change: &Change| match change.when {
            When::At(time) => time <= now,
            When::AfterWrites(count) => count <= writes,
        };
        self.changes.iter().position(is_due)
    }

    fn change(&mut self, now: u64, what: What) {
        match what {
            What::Sleep { by } => {
                self.world.note(None, || format!("all machines sleep for {by}"));
                self.world.clock.sleep(by);
            }
            What::Outage { lasts, of } => {
                self.world.note(None, || format!("out of order until {}: {of:?}", now + lasts));
                self.world.state().outages.push((now + lasts, of));
            }
            What::NoLetters { lasts } => {
                self.world.note(None, || format!("no dead letters are taken until {}", now + lasts));
                self.world.state().no_letters_until = now + lasts;
            }
            What::Compact => self.compact(now),
            What::OtherMap => {
                self.world.set_maps(&self.shared.other_decides[self.world.scenario.other_map()]);
            }
            What::Crash { .. }
            | What::Revoke { .. }
            | What::Lose { .. }
            | What::FreezeAndLose { .. }
            | What::Freeze { .. } => self.change_owner(now, what),
        }
    }

    /// Applies a change to the owner, if one is awake.
    fn change_owner(&mut self, now: u64, what: What) {
        let Some(mut owner) = self.owner.take() else { return };
        if owner.frozen_until.is_some() {
            self.owner = Some(owner);
            return;
        }
        match what {
            What::Crash { gap } => {
                owner.kill();
                self.next_owner_at = now + gap;
            }
            What::Revoke { grace, gap } => {
                owner.tell(Mode::FinishBatch);
                self.leaving = Some(Leaving { process: owner, cancel_at: now + grace, gap });
            }
            What::Lose { acts_for, gap } => {
                self.world.note(None, || format!("process {} loses the partition", owner.name));
                owner.acts_until = Some(now + acts_for);
                owner.reads_on = self.world.state().percent(50);
                self.zombies.push(owner);
                self.next_owner_at = now + gap;
            }
            What::FreezeAndLose { frozen, acts_for, gap } => {
                owner.freeze(now + frozen);
                owner.acts_until = Some(now + frozen + acts_for);
                owner.reads_on = self.world.state().percent(50);
                self.zombies.push(owner);
                self.next_owner_at = now + gap;
            }
            What::Freeze { frozen } => {
                owner.freeze(now + frozen);
                self.owner = Some(owner);
            }
            What::Sleep { .. }
            | What::Outage { .. }
            | What::NoLetters { .. }
            | What::Compact
            | What::OtherMap => self.owner = Some(owner),
        }
    }

    /// Removes records that have a later one of their document.
    fn compact(&mut self, now: u64) {
        let records = &self.world.scenario.records;
        for (offset, record) in records.iter().enumerate() {
            let mut later = records[offset + 1..].iter();
            let has_later = later.any(|later| later.document == record.document && later.at <= now);
            if self.is_there[offset] && has_later && self.world.state().percent(60) {
                self.is_there[offset] = false;
                self.world.note(None, || format!("compaction takes {offset}"));
            }
        }
    }

    /// Processes that give up the partition have their grace, and may commit once more.
    fn see_off(&mut self, now: u64) {
        let Some(leaving) = &mut self.leaving else { return };
        if leaving.process.has_ended() {
            let watermark = leaving.process.watermark();
            self.next_owner_at = now + leaving.gap;
            self.leaving = None;
            self.commit(watermark, false);
        } else if leaving.cancel_at <= now {
            leaving.process.cancel();
        }
    }

    fn lead_owner(&mut self, now: u64) {
        if self.owner.is_none() && self.leaving.is_none() && self.next_owner_at <= now {
            let name = self.processes;
            self.processes += 1;
            self.owner =
                Some(Process::start(&self.world, &self.shared, self.partition, name, self.committed));
        }
        let Some(owner) = &mut self.owner else { return };
        owner.thaw_if_due(now);
        if owner.frozen_until.is_some() {
            return;
        }
        owner.check(true);
        owner.feed(&self.is_there);
        if now >= self.committed_at + self.world.scenario.setup.commit_interval {
            self.committed_at = now;
            let watermark = owner.watermark();
            if self.commit(watermark, false)
                && let Some(owner) = &mut self.owner
            {
                owner.remember(self.committed);
            }
        }
    }

    fn lead_zombies(&mut self, now: u64) {
        for zombie in &mut self.zombies {
            if zombie.acts_until.is_some_and(|until| until <= now) {
                // First, so that a process waking at this moment does nothing.
                zombie.cancel();
                zombie.acts_until = None;
            }
            zombie.thaw_if_due(now);
            if zombie.frozen_until.is_none() {
                zombie.check(false);
                zombie.feed(&self.is_there);
            }
        }
        self.zombies.retain(|zombie| !zombie.has_ended());
    }

    /// The poll thread's commit of the published watermark; returns whether there was one and it succeeded.
    fn commit(&mut self, watermark: Option<i64>, surely: bool) -> bool {
        let Some(watermark) = watermark.filter(|watermark| *watermark != self.committed) else {
            return false;
        };
        let fails = {
            let mut state = self.world.state();
            let percent = state.trouble.commits;
            state.percent(percent) && !surely
        };
        if fails {
            return false;
        }
        if watermark < self.committed {
            let what = format!("the watermark {watermark} is below the committed offset {}", self.committed);
            self.world.fail("INV-3", None, what);
        }
        self.committed = watermark;
        self.world.note(None, || format!("offset {watermark} is committed"));
        audit::commit(&self.world, watermark, &self.is_there);
        true
    }
}
