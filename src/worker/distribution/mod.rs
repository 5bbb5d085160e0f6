//! Distribution: runs that must follow changes of a geoshard, batched over many changes. A refresh, so that
//! searches find what was written; a webhook; a record in a topic. User guide: docs/distribution.md.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the jobs, the [`Distributor`] that all partitions of a worker share, a partition's [`DistributionSubscription`] |
//! | `run_after.rs` | whether another worker's run makes one's own redundant (pure) |
//! | `scheduler/` | which runs are owed or due, and what a run settles (pure) |
//! | `driver.rs` | decides, runs, retries: the only loop |
//! | `action.rs` | the kinds of runs |
//! | `setup.rs` | the configured distributor |
//! | `last_runs.rs`, `memcached.rs` | shared records of runs, and the fallback without them |
//!
//! *Invariant:* for every change that was requested there is a run that began after it and succeeded, or the request is
//! still owed (or abandoned, in the dead-letter topic if it had a gate). An owed run of a job with a gate holds its
//! partition's watermark.

pub mod action;
mod driver;
pub mod last_runs;
pub mod memcached;
pub mod run_after;
pub mod scheduler;
pub(crate) mod setup;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};

use self::action::JobAction;
use self::last_runs::LastRuns;
use self::scheduler::{JobKey, Scheduler, ShardChange, WaiterId};
use crate::base::clock::Clock;
use crate::base::ids::ShardId;
use crate::base::retry::RetryPolicy;
use crate::support::telemetry::distribution::DistributionMetrics;
use crate::worker::dead_letter::DeadLetterSink;

/// A configured job.
pub struct Job {
    /// Its name; with a geoshard, `NAME:SHARD`, its identity.
    pub name: Arc<str>,
    /// Whether offsets wait for it.
    pub gate: bool,
    /// How long the first update waits for others: the minimum time between runs.
    pub interval: Duration,
    /// Timeout of one attempt.
    pub timeout: Duration,
    /// A run that has not succeeded this long after its oldest update is abandoned; `None`: never.
    pub give_up_after: Option<Duration>,
    /// The work of a run.
    pub action: Arc<dyn JobAction>,
    /// Prefix of its keys in the store of last runs. Differs for another job or another target.
    pub store_key: String,
    /// Counters.
    pub metrics: DistributionMetrics,
}

/// Dependencies of a distributor besides jobs.
pub struct DistributorDependencies {
    /// The topic of document writes.
    pub topic: Arc<str>,
    /// Shared records of runs.
    pub last_runs: Arc<LastRuns>,
    /// Where abandoned gated runs go. Without it they are retried without limit.
    pub dead_letters: Option<Arc<dyn DeadLetterSink>>,
    /// Pauses between attempts.
    pub retry: RetryPolicy,
    /// Boot-time clock.
    pub clock: Arc<dyn Clock>,
}

/// All distributions of a worker. The lock is held briefly, once per batch and once or twice per run.
pub struct Distributor {
    jobs: Vec<Job>,
    gated: Vec<usize>,
    not_gated: Vec<usize>,
    around: DistributorDependencies,
    state: Mutex<State>,
    /// There is something new to do.
    wake: Notify,
}

struct State {
    scheduler: Scheduler,
    waiters: HashMap<WaiterId, mpsc::UnboundedSender<Released>, ahash::RandomState>,
    next_waiter: WaiterId,
}

/// Distributions that a partition waited for are settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released {
    /// Their job and geoshard.
    pub key: JobKey,
    /// Everything requested up to this ticket.
    pub ticket: u64,
}

impl Distributor {
    /// Without owed runs. [`Distributor::run`] has to be spawned.
    pub fn new(jobs: Vec<Job>, around: DistributorDependencies) -> Arc<Self> {
        let (gated, not_gated) = (0..jobs.len()).partition(|job| jobs[*job].gate);
        let state = State {
            scheduler: Scheduler::new(jobs.iter().map(|job| job.interval).collect()),
            waiters: HashMap::default(),
            next_waiter: 0,
        };
        Arc::new(Self { jobs, gated, not_gated, around, state: Mutex::new(state), wake: Notify::new() })
    }

    /// For one assignment of a partition.
    pub fn subscribe(self: &Arc<Self>, partition: i32) -> DistributionSubscription {
        // Bounded by what the partition holds at its gate.
        let (sender, released) = mpsc::unbounded_channel();
        let mut state = self.state();
        let waiter = state.next_waiter;
        state.next_waiter += 1;
        state.waiters.insert(waiter, sender);
        drop(state);
        DistributionSubscription { distributor: self.clone(), partition, waiter, next_ticket: 0, released }
    }

    /// Makes everything owed due now; returns once nothing is owed, or after `limit`.
    pub async fn flush(&self, limit: Duration) {
        let nothing_owed = async {
            loop {
                let owed = {
                    let mut state = self.state();
                    state.scheduler.hurry(None);
                    (0..self.jobs.len()).map(|job| state.scheduler.pending(job)).sum::<usize>()
                };
                if owed == 0 {
                    return;
                }
                self.wake.notify_one();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(limit, nothing_owed).await.is_err() {
            tracing::warn!("distributions not run in time are left to the next owners");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock can leave it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A partition's access to the distributor, for one assignment.
pub struct DistributionSubscription {
    distributor: Arc<Distributor>,
    partition: i32,
    waiter: WaiterId,
    next_ticket: u64,
    released: mpsc::UnboundedReceiver<Released>,
}

impl DistributionSubscription {
    /// These changes are indexed. Returns the ticket, and what to hold until it is released, if anything.
    pub fn request(
        &mut self,
        changes: &BTreeMap<ShardId, ShardChange>,
        watermark: Option<i64>,
    ) -> (u64, Vec<JobKey>) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let distributor = &*self.distributor;
        let now = distributor.around.clock.now();
        let mut state = distributor.state();
        let scheduler = &mut state.scheduler;
        let waiter = Some((self.waiter, ticket));
        scheduler.request(&distributor.gated, changes, self.partition, watermark, waiter, now);
        scheduler.request(&distributor.not_gated, changes, self.partition, watermark, None, now);
        drop(state);
        for job in &distributor.jobs {
            job.metrics.requested.inc_by(changes.len() as u64);
        }
        distributor.wake.notify_one();
        let keys = distributor
            .gated
            .iter()
            .flat_map(|&job| changes.keys().map(move |shard| JobKey { job, shard: shard.clone() }));
        (ticket, keys.collect())
    }

    /// The next release. Never ends.
    pub async fn released(&mut self) -> Released {
        match self.released.recv().await {
            Some(released) => released,
            // The sender is in the distributor until this value is dropped.
            None => std::future::pending().await,
        }
    }

    /// The partition is ending: its distributions are due at once.
    pub fn hurry(&self) {
        self.distributor.state().scheduler.hurry(Some(self.waiter));
        self.distributor.wake.notify_one();
    }
}

impl Drop for DistributionSubscription {
    fn drop(&mut self) {
        self.distributor.state().waiters.remove(&self.waiter);
    }
}
