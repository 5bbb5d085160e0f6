//! A record without its schema blocks the partition until the registry answers.

use std::sync::Arc;

use futures::future::{BoxFuture, Fuse, FutureExt};

use super::WorkerContext;
use crate::base::retry::RetryPolicy;
use crate::core::schemas::SchemaId;
use crate::io::registry::{CachedSchema, Registry};
use crate::support::telemetry::events::{SchemaAwaited, SchemaCame};
use crate::support::telemetry::health::Health;
use crate::support::telemetry::metrics::Metrics;
use crate::worker::record::Record;

/// The record that waits, if any, and the request for its schema.
pub(super) struct SchemaWait {
    registry: RegistryAccess,
    /// The last record read. Neither it nor any record behind it counts as read, so the next owner reads it again.
    held_back: Option<Record>,
    /// Terminated while there is none.
    request: Fuse<BoxFuture<'static, (SchemaId, CachedSchema)>>,
}

/// What a request needs. Cheap to clone.
#[derive(Clone)]
pub(super) struct RegistryAccess {
    /// `None`: the worker is configured for records without schemas.
    pub registry: Option<Registry>,
    pub retry: RetryPolicy,
    pub partition: i32,
    pub metrics: Arc<Metrics>,
    pub health: Arc<Health>,
}

impl RegistryAccess {
    pub(super) fn of(context: &WorkerContext, partition: i32) -> Self {
        Self {
            registry: context.registry.clone(),
            retry: context.retry,
            partition,
            metrics: context.metrics.clone(),
            health: context.health.clone(),
        }
    }
}

impl SchemaWait {
    pub(super) fn new(registry: RegistryAccess) -> Self {
        Self { registry, held_back: None, request: Fuse::terminated() }
    }

    /// Holds `record` back and requests its schema. Without a registry it gives the record back.
    pub(super) fn hold_back(&mut self, record: Record, id: SchemaId) -> Result<(), Record> {
        let Some(registry) = self.registry.registry.clone() else { return Err(record) };
        self.held_back = Some(record);
        self.request = request(self.registry.clone(), registry, id).boxed().fuse();
        Ok(())
    }

    /// Whether a record is held back: then no further one is taken.
    pub(super) fn is_waiting(&self) -> bool {
        self.held_back.is_some()
    }

    /// The registry's answer; pending while nothing is requested.
    pub(super) async fn answered(&mut self) -> (SchemaId, CachedSchema) {
        (&mut self.request).await
    }

    /// Takes the record that was held back.
    pub(super) fn take(&mut self) -> Option<Record> {
        self.held_back.take()
    }

    /// Stops waiting, and gives the record that was held back.
    pub(super) fn cancel(&mut self) -> Option<Record> {
        self.request = Fuse::terminated();
        self.take()
    }
}

/// Retries until the registry answers. Meanwhile the worker is not ready and says why.
async fn request(around: RegistryAccess, registry: Registry, id: SchemaId) -> (SchemaId, CachedSchema) {
    let partition = around.partition;
    let mut delays = around.retry.delays();
    let mut waiting = None;
    loop {
        match registry.schema(id).await {
            Ok(looked) => {
                if waiting.is_some() {
                    SchemaCame { partition, id }.emit();
                }
                return (id, looked);
            }
            Err(trouble) => {
                let waiting = waiting.get_or_insert_with(|| {
                    SchemaAwaited { partition, id, trouble: &trouble }.emit();
                    NotReady::new(around.clone())
                });
                waiting.because(format!("waiting for schema {id}: {trouble}"));
                tokio::time::sleep(delays.next(trouble.retry_after)).await;
            }
        }
    }
}

/// Reports the wait until dropped, also when the partition is reassigned meanwhile.
struct NotReady {
    around: RegistryAccess,
    part: String,
}

impl NotReady {
    fn new(around: RegistryAccess) -> Self {
        around.metrics.schemas.waiting.inc();
        let part = format!("schema registry (partition {})", around.partition);
        Self { around, part }
    }

    fn because(&self, reason: String) {
        self.around.health.not_ready(self.part.clone(), reason);
    }
}

impl Drop for NotReady {
    fn drop(&mut self) {
        self.around.metrics.schemas.waiting.dec();
        self.around.health.ready(&self.part);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testkit::testing::{TestRegistry, TokioClock};

    const ID: SchemaId = SchemaId(1);

    fn wait(registry: Option<Registry>) -> SchemaWait {
        let metrics = Metrics::new().unwrap();
        let health = Health::new(Arc::new(TokioClock::new()), metrics.clone(), Duration::from_secs(30));
        let retry = RetryPolicy { initial: Duration::from_millis(1), max: Duration::from_millis(1) };
        SchemaWait::new(RegistryAccess { registry, retry, partition: 3, metrics, health })
    }

    fn record() -> Record {
        Record { offset: 5, key: None, value: None, headers: None }
    }

    fn is_reported(wait: &SchemaWait) -> bool {
        let RegistryAccess { metrics, health, .. } = &wait.registry;
        let is_missing = health.missing().contains_key("schema registry (partition 3)");
        assert_eq!(metrics.schemas.waiting.get(), i64::from(is_missing));
        is_missing
    }

    #[tokio::test]
    async fn without_a_registry_the_record_is_given_back() {
        let mut wait = wait(None);
        assert_eq!(wait.hold_back(record(), ID), Err(record()));
        assert!(!wait.is_waiting() && wait.answered().now_or_never().is_none());
    }

    /// In real time, since the registry is a server.
    #[tokio::test]
    async fn wait_is_reported_until_the_registry_answers_or_it_is_cancelled() {
        let registry = TestRegistry::start().await;
        registry.put_avro(1, r#""string""#);
        registry.be(500);
        let mut wait = wait(Some(Registry::open(&registry.settings(), None).unwrap()));
        wait.hold_back(record(), ID).unwrap();
        while !is_reported(&wait) {
            assert!(tokio::time::timeout(Duration::from_millis(10), wait.answered()).await.is_err());
        }
        assert_eq!(wait.cancel(), Some(record()));
        assert!(!is_reported(&wait) && !wait.is_waiting());

        wait.hold_back(record(), ID).unwrap();
        registry.be_well();
        let (id, looked) = wait.answered().await;
        assert!(id == ID && looked.is_ok());
        assert_eq!((wait.is_waiting(), wait.take()), (true, Some(record())));
        assert!(!is_reported(&wait));
    }
}
