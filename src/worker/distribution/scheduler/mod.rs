//! Which distributions are owed and due, and what a run settles. Pure: takes requests, marks, outcomes and the time;
//! returns what to look up and run.
//!
//! A *key* is a job and a geoshard. The updates owed for a key form a short row of *groups*, oldest first: consecutive
//! updates with the same [`Mark`]. A run settles all groups; a run of another worker settles those marked before it
//! started. So the queue is bounded: jobs × geoshards × [`MAX_GROUPS`].
//!
//! Each key has at most one run at a time, and is due once its oldest update has waited for the job's interval.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::last_runs::RunDecision;
use super::run_after::{Mark, RunRecord};
use crate::base::clock::Instant;
use crate::base::ids::ShardId;

/// Groups per key. Each run of another worker makes one; further ones are merged.
pub const MAX_GROUPS: usize = 8;

/// Concurrent runs of one job.
const MAX_RUNNING: usize = 8;

/// A job, by index in the configuration, and a geoshard.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey {
    /// Index of the job.
    pub job: usize,
    /// The geoshard.
    pub shard: ShardId,
}

/// A partition's task, for one assignment.
pub type WaiterId = u64;

/// The changes of a batch in one geoshard.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShardChange {
    /// Documents written or deleted there; 0 if unknown.
    pub documents: u64,
    /// First and last offset of their records; `None` if unknown.
    pub offsets: Option<(i64, i64)>,
    /// The geoshards that documents moved to from here: they run before this one.
    pub moved_to: BTreeSet<ShardId>,
}

/// The information about one partition in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// Documents changed.
    pub documents: u64,
    /// First and last offset of their records, if known.
    pub offsets: Option<(i64, i64)>,
    /// The offset below which the partition is completely indexed.
    pub watermark: Option<i64>,
}

impl Span {
    fn add(&mut self, other: Self) {
        self.documents += other.documents;
        self.offsets = match (self.offsets, other.offsets) {
            (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
            (one, another) => one.or(another),
        };
        self.watermark = self.watermark.max(other.watermark);
    }
}

/// Updates with the same mark.
#[derive(Debug, Clone, PartialEq)]
pub struct UpdateGroup {
    /// When the oldest of them was completed.
    pub since: Instant,
    /// Its waiters, each up to its latest ticket.
    pub waiters: BTreeMap<WaiterId, u64>,
    /// Information by partition.
    pub spans: BTreeMap<i32, Span>,
    /// Number of requests.
    pub requests: u64,
    /// The number of its first request.
    first: u64,
    mark: Option<Mark>,
}

impl UpdateGroup {
    fn add(&mut self, later: Self) {
        self.since = self.since.min(later.since);
        self.requests += later.requests;
        self.first = self.first.min(later.first);
        for (waiter, ticket) in later.waiters {
            let known = self.waiters.entry(waiter).or_default();
            *known = ticket.max(*known);
        }
        for (partition, span) in later.spans {
            self.spans.entry(partition).or_default().add(span);
        }
        // A mark that holds for all: none, or the later counter. Marks of different generations are incomparable.
        self.mark = match (self.mark, later.mark) {
            (Some(a), Some(b)) if a.generation == b.generation => Some(a.max(b)),
            _ => None,
        };
    }
}

/// Whether a key is being handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Free,
    /// Being decided on, or running.
    Busy,
}

#[derive(Debug)]
struct Slot {
    phase: Phase,
    /// Added since the counter was last read.
    unmarked: Option<UpdateGroup>,
    /// The counter is being read.
    marking: Option<UpdateGroup>,
    marked: VecDeque<UpdateGroup>,
    /// Settled by the current run if it succeeds.
    running: Option<UpdateGroup>,
    not_before: Option<Instant>,
    /// A waiter is ending.
    hurry: bool,
    /// Deadline for waiting for another worker's run, once one was seen.
    wait_until: Option<Instant>,
    /// Geoshards that run before this one, each up to this request.
    after: BTreeMap<ShardId, u64>,
    /// As `after` when the key became due: later requests do not delay it.
    waits_for: Option<BTreeMap<ShardId, u64>>,
}

impl Slot {
    fn new() -> Self {
        Self {
            phase: Phase::Free,
            unmarked: None,
            marking: None,
            marked: VecDeque::new(),
            running: None,
            not_before: None,
            hurry: false,
            wait_until: None,
            after: BTreeMap::new(),
            waits_for: None,
        }
    }

    fn groups(&self) -> impl Iterator<Item = &UpdateGroup> {
        self.running.iter().chain(&self.marked).chain(&self.marking).chain(&self.unmarked)
    }

    fn since(&self) -> Option<Instant> {
        self.groups().map(|group| group.since).min()
    }

    fn is_idle(&self) -> bool {
        self.phase == Phase::Free && self.groups().next().is_none()
    }

    fn put_marked(&mut self, group: UpdateGroup) {
        let is_full = self.marked.len() >= MAX_GROUPS;
        match self.marked.back_mut() {
            Some(last) if is_full || (last.mark.is_some() && last.mark == group.mark) => last.add(group),
            _ => self.marked.push_back(group),
        }
    }

    /// Takes everything present: a run that begins after this settles it.
    fn take_all(&mut self) -> Option<UpdateGroup> {
        let marking = self.marking.take();
        let unmarked = self.unmarked.take();
        let mut all = self.marked.drain(..).chain(marking).chain(unmarked);
        let mut first = all.next()?;
        all.for_each(|group| first.add(group));
        Some(first)
    }
}

/// The result of a settlement.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SettledUpdates {
    /// The waiters released, each up to this ticket.
    pub waiters: Vec<(WaiterId, u64)>,
    /// Number of requests.
    pub requests: u64,
    /// When the oldest of their updates was completed.
    pub since: Option<Instant>,
}

impl SettledUpdates {
    fn add(&mut self, group: UpdateGroup) {
        self.requests += group.requests;
        self.since = Some(self.since.map_or(group.since, |since| since.min(group.since)));
        self.waiters.extend(group.waiters);
    }
}

/// See the module documentation.
#[derive(Debug)]
pub struct Scheduler {
    /// Each job's interval.
    intervals: Vec<Duration>,
    slots: BTreeMap<JobKey, Slot>,
    /// Numbers requests.
    next_request: u64,
}

impl Scheduler {
    /// For jobs with these intervals.
    pub fn new(intervals: Vec<Duration>) -> Self {
        Self { intervals, slots: BTreeMap::new(), next_request: 1 }
    }

    /// A batch of a partition was just completed with this change. Each job in `jobs` is owed for each geoshard;
    /// `waiter` is notified once it is settled.
    pub fn request(
        &mut self,
        jobs: &[usize],
        changes: &BTreeMap<ShardId, ShardChange>,
        partition: i32,
        watermark: Option<i64>,
        waiter: Option<(WaiterId, u64)>,
        now: Instant,
    ) {
        let number = self.next_request;
        self.next_request += 1;
        for &job in jobs {
            for (shard, change) in changes {
                let span = Span { documents: change.documents, offsets: change.offsets, watermark };
                let group = UpdateGroup {
                    since: now,
                    waiters: waiter.into_iter().collect(),
                    spans: BTreeMap::from([(partition, span)]),
                    requests: 1,
                    first: number,
                    mark: None,
                };
                let slot = self.slots.entry(JobKey { job, shard: shard.clone() }).or_insert_with(Slot::new);
                match &mut slot.unmarked {
                    Some(unmarked) => unmarked.add(group),
                    None => slot.unmarked = Some(group),
                }
                slot.after.extend(change.moved_to.iter().map(|target| (target.clone(), number)));
            }
        }
    }

    /// Keys whose counter must be read now, at most `most`.
    pub fn to_mark(&mut self, most: usize) -> Vec<JobKey> {
        let mut keys = Vec::new();
        for (key, slot) in &mut self.slots {
            if keys.len() < most && slot.marking.is_none() && slot.unmarked.is_some() {
                slot.marking = slot.unmarked.take();
                keys.push(key.clone());
            }
        }
        keys
    }

    /// The counter of a key, read after [`Scheduler::to_mark`] returned it. `None`: unknown.
    pub fn marked(&mut self, key: &JobKey, mark: Option<Mark>) {
        if let Some(slot) = self.slots.get_mut(key)
            && let Some(mut group) = slot.marking.take()
        {
            group.mark = mark;
            slot.put_marked(group);
        }
    }

    /// Keys to decide on now, longest waiting first. They are busy until [`Scheduler::put_off`],
    /// [`Scheduler::succeeded`] or [`Scheduler::failed`].
    pub fn start_due(&mut self, now: Instant) -> Vec<JobKey> {
        let due = self.due(now);
        for key in &due {
            let unsettled = self.unsettled_targets(key);
            if let Some(slot) = self.slots.get_mut(key) {
                slot.waits_for.get_or_insert(unsettled);
            }
        }
        let mut started = Vec::new();
        for key in due {
            let running = self.of_job(key.job).filter(|slot| slot.phase == Phase::Busy);
            if running.count() >= MAX_RUNNING || (self.is_held_up(&key) && !self.is_in_a_circle(&key)) {
                continue;
            }
            if let Some(slot) = self.slots.get_mut(&key) {
                slot.phase = Phase::Busy;
                started.push(key);
            }
        }
        started
    }

    /// When the next idle key becomes due; a key that waits for others depends on them instead.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        let due = self.slots.iter().filter_map(|(key, slot)| self.due_at(key, slot));
        due.filter(|due| *due > now).min()
    }

    /// The updates that a run has to settle, oldest first: for [`Owed::decide`].
    pub fn owed(&self, key: &JobKey, now: Instant) -> Owed {
        let slot = self.slots.get(key);
        let interval = slot.map_or(Duration::ZERO, |slot| self.wait_of(key, slot));
        Owed {
            groups: slot.into_iter().flat_map(|slot| &slot.marked).map(|g| (g.mark, g.since)).collect(),
            unmarked_since: slot
                .into_iter()
                .flat_map(|s| s.marking.iter().chain(&s.unmarked))
                .map(|g| g.since)
                .min(),
            due_if_since: interval,
            now,
            may_wait: slot.is_none_or(|slot| slot.wait_until.is_none_or(|until| now < until)),
        }
    }

    /// Settles what the record covers: another worker's run did it.
    pub fn covered(&mut self, key: &JobKey, record: &RunRecord) -> SettledUpdates {
        let mut settled = SettledUpdates::default();
        if let Some(slot) = self.slots.get_mut(key) {
            // From the front only: a waiter's tickets are settled in order.
            while let Some(group) =
                slot.marked.pop_front_if(|g| g.mark.is_some_and(|mark| record.covers(mark)))
            {
                settled.add(group);
            }
        }
        settled
    }

    /// Nothing runs now. With a time, waits for another worker's run until then, in all at most for the job's interval.
    pub fn put_off(&mut self, key: &JobKey, until: Option<Instant>, now: Instant) {
        let interval = self.interval(key);
        if let Some(slot) = self.slots.get_mut(key) {
            slot.phase = Phase::Free;
            slot.not_before = until;
            match until {
                Some(_) => {
                    slot.wait_until.get_or_insert(now + interval);
                }
                None => (slot.wait_until, slot.waits_for) = (None, None),
            }
        }
        self.forget_if_idle(key);
    }

    /// A run begins now: returns its updates. `None` if nothing is owed any more.
    pub fn begin_run(&mut self, key: &JobKey) -> Option<&UpdateGroup> {
        let slot = self.slots.get_mut(key)?;
        slot.wait_until = None;
        slot.running = slot.take_all();
        slot.running.as_ref()
    }

    /// The run has succeeded, or was abandoned.
    pub fn succeeded(&mut self, key: &JobKey) -> SettledUpdates {
        let mut settled = SettledUpdates::default();
        if let Some(slot) = self.slots.get_mut(key) {
            (slot.phase, slot.not_before, slot.waits_for) = (Phase::Free, None, None);
            slot.hurry = false;
            slot.running.take().into_iter().for_each(|group| settled.add(group));
        }
        let left = self.unsettled_targets(key);
        if let Some(slot) = self.slots.get_mut(key) {
            slot.after = left;
        }
        self.forget_if_idle(key);
        settled
    }

    /// The run has failed: its updates stay owed, and are retried at `again_at`.
    pub fn failed(&mut self, key: &JobKey, again_at: Instant) {
        if let Some(slot) = self.slots.get_mut(key) {
            (slot.phase, slot.not_before) = (Phase::Free, Some(again_at));
            if let Some(group) = slot.running.take() {
                slot.marked.push_front(group);
            }
        }
    }

    /// Makes the updates of this waiter due at once; `None` is all.
    pub fn hurry(&mut self, waiter: Option<WaiterId>) {
        for slot in self.slots.values_mut() {
            slot.hurry |=
                waiter.is_none_or(|waiter| slot.groups().any(|group| group.waiters.contains_key(&waiter)));
        }
    }

    /// Number of keys with owed updates.
    pub fn pending(&self, job: usize) -> usize {
        self.of_job(job).filter(|slot| slot.groups().next().is_some()).count()
    }

    fn of_job(&self, job: usize) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(move |(key, _)| key.job == job).map(|(_, slot)| slot)
    }

    fn interval(&self, key: &JobKey) -> Duration {
        self.intervals.get(key.job).copied().unwrap_or_default()
    }

    /// How long its oldest update waits for others.
    fn wait_of(&self, key: &JobKey, slot: &Slot) -> Duration {
        if slot.hurry { Duration::ZERO } else { self.interval(key) }
    }

    fn due_at(&self, key: &JobKey, slot: &Slot) -> Option<Instant> {
        if slot.phase == Phase::Busy {
            return None;
        }
        let due = slot.since()? + self.wait_of(key, slot);
        Some(slot.not_before.map_or(due, |not_before| due.max(not_before)))
    }

    fn due(&self, now: Instant) -> Vec<JobKey> {
        let due = self.slots.iter().filter_map(|(key, slot)| Some((self.due_at(key, slot)?, key)));
        let mut due: Vec<_> = due.filter(|(at, _)| *at <= now).collect();
        due.sort();
        due.into_iter().map(|(_, key)| key.clone()).collect()
    }

    /// The runs that must precede a key's run and are still owed.
    fn unsettled_targets(&self, key: &JobKey) -> BTreeMap<ShardId, u64> {
        let Some(slot) = self.slots.get(key) else { return BTreeMap::new() };
        let unsettled = slot.after.iter().filter(|(target, number)| self.is_owed(key.job, target, **number));
        unsettled.map(|(target, number)| (target.clone(), *number)).collect()
    }

    fn is_owed(&self, job: usize, target: &ShardId, number: u64) -> bool {
        let slot = self.slots.get(&JobKey { job, shard: target.clone() });
        slot.is_some_and(|slot| slot.groups().any(|group| group.first <= number))
    }

    /// The keys that a due key still waits for.
    fn holders<'a>(&'a self, key: &'a JobKey) -> impl Iterator<Item = JobKey> + 'a {
        let waits_for = self.slots.get(key).and_then(|slot| slot.waits_for.as_ref());
        let owed = waits_for
            .into_iter()
            .flatten()
            .filter(|(target, number)| **target != key.shard && self.is_owed(key.job, target, **number));
        owed.map(|(target, _)| JobKey { job: key.job, shard: target.clone() })
    }

    fn is_held_up(&self, key: &JobKey) -> bool {
        self.holders(key).next().is_some()
    }

    /// Whether the keys that a key waits for wait for it: documents moved both ways, and no order suits all of them.
    fn is_in_a_circle(&self, key: &JobKey) -> bool {
        let mut seen = BTreeSet::new();
        let mut ahead: Vec<JobKey> = self.holders(key).collect();
        while let Some(holder) = ahead.pop() {
            if holder == *key {
                return true;
            }
            if self.slots.get(&holder).is_some_and(|slot| slot.phase == Phase::Free)
                && seen.insert(holder.clone())
            {
                ahead.extend(self.holders(&holder));
            }
        }
        false
    }

    fn forget_if_idle(&mut self, key: &JobKey) {
        if self.slots.get(key).is_some_and(Slot::is_idle) {
            self.slots.remove(key);
        }
    }
}

/// The owed updates of a key as needed for a decision.
#[derive(Debug, Clone, PartialEq)]
pub struct Owed {
    groups: Vec<(Option<Mark>, Instant)>,
    unmarked_since: Option<Instant>,
    due_if_since: Duration,
    now: Instant,
    may_wait: bool,
}

impl Owed {
    /// Decides by the current record of last runs; without one it runs.
    pub fn decide(&self, record: Option<&RunRecord>) -> RunDecision {
        let covers = |mark: &Option<Mark>| mark.is_some_and(|mark| record.is_some_and(|r| r.covers(mark)));
        let left = || self.groups.iter().skip_while(|(mark, _)| covers(mark));
        let oldest = left().map(|(_, since)| *since).chain(self.unmarked_since).min();
        let Some(oldest) = oldest else { return RunDecision::NothingDue };
        if oldest + self.due_if_since > self.now {
            return RunDecision::NothingDue;
        }
        // Only if it settles everything due: otherwise this worker must run anyway.
        let is_due = |since: Instant| since + self.due_if_since <= self.now;
        let is_under_way = |mark: Option<Mark>| {
            mark.is_some_and(|mark| record.is_some_and(|record| record.is_under_way_since(mark)))
        };
        let all_under_way = left().filter(|(_, since)| is_due(*since)).all(|(mark, _)| is_under_way(*mark))
            && !self.unmarked_since.is_some_and(is_due);
        if all_under_way && self.may_wait { RunDecision::UnderWay } else { RunDecision::Run }
    }
}

#[cfg(test)]
mod tests;
