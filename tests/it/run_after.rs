//! Run-after in every order of events: two workers that update, mark, start, run and record, and a memcached that loses
//! its values and is started again, with all of it interleaved in all ways. And each rule taken away, which must be found.
//!
//! The claim: **an update is taken for distributed only if a run that began after it was completed has succeeded.**
//! (That everything else stays pending is the scheduler's business, and simple: it forgets nothing else.)

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use geofold::worker::distribution::run_after::{Mark, RunRecord, Token};

/// A rule that is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weakened {
    No,
    /// Success is recorded when the run starts.
    RecordedAtStart,
    /// A run that had started when the mark was read is enough.
    AtLeast,
    /// A record that was lost begins in the same generation again.
    NoGeneration,
    /// The counter is read before the update is completed.
    MarkedEarly,
    /// The counter is written without compare-and-set.
    PlainWrites,
    /// `gets` on one connection and `cas` on another: a restart between them goes unnoticed, and with it the numbers by
    /// which memcached distinguishes states start over.
    CasAcrossRestart,
    /// Success of a run is written into any record that exists.
    RecordedInAnyGeneration,
}

/// What a worker is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    Idle,
    /// Has read the counter, and its update is not completed yet: only [`Weakened::MarkedEarly`].
    Marked(Option<Mark>),
    /// Its update is completed, at this time.
    Updated {
        at: u8,
    },
    /// Owes a run to the update.
    Owes {
        at: u8,
        mark: Option<Mark>,
    },
    /// Has read the record to start a run.
    Starting {
        at: u8,
        read: Option<(RunRecord, Cas)>,
    },
    /// The run's work is under way since this time.
    Running {
        at: u8,
        began: u8,
        token: Option<Token>,
    },
    /// The run has succeeded; it is to be recorded.
    Recording {
        token: Token,
    },
    /// Has read the record to record it.
    Writing {
        token: Token,
        read: (RunRecord, Cas),
    },
}

/// The token by which `gets` distinguishes states, and the process that returned it.
type Cas = (u8, u8);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    workers: [Step; 3],
    updates_left: [u8; 3],
    /// What memcached holds, with its number.
    value: Option<(RunRecord, u8)>,
    /// The number that the next write gets.
    next_cas: u8,
    /// How often memcached was started.
    process: u8,
    generations: u8,
    troubles_left: u8,
    /// Runs that may still fail or die.
    failures_left: u8,
    time: u8,
    /// When the latest run that has succeeded began.
    covered_up_to: u8,
}

struct Explorer {
    weakened: Weakened,
    /// Hashes of 64 bits, as model checkers do: a state in a million million may be taken for another one.
    seen: HashSet<u64, ahash::RandomState>,
    to_visit: Vec<World>,
    /// Drops that were right, so that it is known that there are any.
    dropped: usize,
    wrong: Option<World>,
}

impl Explorer {
    fn explore(weakened: Weakened, updates: [u8; 3], troubles: u8) -> Self {
        let begin = World {
            workers: [Step::Idle; 3],
            updates_left: updates,
            value: None,
            next_cas: 1,
            process: 0,
            generations: 0,
            troubles_left: troubles,
            failures_left: 1,
            time: 1,
            covered_up_to: 0,
        };
        let mut explorer =
            Self { weakened, seen: HashSet::default(), to_visit: vec![begin], dropped: 0, wrong: None };
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        while let Some(world) = explorer.to_visit.pop() {
            if explorer.wrong.is_some() {
                break;
            }
            if explorer.seen.insert(hasher.hash_one(&world)) {
                explorer.step(&world);
            }
        }
        explorer
    }

    fn go(&mut self, world: &World, change: impl FnOnce(&mut World)) {
        let mut next = world.clone();
        change(&mut next);
        next.forget_times();
        self.to_visit.push(next);
    }

    fn step(&mut self, world: &World) {
        if world.troubles_left > 0 {
            self.go(world, |next| {
                next.troubles_left -= 1;
                next.value = None;
            });
            self.go(world, |next| {
                next.troubles_left -= 1;
                next.value = None;
                next.process += 1;
                next.next_cas = 1;
            });
        }
        for number in 0..world.workers.len() {
            self.step_of(world, number);
        }
    }

    fn step_of(&mut self, world: &World, number: usize) {
        let early = self.weakened == Weakened::MarkedEarly;
        let mark = world.value.map(|(record, _)| record.mark());
        let to = |step: Step| move |next: &mut World| next.workers[number] = step;
        match world.workers[number] {
            Step::Idle if world.updates_left[number] == 0 => {}
            Step::Idle if early => self.go(world, to(Step::Marked(mark))),
            Step::Idle | Step::Marked(_) => self.go(world, |next| {
                next.updates_left[number] -= 1;
                next.time += 1;
                let at = next.time;
                next.workers[number] = match world.workers[number] {
                    Step::Marked(mark) => Step::Owes { at, mark },
                    _ => Step::Updated { at },
                };
            }),
            // The answer may be lost, and then nothing is known: no mark.
            Step::Updated { at } => {
                self.go(world, to(Step::Owes { at, mark }));
                self.go(world, to(Step::Owes { at, mark: None }));
            }
            Step::Owes { at, mark } => self.decide(world, number, at, mark),
            Step::Starting { at, read } => {
                // No answer: run without a token.
                self.go(world, |next| next.begin(number, at, None));
                let generation = if self.weakened == Weakened::NoGeneration { 0 } else { world.generations };
                let found = read.map_or(RunRecord::new(u64::from(generation)), |(record, _)| record);
                let Some((mut record, token)) = found.start() else { return };
                if self.weakened == Weakened::RecordedAtStart {
                    record.succeeded = token.number;
                }
                if !self.may_write(world, read.map(|(_, cas)| cas)) {
                    return;
                }
                // Carried out and answered; and carried out with the answer lost.
                for token in [Some(token), None] {
                    self.go(world, |next| {
                        next.generations += u8::from(read.is_none());
                        next.write(record);
                        next.begin(number, at, token);
                    });
                }
            }
            Step::Running { at, began, token } => {
                // Not well: what is owed stays owed. Or the worker dies with it.
                if world.failures_left > 0 {
                    for after in [Step::Owes { at, mark: None }, Step::Idle] {
                        self.go(world, |next| {
                            next.failures_left -= 1;
                            next.workers[number] = after;
                        });
                    }
                }
                self.go(world, |next| {
                    next.covered_up_to = next.covered_up_to.max(began);
                    next.workers[number] = token.map_or(Step::Idle, |token| Step::Recording { token });
                });
            }
            Step::Recording { token } => {
                self.go(world, to(Step::Idle));
                if let Some((record, cas)) = world.value {
                    self.go(world, to(Step::Writing { token, read: (record, (world.process, cas)) }));
                }
            }
            Step::Writing { token, read: (record, cas) } => {
                self.go(world, to(Step::Idle));
                let token = match self.weakened {
                    Weakened::RecordedInAnyGeneration => Token { generation: record.generation, ..token },
                    _ => token,
                };
                let written = match record.succeed(token) {
                    None if self.weakened == Weakened::RecordedInAnyGeneration => {
                        Some(RunRecord { succeeded: token.number, ..record })
                    }
                    written => written,
                };
                if let Some(written) = written.filter(|_| self.may_write(world, Some(cas))) {
                    self.go(world, |next| {
                        next.write(written);
                        next.workers[number] = Step::Idle;
                    });
                }
            }
        }
    }

    /// Redundant, or a run.
    fn decide(&mut self, world: &World, number: usize, at: u8, mark: Option<Mark>) {
        let enough = |record: RunRecord, mark: Mark| match self.weakened {
            Weakened::AtLeast => {
                record.generation == mark.generation
                    && record.succeeded >= mark.counter
                    && record.succeeded > 0
            }
            _ => record.covers(mark),
        };
        if let (Some((record, _)), Some(mark)) = (world.value, mark)
            && enough(record, mark)
        {
            self.dropped += 1;
            if world.covered_up_to < at {
                self.wrong = Some(world.clone());
            }
            return self.go(world, |next| next.workers[number] = Step::Idle);
        }
        let read = world.value.map(|(record, cas)| (record, (world.process, cas)));
        self.go(world, |next| next.workers[number] = Step::Starting { at, read });
    }

    /// Whether memcached carries out a write of who has read this; nothing read is an `add`.
    fn may_write(&self, world: &World, read: Option<Cas>) -> bool {
        match (self.weakened, read, world.value) {
            (Weakened::PlainWrites, Some(_), Some(_)) => true,
            (_, None, there) => there.is_none(),
            (Weakened::CasAcrossRestart, Some((_, cas)), Some((_, there))) => cas == there,
            (_, Some((process, cas)), Some((_, there))) => process == world.process && cas == there,
            (_, Some(_), None) => false,
        }
    }
}

impl World {
    /// Times are only compared: what counts is their order.
    fn forget_times(&mut self) {
        let mut times = vec![&mut self.time, &mut self.covered_up_to];
        for worker in &mut self.workers {
            match worker {
                Step::Updated { at } | Step::Owes { at, .. } | Step::Starting { at, .. } => times.push(at),
                Step::Running { at, began, .. } => times.extend([at, began]),
                Step::Idle | Step::Marked(_) | Step::Recording { .. } | Step::Writing { .. } => {}
            }
        }
        let mut order: Vec<u8> = times.iter().map(|time| **time).collect();
        order.sort_unstable();
        order.dedup();
        for time in times {
            let rank = order.iter().position(|known| known == time).unwrap_or_default();
            *time = u8::try_from(rank).unwrap_or(u8::MAX);
        }
    }

    fn write(&mut self, record: RunRecord) {
        self.value = Some((record, self.next_cas));
        self.next_cas += 1;
    }

    /// The work itself begins now.
    fn begin(&mut self, number: usize, at: u8, token: Option<Token>) {
        self.time += 1;
        self.workers[number] = Step::Running { at, began: self.time, token };
    }
}

#[test]
fn an_update_is_taken_for_distributed_only_if_a_run_that_began_after_it_has_succeeded() {
    // Minutes, and some memory; the smaller ones take seconds.
    let is_large = std::env::var("GEOFOLD_MODEL").is_ok_and(|size| size == "large");
    let bounds: &[([u8; 3], u8)] =
        if is_large { &[([2, 2, 0], 2), ([2, 1, 1], 1)] } else { &[([2, 1, 0], 1), ([1, 1, 0], 2)] };
    for &(updates, troubles) in bounds {
        let explored = Explorer::explore(Weakened::No, updates, troubles);
        println!(
            "updates {updates:?}, losses of the store {troubles}: {} states, {} redundant",
            explored.seen.len(),
            explored.dropped
        );
        assert_eq!(explored.wrong, None);
        assert!(explored.seen.len() > 5_000 && explored.dropped >= 10, "too little happened");
    }
}

#[test]
fn every_rule_is_needed() {
    for weakened in [
        Weakened::RecordedAtStart,
        Weakened::AtLeast,
        Weakened::NoGeneration,
        Weakened::MarkedEarly,
        Weakened::PlainWrites,
        Weakened::CasAcrossRestart,
        Weakened::RecordedInAnyGeneration,
    ] {
        let bounds = [([2, 1, 0], 1), ([2, 2, 0], 1), ([2, 1, 1], 1)];
        let found = bounds.into_iter().find_map(|(updates, troubles)| {
            let explored = Explorer::explore(weakened, updates, troubles);
            Some((explored.seen.len(), explored.wrong?))
        });
        let Some((states, wrong)) = found else { panic!("{weakened:?} was not found out") };
        println!("{weakened:?}: found after {states} states: {wrong:?}");
    }
}
