//! The limits in force. A running worker applies changes: partitions between two batches, the poll thread between two
//! polls.
//!
//! They are published as a whole. Readers keep a copy and detect newer limits by one atomic load, so the record path
//! takes no lock.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};

use super::budget;
use crate::base::clock::Clock;
use crate::io::elastic::rounds::{self, ServerState};
use crate::support::config::Config;
use crate::support::telemetry::Metrics;
use crate::support::telemetry::metrics::level;

/// Concurrent batches per request in flight: a batch mostly sends one request at a time and computes in between.
pub const BATCHES_PER_REQUEST: usize = 2;

/// Write operations per document, at most: its placement, the document, the delete of an old copy, and the placement again.
const OPERATIONS_PER_DOCUMENT: usize = 4;

/// Batching limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batching {
    /// Maximum documents.
    pub max_documents: usize,
    /// Maximum bytes of folds, approximately.
    pub max_bytes: usize,
    /// Interval of the worker-wide tick at which all partitions flush, so that small writes share a request.
    pub linger: Duration,
    /// A partition whose oldest document is dirty for longer than this stops reading until it is written.
    pub max_dirty_age: Duration,
    /// A batch sends no requests after this long.
    pub deadline: Duration,
}

/// How much a worker does at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerLimits {
    /// Batching limits.
    pub batching: Batching,
    /// Limits of one request of a batch.
    pub requests: rounds::RequestLimits,
    /// Concurrent requests, at most.
    pub max_in_flight: usize,
    /// Whether there are fewer while Elasticsearch is slow or rejects requests.
    pub adaptive_concurrency: bool,
    /// Write operations per second; `None`: any number.
    pub max_operations_per_second: Option<NonZeroU32>,
    /// Limits on held bytes.
    pub memory: budget::MemoryLimits,
}

/// Receives the limits in force. Cheap to clone; a clone has seen what the original has.
pub type LimitsReader = watch::Receiver<WorkerLimits>;

impl WorkerLimits {
    /// As configured. With a ceiling of operations batches and requests are smaller if need be.
    pub fn of(config: &Config) -> Self {
        let Config { batch, elasticsearch, memory, .. } = config;
        let batching = Batching {
            max_documents: batch.max_documents,
            max_bytes: batch.max_bytes.as_usize(),
            linger: batch.linger,
            max_dirty_age: batch.max_dirty_age,
            deadline: batch.timeout,
        };
        let requests = rounds::RequestLimits {
            max_operations: elasticsearch.request_max_operations,
            max_bytes: elasticsearch.request_max_bytes.as_usize(),
            request_timeout: elasticsearch.request_timeout,
        };
        let limits = Self {
            batching,
            requests,
            max_in_flight: elasticsearch.max_in_flight,
            adaptive_concurrency: elasticsearch.adaptive_concurrency,
            max_operations_per_second: elasticsearch.max_operations_per_second,
            memory: budget::MemoryLimits {
                total: memory.total.as_usize(),
                per_partition: memory.per_partition.as_usize(),
            },
        };
        match elasticsearch.max_operations_per_second {
            Some(ceiling) => limits.below(ceiling),
            None => limits,
        }
    }

    /// With requests of at most a second's operations, so that they are sent evenly; and with batches so small that all of those
    /// at work are written in half of their time: they share the ceiling, and would otherwise end with nothing done.
    fn below(mut self, ceiling: NonZeroU32) -> Self {
        let per_second = usize::try_from(ceiling.get()).unwrap_or(usize::MAX);
        let requests = &mut self.requests.max_operations;
        *requests = per_second.min(*requests);
        let seconds = usize::try_from(self.batching.deadline.as_secs() / 2).unwrap_or(usize::MAX);
        let operations = per_second.saturating_mul(seconds) / self.batch_permits().max(1);
        let documents = &mut self.batching.max_documents;
        *documents = (operations / OPERATIONS_PER_DOCUMENT).clamp(1, (*documents).max(1));
        self
    }

    /// Number of batch permits ([`BATCHES_PER_REQUEST`]).
    pub fn batch_permits(&self) -> usize {
        self.max_in_flight.saturating_mul(BATCHES_PER_REQUEST)
    }
}

/// Limits published since the last call, if any. Takes no lock if there are none.
pub fn newer(reader: &mut LimitsReader) -> Option<WorkerLimits> {
    reader.has_changed().is_ok_and(|changed| changed).then(|| *reader.borrow_and_update())
}

/// What the limits in force bound: requests, batches, and operations per second.
#[derive(Clone)]
pub struct Throttles {
    /// For requests in flight.
    pub permits: Arc<Semaphore>,
    /// For batches ([`BATCHES_PER_REQUEST`]).
    pub batch_permits: Arc<Semaphore>,
    /// Has the ceiling of operations, and says how many requests may be in flight now.
    pub server: Arc<ServerState>,
    /// For the ceiling.
    pub clock: Arc<dyn Clock>,
    /// Shows the number of permits.
    pub metrics: Arc<Metrics>,
}

impl Throttles {
    /// With permits for `now`.
    pub fn new(
        now: WorkerLimits,
        server: Arc<ServerState>,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
    ) -> Self {
        metrics.elasticsearch.permits.set(level(now.max_in_flight));
        let throttles = Self {
            permits: Arc::new(Semaphore::new(now.max_in_flight)),
            batch_permits: Arc::new(Semaphore::new(now.batch_permits())),
            server,
            clock,
            metrics,
        };
        throttles.set(now);
        throttles
    }

    fn set(&self, limits: WorkerLimits) {
        self.server.concurrency.set(limits.max_in_flight, limits.adaptive_concurrency);
        self.server.ceiling.set(limits.max_operations_per_second, self.clock.now());
    }

    /// Follows the limits, and the answers of the server, until the publisher of limits is dropped. The throttles were made for
    /// `now`, the limits that the reader has seen.
    pub async fn follow(self, now: WorkerLimits, mut limits: LimitsReader) {
        let mut permits = Permits::new(self.permits.clone(), now.max_in_flight);
        let mut batch_permits = Permits::new(self.batch_permits.clone(), now.batch_permits());
        let mut allowed = self.server.concurrency.allowed();
        allowed.mark_changed();
        loop {
            self.metrics.elasticsearch.permits.set(level(permits.there));
            tokio::select! {
                biased;
                changed = limits.changed() => {
                    if changed.is_err() { return; }
                    let now = *limits.borrow_and_update();
                    self.set(now);
                }
                // The sender lives as long as `self`.
                Ok(()) = allowed.changed() => {
                    let allowed = *allowed.borrow_and_update();
                    permits.want(allowed);
                    batch_permits.want(allowed.saturating_mul(BATCHES_PER_REQUEST));
                }
                () = permits.take_back() => {}
                () = batch_permits.take_back() => {}
            }
        }
    }
}

/// Permits whose number changes while some of them are in use.
struct Permits {
    semaphore: Arc<Semaphore>,
    /// In use or free.
    there: usize,
    wanted: usize,
}

impl Permits {
    fn new(semaphore: Arc<Semaphore>, there: usize) -> Self {
        Self { semaphore, there, wanted: there }
    }

    fn want(&mut self, wanted: usize) {
        self.wanted = wanted;
        let missing = wanted.saturating_sub(self.there);
        self.semaphore.add_permits(missing);
        self.there += missing;
    }

    /// Removes one excess permit once it is free. Pending forever without excess.
    async fn take_back(&mut self) {
        if self.there > self.wanted
            && let Ok(permit) = self.semaphore.acquire().await
        {
            permit.forget();
            self.there -= 1;
            return;
        }
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinHandle;

    use super::*;
    use crate::base::concurrency_limit::EndedRequest;
    use crate::support::config::ByteSize;
    use crate::testkit::testing::TokioClock;

    /// A configuration with one change.
    fn with(change: fn(&mut Config)) -> WorkerLimits {
        let mut config = Config::default();
        change(&mut config);
        WorkerLimits::of(&config)
    }

    #[test]
    fn limits_cover_every_reloadable_setting() {
        let changes: [fn(&mut Config); 11] = [
            |c| c.batch.max_documents = 7,
            |c| c.batch.max_bytes = ByteSize::mib(7),
            |c| c.batch.linger = Duration::from_millis(7),
            |c| c.batch.max_dirty_age = Duration::from_secs(7),
            |c| c.elasticsearch.max_in_flight = 7,
            |c| c.elasticsearch.adaptive_concurrency = true,
            |c| c.elasticsearch.max_operations_per_second = NonZeroU32::new(1_000_000),
            |c| c.elasticsearch.request_max_operations = 7,
            |c| c.elasticsearch.request_max_bytes = ByteSize::mib(7),
            |c| c.memory.total = ByteSize::mib(7),
            |c| c.memory.per_partition = ByteSize::mib(7),
        ];
        let all: Vec<WorkerLimits> = changes.into_iter().map(with).chain([with(|_| ())]).collect();
        for (n, one) in all.iter().enumerate() {
            assert!(!all[..n].contains(one), "{n}");
        }
    }

    #[test]
    fn published_limits_are_seen_once_by_each_reader() {
        let (sender, mut one) = watch::channel(WorkerLimits::of(&Config::default()));
        let mut other = one.clone();
        assert_eq!(newer(&mut one), None);
        let less = with(|c| c.batch.max_documents = 7);
        sender.send_replace(less);
        assert_eq!((newer(&mut one), newer(&mut one)), (Some(less), None));
        assert_eq!(newer(&mut other.clone()), Some(less));
        assert_eq!(newer(&mut other), Some(less));
    }

    #[test]
    fn below_a_ceiling_all_batches_at_work_fit_into_half_of_their_time() {
        let below = |ceiling, more: fn(&mut Config)| {
            let mut config = Config::default();
            config.elasticsearch.max_operations_per_second = NonZeroU32::new(ceiling);
            more(&mut config);
            let limits = WorkerLimits::of(&config);
            (limits.batching.max_documents, limits.requests.max_operations)
        };
        // 8 batches of 937 documents with 4 operations each are 29,984 operations.
        assert_eq!(below(1_000, |_| ()), (937, 1_000));
        assert_eq!(below(1_000, |c| c.elasticsearch.max_in_flight = 1), (3_750, 1_000));
        assert_eq!(below(1_000, |c| c.batch.timeout = Duration::from_secs(30)), (468, 1_000));
        assert_eq!(below(1_000, |c| c.batch.max_documents = 100), (100, 1_000));
        assert_eq!(below(100_000, |_| ()), (5_000, 2_000));
        assert_eq!(below(1, |_| ()), (1, 1));
    }

    /// Follows limits as of a configuration, in virtual time.
    fn followed(now: WorkerLimits) -> (watch::Sender<WorkerLimits>, Throttles, JoinHandle<()>) {
        let (sender, reader) = watch::channel(now);
        let clock = Arc::new(TokioClock::new());
        let throttles = Throttles::new(now, Arc::default(), clock, Metrics::new().unwrap());
        let following = tokio::spawn(throttles.clone().follow(now, reader));
        (sender, throttles, following)
    }

    async fn settle() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn permits_follow_what_the_server_allows_up_to_the_limit() {
        let limits = |max_in_flight, adaptive_concurrency| WorkerLimits {
            max_in_flight,
            adaptive_concurrency,
            ..WorkerLimits::of(&Config::default())
        };
        let (sender, throttles, _following) = followed(limits(8, true));
        let available =
            || (throttles.permits.available_permits(), throttles.batch_permits.available_permits());
        settle().await;
        assert_eq!(available(), (8, 16));
        let rejected =
            EndedRequest { took: Duration::ZERO, operations: None, is_rejected: true, in_flight: 1 };
        throttles.server.concurrency.ended(&rejected, throttles.clock.now());
        settle().await;
        assert_eq!((available(), throttles.metrics.elasticsearch.permits.get()), ((4, 8), 4));
        sender.send_replace(limits(3, true));
        settle().await;
        assert_eq!(available(), (3, 6));
        sender.send_replace(limits(6, false));
        settle().await;
        throttles.server.concurrency.ended(&rejected, throttles.clock.now());
        settle().await;
        assert_eq!(available(), (6, 12), "it no longer adapts");
    }

    #[tokio::test(start_paused = true)]
    async fn excess_permits_are_removed_once_free() {
        let in_flight =
            |max_in_flight| WorkerLimits { max_in_flight, ..WorkerLimits::of(&Config::default()) };
        let (sender, throttles, following) = followed(in_flight(4));
        let Throttles { permits, batch_permits, metrics, .. } = throttles;
        let held = permits.clone().acquire_many_owned(3).await.unwrap();
        settle().await;
        sender.send_replace(in_flight(1));
        settle().await;
        assert_eq!((permits.available_permits(), batch_permits.available_permits()), (0, 2));
        assert_eq!(metrics.elasticsearch.permits.get(), 3, "three are in use");
        // Raised before all excess permits are removed.
        sender.send_replace(in_flight(2));
        settle().await;
        assert_eq!((permits.available_permits(), batch_permits.available_permits()), (0, 4));
        drop(held);
        settle().await;
        assert_eq!((permits.available_permits(), metrics.elasticsearch.permits.get()), (2, 2));
        sender.send_replace(in_flight(6));
        settle().await;
        assert_eq!((permits.available_permits(), batch_permits.available_permits()), (6, 12));
        drop(sender);
        assert!(following.await.is_ok());
    }
}
