//! Replays operations that were recorded on the original, Redis::Ick, and compares every reply and every state.
//!
//! `GEOFOLD_ICK_VECTORS=<file.jsonl>` replays another recording instead: one sequence a line, each from an empty set.

use std::fs;

use geofold::core::dirty_set::{Added, DirtySet, Entries, SetStats};
use serde::Deserialize;

type Scored = Vec<(String, i64)>;

#[derive(Deserialize)]
struct Sequence {
    seq: u64,
    ops: Vec<Step>,
}

#[derive(Debug, Deserialize)]
struct Step {
    #[serde(flatten)]
    op: Op,
    exists: bool,
    pset: Scored,
    cset: Scored,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Op {
    Add { members: Scored, reply: (usize, usize) },
    Reserve { max: usize, backwash: bool, reply: Scored },
    Commit { members: Vec<String>, reply: usize },
    Exchange { max: usize, backwash: bool, commit: Vec<String>, reply: (usize, Scored) },
    Stats { reply: Option<StatsReply> },
    Del { reply: u8 },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StatsReply {
    #[serde(rename = "ver")]
    _version: String,
    pset_size: usize,
    cset_size: usize,
    total_size: usize,
    pset_min: Option<i64>,
    pset_max: Option<i64>,
    cset_min: Option<i64>,
    cset_max: Option<i64>,
    total_min: Option<i64>,
    total_max: Option<i64>,
}

fn list(entries: Entries<'_, String, ()>) -> Scored {
    entries.map(|entry| (entry.key.clone(), entry.score)).collect()
}

fn nothing(_: &String, (): &mut (), (): ()) {}

fn replay(set: &mut DirtySet<String, ()>, op: &Op) {
    match op {
        Op::Add { members, reply } => {
            let added: Vec<_> =
                members.iter().map(|(key, score)| set.add(key.clone(), *score, (), nothing)).collect();
            if members.is_empty() {
                // Ours adds one at a time; the original's empty call leaves the same trace as this.
                set.commit([]);
            }
            let count = |wanted| added.iter().filter(|&&added| added == wanted).count();
            assert_eq!((count(Added::New), count(Added::Lowered)), *reply);
        }
        Op::Reserve { max, backwash, reply } => {
            assert_eq!(list(set.reserve(*max, *backwash, nothing)), *reply)
        }
        Op::Commit { members, reply } => assert_eq!(set.commit(members), *reply),
        Op::Exchange { max, backwash, commit, reply } => {
            let exchanged = set.exchange(*max, commit, *backwash, nothing);
            assert_eq!((exchanged.committed, list(exchanged.batch)), *reply);
        }
        Op::Stats { reply } => {
            let stats = set.stats();
            assert_eq!(stats.is_some(), reply.is_some());
            let (Some(stats), Some(reply)) = (stats, reply) else { return };
            let expected = |size, min: Option<i64>, max| SetStats { size, scores: min.zip(max) };
            assert_eq!(stats.pending, expected(reply.pset_size, reply.pset_min, reply.pset_max));
            assert_eq!(stats.in_flight, expected(reply.cset_size, reply.cset_min, reply.cset_max));
            assert_eq!(stats.total(), expected(reply.total_size, reply.total_min, reply.total_max));
        }
        Op::Del { reply } => assert_eq!(set.clear(), *reply),
    }
}

#[test]
fn every_recorded_operation_of_the_original_gives_the_same_reply_and_state() {
    let elsewhere = std::env::var_os("GEOFOLD_ICK_VECTORS");
    let path = elsewhere
        .clone()
        .unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/ick.jsonl").into());
    let recording = fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {path:?}: {error}"));

    let mut replayed = 0;
    for line in recording.lines() {
        let sequence: Sequence = serde_json::from_str(line).unwrap();
        let mut set = DirtySet::new();
        for (number, step) in sequence.ops.iter().enumerate() {
            // Shown only if an assertion fails.
            println!("sequence {}, operation {number}: {step:?}", sequence.seq);
            replay(&mut set, &step.op);
            assert_eq!(set.stats().is_some(), step.exists);
            assert_eq!(list(set.pending()), step.pset);
            assert_eq!(list(set.in_flight()), step.cset);
            replayed += 1;
        }
    }
    if elsewhere.is_none() {
        assert_eq!(replayed, 8_000, "the recording has 200 sequences of 40 operations");
    }
    assert!(replayed > 0, "{path:?} holds no operation");
}
