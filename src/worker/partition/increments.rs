//! The increments of a partition; no offset is committed before its increment (docs/tally.md, "Emitting").

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, Fuse, FusedFuture, FutureExt};

use super::Mode;
use crate::base::clock::Instant;
use crate::base::retry::{Delays, RetryPolicy};
use crate::core::counting::increment::CountChange;
use crate::support::telemetry::tally::PartitionTally;
use crate::worker::increments::emitter::{Emitter, IncrementSource, Names};
use crate::worker::increments::topic::{IncrementTopic, TooLarge};
use crate::worker::ledger::Ledger;

/// Shared dependencies of the partition tasks of a counting worker.
pub struct IncrementsContext {
    /// The increments topic.
    pub topic: Arc<dyn IncrementTopic>,
    /// Names of the counted facets.
    pub names: Arc<Names>,
    /// Interval between a partition's increments.
    pub interval: Duration,
}

/// The number of edges of an increment, and what became of it.
pub(super) type Sent = (usize, Result<(), TooLarge>);

/// One partition's increments. If nothing is counted, none is ever due and every offset may be committed.
pub(super) struct Increments {
    /// `None`: nothing is counted.
    counting: Option<Counted>,
    in_flight: Fuse<BoxFuture<'static, Sent>>,
}

struct Counted {
    counting: Arc<IncrementsContext>,
    source: IncrementSource,
    /// Present once the partition's first offset is known.
    emitter: Option<Emitter>,
    retry: RetryPolicy,
    delays: Delays,
    metrics: PartitionTally,
}

impl Increments {
    /// `counting`: what is counted, if anything, and the metrics of this partition.
    pub(super) fn new(
        counting: Option<(Arc<IncrementsContext>, PartitionTally)>,
        source: IncrementSource,
        retry: RetryPolicy,
    ) -> Self {
        let counting = counting.map(|(counting, metrics)| Counted {
            counting,
            source,
            emitter: None,
            retry,
            delays: retry.delays(),
            metrics,
        });
        Self { counting, in_flight: Fuse::terminated() }
    }

    /// Whether anything is counted.
    pub(super) fn are_sent(&self) -> bool {
        self.counting.is_some()
    }

    /// Starts counting at this offset.
    pub(super) fn start_at(&mut self, offset: i64, now: Instant) {
        if let Some(Counted { counting, source, emitter, .. }) = &mut self.counting {
            let IncrementsContext { names, interval, .. } = &**counting;
            *emitter = Some(Emitter::new(source.clone(), names.clone(), *interval, offset, now));
        }
    }

    /// Takes the changes of finished entries, before the watermark passes them.
    pub(super) fn put(&mut self, edges: Vec<CountChange>, now: Instant) {
        if let Some(Counted { emitter: Some(emitter), .. }) = &mut self.counting {
            emitter.put(edges, now);
        }
    }

    /// When the next increment is due.
    pub(super) fn due_at(&self, ledger: &Ledger, mode: Mode) -> Option<Instant> {
        if !self.in_flight.is_terminated() {
            return None;
        }
        self.emitter()?.due_at(ledger.watermark()?, mode != Mode::Run)
    }

    /// Sends an increment of what is done.
    pub(super) fn send(&mut self, ledger: &Ledger, now: Instant) {
        let Some(done) = ledger.watermark() else { return };
        let Some(Counted { counting, source, emitter: Some(emitter), .. }) = &mut self.counting else {
            return;
        };
        let (topic, partition, outgoing) =
            (counting.topic.clone(), source.partition, emitter.next(done, now));
        let sending = async move {
            let sent = topic.send(partition, &outgoing).await;
            (outgoing.edges, sent)
        };
        self.in_flight = sending.boxed().fuse();
    }

    /// What became of the increment in flight; pending while there is none.
    pub(super) async fn sent(&mut self) -> Sent {
        (&mut self.in_flight).await
    }

    /// Takes note of it.
    pub(super) fn settle(&mut self, (edges, sent): Sent, now: Instant) {
        let Some(Counted { emitter: Some(emitter), retry, delays, source, .. }) = &mut self.counting else {
            return;
        };
        match sent {
            Ok(()) => {
                emitter.acknowledged();
                *delays = retry.delays();
            }
            Err(TooLarge) => {
                let delay = delays.next(None);
                if !emitter.too_large(edges, now + delay) {
                    tracing::error!(
                        partition = source.partition,
                        ?delay,
                        "what one document changed in the counts is larger than the topic of increments takes, and the \
                         partition waits for it: raise max.message.bytes of that topic"
                    );
                }
            }
        }
    }

    /// The offset up to `offset` that may be committed.
    pub(super) fn limit(&self, offset: i64) -> i64 {
        self.emitter().map_or(offset, |emitter| emitter.let_through(offset))
    }

    /// Whether everything that is done is in acknowledged increments.
    pub(super) fn are_flushed(&self, ledger: &Ledger) -> bool {
        let is_acknowledged =
            |emitter: &Emitter| ledger.watermark().is_none_or(|done| emitter.is_acknowledged(done));
        self.emitter().is_none_or(is_acknowledged)
    }

    /// Bytes of edges that no acknowledged increment has yet.
    pub(super) fn bytes(&self) -> usize {
        self.emitter().map_or(0, |emitter| emitter.edges().bytes())
    }

    pub(super) fn update_gauges(&self, now: Instant) {
        if let Some(Counted { metrics, emitter: Some(emitter), .. }) = &self.counting {
            let edges = emitter.edges();
            let oldest = edges.oldest().map(|since| now.since(since));
            metrics.held(edges.len(), edges.bytes(), oldest);
        }
    }

    fn emitter(&self) -> Option<&Emitter> {
        self.counting.as_ref()?.emitter.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::base::position::Epoch;
    use crate::core::write::{Body, Write};
    use crate::support::telemetry::metrics::Metrics;
    use crate::testkit::testing::{at, id, rules};
    use crate::worker::increments::emitter::OutgoingIncrement;

    /// Gives each increment the next of these answers.
    struct Answers(Mutex<Vec<Result<(), TooLarge>>>);

    impl IncrementTopic for Answers {
        fn send<'a>(&'a self, _: i32, _: &'a OutgoingIncrement) -> BoxFuture<'a, Result<(), TooLarge>> {
            let answer = self.0.lock().unwrap().remove(0);
            async move { answer }.boxed()
        }
    }

    const NOW: Instant = Instant::from_start(Duration::from_secs(1));
    const INTERVAL: Duration = Duration::from_secs(10);

    fn increments(answers: Option<Vec<Result<(), TooLarge>>>) -> Increments {
        let counting = answers.map(|answers| {
            let topic = Arc::new(Answers(Mutex::new(answers)));
            let counting = IncrementsContext { topic, names: Arc::default(), interval: INTERVAL };
            (Arc::new(counting), Metrics::new().unwrap().tally.partition(0))
        });
        let source = IncrementSource { topic: "topic".into(), partition: 0, epoch: Epoch::default() };
        let retry = RetryPolicy { initial: Duration::from_secs(1), max: Duration::from_secs(1) };
        let mut increments = Increments::new(counting, source, retry);
        increments.start_at(5, NOW);
        increments
    }

    /// Everything below 7 is done.
    fn done() -> Ledger {
        let mut ledger = Ledger::new(rules(), Epoch::default());
        ledger.take(Write { id: id("a"), position: at(7), body: Body::Delete }, NOW);
        ledger
    }

    #[test]
    fn commits_wait_for_the_increment() {
        let mut increments = increments(Some(vec![Ok(())]));
        let ledger = done();
        assert_eq!((increments.limit(7), increments.are_flushed(&ledger)), (5, false));
        assert_eq!(increments.due_at(&ledger, Mode::Run), Some(NOW + INTERVAL));
        assert_eq!(increments.due_at(&ledger, Mode::Drain), Some(NOW));
        increments.send(&ledger, NOW);
        assert_eq!(increments.due_at(&ledger, Mode::Drain), None, "one at a time");
        let sent = increments.sent().now_or_never().unwrap();
        assert_eq!(increments.limit(7), 5);
        increments.settle(sent, NOW);
        assert_eq!((increments.limit(7), increments.are_flushed(&ledger)), (7, true));
        assert_eq!(increments.due_at(&ledger, Mode::Drain), None);
    }

    #[test]
    fn increment_too_large_is_sent_again_after_a_pause() {
        let mut increments = increments(Some(vec![Err(TooLarge)]));
        let ledger = done();
        increments.send(&ledger, NOW);
        let sent = increments.sent().now_or_never().unwrap();
        increments.settle(sent, NOW);
        assert_eq!(increments.limit(7), 5);
        assert!(increments.due_at(&ledger, Mode::Run).is_some_and(|due| due >= NOW));
    }

    #[test]
    fn without_counting_nothing_is_sent_and_every_offset_may_be_committed() {
        let mut increments = increments(None);
        let ledger = done();
        assert_eq!((increments.limit(7), increments.are_flushed(&ledger), increments.bytes()), (7, true, 0));
        increments.send(&ledger, NOW);
        assert_eq!(increments.due_at(&ledger, Mode::Drain), None);
        assert!(increments.sent().now_or_never().is_none() && !increments.are_sent());
    }
}
