//! Queues the writes of all partitions by index, and sends each index's together.
//!
//! Elasticsearch syncs the log of each shard that a request writes to before it answers, so a write costs the less, the more
//! writes to its shard share its request. 2,000 documents of each of eight partitions, spread over 55 geoshards, need 440 syncs
//! if each partition sends its own, and 55 if each geoshard's go together (docs/performance.md, "Writes that share a shard").
//!
//! A request takes the index whose writes have waited longest, all of them, then the next, until it is full. A full request is
//! sent as soon as it gets a permit; of those that are not full, one at a time, and writes that arrive meanwhile share the next
//! one. So without a request in flight nothing waits, and the slower Elasticsearch is, the more writes share a request.
//!
//! *Invariant:* a write whose deadline has passed, or whose receiver is dropped, is not sent. Outcomes are independent: a
//! request that is refused as a whole is sent again in halves, down to the writes of one batch to one index, which halves them
//! itself.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ahash::RandomState;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::{Semaphore, oneshot};

use super::attempt::{Answers, Attempt, SentRequest};
use super::observer::WaitingRequest;
use super::{RequestLimits, RoundsObserver, ServerState};
use crate::base::clock::{Clock, Instant};
use crate::base::retry::{Delays, RetryPolicy};
use crate::io::elastic::answer::{CallVerdict, judge_call};
use crate::io::elastic::{BulkAnswer, BulkOp, CallError, Elastic, Index, encode};

/// Writes queued while a request takes longer than this get another driver, so that one slow shard does not delay all.
const SLOW_REQUEST: Duration = Duration::from_secs(1);

/// See the top of this file. One for all partitions of a worker.
pub struct BulkQueue {
    elastic: Arc<dyn Elastic>,
    permits: Arc<Semaphore>,
    server: Arc<ServerState>,
    retry: RetryPolicy,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn RoundsObserver>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// Those with writes, each with at least one.
    indices: HashMap<Index, VecDeque<QueuedWrites>, RandomState>,
    /// The same ones; the one that has waited longest first.
    order: VecDeque<Index>,
    operations: usize,
    bytes: usize,
    /// Drivers without a permit: each of them will look at the queue.
    without_permit: usize,
    /// Drivers with a request that is full.
    full: usize,
    /// Drivers with a request that is not. While writes are queued, there is one of these or one without a permit.
    not_full: usize,
}

/// What a batch writes to one index.
struct QueuedWrites {
    ops: Vec<BulkOp>,
    bytes: usize,
    deadline: Instant,
    answer: oneshot::Sender<Answers<BulkAnswer>>,
}

impl BulkQueue {
    /// Each request that is sent holds one of the permits, also while it waits because the server pushed back.
    pub fn new(
        elastic: Arc<dyn Elastic>,
        permits: Arc<Semaphore>,
        server: Arc<ServerState>,
        retry: RetryPolicy,
        clock: Arc<dyn Clock>,
        observer: Arc<dyn RoundsObserver>,
    ) -> Arc<Self> {
        Arc::new(Self { elastic, permits, server, retry, clock, observer, queue: Mutex::default() })
    }

    /// Carries out operations like [`Elastic::bulk`], those of each index together with others'. Nothing is sent at or after the
    /// deadline; what is not sent before it is not answered.
    pub(super) async fn bulk(
        self: &Arc<Self>,
        ops: &[BulkOp],
        limits: &RequestLimits,
        deadline: Instant,
    ) -> Attempt<BulkAnswer> {
        let mut attempt = Attempt::unanswered(ops.len());
        let mut waiting = self.enqueue(ops, limits, deadline);
        let timeout = deadline.since(self.clock.now());
        let (ended, slow) = (tokio::time::sleep(timeout), tokio::time::sleep(SLOW_REQUEST));
        tokio::pin!(ended, slow);
        let mut is_within_limit = true;
        loop {
            tokio::select! {
                biased;
                next = waiting.next() => match next {
                    Some((slots, answers)) => attempt.add(&slots, answers),
                    None => return attempt,
                },
                () = &mut ended => {
                    attempt.fail(CallError::Timeout(timeout));
                    return attempt;
                }
                () = &mut slow, if is_within_limit => {
                    is_within_limit = false;
                    self.start_another_driver(limits);
                }
            }
        }
    }

    /// Queues all of them at once, so that no request takes a part of what could go together. Gives the answers for each index,
    /// with the places of their operations.
    fn enqueue(
        self: &Arc<Self>,
        ops: &[BulkOp],
        limits: &RequestLimits,
        deadline: Instant,
    ) -> FuturesUnordered<impl Future<Output = (Vec<usize>, Answers<BulkAnswer>)> + use<>> {
        let mut all: Vec<(&Index, Vec<usize>, Vec<BulkOp>, usize)> = Vec::new();
        let mut places: HashMap<&Index, usize, RandomState> = HashMap::default();
        for (slot, op) in ops.iter().enumerate() {
            let (index, _) = op.address();
            let place = *places.entry(index).or_insert(all.len());
            if place == all.len() {
                all.push((index, Vec::new(), Vec::new(), 0));
            }
            let (_, slots, own, bytes) = &mut all[place];
            slots.push(slot);
            own.push(op.clone());
            *bytes += encode::bulk_op_bytes(op);
        }
        let waiting = FuturesUnordered::new();
        let mut queue = self.queue();
        for (index, slots, ops, bytes) in all {
            let (answer, answers) = oneshot::channel();
            queue.push(index, QueuedWrites { ops, bytes, deadline, answer });
            waiting.push(async move {
                let gone = |_| Err(CallError::Connection("the request was cancelled".to_owned()));
                (slots, answers.await.unwrap_or_else(gone))
            });
        }
        drop(queue);
        self.start_drivers(limits);
        waiting
    }

    /// Starts as many drivers as are lacking.
    fn start_drivers(self: &Arc<Self>, limits: &RequestLimits) {
        let lacking = self.queue().count_drivers_lacking(limits);
        (0..lacking).for_each(|_| self.spawn_driver(limits));
    }

    /// Starts another driver if writes are queued and none waits for a permit.
    fn start_another_driver(self: &Arc<Self>, limits: &RequestLimits) {
        let mut queue = self.queue();
        let is_lacking = !queue.order.is_empty() && queue.without_permit == 0;
        queue.without_permit += usize::from(is_lacking);
        drop(queue);
        if is_lacking {
            self.spawn_driver(limits);
        }
    }

    /// Spawns a driver that is counted already.
    fn spawn_driver(self: &Arc<Self>, limits: &RequestLimits) {
        let (queue, limits, delays) = (self.clone(), *limits, self.retry.delays());
        let driver = Driver { queue, limits, delays, state: Some(DriverState::WithoutPermit) };
        #[expect(clippy::disallowed_methods, reason = "a driver that panics ends its members' waits (Drop)")]
        tokio::spawn(driver.run());
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // No code that holds the lock can leave it half changed.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn push(&mut self, index: &Index, writes: QueuedWrites) {
        self.operations += writes.ops.len();
        self.bytes += writes.bytes;
        if let Some(queued) = self.indices.get_mut(index) {
            queued.push_back(writes);
            return;
        }
        self.indices.insert(index.clone(), VecDeque::from([writes]));
        self.order.push_back(index.clone());
    }

    /// Counts in as many drivers as are to be started, and gives their number: each full request has one that will take it, and
    /// what is queued has one unless a request that is not full is under way.
    fn count_drivers_lacking(&mut self, limits: &RequestLimits) -> usize {
        let full = (self.operations / limits.max_operations.max(1)).max(self.bytes / limits.max_bytes.max(1));
        let least = usize::from(!self.order.is_empty() && self.not_full == 0);
        let lacking = full.max(least).saturating_sub(self.without_permit);
        self.without_permit += lacking;
        lacking
    }

    /// How many drivers are in this state.
    fn drivers(&mut self, state: DriverState) -> &mut usize {
        match state {
            DriverState::WithoutPermit => &mut self.without_permit,
            DriverState::Full => &mut self.full,
            DriverState::NotFull => &mut self.not_full,
        }
    }

    /// The next request: the indices that have waited longest, as many of their writes as fit. Empty if nothing is queued.
    fn take(&mut self, limits: &RequestLimits, now: Instant) -> Vec<QueuedWrites> {
        let mut members: Vec<QueuedWrites> = Vec::new();
        let (mut operations, mut bytes) = (0, 0);
        while let Some(queued) = self.order.front().and_then(|index| self.indices.get_mut(index)) {
            while let Some(next) = queued.pop_front() {
                let is_sent = !next.answer.is_closed() && next.deadline > now;
                let (more, larger) = (operations + next.ops.len(), bytes + next.bytes);
                let fits = more <= limits.max_operations && larger <= limits.max_bytes;
                if is_sent && !fits && !members.is_empty() {
                    queued.push_front(next);
                    return members;
                }
                self.operations -= next.ops.len();
                self.bytes -= next.bytes;
                if is_sent {
                    (operations, bytes) = (more, larger);
                    members.push(next);
                }
            }
            if let Some(index) = self.order.pop_front() {
                self.indices.remove(&index);
            }
        }
        members
    }
}

/// Sends queued writes until the queue is empty.
struct Driver {
    queue: Arc<BulkQueue>,
    limits: RequestLimits,
    /// Pauses after requests that failed.
    delays: Delays,
    /// `None`: has ended, in order.
    state: Option<DriverState>,
}

/// What a driver is counted as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DriverState {
    WithoutPermit,
    /// Has a request for which something did not fit, or that no more fits into.
    Full,
    NotFull,
}

impl Driver {
    async fn run(mut self) {
        let queue = self.queue.clone();
        loop {
            let waiting = WaitingRequest::begin(&*queue.observer);
            // The semaphore is never closed. Writes queued while we wait join this request.
            let Ok(permit) = queue.permits.acquire().await else { return };
            drop(waiting);
            let Some(members) = self.next_members() else { return };
            queue.start_drivers(&self.limits);
            if let Some(pause) = self.send(members).await {
                let _waiting = WaitingRequest::begin(&*queue.observer);
                tokio::time::sleep(pause).await;
            }
            drop(permit);
            self.becomes(Some(DriverState::WithoutPermit), &mut queue.queue());
        }
    }

    /// The writes of the next request; `None` if the queue is empty, which ends this driver.
    fn next_members(&mut self) -> Option<Vec<QueuedWrites>> {
        let (shared, now) = (self.queue.clone(), self.queue.clock.now());
        let mut queue = shared.queue();
        let members = queue.take(&self.limits, now);
        let operations: usize = members.iter().map(|member| member.ops.len()).sum();
        let is_full = !queue.order.is_empty() || operations >= self.limits.max_operations;
        let state = if is_full { DriverState::Full } else { DriverState::NotFull };
        self.becomes((!members.is_empty()).then_some(state), &mut queue);
        self.state.map(|_| members)
    }

    /// Under the lock under which the queue was looked at: what is queued later must not count on a driver that has ended.
    fn becomes(&mut self, state: Option<DriverState>, queue: &mut Queue) {
        if let Some(before) = self.state {
            *queue.drivers(before) -= 1;
        }
        if let Some(state) = state {
            *queue.drivers(state) += 1;
        }
        self.state = state;
    }

    /// Sends them, in halves where the server refuses them together. Gives for how long nothing more is to be sent.
    async fn send(&mut self, members: Vec<QueuedWrites>) -> Option<Duration> {
        let mut pause = None;
        let mut requests = vec![members];
        while let Some(members) = requests.pop() {
            let (ops, parts) = together(members);
            let Some(deadline) = parts.iter().map(|part| part.deadline).min() else { continue };
            let answers = self.bulk(&ops, parts.iter().map(|part| part.bytes).sum(), deadline).await;
            match &answers {
                Err(error) if parts.len() > 1 && matches!(judge_call(error), CallVerdict::Split) => {
                    let (left, right) = halves(ops, parts);
                    requests.extend([right, left]);
                }
                _ => {
                    pause = self.pause(&answers).or(pause);
                    tell(parts, answers);
                }
            }
        }
        pause
    }

    /// One request, unless the deadline has passed.
    async fn bulk(&self, ops: &[BulkOp], bytes: usize, deadline: Instant) -> Answers<BulkAnswer> {
        let BulkQueue { elastic, server, clock, observer, .. } = &*self.queue;
        let left = deadline.since(clock.now());
        if left.is_zero() {
            return Err(CallError::Timeout(left));
        }
        let timeout = left.min(self.limits.request_timeout);
        let request = SentRequest::<BulkOp>::new(ops.len(), bytes, timeout, &self.limits);
        request.answers(elastic.bulk(ops, timeout), server, &**clock, &**observer).await
    }

    /// How long to wait after these answers, if the server pushed back.
    fn pause(&mut self, answers: &Answers<BulkAnswer>) -> Option<Duration> {
        let after = match answers {
            Ok(answers) if answers.iter().any(|answer| answer.status == 429) => None,
            Err(error) => match judge_call(error) {
                CallVerdict::Again { after } => after,
                CallVerdict::Split | CallVerdict::Unauthorized => return None,
            },
            Ok(_) => {
                self.delays = self.queue.retry.delays();
                return None;
            }
        };
        Some(self.delays.next(after))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.state.is_none() {
            return;
        }
        // Dropped with its runtime, or panicked: the last one fails the queued writes, so that none waits for ever.
        let shared = self.queue.clone();
        let mut queue = shared.queue();
        self.becomes(None, &mut queue);
        if queue.without_permit + queue.full + queue.not_full == 0 {
            *queue = Queue::default();
        }
    }
}

/// A member of a request whose operations are in the request.
struct Member {
    operations: usize,
    bytes: usize,
    deadline: Instant,
    answer: oneshot::Sender<Answers<BulkAnswer>>,
}

/// The operations of all, and whose they are.
fn together(members: Vec<QueuedWrites>) -> (Vec<BulkOp>, Vec<Member>) {
    let mut ops = Vec::with_capacity(members.iter().map(|member| member.ops.len()).sum());
    let part = |QueuedWrites { ops: own, bytes, deadline, answer }| {
        let operations = own.len();
        ops.extend(own);
        Member { operations, bytes, deadline, answer }
    };
    let parts = members.into_iter().map(part).collect();
    (ops, parts)
}

/// The first half of the members and the second, each with its operations.
fn halves(ops: Vec<BulkOp>, mut parts: Vec<Member>) -> (Vec<QueuedWrites>, Vec<QueuedWrites>) {
    let right = parts.split_off(parts.len() / 2);
    let mut ops = ops.into_iter();
    let mut each = |parts: Vec<Member>| {
        let own = |Member { operations, bytes, deadline, answer }| QueuedWrites {
            ops: ops.by_ref().take(operations).collect(),
            bytes,
            deadline,
            answer,
        };
        parts.into_iter().map(own).collect()
    };
    (each(parts), each(right))
}

/// Gives each member its answers. One that waits no longer needs none.
fn tell(parts: Vec<Member>, answers: Answers<BulkAnswer>) {
    match answers {
        Ok(answers) => {
            let mut answers = answers.into_iter();
            for Member { operations, answer, .. } in parts {
                let _ = answer.send(Ok(answers.by_ref().take(operations).collect()));
            }
        }
        Err(error) => {
            for Member { answer, .. } in parts {
                let _ = answer.send(Err(error.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::{DocId, ShardId};
    use crate::base::position::Position;

    #[test]
    fn what_is_late_or_waited_for_no_longer_is_left_out_of_a_request() {
        let at = |second| Instant::from_start(Duration::from_secs(second));
        let limits = RequestLimits { max_operations: 9, max_bytes: 900, request_timeout: Duration::ZERO };
        let mut queue = Queue::default();
        let mut receivers = Vec::new();
        for (id, shard, deadline) in [("late", "s1", 5), ("dropped", "s1", 9), ("a", "s1", 9), ("b", "s2", 6)]
        {
            let index = Index::Geoshard(ShardId::new(shard).unwrap());
            let (id, version) = (DocId::from_key(Some(id.as_bytes())).unwrap(), Position::from_version(1));
            let (answer, answers) = oneshot::channel();
            let ops = vec![BulkOp::Delete { index: index.clone(), id, version }];
            queue.push(&index, QueuedWrites { ops, bytes: 100, deadline: at(deadline), answer });
            receivers.push(answers);
        }
        drop(receivers.remove(1));
        let request = queue.take(&limits, at(5));
        let ids: Vec<&str> =
            request.iter().flat_map(|member| &member.ops).map(|op| op.id().as_str()).collect();
        assert_eq!(ids, ["a", "b"]);
        assert_eq!((queue.operations, queue.bytes, queue.order.len(), queue.indices.len()), (0, 0, 0, 0));
    }
}
