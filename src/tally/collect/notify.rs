//! A record about each version, for those who want to know when counts changed.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;
use serde::Serialize;
use tokio::sync::mpsc;

use super::store::Version;
use crate::config::Config;
use crate::telemetry::collector::CollectorMetrics;

/// Versions that wait to be told. More are left out: whoever listens wants the latest.
const WAITING: usize = 64;
/// How long one record may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// The key of all records, so that they keep their order.
const KEY: &str = "version";

/// What is told of a version.
#[derive(Debug, Serialize)]
pub struct Notice<'a> {
    /// Its number.
    pub version: i64,
    /// When it was made.
    pub created: &'a str,
    /// Increments merged into it.
    pub increments: i64,
}

impl<'a> From<&'a Version> for Notice<'a> {
    fn from(version: &'a Version) -> Self {
        Self { version: version.number, created: &version.created, increments: version.increments }
    }
}

/// The way to the topic. Telling never waits.
#[derive(Debug)]
pub struct Notifier {
    versions: mpsc::Sender<Arc<Version>>,
    metrics: Arc<CollectorMetrics>,
}

impl Notifier {
    /// To the configured topic, if there is one; the task ends with the notifier.
    ///
    /// # Errors
    /// If librdkafka refuses the settings.
    pub fn start(config: &Config, metrics: Arc<CollectorMetrics>) -> Result<Option<Self>, KafkaError> {
        let Some(topic) = config.collector.notify_topic.clone() else { return Ok(None) };
        let client: ClientConfig = config.producer_properties().into_iter().collect();
        let producer: FutureProducer = client.create()?;
        let (versions, waiting) = mpsc::channel(WAITING);
        tokio::spawn(tell_all(producer, topic, waiting, metrics.clone()));
        Ok(Some(Self { versions, metrics }))
    }

    /// Hands a version over.
    pub fn tell(&self, version: Arc<Version>) {
        if self.versions.try_send(version).is_err() {
            self.metrics.notices_failed.inc();
        }
    }
}

async fn tell_all(
    producer: FutureProducer,
    topic: String,
    mut versions: mpsc::Receiver<Arc<Version>>,
    metrics: Arc<CollectorMetrics>,
) {
    while let Some(version) = versions.recv().await {
        // Plain texts and numbers can not fail to be written.
        let notice = serde_json::to_vec(&Notice::from(&*version)).unwrap_or_default();
        let record = FutureRecord::to(&topic).key(KEY).payload(&notice);
        if let Err((error, _)) = producer.send(record, Timeout::After(PATIENCE)).await {
            metrics.notices_failed.inc();
            tracing::warn!(%error, topic, version = version.number, "a version was not told of");
        }
    }
}
