//! Old copies to delete. Sweeps hold the watermark and are in no batch until searches find the new copy and the grace
//! for running searches has passed (protocol, "What searches find").

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use super::Ledger;
use super::settlement::note_change;
use crate::base::clock::Instant;
use crate::base::ids::ShardId;
use crate::base::sabotage::{self, Sabotage};
use crate::core::mover::{Sweep, Swept};
use crate::worker::distribution::scheduler::ShardChange;

/// The sweeps owed, in groups: what one batch has written to one geoshard becomes due at once.
#[derive(Clone, Default)]
pub(super) struct Sweeps {
    /// Groups that wait until searches find what was written to a geoshard, oldest first, each with its ticket.
    unseen: BTreeMap<ShardId, VecDeque<(u64, Group)>>,
    /// Groups with a due time, by that and by number.
    due: BTreeMap<(Instant, u64), Group>,
    /// Those in a batch, by hand-out: how many, and the lowest of their first offsets.
    in_batch: Vec<(usize, i64)>,
    /// The lowest first offset of each group and of the batch, with counts.
    lowest: BTreeMap<i64, usize>,
    /// How many there are.
    count: usize,
    next_number: u64,
    next_ticket: u64,
}

/// Some sweeps; never none. The later a sweep's first offset, the earlier it stands, so that the lowest leave first, from the end.
#[derive(Clone)]
struct Group(Vec<Sweep>);

impl Group {
    /// `None` without sweeps. Takes no more memory than they need: a backlog that moves waits for its sweeps in memory, so this limits
    /// how fast documents move.
    fn new(mut sweeps: Vec<Sweep>) -> Option<Self> {
        sweeps.sort_unstable_by_key(|sweep| Reverse(first_offset(sweep)));
        sweeps.shrink_to_fit();
        (!sweeps.is_empty()).then_some(Self(sweeps))
    }

    /// Its lowest first offset.
    fn lowest(&self) -> i64 {
        self.0.last().map_or(i64::MAX, first_offset)
    }

    /// Takes out at most `max` sweeps, and returns what is left.
    fn take(mut self, max: usize) -> (Vec<Sweep>, Option<Self>) {
        let taken = self.0.split_off(self.0.len().saturating_sub(max));
        (taken, (!self.0.is_empty()).then_some(self))
    }

    /// Memory cost in bytes.
    fn bytes(&self) -> usize {
        /// Its place in two collections, and its allocation.
        const OVERHEAD_BYTES: usize = 120;
        OVERHEAD_BYTES + self.0.iter().map(sweep_bytes).sum::<usize>()
    }
}

/// Memory cost of a sweep in its group. Names of geoshards are shared.
fn sweep_bytes(sweep: &Sweep) -> usize {
    /// Of the id's allocation.
    const OVERHEAD_BYTES: usize = 32;
    size_of::<Sweep>() + OVERHEAD_BYTES + sweep.heap_bytes()
}

fn first_offset(sweep: &Sweep) -> i64 {
    sweep.records.0.offset()
}

impl Sweeps {
    fn put_due(&mut self, at: Instant, group: Group) {
        self.due.insert((at, self.next_number), group);
        self.next_number += 1;
    }

    fn hold(&mut self, offset: i64) {
        *self.lowest.entry(offset).or_default() += 1;
    }

    fn release(&mut self, offset: i64) {
        if let Some(times) = self.lowest.get_mut(&offset) {
            *times -= 1;
            if *times == 0 {
                self.lowest.remove(&offset);
            }
        }
    }
}

impl fmt::Debug for Sweeps {
    /// Without the numbers that only order groups, and without the groups: ledgers that differ in those behave alike.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unseen, due, in_batch, .. } = self;
        let tickets: BTreeSet<u64> = unseen.values().flatten().map(|(ticket, _)| *ticket).collect();
        let rank = |ticket: &u64| tickets.range(..ticket).count();
        let unseen: Vec<_> = unseen
            .iter()
            .map(|(shard, groups)| {
                let sweeps = |(ticket, group)| {
                    let Group(sweeps): &Group = group;
                    sweeps.iter().map(move |sweep| (rank(ticket), sweep))
                };
                (
                    shard,
                    groups.iter().map(|(ticket, group)| (ticket, group)).flat_map(sweeps).collect::<Vec<_>>(),
                )
            })
            .collect();
        let due: Vec<_> = due
            .iter()
            .flat_map(|((at, _), Group(sweeps))| sweeps.iter().map(move |sweep| (at, sweep)))
            .collect();
        f.debug_tuple("Sweeps").field(&unseen).field(&due).field(in_batch).finish()
    }
}

impl Ledger {
    /// Takes the sweeps that a batch left or completed, and adds the completed ones to `changes`. Returns a ticket and
    /// the geoshards in which searches must find what was written by now; report that with [`Ledger::seen`].
    pub fn settle_sweeps(
        &mut self,
        sweeps: Vec<(Sweep, Swept)>,
        changes: &mut BTreeMap<ShardId, ShardChange>,
        now: Instant,
    ) -> (u64, BTreeSet<ShardId>) {
        let ticket = self.sweeps.next_ticket;
        self.sweeps.next_ticket += 1;
        for (count, lowest) in std::mem::take(&mut self.sweeps.in_batch) {
            self.sweeps.count -= count;
            self.sweeps.release(lowest);
        }
        let mut unseen: BTreeMap<ShardId, Vec<Sweep>> = BTreeMap::new();
        let mut due = Vec::new();
        for (sweep, swept) in sweeps {
            let target = sweep.must_be_seen_in();
            match (swept, target) {
                (Swept::Ended, _) => {
                    for shard in sweep.leftovers() {
                        note_change(changes.entry(shard.clone()).or_default(), target, sweep.records);
                    }
                }
                (Swept::Waits, Some(shard)) => unseen.entry(shard.clone()).or_default().push(sweep),
                _ => due.push(sweep),
            }
        }
        let shards = unseen.keys().cloned().collect();
        for (shard, sweeps) in unseen {
            if let Some(group) = self.owe(sweeps) {
                self.sweeps.unseen.entry(shard).or_default().push_back((ticket, group));
            }
        }
        if let Some(group) = self.owe(due) {
            self.sweeps.put_due(now, group);
        }
        (ticket, shards)
    }

    fn owe(&mut self, sweeps: Vec<Sweep>) -> Option<Group> {
        self.sweeps.count += sweeps.len();
        let group = Group::new(sweeps)?;
        self.sweeps.hold(group.lowest());
        self.merger.bytes += group.bytes();
        Some(group)
    }

    /// Searches find what was written to `shard` before this ticket was issued: those sweeps are due at `at`.
    pub fn seen(&mut self, shard: &ShardId, ticket: u64, at: Instant) {
        let Some(unseen) = self.sweeps.unseen.get_mut(shard) else { return };
        let count = unseen.partition_point(|(given, _)| *given <= ticket);
        let seen: Vec<_> = unseen.drain(..count).collect();
        if unseen.is_empty() {
            self.sweeps.unseen.remove(shard);
        }
        for (_, group) in seen {
            self.sweeps.put_due(at, group);
        }
    }

    /// Hands out the sweeps that are due `now`, at most `max`. They stay owed until [`Ledger::settle_sweeps`].
    pub fn hand_out_sweeps(&mut self, max: usize, now: Instant) -> Vec<Sweep> {
        let mut sweeps: Vec<Sweep> = Vec::new();
        while sweeps.len() < max
            && let Some(first) = self.sweeps.due.first_entry()
            && first.key().0 <= now
        {
            let (key, group) = first.remove_entry();
            self.merger.bytes -= group.bytes();
            self.sweeps.release(group.lowest());
            let (taken, left) = group.take(max - sweeps.len());
            sweeps.extend(taken);
            if let Some(group) = left {
                self.merger.bytes += group.bytes();
                self.sweeps.hold(group.lowest());
                self.sweeps.due.insert(key, group);
            }
        }
        if let Some(lowest) = sweeps.iter().map(first_offset).min() {
            self.sweeps.in_batch.push((sweeps.len(), lowest));
            self.sweeps.hold(lowest);
        }
        sweeps
    }

    /// When the next sweep is due, among those with a due time.
    pub fn next_sweep(&self) -> Option<Instant> {
        self.sweeps.due.first_key_value().map(|((at, _), _)| *at)
    }

    /// Whether a sweep may be handed out `now`.
    pub fn has_due_sweeps(&self, now: Instant) -> bool {
        self.next_sweep().is_some_and(|due| due <= now)
    }

    /// Number of sweeps owed.
    pub fn sweeps(&self) -> usize {
        self.sweeps.count
    }

    /// The lowest first offset of the sweeps.
    pub(super) fn lowest_swept(&self) -> Option<i64> {
        let is_owed = !sabotage::is(Sabotage::CommitAboveSweeps);
        self.sweeps.lowest.first_key_value().map(|(offset, _)| *offset).filter(|_| is_owed)
    }
}
