//! A worker's requests to the source: partitions send requests and receive answers, however late.
//!
//! All partitions share it, so that the source receives few, batched requests. It retries without limit; requests of a
//! revoked partition, or without a waiter, are dropped.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::held::{Held, Holding};
use super::{DocumentSource, FetchAnswer, FetchFailure};
use crate::base::circuit_breaker::CircuitBreaker;
use crate::base::clock::{Clock, Instant};
use crate::base::ids::DocId;
use crate::base::position::Position;
use crate::base::retry::{Delays, RetryPolicy};
use crate::core::decode::Decoder;
use crate::core::mover::{Refusal, SourceAnswer};
use crate::support::supervisor::Supervisor;
use crate::support::telemetry::Metrics;
use crate::support::telemetry::health::Health;
use crate::support::telemetry::metrics::level;
use crate::support::telemetry::refeed::Asked;

/// The breaker opens after this many consecutive requests without a usable answer.
const FAILURES: u32 = 5;

/// The name of an unresponsive source in [`Health`].
const PART: &str = "source";

/// A request to the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchRequest {
    /// The document.
    pub id: DocId,
    /// The last record taken before the request: the answer does not cover later records that replace the whole
    /// document.
    pub after: Position,
    asker: Asker,
}

/// Kept by the waiter until the answer: a request whose waiter was dropped is not sent.
#[derive(Debug, Clone)]
pub struct FetchWaiter {
    _lives: Arc<()>,
}

/// Identifies the [`FetchWaiter`] of the answer.
#[derive(Debug, Clone)]
struct Asker(Weak<()>);

impl PartialEq for Asker {
    fn eq(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

impl Eq for Asker {}

impl FetchRequest {
    /// A request that is valid while the returned waiter is kept.
    pub fn new(id: DocId, after: Position) -> (Self, FetchWaiter) {
        let lives = Arc::new(());
        (Self { id, after, asker: Asker(Arc::downgrade(&lives)) }, FetchWaiter { _lives: lives })
    }

    /// Whether the waiter still exists.
    pub fn is_wanted(&self) -> bool {
        self.asker.0.strong_count() > 0
    }
}

/// An answer.
#[derive(Debug)]
pub struct FetchResponse {
    /// Its request.
    pub request: FetchRequest,
    /// The answer.
    pub answer: SourceAnswer,
    /// To be kept as long as the answer.
    pub held: Held,
}

/// Accepts requests. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SourceFetcher(mpsc::UnboundedSender<WaitingFetch>);

/// Dependencies of a feeder.
pub struct FetcherDependencies {
    /// The source; a newly published one is used from then on.
    pub source: watch::Receiver<DocumentSource>,
    /// Validates documents.
    pub decoder: Decoder,
    /// Pauses between attempts.
    pub retry: RetryPolicy,
    /// Boot-time clock.
    pub clock: Arc<dyn Clock>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Reports an unresponsive source.
    pub health: Arc<Health>,
}

#[derive(Debug)]
pub(crate) struct WaitingFetch {
    pub(crate) request: FetchRequest,
    answers: mpsc::UnboundedSender<FetchResponse>,
    /// Present once it has failed.
    delays: Option<Delays>,
}

type Requests = FuturesUnordered<BoxFuture<'static, (Vec<WaitingFetch>, Vec<FetchAnswer>, Duration)>>;

impl SourceFetcher {
    /// Runs until stopped.
    pub fn start(mut around: FetcherDependencies, stop: CancellationToken, supervisor: &Supervisor) -> Self {
        let (requests, inbox) = mpsc::unbounded_channel();
        let source = around.source.borrow_and_update().clone();
        let fetches = Fetches {
            source,
            breaker: CircuitBreaker::new(FAILURES),
            pauses: None,
            holding: Arc::default(),
            waiting: VecDeque::new(),
            later: BTreeMap::new(),
            turns: 0,
            requests: Requests::new(),
            around,
        };
        supervisor.spawn("source fetcher", stop.clone(), fetches.work(inbox, stop));
        Self(requests)
    }

    /// A feeder whose requests a test answers.
    #[cfg(test)]
    pub(crate) fn stand_in() -> (Self, mpsc::UnboundedReceiver<WaitingFetch>) {
        let (requests, inbox) = mpsc::unbounded_channel();
        (Self(requests), inbox)
    }

    /// Sends a request. It is answered unless the feeder is stopped first.
    pub fn request(&self, request: FetchRequest, answers: mpsc::UnboundedSender<FetchResponse>) {
        // The receiver is gone only if the worker is stopping.
        let _ = self.0.send(WaitingFetch { request, answers, delays: None });
    }
}

#[cfg(test)]
impl WaitingFetch {
    pub(crate) fn answer(self, answer: SourceAnswer) {
        let Self { request, answers, .. } = self;
        let _ = answers.send(FetchResponse { request, answer, held: Held::none() });
    }
}

struct Fetches {
    /// The current source.
    source: DocumentSource,
    around: FetcherDependencies,
    breaker: CircuitBreaker,
    /// Of the breaker since it opened.
    pauses: Option<Delays>,
    holding: Arc<Holding>,
    waiting: VecDeque<WaitingFetch>,
    /// Failed requests by the time of their retry.
    later: BTreeMap<(Instant, u64), WaitingFetch>,
    /// Distinguishes requests due at the same time.
    turns: u64,
    requests: Requests,
}

impl Fetches {
    async fn work(mut self, mut inbox: mpsc::UnboundedReceiver<WaitingFetch>, stop: CancellationToken) {
        loop {
            self.send_requests();
            self.update_gauges();
            let holding = self.holding.clone();
            let wake_in = self.next_due().map(|due| due.since(self.now()));
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some((asked, answers, took)) = self.requests.next() => self.answered(asked, answers, took),
                () = holding.freed(), if !self.waiting.is_empty() => {}
                // Requests in flight finish at the former source, and count.
                Ok(()) = self.around.source.changed() => self.source = self.around.source.borrow().clone(),
                asked = inbox.recv() => match asked {
                    Some(asked) => {
                        self.waiting.push_back(asked);
                        // Batches everything queued.
                        while let Ok(asked) = inbox.try_recv() {
                            self.waiting.push_back(asked);
                        }
                    }
                    // No sender is left.
                    None => return stop.cancelled().await,
                },
                () = tokio::time::sleep(wake_in.unwrap_or_default()), if wake_in.is_some() => {}
            }
        }
    }

    fn send_requests(&mut self) {
        let now = self.now();
        while let Some(first) = self.later.first_entry().filter(|first| first.key().0 <= now) {
            self.waiting.push_back(first.remove());
        }
        self.waiting.retain(|waiting| !waiting.answers.is_closed() && waiting.request.is_wanted());
        let source = &self.source;
        while !self.waiting.is_empty()
            && self.requests.len() < source.max_in_flight()
            && self.holding.bytes() < source.max_bytes()
            && self.breaker.admits(now)
        {
            let asked: Vec<WaitingFetch> =
                self.waiting.drain(..source.batch().min(self.waiting.len())).collect();
            let (source, clock) = (source.clone(), self.around.clock.clone());
            let request = async move {
                let began = clock.now();
                let ids: Vec<DocId> = asked.iter().map(|asked| asked.request.id.clone()).collect();
                let answers = source.fetch(&ids).await;
                (asked, answers, clock.now().since(began))
            };
            self.requests.push(request.boxed());
        }
    }

    fn answered(&mut self, asked: Vec<WaitingFetch>, answers: Vec<FetchAnswer>, took: Duration) {
        let now = self.now();
        self.around.metrics.refeed.request_seconds.observe(took.as_secs_f64());
        let failures = answers.iter().filter_map(|answer| match answer {
            FetchAnswer::Failed(failure) => Some(failure),
            _ => None,
        });
        let (failed, first) = (failures.clone().count(), failures.clone().next().cloned());
        let retry_after = failures.filter_map(|failure| failure.retry_after).max();
        if failed < answers.len() {
            self.breaker.succeeded();
            self.pauses = None;
            self.around.health.ready(PART);
        } else {
            self.breaker.failed(now, |_| {
                self.pauses.get_or_insert_with(|| self.around.retry.delays()).next(retry_after)
            });
        }
        if let Some(failure) = first {
            self.report(failed, &failure);
        }
        for (asked, answer) in asked.into_iter().zip(answers) {
            self.settle(asked, answer, now);
        }
    }

    fn report(&self, documents: usize, failure: &FetchFailure) {
        tracing::warn!(documents, error = %failure, "could not fetch documents; retrying");
        if self.breaker.is_open() {
            self.around.health.not_ready(PART, failure.to_string());
        }
    }

    fn settle(&mut self, mut asked: WaitingFetch, answer: FetchAnswer, now: Instant) {
        let counters = &self.around.metrics.refeed.answers;
        let (word, source_answer) = match answer {
            FetchAnswer::Found(document) => match self.around.decoder.document(document) {
                Ok((document, _)) => (Asked::Found, SourceAnswer::Document(document)),
                Err(bad) => {
                    let detail = format!("the source's document cannot be placed: {bad}");
                    (Asked::Unusable, SourceAnswer::Unusable(Refusal { reason: bad.reason(), detail }))
                }
            },
            FetchAnswer::Gone => (Asked::Gone, SourceAnswer::Gone),
            FetchAnswer::Unusable { reason, detail } => {
                (Asked::Unusable, SourceAnswer::Unusable(Refusal { reason, detail }))
            }
            FetchAnswer::Failed(failure) => {
                counters.of(Asked::Failed).inc();
                let delays = asked.delays.get_or_insert_with(|| self.around.retry.delays());
                let due = now + delays.next(failure.retry_after);
                self.turns += 1;
                self.later.insert((due, self.turns), asked);
                return;
            }
        };
        counters.of(word).inc();
        let held = match &source_answer {
            SourceAnswer::Document(document) => self.holding.hold(document.len()),
            SourceAnswer::Gone | SourceAnswer::Unusable(_) => Held::none(),
        };
        // The partition may be gone: then its next owner asks.
        let _ = asked.answers.send(FetchResponse { request: asked.request, answer: source_answer, held });
    }

    /// The next timer.
    fn next_due(&self) -> Option<Instant> {
        let later = self.later.first_key_value().map(|((due, _), _)| *due);
        let again = self.breaker.open_until().filter(|_| !self.waiting.is_empty());
        [later, again].into_iter().flatten().min()
    }

    fn update_gauges(&self) {
        let refeed = &self.around.metrics.refeed;
        refeed.waiting.set(level(self.waiting.len() + self.later.len()));
        refeed.requests_in_flight.set(level(self.requests.len()));
        refeed.held_bytes.set(level(self.holding.bytes()));
        refeed.breaker_open.set(self.breaker.is_open().into());
    }

    fn now(&self) -> Instant {
        self.around.clock.now()
    }
}
