//! One partition's task: decode, fold, one batch in flight, settle, publish the watermark. Partitions share
//! nothing but the permits and the budget.
//!
//! `task.rs` has the order of the protocol: the loop, and what each event leads to. The rest are its components: each
//! owns its state and its futures, and decides without knowing the others.
//!
//! | file | what it holds |
//! |---|---|
//! | `task.rs` | the loop and the steps |
//! | `start.rs` | where reading may start |
//! | `intake.rs` | what a record leads to |
//! | `record_sequence.rs` | whether records follow one another; gaps |
//! | `key_check.rs` | whether its keys are where `kafka.partitioner` puts them |
//! | `schema_wait.rs` | a record that lacks a schema |
//! | `batches.rs` | the batch in flight |
//! | `batch_permit.rs` | the permit to start one |
//! | `pace.rs` | when the next one starts |
//! | `ownership.rs` | the partition's claim and requests of earlier owners that may still take effect |
//! | `maps.rs` | the maps it acts by |
//! | `cache_validity.rs` | whether cached placements may be too old |
//! | `dead_letters.rs` | dead letters in flight |
//! | `source_fetches.rs` | requests to the source of truth |
//! | `rereads.rs` | records of a refused fold, read again |
//! | `distributions.rs` | requested distributions |
//! | `commit_gate.rs` | other work that must finish before a commit |
//! | `load.rs` | counts written documents by place |
//! | `look_ahead.rs` | when to read ahead for records that later ones supersede |
//! | `increments.rs` | increments, and the commits that wait for them |
//! | `published.rs` | what it shares with the poll thread |
//! | `report.rs` | metrics and events of a batch |

mod batch_permit;
mod batches;
mod cache_validity;
mod commit_gate;
mod dead_letters;
mod distributions;
mod increments;
mod intake;
mod key_check;
mod load;
mod look_ahead;
mod maps;
mod ownership;
mod pace;
mod published;
mod record_sequence;
mod report;
mod rereads;
mod schema_wait;
mod source_fetches;
mod start;
mod task;
#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures::future::FutureExt;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

pub use self::increments::IncrementsContext;
pub use self::load::count_written;
pub use self::published::{KnownOffsets, Published};
use self::task::PartitionTask;
use super::budget::{CacheShare, Meter};
use super::limits::{Batching, LimitsReader};
use super::look_ahead::AheadReader;
use super::record::Record;
use super::reread::RecordReader;
use super::topic_watch::TopicView;
use crate::base::clock::Clock;
use crate::base::position::Epoch;
use crate::base::retry::RetryPolicy;
use crate::core::decode::Decoder;
use crate::core::mover::Rules;
use crate::io::claims::Claims;
use crate::io::elastic::rounds::{Halt, RequestSender};
use crate::io::load::LoadSender;
use crate::io::maps::MapsReader;
use crate::io::meta::TopicMemory;
use crate::io::registry::Registry;
use crate::support::config::{LostRecords, MovesConfig, Partitioner};
use crate::support::telemetry::health::Health;
use crate::support::telemetry::traces::Traces;
use crate::support::telemetry::{Metrics, PartitionMetrics};
use crate::worker::dead_letter::DeadLetterSink;
use crate::worker::distribution::Distributor;
use crate::worker::refeed::SourceFetcher;
use crate::worker::visibility::Visibility;

/// Shared dependencies of all partition tasks of a worker.
pub struct WorkerContext {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The configured epoch.
    pub epoch: Epoch,
    /// The topic's partition count when the worker started.
    pub partitions: i32,
    /// The producers' partitioner.
    pub partitioner: Partitioner,
    /// Policy for records deleted from the topic before they were read.
    pub lost_records: LostRecords,
    /// Reports whether the topic was re-created or repartitioned.
    pub topic_reader: TopicView,
    /// Batching limits at startup. Only `deadline` stays fixed; the rest may be reloaded.
    pub batching: Batching,
    /// The limits in force.
    pub limits: LimitsReader,
    /// Decodes records into writes.
    pub decoder: Decoder,
    /// The schema registry; `None` if no record needs one.
    pub registry: Option<Registry>,
    /// Placement rules; `maps` supplies the map.
    pub rules: Rules,
    /// The maps in force.
    pub maps: MapsReader,
    /// Claims partitions.
    pub claims: Claims,
    /// Sends requests to Elasticsearch.
    pub rounds: RequestSender,
    /// Limits batches in flight.
    pub batch_permits: Arc<Semaphore>,
    /// Guarantees for documents that move.
    pub moves: MovesConfig,
    /// When searches find what was written.
    pub visibility: Arc<Visibility>,
    /// Remembered state of the topic and its partitions.
    pub memory: TopicMemory,
    /// The source of truth, if configured.
    pub refeed: Option<SourceFetcher>,
    /// Work that must follow a change of a geoshard, if configured.
    pub distributor: Option<Arc<Distributor>>,
    /// Reads records of refused folds again.
    pub reread: Arc<dyn RecordReader>,
    /// Reads partitions ahead that are far behind; `None`: never.
    pub look_ahead: Option<Arc<dyn AheadReader>>,
    /// The dead-letter topic; `None` stops a partition at its first bad record.
    pub dead_letters: Option<Arc<dyn DeadLetterSink>>,
    /// Publishes count increments; `None` if nothing is counted.
    pub counting: Option<Arc<IncrementsContext>>,
    /// Where written documents are counted by place, and the level of the cells; `None` if they are not.
    pub load: Option<(u8, LoadSender)>,
    /// Pause between attempts that made no progress.
    pub retry: RetryPolicy,
    /// Trace exporter.
    pub traces: Traces,
    /// Boot-time clock.
    pub clock: Arc<dyn Clock>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Reports stopped partitions.
    pub health: Arc<Health>,
    /// Receives the errors that stop the worker.
    pub fatal: mpsc::UnboundedSender<Halt>,
}

/// What the poll thread tells a partition task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Read and write.
    Run,
    /// The worker stops: take no more records, write everything dirty, then end.
    Drain,
    /// The partition is revoked: finish the batch in flight, then end.
    FinishBatch,
}

/// The name of a stopped partition in [`Health`].
pub fn stopped_part(partition: i32) -> String {
    format!("partition {partition}")
}

/// One partition's task, before it runs.
pub struct Partition {
    /// The partition number.
    pub number: i32,
    /// Shared by all tasks.
    pub context: Arc<WorkerContext>,
    /// Its records.
    pub records: mpsc::Receiver<Record>,
    /// The current instruction.
    pub mode: watch::Receiver<Mode>,
    /// Ends the task at once; versions make anything in flight harmless.
    pub cancel: CancellationToken,
    /// Bytes held.
    pub meter: Arc<Meter>,
    /// State visible to the poll thread.
    pub published: Arc<Published>,
    /// The partition's share of the placement cache.
    pub cache_share: Arc<CacheShare>,
    /// Its counters.
    pub metrics: PartitionMetrics,
}

impl Partition {
    /// Runs until drained, finished or cancelled.
    pub async fn run(self) {
        let cancel = self.cancel.clone();
        let (number, context, published) = (self.number, self.context.clone(), self.published.clone());
        let Ok(mut task) = catch_unwind(AssertUnwindSafe(|| PartitionTask::new(self))) else {
            report::stopped(&context, number, None, report::DEFECT);
            return published.set_drained();
        };
        let ended = tokio::select! {
            biased;
            () = cancel.cancelled() => Ok(()),
            // Without this, a panic would leave the partition silently unprocessed.
            ended = AssertUnwindSafe(task.run()).catch_unwind() => ended,
        };
        match ended {
            Err(_) => task.stop(None, report::DEFECT),
            Ok(()) if !cancel.is_cancelled() => task.release_claim(),
            Ok(()) => {}
        }
        // The next owner reads the rest again.
        task.partition.meter.set_folded(0);
        published.set_drained();
    }
}
