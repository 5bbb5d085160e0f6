//! Old copies to delete. Sweeps hold the watermark and are in no batch until searches find the new copy and the grace
//! for running searches has passed (protocol, "What searches find").

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use super::{Ledger, note_change};
use crate::base::clock::Instant;
use crate::base::ids::ShardId;
use crate::base::sabotage::{self, Sabotage};
use crate::core::mover::{Sweep, Swept};
use crate::worker::distribution::scheduler::ShardChange;

/// The sweeps owed.
#[derive(Clone, Default)]
pub(super) struct Sweeps {
    /// Sweeps that wait until searches find what was written to a geoshard, oldest first, each with its ticket.
    unseen: BTreeMap<ShardId, VecDeque<(u64, Sweep)>>,
    /// Sweeps with a due time, by that and by number.
    due: BTreeMap<(Instant, u64), Sweep>,
    /// First offsets of those in a batch.
    in_batch: Vec<i64>,
    /// First offsets of all sweeps, with counts.
    owed: BTreeMap<i64, usize>,
    next_number: u64,
    next_ticket: u64,
}

impl Sweeps {
    fn put_due(&mut self, at: Instant, sweep: Sweep) {
        self.due.insert((at, self.next_number), sweep);
        self.next_number += 1;
    }

    fn release(&mut self, offset: i64) {
        if let Some(times) = self.owed.get_mut(&offset) {
            *times -= 1;
            if *times == 0 {
                self.owed.remove(&offset);
            }
        }
    }
}

impl fmt::Debug for Sweeps {
    /// Without the numbers that only order sweeps: ledgers that differ in those behave alike.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unseen, due, in_batch, owed, .. } = self;
        let tickets: BTreeSet<u64> = unseen.values().flatten().map(|(ticket, _)| *ticket).collect();
        let rank = |ticket: &u64| tickets.range(..ticket).count();
        let unseen: Vec<_> = unseen
            .iter()
            .map(|(shard, sweeps)| {
                (shard, sweeps.iter().map(|(ticket, sweep)| (rank(ticket), sweep)).collect::<Vec<_>>())
            })
            .collect();
        let due: Vec<_> = due.iter().map(|((at, _), sweep)| (at, sweep)).collect();
        f.debug_tuple("Sweeps").field(&unseen).field(&due).field(in_batch).field(owed).finish()
    }
}

/// Memory cost of a sweep: its place in a collection that is two thirds full, and what it points to. Moves of a backlog wait for
/// their sweeps in memory, so this limits how fast documents move.
fn held_bytes(sweep: &Sweep) -> usize {
    /// Handles of id and geoshards, and the entry in `owed`.
    const OVERHEAD_BYTES: usize = 100;
    let place = size_of::<Sweep>() * 3 / 2;
    place + sweep.id.as_str().len() + sweep.known.placement.versions.bytes() + OVERHEAD_BYTES
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
        let mut unseen = BTreeSet::new();
        for offset in std::mem::take(&mut self.sweeps.in_batch) {
            self.sweeps.release(offset);
        }
        for (sweep, swept) in sweeps {
            if swept == Swept::Ended {
                let target = sweep.must_be_seen_in();
                for shard in sweep.leftovers() {
                    note_change(changes, shard, target, sweep.records);
                }
                continue;
            }
            *self.sweeps.owed.entry(sweep.records.0.offset()).or_default() += 1;
            self.bytes += held_bytes(&sweep);
            match sweep.must_be_seen_in().filter(|_| swept == Swept::Waits).cloned() {
                Some(shard) => {
                    unseen.insert(shard.clone());
                    self.sweeps.unseen.entry(shard).or_default().push_back((ticket, sweep));
                }
                None => self.sweeps.put_due(now, sweep),
            }
        }
        self.sweeps.next_ticket += 1;
        (ticket, unseen)
    }

    /// Searches find what was written to `shard` before this ticket was issued: those sweeps are due at `at`.
    pub fn seen(&mut self, shard: &ShardId, ticket: u64, at: Instant) {
        let Some(unseen) = self.sweeps.unseen.get_mut(shard) else { return };
        let count = unseen.partition_point(|(given, _)| *given <= ticket);
        let seen: Vec<_> = unseen.drain(..count).collect();
        if unseen.is_empty() {
            self.sweeps.unseen.remove(shard);
        }
        for (_, sweep) in seen {
            self.sweeps.put_due(at, sweep);
        }
    }

    /// Hands out the sweeps that are due `now`, at most `max`. They stay owed until [`Ledger::settle_sweeps`].
    pub fn hand_out_sweeps(&mut self, max: usize, now: Instant) -> Vec<Sweep> {
        let mut sweeps = Vec::new();
        while sweeps.len() < max
            && let Some(first) = self.sweeps.due.first_entry()
            && first.key().0 <= now
        {
            let sweep = first.remove();
            self.bytes -= held_bytes(&sweep);
            self.sweeps.in_batch.push(sweep.records.0.offset());
            sweeps.push(sweep);
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
        self.sweeps.owed.values().sum()
    }

    /// The lowest first offset of the sweeps.
    pub(super) fn lowest_swept(&self) -> Option<i64> {
        let is_owed = !sabotage::is(Sabotage::CommitAboveSweeps);
        self.sweeps.owed.first_key_value().map(|(offset, _)| *offset).filter(|_| is_owed)
    }
}
