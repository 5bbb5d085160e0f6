//! What cannot be applied, and the dead letters that tell of it.

use super::*;
use crate::core::placement::Placement;
use crate::io::elastic::{BulkOp, Elastic, Index, WriteCondition};

#[tokio::test(start_paused = true)]
async fn bad_records_go_to_the_dead_letters_and_hold_the_watermark_until_they_are_there() {
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
async fn letters_under_way_count_as_held_bytes() {
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
    assert!(!rig.meter.may_read(Limits { total: 50 * one, per_partition: usize::MAX }, false));
    rig.letters.open.send_replace(true);
    rig.until_watermark(100).await;
    assert_eq!(rig.meter.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn refused_and_spoiled_documents_become_letters_that_say_which_step_refused_them() {
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
async fn without_a_dead_letter_topic_a_bad_record_stops_the_partition_but_not_what_came_before() {
    let mut rig = Rig::with(batching(), false);
    rig.index(0, "a", 1, 1);
    rig.bad(1, "b");
    rig.index(2, "c", 1, 1);
    rig.until_watermark(1).await;
    rig.pass(Duration::from_secs(100)).await;
    assert_eq!((rig.published.watermark(), rig.elastic.document("c")), (Some(1), None));
    assert!(rig.health.missing()[&stopped_part(0)].contains("no dead-letter topic"));
    assert_eq!(rig.meter.held(), 0, "what it will not read takes no memory from others");
    assert!(rig.records.is_closed(), "so that the poll thread pauses it");
    rig.mode.send(Mode::Drain).unwrap();
    rig.until_ended().await;
}

/// A placement of partition 3, at its record 10.
async fn placed_by_partition_3(rig: &Rig, id: &str) {
    let pos = Position::new(Epoch::new(1).unwrap(), 10).unwrap();
    let placement = Placement::new(pos, Some(ShardId::new("f0").unwrap()), []).by_partition(Some(3));
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
async fn a_key_of_another_partition_is_a_dead_letter_and_does_not_hold_the_watermark() {
    let mut rig = Rig::start();
    placed_by_partition_3(&rig, "a").await;
    rig.index(0, "a", 1, 1);
    rig.index(1, "b", 1, 1);
    rig.until_watermark(2).await;
    assert_eq!(rig.letters(), [(0, 0, "write", "key_in_two_partitions")]);
    assert_eq!(rig.elastic.document("a"), None);
}

#[tokio::test(start_paused = true)]
async fn a_key_of_another_partition_stops_the_partition_where_there_are_no_dead_letters() {
    let mut rig = Rig::with(batching(), false);
    placed_by_partition_3(&rig, "a").await;
    rig.index(0, "a", 1, 1);
    rig.until("it says so", |rig| rig.health.missing().contains_key(&stopped_part(0))).await;
    assert!(rig.health.missing()[&stopped_part(0)].contains("in partition 3 and in partition 0"));
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!(rig.published.watermark(), Some(0));
}

/// Document `a` at its place, then in one fold: a good patch, a bad one, and two good ones.
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
async fn a_bad_record_does_not_take_the_good_ones_along_that_it_was_folded_with() {
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
async fn the_watermark_waits_for_each_record_of_a_fold_that_is_taken_apart() {
    let mut rig = Rig::start();
    rig.letters.open.send_replace(false);
    fold_with_a_bad_patch(&mut rig).await;
    rig.until_watermark(2).await;
    rig.send(6, "a", Some(r#"{"s":6}"#), Some("patch"));
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!(rig.published.watermark(), Some(2), "its letter is not delivered");
    rig.letters.open.send_replace(true);
    rig.until_watermark(7).await;
    let document = rig.elastic.document("a");
    assert_eq!(document.as_deref(), Some(r#"{"location":[1,1],"n":1,"p":1,"q":4,"s":6}"#));
    assert_eq!(rig.letters().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn records_that_are_gone_are_left_out_of_a_fold_that_is_taken_apart() {
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
async fn a_fold_whose_records_cannot_be_read_again_is_one_dead_letter_that_says_so() {
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
async fn a_partition_that_ends_while_records_are_read_again_leaves_them_to_the_next_owner() {
    let mut rig = Rig::start();
    fold_with_a_bad_patch(&mut rig).await;
    rig.until("the refusal", |rig| rig.elastic.document("b").is_some()).await;
    rig.mode.send(Mode::FinishBatch).unwrap();
    rig.until_ended().await;
    assert_eq!(rig.published.watermark(), Some(1));
    assert_eq!(rig.letters(), []);
}
