//! A record without its schema blocks the partition until the registry answers.

use std::sync::Arc;

use futures::future::{BoxFuture, Fuse, FutureExt};

use super::{Task, WorkerContext};
use crate::core::schemas::SchemaId;
use crate::io::registry::{Looked, Registry};
use crate::support::telemetry::events::{SchemaAwaited, SchemaCame};
use crate::worker::record::Record;

/// The pending registry request; terminated while there is none.
pub(super) type Asking = Fuse<BoxFuture<'static, (SchemaId, Looked)>>;

impl Task {
    /// Holds `record` back. Neither it nor any record behind it counts as read, so the next owner reads it again.
    pub(super) fn wait_for_schema(&mut self, record: Record, id: SchemaId) {
        let bench = self.partition.bench.clone();
        let Some(registry) = bench.registry.clone() else {
            self.partition.meter.dequeued(record.bytes());
            return self.stop(
                Some(record.offset),
                "a record needs a schema, and this worker has no registry; set [schema_registry]",
            );
        };
        self.held_back = Some(record);
        self.asking = ask(bench, registry, self.partition.number, id).boxed().fuse();
    }

    /// Decodes the held-back record again.
    pub(super) fn schema_came(&mut self, id: SchemaId, looked: Looked) {
        self.schemas.learn(id, looked);
        if let Some(record) = self.held_back.take() {
            self.decode(record);
        }
    }

    /// Stops waiting for the schema.
    pub(super) fn let_go_of_held_back(&mut self) {
        self.asking = Fuse::terminated();
        if let Some(record) = self.held_back.take() {
            self.partition.meter.dequeued(record.bytes());
        }
    }
}

/// Retries until the registry answers. Meanwhile the worker is not ready and says why.
async fn ask(
    bench: Arc<WorkerContext>,
    registry: Registry,
    partition: i32,
    id: SchemaId,
) -> (SchemaId, Looked) {
    let mut delays = bench.retry.delays();
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
                    Waiting::new(bench.clone(), partition)
                });
                waiting.because(format!("waiting for schema {id}: {trouble}"));
                tokio::time::sleep(delays.next(trouble.retry_after)).await;
            }
        }
    }
}

/// Reports the wait until dropped, also when the partition is reassigned meanwhile.
struct Waiting {
    bench: Arc<WorkerContext>,
    part: String,
}

impl Waiting {
    fn new(bench: Arc<WorkerContext>, partition: i32) -> Self {
        bench.metrics.schemas.waiting.inc();
        Self { bench, part: format!("schema registry (partition {partition})") }
    }

    fn because(&self, reason: String) {
        self.bench.health.not_ready(self.part.clone(), reason);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.bench.metrics.schemas.waiting.dec();
        self.bench.health.ready(&self.part);
    }
}
