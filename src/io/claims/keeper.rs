//! Takes and renews the claims of all partitions of a worker: one small request for all of them each third of a batch
//! deadline, and at once for one that is new or acts by another generation of the maps.
//!
//! A claim is renewed by writing it, not by reading it: a copy of the meta index that is cut off from its cluster may still
//! answer reads, and would confirm a claim that was taken over elsewhere.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::record::{Claim, claim_key};
use super::slot::{ClaimStanding, FoundClaim, Slot, Taken};
use crate::base::clock::Clock;
use crate::base::sabotage::{self, Sabotage};
use crate::io::elastic::answer::{BulkVerdict, GetVerdict, judge_bulk, judge_get};
use crate::io::elastic::{BulkOp, CallError, Elastic, Get, Index, WriteCondition};

/// How long one request may take, at most.
const LONGEST_REQUEST: Duration = Duration::from_secs(10);
/// Interval of checks for due claims.
const RETRY: Duration = Duration::from_secs(1);
/// How long a worker that stops waits for the last claims to be written.
const LAST_REQUEST: Duration = Duration::from_secs(2);
/// Maximum rewrites of a claim per check, if others write it concurrently.
const ATTEMPTS: usize = 3;

/// Takes claims for partition tasks. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Claims {
    shared: Option<Arc<Shared>>,
    clock: Arc<dyn Clock>,
    deadline: Duration,
}

#[derive(Debug)]
struct Shared {
    slots: Mutex<BTreeMap<i32, (Slot, watch::Sender<ClaimStanding>)>>,
    /// Claims of ended owners to write, with the partition.
    endings: Mutex<Vec<(i32, WriteCondition, Claim)>>,
    /// Display name of the owner.
    owner: Arc<str>,
    /// Notified when a claim must be written.
    wanted: Notify,
    /// Part of every assignment's name.
    process: u64,
    assignments: Mutex<u64>,
}

impl Shared {
    fn slots(&self) -> MutexGuard<'_, BTreeMap<i32, (Slot, watch::Sender<ClaimStanding>)>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claims {
    /// For tests: claims every partition when it is assigned, without any request.
    pub fn unchecked(clock: Arc<dyn Clock>, deadline: Duration) -> Self {
        Self { shared: None, clock, deadline }
    }

    /// Claims a newly assigned partition whose owner acts by this generation of the maps.
    pub fn claim(&self, partition: i32, generation: u64) -> Claimed {
        let now = self.clock.now();
        let of = self.shared.clone().map(|shared| {
            let mut count = shared.assignments.lock().unwrap_or_else(PoisonError::into_inner);
            *count += 1;
            let assignment = format!("{:016x}-{count}", shared.process);
            drop(count);
            (shared, assignment)
        });
        let standing = match &of {
            Some((shared, assignment)) => {
                let slot = Slot::new(assignment.clone(), now, self.deadline, generation);
                let (sender, receiver) = watch::channel(slot.standing.clone());
                shared.slots().insert(partition, (slot, sender));
                shared.wanted.notify_one();
                receiver
            }
            None => {
                let taken = Some(Taken {
                    at: now,
                    deadline: self.deadline,
                    zombies: self.deadline.saturating_mul(2),
                });
                watch::channel(ClaimStanding { taken, ..ClaimStanding::default() }).1
            }
        };
        Claimed { of, partition, standing, clock: self.clock.clone(), max_age: self.deadline }
    }
}

/// A partition's claim, for its task. The claim is kept until this is dropped.
#[derive(Debug)]
pub struct Claimed {
    of: Option<(Arc<Shared>, String)>,
    partition: i32,
    standing: watch::Receiver<ClaimStanding>,
    clock: Arc<dyn Clock>,
    max_age: Duration,
}

impl Claimed {
    /// The owner acts by this generation of the maps from now on; the claim will say so.
    pub fn act_by(&self, generation: u64) {
        let Some((shared, assignment)) = &self.of else { return };
        if let Some((slot, _)) = shared.slots().get_mut(&self.partition)
            && slot.assignment == *assignment
            && slot.generation != generation
        {
            slot.generation = generation;
            shared.wanted.notify_one();
        }
    }

    /// Whether a batch may start: the claim `taken` was confirmed with this generation within the last batch deadline.
    pub fn is_confirmed(&self, taken: Option<Taken>, generation: u64) -> bool {
        if self.of.is_none() || sabotage::is(Sabotage::ClaimIsNotAsked) {
            return true;
        }
        let standing = self.standing.borrow();
        standing.generation == generation
            && standing.taken == taken
            && standing.lost_to.is_none()
            && standing.confirmed_at.is_some_and(|at| self.clock.now().since(at) <= self.max_age)
    }

    /// Records that the owner has ended cleanly: nothing is in flight, and it sends nothing more, so that the next owner need
    /// not wait for it. Sent once; if lost, the next owner waits.
    pub fn end(&self) {
        let Some((shared, assignment)) = &self.of else { return };
        let ending = match shared.slots().get(&self.partition) {
            Some((slot, _)) if slot.assignment == *assignment => slot.end(&shared.owner, self.clock.now()),
            _ => None,
        };
        if let Some((guard, claim)) = ending {
            let mut endings = shared.endings.lock().unwrap_or_else(PoisonError::into_inner);
            endings.push((self.partition, guard, claim));
            drop(endings);
            shared.wanted.notify_one();
        }
    }

    /// The current state of the claim.
    pub fn standing(&self) -> ClaimStanding {
        self.standing.borrow().clone()
    }

    /// Waits until the state changes or is confirmed again.
    pub async fn changed(&mut self) {
        if self.standing.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        let Some((shared, assignment)) = &self.of else { return };
        let mut slots = shared.slots();
        // The partition may be assigned again already.
        if slots.get(&self.partition).is_some_and(|(slot, _)| slot.assignment == *assignment) {
            slots.remove(&self.partition);
        }
    }
}

/// Reads and writes the claims of all partitions of a worker in the meta index.
pub struct Keeper {
    elastic: Arc<dyn Elastic>,
    topic: String,
    timeout: Duration,
    retry: Duration,
    clock: Arc<dyn Clock>,
    shared: Arc<Shared>,
}

impl Keeper {
    /// Of the partitions of `topic`. `deadline`: `batch.timeout`; `process`: a number that no other process has.
    pub fn new(
        elastic: Arc<dyn Elastic>,
        topic: &str,
        owner: Arc<str>,
        deadline: Duration,
        clock: Arc<dyn Clock>,
        process: u64,
    ) -> (Self, Claims) {
        let shared = Arc::new(Shared {
            slots: Mutex::default(),
            endings: Mutex::default(),
            owner,
            wanted: Notify::new(),
            process,
            assignments: Mutex::default(),
        });
        let claims = Claims { shared: Some(shared.clone()), clock: clock.clone(), deadline };
        let timeout = (deadline / 6).min(LONGEST_REQUEST);
        let retry = (deadline / 12).min(RETRY);
        (Self { elastic, topic: topic.to_owned(), timeout, retry, clock, shared }, claims)
    }

    /// Keeps claims until `stop`, then writes the claims of ended owners.
    pub async fn run(self, stop: CancellationToken) {
        loop {
            self.look().await;
            // Poll often even if nothing is due: this clock stops while the machine sleeps, and claims expire meanwhile.
            let pause = tokio::time::sleep(self.retry);
            let told = async {
                tokio::time::sleep(self.retry / 8).await;
                self.shared.wanted.notified().await;
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return self.leave().await,
                () = told => {}
                () = pause => {}
            }
        }
    }

    /// Reads and writes the due claims once.
    pub async fn look(&self) {
        self.leave().await;
        for _ in 0..ATTEMPTS {
            if !self.read().await || !self.write().await {
                return;
            }
        }
    }

    /// Reads the claims that cannot be written before that. `false`: there was no usable answer.
    async fn read(&self) -> bool {
        let now = self.clock.now();
        let is_due = |slot: &Slot| slot.due_at() <= now && slot.is_to_be_read();
        let read: Vec<(i32, String)> = {
            let slots = self.shared.slots();
            let due = slots.iter().filter(|(_, (slot, _))| is_due(slot));
            due.map(|(partition, (slot, _))| (*partition, slot.assignment.clone())).collect()
        };
        let gets: Vec<Get> = read.iter().map(|(partition, _)| self.get(*partition)).collect();
        if gets.is_empty() {
            return true;
        }
        let answers = match self.elastic.mget(&gets, self.timeout).await {
            Ok(answers) if answers.len() == gets.len() => answers,
            Ok(answers) => {
                return self.report(&CallError::Undecodable(format!("{} answers", answers.len())));
            }
            Err(error) => return self.report(&error),
        };
        let now = self.clock.now();
        for ((partition, assignment), answer) in read.iter().zip(answers) {
            let found = match judge_get(answer) {
                GetVerdict::Missing => None,
                GetVerdict::Found(found) => match serde_json::from_slice::<Claim>(&found.source) {
                    Ok(claim) => Some(FoundClaim { claim, stamp: found.stamp }),
                    Err(error) => {
                        tracing::error!(partition, %error, "the partition's claim cannot be read; a later geofold may have written it");
                        continue;
                    }
                },
                GetVerdict::Again(error) | GetVerdict::Unauthorized(error) => {
                    tracing::warn!(partition, %error, "the partition's claim could not be read");
                    continue;
                }
            };
            self.change(*partition, assignment, |slot| slot.found(found, now));
        }
        true
    }

    /// Writes the due claims. Returns whether a claim belongs to another owner and must be read at once.
    async fn write(&self) -> bool {
        let asked = self.clock.now();
        let mut writes = Vec::new();
        for (&partition, (slot, _)) in self.shared.slots().iter() {
            if slot.due_at() <= asked
                && let Some((guard, claim)) = slot.write(&self.shared.owner, asked)
            {
                let id = claim_key(&self.topic, partition);
                let op = BulkOp::Index { index: Index::Meta, id, guard, source: claim.to_json() };
                writes.push((partition, slot.assignment.clone(), claim.generation, op));
            }
        }
        if writes.is_empty() {
            return false;
        }
        let ops: Vec<BulkOp> = writes.iter().map(|(_, _, _, op)| op.clone()).collect();
        let answers = match self.elastic.bulk(&ops, self.timeout).await {
            Ok(answers) if answers.len() == ops.len() => answers,
            Ok(answers) => {
                return self.lost(&writes, &CallError::Undecodable(format!("{} answers", answers.len())));
            }
            Err(error) => return self.lost(&writes, &error),
        };
        let now = self.clock.now();
        let mut conflicts = false;
        for ((partition, assignment, generation, op), answer) in writes.into_iter().zip(answers) {
            match judge_bulk(&op, answer) {
                BulkVerdict::Done { stamp } => {
                    self.change(partition, &assignment, |slot| slot.written(generation, stamp, asked, now));
                }
                BulkVerdict::Conflict => {
                    conflicts = true;
                    self.change(partition, &assignment, Slot::not_written);
                }
                verdict => {
                    tracing::warn!(
                        partition,
                        ?verdict,
                        "could not write the partition's claim; nothing is sent once the last confirmation is older than batch.timeout"
                    );
                    self.change(partition, &assignment, Slot::not_written);
                }
            }
        }
        conflicts
    }

    /// Writes the claims of ended owners.
    async fn leave(&self) {
        let endings =
            std::mem::take(&mut *self.shared.endings.lock().unwrap_or_else(PoisonError::into_inner));
        let op = |(partition, guard, claim): (i32, WriteCondition, Claim)| {
            let id = claim_key(&self.topic, partition);
            BulkOp::Index { index: Index::Meta, id, guard, source: claim.to_json() }
        };
        let ops: Vec<BulkOp> = endings.into_iter().map(op).collect();
        // A conflict means that the next owner has claimed already.
        if !ops.is_empty()
            && let Err(error) = self.elastic.bulk(&ops, self.timeout.min(LAST_REQUEST)).await
        {
            tracing::warn!(%error, "could not release claims; the next owners of these partitions wait as if this worker were still active");
        }
    }

    fn lost(&self, writes: &[(i32, String, u64, BulkOp)], error: &CallError) -> bool {
        for (partition, assignment, _, _) in writes {
            self.change(*partition, assignment, Slot::not_written);
        }
        self.report(error)
    }

    fn report(&self, error: &CallError) -> bool {
        tracing::warn!(%error, "could not confirm claims; nothing is sent once the last confirmation is older than batch.timeout");
        false
    }

    fn get(&self, partition: i32) -> Get {
        Get::realtime(Index::Meta, claim_key(&self.topic, partition))
    }

    /// Changes a claim and notifies its task, unless the partition was revoked or assigned again.
    fn change(&self, partition: i32, assignment: &str, change: impl FnOnce(&mut Slot)) {
        if let Some((slot, sender)) = self.shared.slots().get_mut(&partition)
            && slot.assignment == assignment
        {
            change(slot);
            if *sender.borrow() != slot.standing {
                sender.send_replace(slot.standing.clone());
            }
        }
    }
}
