//! Records that are passed over for a later whole write.

use super::*;
use crate::core::fold::{Content, Target};
use crate::core::look_ahead::LookAhead;

const MAX_AGE: Duration = Duration::from_secs(60);

/// A ledger that knows these whole writes, up to `end`.
fn knowing(writes: &[(&str, i64)], end: i64) -> Ledger {
    let mut found = LookAhead::new(0, 100);
    writes.iter().for_each(|(name, offset)| found.found_whole(&id(name), *offset));
    found.ended(end);
    let mut ledger = ledger();
    ledger.look_ahead(found);
    ledger
}

fn take(ledger: &mut Ledger, write: Write) {
    ledger.take_or_pass_over(write, MAX_AGE, NOW).unwrap();
}

#[test]
fn only_the_last_whole_write_is_handed_out_and_the_watermark_waits_for_it() {
    let mut ledger = knowing(&[("a", 10), ("b", 11), ("a", 12), ("a", 15)], 16);
    take(&mut ledger, index("a", 10));
    take(&mut ledger, index("b", 11));
    take(&mut ledger, delete("a", 12));
    take(&mut ledger, patch("a", 13));
    assert_eq!(
        (ledger.watermark(), ledger.documents(), ledger.oldest_owed_since()),
        (Some(10), 1, Some(NOW))
    );
    let batch = ledger.hand_out(10, usize::MAX, NOW);
    assert_eq!(ids(&batch), ["b"]);
    settle(&mut ledger, batch, &Outcome::Done(Done::Indexed { moved: false }));
    assert_eq!(ledger.watermark(), Some(10), "a's records are owed");

    take(&mut ledger, index("a", 15));
    assert!(ledger.ahead().is_none());
    let batch = ledger.hand_out(10, usize::MAX, NOW);
    let fold = &batch[0].fold;
    assert!(matches!(fold.content, Content::Index { .. }));
    assert_eq!((fold.first, fold.last, fold.whole_at), (position(10), position(15), Some(position(15))));
    assert!(fold.targets.contains(&Target::Unclear), "it was perhaps elsewhere in between: never in place");
    assert_eq!((fold.records, fold.separable()), (4, None));
    assert_eq!(ledger.watermark(), Some(10));
    let settled = settle(&mut ledger, batch, &Outcome::Done(Done::Indexed { moved: false }));
    assert_eq!((settled.indexed, settled.folded), (1, 3));
    assert_eq!((ledger.watermark(), ledger.bytes()), (Some(16), 0));
}

#[test]
fn what_was_read_on_is_added_if_it_follows() {
    let mut ledger = knowing(&[("a", 10), ("a", 12)], 13);
    let mut following = ledger.ahead().unwrap().following();
    following.found_whole(&id("a"), 14);
    following.ended(15);
    ledger.look_ahead(LookAhead::new(20, 100));
    ledger.look_ahead(following);
    assert_eq!(ledger.ahead().unwrap().end(), 15);
    [10, 12].into_iter().for_each(|offset| take(&mut ledger, index("a", offset)));
    assert_eq!((ledger.watermark(), ledger.documents()), (Some(10), 0), "both are owed");
    take(&mut ledger, index("a", 14));
    let batch = ledger.hand_out(10, usize::MAX, NOW);
    assert_eq!(
        (batch[0].fold.first, batch[0].fold.last, batch[0].fold.records),
        (position(10), position(14), 3)
    );
}

#[test]
fn what_is_unfinished_is_folded_and_not_passed_over() {
    let mut ledger = ledger();
    ledger.take(index("a", 9), NOW);
    let mut found = LookAhead::new(0, 100);
    [10, 11, 12].into_iter().for_each(|offset| found.found_whole(&id("a"), offset));
    found.ended(13);
    ledger.look_ahead(found);
    take(&mut ledger, index("a", 10));
    let batch = ledger.hand_out(10, usize::MAX, NOW);
    assert_eq!((batch[0].fold.first, batch[0].fold.last), (position(9), position(10)));
    take(&mut ledger, index("a", 11));
    settle(&mut ledger, batch, &Outcome::Done(Done::Indexed { moved: false }));
    assert_eq!(ledger.watermark(), Some(11));
    take(&mut ledger, index("a", 12));
    let batch = ledger.hand_out(10, usize::MAX, NOW);
    assert_eq!((batch[0].fold.first, batch[0].fold.last), (position(11), position(12)));
}

#[test]
fn a_write_that_never_came_holds_the_watermark() {
    let mut ledger = knowing(&[("a", 10), ("a", 12)], 13);
    take(&mut ledger, index("a", 10));
    // Compaction has taken 12.
    take(&mut ledger, index("b", 14));
    assert_eq!(ledger.watermark(), Some(10));
    let lost = ledger.take_or_pass_over(patch("a", 15), MAX_AGE, NOW).unwrap_err();
    assert!(lost.to_string().contains("offset 15 needs records before it"), "{lost}");
    assert_eq!(ledger.watermark(), Some(10), "the next owner reads all of them");
}

#[test]
fn a_read_that_comes_too_late_is_ignored() {
    let mut ledger = ledger();
    ledger.take(index("a", 20), NOW);
    let mut found = LookAhead::new(0, 100);
    found.ended(21);
    ledger.look_ahead(found);
    assert!(ledger.ahead().is_none());
}
