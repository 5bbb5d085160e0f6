//! An emitter with a scripted clock, and the counts that merging by position yields.

use std::collections::BTreeMap;

use super::*;
use crate::base::random::{Random, seed_of_test};
use crate::core::counting::facets::Facets;
use crate::core::counting::increment::{Delta, Increment};
use crate::testkit::testing::Merger;

const INTERVAL: Duration = Duration::from_secs(1);

fn at(milliseconds: u64) -> Instant {
    Instant::from_start(Duration::from_millis(milliseconds))
}

fn pos(offset: i64) -> Position {
    position(epoch(), offset)
}

fn epoch() -> Epoch {
    Epoch::new(3).unwrap()
}

fn emitter(start: i64) -> Emitter {
    let source = IncrementSource { topic: "documents".into(), partition: 5, epoch: epoch() };
    Emitter::new(source, Arc::new(Names::new()), INTERVAL, start, at(0))
}

fn edge(offset: i64, value: &str) -> CountChange {
    let after = serde_json::from_value(serde_json::json!({ "t": [value] })).unwrap();
    CountChange { pos: pos(offset), before: Facets::default(), after }
}

fn read(outgoing: &OutgoingIncrement) -> Increment {
    let increment = Increment::from_json(&outgoing.value).unwrap();
    assert_eq!(increment.key(), outgoing.key);
    assert_eq!(increment.edges.len(), outgoing.edges);
    increment
}

fn offsets(increment: &Increment) -> Vec<i64> {
    increment.edges.iter().map(|edge| edge.pos.offset()).collect()
}

#[test]
fn nothing_is_committed_before_its_increment_is_acknowledged() {
    let mut emitter = emitter(10);
    assert_eq!((emitter.let_through(10), emitter.due_at(10, true)), (10, None), "there is nothing to say");
    emitter.put([edge(11, "a")], at(5));
    assert_eq!(emitter.let_through(12), 10);
    assert_eq!(emitter.due_at(12, false), Some(at(1000)));
    let increment = read(&emitter.next(12, at(1000)));
    assert_eq!((offsets(&increment), increment.to), (vec![11], pos(12)));
    assert_eq!((emitter.let_through(12), emitter.due_at(15, true)), (10, None), "it is in flight");
    emitter.acknowledged();
    assert_eq!((emitter.let_through(12), emitter.let_through(15)), (12, 12));
    assert!(emitter.edges().is_empty());
    assert_eq!(emitter.due_at(12, true), None);
}

#[test]
fn watermark_without_edges_is_sent_too() {
    let mut emitter = emitter(10);
    let increment = read(&emitter.next(20, at(1000)));
    assert_eq!((offsets(&increment), increment.to), (vec![], pos(20)));
    emitter.acknowledged();
    assert_eq!(emitter.let_through(25), 20);
}

#[test]
fn increment_waits_for_its_interval_unless_needed_or_large() {
    let mut emitter = emitter(0);
    emitter.next(1, at(2000));
    emitter.acknowledged();
    assert_eq!(emitter.due_at(2, false), Some(at(3000)));
    assert!(emitter.due_at(2, true).unwrap() <= at(2000));
    emitter.put([edge(1, &"x".repeat(SEND_AT_BYTES)), edge(7, "a")], at(2100));
    assert!(emitter.due_at(2, false).unwrap() <= at(2000));
    emitter.next(1, at(2100));
    emitter.acknowledged();
    // The large one is above the watermark that was sent, and no longer new.
    assert_eq!(emitter.due_at(2, false), Some(at(3100)));
    emitter.next(2, at(3100));
    emitter.acknowledged();
    emitter.put([edge(3, &"x".repeat(SEND_AT_BYTES))], at(3200));
    assert!(emitter.due_at(4, false).unwrap() <= at(3100));
}

#[test]
fn oversized_increment_is_sent_in_parts_that_cover_themselves() {
    let mut emitter = emitter(0);
    emitter.put((1..=8).map(|n| edge(n, "a")), at(0));
    emitter.increment_bytes = 1000;
    let whole = emitter.next(20, at(1000));
    assert_eq!(whole.edges, 8);
    let (mut merged, mut parts) = (Merger::default(), Vec::new());
    assert!(emitter.too_large(whole.edges, at(9999)));
    while let Some(due) = emitter.due_at(20, false) {
        assert!(due <= at(1000), "the next part is due at once");
        let part = emitter.next(20, at(1000));
        if part.value.len() > 250 {
            assert!(emitter.too_large(part.edges, at(9999)));
            continue;
        }
        let part = read(&part);
        parts.push(offsets(&part).len());
        emitter.acknowledged();
        assert_eq!(emitter.let_through(20), part.to.offset());
        // Merging twice is harmless.
        merged.merge(&part);
        merged.merge(&part);
    }
    assert!(parts.len() > 2, "{parts:?}");
    assert_eq!(merged.counts.iter().collect::<Vec<_>>(), [("t", "a", 8)]);
    assert_eq!((merged.merged_to["documents/5"], emitter.let_through(30)), (pos(20), 20));
}

#[test]
fn single_oversized_edge_is_retried_and_holds_the_watermark() {
    let mut emitter = emitter(0);
    emitter.put([edge(1, "a"), edge(2, "b")], at(0));
    emitter.increment_bytes = 1;
    let first = emitter.next(3, at(1000));
    assert_eq!(first.edges, 1);
    assert!(!emitter.too_large(first.edges, at(5000)));
    assert_eq!(emitter.due_at(3, true), Some(at(5000)));
    assert_eq!(emitter.let_through(3), 0);
    let again = emitter.next(3, at(5000));
    assert_eq!(offsets(&read(&again)), [1]);
    emitter.acknowledged();
    assert_eq!(emitter.let_through(3), 2);
}

#[test]
fn edges_of_an_earlier_epoch_are_sent_but_cover_nothing() {
    let mut emitter = emitter(4);
    let old = |offset| CountChange { pos: position(Epoch::new(2).unwrap(), offset), ..edge(0, "a") };
    emitter.put([old(1_000), old(2_000), edge(5, "b")], at(0));
    emitter.increment_bytes = 1;
    let part = read(&emitter.next(6, at(1000)));
    assert_eq!(part.to, position(Epoch::new(2).unwrap(), 2_000));
    emitter.acknowledged();
    assert_eq!(emitter.let_through(6), 4);
}

#[test]
fn increment_names_are_unique() {
    let (one, other) = (Names::new(), Names::new());
    let mut names = vec![one.next(), one.next(), other.next(), other.next()];
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 4);
}

/// Successive owners of one partition, each of which may crash between any two steps while former owners go on for a
/// while; increments arrive once or more, some late. Merged by position, they equal the sum of all edges.
#[test]
fn merged_counts_equal_a_recount_despite_crashes_and_duplicates() {
    let seed = seed_of_test();
    println!("GEOFOLD_SEED={seed}");
    let mut random = Random::new(seed);
    let (mut crashes, mut zombies) = (0, 0);
    for round in 0..200 {
        let end = 40_i64;
        // The edge of each position is the same for every owner; some change nothing.
        let truth: BTreeMap<i64, CountChange> = (0..end)
            .filter(|offset| offset % 4 != 3)
            .map(|offset| (offset, edge(offset, &format!("{}", offset % 5))))
            .collect();
        let mut recount = Delta::default();
        truth.values().for_each(|edge| recount.merge(&edge.delta()));
        let mut log: Vec<Increment> = Vec::new();
        let mut committed = 0_i64;
        let mut owners: Vec<(Emitter, i64)> = vec![(emitter(0), 0)];
        while committed < end {
            if owners.len() < 4 && random.below(12) == 0 {
                // The partition moves from an owner that does not know yet, or has crashed.
                crashes += 1;
                if random.below(2) == 0 {
                    owners.pop();
                }
                owners.push((emitter(committed), committed));
            }
            let owns = owners.len() - 1;
            let who = usize::try_from(random.below(owners.len() as u64)).unwrap();
            zombies += u32::from(who < owns);
            let (emitter, done) = &mut owners[who];
            let now = at(random.below(100_000));
            match random.below(3) {
                0 if *done < end => {
                    // Some are done ahead of the watermark, some again.
                    let from = (*done - 3).max(0);
                    let to = *done + 1 + i64::try_from(random.below(4)).unwrap();
                    emitter.put(truth.range(from..to).map(|(_, edge)| edge.clone()), now);
                    *done += 1;
                }
                1 if emitter.due_at(*done, true).is_some() => {
                    emitter.increment_bytes = [1, 100, 1_000][usize::try_from(random.below(3)).unwrap()];
                    let increment = read(&emitter.next(*done, now));
                    for _ in 0..random.below(3) {
                        log.push(increment.clone());
                    }
                    // Not acknowledged, and sent again unchanged.
                    log.push(increment);
                    if random.below(4) > 0 {
                        emitter.acknowledged();
                    } else {
                        emitter.under_way = None;
                    }
                }
                _ if who == owns => committed = committed.max(emitter.let_through(*done)),
                _ => {}
            }
        }
        let mut merged = Merger::default();
        log.iter().for_each(|increment| merged.merge(increment));
        assert_eq!(merged.counts, recount, "seed {seed}, round {round}");
        assert_eq!(merged.merged_to["documents/5"], pos(end), "seed {seed}, round {round}");
    }
    assert!(crashes > 100 && zombies > 100, "seed {seed}: {crashes} {zombies}");
}
