//! The loop of a distributor: reads marks, starts due runs, notifies waiters, retries.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, Fuse, FusedFuture};
use futures::stream::{FuturesUnordered, StreamExt};
use rdkafka::message::{Header, OwnedHeaders};
use tokio_util::sync::CancellationToken;

use super::action::{RunFailure, RunNotice};
use super::last_runs::RunDecision;
use super::run_after::Mark;
use super::scheduler::{JobKey, SettledUpdates, UpdateGroup};
use super::{Distributor, Job, Released};
use crate::base::clock::Instant;
use crate::base::headers::DISTRIBUTION_HEADER;
use crate::base::retry::Delays;
use crate::support::telemetry::metrics::level;
use crate::worker::dead_letter::{DeadLetter, Origin};

/// Keys whose counters are read at once.
const MARKS_AT_ONCE: usize = 64;

/// Interval between checks of another worker's run.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Maximum interval between updates of the gauge.
const GAUGE_INTERVAL: Duration = Duration::from_millis(500);

/// Marks being read.
type Marking = Fuse<BoxFuture<'static, Vec<(JobKey, Option<Mark>)>>>;

/// Keys in progress with their backoff. Resolves when the key is free again.
type Running = FuturesUnordered<BoxFuture<'static, (JobKey, Option<Delays>)>>;

/// Failed keys with their backoff.
type Failing = std::collections::HashMap<JobKey, Delays, ahash::RandomState>;

/// The subject of a key's run, besides the scheduler's state.
struct Work {
    notice: Bytes,
    since: Instant,
    origin: Origin,
}

impl Distributor {
    /// Runs until stopped. Gated distributions still owed are not lost: the next owner owes them again.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut marking: Marking = Fuse::terminated();
        let mut running = Running::new();
        let mut failing = Failing::default();
        let mut gauges = tokio::time::interval(GAUGE_INTERVAL);
        loop {
            let now = self.around.clock.now();
            let (to_mark, due, next_due) = {
                let mut state = self.state();
                let scheduler = &mut state.scheduler;
                let to_mark =
                    if marking.is_terminated() { scheduler.to_mark(MARKS_AT_ONCE) } else { Vec::new() };
                let due = scheduler.start_due(now);
                (to_mark, due, scheduler.next_due(now))
            };
            if !to_mark.is_empty() {
                marking = self.clone().mark(to_mark).boxed().fuse();
            }
            for key in due {
                let delays = failing.remove(&key);
                running.push(self.clone().run_or_skip(key, delays).boxed());
            }
            let wake_in = next_due.map(|due| due.since(now));
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                marks = &mut marking => {
                    let mut state = self.state();
                    marks.into_iter().for_each(|(key, mark)| state.scheduler.marked(&key, mark));
                }
                Some((key, delays)) = running.next() => {
                    failing.extend(delays.map(|delays| (key, delays)));
                }
                () = self.wake.notified() => {}
                () = tokio::time::sleep(wake_in.unwrap_or_default()), if wake_in.is_some() => {}
                _ = gauges.tick() => self.update_gauges(),
            }
        }
    }

    async fn mark(self: Arc<Self>, keys: Vec<JobKey>) -> Vec<(JobKey, Option<Mark>)> {
        let names: Vec<String> = keys.iter().map(|key| self.store_key(key)).collect();
        let marks = self.around.last_runs.marks(&names).await;
        keys.into_iter().zip(marks).collect()
    }

    /// Handles a due key: runs, or finds that another worker did. Returns its backoff if it must be retried.
    async fn run_or_skip(self: Arc<Self>, key: JobKey, delays: Option<Delays>) -> (JobKey, Option<Delays>) {
        let Some(job) = self.jobs.get(key.job) else { return (key, None) };
        let name = self.store_key(&key);
        let now = self.around.clock.now();
        let owed = self.state().scheduler.owed(&key, now);
        let begun = self.around.last_runs.begin(&name, |record| owed.decide(record)).await;
        if let Some(record) = begun.record {
            let settled = self.state().scheduler.covered(&key, &record);
            job.metrics.redundant.inc_by(settled.requests);
            self.notify(&key, job, &settled);
        }
        match begun.decision {
            RunDecision::NothingDue => {
                self.state().scheduler.put_off(&key, None, self.around.clock.now());
                return (key, None);
            }
            RunDecision::UnderWay => {
                let now = self.around.clock.now();
                self.state().scheduler.put_off(&key, Some(now + LOOK_AGAIN), now);
                return (key, delays);
            }
            RunDecision::Run => {}
        }
        let Some(work) = self.begin_run(&key, job) else {
            self.state().scheduler.put_off(&key, None, self.around.clock.now());
            return (key, None);
        };
        match job.action.run(&key.shard, &work.notice, job.timeout).await {
            Ok(()) => {
                job.metrics.succeeded.inc();
                if let Some(token) = begun.token {
                    self.around.last_runs.succeeded(&name, token).await;
                }
                let settled = self.state().scheduler.succeeded(&key);
                self.notify(&key, job, &settled);
                (key, None)
            }
            Err(failure) => {
                job.metrics.failed.inc();
                let delays = self.after_failure(&key, job, work, failure, delays).await;
                (key, delays)
            }
        }
    }

    /// Takes everything owed by now: the run begins after it.
    fn begin_run(&self, key: &JobKey, job: &Job) -> Option<Work> {
        let mut state = self.state();
        let group = state.scheduler.begin_run(key)?;
        let notice = RunNotice::new(&job.name, &key.shard, &self.around.topic, group).to_json();
        Some(Work { notice, since: group.since, origin: origin(&self.around.topic, group) })
    }

    async fn after_failure(
        &self,
        key: &JobKey,
        job: &Job,
        work: Work,
        failure: RunFailure,
        delays: Option<Delays>,
    ) -> Option<Delays> {
        let age = self.around.clock.now().since(work.since);
        let is_over = job.give_up_after.is_some_and(|limit| failure.for_good || age >= limit);
        let RunFailure { reason, .. } = &failure;
        let (name, shard) = (&job.name, &key.shard);
        match (&self.around.dead_letters, job.gate) {
            (Some(dead_letters), true) if is_over => {
                tracing::warn!(job = %name, %shard, reason, ?age, "a distribution was abandoned; it goes to the dead-letter topic");
                dead_letters.deliver(vec![letter(key, job, work, failure)]).await;
            }
            (_, false) if is_over => {
                tracing::warn!(job = %name, %shard, reason, ?age, "a distribution was abandoned");
            }
            _ => {
                let mut delays = delays.unwrap_or_else(|| self.around.retry.delays());
                let delay = delays.next(None);
                tracing::warn!(job = %name, %shard, reason, ?age, ?delay, "a distribution failed; retrying");
                self.state().scheduler.failed(key, self.around.clock.now() + delay);
                return Some(delays);
            }
        }
        job.metrics.given_up.inc();
        let settled = self.state().scheduler.succeeded(key);
        self.release(key, &settled);
        None
    }

    /// Reports what a run of any worker settled.
    fn notify(&self, key: &JobKey, job: &Job, settled: &SettledUpdates) {
        if let Some(since) = settled.since {
            job.metrics.seconds.observe(self.around.clock.now().since(since).as_secs_f64());
        }
        self.release(key, settled);
    }

    fn release(&self, key: &JobKey, settled: &SettledUpdates) {
        let state = self.state();
        for (waiter, ticket) in &settled.waiters {
            if let Some(partition) = state.waiters.get(waiter) {
                // The partition may be gone.
                let _ = partition.send(Released { key: key.clone(), ticket: *ticket });
            }
        }
    }

    fn update_gauges(&self) {
        let state = self.state();
        for (number, job) in self.jobs.iter().enumerate() {
            job.metrics.pending.set(level(state.scheduler.pending(number)));
        }
    }

    fn store_key(&self, key: &JobKey) -> String {
        let prefix = self.jobs.get(key.job).map_or("", |job| &job.store_key);
        format!("{prefix}{}", key.shard)
    }
}

fn origin(topic: &Arc<str>, group: &UpdateGroup) -> Origin {
    // With several partitions, the value lists them all.
    let first = group.spans.iter().next();
    let offsets = first.and_then(|(_, span)| span.offsets);
    Origin {
        topic: topic.clone(),
        partition: first.map_or(-1, |(partition, _)| *partition),
        first_offset: offsets.map_or(-1, |(first, _)| first),
        last_offset: offsets.map_or(-1, |(_, last)| last),
    }
}

fn letter(key: &JobKey, job: &Job, work: Work, failure: RunFailure) -> DeadLetter {
    let identity = format!("{}:{}", job.name, key.shard);
    let header = Header { key: DISTRIBUTION_HEADER, value: Some(&identity) };
    DeadLetter {
        key: Some(Bytes::copy_from_slice(key.shard.as_str().as_bytes())),
        value: Some(work.notice),
        headers: OwnedHeaders::new().insert(header),
        reason: if failure.for_good { "distribution_refused" } else { "distribution_failed" },
        stage: "distribution",
        detail: failure.reason,
        origin: work.origin,
    }
}
