//! The partition's claim and the remaining power of earlier owners (protocol, "Claims").

use std::time::Duration;

use futures::future::FusedFuture;

use super::{Task, stopped_part};
use crate::base::clock::Instant;
use crate::io::claims::Taken;
use crate::support::telemetry::events::{PartitionGoesOn, PartitionStopped};

/// Ownership of the partition.
#[derive(Debug, Default)]
pub(super) struct Ownership {
    /// When the claim was taken; `None` before that.
    taken: Option<Taken>,
    /// When the cache was last emptied; initially when the claim was taken.
    emptied_at: Option<Instant>,
    /// Another worker holds the claim.
    pub is_lost: bool,
}

impl Ownership {
    /// The ownership the task has prepared for.
    pub fn taken(&self) -> Option<Taken> {
        self.taken
    }

    /// Whether an earlier owner may still send requests.
    pub fn zombies_may_act(&self, now: Instant) -> bool {
        self.taken.is_none_or(|taken| now <= taken.zombies_end())
    }

    /// Whether the cache may hold a placement that a zombie changed so long ago that Elasticsearch may forget the
    /// tombstone before a batch begun now ends. Checked before every batch, so no batch begins with a placement cached
    /// more than a batch deadline ago while zombies could act.
    fn is_cache_old(&mut self, now: Instant, deadline: Duration) -> bool {
        let (Some(taken), Some(emptied_at)) = (self.taken, self.emptied_at) else { return false };
        let due = (emptied_at + deadline).min(taken.zombies_end());
        let is_old = emptied_at <= taken.zombies_end() && now > due;
        if is_old {
            self.emptied_at = Some(now);
        }
        is_old
    }
}

impl Task {
    /// Whether anybody but this owner may act on records that it never reads. Also right after an owner that has ended in good order:
    /// somebody who was assigned the partition between the two, and has not claimed it yet, can still claim it within a deadline of
    /// that; this owner begins no batch later than another one after that.
    pub(super) fn anybody_else_may_act(&self) -> bool {
        let deadline = self.partition.bench.batching.deadline;
        let now = self.now();
        self.ownership.zombies_may_act(now) || now <= self.assigned_at + deadline.saturating_mul(2)
    }

    /// Takes note of how the claim stands, and tells of a claim that was lost.
    pub(super) fn follow_claim(&mut self) {
        let standing = self.claim.standing();
        if standing.taken != self.ownership.taken
            && let Some(taken) = standing.taken
        {
            // Taken back from another worker: cached placements predate that.
            self.is_cache_doubtful |= self.ownership.taken.is_some();
            (self.ownership.taken, self.ownership.emptied_at) = (Some(taken), Some(taken.at));
        }
        let is_lost = standing.lost_to.is_some();
        if is_lost == self.ownership.is_lost {
            return;
        }
        self.ownership.is_lost = is_lost;
        let (number, bench) = (self.partition.number, self.partition.bench.clone());
        match standing.lost_to {
            Some(other) => {
                let reason = format!(
                    "another worker has claimed it since ({other}), so nothing is sent; it goes on here if that worker falls \
                     silent"
                );
                bench.health.not_ready(stopped_part(number), reason.as_str());
                PartitionStopped { partition: number, offset: None, reason: &reason }.emit(&bench.metrics);
            }
            None if !self.stopped => {
                bench.health.ready(&stopped_part(number));
                PartitionGoesOn { partition: number }.emit(&bench.metrics);
            }
            None => {}
        }
    }

    /// Releases the claim without a wait for the next owner, if no request of this owner can still reach Elasticsearch.
    pub(super) fn leave_claim(&self) {
        let bench = &self.partition.bench;
        // A server may execute an unanswered request for as long as a zombie may act.
        let window = bench.batching.deadline.saturating_mul(2);
        if self.batch.is_terminated() && bench.rounds.server.has_all_answers(window, self.now()) {
            self.claim.end();
        }
    }

    /// Empties the cache if a placement in it may be older than the tombstones that stop late writes: an in-place write
    /// would no longer be refused (protocol, "The owner's cache").
    pub(super) fn invalidate_stale_cache(&mut self) {
        let now = self.now();
        let deadline = self.partition.bench.batching.deadline;
        // After a suspension the process may have lost its partitions without noticing.
        let silence = now.since(self.last_turn);
        self.last_turn = now;
        if silence > deadline {
            tracing::warn!(
                partition = self.partition.number,
                ?silence,
                "the worker was suspended; dropping cached placements"
            );
            self.is_cache_doubtful = true;
        }
        self.is_cache_doubtful |= self.ownership.is_cache_old(now, deadline);
        // The batch in flight owns the desk; its deadline stops it from sending.
        if self.is_cache_doubtful
            && let Some(desk) = &mut self.desk
        {
            desk.cache.clear();
            desk.clears.clear();
            self.is_cache_doubtful = false;
        }
    }
}
