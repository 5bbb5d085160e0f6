//! Entries that returned from a batch: when they join another.

use super::*;

#[test]
fn fetched_answer_is_dropped_while_its_entry_waits_long() {
    let mut ledger = ledger();
    let write = Write { id: id("a"), position: position(1), body: Body::Refeed };
    ledger.take(write, at(1));
    let bytes = ledger.bytes();
    let fetch = |ledger: &mut Ledger, batch, now: Instant| {
        let settled = |entry| Settled { entry, outcome: Outcome::Fetch, touched: AffectedShards::default() };
        ledger.settle(Vec::into_iter(batch).map(settled).collect(), now);
        let request = ledger.take_fetch_requests().remove(0);
        ledger.answered(&request, SourceAnswer::Document(r#"{"location":"1,2"}"#.into()), Held::none());
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
    assert_eq!(batch[0].carry, Carry::default());
    let carry = Carry::from(RetryState { finish_recorded: true, ..RetryState::default() });
    let settlement = settle(&mut ledger, batch, &Outcome::Again { reason: "test", carry: carry.clone() });
    assert_eq!(settlement.again, BTreeMap::from([("test", 1)]));
    let batch = ledger.hand_out(1, usize::MAX, NOW);
    assert_eq!(batch[0].carry, carry);
    settle(&mut ledger, batch, &unreadable());
    assert_eq!(ledger.hand_out(1, usize::MAX, NOW)[0].carry, Carry::default());
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
