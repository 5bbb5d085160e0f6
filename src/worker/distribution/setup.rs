//! The configured distributor and its lifetime in a worker.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::base::clock::Clock;
use crate::base::fnv::fnv1a;
use crate::io::kafka::client_config;
use crate::support::config::{self, Config, DistributionJob, JobKind, ServerUrl};
use crate::support::supervisor::Supervisor;
use crate::support::telemetry::Metrics;
use crate::worker::WorkerError;
use crate::worker::dead_letter::DeadLetterSink;
use crate::worker::distribution::action::{JobAction, Refresh, TopicAction, Webhook};
use crate::worker::distribution::last_runs::LastRuns;
use crate::worker::distribution::memcached::Memcached;
use crate::worker::distribution::{Distributor, DistributorDependencies, Job};
use crate::worker::visibility::Visibility;

/// Grace for ungated runs when the worker ends.
const LAST_RUNS: Duration = Duration::from_secs(2);

/// `None` if no job is configured.
pub(crate) fn build(
    config: &Config,
    visibility: &Arc<Visibility>,
    dead_letters: Option<Arc<dyn DeadLetterSink>>,
    clock: &Arc<dyn Clock>,
    metrics: &Arc<Metrics>,
) -> Result<Option<Arc<Distributor>>, WorkerError> {
    let distribution = &config.distribution;
    if distribution.jobs.is_empty() {
        return Ok(None);
    }
    let mut jobs = Vec::with_capacity(distribution.jobs.len());
    for job in &distribution.jobs {
        jobs.push(Job {
            name: job.name.as_str().into(),
            gate: job.has_gate(),
            interval: job.interval,
            timeout: job.timeout,
            give_up_after: (job.kind == JobKind::Webhook)
                .then_some(job.give_up_after.unwrap_or(DistributionJob::GIVE_UP_AFTER)),
            action: action(config, job, visibility)?,
            store_key: store_key(config, job),
            metrics: metrics.distribution(&job.name),
        });
    }
    let last_runs = match (distribution.run_store, &distribution.memcached) {
        (config::RunStore::Memcached, Some(address)) => LastRuns::in_memcached(
            Memcached::new(address, distribution.memcached_timeout),
            clock.clone(),
            metrics.distribution_store_failures.clone(),
        ),
        _ => LastRuns::in_memory(),
    };
    let around = DistributorDependencies {
        topic: config.kafka.topic.as_str().into(),
        last_runs: Arc::new(last_runs),
        dead_letters,
        retry: config.retry.policy(),
        clock: clock.clone(),
    };
    Ok(Some(Distributor::new(jobs, around)))
}

fn action(
    config: &Config,
    job: &DistributionJob,
    visibility: &Arc<Visibility>,
) -> Result<Arc<dyn JobAction>, WorkerError> {
    Ok(match (job.kind, &job.url, &job.topic) {
        (JobKind::Webhook, Some(url), _) => Arc::new(webhook(job, url)?),
        (JobKind::Topic, _, Some(topic)) => {
            let topic = TopicAction::new(client_config(&config.producer_properties()), topic)
                .map_err(|error| WorkerError::Client { client: "producer for distributions", error })?;
            Arc::new(topic)
        }
        // Required settings of the other kinds have been checked.
        _ => Arc::new(Refresh(visibility.clone())),
    })
}

/// The webhook of a job with this URL. Reads its file of certificate authorities.
///
/// # Errors
/// If that file is unusable, or the HTTP client cannot be set up.
pub(crate) fn webhook(job: &DistributionJob, url: &ServerUrl) -> Result<Webhook, WorkerError> {
    let header = |(name, value): (&String, &config::Secret)| {
        let mut value = HeaderValue::try_from(value.expose()).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::try_from(name).ok()?, value))
    };
    let headers: HeaderMap = job.headers.iter().filter_map(header).collect();
    let failed = |reason: String| WorkerError::Webhook { job: job.name.clone(), reason };
    let authorities =
        match &job.ca_file {
            None => None,
            Some(file) => {
                let pem = std::fs::read(file);
                Some(pem.map_err(|error| {
                    failed(format!("its ca_file {} cannot be read: {error}", file.display()))
                })?)
            }
        };
    let webhook = Webhook::new(url.as_url().clone(), headers, authorities.as_deref());
    webhook.map_err(|error| {
        failed(format!("{error}; see that its ca_file, if there is one, holds certificates (PEM)"))
    })
}

/// Prefix of a job's keys. It contains the target: while workers get a new configuration one by one, a run with the old
/// target must not count for the new one.
fn store_key(config: &Config, job: &DistributionJob) -> String {
    let goal = [job.url.as_ref().map(|url| url.as_url().as_str()), job.topic.as_deref()];
    let fingerprint = fnv1a(goal.into_iter().flatten().flat_map(str::bytes));
    let namespace = &config.distribution.namespace;
    format!("{namespace}:{}:{}:{fingerprint:08x}:", config.elasticsearch.prefix, job.name)
}

/// A running distributor.
pub(crate) struct Distributing {
    distributor: Arc<Distributor>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Distributing {
    pub(crate) fn start(distributor: Arc<Distributor>, supervisor: &Supervisor) -> Self {
        let stop = CancellationToken::new();
        let task = supervisor.spawn("distributor", stop.clone(), distributor.clone().run(stop.clone()));
        Self { distributor, stop, task }
    }

    /// No partition is left: runs what is owed without a gate one last time.
    pub(crate) async fn finish(self) {
        self.distributor.flush(LAST_RUNS).await;
        self.stop.cancel();
    }
}

impl Drop for Distributing {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::elastic::encode::MAX_PREFIX_BYTES;
    use crate::worker::distribution::memcached::MAX_KEY_BYTES;

    #[test]
    fn longest_names_fit_a_memcached_key() {
        let mut config = Config::default();
        config.distribution.namespace = "n".repeat(32);
        config.elasticsearch.prefix = "p".repeat(MAX_PREFIX_BYTES);
        let job = format!("name = \"{}\"\nkind = \"refresh\"", "j".repeat(32));
        let key = store_key(&config, &toml::from_str(&job).unwrap());
        assert!(key.len() + crate::base::ids::ShardId::MAX_BYTES <= MAX_KEY_BYTES, "{key}");
    }
}
