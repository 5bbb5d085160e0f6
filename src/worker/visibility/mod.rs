//! Visibility to searches: the refreshes of a worker, and the sweeps that wait for them.
//!
//! A write acknowledged before a refresh of its geoshard began is found once that refresh is answered. A writer
//! subscribes here and is notified when a refresh that began later has succeeded. All waiters of a geoshard share one
//! refresh; there is one per geoshard at a time, and never more at once than Elasticsearch has threads for. `queue.rs`,
//! pure, decides when (`Shard::due_at`): whatever it delays holds back old copies and committed offsets, and runs
//! of jobs fail after their timeout and are repeated. Where Elasticsearch refreshes by itself, its refreshes are counted and
//! waited for.

mod queue;
mod threads;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

pub use self::queue::Queue;
use self::queue::Within;
use crate::base::clock::Instant;
use crate::base::ids::ShardId;
use crate::base::retry::Delays;
use crate::io::elastic::answer::{CallVerdict, judge_call};
use crate::io::elastic::refreshes::RefreshCounts;
use crate::io::elastic::rounds::RequestSender;
use crate::io::elastic::{CallError, Index};
use crate::support::telemetry::Metrics;

/// Maximum concurrent refreshes of one worker; fewer if Elasticsearch has fewer refresh threads (`threads.rs`): it has
/// one per two processors.
const MAX_RUNNING: usize = 8;

/// How long the geoshard that a document moved to waits for others to share its refresh: one default `refresh_interval`, or long
/// enough for two refreshes of a busy Elasticsearch if it refreshes periodically. Refreshes are what moves cost most beside the
/// writes; a longer delay leaves more old copies, and holds commits back.
const COALESCING_DELAY: Within = Within { usual: Duration::from_secs(1), at_most: Duration::from_secs(10) };

/// How often Elasticsearch's own refreshes are counted while writes wait for them.
const COUNT_INTERVAL: Duration = Duration::from_millis(500);

/// Pause after counts were refused: the privilege is missing, or the server has no such counts.
const COUNT_AGAIN: Duration = Duration::from_secs(60);

/// Maximum interval between updates of the gauge.
const GAUGE_INTERVAL: Duration = Duration::from_millis(500);

/// See the module documentation. The lock is held briefly, a few times per batch and refresh.
pub struct Visibility {
    rounds: RequestSender,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
    /// There is something new to do.
    wake: Notify,
}

struct State {
    queue: Queue<Waiter>,
    subscribers: HashMap<u64, mpsc::UnboundedSender<SearchableWrites>, ahash::RandomState>,
    next_subscriber: u64,
}

/// A request that was answered.
enum Ended {
    Refresh(ShardId, Result<(), CallError>),
    /// The pause before refreshes are counted again.
    Count(Duration),
}

/// A waiter.
#[derive(Debug)]
enum Waiter {
    /// A partition's task, for the duration of its subscription.
    Subscriber { number: u64, ticket: u64 },
    /// A caller that wants the outcome of one attempt.
    Once(oneshot::Sender<Result<(), CallError>>),
}

/// Searches find what a partition has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchableWrites {
    /// In this geoshard.
    pub shard: ShardId,
    /// Everything requested with this ticket.
    pub ticket: u64,
}

impl State {
    fn notify(&self, shard: &ShardId, waiters: Vec<Waiter>, answer: &Result<(), CallError>) {
        for waiter in waiters {
            match waiter {
                Waiter::Subscriber { number, ticket } => {
                    if let Some(subscriber) = self.subscribers.get(&number) {
                        // The partition may be gone.
                        let _ = subscriber.send(SearchableWrites { shard: shard.clone(), ticket });
                    }
                }
                // The receiver is gone if the run has timed out.
                Waiter::Once(sender) => drop(sender.send(answer.clone())),
            }
        }
    }
}

impl Visibility {
    /// Without waiters. [`Visibility::run`] has to be spawned.
    pub fn new(rounds: RequestSender, metrics: Arc<Metrics>) -> Arc<Self> {
        let state =
            State { queue: Queue::new(MAX_RUNNING), subscribers: HashMap::default(), next_subscriber: 0 };
        Arc::new(Self { rounds, metrics, state: Mutex::new(state), wake: Notify::new() })
    }

    /// For one assignment of a partition.
    pub fn subscribe(self: &Arc<Self>) -> RefreshSubscription {
        // Bounded by the sweeps that the partition owes.
        let (sender, seen) = mpsc::unbounded_channel();
        let mut state = self.state();
        let number = state.next_subscriber;
        state.next_subscriber += 1;
        state.subscribers.insert(number, sender);
        drop(state);
        RefreshSubscription { visibility: self.clone(), number, seen }
    }

    /// Waits until a refresh that began after this call was answered.
    ///
    /// # Errors
    /// If it failed; it is not retried.
    pub async fn refreshed(&self, shard: &ShardId) -> Result<(), CallError> {
        let (sender, answer) = oneshot::channel();
        self.request(shard.clone(), Waiter::Once(sender), Within::NOW);
        self.wake.notify_one();
        // The sender is in the queue until it is answered.
        answer.await.unwrap_or_else(|_| Err(CallError::Connection("the worker ends".to_owned())))
    }

    fn request(&self, shard: ShardId, waiter: Waiter, within: Within) {
        let now = self.now();
        self.state().queue.request(shard, waiter, within, now);
    }

    /// Runs until stopped. The next owners request pending refreshes again.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut running = FuturesUnordered::new();
        let mut failing: HashMap<ShardId, Delays, ahash::RandomState> = HashMap::default();
        let mut gauges = tokio::time::interval(GAUGE_INTERVAL);
        let mut is_counting = false;
        let mut count_at = self.now();
        loop {
            let now = self.now();
            let (begin, next_due, may_count) = {
                let queue = &mut self.state().queue;
                (queue.start(now), queue.next_due(), !is_counting && queue.has_waiting())
            };
            running.extend(begin.into_iter().map(|shard| self.clone().refresh(shard).boxed()));
            if may_count && count_at <= now {
                is_counting = true;
                running.push(self.clone().count().boxed());
            }
            let next_count = (may_count && count_at > now).then_some(count_at);
            let wake_in = next_due.into_iter().chain(next_count).min().map(|due| due.since(now));
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(ended) = running.next() => match ended {
                    Ended::Refresh(shard, answer) => self.answered(&shard, answer, &mut failing),
                    Ended::Count(pause) => {
                        is_counting = false;
                        count_at = self.now() + pause;
                    }
                },
                () = self.wake.notified() => {}
                () = tokio::time::sleep(wake_in.unwrap_or_default()), if wake_in.is_some() => {}
                _ = gauges.tick() => self.update_gauges(),
            }
        }
    }

    /// Counts Elasticsearch's own refreshes, and notifies those whom they serve.
    async fn count(self: Arc<Self>) -> Ended {
        let shards = self.state().queue.begin_count();
        let indices: Vec<Index> = shards.iter().cloned().map(Index::Geoshard).collect();
        let elastic = &self.rounds.elastic;
        let answer = elastic.count_refreshes(&indices, self.rounds.limits.request_timeout).await;
        let pause = count_pause(&answer);
        let counts = answer.unwrap_or_else(|error| {
            tracing::debug!(%error, ?pause, "refreshes were not counted; this needs the privilege monitor on the geoshards");
            vec![RefreshCounts::default(); shards.len()]
        });
        let now = self.now();
        let mut state = self.state();
        for (shard, counts) in shards.iter().zip(counts) {
            if counts.is_empty() {
                state.queue.not_counted(shard);
                continue;
            }
            let served = state.queue.counted(shard, counts, now);
            state.notify(shard, served, &Ok(()));
        }
        Ended::Count(pause)
    }

    async fn refresh(self: Arc<Self>, shard: ShardId) -> Ended {
        let began = self.now();
        let indices = [Index::Geoshard(shard.clone())];
        let answer = self.rounds.refresh(&indices).await;
        self.metrics.visibility.refreshed(answer.is_ok(), self.now().since(began));
        Ended::Refresh(shard, answer)
    }

    fn answered(
        &self,
        shard: &ShardId,
        answer: Result<(), CallError>,
        failing: &mut HashMap<ShardId, Delays, ahash::RandomState>,
    ) {
        let now = self.now();
        let mut state = self.state();
        let told = match &answer {
            Ok(()) => {
                failing.remove(shard);
                state.queue.succeeded(shard, now)
            }
            Err(error) => {
                let delays = failing.entry(shard.clone()).or_insert_with(|| self.rounds.retry.delays());
                let delay = delays.next(None);
                tracing::warn!(
                    %shard,
                    %error,
                    ?delay,
                    "refresh failed, so old copies of documents that moved there stay for now; a refresh needs \
                     the index privilege maintenance"
                );
                let goes_on = |waiter: &Waiter| matches!(waiter, Waiter::Subscriber { .. });
                state.queue.failed(shard, now + delay, goes_on)
            }
        };
        state.notify(shard, told, &answer);
    }

    fn update_gauges(&self) {
        let now = self.now();
        let queue = &mut self.state().queue;
        queue.tidy(now);
        self.metrics.visibility.waits(queue.oldest().map(|since| now.since(since)));
    }

    fn now(&self) -> Instant {
        self.rounds.clock.now()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock can leave it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pause after this answer before refreshes are counted again.
fn count_pause(answer: &Result<Vec<RefreshCounts>, CallError>) -> Duration {
    match answer {
        Ok(counts) if counts.iter().all(RefreshCounts::is_empty) => COUNT_AGAIN,
        Ok(_) => COUNT_INTERVAL,
        Err(error) => match judge_call(error) {
            CallVerdict::Again { after } => COUNT_INTERVAL.max(after.unwrap_or_default()),
            CallVerdict::Split | CallVerdict::Unauthorized => COUNT_AGAIN,
        },
    }
}

/// A partition's access to refreshes, for one assignment.
pub struct RefreshSubscription {
    visibility: Arc<Visibility>,
    number: u64,
    seen: mpsc::UnboundedReceiver<SearchableWrites>,
}

impl RefreshSubscription {
    /// Writes to these geoshards were acknowledged: [`RefreshSubscription::seen`] reports when searches find them.
    pub fn request(&self, shards: BTreeSet<ShardId>, ticket: u64) {
        if shards.is_empty() {
            return;
        }
        for shard in shards {
            let waiter = Waiter::Subscriber { number: self.number, ticket };
            self.visibility.request(shard, waiter, COALESCING_DELAY);
        }
        self.visibility.wake.notify_one();
    }

    /// The next visible write. Never ends.
    pub async fn seen(&mut self) -> SearchableWrites {
        match self.seen.recv().await {
            Some(seen) => seen,
            // The sender lives as long as this value.
            None => std::future::pending().await,
        }
    }
}

impl Drop for RefreshSubscription {
    fn drop(&mut self) {
        let mut state = self.visibility.state();
        state.subscribers.remove(&self.number);
        let gone = self.number;
        state.queue.retain(|waiter| !matches!(waiter, Waiter::Subscriber { number, .. } if *number == gone));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_server_is_asked_for_counts_again_soon() {
        let status = |status, retry_after| {
            let (kind, reason) = ("kind".to_owned(), String::new());
            Err(CallError::Status { status, kind, reason, retry_after })
        };
        let known = RefreshCounts::of([("0 node", 1)]);
        for (answer, pause) in [
            (Ok(vec![known, RefreshCounts::default()]), COUNT_INTERVAL),
            (Ok(vec![RefreshCounts::default()]), COUNT_AGAIN),
            (status(403, None), COUNT_AGAIN),
            (status(429, None), COUNT_INTERVAL),
            (status(429, Some(Duration::from_secs(3))), Duration::from_secs(3)),
            (Err(CallError::Timeout(Duration::from_secs(1))), COUNT_INTERVAL),
        ] {
            assert_eq!(count_pause(&answer), pause, "{answer:?}");
        }
    }
}
