//! A record about each version, for those who want to know when counts changed.

use std::sync::Arc;

use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use serde::Serialize;
use tokio::sync::mpsc;

use super::store::CountsVersion;
use crate::io::kafka::resilient_producer::{Message, ResilientProducer};
use crate::support::config::Config;
use crate::support::supervisor::Supervisor;
use crate::support::telemetry::collector::CollectorMetrics;

/// Maximum queued notifications. More are dropped: listeners want the latest.
const WAITING: usize = 64;
/// The key of all records, so that they keep their order.
const KEY: &str = "version";

/// Notification of a version.
#[derive(Debug, Serialize)]
pub(super) struct VersionNotice<'a> {
    /// Its number.
    pub version: i64,
    /// When it was made.
    pub created: &'a str,
    /// Increments merged into it.
    pub increments: i64,
}

impl<'a> From<&'a CountsVersion> for VersionNotice<'a> {
    fn from(version: &'a CountsVersion) -> Self {
        Self { version: version.number, created: &version.created, increments: version.increments }
    }
}

/// The way to the topic. Telling never waits.
#[derive(Debug)]
pub struct Notifier {
    versions: mpsc::Sender<Arc<CountsVersion>>,
    metrics: Arc<CollectorMetrics>,
}

impl Notifier {
    /// To the configured topic, if there is one; the task ends with the notifier.
    ///
    /// # Errors
    /// If librdkafka refuses the settings.
    pub fn start(
        config: &Config,
        metrics: Arc<CollectorMetrics>,
        supervisor: &Supervisor,
    ) -> Result<Option<Self>, KafkaError> {
        let Some(topic) = config.collector.notify_topic.clone() else { return Ok(None) };
        let client: ClientConfig = config.producer_properties().into_iter().collect();
        let producer = ResilientProducer::new(client, "notices of versions")?;
        let (versions, waiting) = mpsc::channel(WAITING);
        let telling = tell_all(producer, topic, waiting, metrics.clone());
        supervisor.spawn_until_done("notices of versions", telling);
        Ok(Some(Self { versions, metrics }))
    }

    /// Hands a version over.
    pub fn notify(&self, version: Arc<CountsVersion>) {
        if self.versions.try_send(version).is_err() {
            self.metrics.notices_failed.inc();
        }
    }
}

async fn tell_all(
    producer: ResilientProducer,
    topic: String,
    mut versions: mpsc::Receiver<Arc<CountsVersion>>,
    metrics: Arc<CollectorMetrics>,
) {
    while let Some(version) = versions.recv().await {
        // Plain texts and numbers cannot fail to be written.
        let notice = serde_json::to_vec(&VersionNotice::from(&*version)).unwrap_or_default();
        let message =
            Message { topic: &topic, key: Some(KEY.as_bytes()), value: Some(&notice), headers: None };
        if let Err(error) = producer.send(&message).await {
            metrics.notices_failed.inc();
            tracing::warn!(%error, topic, version = version.number, "could not announce a version");
        }
    }
}
