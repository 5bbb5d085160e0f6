//! What can not be applied, and the dead letters that tell of it.

use super::*;

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
    rig.until_watermark(5).await;
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
