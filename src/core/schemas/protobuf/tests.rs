use std::sync::LazyLock;

use proptest::prelude::*;
use prost_reflect::prost::Message;
use prost_reflect::{DynamicMessage, Value};

use super::super::schema::{Kind, Reference};
use super::*;

const PLACE: &str = r#"syntax = "proto3";
    package places;
    import "google/protobuf/timestamp.proto";
    import "google/protobuf/wrappers.proto";
    import "confluent/meta.proto";
    message Point { double lat = 1; double lon = 2; }
    message Place {
        map<string, int64> counts = 9;
        message Inner { enum Kind { TOWN = 0; RIVER = 1; } Kind the_kind = 1; }
        string place_name = 1;
        Point location = 2;
        int64 people = 3;
        google.protobuf.Timestamp seen_at = 4;
        repeated Inner inner = 5;
        bytes raw = 6;
        optional string note = 7;
        google.protobuf.StringValue wrapped = 8;
        uint64 big = 10 [(confluent.field_meta).doc = "a number"];
    }"#;

fn fetched(text: &str, references: &[(&str, &str)]) -> RegisteredSchema {
    let reference = |(name, text): &(&str, &str)| Reference { name: (*name).into(), text: (*text).into() };
    RegisteredSchema {
        kind: Kind::Protobuf,
        text: text.into(),
        references: references.iter().map(reference).collect(),
    }
}

fn compiled(text: &str) -> Protobuf {
    Protobuf::compile(&fetched(text, &[])).unwrap()
}

fn text(json: Result<Bytes, ConversionFailure>) -> Result<String, String> {
    match json {
        Ok(json) => Ok(String::from_utf8(json.to_vec()).unwrap()),
        Err(ConversionFailure::Payload(why)) => Err(why),
        Err(ConversionFailure::TooLarge) => Err("too large".to_owned()),
    }
}

/// Message indexes as a producer writes them, and a message.
fn payload(indexes: &[u8], message: &DynamicMessage) -> Vec<u8> {
    let count = u8::try_from(indexes.len()).unwrap();
    let indexes = [count].iter().chain(indexes).map(|index| index << 1).collect::<Vec<u8>>();
    [indexes, message.encode_to_vec()].concat()
}

fn message(protobuf: &Protobuf, name: &str) -> DynamicMessage {
    DynamicMessage::new(protobuf.0.parent_pool().get_message_by_name(name).unwrap())
}

#[test]
fn message_becomes_json_with_field_names_and_defaults() {
    let protobuf = compiled(PLACE);
    let mut point = message(&protobuf, "places.Point");
    point.set_field_by_name("lon", Value::F64(2.5));
    let mut seen = message(&protobuf, "google.protobuf.Timestamp");
    seen.set_field_by_name("seconds", Value::I64(1_795_248_000));
    let mut place = message(&protobuf, "places.Place");
    place.set_field_by_name("location", Value::Message(point));
    place.set_field_by_name("people", Value::I64(9_007_199_254_740_993));
    place.set_field_by_name("seen_at", Value::Message(seen));
    place.set_field_by_name("raw", Value::Bytes(Bytes::from_static(&[0, 255])));
    place.set_field_by_name("big", Value::U64(u64::MAX));
    let inner = message(&protobuf, "places.Place.Inner");
    place.set_field_by_name("inner", Value::List(vec![Value::Message(inner)]));
    assert_eq!(
        text(protobuf.json(&payload(&[1], &place), 10_000)).unwrap(),
        r#"{"place_name":"","location":{"lat":0.0,"lon":2.5},"people":9007199254740993,"seen_at":"2026-11-21T08:00:00Z","inner":[{"the_kind":"TOWN"}],"raw":"AP8=","counts":{},"big":18446744073709551615}"#
    );
}

#[test]
fn message_is_selected_by_its_indexes_without_map_entries() {
    let protobuf = compiled(PLACE);
    let json = |payload: &[u8]| text(protobuf.json(payload, 1_000));
    assert_eq!(json(&[0]), Ok(r#"{"lat":0.0,"lon":0.0}"#.to_owned()), "the short form of the first");
    assert_eq!(json(&[2, 0]), Ok(r#"{"lat":0.0,"lon":0.0}"#.to_owned()));
    assert_eq!(json(&[4, 2, 0, 8, 1]), Ok(r#"{"the_kind":"RIVER"}"#.to_owned()));
    for (payload, words) in [
        (&[][..], "ends within the indexes"),
        (&[2], "ends within the indexes"),
        (&[4, 2], "ends within the indexes"),
        (&[2, 4], "no message at its indexes"),
        (&[2, 1], "no message at its indexes"),
        (&[1], "no message at its indexes"),
        (&[4, 2, 2], "no message at its indexes"),
        (&[0xff, 0xff, 3], "no message at its indexes"),
        (&[0, 9, 1], "decode"),
        (&[0, 0x13], "decode"),
    ] {
        let why = json(payload).unwrap_err();
        assert!(why.contains(words), "{payload:?}: {why}");
    }
    assert_eq!(text(protobuf.json(&[0], 10)), Err("too large".to_owned()));
    assert!(text(compiled("syntax = \"proto3\";").json(&[0], 10)).unwrap_err().contains("no message"));
}

#[test]
fn imports_are_references_or_built_in() {
    let main = r#"syntax = "proto3"; import "a/point.proto"; message Doc { a.Point at = 1; confluent.type.Decimal d = 2; }
        "#;
    let main = main.replace("import \"a", "import \"confluent/type/decimal.proto\"; import \"a");
    let point = r#"syntax = "proto3"; package a; import "unit.proto"; message Point { Unit unit = 1; }"#;
    let unit = r#"syntax = "proto3"; enum Unit { NONE = 0; DEGREE = 1; }"#;
    let all = [("unit.proto", unit), ("a/point.proto", point)];
    let protobuf = Protobuf::compile(&fetched(&main, &all)).unwrap();
    assert_eq!(text(protobuf.json(&[0, 10, 2, 8, 1], 100)), Ok(r#"{"at":{"unit":"DEGREE"}}"#.to_owned()));
    let why = Protobuf::compile(&fetched(&main, &all[1..])).unwrap_err();
    assert!(why.contains("unit.proto"), "{why}");
    assert!(Protobuf::compile(&fetched("message {", &[])).is_err());
    let own = [("b.proto", r#"import "b.proto";"#)];
    assert!(Protobuf::compile(&fetched(r#"import "b.proto";"#, &own)).is_err(), "a self-import");
}

#[test]
fn nested_messages_end_before_the_stack_does() {
    let protobuf = compiled(r#"syntax = "proto3"; message List { List next = 1; }"#);
    let mut bytes = Vec::new();
    for _ in 0..100_000 {
        let length = u32::try_from(bytes.len()).unwrap();
        let mut around = vec![10];
        prost_reflect::prost::encoding::encode_varint(u64::from(length), &mut around);
        bytes = [around, bytes].concat();
        if bytes.len() > 20_000 {
            break;
        }
    }
    assert!(text(protobuf.json(&[&[0][..], &bytes].concat(), 1 << 20)).unwrap_err().contains("recursion"));
}

static PLACES: LazyLock<Protobuf> = LazyLock::new(|| compiled(PLACE));

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(json) = PLACES.json(&bytes, 100_000) {
            prop_assert!(serde_json::from_slice::<serde_json::Value>(&json).is_ok());
        }
    }
}
