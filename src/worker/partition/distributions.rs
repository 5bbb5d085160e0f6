//! Distributions requested by a partition, and those that hold its watermark.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::commit_gate::CommitGate;
use crate::base::ids::ShardId;
use crate::worker::distribution::scheduler::{JobKey, ShardChange};
use crate::worker::distribution::{DistributionSubscription, Released};

/// Holds per job and geoshard; further holds are merged into the last.
const MAX_HOLDS: usize = 16;

/// The distributions of a partition. If none are configured, nothing is requested or held.
pub(super) struct Distributions {
    subscription: Option<DistributionSubscription>,
    held: Held,
}

/// Requested distributions that hold the watermark.
#[derive(Debug, Default)]
struct Held {
    gate: CommitGate,
    /// Ticket and offset, oldest first.
    by_key: HashMap<JobKey, VecDeque<(u64, i64)>, ahash::RandomState>,
}

impl Distributions {
    pub(super) fn new(subscription: Option<DistributionSubscription>) -> Self {
        Self { subscription, held: Held::default() }
    }

    /// Requests the distribution of indexed changes. Call before publishing a watermark that covers them.
    pub(super) fn request(&mut self, changes: &BTreeMap<ShardId, ShardChange>, watermark: Option<i64>) {
        let Some(subscription) = &mut self.subscription else { return };
        if changes.is_empty() {
            return;
        }
        let (ticket, gated) = subscription.request(changes, watermark);
        for key in gated {
            let offsets = changes.get(&key.shard).and_then(|change| change.offsets);
            self.held.hold(key, ticket, offsets.map_or(CommitGate::ANY, |(first, _)| first));
        }
    }

    /// The next distributions that have run or were abandoned; pending while none are configured.
    pub(super) async fn released(&mut self) -> Released {
        match &mut self.subscription {
            Some(subscription) => subscription.released().await,
            None => std::future::pending().await,
        }
    }

    /// Takes note of them.
    pub(super) fn release(&mut self, released: &Released) {
        self.held.release(released);
    }

    /// While the partition is ending, its distributions run without delay, including those of the last batch.
    pub(super) fn flush(&self) {
        if !self.are_done()
            && let Some(subscription) = &self.subscription
        {
            subscription.hurry();
        }
    }

    /// The offset that may be committed if the index is right up to `done`; `None` if none may.
    pub(super) fn limit(&self, done: i64) -> Option<i64> {
        self.held.gate.limit(done)
    }

    /// Whether no requested distribution holds the watermark. A partition ends only then, if time allows.
    pub(super) fn are_done(&self) -> bool {
        self.held.gate.is_open()
    }
}

impl Held {
    fn hold(&mut self, key: JobKey, ticket: u64, offset: i64) {
        let gate = &mut self.gate;
        let of_key = self.by_key.entry(key).or_default();
        gate.hold(offset);
        let is_full = of_key.len() >= MAX_HOLDS;
        match of_key.back_mut() {
            Some((last_ticket, held)) if is_full => {
                // Merge both at the lower offset.
                let lower = offset.min(*held);
                gate.release(offset);
                gate.release(*held);
                gate.hold(lower);
                (*last_ticket, *held) = (ticket, lower);
            }
            _ => of_key.push_back((ticket, offset)),
        }
    }

    fn release(&mut self, released: &Released) {
        let Some(of_key) = self.by_key.get_mut(&released.key) else { return };
        while let Some((_, offset)) = of_key.pop_front_if(|(ticket, _)| *ticket <= released.ticket) {
            self.gate.release(offset);
        }
        if of_key.is_empty() {
            self.by_key.remove(&released.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(job: usize) -> JobKey {
        JobKey { job, shard: ShardId::new("a").unwrap() }
    }

    #[test]
    fn release_covers_everything_up_to_its_ticket_of_its_key_alone() {
        let mut held = Held::default();
        for (job, ticket, offset) in [(0, 1, 5), (0, 2, 3), (1, 2, 4), (0, 3, 9)] {
            held.hold(key(job), ticket, offset);
        }
        assert_eq!(held.gate.limit(20), Some(3));
        held.release(&Released { key: key(0), ticket: 2 });
        assert_eq!(held.gate.limit(20), Some(4));
        held.release(&Released { key: key(1), ticket: 9 });
        assert_eq!(held.gate.limit(20), Some(9));
        held.release(&Released { key: key(0), ticket: 3 });
        assert!(held.gate.is_open() && held.by_key.is_empty());
    }

    #[test]
    fn holds_of_a_key_are_bounded_and_the_lowest_offset_stays() {
        let mut held = Held::default();
        for offset in (100..140).rev() {
            held.hold(key(0), 140 - u64::try_from(offset).unwrap(), offset);
        }
        assert_eq!(held.by_key[&key(0)].len(), MAX_HOLDS);
        held.release(&Released { key: key(0), ticket: 39 });
        assert_eq!(
            held.gate.limit(200),
            Some(100),
            "the last one requested is merged into the last one held"
        );
        held.release(&Released { key: key(0), ticket: 40 });
        assert!(held.gate.is_open());
    }
}
