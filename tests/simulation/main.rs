//! The simulation: the real partition task, ledger, mover, rounds and retries, on one thread and in virtual time, with
//! fakes at the boundaries. A seed determines a scenario and every random choice in it, so a run can be repeated, and a
//! million of them are cheap.
//!
//! | file | what it holds |
//! |---|---|
//! | `scenario.rs` | from a seed to a scenario: records, owners, faults |
//! | `world.rs` | shared by all processes: time, the store, randomness, the history |
//! | `requests.rs` | Elasticsearch behind a network that delays, loses, repeats and reorders |
//! | `process.rs` | a worker's process: the partition task, fed, stopped and killed |
//! | `run.rs` | one run with its audit |
//! | `audit.rs` | checks at every change, at every commit, and at the end |
//! | `searches.rs` | searches in most of the runs, which must miss nothing |
//! | `tally.rs` | counts in some of the runs |
//! | `report.rs`, `shrink.rs` | report of a failed run, for a minimized scenario |
//! | `sabotages.rs` | deliberately disabled rules of the protocol: each must be found |
//! | `week.rs` | not of the task: a week of load, whose geoshards the planner keeps balanced |
//! | `command.rs` | arguments |
//!
//! `dev/simulate` runs it; without arguments it is a test: fixed seeds and sabotages.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]
#![expect(clippy::cast_possible_truncation, reason = "random numbers below a handful")]

mod audit;
mod command;
mod process;
mod report;
mod requests;
mod run;
mod sabotages;
mod scenario;
mod searches;
mod shrink;
mod tally;
mod week;
mod world;

use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use geofold::base::random::Random;
use geofold::base::sabotage;

use command::{Command, Seeds};
use process::Shared;
use report::report;
use run::run;
use scenario::Scenario;

/// Number of seeds, from 0 on, in every run of the test, unless GEOFOLD_SIMULATION_SEEDS is set.
const FIXED: u64 = 1_000;

/// Seeds by which defects were found.
const FOUND: [u64; 5] = [
    16_096_030_266_344_301_375,
    1_079_511,
    1_664_119_387_061_493_280,
    15_491_635_584_078_319_515,
    13_859_185_920_121_084_578,
];

/// Seeds that are run twice to check determinism.
const REPEATED: u64 = 100;

/// Runs started before their results are checked; the first failure is reported.
const AT_A_TIME: usize = 200;

fn main() -> ExitCode {
    let command = match Command::parse(std::env::args().skip(1)) {
        Ok(command) => command,
        Err(why) => {
            eprintln!("simulation: {why}");
            return ExitCode::from(2);
        }
    };
    run::keep_panics();
    let shared = Shared::new();
    let is_well = match command {
        Command::Test { filters } => test(&shared, &filters),
        Command::Seeds { seeds, sabotage: None } => many(&shared, seeds),
        Command::Seeds { seeds, sabotage: Some(chosen) } => {
            sabotage::choose(chosen);
            many(&shared, seeds)
        }
        Command::One { scenario, sabotage: None } => one(&shared, &scenario),
        Command::One { scenario, sabotage: Some(chosen) } => {
            sabotage::with(chosen, || one(&shared, &scenario))
        }
    };
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One run, with its history.
fn one(shared: &Shared, scenario: &Scenario) -> bool {
    println!("{}", report(scenario, shared, false));
    run(scenario, shared, false).broken.is_none()
}

/// Runs seeds until one fails or the limit is reached.
fn many(shared: &Shared, seeds: Seeds) -> bool {
    let mut fresh;
    let mut fixed;
    let (seeds, until): (&mut dyn Iterator<Item = u64>, _) = match seeds {
        Seeds::Range(range) => {
            fixed = range;
            (&mut fixed, None)
        }
        Seeds::For(time) => {
            fresh = fresh_seeds();
            (&mut fresh, Some(Instant::now() + time))
        }
    };
    let (began, worked_before) = (Instant::now(), cpu_seconds());
    let mut runs = 0;
    while until.is_none_or(|until| Instant::now() < until) {
        let next: Vec<Scenario> = (&mut *seeds).take(AT_A_TIME).map(Scenario::new).collect();
        if next.is_empty() {
            break;
        }
        runs += next.len();
        let broken = side_by_side(&next, |scenario| run(scenario, shared, false).broken.is_some());
        if let Some(first) = broken.iter().position(|is_broken| *is_broken) {
            println!("{}", report(&next[first], shared, true));
            return false;
        }
    }
    let (took, worked) = (began.elapsed().as_secs_f64(), cpu_seconds() - worked_before);
    let per_minute = runs as f64 * 60.0 / worked.max(0.001);
    println!(
        "{runs} runs, {worked:.1} s of one core, {per_minute:.0} a minute, in {took:.1} s: nothing is wrong"
    );
    true
}

/// Maps items in parallel on all cores, keeping their order: a run depends on its scenario only.
fn side_by_side<T: Sync, R: Send + Sync>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results: Vec<OnceLock<R>> = items.iter().map(|_| OnceLock::new()).collect();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some((item, result)) = items.get(number).zip(results.get(number)) else { return };
                    result.get_or_init(|| work(item));
                }
            });
        }
    });
    results.into_iter().map(|result| result.into_inner().unwrap()).collect()
}

/// CPU time of this process: on a busy machine the wall clock also counts waits.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Seeds that were probably never used.
fn fresh_seeds() -> impl Iterator<Item = u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut random = Random::new(now.as_nanos() as u64);
    std::iter::repeat_with(move || random.bits())
}

/// Runs the selected checks in order.
fn test(shared: &Shared, filters: &[String]) -> bool {
    type Check = fn(&Shared) -> bool;
    let checks: [(&str, Check); 5] = [
        ("whatever_goes_wrong_the_index_is_what_the_records_say", |shared| {
            many(shared, Seeds::Range(0..fixed()))
        }),
        ("what_was_found_once_is_not_found_again", |shared| {
            FOUND.iter().all(|seed| many(shared, Seeds::Range(*seed..seed + 1)))
        }),
        ("a_seed_is_one_history", repeatable),
        ("every_sabotage_is_found", sabotages_are_found),
        ("a_week_with_a_growing_city_and_a_festival_stays_balanced", |_| week::stays_balanced()),
    ];
    let is_wanted =
        |name: &str| filters.is_empty() || filters.iter().any(|part| name.contains(part.as_str()));
    let mut is_well = true;
    for (name, check) in checks.into_iter().filter(|(name, _)| is_wanted(name)) {
        println!("-- {name}");
        let passed = check(shared);
        println!("{} {name}", if passed { "ok     " } else { "FAILED " });
        is_well &= passed;
    }
    is_well
}

fn fixed() -> u64 {
    number_from("GEOFOLD_SIMULATION_SEEDS").unwrap_or(FIXED)
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// A failing seed is useless unless it can be replayed.
fn repeatable(shared: &Shared) -> bool {
    let seeds: Vec<u64> = (0..REPEATED).collect();
    let differs = side_by_side(&seeds, |seed| {
        let scenario = Scenario::new(*seed);
        run(&scenario, shared, false).digest != run(&scenario, shared, true).digest
    });
    let different = differs.iter().position(|differs| *differs);
    if let Some(seed) = different {
        println!("seed {seed} does not do the same twice");
    }
    different.is_none()
}

fn sabotages_are_found(shared: &Shared) -> bool {
    let found = side_by_side(sabotages::all(), |&sabotage| {
        let is_looked_for = sabotages::found_elsewhere(sabotage).is_none();
        is_looked_for.then(|| sabotages::found(sabotage, shared, sabotages::SEEDS)).flatten()
    });
    let mut all_found = true;
    for (&sabotage, found) in sabotages::all().iter().zip(found) {
        let name = sabotages::name(sabotage);
        match (sabotages::found_elsewhere(sabotage), found) {
            (Some(by), _) => println!("{name:<32} found by {by}"),
            (None, Some((seed, rule))) => println!("{name:<32} seed {seed:>5}: {rule}"),
            (None, None) => {
                println!("{name:<32} not found in {} seeds", sabotages::SEEDS);
                all_found = false;
            }
        }
    }
    all_found
}
