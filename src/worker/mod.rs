//! `geofold run`: a consumer group member that applies its partitions to the index.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | starts the parts, runs them, stops them in order |
//! | `consumer.rs` | the poll thread: the only user of the Kafka consumer |
//! | `assignment.rs` | the partitions owned now, as the poll thread sees them |
//! | `partition/` | one task per partition: decode, fold, batch, settle, publish |
//! | `ledger/` | unfinished work of a partition and the resulting watermark (pure) |
//! | `limits.rs` | the limits in force, reloaded while running |
//! | `budget.rs` | bytes held; which partitions must stop reading |
//! | `drive.rs` | runs a batch of the mover against Elasticsearch |
//! | `record.rs` | an owned record |
//! | `topic_watch.rs` | detects a re-created or repartitioned topic |
//! | `visibility/` | refreshes that sweeps wait for |
//! | `distribution/` | work that follows every change: refreshes, webhooks, records |
//! | `refeed/` | fetches documents from the source of truth |
//! | `increments/` | live counts: increments of a partition's changes |
//! | `dead_letter.rs` | dead letters |
//!
//! Records go one way, poll thread → partition task → mover → Elasticsearch; the only way back is the watermark, and
//! pause and resume.

pub mod assignment;
pub mod budget;
pub mod consumer;
#[cfg(feature = "sabotage")]
mod kept;
pub mod ledger;
pub mod limits;
pub mod partition;
pub mod record;
pub mod reread;
pub mod topic_watch;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rdkafka::consumer::Consumer;
use thiserror::Error;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::assignment::Assignment;
use self::budget::Budget;
use self::consumer::{ConsumerLost, Context, Pace, Signals, poll_until_told};
use self::limits::{LimitsReader, follow_permits};
use self::partition::{Counting, WorkerContext};
use self::reread::KafkaReread;
use self::topic_watch::{Brokers, TopicWatch};
use crate::base::clock::Clock;
use crate::base::retry::RetryPolicy;
use crate::core::decode::Decoder;
use crate::core::mover::Rules;
use crate::io::claims::Keeper;
use crate::io::elastic::Elastic;
use crate::io::elastic::rounds::{
    BulkCoalescer, Halt, RequestDeadline, RequestSender, ServerLimits, ServerState,
};
use crate::io::kafka::client_config;
use crate::io::load::LoadKeeper;
use crate::io::maps::MapsReader;
use crate::io::meta::{Memory, TopicFacts};
use crate::io::registry::{self, Registry};
use crate::support::config::{Config, DeadLetterPolicy};
use crate::support::supervisor::Supervisor;
use crate::support::telemetry::Metrics;
use crate::support::telemetry::health::Health;
use crate::support::telemetry::partition_status::PartitionStatusSender;
use crate::support::telemetry::requests::ServerEvents;
use crate::support::telemetry::traces::Traces;
use crate::worker::dead_letter::{DeadLetterSink, DeadLetters};
use crate::worker::distribution::setup::{Distributing, build as build_distributor};
use crate::worker::increments::topic::KafkaIncrements;
use crate::worker::refeed::{Source, SourceFetcher};
use crate::worker::visibility::Visibility;

/// What a worker needs besides its configuration.
pub struct Dependencies {
    /// The search server.
    pub elastic: Arc<dyn Elastic>,
    /// Placement rules.
    pub rules: Rules,
    /// The maps in force.
    pub maps: MapsReader,
    /// The limits in force.
    pub limits: LimitsReader,
    /// The current settings of the source of truth, if there is one.
    pub source: Option<watch::Receiver<Source>>,
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
    Registry(#[from] registry::OpenError),
    /// The poll thread panicked.
    #[error("the poll thread ended unexpectedly; this is a defect in geofold, please report it with the log")]
    PollThread,
}

/// Runs a worker until it is stopped, has drained and has left the group.
///
/// # Errors
/// See [`WorkerError`]. In every case no offset moves past unfinished work.
pub async fn run(config: &Config, surroundings: Dependencies) -> Result<(), WorkerError> {
    let Dependencies {
        elastic,
        mut rules,
        maps,
        mut limits,
        source,
        topic,
        clock,
        metrics,
        traces,
        health,
        partition_status,
        stop,
        supervisor,
    } = surroundings;
    rules.tally = rules.tally.map(|tally| tally.counting_left_out(metrics.tally.values_left_out.clone()));
    let retry = config.retry.policy();
    // Receivers cloned from here on see later updates as changed.
    let now = *limits.borrow_and_update();
    metrics.held_bytes_limit.set(crate::support::telemetry::metrics::level(now.memory.total));
    metrics.elasticsearch_permits.set(crate::support::telemetry::metrics::level(now.max_in_flight));
    let permits = Arc::new(Semaphore::new(now.max_in_flight));
    let batch_permits = Arc::new(Semaphore::new(now.batch_permits()));
    let rounds = RequestSender {
        coalescer: Some(BulkCoalescer::new(elastic.clone(), permits.clone(), clock.clone())),
        elastic,
        permits: permits.clone(),
        server: server_state(config, &metrics, &health),
        look: 0,
        limits: now.requests,
        retry,
        clock: clock.clone(),
        observer: metrics.clone(),
    };
    let memory = Memory::new(rounds.clone(), &config.kafka.topic);
    let (fatal, mut halted) = mpsc::unbounded_channel();
    let dead_letters = dead_letters(config, retry)?;
    let visibility = Visibility::new(rounds.clone(), metrics.clone());
    // Never cancelled: it lives as long as the worker.
    let never = CancellationToken::new();
    let refreshing = supervisor.spawn("refreshes", never.clone(), visibility.clone().run(never.clone()));
    let _refreshing = AbortOnDropHandle::new(refreshing);
    let threads =
        supervisor.spawn("threads for refreshes", never.clone(), visibility.clone().follow_threads());
    let _threads = AbortOnDropHandle::new(threads);
    let distributor = build_distributor(config, &visibility, dead_letters.clone(), &clock, &metrics)?;
    let distributing = distributor.clone().map(|distributor| Distributing::start(distributor, &supervisor));
    let decoder =
        Decoder::new(rules.location.clone(), config.positions.epoch, config.documents.max_bytes.as_usize())
            .in_envelope(config.kafka.envelope)
            .in_forms(config.kafka.format, config.kafka.key.clone());
    let registry = match config.reads_registry() {
        true => Some(Registry::open(&config.schema_registry, Some(metrics.schemas.answers.clone()))?),
        false => None,
    };
    let feeding = CancellationToken::new();
    let refeed = source.map(|source| {
        let around = refeed::Dependencies {
            source,
            decoder: decoder.clone(),
            retry,
            clock: clock.clone(),
            metrics: metrics.clone(),
            health: health.clone(),
        };
        SourceFetcher::start(around, feeding.clone(), &supervisor)
    });
    let _feeding = feeding.drop_guard();
    let (keeper, claims) = Keeper::new(
        rounds.elastic.clone(),
        &config.kafka.topic,
        owner(&config.kafka.client_id).into(),
        config.batch.timeout,
        clock.clone(),
        RandomState::new().hash_one(std::process::id()),
    );
    let all_have_ended = CancellationToken::new();
    let keeping = supervisor.spawn("claims", all_have_ended.clone(), keeper.run(all_have_ended.clone()));
    let keeping = AbortOnDropHandle::new(keeping);
    let (topic_watch, topic_reader) = TopicWatch::new(topic.clone(), clock.clone());
    // Ends after it found a difference, which stops all partitions.
    let looking = supervisor.spawn_until_done("topic watch", topic_watch.run(brokers(config)?));
    let _looking = AbortOnDropHandle::new(looking);
    // Ends after the last partition has handed over its counts.
    let load = config.load.is_on().then(|| {
        let (timeout, interval) = (config.elasticsearch.request_timeout, config.load.interval);
        let topic = &config.kafka.topic;
        let (keeper, to) = LoadKeeper::new(rounds.elastic.clone(), topic, timeout, interval, maps.clone());
        let keeping = supervisor.spawn("load", all_have_ended.clone(), keeper.run(all_have_ended.clone()));
        ((config.load.level, to), AbortOnDropHandle::new(keeping))
    });
    let (load, keeping_load) = load.unzip();
    let context = Arc::new(WorkerContext {
        topic: config.kafka.topic.as_str().into(),
        epoch: config.positions.epoch,
        partitions: topic.partitions,
        partitioner: config.kafka.partitioner,
        lost_records: config.kafka.lost_records,
        topic_reader,
        batching: now.batching,
        limits: limits.clone(),
        decoder,
        registry,
        rules,
        maps,
        claims,
        rounds,
        batch_permits: batch_permits.clone(),
        moves: config.moves,
        visibility,
        memory: memory.clone(),
        refeed,
        distributor: distributor.clone(),
        reread: Arc::new(KafkaReread::new(config)),
        dead_letters,
        counting: counting(config, retry, &metrics)?,
        load,
        retry,
        traces,
        clock: clock.clone(),
        metrics: metrics.clone(),
        health: health.clone(),
        fatal,
    });
    let pace = Pace {
        commit_interval: config.commit.interval,
        revoke: config.shutdown.revoke_timeout,
        drain: config.shutdown.drain_timeout,
    };
    let following = follow_permits(now, limits, permits, batch_permits, metrics.clone());
    // Ends when the publisher of limits is dropped.
    let _following = AbortOnDropHandle::new(supervisor.spawn_until_done("request permits", following));
    let assignment = Assignment::new(
        context,
        tokio::runtime::Handle::current(),
        Budget::new(),
        now.memory,
        config.memory.cached_placements,
    );
    let consumer_context = Context::new(&config.kafka.topic, assignment, pace, metrics);
    let consumer: rdkafka::consumer::BaseConsumer<Context> = client_config(&config.consumer_properties())
        .create_with_context(consumer_context)
        .map_err(|error| WorkerError::Client { client: "consumer", error })?;
    consumer
        .subscribe(&[&config.kafka.topic])
        .map_err(|error| WorkerError::Client { client: "consumer", error })?;

    let signals = Arc::new(Signals { drain: AtomicBool::new(false), abort: AtomicBool::new(false) });
    let _abort = AbortOnDrop(signals.clone());
    let (remember, to_remember) = mpsc::unbounded_channel();
    let remembering = remember_commits(memory, config.clone(), clock, to_remember);
    let remembering = supervisor.spawn_until_done("committed offsets", remembering);
    let polling = {
        let (signals, health) = (signals.clone(), health.clone());
        tokio::task::spawn_blocking(move || {
            poll_until_told(consumer, &signals, &health, &remember, &partition_status)
        })
    };
    tokio::pin!(polling);
    let mut reason_to_halt = None;
    health.ready(Health::STARTUP);
    let ended = loop {
        tokio::select! {
            ended = &mut polling => break ended,
            () = stop.cancelled(), if !signals.drain.load(Ordering::Relaxed) => {
                tracing::info!("draining: writing what is dirty, then leaving the group; a second signal exits at once");
                health.not_ready(Health::SHUTDOWN, "the worker is draining");
                signals.drain.store(true, Ordering::Relaxed);
            }
            Some(halt) = halted.recv(), if reason_to_halt.is_none() => {
                tracing::error!(reason = %halt, "stopping: elasticsearch refuses this worker; no offset moves");
                health.not_ready("elasticsearch", halt.to_string());
                reason_to_halt = Some(halt);
                signals.abort.store(true, Ordering::Relaxed);
            }
        }
    };
    if let Some(distributing) = distributing
        && reason_to_halt.is_none()
    {
        distributing.finish().await;
    }
    // The poll thread's sender is dropped, so this ends once the last offsets are stored or abandoned.
    let _ = remembering.await;
    all_have_ended.cancel();
    // The next owners wait out claims it could not release.
    let _ = keeping.await;
    // A measurement: what is lost of it changes nothing.
    if let Some(keeping) = keeping_load {
        let _ = keeping.await;
    }
    match (ended, reason_to_halt) {
        (_, Some(halt)) => Err(halt.into()),
        (Ok(result), None) => Ok(result?),
        (Err(_), None) => Err(WorkerError::PollThread),
    }
}

/// A thread cannot be cancelled: if the worker's future is dropped, this signals the poll thread.
struct AbortOnDrop(Arc<Signals>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort.store(true, Ordering::Relaxed);
    }
}

fn server_state(config: &Config, metrics: &Arc<Metrics>, health: &Arc<Health>) -> Arc<ServerState> {
    let limits = ServerLimits {
        unauthorized: config.retry.unauthorized_timeout,
        refusals: config.dead_letter.index_failure_threshold,
    };
    let events = ServerEvents { metrics: metrics.clone(), health: health.clone() };
    Arc::new(ServerState::new(limits, Arc::new(events)))
}

/// A client that describes the topic while the worker runs.
fn brokers(config: &Config) -> Result<Brokers, WorkerError> {
    let mut client = client_config(&config.consumer_properties());
    client.set("allow.auto.create.topics", "false").set("statistics.interval.ms", "0");
    let consumer = client.create().map_err(|error| WorkerError::Client { client: "consumer", error })?;
    Ok(Brokers::new(consumer, &config.kafka.topic))
}

/// This worker's name for humans: client, host, process.
fn owner(client_id: &str) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{client_id} on {}, process {}", host.trim(), std::process::id())
}

fn dead_letters(config: &Config, retry: RetryPolicy) -> Result<Option<Arc<dyn DeadLetterSink>>, WorkerError> {
    let (DeadLetterPolicy::Topic, Some(topic)) = (config.dead_letter.policy, &config.dead_letter.topic)
    else {
        return Ok(None);
    };
    let letters = DeadLetters::new(client_config(&config.producer_properties()), topic, retry)
        .map_err(|error| WorkerError::Client { client: "producer for dead letters", error })?;
    Ok(Some(Arc::new(letters)))
}

fn counting(
    config: &Config,
    retry: RetryPolicy,
    metrics: &Arc<Metrics>,
) -> Result<Option<Arc<Counting>>, WorkerError> {
    if !config.tally.is_on() {
        return Ok(None);
    }
    let settings = client_config(&config.producer_properties());
    let topic = KafkaIncrements::new(settings, &config.increments_topic(), retry, metrics.clone())
        .map_err(|error| WorkerError::Client { client: "producer for increments", error })?;
    // Commits wait for increments, so emit at least once per commit interval.
    let interval = config.tally.emit_interval.min(config.commit.interval);
    Ok(Some(Arc::new(Counting { topic: Arc::new(topic), names: Arc::default(), interval })))
}

/// Stores committed offsets in the meta index, which detect a rewound group later. It may lag or fail: an older offset
/// only detects less.
async fn remember_commits(
    memory: Memory,
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

pub mod dead_letter;
pub mod distribution;
pub mod drive;
pub mod increments;
pub mod refeed;
#[cfg(test)]
mod tests;
pub mod visibility;
