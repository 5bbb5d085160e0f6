//! Distributions requested by a partition, and those that hold its watermark.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::{Mode, Task};
use crate::base::ids::ShardId;
use crate::worker::distribution::scheduler::{Change, Key};
use crate::worker::distribution::{Released, Subscription};
use crate::worker::partition::gates::Gate;

/// Holds per job and geoshard; further holds are merged into the last.
const MAX_HOLDS: usize = 16;

/// Requested distributions that hold the watermark.
pub(super) struct Distributions {
    subscription: Subscription,
    /// Ticket and offset, oldest first.
    holds: HashMap<Key, VecDeque<(u64, i64)>, ahash::RandomState>,
}

impl Distributions {
    pub(super) fn new(subscription: Subscription) -> Self {
        Self { subscription, holds: HashMap::default() }
    }
}

/// Waits for the next release; pending forever without a distributor.
pub(super) async fn next(distributions: &mut Option<Distributions>) -> Released {
    match distributions {
        Some(distributions) => distributions.subscription.released().await,
        None => std::future::pending().await,
    }
}

impl Task {
    /// The previous owner may have written, and even committed, changes without distributing them. So every geoshard is
    /// distributed once; until the gated ones are done, no offset is committed.
    pub(super) fn distribute_all(&mut self) {
        let live = self.acting.live();
        let shards = live.iter().flat_map(|map| map.shards());
        let changes = shards.map(|shard| (shard.clone(), Change::default())).collect();
        self.distribute(&changes);
    }

    /// Requests distribution for a batch's indexed changes. Call before publishing a watermark that covers them.
    pub(super) fn distribute(&mut self, changes: &BTreeMap<ShardId, Change>) {
        let watermark = self.ledger.watermark();
        let Some(Distributions { subscription, holds, .. }) = &mut self.distributions else { return };
        if changes.is_empty() {
            return;
        }
        let (ticket, held) = subscription.request(changes, watermark);
        for key in held {
            let offsets = changes.get(&key.shard).and_then(|change| change.offsets);
            let offset = offsets.map_or(Gate::ANY, |(first, _)| first);
            let gate = &mut self.gates.distribution;
            let of_key = holds.entry(key).or_default();
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
    }

    /// Distributions have run or were abandoned.
    pub(super) fn released(&mut self, released: &Released) {
        let Some(Distributions { holds, .. }) = &mut self.distributions else { return };
        let Some(of_key) = holds.get_mut(&released.key) else { return };
        while let Some((_, offset)) = of_key.pop_front_if(|(ticket, _)| *ticket <= released.ticket) {
            self.gates.distribution.release(offset);
        }
        if of_key.is_empty() {
            holds.remove(&released.key);
        }
    }

    /// While the partition is ending, its distributions run without delay, including those of the last batch.
    pub(super) fn flush_before_leaving(&mut self, mode: Mode) {
        if mode != Mode::Run
            && !self.gates.are_open()
            && let Some(distributions) = &mut self.distributions
        {
            distributions.subscription.hurry();
        }
    }
}
