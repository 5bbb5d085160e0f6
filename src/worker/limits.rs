//! The limits in force. A running worker applies changes: partitions between two batches, the poll thread between two
//! polls.
//!
//! They are published as a whole. Readers keep a copy and detect newer limits by one atomic load, so the record path
//! takes no lock.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};

use super::budget;
use crate::io::elastic::rounds;
use crate::support::config::Config;
use crate::support::telemetry::Metrics;
use crate::support::telemetry::metrics::level;

/// Concurrent batches per request in flight: a batch mostly sends one request at a time and computes in between.
pub const BATCHES_PER_REQUEST: usize = 2;

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
    /// Concurrent requests.
    pub max_in_flight: usize,
    /// Limits on held bytes.
    pub memory: budget::MemoryLimits,
}

/// Receives the limits in force. Cheap to clone; a clone has seen what the original has.
pub type LimitsReader = watch::Receiver<WorkerLimits>;

impl WorkerLimits {
    /// As configured.
    pub fn of(config: &Config) -> Self {
        let Config { batch, elasticsearch, memory, .. } = config;
        Self {
            batching: Batching {
                max_documents: batch.max_documents,
                max_bytes: batch.max_bytes.as_usize(),
                linger: batch.linger,
                max_dirty_age: batch.max_dirty_age,
                deadline: batch.timeout,
            },
            requests: rounds::RequestLimits {
                max_operations: elasticsearch.request_max_operations,
                max_bytes: elasticsearch.request_max_bytes.as_usize(),
                request_timeout: elasticsearch.request_timeout,
            },
            max_in_flight: elasticsearch.max_in_flight,
            memory: budget::MemoryLimits {
                total: memory.total.as_usize(),
                per_partition: memory.per_partition.as_usize(),
            },
        }
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

/// Adjusts the request and batch permits to the limits until the publisher is dropped. The permits were created for
/// `now`, the limits the reader has seen.
pub async fn follow_permits(
    now: WorkerLimits,
    mut limits: LimitsReader,
    permits: Arc<Semaphore>,
    batch_permits: Arc<Semaphore>,
    metrics: Arc<Metrics>,
) {
    let mut permits = Permits::new(permits, now.max_in_flight);
    let mut batch_permits = Permits::new(batch_permits, now.batch_permits());
    loop {
        metrics.elasticsearch_permits.set(level(permits.there));
        tokio::select! {
            biased;
            changed = limits.changed() => {
                if changed.is_err() { return; }
                let now = *limits.borrow_and_update();
                permits.want(now.max_in_flight);
                batch_permits.want(now.batch_permits());
            }
            () = permits.take_back() => {}
            () = batch_permits.take_back() => {}
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
    use super::*;
    use crate::support::config::ByteSize;

    /// A configuration with one change.
    fn with(change: fn(&mut Config)) -> WorkerLimits {
        let mut config = Config::default();
        change(&mut config);
        WorkerLimits::of(&config)
    }

    #[test]
    fn limits_cover_every_reloadable_setting() {
        let changes: [fn(&mut Config); 9] = [
            |c| c.batch.max_documents = 7,
            |c| c.batch.max_bytes = ByteSize::mib(7),
            |c| c.batch.linger = Duration::from_millis(7),
            |c| c.batch.max_dirty_age = Duration::from_secs(7),
            |c| c.elasticsearch.max_in_flight = 7,
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

    #[tokio::test(start_paused = true)]
    async fn excess_permits_are_removed_once_free() {
        let in_flight =
            |max_in_flight| WorkerLimits { max_in_flight, ..WorkerLimits::of(&Config::default()) };
        let (sender, reader) = watch::channel(in_flight(4));
        let (permits, batch_permits) = (Arc::new(Semaphore::new(4)), Arc::new(Semaphore::new(8)));
        let metrics = Metrics::new().unwrap();
        let following =
            follow_permits(in_flight(4), reader, permits.clone(), batch_permits.clone(), metrics.clone());
        let following = tokio::spawn(following);
        let settle = || tokio::time::sleep(Duration::from_secs(1));
        let held = permits.clone().acquire_many_owned(3).await.unwrap();
        settle().await;
        sender.send_replace(in_flight(1));
        settle().await;
        assert_eq!((permits.available_permits(), batch_permits.available_permits()), (0, 2));
        assert_eq!(metrics.elasticsearch_permits.get(), 3, "three are in use");
        // Raised before all excess permits are removed.
        sender.send_replace(in_flight(2));
        settle().await;
        assert_eq!((permits.available_permits(), batch_permits.available_permits()), (0, 4));
        drop(held);
        settle().await;
        assert_eq!((permits.available_permits(), metrics.elasticsearch_permits.get()), (2, 2));
        sender.send_replace(in_flight(6));
        settle().await;
        assert_eq!((permits.available_permits(), batch_permits.available_permits()), (6, 12));
        drop(sender);
        assert!(following.await.is_ok());
    }
}
