//! A refused fold whose records are read again and tried one by one.

use super::*;

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
