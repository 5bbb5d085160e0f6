//! A refused fold whose records are read again and tried one by one.

use bytes::Bytes;

use super::*;
use crate::core::fold::{Base, Content};

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
    let Outcome::Again { reason, mut carry } = refused_fold() else { panic!("it comes back") };
    let decided = DecidedPart { to: position(3), base: None };
    carry.decided = Some(decided);
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

/// `a` has a patch that takes part of the location away, and one that gives the other part; a decision about the second is recorded, and
/// returns from a batch.
fn decided_without_a_bad_record(ledger: &mut Ledger) -> Vec<(Write, Record)> {
    let patches = [spoiling_patch("a", 1), moving_patch("a", 3, r#"{"location":{"lon":9}}"#)];
    let writes = patches.map(|write| (write.clone(), record("a", write.position.offset())));
    writes.iter().for_each(|(write, _)| ledger.take(write.clone(), at(1)));
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    let Outcome::Again { reason, mut carry } = refused_fold() else { panic!("it comes back") };
    let base = Some(Bytes::from(r#"{"location":{"lat":1,"lon":2}}"#));
    carry.decided = Some(DecidedPart { to: position(3), base });
    settle(ledger, batch, &Outcome::Again { reason, carry });
    assert_eq!(ledger.take_rereads(9), [Reread { id: id("a"), offsets: vec![1, 3] }]);
    writes.into()
}

#[test]
fn records_that_a_decision_was_made_without_are_left_out() {
    let mut ledger = ledger();
    let records = decided_without_a_bad_record(&mut ledger);
    ledger.reread(&id("a"), Ok(records), NOW);
    assert!(ledger.hand_out(9, usize::MAX, LATER).is_empty(), "a dead letter is not delivered");
    let [letter] = &ledger.take_rejected()[..] else { panic!("one letter") };
    assert_eq!((letter.fold.last, letter.refusal.reason), (position(1), "no_location_after_patch"));
    assert_eq!(letter.record.as_ref().map(|record| record.offset), Some(1));
    ledger.delivered(1, Some(&id("a")));
    let batch = ledger.hand_out(9, usize::MAX, LATER);
    let fold = &batch[0].fold;
    assert_eq!((fold.first, fold.last, fold.records), (position(1), position(3), 1));
    let patches = vec![Bytes::from(r#"{"location":{"lon":9}}"#)];
    assert_eq!(fold.content, Content::Patch { over: Base::Stored, patches });
    assert_eq!(settle(&mut ledger, batch, &DONE).folded, 0, "the other is counted as a dead letter");
    assert_eq!((ledger.watermark(), ledger.bytes()), (Some(4), 0));
}

#[test]
fn a_decided_fold_whose_records_are_gone_returns_to_the_mover() {
    let mut ledger = ledger();
    decided_without_a_bad_record(&mut ledger);
    ledger.reread(&id("a"), Ok(Vec::new()), NOW);
    assert!(ledger.take_rejected().is_empty(), "its placement names a geoshard without a copy");
    let batch = ledger.hand_out(9, usize::MAX, LATER);
    let refusal = batch[0].carry.refusal.as_ref().unwrap();
    assert!(refusal.detail.ends_with("one by one: they are gone from the topic"), "{refusal:?}");
    let letters = settle(&mut ledger, batch, &refused()).undeliverable;
    assert_eq!((letters[0].fold.records, ledger.watermark()), (2, Some(1)));
    ledger.delivered(1, Some(&id("a")));
    assert_eq!((ledger.watermark(), ledger.bytes()), (Some(4), 0));
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

/// The records of `a` with these offsets, as they are read again; those of `bad` spoil.
fn again(offsets: &[i64], bad: &[i64]) -> Vec<(Write, Record)> {
    let write = |offset| if bad.contains(&offset) { spoiling_patch("a", offset) } else { patch("a", offset) };
    offsets.iter().map(|offset| (write(*offset), record("a", *offset))).collect()
}

/// `a` was in a batch with these records, and patches 11, 12 and 13, of which 12 spoils, were folded meanwhile; it comes back.
fn came_back(records: &[i64], outcome: &Outcome) -> Ledger {
    let mut ledger = ledger();
    records.iter().for_each(|offset| ledger.take(index("a", *offset), at(1)));
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    for (write, _) in again(&[11, 12, 13], &[12]) {
        ledger.take(write, at(1));
    }
    settle(&mut ledger, batch, outcome);
    ledger
}

/// The patches are to be read again, and nothing else happens meanwhile.
fn waits_for_its_patches(ledger: &mut Ledger) {
    assert!(ledger.hand_out(9, usize::MAX, LATER).is_empty());
    assert!(ledger.take_rejected().is_empty());
    assert_eq!(ledger.take_rereads(9), [Reread { id: id("a"), offsets: vec![11, 12, 13] }]);
    assert!(ledger.hand_out(9, usize::MAX, LATER).is_empty());
    assert_eq!((ledger.watermark(), ledger.documents(), ledger.has_work()), (Some(10), 1, true));
}

/// Hands out and settles until nothing is left; 12 is refused. Gives the first and last record of each.
fn tried(ledger: &mut Ledger) -> Vec<(i64, i64)> {
    let mut tried = Vec::new();
    while let [entry] = &ledger.hand_out(9, usize::MAX, LATER)[..] {
        let (first, last) = (entry.fold.first.offset(), entry.fold.last.offset());
        assert_eq!(ledger.watermark(), Some(first));
        tried.push((first, last));
        let outcome = if first == 12 { refused() } else { DONE };
        let letters = settle(ledger, vec![entry.clone()], &outcome).undeliverable;
        for letter in letters {
            assert_eq!(letter.record.as_ref().map(|record| record.offset), Some(12), "{letter:?}");
            assert!(ledger.hand_out(9, usize::MAX, LATER).is_empty());
            assert_eq!(ledger.watermark(), Some(12));
            ledger.delivered(12, Some(&id("a")));
        }
    }
    assert_eq!((ledger.bytes(), ledger.documents()), (0, 0));
    tried
}

#[test]
fn patches_that_the_fold_before_them_rejects_as_one_are_tried_one_by_one() {
    for outcome in [unanswered(), unreadable()] {
        let mut ledger = came_back(&[10], &outcome);
        waits_for_its_patches(&mut ledger);
        ledger.take(index("a", 14), at(1));
        ledger.reread(&id("a"), Ok(again(&[11, 12, 13], &[12])), NOW);
        assert_eq!(tried(&mut ledger), [(10, 10), (11, 11), (12, 12), (13, 13), (14, 14)], "{outcome:?}");
        assert_eq!(ledger.watermark(), Some(15));
    }
}

#[test]
fn patches_folded_behind_a_dead_letter_are_tried_one_by_one() {
    let mut ledger = ledger();
    ledger.take(index("a", 8), at(1));
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    ledger.take(index("a", 9), at(1));
    ledger.take(spoiling_patch("a", 10), at(1));
    assert_eq!(ledger.take_rejected().len(), 1);
    for (write, _) in again(&[11, 12, 13], &[12]) {
        ledger.take(write, at(1));
    }
    settle(&mut ledger, batch, &DONE);
    ledger.delivered(10, Some(&id("a")));
    assert!(ledger.hand_out(9, usize::MAX, NOW).is_empty());
    assert_eq!(ledger.take_rereads(9), [Reread { id: id("a"), offsets: vec![11, 12, 13] }]);
    ledger.reread(&id("a"), Ok(again(&[11, 12, 13], &[12])), NOW);
    assert_eq!(tried(&mut ledger), [(9, 10), (11, 11), (12, 12), (13, 13)]);
}

#[test]
fn patches_of_a_parked_entry_are_folded_in_one_by_one() {
    let parked = Outcome::Parked { until: position(13) };
    let mut ledger = came_back(&[10], &parked);
    waits_for_its_patches(&mut ledger);
    ledger.reread(&id("a"), Ok(again(&[11, 12, 13], &[12])), NOW);
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    assert_eq!(batch[0].fold.last, position(10));
    settle(&mut ledger, batch, &parked);
    let [letter] = &ledger.take_rejected()[..] else { panic!("one letter") };
    assert_eq!((letter.fold.first, letter.fold.last), (position(12), position(12)));
    assert!(ledger.hand_out(9, usize::MAX, NOW).is_empty());
    ledger.delivered(12, Some(&id("a")));
    assert_eq!(tried(&mut ledger), [(10, 13)]);
}

#[test]
fn what_makes_up_for_rejected_patches_is_folded_with_them() {
    let mut ledger = came_back(&[10], &Outcome::Parked { until: position(15) });
    assert_eq!((ledger.parked(), ledger.watermark()), (1, Some(10)));
    ledger.take(index("a", 14), at(1));
    ledger.take(index("a", 15), at(1));
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    assert_eq!(
        (batch[0].fold.first, batch[0].fold.last, batch[0].fold.records),
        (position(10), position(15), 6)
    );
    settle(&mut ledger, batch, &DONE);
    assert!(ledger.take_rereads(9).is_empty());
    assert_eq!((ledger.bytes(), ledger.watermark()), (0, Some(16)));
}

#[test]
fn a_refused_fold_before_rejected_patches_is_taken_apart_and_they_stay_behind() {
    let mut ledger = came_back(&[9, 10], &unanswered());
    assert!(ledger.hand_out(9, usize::MAX, NOW).is_empty());
    ledger.take_rereads(9);
    ledger.reread(&id("a"), Ok(again(&[11, 12, 13], &[12])), NOW);
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    settle(&mut ledger, batch, &refused_fold());
    assert_eq!(ledger.take_rereads(9), [Reread { id: id("a"), offsets: vec![9, 10] }]);
    let records = [9, 10].map(|offset| (index("a", offset), record("a", offset)));
    ledger.reread(&id("a"), Ok(records.into()), NOW);
    assert_eq!(tried(&mut ledger), [(9, 9), (10, 10), (11, 11), (12, 12), (13, 13)]);
}

#[test]
fn rejected_patches_whose_records_cannot_be_read_are_one_dead_letter() {
    let mut ledger = came_back(&[10], &unanswered());
    waits_for_its_patches(&mut ledger);
    ledger.take(patch("a", 14), at(1));
    ledger.reread(&id("a"), Err("test".to_owned()), NOW);
    let [letter] = &ledger.take_rejected()[..] else { panic!("one letter") };
    assert_eq!((letter.fold.records, letter.stage, letter.refusal.reason), (3, "fold", "bad_location"));
    assert!(
        letter.refusal.detail.ends_with("a fold of 3 records, which could not be tried one by one: test")
    );
    assert!(ledger.hand_out(9, usize::MAX, LATER).is_empty());
    assert_eq!(ledger.watermark(), Some(10));
    ledger.delivered(11, Some(&id("a")));
    assert_eq!(tried(&mut ledger), [(10, 14)]);
}

#[test]
fn pauses_begin_anew_with_each_record() {
    let mut ledger = came_back(&[10], &unanswered());
    waits_for_its_patches(&mut ledger);
    ledger.reread(&id("a"), Ok(again(&[11, 12, 13], &[])), at(2));
    let mut retried_at = |now, outcome: Outcome| {
        let batch = ledger.hand_out(9, usize::MAX, now);
        let settled = |entry| Settled { entry, outcome: outcome.clone(), touched: AffectedShards::default() };
        ledger.settle(batch.into_iter().map(settled).collect(), now);
        ledger.next_retry()
    };
    assert_eq!(retried_at(at(102), unreadable()), Some(at(127)));
    assert_eq!(retried_at(at(127), DONE), Some(at(127)), "the next record");
    assert_eq!(retried_at(at(131), unreadable()), Some(at(132)));
}
