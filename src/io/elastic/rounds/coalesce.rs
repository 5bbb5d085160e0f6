//! Coalesces small writes from several partitions into one `_bulk`.
//!
//! Elasticsearch syncs the log of each shard that a request writes to before it answers. Eight partitions with some dozen
//! documents each, spread over 55 geoshards, cost eight times 55 syncs; one request costs 55. A disk busy with syncs also slows
//! down refreshes (docs/performance.md, "Latency"). So one small request is in flight at a time, and writes that arrive
//! meanwhile share the next one: without a request in flight nothing waits, and the slower Elasticsearch is, the more writes
//! share a request.
//!
//! *Invariant:* a write whose deadline has passed, or whose receiver is dropped, is not sent. Outcomes are independent: the
//! writes of a request that is refused as a whole are sent again, one by one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};

use super::RequestLimits;
use crate::base::clock::{Clock, Instant};
use crate::io::elastic::answer::{CallVerdict, judge_call};
use crate::io::elastic::{BulkAnswer, BulkOp, CallError, Elastic, encode};

/// Writes queued while a request takes longer than this get another driver, so that one slow shard does not delay all.
const SLOW_REQUEST: Duration = Duration::from_secs(1);

type Answers = Result<Vec<BulkAnswer>, CallError>;

/// See the top of this file. One for all partitions of a worker.
pub struct BulkCoalescer {
    elastic: Arc<dyn Elastic>,
    permits: Arc<Semaphore>,
    clock: Arc<dyn Clock>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<PendingBulk>,
    /// Running drivers. Never 0 while writes are queued.
    drivers: usize,
}

/// The operations of one batch.
struct PendingBulk {
    ops: Vec<BulkOp>,
    bytes: usize,
    deadline: Instant,
    answer: oneshot::Sender<Answers>,
}

impl BulkCoalescer {
    /// Each request that is sent holds one of the permits.
    pub fn new(elastic: Arc<dyn Elastic>, permits: Arc<Semaphore>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { elastic, permits, clock, queue: Mutex::default() })
    }

    /// Whether these operations are few enough to be coalesced.
    pub(super) fn suits(ops: &[BulkOp], limits: &RequestLimits) -> bool {
        !limits.is_large(ops.len(), || ops.iter().map(encode::bulk_op_bytes).sum())
    }

    /// Carries out operations like [`Elastic::bulk`], together with those of others.
    pub(super) async fn bulk(
        self: &Arc<Self>,
        ops: &[BulkOp],
        limits: &RequestLimits,
        timeout: Duration,
    ) -> Answers {
        let (answer, mut answered) = oneshot::channel();
        let bytes = ops.iter().map(encode::bulk_op_bytes).sum();
        let deadline = self.clock.now() + timeout;
        let is_first = {
            let mut queue = self.queue();
            queue.waiting.push_back(PendingBulk { ops: ops.to_vec(), bytes, deadline, answer });
            let is_first = queue.drivers == 0;
            queue.drivers += usize::from(is_first);
            is_first
        };
        if is_first {
            self.spawn_driver(limits);
        }
        let (ended, slow) = (tokio::time::sleep(timeout), tokio::time::sleep(SLOW_REQUEST));
        tokio::pin!(ended, slow);
        let mut is_within_limit = true;
        loop {
            tokio::select! {
                biased;
                answers = &mut answered => {
                    let gone = |_| Err(CallError::Connection("the request was cancelled".to_owned()));
                    return answers.unwrap_or_else(gone);
                }
                () = &mut ended => return Err(CallError::Timeout(timeout)),
                () = &mut slow, if is_within_limit => {
                    is_within_limit = false;
                    self.start_another_driver(limits);
                }
            }
        }
    }

    /// Starts another driver if writes are queued.
    fn start_another_driver(self: &Arc<Self>, limits: &RequestLimits) {
        let mut queue = self.queue();
        if queue.waiting.is_empty() {
            return;
        }
        queue.drivers += 1;
        drop(queue);
        self.spawn_driver(limits);
    }

    /// Spawns a driver that `drivers` counts already.
    fn spawn_driver(self: &Arc<Self>, limits: &RequestLimits) {
        #[expect(clippy::disallowed_methods, reason = "a driver that panics ends its members' waits (Drop)")]
        tokio::spawn(Driver { coalescer: self.clone(), limits: *limits, is_over: false }.run());
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // No code that holds the lock can leave it half changed.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends queued writes until the queue is empty.
struct Driver {
    coalescer: Arc<BulkCoalescer>,
    limits: RequestLimits,
    is_over: bool,
}

impl Driver {
    async fn run(mut self) {
        let coalescer = self.coalescer.clone();
        // The semaphore is never closed. Requests queued while we wait join this bulk.
        while let Ok(_permit) = coalescer.permits.acquire().await {
            let Some(members) = self.next_members() else { return };
            coalescer.start_another_driver(&self.limits);
            self.send(members).await;
        }
    }

    /// As many queued writes as fit into one request; `None` if the queue is empty, which ends this driver.
    fn next_members(&mut self) -> Option<Vec<PendingBulk>> {
        let now = self.coalescer.clock.now();
        let (mut operations, mut bytes) = (0, 0);
        let mut members = Vec::new();
        let mut queue = self.coalescer.queue();
        while let Some(next) = queue.waiting.pop_front() {
            if next.answer.is_closed() || next.deadline <= now {
                continue;
            }
            (operations, bytes) = (operations + next.ops.len(), bytes + next.bytes);
            let fits = operations <= self.limits.max_operations && bytes <= self.limits.max_bytes;
            if !(fits || members.is_empty()) {
                queue.waiting.push_front(next);
                break;
            }
            members.push(next);
        }
        if members.is_empty() {
            queue.drivers -= 1;
            self.is_over = true;
            return None;
        }
        Some(members)
    }

    async fn send(&self, members: Vec<PendingBulk>) {
        let mut ops = Vec::with_capacity(members.iter().map(|member| member.ops.len()).sum());
        let mut parts = Vec::with_capacity(members.len());
        for PendingBulk { ops: own, deadline, answer, .. } in members {
            parts.push((own.len(), deadline, answer));
            ops.extend(own);
        }
        let earliest = parts.iter().map(|(_, deadline, _)| *deadline).min();
        let mut answers = match earliest {
            Some(earliest) => self.bulk(&ops, earliest).await,
            None => return,
        };
        if let Ok(answers) = &answers
            && answers.len() != ops.len()
        {
            // The results cannot be assigned to operations.
            let (got, sent) = (answers.len(), ops.len());
            let text = format!("{got} items for {sent} that were sent");
            return tell_all(parts, &Err(CallError::Undecodable(text)));
        }
        match &mut answers {
            Ok(answers) => {
                for (count, _, answer) in parts {
                    let rest = answers.split_off(count);
                    // A dropped receiver needs no result.
                    let _ = answer.send(Ok(std::mem::replace(answers, rest)));
                }
            }
            Err(error) if parts.len() > 1 && matches!(judge_call(error), CallVerdict::Split) => {
                let mut ops = ops.as_slice();
                for (count, deadline, answer) in parts {
                    let (own, others) = ops.split_at(count);
                    ops = others;
                    if !answer.is_closed() {
                        let _ = answer.send(self.bulk(own, deadline).await);
                    }
                }
            }
            Err(_) => tell_all(parts, &answers),
        }
    }

    /// One request, unless the deadline has passed.
    async fn bulk(&self, ops: &[BulkOp], deadline: Instant) -> Answers {
        let left = deadline.since(self.coalescer.clock.now());
        if left.is_zero() {
            return Err(CallError::Timeout(left));
        }
        self.coalescer.elastic.bulk(ops, left).await
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        // Dropped with its runtime, or panicked: fail the queued writes, so that none waits for ever.
        let mut queue = self.coalescer.queue();
        queue.drivers -= 1;
        if queue.drivers == 0 {
            queue.waiting.clear();
        }
    }
}

fn tell_all(parts: Vec<(usize, Instant, oneshot::Sender<Answers>)>, answers: &Answers) {
    for (_, _, answer) in parts {
        let _ = answer.send(answers.clone());
    }
}
