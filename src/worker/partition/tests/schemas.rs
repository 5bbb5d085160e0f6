//! A partition whose records need schemas. In real time, since the registry is a server.

use super::*;
use crate::io::registry::Registry;
use crate::testkit::testing::TestRegistry;

const PLACE: &str = r#"{"type":"record","name":"Place","fields":[
    {"name":"location","type":"string"},{"name":"n","type":"int"}]}"#;

async fn reading() -> (TestRegistry, Rig) {
    let registry = TestRegistry::start().await;
    let client = Registry::open(&registry.settings(), None).unwrap();
    let rig = Rig::build(RigOptions { registry: Some(client), ..RigOptions::default() });
    (registry, rig)
}

fn record(offset: i64, id: &str, schema: u8, n: u8) -> Record {
    let value = [&[0, 0, 0, 0, schema, 6][..], b"1,2", &[n << 1]].concat();
    let headers = OwnedHeaders::new().insert(Header { key: "trace", value: Some("abc") });
    Record {
        offset,
        key: Some(Bytes::copy_from_slice(id.as_bytes())),
        value: Some(value.into()),
        headers: Some(headers),
    }
}

fn send(rig: &Rig, record: Record) {
    rig.meter.enqueued(record.bytes());
    assert!(rig.records.try_send(record).is_ok());
}

fn is_waiting(rig: &Rig) -> bool {
    rig.metrics.schemas.waiting.get() == 1
}

#[tokio::test]
async fn records_are_decoded_by_schema_beside_plain_json() {
    let (registry, mut rig) = reading().await;
    registry.put_avro(1, PLACE);
    send(&rig, record(0, "a", 1, 7));
    rig.send(1, "b", Some(r#"{"location":"1,2","n":8}"#), Some("index"));
    rig.send(2, "c", Some(r#"{"location":"1,2","n":8}"#), None);
    rig.send(3, "a", None, None);
    send(&rig, record(4, "d", 1, 9));
    rig.until_watermark(5).await;
    assert_eq!(rig.elastic.document("a"), None, "a tombstone stays one");
    assert_eq!(rig.elastic.document("b").as_deref(), Some(r#"{"location":"1,2","n":8}"#));
    assert_eq!(rig.elastic.document("d").as_deref(), Some(r#"{"location":"1,2","n":9}"#));
    assert_eq!(rig.letters(), [(2, 2, "decode", "bad_frame")]);
    assert_eq!(registry.asked(), ["1"], "once for all records");
}

#[tokio::test]
async fn registry_outage_delays_records_and_loses_none() {
    let (registry, mut rig) = reading().await;
    registry.put_avro(1, PLACE);
    registry.be(503);
    send(&rig, record(0, "a", 1, 1));
    send(&rig, record(1, "a", 1, 2));
    rig.send(2, "a", None, None);
    send(&rig, record(3, "a", 1, 3));
    rig.until("it waits", is_waiting).await;
    rig.until("it has asked again", |_| registry.asked().len() > 3).await;
    assert!(is_waiting(&rig) && rig.letters().is_empty());
    assert!(rig.published.watermark().is_none_or(|offset| offset == 0));
    let missing = rig.health.missing();
    let reason = &missing["schema registry (partition 0)"];
    assert!(reason.contains("waiting for schema 1") && reason.contains("503"), "{reason}");
    registry.be_well();
    rig.until_watermark(4).await;
    assert_eq!(rig.elastic.document("a").as_deref(), Some(r#"{"location":"1,2","n":3}"#));
    assert!(!is_waiting(&rig) && rig.health.missing().is_empty());
    rig.until("nothing is held", |rig| rig.budget.held() == 0).await;
}

#[tokio::test]
async fn unknown_schema_makes_a_dead_letter_of_the_original_record() {
    let (registry, mut rig) = reading().await;
    registry.put_avro(1, PLACE);
    registry.put_avro(2, "{\"type\":\"nonsense\"}");
    send(&rig, record(0, "a", 9, 1));
    send(&rig, record(1, "b", 2, 1));
    send(&rig, record(2, "c", 1, 1));
    let mut short = record(3, "d", 1, 1);
    short.value = Some(Bytes::from_static(&[0, 0, 0, 0, 1, 6]));
    send(&rig, short);
    send(&rig, record(4, "e", 9, 1));
    rig.until_watermark(5).await;
    assert_eq!(
        rig.letters(),
        [
            (0, 0, "decode", "unknown_schema"),
            (1, 1, "decode", "bad_schema"),
            (3, 3, "decode", "bad_payload"),
            (4, 4, "decode", "unknown_schema"),
        ]
    );
    assert!(rig.elastic.document("c").is_some());
    let letters = rig.letters.letters.lock().unwrap();
    let letter = letters.iter().find(|letter| letter.origin.first_offset == 0).unwrap();
    assert_eq!(letter.value, record(0, "a", 9, 1).value);
    let mut headers = rdkafka::message::Headers::iter(&letter.headers);
    assert!(headers.any(|header| header.key == "trace" && header.value == Some(&b"abc"[..])));
    let asked = registry.asked().iter().filter(|asked| *asked == "9").count();
    assert_eq!(asked, 2, "two requests, then the answer is cached");
}

#[tokio::test]
async fn partition_waiting_for_a_schema_ends_on_revocation_or_stop() {
    for mode in [Mode::FinishBatch, Mode::Drain] {
        let (registry, mut rig) = reading().await;
        registry.put_avro(1, PLACE);
        rig.send(0, "z", None, None);
        rig.until_watermark(1).await;
        registry.be(500);
        send(&rig, record(1, "a", 1, 1));
        rig.until("it waits", is_waiting).await;
        rig.mode.send_replace(mode);
        rig.until_ended().await;
        assert_eq!(rig.published.watermark(), Some(1), "the next owner reads it again");
        assert!(!is_waiting(&rig) && rig.health.missing().is_empty());
    }
}
