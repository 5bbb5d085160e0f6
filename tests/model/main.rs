//! Exhaustive exploration of the move protocol: every order of events within stated bounds.
//!
//! A world holds one document, its records in a log, and two or three workers that were assigned the partition one after the
//! other; all of them go on, the earlier ones as zombies. [stateright](https://docs.rs/stateright) walks through every
//! order in which they can read, begin batches (so: fold at every boundary), have their calls carried out, lose answers,
//! overrun deadlines, commit, and be taken over. The workers are the real ledger and the real mover, and what must hold
//! is asked of `src/core/invariants.rs`: there is no second description of the protocol that could be right while the code is
//! not.
//!
//! | file | what it holds |
//! |---|---|
//! | `main.rs` | the explorations, and the weakening that each must find |
//! | `setting.rs` | bounds and conditions of an exploration |
//! | `world/` | the transition system: possible events, what must hold, and counterexamples as text |
//! | `worker.rs` | ledger and mover, one call at a time, each step computed once |
//! | `store.rs` | Elasticsearch's version rules for one document |
//! | `collector.rs` | increments in flight, and the merged counts |
//! | `backup.rs` | a snapshot, and what is restored of it |
//! | `record.rs` | scripts of records, and their effect one by one |
//! | `weakened.rs` | every rule of the protocol removed, one at a time |
//!
//! `GEOFOLD_MODEL=large cargo test --features sabotage --test model` explores more (dev/README.md); docs/reliability.md has the figures reached.

#![allow(missing_docs, reason = "a test")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails")]

mod backup;
mod collector;
mod record;
mod setting;
mod store;
mod weakened;
mod worker;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use geofold::base::sabotage::Sabotage;
use geofold::core::mover::OnMissing;
use stateright::{Checker, HasDiscoveries, Model};

use self::record::Record::{
    self, Bad, Delete, East, Heal, Hide, Index, Move, Part, Patch, Refeed, Spoil, Tag, Tagged, Touch,
};
use self::record::{Maps, scripts};
use self::setting::{Searches, Setting, Weakening};
use self::world::World;

/// All kinds of records.
const ALL: [Record; 10] =
    [Index(0), Index(1), Index(2), Delete, Patch, Move(0), Move(1), Move(2), Part, Touch];

/// Kinds that survive compaction without loss: no patches, no touches.
const WHOLE: [Record; 4] = [Index(0), Index(1), Index(2), Delete];

/// The result of an exploration.
#[derive(Debug, Default)]
struct Explored {
    scripts: usize,
    states: usize,
    transitions: usize,
    depth: usize,
    workers: usize,
    time: Duration,
    /// The first counterexample: its length and its steps.
    broken: Option<(usize, String)>,
}

/// Explores worlds in parallel, until one is broken or all are done.
fn explore(settings: &[Setting]) -> Explored {
    let began = Instant::now();
    let sum = Mutex::new(Explored::default());
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(setting) = settings.get(next.fetch_add(1, Ordering::Relaxed)) {
                    explore_one(setting, &sum);
                    if sum.lock().unwrap().broken.is_some() {
                        return;
                    }
                }
            });
        }
    });
    let mut sum = sum.into_inner().unwrap();
    sum.time = began.elapsed();
    sum
}

fn explore_one(setting: &Setting, sum: &Mutex<Explored>) {
    let checker = World::new(setting.clone()).checker().finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.spawn_bfs().join();
    let world = checker.model();
    let counterexample = checker.discovery(World::HOLDS).map(|path| {
        let path = path.into_vec();
        (path.len() - 1, world.tell(path))
    });
    assert!(
        counterexample.is_some() || checker.discovery(World::COMES_TO_REST).is_some(),
        "the last owner never comes to rest: {setting:?}"
    );
    let mut sum = sum.lock().unwrap();
    sum.scripts += 1;
    sum.states += checker.unique_state_count();
    sum.transitions += checker.state_count();
    sum.depth = sum.depth.max(checker.max_depth());
    sum.workers += world.workers_met();
    if counterexample.is_some() && sum.broken.is_none() {
        sum.broken = counterexample;
    }
}

/// Explores all worlds, prints the result, and fails with a counterexample if there is one.
fn holds(what: &str, settings: &[Setting]) {
    let Explored { scripts, states, transitions, depth, workers, time, broken } = explore(settings);
    println!(
        "model: {what}: {scripts} scripts, {states} states, {transitions} transitions, depth {depth}, \
         {workers} different workers, {:.1} s",
        time.as_secs_f64()
    );
    if let Some((_, way)) = broken {
        panic!("{what}: the protocol is broken\n{way}");
    }
}

/// One world for each script.
fn worlds(length: usize, alphabet: &[Record], setting: &Setting) -> Vec<Setting> {
    let scripts = scripts(length, alphabet, setting.maps).into_iter();
    scripts.map(|script| Setting { script, ..setting.clone() }).collect()
}

/// One world for each script and each set of its records that may be compacted: never the last.
fn compacted(length: usize, alphabet: &[Record], setting: &Setting) -> Vec<Setting> {
    let worlds = worlds(length, alphabet, setting).into_iter();
    worlds
        .flat_map(|world| (1..1 << (length - 1)).map(move |compacted| Setting { compacted, ..world.clone() }))
        .collect()
}

/// Scripts with a record that Elasticsearch refuses.
fn refused(length: usize, alphabet: &[Record], setting: &Setting) -> Vec<Setting> {
    let mut worlds = worlds(length, alphabet, setting);
    worlds.retain(|world| world.script.iter().any(|record| matches!(record, Bad(_) | Spoil(_))));
    worlds
}

/// Whether to explore what takes too long for the gate.
fn is_large() -> bool {
    match std::env::var("GEOFOLD_MODEL").as_deref() {
        Ok("large") => true,
        Ok(other) => panic!("GEOFOLD_MODEL={other} is unknown; there is \"large\""),
        Err(_) => false,
    }
}

/// All of these kinds of records, or in the gate the first `few`.
fn kinds(all: &[Record], few: usize) -> &[Record] {
    if is_large() { all } else { &all[..few] }
}

#[test]
fn every_script_of_three_records_by_two_workers() {
    holds("3 records, 2 workers", &worlds(3, &ALL, &Setting::default()));
}

#[test]
fn one_call_is_lost_or_late() {
    let setting = Setting { losses: 1, ..Setting::default() };
    let kinds = kinds(&[Index(0), Index(1), Delete, Move(1), Patch], 3);
    holds(
        &format!("3 records of {} kinds, 2 workers, 1 lost or late call", kinds.len()),
        &worlds(3, kinds, &setting),
    );
    let setting = Setting { searches: Searches::NotServed, ..setting };
    let length = if is_large() { 3 } else { 2 };
    let what = format!("{length} records, 2 workers, 1 lost or late call, searches not served");
    holds(&what, &worlds(length, &ALL, &setting));
}

#[test]
fn one_batch_ends_at_its_deadline() {
    let setting = Setting { deadlines: 1, ..Setting::default() };
    let kinds = kinds(&[Index(0), Index(1), Delete, Move(1), Patch], 3);
    holds(&format!("3 records of {} kinds, 2 workers, 1 deadline", kinds.len()), &worlds(3, kinds, &setting));
    let setting = Setting { searches: Searches::NotServed, ..setting };
    let length = if is_large() { 3 } else { 2 };
    let what = format!("{length} records, 2 workers, 1 deadline, searches not served");
    holds(&what, &worlds(length, &ALL, &setting));
}

#[test]
fn placements_are_created_without_being_read() {
    let setting = Setting { expects_new: true, ..Setting::default() };
    let kinds = kinds(&[Index(0), Index(1), Delete, Patch, Move(1), Touch], 4);
    let what = format!("3 records of {} kinds, 2 workers, created without a read", kinds.len());
    holds(&what, &worlds(3, kinds, &setting));
    let few = [Index(0), Index(1), Delete];
    let lossy = Setting { losses: 1, ..setting.clone() };
    holds(
        "3 records of 3 kinds, 2 workers, created without a read, 1 lost or late call",
        &worlds(3, &few, &lossy),
    );
    let late = Setting { deadlines: 1, ..setting.clone() };
    holds("2 records of 3 kinds, 2 workers, created without a read, 1 deadline", &worlds(2, &few, &late));
    let three = Setting { workers: 3, ..setting.clone() };
    holds("2 records of 3 kinds, 3 workers, created without a read", &worlds(2, &few, &three));
    let sweeping = Setting { sweeps: true, forgets: true, ..setting.clone() };
    holds("3 records of 3 kinds, 2 workers, created without a read, swept", &worlds(3, &few, &sweeping));
    let bad = [Index(0), Bad(1), Bad(0)];
    holds("2 records of 3 kinds, 2 workers, created without a read, refused", &refused(2, &bad, &setting));
    let two_maps = Setting { maps: Maps::Apart, ..setting };
    holds("2 records of 3 kinds, 2 workers, 2 maps, created without a read", &worlds(2, &few, &two_maps));
}

#[test]
fn two_maps_are_live() {
    let setting = Setting { maps: Maps::Apart, ..Setting::default() };
    let length = if is_large() { 3 } else { 2 };
    holds(&format!("{length} records, 2 workers, 2 maps"), &worlds(length, &ALL, &setting));
    let kinds = kinds(&[Index(0), Move(1), Touch, Index(1), Delete, Patch], 3);
    holds(&format!("3 records of {} kinds, 2 workers, 2 maps", kinds.len()), &worlds(3, kinds, &setting));
}

/// Where they agree, writes are in place; a document comes there, and goes from there to where they do not.
#[test]
fn two_maps_that_agree_about_a_place_are_live() {
    let setting = Setting { maps: Maps::Alike, ..Setting::default() };
    holds("2 records, 2 workers, 2 maps that agree", &worlds(2, &ALL, &setting));
    let alphabet = kinds(&[Index(0), Move(1), Patch, Move(0), Touch, Index(1), Delete, Index(2)], 5);
    let what = format!("3 records of {} kinds, 2 workers, 2 maps that agree", alphabet.len());
    holds(&what, &worlds(3, alphabet, &setting));
    let lossy = Setting { losses: 1, ..setting.clone() };
    holds("2 records, 2 workers, 2 maps that agree, 1 lost or late call", &worlds(2, &ALL, &lossy));
    let late = Setting { deadlines: 1, ..setting.clone() };
    holds("2 records, 2 workers, 2 maps that agree, 1 deadline", &worlds(2, &ALL, &late));
    let three = Setting { workers: 3, searches: Searches::NotServed, ..setting.clone() };
    let few = [Index(0), Index(1), Patch, Move(0)];
    holds("2 records of 4 kinds, 3 workers, 2 maps that agree", &worlds(2, &few, &three));
    let forgetting = Setting { forgets: true, ..setting.clone() };
    let what = "3 records of 2 kinds, 2 workers, 2 maps that agree, forgotten";
    holds(what, &worlds(3, &few[..2], &forgetting));
    let compacting = compacted(3, &[Index(0), Index(1)], &setting);
    holds("3 records of 2 kinds, 2 workers, 2 maps that agree, compacted", &compacting);
    // To the place that they agree about, from the others, and the other way.
    let all_bad = [Index(1), Spoil(0), Heal, Index(0), Bad(0), Spoil(1)];
    holds("2 records of 6 kinds, 2 workers, 2 maps that agree, refused", &refused(2, &all_bad, &setting));
    let bad = kinds(&all_bad, 3);
    let what = format!("3 records of {} kinds, 2 workers, 2 maps that agree, refused", bad.len());
    holds(&what, &refused(3, bad, &setting));
}

/// For every time of a refresh and every order in which a search reads the geoshards.
#[test]
fn searches_never_miss_a_document_that_moves() {
    let moves = [Index(0), Index(1), Index(2), Patch, Move(1), Touch];
    let looking = Setting { searches: Searches::Looking, ..Setting::default() };
    let few = [Index(0), Index(1), Patch];
    holds("searches: 3 records of 3 kinds, 2 workers", &worlds(3, &few, &looking));
    if is_large() {
        holds("searches: 3 records of 6 kinds, 2 workers", &worlds(3, &moves, &looking));
        holds("searches: 4 records of 2 kinds, 2 workers", &worlds(4, &few[..2], &looking));
    }
    let lossy = Setting { losses: 1, ..looking.clone() };
    holds("searches: 2 records of 3 kinds, 2 workers, 1 loss", &worlds(2, &few, &lossy));
    let late = Setting { deadlines: 1, ..looking.clone() };
    holds("searches: 2 records of 3 kinds, 2 workers, 1 deadline", &worlds(2, &few, &late));
    let three = Setting { workers: 3, ..looking.clone() };
    holds("searches: 2 records of 3 kinds, 3 workers", &worlds(2, &few, &three));
    let two_maps = Setting { maps: Maps::Apart, ..looking.clone() };
    holds("searches: 2 records of 5 kinds, 2 workers, 2 maps", &worlds(2, &moves[..5], &two_maps));
    let alike = Setting { maps: Maps::Alike, ..looking.clone() };
    holds("searches: 2 records of 5 kinds, 2 workers, 2 maps that agree", &worlds(2, &moves[..5], &alike));
    let length = if is_large() { 3 } else { 2 };
    let bad = [Index(0), Index(1), Bad(1)];
    let what = format!("searches: {length} records of 3 kinds, 2 workers, refused");
    holds(&what, &refused(length, &bad, &looking));
    holds("searches: 3 records of 2 kinds, 2 workers, compacted", &compacted(3, &few[..2], &looking));
}

#[test]
fn old_copies_are_swept_at_once() {
    let setting = Setting { searches: Searches::NotServed, ..Setting::default() };
    holds("3 records, 2 workers, searches not served", &worlds(3, &ALL, &setting));
    let few = [Index(0), Index(1)];
    holds("4 records of 2 kinds, 2 workers, searches not served", &worlds(4, &few, &setting));
}

#[test]
fn three_workers() {
    let setting = Setting { workers: 3, ..Setting::default() };
    holds("2 records, 3 workers", &worlds(2, &ALL, &setting));
    let kinds = kinds(&[Index(0), Index(1), Delete, Patch], 2);
    if is_large() {
        holds("3 records of 4 kinds, 3 workers", &worlds(3, kinds, &setting));
    }
    let at_once = Setting { searches: Searches::NotServed, ..setting };
    let what = format!("3 records of {} kinds, 3 workers, searches not served", kinds.len());
    holds(&what, &worlds(3, kinds, &at_once));
}

#[test]
fn compaction_removes_records_while_a_zombie_acts_on_them() {
    holds("3 records, 2 workers, compacted", &compacted(3, &WHOLE, &Setting::default()));
    if is_large() {
        let few = [Index(0), Index(1)];
        holds("4 records of 2 kinds, 2 workers, compacted", &compacted(4, &few, &Setting::default()));
    }
}

#[test]
fn elasticsearch_refuses_documents() {
    let bad = kinds(&[Index(0), Index(1), Bad(1), Bad(0)], 3);
    let what = format!("3 records of {} kinds, 2 workers, refused", bad.len());
    holds(&what, &refused(3, bad, &Setting::default()));
    let patched = [Index(0), Bad(0), Bad(1), Patch, Move(1)];
    holds("2 records, 2 workers, refused and patched", &refused(2, &patched, &Setting::default()));
    // Folds that are taken apart.
    let in_place = [Index(0), Patch, Spoil(0)];
    holds("3 records of 3 kinds, 2 workers, refused in place", &refused(3, &in_place, &Setting::default()));
    let healed = kinds(&[Index(0), Spoil(1), Heal, Bad(1)], 3);
    let what = format!("3 records of {} kinds, 2 workers, refused and healed", healed.len());
    holds(&what, &refused(3, healed, &Setting::default()));
}

/// Such a patch is a dead letter or not, depending on what it is folded with.
#[test]
fn patches_take_the_location_away() {
    let all = [Index(0), Hide, East(1), East(0), Part, Patch, Move(1), Delete, Touch];
    holds("3 records of 9 kinds, 2 workers, without a location", &worlds(3, &all, &Setting::default()));
    if is_large() {
        let few = &all[..3];
        holds("4 records of 3 kinds, 2 workers, without a location", &worlds(4, few, &Setting::default()));
        let three = Setting { workers: 3, searches: Searches::NotServed, ..Setting::default() };
        holds("3 records of 3 kinds, 3 workers, without a location", &worlds(3, few, &three));
        let late = Setting { losses: 1, deadlines: 1, ..Setting::default() };
        holds("3 records of 3 kinds, 2 workers, without a location, 1 late", &worlds(3, few, &late));
    }
    let counted = [Index(0), Hide, East(1), Tag];
    holds("tally: 3 records of 4 kinds, 2 workers, without a location", &worlds(3, &counted, &counting()));
}

#[test]
fn patches_of_missing_documents_create_or_are_dropped() {
    let kinds = kinds(&[Index(0), Delete, Patch, Move(1), Move(0), Touch], 4);
    for on_missing in [OnMissing::Create, OnMissing::Drop] {
        let setting = Setting { on_missing, ..Setting::default() };
        let what = format!("3 records of {} kinds, 2 workers, on_missing {on_missing:?}", kinds.len());
        holds(&what, &worlds(3, kinds, &setting));
    }
}

/// For every answer of the source, different each time: one place, another, or gone.
#[test]
fn documents_are_fetched_from_a_source_that_changes() {
    let few = [Index(0), Refeed, Patch, Delete];
    let refeeds = |length, alphabet: &[Record], setting: &Setting| {
        let mut worlds = worlds(length, alphabet, setting);
        worlds.retain(|world| world.script.contains(&Refeed));
        worlds
    };
    let three_of = kinds(&few, 3);
    let what = format!("refeed: 3 records of {} kinds, 2 workers", three_of.len());
    holds(&what, &refeeds(3, three_of, &Setting::default()));
    let moving = [Index(0), Index(1), Move(1), Touch, Refeed];
    if is_large() {
        holds("refeed: 3 records of 5 kinds, 2 workers", &refeeds(3, &moving, &Setting::default()));
    }
    let lossy = Setting { losses: 1, ..Setting::default() };
    holds("refeed: 2 records of 4 kinds, 2 workers, 1 loss", &refeeds(2, &few, &lossy));
    let late = Setting { deadlines: 1, ..Setting::default() };
    holds("refeed: 2 records of 4 kinds, 2 workers, 1 deadline", &refeeds(2, &few, &late));
    let three = Setting { workers: 3, ..Setting::default() };
    let two_of = kinds(&few, 2);
    let what = format!("refeed: 2 records of {} kinds, 3 workers", two_of.len());
    holds(&what, &refeeds(2, two_of, &three));
    let two_maps = Setting { maps: Maps::Apart, ..Setting::default() };
    holds("refeed: 2 records of 5 kinds, 2 workers, 2 maps", &refeeds(2, &moving, &two_maps));
}

#[test]
fn missing_documents_are_fetched() {
    let kinds = kinds(&[Index(0), Delete, Patch, Move(1), Touch, Refeed], 4);
    let setting = Setting { on_missing: OnMissing::Refeed, ..Setting::default() };
    let what = format!("3 records of {} kinds, 2 workers, on_missing Refeed", kinds.len());
    holds(&what, &worlds(3, kinds, &setting));
}

/// Harmless, as the protocol says: all worlds have the cache within an assignment, but not these two.
#[test]
fn lost_clears_and_calls_resent_at_every_step_are_harmless() {
    let setting = Setting { weakening: Weakening::ClearsAreLost, ..Setting::default() };
    let kinds = kinds(&ALL, 5);
    let what = format!("3 records of {} kinds, 2 workers, clears lost", kinds.len());
    holds(&what, &worlds(3, kinds, &setting));
    let setting = Setting { resends: true, searches: Searches::NotServed, ..Setting::default() };
    let length = if is_large() { 3 } else { 2 };
    holds(&format!("{length} records, 2 workers, every call resent"), &worlds(length, &ALL, &setting));
}

/// Documents that move, are tagged, and lose their tag.
#[test]
fn every_document_is_counted_exactly_once() {
    let kinds = kinds(&[Index(0), Index(1), Tagged(0), Tag, Delete, Patch, Move(1), Touch], 4);
    holds(&format!("tally: 3 records of {} kinds, 2 workers", kinds.len()), &worlds(3, kinds, &counting()));
}

#[test]
fn calls_increments_and_commits_of_what_is_counted_fail() {
    let few = [Index(0), Tagged(0), Tag, Delete];
    let setting = Setting { losses: 1, ..counting() };
    holds("tally: 2 records of 4 kinds, 2 workers, 1 loss", &worlds(2, &few, &setting));
    holds("tally: 3 records of 2 kinds, 2 workers, 1 loss", &worlds(3, &few[..2], &setting));
    let setting = Setting { deadlines: 1, ..counting() };
    holds("tally: 2 records of 4 kinds, 2 workers, 1 deadline", &worlds(2, &few, &setting));
    if is_large() {
        let setting = Setting { losses: 1, ..counting() };
        holds("tally: 3 records of 4 kinds, 2 workers, 1 loss", &worlds(3, &few, &setting));
    }
}

#[test]
fn three_workers_count() {
    let setting = Setting { workers: 3, ..counting() };
    if is_large() {
        holds("tally: 3 records of 2 kinds, 3 workers", &worlds(3, &[Index(0), Tagged(0)], &setting));
    }
    holds(
        "tally: 2 records of 4 kinds, 3 workers",
        &worlds(2, &[Index(0), Index(1), Tagged(0), Tag], &setting),
    );
}

/// With histories so short that entries wait for commits: they do not wait forever, and are counted.
#[test]
fn a_full_history_waits_for_a_commit() {
    let few = [Index(0), Tagged(0), Tag, Delete];
    let setting = Setting { max_versions: 1, ..counting() };
    holds("tally: 3 records of 4 kinds, 2 workers, histories of 1", &worlds(3, &few, &setting));
}

#[test]
fn geoshards_are_counted_while_two_maps_are_live() {
    let few = [Index(0), Index(1), Tagged(0), Delete, Tag, Touch];
    let setting = Setting { maps: Maps::Apart, searches: Searches::Served, ..counting() };
    holds("tally: 2 records of 6 kinds, 2 workers, 2 maps", &worlds(2, &few, &setting));
    let setting = Setting { maps: Maps::Alike, ..counting() };
    holds("tally: 2 records of 6 kinds, 2 workers, 2 maps that agree", &worlds(2, &few, &setting));
    if is_large() {
        let what = "tally: 3 records of 4 kinds, 2 workers, 2 maps that agree";
        holds(what, &worlds(3, &[Index(0), Tagged(0), Index(1), Tag], &setting));
    }
}

/// Whole documents only: a zombie's result for a refused document and a patch is a known limit (docs/tally.md).
#[test]
fn refused_documents_are_counted_as_their_placement_says() {
    let few = [Index(0), Tagged(0), Bad(0)];
    holds("tally: 3 records of 3 kinds, 2 workers, refused", &refused(3, &few, &counting()));
}

#[test]
fn created_missing_documents_are_counted() {
    let kinds = kinds(&[Index(0), Delete, Tag, Move(1), Move(0)], 4);
    for on_missing in [OnMissing::Create, OnMissing::Drop] {
        let setting = Setting { on_missing, ..counting() };
        let what = format!("tally: 3 records of {} kinds, 2 workers, on_missing {on_missing:?}", kinds.len());
        holds(&what, &worlds(3, kinds, &setting));
    }
}

/// Here another rule compensates for the removed one; `weakened.rs` removes both.
#[test]
fn in_place_over_its_own_record_is_counted() {
    let weakening = Weakening::Code(Sabotage::InPlaceOverItsOwnRecord);
    let setting = Setting { weakening, ..counting() };
    let few = [Index(0), Tagged(0), Patch, Tag];
    holds("tally: 3 records of 4 kinds, 2 workers, in place over its own record", &worlds(3, &few, &setting));
}

#[test]
fn placements_of_deleted_documents_are_swept() {
    let sweeping = Setting { sweeps: true, ..Setting::default() };
    let kinds = kinds(&[Index(0), Index(1), Delete, Patch, Move(1), Touch], 4);
    let what = format!("3 records of {} kinds, 2 workers, swept", kinds.len());
    holds(&what, &worlds(3, kinds, &sweeping));
    holds("4 records of 2 kinds, 2 workers, swept", &worlds(4, &[Index(0), Delete], &sweeping));
    let late = Setting { losses: 1, ..sweeping.clone() };
    holds("3 records of 2 kinds, 2 workers, swept, 1 loss", &worlds(3, &[Index(0), Delete], &late));
    let length = if is_large() { 3 } else { 2 };
    let three = Setting { workers: 3, ..sweeping.clone() };
    let what = format!("{length} records of 2 kinds, 3 workers, swept");
    holds(&what, &worlds(length, &[Index(0), Delete], &three));
    let tally = Setting { tally: true, ..sweeping };
    holds(
        "tally: 3 records of 3 kinds, 2 workers, swept",
        &worlds(3, &[Index(0), Tagged(0), Delete], &tally),
    );
}

#[test]
fn tombstones_are_forgotten_while_the_owner_is_behind() {
    let forgetting = Setting { forgets: true, ..Setting::default() };
    let kinds = kinds(&[Index(0), Index(1), Delete, Patch, Move(1), Touch], 4);
    let what = format!("3 records of {} kinds, 2 workers, forgotten", kinds.len());
    holds(&what, &worlds(3, kinds, &forgetting));
    holds("4 records of 2 kinds, 2 workers, forgotten", &worlds(4, &[Index(0), Delete], &forgetting));
    let late = Setting { losses: 1, ..forgetting.clone() };
    holds("3 records of 2 kinds, 2 workers, forgotten, 1 loss", &worlds(3, &[Index(0), Delete], &late));
    let length = if is_large() { 3 } else { 2 };
    let three = Setting { workers: 3, ..forgetting };
    let what = format!("{length} records of 2 kinds, 3 workers, forgotten");
    holds(&what, &worlds(length, &[Index(0), Delete], &three));
}

#[test]
fn a_snapshot_is_restored_while_producers_write() {
    let restoring = Setting { restores: true, ..Setting::default() };
    holds("restored: 2 records, 1 worker before", &worlds(2, &ALL, &restoring));
    let few = [Index(0), Index(1), Patch];
    holds("restored: 3 records of 3 kinds, 1 worker before", &worlds(3, &few, &restoring));
    let deleted = [Index(0), Patch, Delete];
    holds("restored: 3 records of 3 kinds, 1 worker before, deleted", &worlds(3, &deleted, &restoring));
    let lossy = Setting { losses: 1, ..restoring.clone() };
    holds("restored: 2 records of 3 kinds, 1 lost or late call", &worlds(2, &few, &lossy));
    if is_large() {
        let more = [Index(0), Index(1), Patch, Delete, Move(1), Touch];
        holds("restored: 3 records of 6 kinds, 1 worker before", &worlds(3, &more, &restoring));
        holds("restored: 4 records of 2 kinds, 1 worker before", &worlds(4, &few[..2], &restoring));
        holds("restored: 3 records of 2 kinds, 1 lost or late call", &worlds(3, &few[..2], &lossy));
        let two = Setting { workers: 3, ..restoring };
        holds("restored: 2 records of 3 kinds, 2 workers before", &worlds(2, &few, &two));
    }
}

/// A zombie may be unaware for any length of time: its claim expires.
#[test]
fn tombstones_are_forgotten_two_deadlines_after_they_were_made() {
    let timed = Setting { timed: true, ..Setting::default() };
    let kinds = kinds(&[Index(0), Index(1), Delete, Patch], 3);
    let at_once = Setting { searches: Searches::NotServed, ..timed.clone() };
    let what = format!("3 records of {} kinds, 2 workers, timed, searches not served", kinds.len());
    holds(&what, &worlds(3, kinds, &at_once));
    let length = if is_large() { 3 } else { 2 };
    let what = format!("{length} records of 2 kinds, 2 workers, timed");
    holds(&what, &worlds(length, &[Index(0), Index(1)], &timed));
    if is_large() {
        holds("3 records of 4 kinds, 2 workers, timed", &worlds(3, kinds, &timed));
        let more = [Index(0), Index(1), Index(2), Delete, Patch, Move(1), Touch];
        holds("3 records of 7 kinds, 2 workers, timed", &worlds(3, &more, &timed));
        holds("4 records of 2 kinds, 2 workers, timed", &worlds(4, &[Index(0), Delete], &timed));
    }
}

/// With few states, counts are also explored with old copies that stay for searches.
fn counting() -> Setting {
    Setting { tally: true, searches: Searches::NotServed, ..Setting::default() }
}

#[test]
fn fetched_documents_are_counted() {
    let few = [Index(0), Tagged(0), Tag, Refeed];
    holds("tally: refeed: 2 records of 4 kinds, 2 workers", &worlds(2, &few, &counting()));
}

#[test]
fn larger_bounds() {
    if !is_large() {
        return println!("model: larger bounds: with GEOFOLD_MODEL=large");
    }
    let two = Setting { searches: Searches::NotServed, ..Setting::default() };
    holds("4 records, 2 workers", &worlds(4, &ALL, &two));
    holds("4 records, 2 workers, compacted", &compacted(4, &WHOLE, &two));
    let all_refused = [Index(0), Index(1), Index(2), Delete, Bad(0), Bad(1), Bad(2), Patch, Move(1)];
    holds("3 records, 2 workers, refused", &refused(3, &all_refused, &two));
    let late = Setting { losses: 1, deadlines: 1, ..Setting::default() };
    holds("3 records, 2 workers, 1 lost or late call, 1 deadline", &worlds(3, &ALL, &late));
    let three = Setting { workers: 3, ..two.clone() };
    holds("3 records, 3 workers", &worlds(3, &ALL, &three));
}
