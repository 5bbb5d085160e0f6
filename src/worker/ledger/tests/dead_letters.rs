//! Documents with a dead letter in flight.

use super::*;

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
    assert_eq!(ledger.merger.rejected.len(), 1);
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
