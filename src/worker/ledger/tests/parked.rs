//! Entries that wait for their document's next record.

use super::*;

#[test]
fn parked_entry_is_released_by_its_record() {
    let mut ledger = parked();
    take(&mut ledger, &[("a", 12), ("b", 13)]);
    assert_eq!((ledger.pending(), ledger.parked(), ledger.watermark()), (1, 1, Some(10)), "12 is folded in");
    take(&mut ledger, &[("a", 15)]);
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    assert_eq!(ids(&batch), ["a", "b"]);
    assert_eq!((batch[0].fold.first, batch[0].fold.last), (position(10), position(15)));
    assert_eq!(batch[0].carry, Carry::default());
    let settlement = settle(&mut ledger, batch, &DONE);
    assert_eq!((settlement.folded, ledger.bytes(), ledger.watermark()), (2, 0, Some(16)));
}

#[test]
fn parked_entry_is_released_by_a_later_record_of_its_document() {
    let mut ledger = parked();
    take(&mut ledger, &[("a", 17)]);
    let batch = ledger.hand_out(9, usize::MAX, NOW);
    assert_eq!((batch[0].fold.last, &batch[0].carry), (position(17), &Carry::default()));
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
    assert_eq!((batch[0].fold.last, &batch[0].carry), (position(12), &Carry::default()));
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
