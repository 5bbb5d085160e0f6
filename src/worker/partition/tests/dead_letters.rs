//! Records that cannot be applied, and their dead letters.

use super::*;
use crate::core::placement::Placement;
use crate::io::elastic::{BulkOp, Elastic, Index, WriteCondition};

#[tokio::test(start_paused = true)]
async fn bad_records_hold_the_watermark_until_dead_lettered() {
    let mut rig = Rig::start();
    rig.letters.open.send_replace(false);
    rig.index(0, "a", 1, 1);
    rig.bad(1, "b");
    rig.index(2, "c", 1, 1);
    rig.send(3, "", Some("{}"), None);
    rig.until_watermark(1).await;
    rig.pass(Duration::from_secs(100)).await;
    assert_eq!(rig.published.watermark(), Some(1));
    assert_eq!(rig.elastic.ids().len(), 2);
    rig.letters.open.send_replace(true);
    rig.until_watermark(4).await;
    let letters = [(1, 1, "decode", "unparsable_json"), (3, 3, "decode", "bad_key")];
    assert_eq!(rig.letters(), letters);
    assert_eq!((rig.counts()["dead_lettered"], rig.counts()["in_flight"]), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn dead_letters_in_flight_count_as_held_bytes() {
    let mut rig = Rig::start();
    rig.letters.open.send_replace(false);
    rig.bad(0, "a");
    rig.until("it was read", |rig| rig.counts()["in"] == 1).await;
    let one = rig.meter.held();
    assert!(one > 0);
    for offset in 1..100 {
        rig.bad(offset, "a");
    }
    rig.until("all were read", |rig| rig.counts()["in"] == 100).await;
    assert_eq!(rig.meter.held(), 100 * one);
    assert!(!rig.may_read(MemoryLimits { total: 50 * one, per_partition: usize::MAX }, false));
    rig.letters.open.send_replace(true);
    rig.until_watermark(100).await;
    assert_eq!(rig.meter.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn dead_letters_name_the_step_that_refused_the_document() {
    let mut rig = Rig::start();
    rig.elastic.set_faults(|faults| faults.refused_ids = ["bad".to_owned()].into());
    rig.index(0, "bad", 1, 1);
    rig.index(1, "bad", 1, 2);
    rig.index(2, "a", 1, 1);
    rig.send(3, "a", Some(r#"{"location":{"lat":null}}"#), Some("patch"));
    rig.send(4, "ghost", Some(r#"{"n":5}"#), Some("patch"));
    rig.send(5, "nobody", None, Some("touch"));
    rig.until_watermark(6).await;
    assert_eq!(
        rig.letters(),
        [
            (0, 1, "write", "refused_by_elasticsearch"),
            (3, 3, "fold", "bad_location"),
            (4, 4, "write", "missing_document"),
        ]
    );
    assert_eq!(rig.elastic.document("a"), Some(document(1, 1)));
    assert_eq!(rig.counts()["dead_lettered"] + rig.counts()["folded"], 4);
    assert_eq!(rig.counts()["nothing_to_place"], 1);
}

#[tokio::test(start_paused = true)]
async fn without_dead_letters_a_bad_record_stops_the_partition() {
    let mut rig = Rig::build(RigOptions { has_dead_letters: false, ..RigOptions::default() });
    rig.index(0, "a", 1, 1);
    rig.bad(1, "b");
    rig.index(2, "c", 1, 1);
    rig.until_watermark(1).await;
    rig.pass(Duration::from_secs(100)).await;
    assert_eq!((rig.published.watermark(), rig.elastic.document("c")), (Some(1), None));
    assert!(rig.health.missing()[&stopped_part(0)].contains("no dead-letter topic"));
    assert_eq!(rig.meter.held(), 0, "unread records hold no memory");
    assert!(rig.records.is_closed(), "so that the poll thread pauses it");
    rig.mode.send(Mode::Drain).unwrap();
    rig.until_ended().await;
}

/// A placement written by partition 3 at its record 10.
async fn placed_by_partition_3(rig: &Rig, id: &str) {
    placed(rig, id, 3, 10).await;
}

async fn placed(rig: &Rig, id: &str, partition: i32, offset: i64) {
    let pos = Position::new(Epoch::new(1).unwrap(), offset).unwrap();
    let placement = Placement::new(pos, Some(ShardId::new("f0").unwrap()), []).by_partition(Some(partition));
    let id = DocId::from_key(Some(id.as_bytes())).unwrap();
    let op = BulkOp::Index {
        index: Index::Placements,
        id,
        guard: WriteCondition::Absent,
        source: placement.to_json(),
    };
    rig.elastic.bulk(&[op], Duration::from_secs(10)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn key_of_another_partition_is_dead_lettered() {
    let mut rig = Rig::start();
    placed_by_partition_3(&rig, "a").await;
    rig.index(0, "a", 1, 1);
    rig.index(1, "b", 1, 1);
    rig.until_watermark(2).await;
    assert_eq!(rig.letters(), [(0, 0, "write", "key_in_two_partitions")]);
    assert_eq!(rig.elastic.document("a"), None);
}

#[tokio::test(start_paused = true)]
async fn without_dead_letters_a_foreign_key_stops_the_partition() {
    let mut rig = Rig::build(RigOptions { has_dead_letters: false, ..RigOptions::default() });
    placed_by_partition_3(&rig, "a").await;
    rig.index(0, "a", 1, 1);
    rig.until("it says so", |rig| rig.health.missing().contains_key(&stopped_part(0))).await;
    assert!(rig.health.missing()[&stopped_part(0)].contains("in partition 3 and in partition 0"));
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!(rig.published.watermark(), Some(0));
}

/// Document `a` in place, then one fold: a good patch, a bad one, and two good ones.
async fn fold_with_a_bad_patch(rig: &mut Rig) {
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    rig.elastic.set_faults(|faults| faults.refused_text = Some("bad"));
    for (offset, patch) in
        [(1, r#"{"p":1}"#), (2, r#"{"q":"bad"}"#), (3, r#"{"q":4}"#), (4, r#"{"r":"bad"}"#)]
    {
        rig.send(offset, "a", Some(patch), Some("patch"));
    }
    rig.index(5, "b", 1, 1);
}

#[tokio::test(start_paused = true)]
async fn bad_record_does_not_spoil_the_good_ones_of_its_fold() {
    let mut rig = Rig::start();
    fold_with_a_bad_patch(&mut rig).await;
    rig.until_watermark(6).await;
    assert_eq!(rig.elastic.document("a").as_deref(), Some(r#"{"location":[1,1],"n":1,"p":1,"q":4}"#));
    let refused = "refused_by_elasticsearch";
    assert_eq!(rig.letters(), [(2, 2, "write", refused), (4, 4, "write", refused)]);
    let letter = rig.letters.letters.lock().unwrap()[0].clone();
    assert_eq!(letter.value.as_deref(), Some(br#"{"q":"bad"}"#.as_slice()), "as it was in the topic");
    assert_eq!((rig.counts()["dead_lettered"], rig.counts()["in_flight"], rig.meter.held()), (2, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn watermark_waits_for_every_record_of_a_split_fold() {
    let mut rig = Rig::start();
    rig.letters.open.send_replace(false);
    fold_with_a_bad_patch(&mut rig).await;
    rig.until_watermark(2).await;
    rig.send(6, "a", Some(r#"{"s":6}"#), Some("patch"));
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!(rig.published.watermark(), Some(2), "its dead letter is not delivered");
    rig.letters.open.send_replace(true);
    rig.until_watermark(7).await;
    let document = rig.elastic.document("a");
    assert_eq!(document.as_deref(), Some(r#"{"location":[1,1],"n":1,"p":1,"q":4,"s":6}"#));
    assert_eq!(rig.letters().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn compacted_records_are_left_out_of_a_split_fold() {
    let mut rig = Rig::start();
    fold_with_a_bad_patch(&mut rig).await;
    for gone in [1, 2] {
        rig.kept_records.records.lock().unwrap().remove(&gone);
    }
    rig.until_watermark(6).await;
    assert_eq!(rig.elastic.document("a").as_deref(), Some(r#"{"location":[1,1],"n":1,"q":4}"#));
    assert_eq!(rig.letters().iter().map(|letter| letter.0).collect::<Vec<_>>(), [4]);
    assert_eq!((rig.counts()["in_flight"], rig.meter.held()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn fold_that_cannot_be_read_again_is_one_dead_letter() {
    let mut rig = Rig::start();
    *rig.kept_records.fault.lock().unwrap() = Some("the broker is gone");
    fold_with_a_bad_patch(&mut rig).await;
    rig.until_watermark(6).await;
    assert_eq!(rig.letters(), [(1, 4, "write", "refused_by_elasticsearch")]);
    let letter = rig.letters.letters.lock().unwrap()[0].clone();
    assert!(
        letter.detail.ends_with("fold of 4 records, which could not be tried one by one: the broker is gone")
    );
    assert_eq!((rig.counts()["in_flight"], rig.meter.held()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn partition_ending_during_a_reread_leaves_it_to_the_next_owner() {
    let mut rig = Rig::start();
    fold_with_a_bad_patch(&mut rig).await;
    rig.until("the refusal", |rig| rig.elastic.document("b").is_some()).await;
    rig.mode.send(Mode::FinishBatch).unwrap();
    rig.until_ended().await;
    assert_eq!(rig.published.watermark(), Some(1));
    assert_eq!(rig.letters(), []);
}

/// The records, each in a batch of its own.
async fn send_one_by_one(rig: &mut Rig, records: &[(i64, &str, Option<&str>)]) {
    for (offset, value, op) in records {
        rig.send(*offset, "a", Some(value), *op);
        rig.pass(Duration::from_secs(2)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_that_was_not_delivered_is_handed_in_by_the_next_owner_whatever_came_later() {
    let mut rig = Rig::start();
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    rig.letters.open.send_replace(false);
    rig.elastic.set_faults(|faults| faults.refused_text = Some("bad"));
    let patches = [(1, r#"{"q":"bad"}"#, Some("patch")), (2, r#"{"r":2}"#, Some("patch"))];
    send_one_by_one(&mut rig, &patches).await;
    assert_eq!(rig.published.watermark(), Some(1));
    rig.cancel.cancel();
    rig.until_ended().await;

    let mut next = rig.next_owner();
    next.elastic.set_faults(|faults| faults.refused_text = Some("bad"));
    send_one_by_one(&mut next, &patches).await;
    next.until_watermark(3).await;
    assert_eq!(next.letters(), [(1, 1, "write", "refused_by_elasticsearch")]);
    assert_eq!(next.elastic.document("a").as_deref(), Some(r#"{"location":[1,1],"n":1,"r":2}"#));
    assert_eq!((next.counts()["in_flight"], next.meter.held()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn so_is_that_of_a_record_which_its_own_fold_has_rejected() {
    let spoiling = (2, r#"{"location":{"lat":null}}"#, Some("patch"));
    for one_by_one in [true, false] {
        let mut rig = Rig::start();
        rig.index(0, "a", 1, 1);
        rig.until_watermark(1).await;
        rig.letters.open.send_replace(false);
        let whole = document(1, 2);
        let records = [(1, whole.as_str(), None), spoiling, (3, r#"{"r":3}"#, Some("patch"))];
        for (offset, value, op) in records {
            rig.send(offset, "a", Some(value), op);
        }
        rig.pass(Duration::from_secs(5)).await;
        let committed = rig.published.watermark().unwrap();
        rig.cancel.cancel();
        rig.until_ended().await;

        let mut next = rig.next_owner();
        for (offset, value, op) in records.into_iter().filter(|(offset, ..)| *offset >= committed) {
            next.send(offset, "a", Some(value), op);
            if one_by_one {
                next.pass(Duration::from_secs(2)).await;
            }
        }
        next.until_watermark(4).await;
        let letters = next.letters();
        assert_eq!(letters.iter().map(|letter| (letter.0, letter.1)).collect::<Vec<_>>(), [(2, 2)]);
        let expected = r#"{"location":[1,1],"n":2,"r":3}"#;
        assert_eq!(next.elastic.document("a").as_deref(), Some(expected));
    }
}

#[tokio::test(start_paused = true)]
async fn a_patch_that_takes_the_location_away_does_not_take_the_good_ones_along() {
    let mut rig = Rig::start();
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    for (offset, patch) in [(1, r#"{"p":1}"#), (2, r#"{"location":{"lat":null}}"#), (3, r#"{"q":3}"#)] {
        rig.send(offset, "a", Some(patch), Some("patch"));
    }
    rig.until_watermark(4).await;
    assert_eq!(rig.letters(), [(2, 2, "write", "no_location_after_patch")]);
    assert_eq!(rig.elastic.document("a").as_deref(), Some(r#"{"location":[1,1],"n":1,"p":1,"q":3}"#));
}

#[tokio::test(start_paused = true)]
async fn nor_does_it_take_along_what_was_made_of_patches() {
    let mut rig = Rig::build(RigOptions { on_missing: OnMissing::Create, ..RigOptions::default() });
    rig.index(0, "a", 91, 1);
    rig.until_watermark(1).await;
    rig.send(1, "a", None, None);
    rig.send(2, "a", Some(&document(1, 2)), Some("patch"));
    rig.send(3, "a", Some(r#"{"location":{"lat":null}}"#), Some("patch"));
    rig.until_watermark(4).await;
    assert_eq!(rig.letters(), [(3, 3, "write", "no_location_after_patch")]);
    assert_eq!(rig.elastic.document("a"), Some(document(1, 2)));
}

#[tokio::test(start_paused = true)]
async fn few_documents_are_tried_record_by_record_at_once() {
    let mut rig = Rig::start();
    for n in 0..10 {
        rig.index(n, &format!("d{n}"), 1, 1);
    }
    rig.until_watermark(10).await;
    rig.elastic.set_faults(|faults| faults.refused_text = Some("bad"));
    for n in 0..10 {
        rig.send(10 + 2 * n, &format!("d{n}"), Some(r#"{"p":1}"#), Some("patch"));
        rig.send(11 + 2 * n, &format!("d{n}"), Some(r#"{"q":"bad"}"#), Some("patch"));
    }
    let reads = |rig: &Rig| rig.kept_records.reads.load(Ordering::SeqCst);
    rig.until("the first are read again", |rig| reads(rig) > 0).await;
    rig.elastic.set_faults(|faults| faults.down = true);
    rig.pass(Duration::from_secs(100)).await;
    assert_eq!(reads(&rig), 4, "none of them is done");
    rig.elastic.set_faults(|faults| faults.down = false);
    rig.until_watermark(30).await;
    assert_eq!((reads(&rig), rig.letters().len(), rig.meter.held()), (10, 10, 0));
    assert_eq!(rig.elastic.document("d9").as_deref(), Some(r#"{"location":[1,1],"n":1,"p":1}"#));
}

#[tokio::test(start_paused = true)]
async fn folds_whose_records_cannot_be_read_again_make_room_for_others() {
    let mut rig = Rig::start();
    for n in 0..10 {
        rig.index(n, &format!("d{n}"), 1, 1);
    }
    rig.until_watermark(10).await;
    rig.elastic.set_faults(|faults| faults.refused_text = Some("bad"));
    *rig.kept_records.fault.lock().unwrap() = Some("the broker is gone");
    for n in 0..10 {
        rig.send(10 + 2 * n, &format!("d{n}"), Some(r#"{"p":1}"#), Some("patch"));
        rig.send(11 + 2 * n, &format!("d{n}"), Some(r#"{"q":"bad"}"#), Some("patch"));
    }
    rig.until_watermark(30).await;
    assert_eq!((rig.letters().len(), rig.meter.held()), (10, 0));
}

#[tokio::test(start_paused = true)]
async fn what_is_rejected_when_an_entry_is_parked_is_told_although_no_record_comes() {
    let mut rig = Rig::start();
    placed(&rig, "a", 0, 3).await;
    let calls = rig.elastic.calls();
    rig.index(1, "a", 1, 1);
    rig.until("it is in a batch", |rig| rig.elastic.calls() > calls).await;
    rig.send(2, "a", Some(r#"{"location":{"lat":null}}"#), Some("patch"));
    rig.pass(Duration::from_secs(2)).await;
    // Compaction took 3.
    rig.published.update(|known| known.read_to = Some(4));
    rig.until_watermark(4).await;
    assert_eq!(rig.letters(), [(2, 2, "fold", "bad_location")]);
}

#[tokio::test(start_paused = true)]
async fn what_is_rejected_when_a_document_goes_on_is_told_too() {
    let mut rig = Rig::start();
    rig.letters.open.send_replace(false);
    let spoiling = r#"{"location":{"lat":null}}"#;
    rig.index(0, "a", 1, 1);
    rig.send(1, "a", Some(spoiling), Some("patch"));
    rig.pass(Duration::from_secs(2)).await;
    rig.send(2, "a", Some(spoiling), Some("patch"));
    rig.pass(Duration::from_secs(2)).await;
    rig.letters.open.send_replace(true);
    rig.until_watermark(3).await;
    let letters = rig.letters();
    assert_eq!(letters.iter().map(|letter| (letter.0, letter.1)).collect::<Vec<_>>(), [(1, 1), (2, 2)]);
    assert_eq!(rig.elastic.document("a"), Some(document(1, 1)));
}

#[tokio::test(start_paused = true)]
async fn patches_folded_behind_a_dead_letter_do_not_take_each_other_along() {
    let mut rig = Rig::start();
    rig.letters.open.send_replace(false);
    rig.index(0, "a", 1, 1);
    let spoiling = r#"{"location":{"lat":null}}"#;
    for (offset, patch) in [(1, spoiling), (2, r#"{"p":2}"#), (3, spoiling), (4, r#"{"q":4}"#)] {
        rig.send(offset, "a", Some(patch), Some("patch"));
    }
    rig.pass(Duration::from_secs(2)).await;
    rig.letters.open.send_replace(true);
    rig.until_watermark(5).await;
    let letters = rig.letters();
    assert_eq!(letters.iter().map(|letter| (letter.0, letter.1)).collect::<Vec<_>>(), [(1, 1), (3, 3)]);
    assert_eq!(rig.elastic.document("a").as_deref(), Some(r#"{"location":[1,1],"n":1,"p":2,"q":4}"#));
    assert_eq!(rig.meter.held(), 0);
}
