//! Chaos on real services: several `geofold run` and two `geofold collect` as processes, a real Kafka, a real Elasticsearch, a
//! proxy between, a real PostgreSQL if there is one (SQLite if not), and all of them killed, frozen, restarted and lied to
//! while documents are written. At the end there is calm, and index and live counts are compared with the topic.
//!
//! | file | contents |
//! |---|---|
//! | `schedule.rs` | what goes wrong when, by a seed |
//! | `conductor.rs` | carries it out |
//! | `crew.rs` | the workers |
//! | `writer.rs` | what is written meanwhile |
//! | `records.rs` | what the topic has of it, by which the index is judged |
//! | `audit.rs` | every placement, copy and dead letter against the records |
//! | `count.rs` | a count that owes nothing to the audit |
//! | `collectors.rs` | two `geofold collect`, and what is done to them |
//! | `tally.rs` | the live counts against the records |
//! | `report.rs`, `command.rs` | what is printed; arguments |
//!
//! `dev/chaos` runs it on servers of its own. The seed replays the schedule and what the writer asks for; when which process is
//! where is not in it.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a helper that fails is a test that fails")]
#![expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small numbers of a test's own")]

mod audit;
mod collectors;
mod command;
mod conductor;
mod count;
mod crew;
mod records;
mod report;
mod schedule;
#[path = "../stack_lock.rs"]
mod stack_lock;
#[expect(dead_code, reason = "the tests in tests/real need more of it")]
#[path = "../real/support/mod.rs"]
mod support;
mod tally;
#[path = "../wait.rs"]
mod wait;
mod writer;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;

use audit::{Findings, audit, history};
use collectors::Collectors;
use command::Options;
use conductor::Conductor;
use crew::Crew;
use report::{EndsWith, Report, Status};
use support::postgres::OwnDatabase;
use support::{Proxy, World, WorldOptions};

/// Documents whose history a failed run prints.
const HISTORIES: usize = 3;

/// Findings that are printed.
const PRINTED: usize = 20;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("chaos: {why}");
            return ExitCode::from(2);
        }
    };
    if let Some(why) = (options.seed..options.seed + 200).find_map(|seed| schedule::is_sound(seed).err()) {
        eprintln!("chaos: the schedule is not what it should be: {why}");
        return ExitCode::FAILURE;
    }
    let templates = tempfile::TempDir::new().unwrap();
    let database = OwnDatabase::new();
    let world = world(&options, templates.path().join("template.json"), database.as_ref());
    // The time that it takes to make topic and indices is not the run's.
    let status = Status::new();
    status.say(&format!("the schedule again: dev/chaos {}", options.as_arguments()));
    let is_well = match catch_unwind(AssertUnwindSafe(|| run(&options, &world, database.is_some(), &status)))
    {
        Ok(is_well) => is_well,
        Err(_) => {
            status.say("verdict: the run could not be brought to its end, see above");
            false
        }
    };
    if is_well {
        return ExitCode::SUCCESS;
    }
    status.say(&format!("logs and this output: {}", keep(&world, &status).display()));
    ExitCode::FAILURE
}

/// Topic, indices, configuration. Times are short, so that much happens in a minute, and `gc_deletes` is above the longest time
/// that anybody sleeps.
fn world(options: &Options, template: PathBuf, database: Option<&OwnDatabase>) -> World {
    std::fs::write(&template, r#"{"mappings": {"properties": {"n": {"type": "long"}}}}"#).unwrap();
    let config = [
        ("geoshards", format!("index_template = {template:?}")),
        ("elasticsearch", "gc_deletes = \"10m\"".to_owned()),
        ("batch", "max_documents = 100".to_owned()),
        ("batch", "max_dirty_age = \"5s\"".to_owned()),
        ("retry", "max_backoff = \"2s\"".to_owned()),
        ("shutdown", "revoke_timeout = \"2s\"".to_owned()),
    ];
    let config = config.into_iter().chain(tally::config(database)).collect();
    let world = World::alone(WorldOptions { partitions: options.partitions, config });
    tally::prepare(&world);
    world
}

/// The whole of it; whether all is well.
fn run(options: &Options, world: &World, has_postgresql: bool, status: &Status) -> bool {
    let proxy = Proxy::start(&world.stack.elasticsearch, options.seed);
    let feed = world.feed();
    let mut findings = Findings::default();
    let sabotage = options.sabotage.as_deref();
    let mut collectors = Collectors::start(world, has_postgresql);
    let crew = Crew::start(world, &proxy, options.workers, options.protocol(0), sabotage);
    let mut conductor = Conductor::new(world, &proxy, crew, options, status);
    std::thread::scope(|scope| {
        let _ends = EndsWith(status);
        scope.spawn(|| writer::write(&feed, options.seed, options.rate, options.ids, status));
        scope.spawn(|| status.tell(world));
        scope.spawn(|| collectors.suffer(options.seed, status));
        conductor.play(&mut findings);
    });
    status.say(&format!("{:>5} s  calm: waiting until all is done", status.elapsed().as_secs()));
    conductor.calm(&mut findings);
    let played = conductor.finish();
    let tally = tally::wait_until_merged(world);
    collectors.stop_all();
    let took = status.elapsed();

    let mut audited = audit(world);
    audited.wrong.append(&mut findings.wrong);
    let findings = &mut audited;
    let count = count::count(world);
    count.differences().into_iter().for_each(|difference| findings.add(difference));
    tally
        .differences()
        .into_iter()
        .chain(tally::audit(world))
        .for_each(|difference| findings.add(difference));
    std::mem::take(&mut collectors.deserted).into_iter().for_each(|words| findings.add(words));
    let offsets = world.offsets();
    if offsets.iter().any(|(committed, end)| committed != end) {
        findings.add(format!("not all is committed at the end: {offsets:?}"));
    }
    if played.blows.is_empty() || collectors.blows.is_empty() || findings.changes_of_place == 0 {
        findings.add("too little has happened to say anything");
    }
    let network = proxy.tally();
    let blows = &collectors.blows;
    let report = Report {
        options,
        took,
        played: &played,
        network,
        findings,
        count: &count,
        collectors: blows,
        tally: &tally,
    };
    report.lines().iter().for_each(|line| status.say(line));
    tell_what_is_wrong(world, status, findings);
    findings.wrong.is_empty()
}

fn tell_what_is_wrong(world: &World, status: &Status, findings: &Findings) {
    for (_, what) in findings.wrong.iter().take(PRINTED) {
        status.say(&format!("wrong: {what}"));
    }
    if findings.wrong.len() > PRINTED {
        status.say(&format!("and {} more", findings.wrong.len() - PRINTED));
    }
    let concerned: BTreeSet<&String> = findings.wrong.iter().filter_map(|(id, _)| id.as_ref()).collect();
    concerned.into_iter().take(HISTORIES).for_each(|id| status.say(&history(world, id)));
}

/// Puts what may help to understand a failed run where it stays.
fn keep(world: &World, status: &Status) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("chaos-{}", world.name));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("output.log"), status.said()).unwrap();
    let own = std::fs::read_dir(world.dir()).unwrap().flatten().map(|entry| entry.path());
    for file in own.chain(world.stack.logs()).filter(|file| file.is_file()) {
        if let Some(name) = file.file_name() {
            // A log that cannot be copied keeps no other from being kept.
            let _ = std::fs::copy(&file, folder.join(name));
        }
    }
    folder
}
