//! Counterexamples, as text.

use super::judge::Violation;
use super::{State, Step, Tables, World};
use crate::store::{Names, Op};

impl World {
    /// A counterexample, step by step.
    pub fn tell(&self, path: Vec<(State, Option<Step>)>) -> String {
        let mut tables = self.tables();
        let mut text = format!("{:?}\n", self.setting);
        for (state, step) in path {
            text += &self.tell_step(&mut tables, &state, step);
            text += "\n";
        }
        text
    }

    fn tell_step(&self, tables: &mut Tables, state: &State, step: Option<Step>) -> String {
        let calls = |tables: &Tables, worker: u8, n: u8| {
            let known = tables.workers.get(state.workers[usize::from(worker)]);
            known.calls.get(usize::from(n)).map(|call| tell_op(&tables.names, call.op))
        };
        let store = state.store.view(&tables.names).to_string();
        let what = match step {
            None if self.setting.tally => {
                let counts = tables.collector.counts(state.counted);
                let last = self.increment(tables, state, state.owner).map(|sent| tables.collector.tell(sent));
                let placement = state.store.view(&tables.names).placement;
                return format!(
                    "{store}; counted to {}: {counts:?}; to be sent: {last:?}; {placement:?}\n=> {}",
                    state.counted.merged_to,
                    broken(state)
                );
            }
            None => return format!("{store}\n=> {}", broken(state)),
            Some(Step::Call { worker, call }) => format!("{worker}: {:?}", calls(tables, worker, call)),
            Some(Step::Lost { worker, call }) => {
                format!("{worker}: {:?}, the answer is lost", calls(tables, worker, call))
            }
            Some(Step::Late { worker, call }) => {
                format!("{worker}: {:?} is late", calls(tables, worker, call))
            }
            Some(Step::Arrive(n)) => {
                format!("arrives: {:?}", state.late[usize::from(n)].map(|op| tell_op(&tables.names, op)))
            }
            Some(Step::ArriveIncrement) => {
                format!("arrives: {:?}", state.late_increment.map(|sent| tables.collector.tell(sent)))
            }
            Some(step @ (Step::Send { worker } | Step::SendLost { worker } | Step::SendLate { worker })) => {
                let sent = self.increment(tables, state, worker);
                format!("{step:?}: {:?}", sent.map(|sent| tables.collector.tell(sent)))
            }
            Some(step) => format!("{step:?}"),
        };
        if self.setting.tally {
            let counts = tables.collector.counts(state.counted);
            return format!("{store}; counted to {}: {counts:?}\n    {what}", state.counted.merged_to);
        }
        format!("{store}\n    {what}")
    }
}

/// What was violated, if anything.
fn broken(state: &State) -> String {
    state.broken.as_ref().map(Violation::to_string).unwrap_or_default()
}

fn tell_op(names: &Names, op: Op) -> String {
    match op {
        Op::Place(condition, placement) => format!("place {:?} if {condition:?}", names.placement(placement)),
        op => format!("{op:?}"),
    }
}
