//! The ledger against its rules, and against a simple reference model.

mod dead_letters;
mod histories;
mod look_ahead;
mod parked;
mod returned;
mod separated;
mod sweeps;

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::base::ids::ShardId;
use crate::core::mover::{
    self, AffectedShards, Carry, DecidedPart, Done, Outcome, RetryState, Settled, SourceAnswer,
};
use crate::core::write::{Body, PatchMove};
use crate::testkit::testing::id;
use crate::testkit::testing::rules;
use crate::worker::distribution::scheduler::ShardChange;
use crate::worker::refeed::Held;

const NOW: Instant = at(1);

const LATER: Instant = at(5);

const fn at(secs: u64) -> Instant {
    Instant::from_start(Duration::from_secs(secs))
}

fn epoch() -> Epoch {
    Epoch::new(1).unwrap()
}

fn position(offset: i64) -> Position {
    Position::new(epoch(), offset).unwrap()
}

fn ledger() -> Ledger {
    Ledger::new(rules(), epoch())
}

fn index(doc_id: &str, offset: i64) -> Write {
    let doc = r#"{"location":"1,2"}"#;
    let at = rules().location.locate(doc.as_bytes()).unwrap().into();
    Write { id: id(doc_id), position: position(offset), body: Body::Index { doc: doc.into(), at } }
}

fn delete(doc_id: &str, offset: i64) -> Write {
    Write { id: id(doc_id), position: position(offset), body: Body::Delete }
}

/// Removes the location: fine by itself, but not for a document whose `location` is a string.
fn spoiling_patch(doc_id: &str, offset: i64) -> Write {
    moving_patch(doc_id, offset, r#"{"location":{"lat":null}}"#)
}

/// Mentions a part of the location.
fn moving_patch(doc_id: &str, offset: i64, patch: &'static str) -> Write {
    let body = Body::Patch { patch: patch.into(), moves: PatchMove::Unclear };
    Write { id: id(doc_id), position: position(offset), body }
}

/// Takes nothing away.
fn patch(doc_id: &str, offset: i64) -> Write {
    let body = Body::Patch { patch: r#"{"n":1}"#.into(), moves: PatchMove::Stays };
    Write { id: id(doc_id), position: position(offset), body }
}

fn take(ledger: &mut Ledger, records: &[(&str, i64)]) {
    for &(id, offset) in records {
        ledger.take(delete(id, offset), at(1));
    }
}

fn ids(entries: &[Entry]) -> Vec<&str> {
    entries.iter().map(|entry| entry.id.as_str()).collect()
}

fn settle(ledger: &mut Ledger, entries: Vec<Entry>, outcome: &Outcome) -> Settlement {
    let settled = entries.into_iter().map(|entry| Settled {
        entry,
        outcome: outcome.clone(),
        touched: AffectedShards::default(),
    });
    ledger.settle(settled.collect(), NOW)
}

fn unanswered() -> Outcome {
    Outcome::Again { reason: mover::UNANSWERED, carry: Carry::default() }
}

fn unreadable() -> Outcome {
    Outcome::Again { reason: "unreadable_placement", carry: Carry::default() }
}

/// The placement was set back after Elasticsearch refused the document.
fn set_back() -> Outcome {
    let refusal = Some(Refusal { reason: "test", detail: String::new() });
    let carry = RetryState { refusal, ..RetryState::default() }.into();
    Outcome::Again { reason: mover::SET_BACK, carry }
}

/// A fold of several records was refused in place.
fn refused_fold() -> Outcome {
    let Outcome::Again { carry, .. } = set_back() else { unreachable!() };
    Outcome::Again { reason: mover::REFUSED_FOLD, carry }
}

fn record(doc_id: &str, offset: i64) -> Record {
    Record { offset, key: Some(doc_id.to_owned().into()), value: None, headers: None }
}

fn refused() -> Outcome {
    Outcome::DeadLetter(Refusal { reason: "test", detail: String::new() }.into())
}

const DONE: Outcome = Outcome::Done(Done::Deleted);

#[test]
fn no_watermark_before_the_first_record() {
    assert_eq!(ledger().watermark(), None);
}

#[test]
fn watermark_stays_at_the_first_unfinished_record() {
    let mut ledger = ledger();
    take(&mut ledger, &[("a", 10), ("b", 11), ("c", 12)]);
    assert_eq!(ledger.watermark(), Some(10));
    let mut batch = ledger.hand_out(10, usize::MAX, NOW);
    let rest = batch.split_off(1);
    settle(&mut ledger, rest, &DONE);
    assert_eq!(ledger.watermark(), Some(10), "a is in flight");
    settle(&mut ledger, batch, &DONE);
    assert_eq!(ledger.watermark(), Some(13));
    assert_eq!(ledger.bytes(), 0);
}

#[test]
fn document_dirtied_in_flight_holds_the_watermark_at_its_new_record() {
    let mut ledger = ledger();
    take(&mut ledger, &[("a", 10)]);
    let batch = ledger.hand_out(10, usize::MAX, NOW);
    take(&mut ledger, &[("a", 11)]);
    let settlement = settle(&mut ledger, batch, &DONE);
    assert_eq!((settlement.deleted, settlement.folded), (1, 0));
    assert_eq!(ledger.watermark(), Some(11));
    let batch = ledger.hand_out(10, usize::MAX, NOW);
    assert_eq!((batch[0].fold.first, batch[0].fold.last), (position(11), position(11)));
}

#[test]
fn hot_document_keeps_its_first_score_and_queue_position() {
    let mut ledger = ledger();
    take(&mut ledger, &[("hot", 10), ("b", 11), ("hot", 12), ("c", 13), ("hot", 14)]);
    let batch = ledger.hand_out(1, usize::MAX, NOW);
    assert_eq!(ids(&batch), ["hot"]);
    let settlement = settle(&mut ledger, batch, &DONE);
    assert_eq!((settlement.deleted, settlement.folded), (1, 2));
    assert_eq!(ledger.watermark(), Some(11));
}

#[test]
fn document_is_as_old_as_its_first_record() {
    let mut ledger = ledger();
    ledger.take(delete("a", 10), at(1));
    ledger.take(delete("a", 11), at(4));
    assert_eq!(ledger.pending_since(), Some(at(1)));
    ledger.hand_out(1, usize::MAX, NOW);
    ledger.take(delete("a", 12), at(4));
    assert_eq!(ledger.oldest_since(), Some(at(1)));
    assert_eq!(ledger.pending_since(), Some(at(4)));
}

#[test]
fn batch_limits_apply_but_admit_at_least_one_document() {
    let mut ledger = ledger();
    take(&mut ledger, &[("a", 1), ("b", 2), ("c", 3), ("d", 4)]);
    let each = ledger.bytes() / 4;
    let mut size = |documents, bytes| {
        let batch = ledger.hand_out(documents, bytes, NOW);
        let size = batch.len();
        settle(&mut ledger, batch, &Outcome::Parked { until: position(100) });
        let parked: Vec<_> = ledger.parked.keys().cloned().collect();
        parked.iter().for_each(|id| ledger.unpark(id, Carry::default()));
        size
    };
    assert_eq!(size(3, usize::MAX), 3);
    assert_eq!(size(9, usize::MAX), 4);
    assert_eq!(size(9, 2 * each), 2);
    assert_eq!(size(9, 2 * each + 1), 2);
    assert_eq!(size(9, 0), 1);
}

/// `a` from offset 10 waits for the record at 15.
fn parked() -> Ledger {
    let mut ledger = ledger();
    take(&mut ledger, &[("a", 10), ("b", 11)]);
    let mut batch = ledger.hand_out(9, usize::MAX, NOW);
    let b = batch.split_off(1);
    settle(&mut ledger, b, &DONE);
    let settlement = settle(&mut ledger, batch, &Outcome::Parked { until: position(15) });
    assert_eq!(settlement.parked, [(id("a"), position(10), position(15))]);
    assert!(ledger.only_parked() && !ledger.has_work());
    assert_eq!((ledger.watermark(), ledger.parked(), ledger.documents()), (Some(10), 1, 1));
    assert!(ledger.hand_out(9, usize::MAX, NOW).is_empty());
    ledger
}

#[test]
fn deletes_count_as_held_bytes() {
    let mut ledger = ledger();
    take(&mut ledger, &[("a", 10), ("b", 11)]);
    assert!(ledger.bytes() >= 2 * RECORD_OVERHEAD_BYTES);
    take(&mut ledger, &[("a", 12)]);
    assert!(ledger.bytes() < 3 * RECORD_OVERHEAD_BYTES, "but folded it costs once");
}

#[test]
fn settlement_reports_changes_and_moves_per_geoshard() {
    let mut ledger = ledger();
    for (offset, name) in (7..).zip(["a", "b", "c"]) {
        ledger.take(index(name, offset), LATER);
    }
    let shard = |name: &str| ShardId::new(name).unwrap();
    let entries = ledger.hand_out(10, usize::MAX, NOW);
    let done = || Outcome::Done(Done::Indexed { moved: false });
    let outcomes = [
        (done(), AffectedShards { target: Some(shard("to")), sources: vec![shard("from")] }),
        (
            Outcome::Done(Done::AlreadyApplied),
            AffectedShards { target: Some(shard("to")), sources: Vec::new() },
        ),
        // Not done yet: reported later.
        (
            Outcome::Again { reason: "conflict", carry: Carry::default() },
            AffectedShards { target: Some(shard("later")), sources: Vec::new() },
        ),
    ];
    let settled = entries.into_iter().zip(outcomes);
    let settled = settled.map(|(entry, (outcome, touched))| Settled { entry, outcome, touched }).collect();
    let changes = ledger.settle(settled, NOW).changes;
    let moved = BTreeSet::from([shard("to")]);
    assert_eq!(
        changes,
        BTreeMap::from([
            (shard("from"), ShardChange { documents: 1, offsets: Some((7, 7)), moved_to: moved }),
            (shard("to"), ShardChange { documents: 2, offsets: Some((7, 8)), moved_to: BTreeSet::new() }),
        ])
    );
}
