//! Entries that wait for their document's next record, since an earlier owner had folded further (protocol, step 1).

use super::{Dirty, Ledger};
use crate::base::ids::DocId;
use crate::base::position::Position;
use crate::core::mover::{Carry, RetryState};

/// A parked entry.
#[derive(Debug, Clone)]
pub(super) struct Parked {
    /// The first record that it stands for.
    pub(super) score: i64,
    pub(super) dirty: Dirty,
    /// It is released once it is folded, or the partition is read, up to here.
    pub(super) until: Position,
}

impl Ledger {
    /// Documents parked until their next record.
    pub fn parked(&self) -> usize {
        self.parked.len()
    }

    /// Whether everything left is parked, or waits for a commit that has to pass a parked entry: only new records can
    /// help.
    pub fn only_parked(&self) -> bool {
        let awaits_commit = |id: &DocId| self.carries.get(id).is_some_and(|carry| carry.awaits_commit);
        let is_stuck = self.dirty.pending_len() == 0
            && self.dirty.in_flight().all(|entry| awaits_commit(entry.key))
            && self.apart.values().all(|apart| apart.carry.awaits_commit);
        let nothing_comes =
            self.dead_letters.is_empty() && self.merger.rejected.is_empty() && self.fetching.is_empty();
        is_stuck && nothing_comes && !self.parked.is_empty()
    }

    pub(super) fn take_while_parked(&mut self, id: DocId, offset: i64, dirty: Dirty) {
        let Some(parked) = self.parked.get_mut(&id) else { return self.add(id, offset, dirty) };
        self.merger.merge(&id, &mut parked.dirty, dirty);
        if parked.dirty.last() >= parked.until {
            self.unpark(&id, Carry::default());
        }
    }

    /// Takes the entry out of its batch until its records reach `until`.
    pub(super) fn park(&mut self, id: DocId, until: Position) {
        let Some((score, dirty)) = self.withdraw(&id) else { return };
        if dirty.last() >= until {
            return self.add(id, score, dirty);
        }
        self.parked_until.insert((until, id.clone()));
        self.parked.insert(id, Parked { score, dirty, until });
        if let Some(last_read) = self.next_offset.and_then(|next| Position::new(self.epoch, next - 1))
            && until <= last_read
        {
            self.release_passed(last_read);
        }
    }

    /// Everything up to `last_read` was read: no record comes for entries parked up to there.
    pub(super) fn release_passed(&mut self, last_read: Position) {
        while let Some((until, id)) = self.parked_until.first()
            && *until <= last_read
        {
            let id = id.clone();
            let state = RetryState { finish_recorded: true, ..RetryState::default() };
            self.unpark(&id, state.into());
        }
    }

    pub(super) fn unpark(&mut self, id: &DocId, carry: Carry) {
        let Some(parked) = self.parked.remove(id) else { return };
        self.parked_until.remove(&(parked.until, id.clone()));
        if carry != Carry::default() {
            self.carries.insert(id.clone(), carry);
        }
        self.add(id.clone(), parked.score, parked.dirty);
    }
}
