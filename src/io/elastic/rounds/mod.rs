//! Sends one round of operations and returns their outcomes in order.
//!
//! A round is split by count and bytes into concurrent requests. Each holds a permit of a semaphore, shared by all partitions,
//! until it is done, including the pauses between attempts: a server that pushes back gets fewer requests, not more. A worker's
//! writes go through a queue, where those to one index come together (`bulk_queue.rs`): its requests hold the permits. Only
//! retryable items are sent again, with backoff and without a limit of attempts, until the [`RequestDeadline`]. After it
//! nothing is sent; an item without a response is `Unanswered`, which does not say whether it was executed.
//!
//! Writes wait for the ceiling of operations (`ceiling.rs`) before they take a permit; the number of permits may follow the
//! server's answers (`adaptive.rs`). While credentials are refused (`credentials.rs`) one request at a time is sent; while an
//! index refuses everything (`refusals.rs`), its items are sent again.

mod adaptive;
mod attempt;
mod bulk_queue;
mod ceiling;
mod credentials;
mod item;
mod observer;
mod refusals;
mod server;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};
use thiserror::Error;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub use self::adaptive::AdaptiveConcurrency;
use self::adaptive::is_overload;
use self::attempt::{Answers, Attempt};
pub use self::bulk_queue::BulkQueue;
pub use self::ceiling::OperationsCeiling;
use self::item::{Item, ItemVerdict};
use self::observer::WaitingRequest;
pub use self::server::{ServerLimits, ServerState};
use super::answer::{CallVerdict, judge_call};
use super::{BulkOp, CallError, Elastic, Get, Index, ItemError};
use crate::base::clock::{Clock, Instant};
use crate::base::concurrency_limit::EndedRequest;
pub use crate::base::requests::{
    BulkOutcome, GetOutcome, RequestKind, RoundsObserver, ServerObserver, Unobserved,
};
use crate::base::retry::RetryPolicy;

/// Bounds of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
    /// Operations, at least one.
    pub max_operations: usize,
    /// Bytes of the body. A single operation above it is sent alone.
    pub max_bytes: usize,
    /// Timeout of a request; shortened to the rest of the lease.
    pub request_timeout: Duration,
}

impl RequestLimits {
    /// Requests larger than 1/4 of the limits are large.
    const LARGE: usize = 4;

    /// Whether the time that a request took says how fast the server is.
    fn is_large(&self, operations: usize, bytes: usize) -> bool {
        operations > self.max_operations / Self::LARGE || bytes > self.max_bytes / Self::LARGE
    }
}

/// For how long a batch may send.
#[derive(Debug, Clone)]
pub struct RequestDeadline {
    /// Nothing is sent at or after this.
    pub deadline: Instant,
    /// Nothing is sent once this is cancelled; requests in flight are abandoned, waits end at once.
    pub cancel: CancellationToken,
}

impl RequestDeadline {
    /// The time that is left; `None` once the lease has ended.
    pub fn time_left(&self, now: Instant) -> Option<Duration> {
        let left = self.deadline.since(now);
        (!left.is_zero() && !self.cancel.is_cancelled()).then_some(left)
    }
}

/// Why the worker must stop instead of trying again.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Halt {
    /// Lasting 401 or 403. Further attempts could lock accounts.
    #[error(
        "elasticsearch keeps refusing geofold's credentials ({0}); check elasticsearch.username, password or api_key, and the privileges on the indices"
    )]
    Unauthorized(String),
}

/// Sends rounds. Cheap to clone; one for all partitions, or one each with the same permits.
#[derive(Clone)]
pub struct RequestSender {
    /// Where to.
    pub elastic: Arc<dyn Elastic>,
    /// How many requests the whole worker may have under way. Never closed.
    pub permits: Arc<Semaphore>,
    /// Where writes come together with those of other partitions; `None`: each round is sent alone.
    pub queue: Option<Arc<BulkQueue>>,
    /// What requests have learned about the server, shared by all senders.
    pub server: Arc<ServerState>,
    /// How often this read was repeated: see [`Elastic::mget_again`].
    pub look: usize,
    /// Bounds of one request.
    pub limits: RequestLimits,
    /// Delays between attempts.
    pub retry: RetryPolicy,
    /// The clock that leases are measured by.
    pub clock: Arc<dyn Clock>,
    /// Observer of requests and retries.
    pub observer: Arc<dyn RoundsObserver>,
}

impl RequestSender {
    /// The same with a queue for writes, which all clones of it share.
    pub fn with_queue(self) -> Self {
        Self { queue: Some(BulkQueue::new(self.clone())), ..self }
    }

    /// Carries out operations. One outcome for each, in order.
    pub async fn bulk(&self, ops: Vec<BulkOp>, lease: &RequestDeadline) -> Result<Vec<BulkOutcome>, Halt> {
        self.round(ops, lease).await
    }

    /// Reads documents. One outcome for each, in order.
    pub async fn mget(&self, gets: Vec<Get>, lease: &RequestDeadline) -> Result<Vec<GetOutcome>, Halt> {
        self.round(gets, lease).await
    }

    /// Makes writes to these indices visible to searches: one attempt. It takes no permit: it sends no documents.
    ///
    /// # Errors
    /// What came instead of an answer.
    pub async fn refresh(&self, indices: &[Index]) -> Result<(), CallError> {
        // A refresh needs its own privilege, so its result says nothing about the credentials.
        let _probe = match self.server.credentials.is_closed() {
            true => self.server.credentials.enter().await,
            false => None,
        };
        self.elastic.refresh(indices, self.limits.request_timeout).await
    }

    async fn round<I: Item>(&self, items: Vec<I>, lease: &RequestDeadline) -> Result<Vec<I::Outcome>, Halt> {
        let requests = cut(items, &self.limits).into_iter().map(|part| self.request(part, lease));
        let mut outcomes = try_join_all(requests).await?;
        Ok(match outcomes.pop() {
            Some(all) if outcomes.is_empty() => all,
            last => outcomes.into_iter().chain(last).flatten().collect(),
        })
    }

    /// One request and all its repetitions.
    async fn request<I: Item>(
        &self,
        part: Part<I>,
        lease: &RequestDeadline,
    ) -> Result<Vec<I::Outcome>, Halt> {
        let mut outcomes: Vec<_> = part.items.iter().map(|_| I::UNANSWERED).collect();
        if self.admit::<I>(part.items.len(), lease).await.is_none() {
            return Ok(outcomes);
        }
        let mut admitted = part.items.len();
        let is_queued = I::KIND == RequestKind::Bulk && self.queue.is_some();
        // The queue's requests hold permits of their own.
        let mut permit = None;
        if !is_queued {
            permit = self.permit(lease).await;
            if permit.is_none() {
                return Ok(outcomes);
            }
        }
        // Usually one part; a request that was too large leaves its halves here, the earlier on top.
        let mut parts = vec![part];
        while let Some(part) = parts.pop() {
            if let Some((left, right)) =
                self.part(part, &mut permit, &mut outcomes, &mut admitted, lease).await?
            {
                parts.extend([right, left]);
            }
        }
        Ok(outcomes)
    }

    /// Sends a part until it has its outcomes or the lease ends; or gives its halves, to be sent instead. `admitted`: operations
    /// that the ceiling has admitted and that were not sent yet.
    async fn part<'a, I: Item>(
        &'a self,
        mut part: Part<I>,
        permit: &mut Option<SemaphorePermit<'a>>,
        outcomes: &mut [I::Outcome],
        admitted: &mut usize,
        lease: &RequestDeadline,
    ) -> Result<Option<(Part<I>, Part<I>)>, Halt> {
        let mut delays = self.retry.delays();
        // While credentials are refused: that this is the request that tries, and how often it did.
        let mut probe: Option<SemaphorePermit<'_>> = None;
        let mut refused = 0;
        for attempt in 1_u32.. {
            if probe.is_none() {
                match self.enter(lease).await {
                    Some(permit) => probe = permit,
                    None => return Ok(None),
                }
            }
            self.count_again::<I>(part.items.len(), admitted);
            let Some(Attempt { answers, error }) = self.send(&part, permit, probe.is_some(), lease).await
            else {
                return Ok(None);
            };
            let indices = part.indices_to_watch(&self.server, probe.is_some());
            let left = part.settle(answers, outcomes, self);
            if let Some(indices) = indices.filter(|_| error.is_none() && left.unauthorized.is_none()) {
                self.server.authorized(&indices, self.clock.now(), probe.take().is_some());
                refused = 0;
            }
            let mut unauthorized = left.unauthorized.map(Some);
            let mut after = None;
            if let Some(error) = &error {
                match judge_call(error) {
                    CallVerdict::Unauthorized => unauthorized = unauthorized.or(Some(None)),
                    CallVerdict::Split if part.items.len() > 1 => {
                        self.observer.retry(error.label(), left.unanswered);
                        warn!(reason = error.label(), %error, items = part.items.len(), "request halved");
                        return Ok(Some(part.halve()));
                    }
                    CallVerdict::Split => {
                        let item = part.items.first();
                        if let Some(refused) = item.and_then(|item| item.refused(error, &self.server)) {
                            part.set(outcomes, refused);
                            return Ok(None);
                        }
                    }
                    CallVerdict::Again { after: retry_after } => after = retry_after,
                }
                self.observer.retry(error.label(), left.unanswered);
            }
            let (label, reason) = match (error, left.error) {
                (Some(error), _) => (error.label(), error.to_string()),
                (None, Some(failure)) => (failure.label(), failure.to_string()),
                (None, None) => return Ok(None),
            };
            let delay = match unauthorized {
                None => delays.next(after),
                Some(what) => {
                    self.server.unauthorized(what, self.clock.now(), &reason)?;
                    probe = probe.or_else(|| self.server.credentials.try_probe());
                    refused += 1;
                    self.server.credentials.pause(refused - 1)
                }
            };
            warn!(
                reason = label,
                error = reason,
                items = part.items.len(),
                attempt,
                ?delay,
                "request to be repeated"
            );
            self.pause(delay, lease).await;
        }
        Ok(None)
    }

    /// Waits until the ceiling of operations admits a write; `None` if the lease ends first.
    async fn admit<I: Item>(&self, operations: usize, lease: &RequestDeadline) -> Option<()> {
        let ceiling = &self.server.ceiling;
        if I::KIND != RequestKind::Bulk || !ceiling.is_set() {
            return Some(());
        }
        let began = self.clock.now();
        let left = lease.time_left(began)?;
        let admitted = tokio::select! {
            biased;
            () = lease.cancel.cancelled() => None,
            () = ceiling.admit(operations, &*self.clock) => Some(()),
            () = tokio::time::sleep(left) => None,
        };
        self.observer.throttled(self.clock.now().since(began));
        admitted
    }

    /// Counts operations beyond those admitted, which are sent again.
    fn count_again<I: Item>(&self, operations: usize, admitted: &mut usize) {
        let again = operations.saturating_sub(*admitted);
        *admitted = admitted.saturating_sub(operations);
        if again > 0 && I::KIND == RequestKind::Bulk && self.server.ceiling.is_set() {
            self.server.ceiling.count_again(again, self.clock.now());
        }
    }

    /// Waits until a request may be sent; `None` if the lease ends first. While credentials are refused, gives the permit of the
    /// one request that tries.
    async fn enter(&self, lease: &RequestDeadline) -> Option<Option<SemaphorePermit<'_>>> {
        if !self.server.credentials.is_closed() {
            return Some(None);
        }
        let left = lease.time_left(self.clock.now())?;
        tokio::select! {
            biased;
            permit = self.server.credentials.enter() => Some(permit),
            () = lease.cancel.cancelled() => None,
            () = tokio::time::sleep(left) => None,
        }
    }

    /// One attempt; `None` if the lease has ended, or was cancelled meanwhile.
    async fn send<'a, I: Item>(
        &'a self,
        part: &Part<I>,
        permit: &mut Option<SemaphorePermit<'a>>,
        is_probe: bool,
        lease: &RequestDeadline,
    ) -> Option<Attempt<I::Answer>> {
        let started = self.clock.now();
        let left = lease.time_left(started)?;
        // A probe goes alone: queued writes may hold all permits and wait for it. And in a request with others a write whose lease
        // ends soon would leave them as little time.
        let is_alone = permit.is_some() || is_probe || left < self.limits.request_timeout;
        let queued = if is_alone { None } else { I::queued(self, &part.items, lease.deadline) };
        let sending = match queued {
            Some(queued) => queued,
            None => {
                if permit.is_none() && !is_probe {
                    *permit = Some(self.permit(lease).await?);
                }
                let left = lease.time_left(self.clock.now())?;
                let send = |timeout| I::send(self, &part.items, timeout);
                let answers = self.request_alone::<I>(part.items.len(), part.bytes, left, send);
                answers.map(|answers| Attempt::of(part.items.len(), answers)).boxed()
            }
        };
        let attempt = tokio::select! {
            // An answer that is there is used, even if the lease ended with it.
            biased;
            attempt = sending => attempt,
            () = lease.cancel.cancelled() => {
                self.server.gave_up(self.clock.now());
                return None;
            }
        };
        let took = self.clock.now().since(started);
        self.observer.answered(I::KIND, part.items.len(), part.bytes, took, attempt.error.is_none());
        Some(attempt)
    }

    /// One request with so many operations within the time that is left; `send` gets its timeout. Tells the observer and the
    /// server's state of its end.
    async fn request_alone<'a, I: Item>(
        &self,
        operations: usize,
        bytes: usize,
        left: Duration,
        send: impl FnOnce(Duration) -> BoxFuture<'a, Answers<I::Answer>>,
    ) -> Answers<I::Answer> {
        let (started, timeout) = (self.clock.now(), left.min(self.limits.request_timeout));
        let in_flight = self.server.concurrency.begin();
        let answers = send(timeout).await.and_then(|answers| {
            let got = answers.len();
            if got == operations {
                return Ok(answers);
            }
            Err(CallError::Undecodable(format!("{got} items for {operations} that were sent")))
        });
        let now = self.clock.now();
        // A proxy may answer 5xx while the server still executes the request.
        if matches!(
            answers,
            Err(CallError::Connection(_) | CallError::Timeout(_) | CallError::Status { status: 500.., .. })
        ) {
            self.server.gave_up(now);
        }
        let took = now.since(started);
        self.observer.request(I::KIND, operations, bytes, took, answers.is_ok());
        if self.server.concurrency.adapts() {
            let is_rejected = match &answers {
                Ok(answers) => answers.iter().any(I::is_overload),
                // Near the end of the lease there is too little time for an answer.
                Err(error) => is_overload(error, timeout == self.limits.request_timeout),
            };
            let is_large = I::KIND == RequestKind::Bulk && self.limits.is_large(operations, bytes);
            // Other failures say nothing of how much the server has to do.
            if is_rejected || answers.is_ok() {
                let ended = EndedRequest {
                    took,
                    operations: is_large.then_some(operations),
                    is_rejected,
                    in_flight: in_flight.at_start,
                };
                self.server.concurrency.ended(&ended, now);
            }
        }
        answers
    }

    /// A permit to send; `None` if the lease ends first.
    async fn permit(&self, lease: &RequestDeadline) -> Option<SemaphorePermit<'_>> {
        let left = lease.time_left(self.clock.now())?;
        let _waiting = WaitingRequest::begin(&*self.observer);
        tokio::select! {
            biased;
            () = lease.cancel.cancelled() => None,
            permit = self.permits.acquire() => permit.ok(),
            () = tokio::time::sleep(left) => None,
        }
    }

    /// Waits for the next attempt or the end of the lease. Keeps the permit even if the delay outlasts the lease: otherwise the
    /// same items would return with a fresh lease, before the server's `Retry-After`.
    async fn pause(&self, delay: Duration, lease: &RequestDeadline) {
        let Some(left) = lease.time_left(self.clock.now()) else {
            return;
        };
        let _waiting = WaitingRequest::begin(&*self.observer);
        tokio::select! {
            biased;
            () = lease.cancel.cancelled() => {}
            () = tokio::time::sleep(delay.min(left)) => {}
        }
    }
}

/// Items that are sent together, and where their outcomes go.
struct Part<I> {
    /// Shared with the queue while they are there.
    items: Arc<Vec<I>>,
    slots: Vec<usize>,
    /// An upper bound of their size.
    bytes: usize,
}

/// Why items have to be sent again.
struct Left {
    /// One of the reasons, if any are left; that of an item that got 401 or 403 first.
    error: Option<ItemError>,
    /// The index of such an item.
    unauthorized: Option<Index>,
    /// Items without an answer.
    unanswered: usize,
}

impl<I: Item> Part<I> {
    fn new(items: Vec<I>, slots: Vec<usize>) -> Self {
        let bytes = items.iter().map(I::bytes).sum();
        Self { items: Arc::new(items), slots, bytes }
    }

    /// All items of a request.
    fn all(items: Vec<I>) -> Self {
        let slots = (0..items.len()).collect();
        Self::new(items, slots)
    }

    /// Records final outcomes and keeps items to retry.
    fn settle(
        &mut self,
        answers: Vec<Option<I::Answer>>,
        outcomes: &mut [I::Outcome],
        rounds: &RequestSender,
    ) -> Left {
        let mut left = Left { error: None, unauthorized: None, unanswered: 0 };
        let not_the_documents = I::not_the_documents(&self.items, &answers, &rounds.server);
        let (mut again, mut slots) = (Vec::new(), Vec::new());
        let each = self.items.iter().zip(&self.slots).zip(answers).enumerate();
        for (place, ((item, &slot), answer)) in each {
            let verdict = answer.map(|answer| item.judge(answer));
            left.unanswered += usize::from(verdict.is_none());
            let error = match verdict {
                None => None,
                Some(ItemVerdict::Settled(outcome)) if !not_the_documents.contains(&place) => {
                    outcomes[slot] = outcome;
                    continue;
                }
                Some(ItemVerdict::Settled(outcome)) => I::error_of(outcome),
                Some(ItemVerdict::Unauthorized(error)) => {
                    if left.unauthorized.is_none() {
                        left.unauthorized = Some(item.index().clone());
                        left.error = None;
                    }
                    Some(error)
                }
                Some(ItemVerdict::Again(error)) => Some(error),
            };
            if let Some(error) = error {
                rounds.observer.retry(error.label(), 1);
                left.error.get_or_insert(error);
            }
            again.push(item.clone());
            slots.push(slot);
        }
        *self = Self::new(again, slots);
        left
    }

    /// The indices of the items, if it matters that nothing of them is refused.
    fn indices_to_watch(&self, server: &ServerState, is_probe: bool) -> Option<BTreeSet<Index>> {
        let matters = is_probe || server.credentials.is_watching();
        matters.then(|| self.items.iter().map(|item| item.index().clone()).collect())
    }

    fn set(&self, outcomes: &mut [I::Outcome], outcome: I::Outcome) {
        if let [slot] = self.slots[..] {
            outcomes[slot] = outcome;
        }
    }

    fn halve(self) -> (Self, Self) {
        let Self { items, mut slots, .. } = self;
        let (left, right) = items.split_at(items.len() / 2);
        let right = Self::new(right.to_vec(), slots.split_off(left.len()));
        (Self::new(left.to_vec(), slots), right)
    }
}

/// Splits items into requests, in order; none is empty.
fn cut<I: Item>(items: Vec<I>, limits: &RequestLimits) -> Vec<Part<I>> {
    if items.is_empty() {
        return Vec::new();
    }
    let part = Part::all(items);
    if part.items.len() <= limits.max_operations && part.bytes <= limits.max_bytes {
        return vec![part];
    }
    let items = Arc::unwrap_or_clone(part.items);
    let mut requests: Vec<Vec<I>> = Vec::new();
    let mut bytes = 0_usize;
    for item in items {
        let size = item.bytes();
        match requests.last_mut() {
            Some(last) if last.len() < limits.max_operations && bytes + size <= limits.max_bytes => {
                bytes += size;
                last.push(item);
            }
            _ => {
                bytes = size;
                requests.push(vec![item]);
            }
        }
    }
    requests.into_iter().map(Part::all).collect()
}

#[cfg(test)]
mod tests;
