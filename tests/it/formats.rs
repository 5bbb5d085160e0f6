//! What geofold 0.1 keeps in Elasticsearch, Kafka and files is read by this one as it was meant, and written the same way
//! where workers of both run side by side (docs/upgrade.md). These texts are never changed; new ones are added.

use geofold::base::ids::DocId;
use geofold::base::position::{Epoch, Position};
use geofold::core::counting::increment::Increment;
use geofold::core::placement::Placement;
use geofold::geoshard::GeoshardMap;
use geofold::io::claims::Claim;
use geofold::io::maps::{MapChangeStage, MapsRecord, MapsState};
use geofold::io::meta::{TopicFacts, Watermark};
use serde_json::Value;

const MAP: &str = r#"{"version":3,"name":"two","cells":"s2","ranges":[{"from":"0000000000000000","shard":"a"},{"from":"9000000000000001","shard":"b"}]}"#;

/// Two readings of one JSON: the order of members does not matter.
fn same(written: &[u8], text: &str) {
    let read = |json: &[u8]| serde_json::from_slice::<Value>(json).unwrap();
    assert_eq!(read(written), read(text.as_bytes()));
}

#[test]
fn placements_of_0_1_are_read_and_written_back_to_the_byte() {
    for text in [
        r#"{"pos":17592186044423,"shard":"a","leftovers":["b","c"]}"#,
        r#"{"pos":7,"leftovers":["b"],"deleted":true}"#,
        r#"{"pos":7,"shard":"a","refused":true}"#,
        r#"{"pos":7,"shard":"a","fetched":{"n":1.50,"location":[13.4,52.5]}}"#,
        r#"{"pos":9,"shard":"a","versions":[[7,{"tags":["x"]}],[9,{"geoshard":["a"],"tags":["x","y"]}]]}"#,
    ] {
        let placement = Placement::from_json(text.as_bytes()).unwrap();
        assert_eq!(placement.to_json(), text);
    }
    // For a while "deleted": false said that there is nothing else.
    for text in [r#"{"pos":7,"shard":"a"}"#, r#"{"pos":7,"shard":"a","deleted":false}"#] {
        assert_eq!(Placement::from_json(text.as_bytes()).unwrap().to_json(), r#"{"pos":7,"shard":"a"}"#);
    }
    let moved = Placement::from_json(br#"{"pos":17592186044423,"shard":"a","leftovers":["b"]}"#).unwrap();
    assert_eq!(moved.pos, Position::new(Epoch::new(1).unwrap(), 6).unwrap());
    assert_eq!(moved.may_hold().count(), 2);
}

/// 0.1 refuses these, since it does not know the field.
#[test]
fn placements_that_name_their_partition_are_read_and_written_back_to_the_byte() {
    let text = r#"{"pos":7,"shard":"a","leftovers":["b"],"partition":11}"#;
    let placement = Placement::from_json(text.as_bytes()).unwrap();
    assert_eq!((placement.partition, placement.to_json()), (Some(11), text.into()));
    assert_eq!(Placement::from_json(br#"{"pos":7,"shard":"a"}"#).unwrap().partition, None);
}

/// 0.1 refuses these, too.
#[test]
fn placements_with_a_key_are_read_and_written_back_to_the_byte() {
    let text = r#"{"pos":7,"shard":"a","partition":11,"key":961975116}"#;
    let id = DocId::from_key(Some(b"foobar")).unwrap();
    assert_eq!(Placement::from_json(text.as_bytes()).unwrap().stored(&id), text);
}

#[test]
fn a_placement_with_what_only_a_later_version_knows_is_not_read() {
    let error = Placement::from_json(br#"{"pos":7,"shard":"a","held_until":12}"#).unwrap_err();
    assert!(error.to_string().contains("held_until"), "{error}");
}

#[test]
fn topic_and_partition_state_of_0_1_round_trips() {
    for text in
        [r#"{"epoch":1,"topic_id":"Yk3","partitions":8,"map":"0f3c"}"#, r#"{"epoch":1,"partitions":8}"#]
    {
        let facts: TopicFacts = serde_json::from_str(text).unwrap();
        assert_eq!((facts.epoch, facts.partitions), (Epoch::new(1).unwrap(), 8));
        same(&serde_json::to_vec(&facts).unwrap(), text);
    }
    let text = r#"{"epoch":2,"offset":4711}"#;
    let watermark: Watermark = serde_json::from_str(text).unwrap();
    assert_eq!(watermark.offset, 4711);
    same(&serde_json::to_vec(&watermark).unwrap(), text);
}

#[test]
fn the_record_of_the_maps_of_0_1_is_read_in_every_stage() {
    let one = format!(
        r#"{{"generation":4,"epoch":1,"floor":{{"0":12,"1":5}},"state":"one","map":{MAP},"before":"0f3c","unused":["c"]}}"#
    );
    let record: MapsRecord = serde_json::from_str(&one).unwrap();
    assert!(matches!(&record.state, MapsState::One { unused, .. } if unused.len() == 1));
    assert_eq!(record.floor[&0], 12);
    same(&serde_json::to_vec(&record).unwrap(), &one);

    for (name, stage) in [
        ("announced", MapChangeStage::Announced),
        ("moving", MapChangeStage::Moving),
        ("returning", MapChangeStage::Returning),
    ] {
        let two = format!(
            r#"{{"generation":5,"epoch":1,"floor":{{}},"state":"two","old":{MAP},"new":{MAP},"stage":"{name}"}}"#
        );
        let record: MapsRecord = serde_json::from_str(&two).unwrap();
        assert!(matches!(record.state, MapsState::Two { stage: read, .. } if read == stage));
        same(&serde_json::to_vec(&record).unwrap(), &two);
    }
    let later = format!(r#"{{"generation":6,"epoch":1,"state":"three","map":{MAP}}}"#);
    assert!(serde_json::from_str::<MapsRecord>(&later).is_err(), "a state that only a later version knows");

    let text = r#"{"generation":5,"owner":"w1","deadline_ms":60000}"#;
    let claim: Claim = serde_json::from_str(text).unwrap();
    same(&claim.to_json(), text);
    let text = r#"{"generation":5,"owner":"w1","deadline_ms":60000,"assignment":"a1-1"}"#;
    let claim: Claim = serde_json::from_str(text).unwrap();
    same(&claim.to_json(), text);
}

#[test]
fn increments_of_0_1_are_read_and_written_back_to_the_byte_and_others_are_refused() {
    let text = r#"{"id":"w1-1","topic":"documents","partition":3,"to":10,"edges":[{"pos":7,"delta":{"geoshard":{"a":-1,"b":1},"tags":{"x":2}}}]}"#;
    let increment = Increment::from_json(text.as_bytes()).unwrap();
    assert_eq!(increment.to_json(), text.as_bytes());
    assert_eq!(increment.key(), "documents/3");
    let later = text.replacen("{\"id\"", "{\"kind\":\"whole\",\"id\"", 1);
    assert!(Increment::from_json(later.as_bytes()).is_err(), "counts need every increment as it was meant");
}

#[test]
fn a_map_file_of_0_1_keeps_its_fingerprint() {
    let map = GeoshardMap::from_json(MAP).unwrap();
    assert_eq!(map.fingerprint(), "3-f9dd5069838df930");
    assert_eq!(GeoshardMap::from_json(&map.to_json()).unwrap(), map);
}
