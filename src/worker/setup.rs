//! What the partition tasks of a worker share, made from its configuration, and the tasks that run beside them.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;

use super::dead_letter::{DeadLetterProducer, DeadLetterSink};
use super::distribution::setup::{Distributing, build as build_distributor};
use super::increments::topic::KafkaIncrements;
use super::limits::{Throttles, WorkerLimits};
use super::look_ahead::{AheadReader, KafkaAhead};
use super::partition::{IncrementsContext, WorkerContext};
use super::record::decoder;
use super::refeed::{self, SourceFetcher};
use super::reread::KafkaReread;
use super::topic_watch::{Brokers, TopicView, TopicWatch};
use super::visibility::Visibility;
use super::{WorkerDependencies, WorkerError};
use crate::base::retry::RetryPolicy;
use crate::core::decode::Decoder;
use crate::io::claims::{Claims, Keeper};
use crate::io::elastic::rounds::{Halt, RequestSender, ServerLimits, ServerState};
use crate::io::kafka::client_config;
use crate::io::load::{LoadKeeper, LoadSender};
use crate::io::meta::TopicMemory;
use crate::io::registry::Registry;
use crate::support::config::{Config, DeadLetterPolicy};
use crate::support::telemetry::Metrics;
use crate::support::telemetry::elasticsearch::ServerEvents;
use crate::support::telemetry::metrics::level;

/// The tasks beside the partition tasks. They end when this is dropped, if not before.
pub(super) struct Background {
    distributing: Option<Distributing>,
    /// Cancelled once all partition tasks have ended.
    all_have_ended: CancellationToken,
    /// Keeps the claims; at its end it releases them.
    claims: AbortOnDropHandle<()>,
    /// Stores the load by place; at its end it stores the rest.
    load: Option<AbortOnDropHandle<()>>,
    _fetching: DropGuard,
    _others: Vec<AbortOnDropHandle<()>>,
}

impl Background {
    /// No partition is left: runs owed distributions one last time.
    pub(super) async fn finish_distributions(&mut self) {
        if let Some(distributing) = self.distributing.take() {
            distributing.finish().await;
        }
    }

    /// No partition is left: releases the claims, and stores the rest of the load.
    pub(super) async fn finish(self) {
        self.all_have_ended.cancel();
        // The next owners wait out claims it could not release.
        let _ = self.claims.await;
        // A measurement: what is lost of it changes nothing.
        if let Some(load) = self.load {
            let _ = load.await;
        }
    }
}

/// What the partition tasks share, and the tasks beside them. `now`: the limits in force; `fatal` receives the errors that
/// stop the worker.
pub(super) fn start(
    config: &Config,
    given: &WorkerDependencies,
    now: WorkerLimits,
    fatal: mpsc::UnboundedSender<Halt>,
) -> Result<(Arc<WorkerContext>, Background), WorkerError> {
    let WorkerDependencies { maps, limits, topic, clock, metrics, traces, health, supervisor, .. } = given;
    let mut rules = given.rules.clone();
    rules.tally = rules.tally.map(|tally| tally.counting_left_out(metrics.tally.values_left_out.clone()));
    let retry = config.retry.policy();
    metrics.held_bytes_limit.set(level(now.memory.total));
    let throttles = Throttles::new(now, server_state(config, given), clock.clone(), metrics.clone());
    let rounds = request_sender(config, given, now, &throttles);
    let dead_letters = dead_letters(config, retry)?;
    let visibility = Visibility::new(rounds.clone(), metrics.clone());
    let mut others = Vec::from(start_refreshes(given, &visibility));
    let distributor = build_distributor(config, &visibility, dead_letters.clone(), clock, metrics)?;
    let distributing = distributor.clone().map(|distributor| Distributing::start(distributor, supervisor));
    let decoder = decoder(config, rules.location.clone());
    let registry = match config.reads_registry() {
        true => Some(Registry::open(&config.schema_registry, Some(metrics.schemas.answers.clone()))?),
        false => None,
    };
    let (refeed, fetching) = start_source_fetcher(given, &decoder, retry);
    let all_have_ended = CancellationToken::new();
    let (claims, keeping_claims) = start_claims(config, given, &all_have_ended);
    let (topic_reader, watching) = start_topic_watch(config, given)?;
    others.push(watching);
    let (load, storing_load) = start_load(config, given, &all_have_ended).unzip();
    // Ends when the publisher of limits is dropped.
    let batch_permits = throttles.batch_permits.clone();
    let following = throttles.follow(now, limits.clone());
    others.push(AbortOnDropHandle::new(supervisor.spawn_until_done("throttles", following)));
    let context = WorkerContext {
        topic: config.kafka.topic.as_str().into(),
        epoch: config.positions.epoch,
        partitions: topic.partitions,
        partitioner: config.kafka.partitioner,
        lost_records: config.kafka.lost_records,
        topic_reader,
        batching: now.batching,
        limits: limits.clone(),
        look_ahead: look_ahead(config, &decoder),
        decoder,
        registry,
        rules,
        maps: maps.clone(),
        claims,
        memory: TopicMemory::new(rounds.clone(), &config.kafka.topic),
        rounds,
        batch_permits,
        moves: config.moves,
        visibility,
        refeed,
        distributor,
        reread: Arc::new(KafkaReread::new(config)),
        dead_letters,
        counting: counting(config, retry, metrics)?,
        load,
        retry,
        traces: traces.clone(),
        clock: clock.clone(),
        metrics: metrics.clone(),
        health: health.clone(),
        fatal,
    };
    let background = Background {
        distributing,
        all_have_ended,
        claims: keeping_claims,
        load: storing_load,
        _fetching: fetching,
        _others: others,
    };
    Ok((Arc::new(context), background))
}

fn server_state(config: &Config, given: &WorkerDependencies) -> Arc<ServerState> {
    let WorkerDependencies { metrics, health, .. } = given;
    let limits = ServerLimits {
        unauthorized: config.retry.unauthorized_timeout,
        refusals: config.dead_letter.index_failure_threshold,
    };
    let events = ServerEvents { metrics: metrics.clone(), health: health.clone() };
    Arc::new(ServerState::new(limits, Arc::new(events)))
}

fn request_sender(
    config: &Config,
    given: &WorkerDependencies,
    now: WorkerLimits,
    throttles: &Throttles,
) -> RequestSender {
    let WorkerDependencies { elastic, clock, metrics, .. } = given;
    let Throttles { permits, server, .. } = throttles;
    let sender = RequestSender {
        elastic: elastic.clone(),
        permits: permits.clone(),
        queue: None,
        server: server.clone(),
        look: 0,
        limits: now.requests,
        retry: config.retry.policy(),
        clock: clock.clone(),
        observer: metrics.clone(),
    };
    sender.with_queue()
}

/// Not where each record counts by itself, or where a record may yet turn out to be bad when its schema comes.
fn look_ahead(config: &Config, decoder: &Decoder) -> Option<Arc<dyn AheadReader>> {
    let is_possible = !config.tally.is_on() && !config.reads_registry();
    (is_possible && config.memory.look_ahead > 0)
        .then(|| Arc::new(KafkaAhead::new(config, decoder.clone())) as Arc<dyn AheadReader>)
}

fn dead_letters(config: &Config, retry: RetryPolicy) -> Result<Option<Arc<dyn DeadLetterSink>>, WorkerError> {
    let (DeadLetterPolicy::Topic, Some(topic)) = (config.dead_letter.policy, &config.dead_letter.topic)
    else {
        return Ok(None);
    };
    let letters = DeadLetterProducer::new(client_config(&config.producer_properties()), topic, retry)
        .map_err(|error| WorkerError::Client { client: "producer for dead letters", error })?;
    Ok(Some(Arc::new(letters)))
}

/// The refreshes of geoshards that documents moved into. They are never told to stop: they live as long as the worker.
fn start_refreshes(given: &WorkerDependencies, visibility: &Arc<Visibility>) -> [AbortOnDropHandle<()>; 2] {
    let never = CancellationToken::new();
    let refreshing = visibility.clone().run(never.clone());
    let threads = visibility.clone().follow_threads();
    [
        AbortOnDropHandle::new(given.supervisor.spawn("refreshes", never.clone(), refreshing)),
        AbortOnDropHandle::new(given.supervisor.spawn("threads for refreshes", never, threads)),
    ]
}

/// Fetches from the source of truth, if there is one, until the guard is dropped.
fn start_source_fetcher(
    given: &WorkerDependencies,
    decoder: &Decoder,
    retry: RetryPolicy,
) -> (Option<SourceFetcher>, DropGuard) {
    let stop = CancellationToken::new();
    let fetcher = given.source.clone().map(|source| {
        let around = refeed::FetcherDependencies {
            source,
            decoder: decoder.clone(),
            retry,
            clock: given.clock.clone(),
            metrics: given.metrics.clone(),
            health: given.health.clone(),
        };
        SourceFetcher::start(around, stop.clone(), &given.supervisor)
    });
    (fetcher, stop.drop_guard())
}

fn start_claims(
    config: &Config,
    given: &WorkerDependencies,
    all_have_ended: &CancellationToken,
) -> (Claims, AbortOnDropHandle<()>) {
    let (keeper, claims) = Keeper::new(
        given.elastic.clone(),
        &config.kafka.topic,
        worker_name(&config.kafka.client_id).into(),
        config.batch.timeout,
        given.clock.clone(),
        RandomState::new().hash_one(std::process::id()),
    );
    let keeping = keeper.run(all_have_ended.clone());
    let keeping = given.supervisor.spawn("claims", all_have_ended.clone(), keeping);
    (claims, AbortOnDropHandle::new(keeping))
}

/// This worker's name for humans, in its claims and its status: client, host, process.
pub fn worker_name(client_id: &str) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{client_id} on {}, process {}", host.trim(), std::process::id())
}

/// Describes the topic while the worker runs. The task ends after it found a difference, which stops all partitions.
fn start_topic_watch(
    config: &Config,
    given: &WorkerDependencies,
) -> Result<(TopicView, AbortOnDropHandle<()>), WorkerError> {
    let mut client = client_config(&config.consumer_properties());
    client.set("allow.auto.create.topics", "false").set("statistics.interval.ms", "0");
    let consumer = client.create().map_err(|error| WorkerError::Client { client: "consumer", error })?;
    let brokers = Brokers::new(consumer, &config.kafka.topic);
    let (watch, reader) = TopicWatch::new(given.topic.clone(), given.clock.clone());
    let watching = given.supervisor.spawn_until_done("topic watch", watch.run(brokers));
    Ok((reader, AbortOnDropHandle::new(watching)))
}

/// Counts written documents by place, if configured: the level of the cells, and where to send the counts.
fn start_load(
    config: &Config,
    given: &WorkerDependencies,
    all_have_ended: &CancellationToken,
) -> Option<((u8, LoadSender), AbortOnDropHandle<()>)> {
    if !config.load.is_on() {
        return None;
    }
    let (timeout, interval) = (config.elasticsearch.request_timeout, config.load.interval);
    let (elastic, topic, maps) = (given.elastic.clone(), &config.kafka.topic, given.maps.clone());
    let (keeper, counts) = LoadKeeper::new(elastic, topic, timeout, interval, maps);
    let storing = keeper.run(all_have_ended.clone());
    let storing = given.supervisor.spawn("load", all_have_ended.clone(), storing);
    Some(((config.load.level, counts), AbortOnDropHandle::new(storing)))
}

fn counting(
    config: &Config,
    retry: RetryPolicy,
    metrics: &Arc<Metrics>,
) -> Result<Option<Arc<IncrementsContext>>, WorkerError> {
    if !config.tally.is_on() {
        return Ok(None);
    }
    let settings = client_config(&config.producer_properties());
    let topic = KafkaIncrements::new(settings, &config.increments_topic(), retry, metrics.clone())
        .map_err(|error| WorkerError::Client { client: "producer for increments", error })?;
    // Commits wait for increments, so emit at least once per commit interval.
    let interval = config.tally.emit_interval.min(config.commit.interval);
    Ok(Some(Arc::new(IncrementsContext { topic: Arc::new(topic), names: Arc::default(), interval })))
}
