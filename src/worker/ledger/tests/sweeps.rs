//! Old copies to delete.

use super::*;
use crate::core::mover::{Sweep, Swept};
use crate::core::placement::{KnownPlacement, Placement};
use crate::io::elastic::SeqNo;

fn shard(id: &str) -> ShardId {
    ShardId::new(id).unwrap()
}

/// The sweep of an entry with records `first` to `last` that left `a` for `target`.
fn sweep(first: i64, last: i64, target: Option<&str>) -> Sweep {
    let placement = Placement::new(position(last), target.map(shard), [shard("a")]);
    let known = KnownPlacement::new(placement, SeqNo { seq_no: 1, primary_term: 1 });
    Sweep::new(&id("x"), &known, position(last), (position(first), position(last)))
}

/// A ledger that owes these sweeps, with everything else done up to offset 20; and their tickets.
fn owing(sweeps: &[(Sweep, Swept)]) -> (Ledger, Vec<u64>) {
    let mut ledger = ledger();
    ledger.read_up_to(20);
    let settle =
        |sweep: &(Sweep, Swept)| ledger.settle_sweeps(vec![sweep.clone()], &mut BTreeMap::new(), NOW).0;
    let tickets = sweeps.iter().map(settle).collect();
    (ledger, tickets)
}

fn end(ledger: &mut Ledger, sweeps: Vec<Sweep>) -> BTreeMap<ShardId, ShardChange> {
    let mut changes = BTreeMap::new();
    let ended = sweeps.into_iter().map(|sweep| (sweep, Swept::Ended)).collect();
    ledger.settle_sweeps(ended, &mut changes, NOW);
    changes
}

#[test]
fn sweeps_hold_the_watermark_and_no_batch() {
    let (mut ledger, tickets) = owing(&[(sweep(10, 12, Some("b")), Swept::Waits)]);
    assert_eq!((ledger.watermark(), ledger.sweeps()), (Some(10), 1));
    assert!(!ledger.has_work() && ledger.next_sweep().is_none());
    take(&mut ledger, &[("x", 20), ("y", 21)]);
    let batch = ledger.hand_out(10, usize::MAX, NOW);
    assert_eq!(ids(&batch), ["x", "y"], "later records of the document as well");
    settle(&mut ledger, batch, &DONE);
    assert_eq!(ledger.hand_out_sweeps(10, LATER), []);

    ledger.seen(&shard("c"), tickets[0], NOW);
    ledger.seen(&shard("b"), tickets[0], LATER);
    assert_eq!((ledger.next_sweep(), ledger.has_due_sweeps(NOW)), (Some(LATER), false));
    assert_eq!(ledger.hand_out_sweeps(10, NOW), []);
    let sweeps = ledger.hand_out_sweeps(10, LATER);
    assert_eq!((sweeps.len(), ledger.watermark()), (1, Some(10)), "owed while it is in a batch");
    let changes = end(&mut ledger, sweeps);
    let change = &changes[&shard("a")];
    assert_eq!((change.documents, change.offsets), (1, Some((10, 12))));
    assert_eq!(change.moved_to, [shard("b")].into());
    assert_eq!((ledger.watermark(), ledger.sweeps(), ledger.bytes()), (Some(22), 0, 0));
}

#[test]
fn refresh_shows_only_earlier_writes() {
    let waiting = [10, 13, 16].map(|first| (sweep(first, first, Some("b")), Swept::Waits));
    let (mut ledger, tickets) = owing(&waiting);
    ledger.seen(&shard("b"), tickets[1], NOW);
    let sweeps = ledger.hand_out_sweeps(10, NOW);
    assert_eq!(sweeps.iter().map(|sweep| sweep.at).collect::<Vec<_>>(), [position(10), position(13)]);
    end(&mut ledger, sweeps);
    assert_eq!(ledger.watermark(), Some(16));
}

#[test]
fn sweeps_of_one_batch_are_handed_out_in_parts_lowest_first() {
    let mut ledger = ledger();
    ledger.read_up_to(20);
    let sweeps = [13, 10, 16].map(|first| (sweep(first, first, Some("b")), Swept::Waits));
    let (ticket, unseen) = ledger.settle_sweeps(sweeps.into(), &mut BTreeMap::new(), NOW);
    assert_eq!((unseen.len(), ledger.sweeps(), ledger.watermark()), (1, 3, Some(10)));
    let held = ledger.bytes();
    ledger.seen(&shard("b"), ticket, NOW);
    let first = ledger.hand_out_sweeps(2, NOW);
    assert_eq!(first.iter().map(|sweep| sweep.records.0.offset()).max(), Some(13));
    assert_eq!((first.len(), ledger.sweeps(), ledger.watermark()), (2, 3, Some(10)), "owed in the batch");
    assert!(ledger.has_due_sweeps(NOW) && ledger.bytes() < held);
    end(&mut ledger, first);
    assert_eq!((ledger.sweeps(), ledger.watermark()), (1, Some(16)));
    let last = ledger.hand_out_sweeps(2, NOW);
    end(&mut ledger, last);
    assert_eq!((ledger.sweeps(), ledger.bytes(), ledger.watermark()), (0, 0, Some(20)));
}

#[test]
fn a_waiting_sweep_takes_less_than_210_bytes() {
    let mut ledger = ledger();
    let sweeps: Vec<_> = (0..1_000).map(|first| (sweep(first, first, Some("b")), Swept::Waits)).collect();
    ledger.settle_sweeps(sweeps, &mut BTreeMap::new(), NOW);
    assert!(ledger.bytes() < 210_000, "{}", ledger.bytes());
}

#[test]
fn unanswered_sweep_is_owed_and_due_again() {
    let (mut ledger, _) = owing(&[(sweep(10, 12, None), Swept::Unanswered)]);
    let sweeps = ledger.hand_out_sweeps(1, NOW);
    let unanswered = sweeps.into_iter().map(|sweep| (sweep, Swept::Unanswered)).collect();
    let (_, unseen) = ledger.settle_sweeps(unanswered, &mut BTreeMap::new(), NOW);
    assert_eq!((unseen.len(), ledger.watermark(), ledger.sweeps()), (0, Some(10), 1));
    let sweeps = ledger.hand_out_sweeps(1, NOW);
    end(&mut ledger, sweeps);
    assert_eq!(ledger.watermark(), Some(20));
}
