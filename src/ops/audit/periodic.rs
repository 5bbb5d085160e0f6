//! The audit that a worker runs by itself (`[audit] interval`).
//!
//! One worker at a time: the owner of partition 0. The group has agreed on that already, there is one in every topic, and it
//! changes hands when a worker dies. Two that both believe to own it are two audits, which do no harm: an audit reads, and
//! what it mends or sweeps is compared and set. When the last one ended is kept in the meta index, so that restarts and
//! rebalances begin none too many. One that is interrupted begins anew.
//!
//! Nothing of the worker waits for it, and readiness does not depend on it.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::sweep::{self, TombstoneSweep, unix_now};
use super::touches::TopicTouches;
use super::{
    Audit, AuditError, AuditFinding, AuditOptions, AuditReport, RepairOutcome, RepairTarget, Repairer,
};
use crate::base::ids::DocId;
use crate::base::position::Position;
use crate::base::progress::Progress;
use crate::core::decode::LocationPath;
use crate::io::elastic::{BulkOp, Elastic, Index, WriteCondition};
use crate::io::maps::MapsReader;
use crate::io::stored::{StoredRecord, key};
use crate::support::config::Config;
use crate::support::telemetry::Metrics;
use crate::support::telemetry::audit::AuditTotals;
use crate::support::telemetry::metrics::Success;
use crate::support::telemetry::partition_status::PartitionStatusReader;

/// The partition whose owner audits.
const ITS: i32 = 0;
/// Refreshing and scanning whole indices is not the hot path.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two reads of a suspect; usually longer than a batch.
const SETTLE: Duration = Duration::from_secs(10);
/// For sorting: a worker has other things to keep.
const MEMORY: usize = 32 << 20;
/// A failed audit is tried again after this, or after `every` if that is less.
const AFTER_FAILURE: Duration = Duration::from_secs(600);
/// Touches per second.
const TOUCHES: NonZeroU32 = NonZeroU32::new(500).unwrap();

/// The audit of one worker.
pub struct PeriodicAudit {
    /// Of this configuration.
    pub config: Config,
    /// Time from the end of one to the next.
    pub every: Duration,
    /// The search server.
    pub elastic: Arc<dyn Elastic>,
    /// Where a document's location is.
    pub location: LocationPath,
    /// Which maps are in force.
    pub maps: MapsReader,
    /// Maximum copies and placements read per second.
    pub rate: watch::Receiver<NonZeroU32>,
    /// Which partitions are owned.
    pub partition_status: PartitionStatusReader,
    /// Metrics of the results.
    pub metrics: Arc<Metrics>,
}

/// Stored facts about the group's last audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastAudit {
    /// Its end, in seconds since 1970.
    pub ended: u64,
    /// Documents with a defect; `None`: ended by a worker that did not store it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrong: Option<u64>,
}

impl LastAudit {
    /// `_id` of the facts about the audits of `topic`.
    pub fn key(topic: &str) -> DocId {
        key(format!("audit/{topic}"))
    }
}

impl PeriodicAudit {
    /// Audits while the partition is owned, until told to stop.
    pub async fn run(self, stop: CancellationToken) {
        let (owned, lost) = (self.partition_status.clone(), self.partition_status.clone());
        stop.run_until_cancelled(async {
            loop {
                if !wait_until(owned.clone(), true).await {
                    return;
                }
                tokio::select! {
                    _ = wait_until(lost.clone(), false) => {}
                    () = self.own() => {}
                }
            }
        })
        .await;
    }

    /// One audit after the other.
    async fn own(&self) {
        loop {
            let wait = match self.last().await {
                Ok(None) => Duration::ZERO,
                Ok(Some(last)) => until_next(last, self.every, unix_now()),
                Err(error) => {
                    tracing::warn!(%error, "could not read when the last audit ended; retrying");
                    tokio::time::sleep(self.after_failure()).await;
                    continue;
                }
            };
            tokio::time::sleep(wait).await;
            let begun = tokio::time::Instant::now();
            self.metrics.audit.begun.set(i64::try_from(unix_now()).unwrap_or(i64::MAX));
            tracing::info!("an audit begins");
            match self.audit().await {
                Ok(report) => {
                    let totals = AuditTotals {
                        documents: report.totals.documents,
                        unsettled: report.unsettled,
                        defects: &report.defects,
                        swept: report.swept.unwrap_or(0),
                    };
                    self.metrics.audit.ended(totals, begun.elapsed(), unix_now());
                    if report.is_clean() {
                        tracing::info!(%report, "an audit ended");
                    } else {
                        tracing::warn!(%report, "an audit found defects; `geofold audit` lists the documents");
                    }
                    let last = LastAudit { ended: unix_now(), wrong: Some(report.wrong) };
                    if let Err(error) = self.remember(last).await {
                        tracing::warn!(%error, "could not store when the audit ended");
                        tokio::time::sleep(self.after_failure()).await;
                    }
                }
                Err(error) => {
                    self.metrics.audit.audits.of(Success::Failed).inc();
                    tracing::warn!(%error, "an audit failed; it starts again later");
                    tokio::time::sleep(self.after_failure()).await;
                }
            }
        }
    }

    fn after_failure(&self) -> Duration {
        self.every.min(AFTER_FAILURE)
    }

    async fn audit(&self) -> Result<AuditReport, AuditError> {
        let Config { elasticsearch, kafka, positions, placements, audit, .. } = &self.config;
        let topic = TopicTouches::connect(&self.config, self.elastic.clone(), TOUCHES).await;
        let topic = topic.map_err(|error| AuditError::Log(error.to_string()))?;
        let of = (kafka.topic.as_str(), positions.epoch);
        let keep = placements.deleted_retention;
        let sweep = sweep::prepare(&*self.elastic, &elasticsearch.prefix, of, &topic, keep, TIMEOUT).await?;
        let sweep_below = match sweep {
            TombstoneSweep::Below(writes) => Some(writes),
            TombstoneSweep::Unripe => None,
            TombstoneSweep::Waits(partitions) => {
                tracing::warn!(
                    ?partitions,
                    "placements of deleted documents are not swept: these partitions have not committed everything up to the oldest mark"
                );
                None
            }
        };
        let mender = if audit.repair {
            let next =
                topic.next(positions.epoch).await.map_err(|error| AuditError::Log(error.to_string()))?;
            // Beyond what positions can hold nothing is placed.
            let next = next.unwrap_or(Position::from_version(0));
            Some(Repairer {
                elastic: &*self.elastic,
                touches: &topic,
                aim: RepairTarget::Repair { next },
                has_source: self.config.source.kind.is_some(),
                timeout: TIMEOUT,
            })
        } else {
            None
        };
        let maps = self.maps.record().live();
        let audit = Audit {
            elastic: &*self.elastic,
            prefix: &elasticsearch.prefix,
            topic: &kafka.topic,
            maps: &maps,
            location: &self.location,
            epoch: positions.epoch,
            options: AuditOptions {
                scans: 1,
                memory: MEMORY,
                folder: audit.temp_dir.clone().unwrap_or_else(std::env::temp_dir),
                settle: SETTLE.min(self.every),
                timeout: TIMEOUT,
                rate: Some(self.rate.clone()),
                sweep_below,
            },
        };
        let found = async |findings: Vec<AuditFinding>| {
            for finding in &findings {
                tracing::debug!(%finding, "the audit found a document that is wrong");
            }
            if let Some(mender) = &mender {
                let mended = mender.mend(&findings).await?;
                let count = mended.iter().filter(|outcome| **outcome == RepairOutcome::Yes).count();
                tracing::info!(mended = count, of = findings.len(), "the audit repaired documents");
            }
            Ok(())
        };
        let tell = |progress: Progress<'_>| match progress {
            Progress::Happened(line) => tracing::info!("{line}"),
            // At its leisure, for hours.
            Progress::Done { .. } | Progress::Wait { .. } => {}
        };
        audit.run(&tell, found).await
    }

    async fn last(&self) -> Result<Option<LastAudit>, AuditError> {
        let id = LastAudit::key(&self.config.kafka.topic);
        let found = StoredRecord::new(&*self.elastic, &id, TIMEOUT).read_as().await?;
        Ok(found.map(|(last, _)| last))
    }

    async fn remember(&self, last: LastAudit) -> Result<(), AuditError> {
        let doing = "remember when the audit ended";
        let op = BulkOp::Index {
            index: Index::Meta,
            id: LastAudit::key(&self.config.kafka.topic),
            // Of two, the later one.
            guard: WriteCondition::ExternalOrEqual(Position::from_version(last.ended)),
            source: serde_json::to_vec(&last).unwrap_or_default().into(),
        };
        let answers = self.elastic.bulk(&[op], TIMEOUT).await;
        let answers = answers.map_err(|error| AuditError::Call { doing, error })?;
        match answers.into_iter().find(|answer| answer.status != 409).and_then(|answer| answer.error) {
            Some(error) => Err(AuditError::Item { doing, reason: error.to_string() }),
            None => Ok(()),
        }
    }
}

/// Waits until the partition is owned, or is not. `false` if the sender is gone.
async fn wait_until(mut partition_status: PartitionStatusReader, owned: bool) -> bool {
    partition_status
        .wait_for(|partition_status| partition_status.iter().any(|one| one.partition == ITS) == owned)
        .await
        .is_ok()
}

/// If the clock went back, waits at most `every`.
fn until_next(last: LastAudit, every: Duration, now: u64) -> Duration {
    every.saturating_sub(Duration::from_secs(now.saturating_sub(last.ended)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::telemetry::partition_status::PartitionStatus;

    #[test]
    fn the_next_one_is_due_so_long_after_the_last_ended() {
        let every = Duration::from_secs(100);
        for (ended, now, wait) in
            [(1000, 1000, 100), (1000, 1040, 60), (1000, 1100, 0), (1000, 9000, 0), (1000, 500, 100)]
        {
            assert_eq!(
                until_next(LastAudit { ended, wrong: None }, every, now),
                Duration::from_secs(wait),
                "{now}"
            );
        }
    }

    #[tokio::test]
    async fn it_is_for_the_owner_of_partition_0() {
        let status = |partition| PartitionStatus {
            partition,
            paused: false,
            watermark: None,
            committed: None,
            end: None,
        };
        let (partition_status, reader) = watch::channel(vec![status(1)]);
        assert!(wait_until(reader.clone(), false).await);
        let owned = tokio::spawn(wait_until(reader.clone(), true));
        partition_status.send_replace(vec![status(1), status(0)]);
        assert!(owned.await.unwrap());
        drop(partition_status);
        assert!(!wait_until(reader, false).await, "nobody tells any more");
    }
}
