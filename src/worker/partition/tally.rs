//! The increments of a partition; no offset is committed before its increment (docs/tally.md, "Emitting").

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, Fuse, FusedFuture, FutureExt};
use tokio::time::Instant as TokioInstant;

use super::{Mode, Partition, Task, WorkerContext};
use crate::base::position::Position;
use crate::base::retry::Delays;
use crate::core::counting::increment::Change;
use crate::support::telemetry::tally::PartitionTally;
use crate::worker::increments::emitter::{Emitter, Names, Source};
use crate::worker::increments::topic::{IncrementTopic, TooLarge};

/// Shared dependencies of the partition tasks of a counting worker.
pub struct Counting {
    /// The increments topic.
    pub topic: Arc<dyn IncrementTopic>,
    /// Names of the counted facets.
    pub names: Arc<Names>,
    /// Interval between a partition's increments.
    pub interval: Duration,
}

/// Yields the increment's number of edges.
pub(super) type Sending = Fuse<BoxFuture<'static, (usize, Result<(), TooLarge>)>>;

/// One partition's counting state; only present if anything is counted.
pub(super) struct Tally {
    counting: Arc<Counting>,
    /// Present once the partition's first offset is known.
    emitter: Option<Emitter>,
    delays: Delays,
    metrics: PartitionTally,
}

impl Tally {
    pub(super) fn new(bench: &WorkerContext, partition: i32) -> Option<Self> {
        let counting = bench.counting.clone()?;
        let metrics = bench.metrics.tally.partition(partition);
        Some(Self { counting, emitter: None, delays: bench.retry.delays(), metrics })
    }
}

impl Task {
    /// Starts counting at this offset.
    pub(super) fn count_from(&mut self, offset: i64) {
        let now = self.now();
        let Partition { number, bench, .. } = &self.partition;
        if let Some(tally) = &mut self.tally {
            let source = Source { topic: bench.topic.clone(), partition: *number, epoch: bench.epoch };
            let Counting { names, interval, .. } = &*tally.counting;
            tally.emitter = Some(Emitter::new(source, names.clone(), *interval, offset, now));
        }
    }

    /// Takes the changes of finished entries, before the watermark passes them.
    pub(super) fn put_edges(&mut self, edges: Vec<Change>) {
        let now = self.now();
        if let Some(emitter) = self.emitter_mut() {
            emitter.put(edges, now);
        }
    }

    /// The committed position: the one at assignment or a later one acknowledged by the broker. Versions of placements
    /// from there on must not be dropped.
    pub(super) fn committed(&self) -> Position {
        let acknowledged = self.partition.published.committed();
        let acknowledged = acknowledged.and_then(|offset| Position::new(self.partition.bench.epoch, offset));
        self.committed_before.max(acknowledged.unwrap_or(self.committed_before))
    }

    /// Sends an increment if one is due.
    pub(super) fn send_increment(&mut self, mode: Mode) {
        if self.increment_due_at(mode).is_none_or(|due| TokioInstant::now() < due) {
            return;
        }
        let (now, number) = (self.now(), self.partition.number);
        let Some(done) = self.ledger.watermark() else { return };
        let Some(Tally { counting, emitter: Some(emitter), .. }) = &mut self.tally else { return };
        let (topic, outgoing) = (counting.topic.clone(), emitter.next(done, now));
        let sending = async move {
            let sent = topic.send(number, &outgoing).await;
            (outgoing.edges, sent)
        };
        self.sending = sending.boxed().fuse();
    }

    /// When the next increment is due.
    pub(super) fn increment_due_at(&self, mode: Mode) -> Option<TokioInstant> {
        if !self.sending.is_terminated() {
            return None;
        }
        let due = self.emitter()?.due_at(self.ledger.watermark()?, mode != Mode::Run)?;
        Some(TokioInstant::now() + due.since(self.now()))
    }

    pub(super) fn increment_sent(&mut self, (edges, sent): (usize, Result<(), TooLarge>)) {
        let (now, partition) = (self.now(), self.partition.number);
        let Some(Tally { emitter: Some(emitter), delays, .. }) = &mut self.tally else { return };
        match sent {
            Ok(()) => {
                emitter.acknowledged();
                *delays = self.partition.bench.retry.delays();
            }
            Err(TooLarge) => {
                let delay = delays.next(None);
                if !emitter.too_large(edges, now + delay) {
                    tracing::error!(
                        partition,
                        ?delay,
                        "what one document changed in the counts is larger than the topic of increments takes, and the \
                         partition waits for it: raise max.message.bytes of that topic"
                    );
                }
            }
        }
        self.count_held();
    }

    /// The part of `offset` that increments allow to be published.
    pub(super) fn let_through(&self, offset: i64) -> i64 {
        self.emitter().map_or(offset, |emitter| emitter.let_through(offset))
    }

    /// Whether all finished work is in acknowledged increments.
    pub(super) fn tally_is_flushed(&self) -> bool {
        let is_told =
            |emitter: &Emitter| self.ledger.watermark().is_none_or(|done| emitter.is_acknowledged(done));
        self.emitter().is_none_or(is_told)
    }

    /// Bytes of held edges.
    pub(super) fn edge_bytes(&self) -> usize {
        self.emitter().map_or(0, |emitter| emitter.edges().bytes())
    }

    pub(super) fn update_tally_gauges(&self) {
        if let Some(Tally { metrics, emitter: Some(emitter), .. }) = &self.tally {
            let edges = emitter.edges();
            let oldest = edges.oldest().map(|since| self.now().since(since));
            metrics.held(edges.len(), edges.bytes(), oldest);
        }
    }

    fn emitter(&self) -> Option<&Emitter> {
        self.tally.as_ref()?.emitter.as_ref()
    }

    fn emitter_mut(&mut self) -> Option<&mut Emitter> {
        self.tally.as_mut()?.emitter.as_mut()
    }
}
