//! The ledger against its rules, and against a simple reference model.

mod sweeps;

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::core::mover::SourceAnswer;
use crate::core::write::{Body, PatchMove};
use crate::testkit::testing::id;
use crate::testkit::testing::rules;
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
    let at = rules().location.locate(doc.as_bytes()).unwrap();
    Write { id: id(doc_id), position: position(offset), body: Body::Index { doc: doc.into(), at } }
}

fn delete(doc_id: &str, offset: i64) -> Write {
    Write { id: id(doc_id), position: position(offset), body: Body::Delete }
}

/// Removes the location: fine by itself, but not for a document whose `location` is a string.
fn spoiling_patch(doc_id: &str, offset: i64) -> Write {
    let body = Body::Patch { patch: r#"{"location":{"lat":null}}"#.into(), moves: PatchMove::Unclear };
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
    Outcome::Again { reason: mover::UNANSWERED, carry: RetryState::default() }
}

fn unreadable() -> Outcome {
    Outcome::Again { reason: "unreadable_placement", carry: RetryState::default() }
}

/// The placement was set back after Elasticsearch refused the document.
fn set_back() -> Outcome {
    let refusal = Some(Refusal { reason: "test", detail: String::new() });
    Outcome::Again { reason: mover::SET_BACK, carry: RetryState { refusal, ..RetryState::default() } }
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
    Outcome::DeadLetter(Refusal { reason: "test", detail: String::new() })
}

const DONE: Outcome = Outcome::Done(Done::Deleted);

#[test]
fn fetched_answer_is_dropped_while_its_entry_waits_long() {
    let mut ledger = ledger();
    let write = Write { id: id("a"), position: position(1), body: Body::Refeed };
    ledger.take(write, at(1));
    let bytes = ledger.bytes();
    let fetch = |ledger: &mut Ledger, batch, now: Instant| {
        let settled = |entry| Settled { entry, outcome: Outcome::Fetch, touched: AffectedShards::default() };
        ledger.settle(Vec::into_iter(batch).map(settled).collect(), now);
        let question = ledger.take_questions().remove(0);
        ledger.answered(&question, SourceAnswer::Document(r#"{"location":"1,2"}"#.into()), Held::none());
    };
    let batch = ledger.hand_out(10, usize::MAX, NOW);
    fetch(&mut ledger, batch, NOW);
    assert_eq!(ledger.bytes(), bytes + 18);
    let mut now = NOW;
    let mut keeps = Vec::new();
    for _ in 0..4 {
        let batch = ledger.hand_out(10, usize::MAX, now);
        keeps.push(batch[0].fetched.is_some());
        let settled = |entry| Settled { entry, outcome: unreadable(), touched: AffectedShards::default() };
        ledger.settle(batch.into_iter().map(settled).collect(), now);
        now = now + Duration::from_secs(10);
    }
    assert_eq!((keeps.as_slice(), ledger.bytes()), ([true, true, false, false].as_slice(), bytes));
    let batch = ledger.hand_out(10, usize::MAX, now);
    fetch(&mut ledger, batch, now);
    assert!(ledger.hand_out(10, usize::MAX, now)[0].fetched.is_some(), "it can fetch again");
}

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
        parked.iter().for_each(|id| ledger.unpark(id, RetryState::default()));
        size
    };
    assert_eq!(size(3, usize::MAX), 3);
    assert_eq!(size(9, usize::MAX), 4);
    assert_eq!(size(9, 2 * each), 2);
    assert_eq!(size(9, 2 * each + 1), 2);
    assert_eq!(size(9, 0), 1);
}

#[test]
fn returned_entries_count_in_the_next_batch() {
    let mut ledger = ledger();
    take(&mut ledger, &[("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5)]);
    let each = ledger.bytes() / 5;
    let batch = ledger.hand_out(2, usize::MAX, NOW);
    settle(&mut ledger, batch, &unanswered());
    assert_eq!(ids(&ledger.hand_out(3, usize::MAX, NOW)), ["a", "b", "c"]);
    assert_eq!(ids(&ledger.hand_out(9, 4 * each, NOW)), ["a", "b", "c", "d"]);
    assert_eq!(ids(&ledger.hand_out(9, 4 * each, NOW)), ["a", "b", "c", "d", "e"], "one more always fits");
}

#[test]
fn returned_entry_carries_its_state_to_the_next_batch_once() {
    let mut ledger = ledger();
    take(&mut ledger, &[("a", 1)]);
    let batch = ledger.hand_out(1, usize::MAX, NOW);
    assert_eq!(batch[0].carry, RetryState::default());
    let carry = RetryState { finish_recorded: true, ..RetryState::default() };
    let settlement = settle(&mut ledger, batch, &Outcome::Again { reason: "test", carry: carry.clone() });
    assert_eq!(settlement.again, BTreeMap::from([("test", 1)]));
    let batch = ledger.hand_out(1, usize::MAX, NOW);
    assert_eq!(batch[0].carry, carry);
    settle(&mut ledger, batch, &unreadable());
    assert_eq!(ledger.hand_out(1, usize::MAX, NOW)[0].carry, RetryState::default());
}

#[test]
fn entry_returned_with_an_answer_holds_the_watermark_not_reading() {
    let mut ledger = ledger();
    take(&mut ledger, &[("a", 1)]);
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    settle(&mut ledger, batch, &unanswered());
    assert_eq!(ledger.oldest_since(), Some(at(1)), "it lacks an answer");
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    settle(&mut ledger, batch, &unreadable());
    ledger.take(delete("b", 2), at(4));
    assert_eq!((ledger.oldest_since(), ledger.oldest_owed_since()), (Some(at(4)), Some(at(1))));
    assert_eq!((ledger.watermark(), ledger.documents()), (Some(1), 2));
    assert!(ledger.has_work());
}

#[test]
fn entry_returning_repeatedly_is_retried_with_growing_pauses() {
    let mut ledger = ledger();
    take(&mut ledger, &[("a", 1)]);
    let mut tries = Vec::new();
    for second in 1..=1_000 {
        let batch = ledger.hand_out(9, usize::MAX, at(second));
        if batch.is_empty() {
            assert!(!ledger.has_due_work(at(second)) && ledger.has_work());
            continue;
        }
        tries.push(second);
        let settled = batch.into_iter().map(|entry| Settled {
            entry,
            outcome: unreadable(),
            touched: AffectedShards::default(),
        });
        ledger.settle(settled.collect(), at(second));
    }
    let pauses: Vec<u64> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses.is_sorted() && pauses.starts_with(&[1, 1]), "{pauses:?}");
    assert_eq!(pauses.last(), Some(&30));
    assert_eq!(ledger.next_retry(), tries.last().map(|last| at(last + 30)));
    assert_eq!(
        ledger.bytes(),
        held_bytes(&id("a"), &Fold::from_write(delete("a", 1), |_| -> ShardId { unreachable!() }).1)
    );
}

#[test]
fn returned_entries_take_at_most_half_of_a_batch() {
    let mut ledger = ledger();
    take(&mut ledger, &[("a", 1), ("b", 2), ("c", 3), ("d", 4)]);
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    settle(&mut ledger, batch, &unreadable());
    take(&mut ledger, &[("e", 5), ("f", 6), ("g", 7)]);
    assert_eq!(ids(&ledger.hand_out(4, usize::MAX, NOW)), ["a", "b", "e", "f"]);
}

#[test]
fn newer_records_are_folded_into_a_returned_entry() {
    let mut ledger = ledger();
    take(&mut ledger, &[("a", 1)]);
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    take(&mut ledger, &[("a", 2)]);
    settle(&mut ledger, batch, &unreadable());
    take(&mut ledger, &[("a", 3), ("b", 4)]);
    assert_eq!((ledger.documents(), ledger.pending()), (2, 1));
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    assert_eq!(ids(&batch), ["a", "b"]);
    assert_eq!((batch[0].fold.first, batch[0].fold.last), (position(1), position(3)));
    take(&mut ledger, &[("a", 5)]);
    settle(&mut ledger, batch, &DONE);
    assert_eq!(ledger.watermark(), Some(5), "records that came during the batch are dirty now");
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    settle(&mut ledger, batch, &DONE);
    assert_eq!((ledger.watermark(), ledger.bytes()), (Some(6), 0));
}

#[test]
fn nothing_is_folded_into_a_refused_entry() {
    let mut ledger = ledger();
    take(&mut ledger, &[("a", 1), ("a", 2)]);
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    take(&mut ledger, &[("a", 3)]);
    settle(&mut ledger, batch, &set_back());
    take(&mut ledger, &[("a", 4)]);
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    assert_eq!((ids(&batch), batch[0].fold.last), (vec!["a"], position(2)));
    assert!(batch[0].carry.refusal.is_some());
    let Outcome::Again { carry, .. } = set_back() else { panic!("it comes back") };
    settle(&mut ledger, batch, &Outcome::Again { reason: mover::UNANSWERED, carry });
    take(&mut ledger, &[("a", 5)]);
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    assert_eq!((ids(&batch), batch[0].fold.last), (vec!["a"], position(2)), "nor without an answer");
    let settlement = settle(&mut ledger, batch, &refused());
    assert_eq!(settlement.undeliverable[0].fold.last, position(2));
    ledger.delivered(1, Some(&id("a")));
    assert_eq!(ledger.watermark(), Some(3));
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    assert_eq!((batch[0].fold.first, batch[0].fold.last), (position(3), position(5)));
    assert!(batch[0].carry.refusal.is_none());
}

#[test]
fn records_of_a_refused_fold_are_handed_out_one_by_one() {
    let mut ledger = ledger();
    take(&mut ledger, &[("a", 1), ("b", 2), ("a", 3), ("a", 5)]);
    let mut batch = ledger.hand_out(9, usize::MAX, NOW);
    let b = batch.split_off(1);
    settle(&mut ledger, b, &DONE);
    settle(&mut ledger, batch, &refused_fold());
    assert_eq!(ledger.take_rereads(9), [Reread { id: id("a"), offsets: vec![1, 3, 5] }]);
    take(&mut ledger, &[("a", 6)]);
    assert!(ledger.hand_out(9, usize::MAX, LATER).is_empty(), "it waits for its records");
    assert_eq!((ledger.watermark(), ledger.documents()), (Some(1), 1));
    let records = [1, 3, 5].map(|offset| (delete("a", offset), record("a", offset)));
    assert_eq!(ledger.reread(&id("a"), Ok(records.into()), NOW), 0);
    assert!(ledger.bytes() > 4 * RECORD_OVERHEAD_BYTES);
    for (offset, outcome, then) in [(1, DONE, 3), (3, refused(), 3), (5, DONE, 6)] {
        let batch = ledger.hand_out(9, usize::MAX, NOW);
        assert_eq!((batch[0].fold.first, batch[0].fold.last), (position(offset), position(offset)));
        let settlement = settle(&mut ledger, batch, &outcome);
        let letters: Vec<_> = settlement.undeliverable.iter().filter_map(|one| one.record.clone()).collect();
        assert_eq!(letters.len(), usize::from(offset == 3), "the record as it was");
        assert_eq!(ledger.watermark(), Some(then));
        if offset == 3 {
            assert!(ledger.hand_out(9, usize::MAX, LATER).is_empty(), "its letter is not delivered");
            assert!(!ledger.has_work());
            ledger.delivered(3, Some(&id("a")));
            assert_eq!(ledger.watermark(), Some(5));
        }
    }
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    assert_eq!(batch[0].fold.first, position(6), "what came meanwhile is not part of it");
    settle(&mut ledger, batch, &DONE);
    assert_eq!((ledger.watermark(), ledger.bytes()), (Some(7), 0));
}

#[test]
fn records_that_were_decided_as_one_stay_one() {
    let mut ledger = ledger();
    take(&mut ledger, &[("a", 1), ("a", 3), ("a", 5), ("a", 7)]);
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    let Outcome::Again { reason, carry } = refused_fold() else { panic!("it comes back") };
    let carry = RetryState { decided_to: Some(position(3)), ..carry };
    settle(&mut ledger, batch, &Outcome::Again { reason, carry });
    ledger.take_rereads(9);
    assert_eq!(ledger.tried(), 0);
    let records = [1, 3, 5, 7].map(|offset| (delete("a", offset), record("a", offset)));
    ledger.reread(&id("a"), Ok(records.into()), NOW);
    let mut tried = Vec::new();
    while let [entry] = &ledger.hand_out(9, usize::MAX, NOW)[..] {
        assert_eq!(ledger.tried(), 1);
        let Fold { first, last, records, .. } = &*entry.fold;
        tried.push((first.offset(), last.offset(), *records, ledger.single_record(&id("a")).is_some()));
        settle(&mut ledger, vec![entry.clone()], &DONE);
    }
    assert_eq!(tried, [(1, 3, 2, false), (5, 5, 1, true), (7, 7, 1, true)]);
    assert_eq!((ledger.watermark(), ledger.bytes(), ledger.tried()), (Some(8), 0, 0));
}

#[test]
fn a_fold_whose_records_are_gone_is_undeliverable_as_one() {
    let mut ledger = ledger();
    take(&mut ledger, &[("a", 1), ("a", 3)]);
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    settle(&mut ledger, batch, &refused_fold());
    ledger.take_rereads(9);
    assert_eq!(ledger.reread(&id("a"), Ok(Vec::new()), NOW), 0);
    let [letter] = &ledger.take_rejected()[..] else { panic!("one letter") };
    assert_eq!((letter.fold.records, letter.stage), (2, "write"));
    assert!(letter.refusal.detail.ends_with("one by one: they are gone from the topic"), "{letter:?}");
    assert_eq!((ledger.watermark(), ledger.bytes(), ledger.documents()), (Some(1), 0, 0));
    ledger.delivered(1, Some(&id("a")));
    assert_eq!(ledger.watermark(), Some(4));
}

#[test]
fn returned_entry_can_be_parked_with_newer_records() {
    let mut ledger = ledger();
    take(&mut ledger, &[("a", 1)]);
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    settle(&mut ledger, batch, &unreadable());
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    take(&mut ledger, &[("a", 2)]);
    settle(&mut ledger, batch, &Outcome::Parked { until: position(9) });
    assert_eq!((ledger.parked(), ledger.documents(), ledger.watermark()), (1, 1, Some(1)));
    assert!(ledger.only_parked());
    take(&mut ledger, &[("a", 9)]);
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    assert_eq!(
        (batch[0].fold.first, batch[0].fold.last, batch[0].fold.records),
        (position(1), position(9), 3)
    );
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
fn parked_entry_is_released_by_its_record() {
    let mut ledger = parked();
    take(&mut ledger, &[("a", 12), ("b", 13)]);
    assert_eq!((ledger.pending(), ledger.parked(), ledger.watermark()), (1, 1, Some(10)), "12 is folded in");
    take(&mut ledger, &[("a", 15)]);
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    assert_eq!(ids(&batch), ["a", "b"]);
    assert_eq!((batch[0].fold.first, batch[0].fold.last), (position(10), position(15)));
    assert_eq!(batch[0].carry, RetryState::default());
    let settlement = settle(&mut ledger, batch, &DONE);
    assert_eq!((settlement.folded, ledger.bytes(), ledger.watermark()), (2, 0, Some(16)));
}

#[test]
fn parked_entry_is_released_by_a_later_record_of_its_document() {
    let mut ledger = parked();
    take(&mut ledger, &[("a", 17)]);
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    assert_eq!((batch[0].fold.last, &batch[0].carry), (position(17), &RetryState::default()));
}

#[test]
fn parked_entry_finishes_the_decision_once_its_record_was_passed() {
    let mut ledger = parked();
    ledger.read_up_to(15);
    assert!(ledger.only_parked(), "15 itself was not read yet");
    ledger.read_up_to(16);
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    assert!(batch[0].carry.finish_recorded);
    let settlement = settle(&mut ledger, batch, &Outcome::Done(Done::AlreadyApplied));
    assert_eq!(settlement.finished_recorded, [(id("a"), position(10))]);
    assert_eq!((ledger.watermark(), ledger.bytes()), (Some(16), 0));
}

#[test]
fn record_of_another_document_at_that_offset_passes_it() {
    let mut ledger = parked();
    take(&mut ledger, &[("c", 15)]);
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    assert_eq!(ids(&batch), ["a", "c"]);
    assert!(batch[0].carry.finish_recorded);
}

#[test]
fn parking_for_a_record_already_read_releases_at_once() {
    let mut ledger = ledger();
    take(&mut ledger, &[("a", 10), ("b", 11)]);
    let batch = ledger.hand_out(1, usize::MAX, NOW);
    take(&mut ledger, &[("a", 12), ("c", 14)]);
    settle(&mut ledger, batch.clone(), &Outcome::Parked { until: position(12) });
    assert_eq!(ledger.parked(), 0, "12 is folded in already");
    let mut batch = ledger.hand_out(1, usize::MAX, NOW);
    assert_eq!((batch[0].fold.last, &batch[0].carry), (position(12), &RetryState::default()));
    settle(&mut ledger, batch, &Outcome::Parked { until: position(13) });
    batch = ledger.hand_out(1, usize::MAX, NOW);
    assert!(batch[0].carry.finish_recorded, "13 was passed");
}

#[test]
fn two_documents_parked_for_one_position_are_both_released() {
    let mut ledger = ledger();
    take(&mut ledger, &[("a", 10), ("b", 11)]);
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    settle(&mut ledger, batch, &Outcome::Parked { until: position(15) });
    take(&mut ledger, &[("a", 15)]);
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    assert_eq!(ids(&batch), ["a", "b"]);
    assert_eq!(batch.iter().map(|entry| entry.carry.finish_recorded).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn dead_letter_holds_the_watermark_until_delivered() {
    let mut ledger = ledger();
    take(&mut ledger, &[("a", 10), ("a", 11), ("b", 12)]);
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    let settlement = settle(&mut ledger, batch, &refused());
    assert_eq!(settlement.undeliverable.len(), 2);
    assert_eq!((ledger.watermark(), ledger.bytes(), ledger.documents()), (Some(10), 0, 0));
    ledger.delivered(12, Some(&id("b")));
    assert_eq!(ledger.watermark(), Some(10));
    ledger.delivered(10, Some(&id("a")));
    ledger.delivered(10, Some(&id("a")));
    assert_eq!(ledger.watermark(), Some(13));
}

#[test]
fn a_patch_that_spoils_its_document_is_rejected_and_the_document_waits_until_that_is_told() {
    let mut ledger = ledger();
    ledger.take(index("a", 10), at(1));
    ledger.take(spoiling_patch("a", 11), at(1));
    assert_eq!(ledger.rejected.len(), 1);
    assert!(ledger.hand_out(9, usize::MAX, NOW).is_empty());
    assert_eq!((ledger.watermark(), ledger.documents(), ledger.has_work()), (Some(10), 1, false));
    let [letter] = &ledger.take_rejected()[..] else { panic!("one letter") };
    assert_eq!((letter.stage, letter.fold.first), ("fold", position(11)));
    ledger.take(index("a", 12), at(1));
    assert!(ledger.hand_out(9, usize::MAX, NOW).is_empty());
    ledger.delivered(11, Some(&id("a")));
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    assert_eq!((batch[0].fold.first, batch[0].fold.last), (position(10), position(12)));
    settle(&mut ledger, batch, &DONE);
    assert_eq!((ledger.watermark(), ledger.bytes()), (Some(13), 0));
}

#[test]
fn a_document_of_which_one_record_after_the_other_is_rejected_does_not_wait_for_ever() {
    let mut ledger = ledger();
    let mut done = Vec::new();
    for offset in (10..50).step_by(2) {
        ledger.take(index("a", offset), at(1));
        ledger.take(spoiling_patch("a", offset + 1), at(1));
        assert_eq!(ledger.take_rejected().len(), 1);
        // The letter before is delivered while this one is under way.
        ledger.delivered(offset - 1, Some(&id("a")));
        let batch = ledger.hand_out(9, usize::MAX, NOW);
        done.extend(batch.iter().map(|entry| entry.fold.last.offset()));
        settle(&mut ledger, batch, &DONE);
        assert_eq!(ledger.watermark(), Some(if offset == 10 { 10 } else { offset }));
    }
    assert!(done.len() > 10 && done.is_sorted(), "{done:?}");
}

#[test]
fn an_entry_that_came_back_and_rejects_what_came_since_waits_for_that_letter() {
    let mut ledger = ledger();
    ledger.take(index("a", 10), at(1));
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    settle(&mut ledger, batch, &unreadable());
    ledger.take(spoiling_patch("a", 11), at(1));
    for _ in 0..2 {
        assert!(ledger.hand_out(9, usize::MAX, LATER).is_empty(), "11 is rejected, and not told yet");
    }
    assert_eq!(ledger.take_rejected().len(), 1);
    assert_eq!((ledger.watermark(), ledger.has_work()), (Some(10), false));
    ledger.delivered(11, Some(&id("a")));
    let batch = ledger.hand_out(9, usize::MAX, LATER);
    assert_eq!((batch[0].fold.first, batch[0].fold.last), (position(10), position(11)));
    settle(&mut ledger, batch, &DONE);
    assert_eq!((ledger.watermark(), ledger.bytes()), (Some(12), 0));
}

#[test]
fn what_was_let_go_on_stays_before_what_still_waits() {
    let mut ledger = ledger();
    ledger.take(index("a", 10), at(1));
    ledger.take(spoiling_patch("a", 11), at(1));
    // Each begins a fold of its own, and is rejected by the one before when they meet.
    ledger.take(spoiling_patch("a", 12), at(1));
    ledger.take(index("a", 13), at(1));
    ledger.take(spoiling_patch("a", 14), at(1));
    for offset in [11, 12, 14] {
        ledger.take_rejected();
        ledger.delivered(offset, Some(&id("a")));
    }
    ledger.take_rejected();
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    assert_eq!((batch[0].fold.first, batch[0].fold.last), (position(10), position(14)));
    settle(&mut ledger, batch, &DONE);
    assert_eq!((ledger.watermark(), ledger.bytes()), (Some(15), 0));
}

#[test]
fn a_document_with_a_letter_under_way_waits_wherever_it_is() {
    // What is in a batch already goes on, and comes back in each way; what came later waits in its order.
    for outcome in [DONE, unanswered(), unreadable(), set_back(), Outcome::Parked { until: position(14) }] {
        let mut ledger = ledger();
        ledger.take(index("a", 10), at(1));
        let batch = ledger.hand_out(9, usize::MAX, NOW);
        ledger.take(index("a", 11), at(1));
        ledger.take(spoiling_patch("a", 12), at(1));
        assert_eq!(ledger.take_rejected().len(), 1, "{outcome:?}");
        settle(&mut ledger, batch, &outcome);
        ledger.take(index("a", 14), at(1));
        // What has no part in the rejected record may go on, by itself.
        for entry in ledger.hand_out(9, usize::MAX, NOW) {
            assert_eq!(entry.fold.last, position(10), "{outcome:?}");
            settle(&mut ledger, vec![entry], &DONE);
        }
        assert!(ledger.hand_out(9, usize::MAX, LATER).is_empty(), "{outcome:?}");
        assert_eq!(ledger.documents(), 1, "{outcome:?}");
        ledger.delivered(12, Some(&id("a")));
        let mut last = position(9);
        for _ in 0..2 {
            for entry in ledger.hand_out(9, usize::MAX, LATER) {
                assert!(entry.fold.first > last, "{outcome:?}");
                last = entry.fold.last;
                settle(&mut ledger, vec![entry], &DONE);
            }
        }
        assert_eq!((last, ledger.watermark(), ledger.bytes()), (position(14), Some(15), 0), "{outcome:?}");
    }
}

#[test]
fn deletes_count_as_held_bytes() {
    let mut ledger = ledger();
    take(&mut ledger, &[("a", 10), ("b", 11)]);
    assert!(ledger.bytes() >= 2 * RECORD_OVERHEAD_BYTES);
    take(&mut ledger, &[("a", 12)]);
    assert!(ledger.bytes() < 3 * RECORD_OVERHEAD_BYTES, "but folded it costs once");
}

/// One step of a random history.
#[derive(Debug, Clone)]
enum Step {
    /// A record of one of a few documents comes, after a gap.
    Take {
        doc: u8,
        gap: i64,
        spoils: bool,
    },
    /// A bad record comes.
    Bad,
    /// Something else was read, up to this far ahead.
    Pass(i64),
    HandOut {
        documents: usize,
        bytes: usize,
    },
    /// The outcomes of the batch in flight, in turn.
    Settle(Vec<u8>),
    /// The oldest dead letter in flight is acknowledged.
    Deliver,
    /// The records of the oldest waiting fold arrive, or cannot be read.
    Reread {
        fails: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_u8..5, 0_i64..3, prop::bool::weighted(0.2))
            .prop_map(|(doc, gap, spoils)| Step::Take { doc, gap, spoils }),
        1 => Just(Step::Bad),
        1 => (1_i64..4).prop_map(Step::Pass),
        3 => (1_usize..5, 0_usize..3_000).prop_map(|(documents, bytes)| Step::HandOut { documents, bytes }),
        4 => prop::collection::vec(0_u8..8, 1..6).prop_map(Step::Settle),
        2 => Just(Step::Deliver),
        2 => prop::bool::weighted(0.3).prop_map(|fails| Step::Reread { fails }),
    ]
}

/// A ledger, and every unfinished record as the reference.
struct Checked {
    ledger: Ledger,
    unfinished: BTreeSet<i64>,
    /// Offsets of each document's unfinished records.
    of_document: BTreeMap<String, BTreeSet<i64>>,
    batch: Option<Vec<Entry>>,
    letters: VecDeque<(i64, Option<DocId>, Vec<i64>)>,
    rereads: VecDeque<Reread>,
    next: i64,
    watermark: Option<i64>,
}

impl Checked {
    fn new() -> Self {
        Self {
            ledger: ledger(),
            unfinished: BTreeSet::new(),
            of_document: BTreeMap::new(),
            batch: None,
            letters: VecDeque::new(),
            rereads: VecDeque::new(),
            next: 100,
            watermark: None,
        }
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Take { doc, gap, spoils } => {
                let (name, offset) = (format!("d{doc}"), self.next + gap);
                let write = if *spoils { spoiling_patch(&name, offset) } else { index(&name, offset) };
                self.unfinished.insert(offset);
                self.of_document.entry(name).or_default().insert(offset);
                self.next = offset + 1;
                self.ledger.take(write, at(1));
                self.send_rejected();
            }
            Step::Bad => {
                self.ledger.dead_letter_queued(self.next);
                self.ledger.read_up_to(self.next + 1);
                self.unfinished.insert(self.next);
                self.letters.push_back((self.next, None, vec![self.next]));
                self.next += 1;
            }
            Step::Pass(ahead) => {
                self.next += ahead;
                self.ledger.read_up_to(self.next);
            }
            Step::HandOut { documents, bytes } => {
                if self.batch.is_none() {
                    let batch = self.ledger.hand_out(*documents, *bytes, NOW);
                    assert!(batch.len() <= *documents);
                    self.batch = Some(batch);
                    self.send_rejected();
                }
            }
            Step::Settle(choices) => self.settle(choices),
            Step::Reread { fails } => self.reread(*fails),
            Step::Deliver => {
                if let Some((first, id, offsets)) = self.letters.pop_front() {
                    self.ledger.delivered(first, id.as_ref());
                    offsets.iter().for_each(|offset| assert!(self.unfinished.remove(offset)));
                }
            }
        }
        self.check();
    }

    fn settle(&mut self, choices: &[u8]) {
        let Some(batch) = self.batch.take() else { return };
        let mut settled = Vec::new();
        let mut undeliverable = 0;
        for (n, entry) in batch.into_iter().enumerate() {
            let outcome = match choices[n % choices.len()] {
                0 => unanswered(),
                3 => unreadable(),
                4 => set_back(),
                5 if entry.fold.separable().is_some() => refused_fold(),
                1 => Outcome::Parked { until: position(entry.fold.last.offset() + 3) },
                2 => {
                    let offsets = self.finish(&entry.id, &entry.fold);
                    self.letters.push_back((entry.fold.first.offset(), Some(entry.id.clone()), offsets));
                    undeliverable += 1;
                    refused()
                }
                _ => {
                    for offset in self.finish(&entry.id, &entry.fold) {
                        assert!(self.unfinished.remove(&offset));
                    }
                    DONE
                }
            };
            settled.push(Settled { entry, outcome, touched: AffectedShards::default() });
        }
        let settlement = self.ledger.settle(settled, NOW);
        assert_eq!(settlement.undeliverable.len(), undeliverable);
        self.send_rejected();
        self.rereads.extend(self.ledger.take_rereads(9));
    }

    fn reread(&mut self, fails: bool) {
        let Some(Reread { id, offsets }) = self.rereads.pop_front() else { return };
        let records =
            offsets.iter().map(|offset| (index(id.as_str(), *offset), record(id.as_str(), *offset)));
        let records = if fails { Err("gone".to_owned()) } else { Ok(records.collect()) };
        assert_eq!(self.ledger.reread(&id, records, NOW), 0);
        self.send_rejected();
    }

    /// The unfinished records that a fold covers.
    fn finish(&mut self, id: &DocId, fold: &Fold) -> Vec<i64> {
        let (first, last) = (fold.first.offset(), fold.last.offset());
        let open = self.of_document.get_mut(id.as_str()).unwrap();
        let offsets: Vec<i64> = open.range(first..=last).copied().collect();
        offsets.iter().for_each(|offset| assert!(open.remove(offset)));
        assert_eq!(offsets.len(), fold.records as usize, "{id} {fold:?}");
        offsets
    }

    fn send_rejected(&mut self) {
        for letter in self.ledger.take_rejected() {
            let offsets = self.finish(&letter.id, &letter.fold);
            self.letters.push_back((letter.fold.first.offset(), Some(letter.id.clone()), offsets));
        }
    }

    fn check(&mut self) {
        let watermark = self.ledger.watermark();
        assert!(watermark >= self.watermark, "went back from {:?} to {watermark:?}", self.watermark);
        self.watermark = watermark;
        let oldest = self.unfinished.first().copied();
        if oldest.is_some() {
            // Equal, not just below: a watermark that lags makes the next owner read again for nothing.
            assert_eq!(watermark, oldest);
        }
        assert_eq!(self.ledger.has_work(), self.ledger.pending() + self.ledger.in_flight() > 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn watermark_is_always_the_first_unfinished_record(
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let mut checked = Checked::new();
        steps.iter().for_each(|step| checked.run(step));
        // From here on everything succeeds.
        for _ in 0..20 {
            checked.run(&Step::Pass(10));
            checked.run(&Step::HandOut { documents: 9, bytes: usize::MAX });
            checked.run(&Step::Settle(vec![7]));
            checked.run(&Step::Reread { fails: false });
            while !checked.letters.is_empty() {
                checked.run(&Step::Deliver);
            }
        }
        prop_assert!(checked.unfinished.is_empty());
        prop_assert_eq!(checked.ledger.bytes(), 0);
        prop_assert_eq!(checked.ledger.documents(), 0);
        prop_assert!(checked.ledger.carries.is_empty());
        prop_assert_eq!(checked.ledger.watermark(), Some(checked.next));
    }
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
            Outcome::Again { reason: "conflict", carry: RetryState::default() },
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
            (shard("from"), Change { documents: 1, offsets: Some((7, 7)), moved_to: moved }),
            (shard("to"), Change { documents: 2, offsets: Some((7, 8)), moved_to: BTreeSet::new() }),
        ])
    );
}
