//! `geofold run`: a consumer group member that applies its partitions to the index.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | runs the parts, stops them in order |
//! | `setup.rs` | what partition tasks share, and the tasks beside them |
//! | `consumer.rs` | the poll thread: the only user of the Kafka consumer |
//! | `assignment.rs` | the partitions owned now, as the poll thread sees them |
//! | `partition/` | one task per partition: decode, fold, batch, settle, publish |
//! | `ledger/` | unfinished work of a partition and the resulting watermark (pure) |
//! | `limits.rs` | the limits in force, reloaded while running |
//! | `budget.rs` | bytes held, and the limits that they reach |
//! | `flow.rs` | which partitions stop being read, and how (pure) |
//! | `drive.rs` | runs a batch of the mover against Elasticsearch |
//! | `record.rs` | an owned record |
//! | `look_ahead.rs` | reads a partition ahead, to know which of its records later ones supersede |
//! | `reread.rs` | reads records of a split fold again |
//! | `topic_watch.rs` | detects a re-created or repartitioned topic |
//! | `visibility/` | refreshes that sweeps wait for |
//! | `distribution/` | work that follows every change: refreshes, webhooks, records |
//! | `refeed/` | fetches documents from the source of truth |
//! | `increments/` | live counts: increments of a partition's changes |
//! | `dead_letter.rs` | dead letters |
//! | `kept.rs` | caches that outlive their task, under a sabotage alone |
//!
//! Records go one way, poll thread → partition task → mover → Elasticsearch; the only way back is the watermark, and
//! pause and resume.

pub mod assignment;
pub mod budget;
pub mod consumer;
pub mod dead_letter;
pub mod distribution;
pub mod drive;
pub mod flow;
pub mod increments;
#[cfg(feature = "sabotage")]
mod kept;
pub mod ledger;
pub mod limits;
pub mod look_ahead;
pub mod partition;
pub mod record;
pub mod refeed;
pub mod reread;
mod setup;
#[cfg(test)]
mod tests;
pub mod topic_watch;
pub mod visibility;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

use self::assignment::Assignment;
use self::budget::MemoryBudget;
use self::consumer::{ConsumerLost, Context, PollPace, Signals, poll_until_told};
use self::limits::{LimitsReader, WorkerLimits};
use self::partition::WorkerContext;
use self::refeed::DocumentSource;
pub use self::setup::worker_name;
use crate::base::clock::Clock;
use crate::core::mover::Rules;
use crate::io::elastic::Elastic;
use crate::io::elastic::rounds::{Halt, RequestDeadline};
use crate::io::kafka::client_config;
use crate::io::maps::MapsReader;
use crate::io::meta::{TopicFacts, TopicMemory};
use crate::io::registry;
use crate::support::config::Config;
use crate::support::supervisor::Supervisor;
use crate::support::telemetry::Metrics;
use crate::support::telemetry::health::Health;
use crate::support::telemetry::partition_status::PartitionStatusSender;
use crate::support::telemetry::traces::Traces;

/// What a worker needs besides its configuration.
pub struct WorkerDependencies {
    /// The search server.
    pub elastic: Arc<dyn Elastic>,
    /// Placement rules.
    pub rules: Rules,
    /// The maps in force.
    pub maps: MapsReader,
    /// The limits in force.
    pub limits: LimitsReader,
    /// The current settings of the source of truth, if there is one.
    pub source: Option<watch::Receiver<DocumentSource>>,
    /// The topic as the preflight found it.
    pub topic: TopicFacts,
    /// Boot-time clock.
    pub clock: Arc<dyn Clock>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Trace exporter.
    pub traces: Traces,
    /// Liveness and readiness.
    pub health: Arc<Health>,
    /// Partition statuses, published by the poll thread.
    pub partition_status: PartitionStatusSender,
    /// Cancelled to drain and leave the group.
    pub stop: CancellationToken,
    /// Supervises background tasks; its owner stops the worker when one is lost.
    pub supervisor: Supervisor,
}

/// Why a worker ended without being stopped.
#[derive(Debug, Error)]
pub enum WorkerError {
    /// Creating a Kafka client failed because of an invalid property.
    #[error("could not create the kafka {client}: {error}; check [kafka] in the configuration")]
    Client {
        /// Consumer or producer.
        client: &'static str,
        /// librdkafka's error.
        error: rdkafka::error::KafkaError,
    },
    /// The consumer is lost.
    #[error(transparent)]
    Consumer(#[from] ConsumerLost),
    /// Elasticsearch refuses the worker's credentials.
    #[error(transparent)]
    Halt(#[from] Halt),
    /// A webhook's client could not be set up.
    #[error("could not set up the webhook {job}: {reason}")]
    Webhook {
        /// The job's name.
        job: String,
        /// The cause and the remedy.
        reason: String,
    },
    /// The schema registry's configuration is unusable.
    #[error(transparent)]
    Registry(#[from] registry::RegistryOpenError),
    /// The poll thread panicked.
    #[error("the poll thread ended unexpectedly; this is a defect in geofold, please report it with the log")]
    PollThread,
}

/// Runs a worker until it is stopped, has drained and has left the group.
///
/// # Errors
/// See [`WorkerError`]. In every case no offset moves past unfinished work.
pub async fn run(config: &Config, mut dependencies: WorkerDependencies) -> Result<(), WorkerError> {
    // Receivers cloned from here on see later updates as changed.
    let now = *dependencies.limits.borrow_and_update();
    let (fatal, halts) = mpsc::unbounded_channel();
    let (context, mut background) = setup::start(config, &dependencies, now, fatal)?;
    let WorkerDependencies { clock, metrics, health, partition_status, stop, supervisor, .. } = dependencies;
    let (commits, committed) = mpsc::unbounded_channel();
    let remembering = remember_commits(context.memory.clone(), config.clone(), clock, committed);
    let consumer = join_group(config, context, now, metrics)?;
    let mut poll_thread = PollThread::start(consumer, health.clone(), commits, partition_status);
    let remembering = supervisor.spawn_until_done("committed offsets", remembering);
    health.ready(Health::STARTUP);
    let (ended, halt) = poll_thread.until_it_ends(&stop, halts, &health).await;
    if halt.is_none() {
        background.finish_distributions().await;
    }
    // The poll thread's sender is dropped, so this ends once the last offsets are stored or abandoned.
    let _ = remembering.await;
    background.finish().await;
    match (ended, halt) {
        (_, Some(halt)) => Err(halt.into()),
        (Ok(result), None) => Ok(result?),
        (Err(_), None) => Err(WorkerError::PollThread),
    }
}

/// A consumer that has asked for its partitions; their tasks start when it is polled.
fn join_group(
    config: &Config,
    context: Arc<WorkerContext>,
    now: WorkerLimits,
    metrics: Arc<Metrics>,
) -> Result<BaseConsumer<Context>, WorkerError> {
    let failed = |error| WorkerError::Client { client: "consumer", error };
    let pace = PollPace {
        commit_interval: config.commit.interval,
        revoke: config.shutdown.revoke_timeout,
        drain: config.shutdown.drain_timeout,
    };
    let runtime = tokio::runtime::Handle::current();
    let cached_placements = config.memory.cached_placements;
    let assignment = Assignment::new(context, runtime, MemoryBudget::new(), now.memory, cached_placements);
    let callbacks = Context::new(&config.kafka.topic, assignment, pace, metrics);
    let consumer: BaseConsumer<Context> =
        client_config(&config.consumer_properties()).create_with_context(callbacks).map_err(failed)?;
    consumer.subscribe(&[&config.kafka.topic]).map_err(failed)?;
    Ok(consumer)
}

/// The running poll thread. A thread cannot be cancelled: if the worker's future is dropped, this signals it to leave.
struct PollThread {
    signals: Arc<Signals>,
    thread: JoinHandle<Result<(), ConsumerLost>>,
}

impl PollThread {
    fn start(
        consumer: BaseConsumer<Context>,
        health: Arc<Health>,
        commits: mpsc::UnboundedSender<Vec<(i32, i64)>>,
        partition_status: PartitionStatusSender,
    ) -> Self {
        let signals = Arc::new(Signals { drain: AtomicBool::new(false), abort: AtomicBool::new(false) });
        let its_signals = signals.clone();
        let thread = tokio::task::spawn_blocking(move || {
            poll_until_told(consumer, &its_signals, &health, &commits, &partition_status)
        });
        Self { signals, thread }
    }

    /// Waits for the thread's end. Tells it to drain at `stop`, and to leave at once if Elasticsearch refuses the worker.
    /// Returns how it ended, and the refusal, if there was one.
    async fn until_it_ends(
        &mut self,
        stop: &CancellationToken,
        mut halts: mpsc::UnboundedReceiver<Halt>,
        health: &Health,
    ) -> (Result<Result<(), ConsumerLost>, JoinError>, Option<Halt>) {
        let Self { signals, thread } = self;
        let mut reason_to_halt = None;
        loop {
            tokio::select! {
                ended = &mut *thread => return (ended, reason_to_halt),
                () = stop.cancelled(), if !signals.drain.load(Ordering::Relaxed) => {
                    tracing::info!("draining: writing what is dirty, then leaving the group; a second signal exits at once");
                    health.not_ready(Health::SHUTDOWN, "the worker is draining");
                    signals.drain.store(true, Ordering::Relaxed);
                }
                Some(halt) = halts.recv(), if reason_to_halt.is_none() => {
                    tracing::error!(reason = %halt, "stopping: elasticsearch refuses this worker; no offset moves");
                    health.not_ready("elasticsearch", halt.to_string());
                    reason_to_halt = Some(halt);
                    signals.abort.store(true, Ordering::Relaxed);
                }
            }
        }
    }
}

impl Drop for PollThread {
    fn drop(&mut self) {
        self.signals.abort.store(true, Ordering::Relaxed);
    }
}

/// Stores committed offsets in the meta index, which detect a rewound group later. It may lag or fail: an older offset
/// only detects less.
async fn remember_commits(
    memory: TopicMemory,
    config: Config,
    clock: Arc<dyn Clock>,
    mut committed: mpsc::UnboundedReceiver<Vec<(i32, i64)>>,
) {
    const TIMEOUT: Duration = Duration::from_secs(5);
    while let Some(offsets) = committed.recv().await {
        let lease = RequestDeadline { deadline: clock.now() + TIMEOUT, cancel: CancellationToken::new() };
        if let Err(error) = memory.remember_watermarks(config.positions.epoch, &offsets, &lease).await {
            tracing::warn!(%error, "could not store committed offsets; the next ones cover them");
        }
    }
}
