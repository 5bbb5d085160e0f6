//! What a partition tells the topic of increments, and that no offset is committed before (docs/tally.md, "Emitting").

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

/// What all partition tasks of a worker that counts need.
pub struct Counting {
    /// Where increments go.
    pub topic: Arc<dyn IncrementTopic>,
    /// What they are called.
    pub names: Arc<Names>,
    /// How often each partition sends one.
    pub interval: Duration,
}

/// Gives how many edges the increment had.
pub(super) type Sending = Fuse<BoxFuture<'static, (usize, Result<(), TooLarge>)>>;

/// One partition's part in the counts; there only if anything is counted.
pub(super) struct Tally {
    counting: Arc<Counting>,
    /// There once it is known where the partition begins.
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
    /// The partition begins at this offset.
    pub(super) fn count_from(&mut self, offset: i64) {
        let now = self.now();
        let Partition { number, bench, .. } = &self.partition;
        if let Some(tally) = &mut self.tally {
            let source = Source { topic: bench.topic.clone(), partition: *number, epoch: bench.epoch };
            let Counting { names, interval, .. } = &*tally.counting;
            tally.emitter = Some(Emitter::new(source, names.clone(), *interval, offset, now));
        }
    }

    /// Takes what the entries changed that are done now: before the watermark passes them.
    pub(super) fn put_edges(&mut self, edges: Vec<Change>) {
        let now = self.now();
        if let Some(emitter) = self.emitter_mut() {
            emitter.put(edges, now);
        }
    }

    /// Where the partition is known to be committed: where it was when it was assigned, or what the broker has acknowledged
    /// since. No version of a placement from there on may be dropped.
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

    /// When the next increment is due, as far as is known now.
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

    /// What may be published of the offset that everything else lets through.
    pub(super) fn let_through(&self, offset: i64) -> i64 {
        self.emitter().map_or(offset, |emitter| emitter.let_through(offset))
    }

    /// Whether whoever counts knows of all that is done.
    pub(super) fn tally_is_flushed(&self) -> bool {
        let is_told =
            |emitter: &Emitter| self.ledger.watermark().is_none_or(|done| emitter.is_acknowledged(done));
        self.emitter().is_none_or(is_told)
    }

    /// Bytes of edges held.
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
