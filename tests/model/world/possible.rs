//! Which transitions are possible in a state.

use super::{Search, State, Step, Sweep, Tables, Time, World};
use crate::backup::BackupStep;
use crate::record::answers;
use crate::setting::{Searches, Weakening};
use crate::worker::Known;

impl World {
    /// All transitions that are possible in a state.
    pub(super) fn possible_steps(&self, state: &State, steps: &mut Vec<Step>) {
        if state.broken.is_some() {
            return;
        }
        let tables = self.tables();
        if self.setting.sweeps {
            self.sweep_steps(&tables, state, steps);
        }
        if self.setting.timed {
            self.timed_steps(&tables, state, steps);
        }
        if self.setting.searches != Searches::NotServed {
            self.search_steps(&tables, state, steps);
        }
        if self.setting.restores {
            self.backup_steps(state, steps);
        }
        for worker in state.sweep.gone..=state.owner {
            self.worker_steps(&tables, state, worker, steps);
        }
        for (n, late) in state.late.iter().enumerate() {
            if late.is_some() && !state.backup.is_blocked {
                steps.push(Step::Arrive(u8::try_from(n).unwrap()));
            }
        }
        if state.late_increment.is_some() {
            steps.push(Step::ArriveIncrement);
        }
        if self.may_commit(&tables, state).is_some_and(|offset| offset > state.committed) {
            steps.push(Step::Commit { known: true });
            if self.setting.tally && state.losses > 0 {
                steps.push(Step::Commit { known: false });
            }
        }
        self.owner_steps(&tables, state, steps);
    }

    /// Possible transitions of a worker that is not gone.
    fn worker_steps(&self, tables: &Tables, state: &State, worker: u8, steps: &mut Vec<Step>) {
        let known = tables.workers.get(state.workers[usize::from(worker)]);
        if self.setting.tally && known.watermark.is_some_and(|watermark| watermark > known.acknowledged) {
            steps.push(Step::Send { worker });
            if state.losses > 0 {
                steps.push(Step::SendLost { worker });
            }
            if state.losses > 0 && state.late_increment.is_none() {
                steps.push(Step::SendLate { worker });
            }
        }
        if known.is_fetching {
            let answers = u8::try_from(answers().len()).unwrap();
            steps.extend((0..answers).map(|answer| Step::Fetched { worker, answer }));
        }
        if known.is_idle {
            if self.may_begin(state, worker) {
                self.begin_steps(known, state, worker, steps);
            }
            return;
        }
        for (n, call) in known.calls.iter().enumerate() {
            if call.reply.is_some() {
                continue;
            }
            let n = u8::try_from(n).unwrap();
            if state.backup.is_blocked && !call.op.is_read() {
                continue;
            }
            steps.push(Step::Call { worker, call: n });
            if call.op.is_read() {
                continue;
            }
            if state.losses > 0 || self.setting.resends {
                steps.push(Step::Lost { worker, call: n });
            }
            if state.losses > 0 {
                steps.push(Step::Late { worker, call: n });
            }
        }
        if state.deadlines > 0 {
            steps.push(Step::Deadline { worker });
        }
    }

    /// Batches that an idle worker may begin.
    fn begin_steps(&self, known: &Known, state: &State, worker: u8, steps: &mut Vec<Step>) {
        let sweeps_are_due = known.sweeps_are_due[usize::from(state.search.is_over)];
        for records in 0..=self.records() - known.read_to {
            if records > 0 || known.has_work || known.has_clears || sweeps_are_due {
                steps.push(Step::Begin { worker, records });
            }
        }
    }

    /// Possible transitions at the end of an owner.
    fn owner_steps(&self, tables: &Tables, state: &State, steps: &mut Vec<Step>) {
        // The last one is for what is restored.
        let is_left = self.setting.restores && !state.backup.is_restored;
        if state.owner + 1 + u8::from(is_left) < self.setting.workers {
            steps.push(Step::TakeOver { by_new_map: false });
            if self.setting.maps.are_two() {
                steps.push(Step::TakeOver { by_new_map: true });
            }
        }
        let owner = tables.workers.get(state.workers[usize::from(state.owner)]);
        let nothing_is_late = state.late == [None; 2];
        if self.setting.forgets && nothing_is_late && state.sweep.gone < state.owner && owner.is_idle {
            steps.push(Step::ZombiesEnd);
        }
        let may_forget = self.setting.forgets && nothing_is_late && state.sweep.gone == state.owner;
        if may_forget || self.setting.weakening == Weakening::TombstonesAreForgotten {
            steps.push(Step::Forget);
        }
    }

    /// Possible transitions if deadlines pass.
    fn timed_steps(&self, tables: &Tables, state: &State, steps: &mut Vec<Step>) {
        let Time { now, began, buried, .. } = state.time;
        let known = |worker: u8| tables.workers.get(state.workers[usize::from(worker)]);
        let is_late = |worker: &u8| !known(*worker).is_idle && began[usize::from(*worker)] < now;
        let late = (0..=state.owner).filter(is_late);
        steps.extend(late.clone().map(|worker| Step::Deadline { worker }));
        if state.owner + 1 == self.setting.workers && now < Time::END && late.count() == 0 {
            steps.push(Step::Tick);
        }
        for shard in 0..3 {
            let n = usize::from(shard);
            let is_tombstone = state.store.copies[n].version != 0 && state.store.copies[n].content == 0;
            if is_tombstone && now >= buried[n] + 2 {
                steps.push(Step::Expire { shard });
            }
        }
    }

    /// Whether a worker's claim allows it to begin a batch: a lost one was last confirmed just before the takeover.
    fn may_begin(&self, state: &State, worker: u8) -> bool {
        !self.setting.timed
            || worker == state.owner
            || state.time.now == 0
            || self.setting.weakening == Weakening::LostClaimsAreUsed
    }

    /// Possible transitions of the sweep (protocol, "Deleted documents").
    fn sweep_steps(&self, tables: &Tables, state: &State, steps: &mut Vec<Step>) {
        let Sweep { mark, is_ripe, seen, .. } = state.sweep;
        if seen.is_some() {
            steps.push(Step::Sweep);
        }
        let Some(stamp) = state.store.grave(&tables.names).filter(|_| seen.is_none()) else { return };
        let is_early = self.setting.weakening == Weakening::SweepsTooEarly;
        let asks = self.setting.weakening != Weakening::SweepsUncommitted;
        match mark {
            None => steps.push(Step::Mark),
            Some((marked, end)) => {
                // Batches and requests end at their deadline. Later assignments begin above.
                let owner = tables.workers.get(state.workers[usize::from(state.owner)]);
                let is_committed = state.committed >= end || !asks;
                if !is_ripe && is_committed && owner.is_idle && state.late == [None; 2] {
                    steps.push(Step::Ripen);
                }
                if (is_ripe || is_early && is_committed) && stamp <= marked {
                    steps.push(Step::SeeGrave);
                }
            }
        }
    }

    /// Possible transitions of a snapshot.
    fn backup_steps(&self, state: &State, steps: &mut Vec<Step>) {
        let is_early = self.setting.weakening == Weakening::RestoresTooEarly;
        let may_restore = state.owner + 1 < self.setting.workers && (state.late == [None; 2] || is_early);
        let is_possible = |step: &BackupStep| *step != BackupStep::Restore || may_restore;
        steps.extend(state.backup.step().filter(is_possible).map(Step::Backup));
    }

    /// Possible transitions of searches and their refreshes.
    fn search_steps(&self, tables: &Tables, state: &State, steps: &mut Vec<Step>) {
        for worker in state.sweep.gone..=state.owner {
            let unseen = tables.workers.get(state.workers[usize::from(worker)]).unseen;
            let shards = (0..3).filter(|shard| unseen >> shard & 1 == 1);
            steps.extend(shards.map(|shard| Step::Refresh { worker, shard }));
        }
        let Search { visible, asked, is_over } = state.search;
        if self.setting.searches != Searches::Looking || is_over {
            return;
        }
        for shard in 0..3 {
            if (visible >> shard & 1 == 1) != (state.store.copies[usize::from(shard)].content != 0) {
                steps.push(Step::RefreshByItself { shard });
            }
            // Nothing is guaranteed before the document can be found anywhere.
            if (visible != 0 || asked != 0) && asked >> shard & 1 == 0 {
                steps.push(Step::Ask { shard });
            }
        }
    }
}
