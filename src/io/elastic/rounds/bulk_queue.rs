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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ahash::RandomState;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::oneshot;

use super::attempt::{Answers, Attempt};
use super::observer::WaitingRequest;
use super::{RequestLimits, RequestSender};
use crate::base::clock::Instant;
use crate::base::retry::Delays;
use crate::io::elastic::answer::{CallVerdict, judge_call};
use crate::io::elastic::{BulkAnswer, BulkOp, CallError, Index, encode};

/// Writes queued while a request takes longer than this get another driver, so that one slow shard does not delay all.
const SLOW_REQUEST: Duration = Duration::from_secs(1);

/// See the top of this file. One for all partitions of a worker.
pub struct BulkQueue {
    /// Sends the requests. It has no queue.
    sender: RequestSender,
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
    /// All operations of the batch.
    batch: Arc<Vec<BulkOp>>,
    /// Where in it these are.
    slots: Vec<usize>,
    bytes: usize,
    deadline: Instant,
    answer: oneshot::Sender<SlotAnswers>,
}

/// Where in the batch operations are, with their answers.
type SlotAnswers = (Vec<usize>, Answers<BulkAnswer>);

impl QueuedWrites {
    fn ops(&self) -> impl Iterator<Item = &BulkOp> {
        self.slots.iter().map(|&slot| &self.batch[slot])
    }

    /// Gives the batch its answers. If it waits no longer, it needs none.
    fn tell(self, answers: Answers<BulkAnswer>) {
        let _ = self.answer.send((self.slots, answers));
    }
}

impl BulkQueue {
    /// Each request holds one of the sender's permits, also while it waits because the server pushed back.
    pub(super) fn new(sender: RequestSender) -> Arc<Self> {
        Arc::new(Self { sender: RequestSender { queue: None, ..sender }, queue: Mutex::default() })
    }

    /// Carries out operations, those of each index together with others'. Nothing is sent at or after the deadline; what is not
    /// sent before it is not answered.
    pub(super) async fn bulk(
        self: &Arc<Self>,
        batch: &Arc<Vec<BulkOp>>,
        limits: &RequestLimits,
        deadline: Instant,
    ) -> Attempt<BulkAnswer> {
        let mut attempt = Attempt::unanswered(batch.len());
        let mut waiting: FuturesUnordered<_> = self.enqueue(batch, limits, deadline).into_iter().collect();
        let RequestSender { clock, server, .. } = &self.sender;
        let timeout = deadline.since(clock.now());
        let (ended, slow) = (tokio::time::sleep(timeout), tokio::time::sleep(SLOW_REQUEST));
        tokio::pin!(ended, slow);
        let mut is_within_limit = true;
        loop {
            tokio::select! {
                biased;
                next = waiting.next() => match next {
                    Some(Ok((slots, answers))) => attempt.add(&slots, answers),
                    // Its driver is gone, perhaps in the middle of the request.
                    Some(Err(_)) => {
                        server.gave_up(clock.now());
                        attempt.fail(CallError::Connection("the request was cancelled".to_owned()));
                    }
                    None => return attempt,
                },
                () = &mut ended => {
                    server.gave_up(clock.now());
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

    /// Queues all of them at once, so that no request takes a part of what could go together. Gives where the answers for each
    /// index will come.
    fn enqueue(
        self: &Arc<Self>,
        batch: &Arc<Vec<BulkOp>>,
        limits: &RequestLimits,
        deadline: Instant,
    ) -> Vec<oneshot::Receiver<SlotAnswers>> {
        let mut all: Vec<(&Index, Vec<usize>, usize)> = Vec::new();
        let mut places: HashMap<&Index, usize, RandomState> = HashMap::default();
        for (slot, op) in batch.iter().enumerate() {
            let (index, _) = op.address();
            let place = *places.entry(index).or_insert(all.len());
            if place == all.len() {
                all.push((index, Vec::new(), 0));
            }
            let (_, slots, bytes) = &mut all[place];
            slots.push(slot);
            *bytes += encode::bulk_op_bytes(op);
        }
        let mut queued = Vec::with_capacity(all.len());
        let mut queue = self.queue();
        for (index, slots, bytes) in all {
            let (answer, answers) = oneshot::channel();
            queue.push(index, QueuedWrites { batch: batch.clone(), slots, bytes, deadline, answer });
            queued.push(answers);
        }
        drop(queue);
        self.start_drivers(limits);
        queued
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
        let sender = RequestSender { limits: *limits, ..self.sender.clone() };
        let delays = sender.retry.delays();
        let driver = Driver { queue: self.clone(), sender, delays, state: Some(DriverState::WithoutPermit) };
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
        self.operations += writes.slots.len();
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
                let (more, larger) = (operations + next.slots.len(), bytes + next.bytes);
                let fits = more <= limits.max_operations && larger <= limits.max_bytes;
                if is_sent && !fits && !members.is_empty() {
                    queued.push_front(next);
                    return members;
                }
                self.operations -= next.slots.len();
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
    /// The queue's, with the limits of the writes that it was started for.
    sender: RequestSender,
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
        let (permits, observer) = (self.sender.permits.clone(), self.sender.observer.clone());
        loop {
            let waiting = WaitingRequest::begin(&*observer);
            // The semaphore is never closed. Writes queued while we wait join this request.
            let Ok(permit) = permits.acquire().await else { return };
            drop(waiting);
            let Some(members) = self.next_members() else { return };
            self.queue.start_drivers(&self.sender.limits);
            if let Some(pause) = self.send(members).await {
                let _waiting = WaitingRequest::begin(&*observer);
                tokio::time::sleep(pause).await;
            }
            drop(permit);
            let shared = self.queue.clone();
            self.becomes(Some(DriverState::WithoutPermit), &mut shared.queue());
        }
    }

    /// The writes of the next request; `None` if the queue is empty, which ends this driver.
    fn next_members(&mut self) -> Option<Vec<QueuedWrites>> {
        let (shared, now) = (self.queue.clone(), self.sender.clock.now());
        let mut queue = shared.queue();
        let members = queue.take(&self.sender.limits, now);
        let operations: usize = members.iter().map(|member| member.slots.len()).sum();
        let is_full = !queue.order.is_empty() || operations >= self.sender.limits.max_operations;
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
        while let Some(mut members) = requests.pop() {
            let answers = self.request(&members).await;
            pause = self.pause(&answers).or(pause);
            match answers {
                Ok(answers) => {
                    let mut answers = answers.into_iter();
                    for member in members {
                        let own = answers.by_ref().take(member.slots.len()).collect();
                        member.tell(Ok(own));
                    }
                }
                Err(error) if members.len() > 1 && matches!(judge_call(&error), CallVerdict::Split) => {
                    let right = members.split_off(members.len() / 2);
                    requests.extend([right, members]);
                }
                Err(error) => members.into_iter().for_each(|member| member.tell(Err(error.clone()))),
            }
        }
        pause
    }

    /// One request with the operations of these, unless a deadline has passed.
    async fn request(&self, members: &[QueuedWrites]) -> Answers<BulkAnswer> {
        let now = self.sender.clock.now();
        let left = members.iter().map(|member| member.deadline.since(now)).min().unwrap_or_default();
        if left.is_zero() {
            return Err(CallError::Timeout(left));
        }
        let bytes = members.iter().map(|member| member.bytes).sum();
        let ops: Vec<&BulkOp> = members.iter().flat_map(QueuedWrites::ops).collect();
        let send = |timeout| self.sender.elastic.bulk_refs(&ops, timeout);
        self.sender.request_alone::<BulkOp>(ops.len(), bytes, left, send).await
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
                self.delays = self.sender.retry.delays();
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
            let batch = Arc::new(vec![BulkOp::Delete { index: index.clone(), id, version }]);
            let slots = vec![0];
            queue.push(&index, QueuedWrites { batch, slots, bytes: 100, deadline: at(deadline), answer });
            receivers.push(answers);
        }
        drop(receivers.remove(1));
        let request = queue.take(&limits, at(5));
        let ids: Vec<&str> = request.iter().flat_map(QueuedWrites::ops).map(|op| op.id().as_str()).collect();
        assert_eq!(ids, ["a", "b"]);
        assert_eq!((queue.operations, queue.bytes, queue.order.len(), queue.indices.len()), (0, 0, 0, 0));
    }
}
