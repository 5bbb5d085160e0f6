use std::collections::HashMap;
use std::sync::LazyLock;

use apache_avro::writer::datum::GenericDatumWriter;
use apache_avro::{Days, Decimal, Duration, Millis, Months, Uuid};
use proptest::prelude::*;

use super::super::schema::{Kind, Reference};
use super::*;

fn fetched(text: &str, references: &[(&str, &str)]) -> RegisteredSchema {
    let reference = |(name, text): &(&str, &str)| Reference { name: (*name).into(), text: (*text).into() };
    RegisteredSchema {
        kind: Kind::Avro,
        text: text.into(),
        references: references.iter().map(reference).collect(),
    }
}

fn compiled(text: &str) -> Avro {
    Avro::compile(&fetched(text, &[])).unwrap()
}

fn refused(text: &str) -> String {
    Avro::compile(&fetched(text, &[])).unwrap_err()
}

/// A record with one field of this type.
fn of_field(kind: &str) -> String {
    format!(r#"{{"type":"record","name":"R","fields":[{{"name":"a","type":{kind}}}]}}"#)
}

/// A datum as a producer writes it, by the schema with its references.
fn datum(schema: &str, value: Value) -> Vec<u8> {
    let schema = Schema::parse_str(schema).unwrap();
    GenericDatumWriter::builder(&schema).build().unwrap().write_value_to_vec(value).unwrap()
}

fn written_as(schema: &str, value: Value) -> String {
    let json = compiled(schema).json(&datum(schema, value), 10_000).unwrap();
    String::from_utf8(json.to_vec()).unwrap()
}

/// The JSON of a value of this type.
fn json(kind: &str, value: Value) -> String {
    let json = written_as(&of_field(kind), Value::Record(vec![("a".into(), value)]));
    json.strip_prefix("{\"a\":").unwrap().strip_suffix('}').unwrap().to_owned()
}

fn logical(base: &str, kind: &str) -> String {
    format!(r#"{{"type":"{base}","logicalType":"{kind}"}}"#)
}

fn failure(avro: &Avro, payload: &[u8]) -> String {
    match avro.json(payload, 10_000).unwrap_err() {
        ConversionFailure::Payload(why) => why,
        ConversionFailure::TooLarge => "too large".to_owned(),
    }
}

#[test]
fn primitive_types_stay_as_they_are() {
    assert_eq!(json(r#""null""#, Value::Null), "null");
    assert_eq!(json(r#""boolean""#, Value::Boolean(true)), "true");
    assert_eq!(json(r#""int""#, Value::Int(-7)), "-7");
    assert_eq!(json(r#""long""#, Value::Long(i64::MIN)), "-9223372036854775808");
    assert_eq!(json(r#""float""#, Value::Float(0.1)), "0.1");
    assert_eq!(json(r#""double""#, Value::Double(52.520_008)), "52.520008");
    assert_eq!(json(r#""double""#, Value::Double(f64::NAN)), "null");
    assert_eq!(json(r#""string""#, Value::String("a\"\n".into())), r#""a\"\n""#);
    assert_eq!(json(r#""bytes""#, Value::Bytes(vec![0, 255, 16])), r#""AP8Q""#);
    assert_eq!(written_as(r#""long""#, Value::Long(7)), "7", "a primitive key");
}

#[test]
fn structures_keep_field_order_and_drop_type_names() {
    let schema = r#"{"type":"record","name":"Place","namespace":"a.b","fields":[
        {"name":"z","type":["null",{"type":"array","items":["string","long"]}]},
        {"name":"kind","type":{"type":"enum","name":"Kind","symbols":["TOWN","RIVER"]}},
        {"name":"m","type":{"type":"map","values":"int"}},
        {"name":"at","type":{"type":"record","name":"Point","fields":[{"name":"lat","type":"double"},{"name":"lon","type":"double"}]}},
        {"name":"to","type":["null","Point"]},
        {"name":"f","type":{"type":"fixed","name":"Two","size":2}}]}"#;
    let point = |lat, lon| {
        Value::Record(vec![("lat".into(), Value::Double(lat)), ("lon".into(), Value::Double(lon))])
    };
    let members = [("b", 2), ("a", 1), ("c", 3)];
    let value = Value::Record(vec![
        (
            "z".into(),
            Value::Union(
                1,
                Box::new(Value::Array(vec![
                    Value::Union(0, Box::new(Value::String("x".into()))),
                    Value::Union(1, Box::new(Value::Long(1))),
                ])),
            ),
        ),
        ("kind".into(), Value::Enum(1, "RIVER".into())),
        (
            "m".into(),
            Value::Map(HashMap::from(members.map(|(name, value)| (name.to_owned(), Value::Int(value))))),
        ),
        ("at".into(), point(1.5, 2.0)),
        ("to".into(), Value::Union(1, Box::new(point(3.0, 4.0)))),
        ("f".into(), Value::Fixed(2, vec![1, 2])),
    ]);
    assert_eq!(
        written_as(schema, value),
        r#"{"z":["x",1],"kind":"RIVER","m":{"a":1,"b":2,"c":3},"at":{"lat":1.5,"lon":2.0},"to":{"lat":3.0,"lon":4.0},"f":"AQI="}"#
    );
}

#[test]
fn times_are_texts_that_elasticsearch_parses_as_dates() {
    let at = 1_795_248_000_123_i64;
    for (kind, value, expected) in [
        (logical("int", "date"), Value::Date(20_778), "2026-11-21"),
        (logical("int", "date"), Value::Date(-1), "1969-12-31"),
        (logical("int", "time-millis"), Value::TimeMillis(28_800_500), "08:00:00.500"),
        (logical("long", "time-micros"), Value::TimeMicros(86_399_999_999), "23:59:59.999999"),
        (logical("long", "timestamp-millis"), Value::TimestampMillis(at), "2026-11-21T08:00:00.123Z"),
        (logical("long", "timestamp-millis"), Value::TimestampMillis(-1), "1969-12-31T23:59:59.999Z"),
        (logical("long", "timestamp-micros"), Value::TimestampMicros(at * 1000), "2026-11-21T08:00:00.123Z"),
        (logical("long", "timestamp-nanos"), Value::TimestampNanos(1), "1970-01-01T00:00:00.000000001Z"),
        (
            logical("long", "local-timestamp-millis"),
            Value::LocalTimestampMillis(at),
            "2026-11-21T08:00:00.123",
        ),
        (logical("long", "local-timestamp-micros"), Value::LocalTimestampMicros(0), "1970-01-01T00:00:00"),
        (logical("long", "local-timestamp-nanos"), Value::LocalTimestampNanos(0), "1970-01-01T00:00:00"),
    ] {
        assert_eq!(json(&kind, value), format!("\"{expected}\""), "{kind}");
    }
    let duration = Duration::new(Months::new(1), Days::new(2), Millis::new(3_004));
    let kind = r#"{"type":"fixed","size":12,"name":"D","logicalType":"duration"}"#;
    assert_eq!(json(kind, Value::Duration(duration)), r#""P1M2DT3.004S""#);
    // A time of day beyond 24 hours.
    let avro = compiled(&of_field(&logical("int", "time-millis")));
    assert!(failure(&avro, &[1]).contains("range"));
}

#[test]
fn decimals_keep_all_digits_and_uuids_are_texts() {
    let kind = r#"{"type":"bytes","logicalType":"decimal","precision":30,"scale":4}"#;
    for (unscaled, expected) in [
        (vec![0x01, 0xe2, 0x40], "12.3456"),
        (vec![0xff], "-0.0001"),
        (vec![0], "0.0000"),
        (vec![0x7f; 12], "3945873191886890538972581.0559"),
    ] {
        assert_eq!(json(kind, Value::Decimal(Decimal::from(unscaled))), expected);
    }
    let uuid = Uuid::parse_str("67e55044-10b1-426f-9247-bb680e5fe0c8").unwrap();
    assert_eq!(
        json(&logical("string", "uuid"), Value::Uuid(uuid)),
        r#""67e55044-10b1-426f-9247-bb680e5fe0c8""#
    );
    let long = Value::Decimal(Decimal::from(vec![0x7f; 3_000]));
    let avro = compiled(&of_field(kind));
    let bytes = datum(&of_field(kind), Value::Record(vec![("a".into(), long)]));
    assert!(failure(&avro, &bytes).contains("too many digits"));
}

#[test]
fn reference_is_resolved_wherever_it_is_used() {
    let point = r#"{"type":"record","name":"Point","namespace":"geo","fields":[{"name":"lat","type":"double"},{"name":"lon","type":"double"}]}"#;
    let line = r#"{"type":"record","name":"Line","namespace":"geo","fields":[{"name":"from","type":"geo.Point"},{"name":"to","type":"Point"}]}"#;
    let main = r#"{"type":"record","name":"Doc","namespace":"other","fields":[{"name":"l","type":"geo.Line"},{"name":"p","type":"geo.Point"}]}"#;
    let avro = Avro::compile(&fetched(main, &[("geo.Point", point), ("geo.Line", line)])).unwrap();
    let payload: Vec<u8> = [1.0_f64, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|n| n.to_le_bytes()).collect();
    assert_eq!(
        avro.json(&payload, 1000).unwrap(),
        r#"{"l":{"from":{"lat":1.0,"lon":2.0},"to":{"lat":3.0,"lon":4.0}},"p":{"lat":5.0,"lon":6.0}}"#
    );
    assert!(Avro::compile(&fetched(main, &[("geo.Point", point)])).is_err(), "a reference is missing");
}

#[test]
fn datum_of_the_wrong_length_is_refused() {
    let avro = compiled(
        r#"{"type":"record","name":"R","fields":[{"name":"s","type":"string"},{"name":"u","type":["null","long"]}]}"#,
    );
    let whole = b"\x06abc\x02\x0e";
    assert_eq!(avro.json(whole, 100).unwrap(), r#"{"s":"abc","u":7}"#);
    for end in 0..whole.len() {
        assert!(failure(&avro, &whole[..end]).contains("too early"), "{end}");
    }
    assert!(failure(&avro, b"\x06abc\x02\x0e\0").contains("1 bytes are left over"));
    assert!(
        failure(&avro, b"\x06ab\xff\x02\x0e").contains("utf-8")
            || !failure(&avro, b"\x06ab\xff\x02\x0e").is_empty()
    );
}

#[test]
fn too_long_json_is_refused_for_any_short_datum() {
    let name = "n".repeat(1000);
    let avro = compiled(&format!(
        r#"{{"type":"array","items":{{"type":"record","name":"R","fields":[{{"name":"{name}","type":"int"}}]}}}}"#
    ));
    let mut payload = vec![0x80, 0x02];
    payload.extend([0; 128]);
    payload.push(0);
    assert_eq!(failure(&avro, &payload), "too large");
}

#[test]
fn schemas_that_amplify_a_short_datum_are_refused() {
    let list = r#"{"type":"record","name":"List","fields":[{"name":"next","type":["null","List"]}]}"#;
    assert!(refused(list).contains("contains itself"));
    assert!(refused(r#"{"type":"array","items":"null"}"#).contains("no bytes"));
    assert!(
        refused(r#"{"type":"array","items":{"type":"record","name":"E","fields":[]}}"#).contains("no bytes")
    );
    let nulls = (0..17).map(|n| format!(r#"{{"name":"f{n}","type":"null"}}"#)).collect::<Vec<_>>().join(",");
    assert!(refused(&format!(r#"{{"type":"record","name":"N","fields":[{nulls}]}}"#)).contains("no bytes"));
    assert!(refused(r#"{"type":"fixed","name":"F","size":1048577}"#).contains("fixed"));
    let scale = r#"{"type":"bytes","logicalType":"decimal","precision":2000,"scale":1001}"#;
    assert!(refused(scale).contains("digits behind"));
    // Each type doubles the one before: 2^40 if expanded.
    let mut fields =
        r#"{"name":"a","type":{"type":"record","name":"T0","fields":[{"name":"x","type":"int"}]}}"#
            .to_owned();
    for n in 1..40 {
        let before = n - 1;
        fields.push_str(&format!(
            r#",{{"name":"a{n}","type":{{"type":"record","name":"T{n}","fields":[{{"name":"l","type":"T{before}"}},{{"name":"r","type":"T{before}"}}]}}}}"#
        ));
    }
    assert!(
        refused(&format!(r#"{{"type":"record","name":"R","fields":[{fields}]}}"#)).contains("10000 types")
    );
    let optional =
        (0..100).map(|n| format!(r#"{{"name":"f{n}","type":["null","int"]}}"#)).collect::<Vec<_>>();
    compiled(&format!(r#"{{"type":"record","name":"O","fields":[{}]}}"#, optional.join(",")));
}

#[test]
fn impossible_length_is_refused_without_allocation() {
    let avro = compiled(
        r#"{"type":"record","name":"R","fields":[{"name":"b","type":"bytes"},{"name":"a","type":{"type":"array","items":"long"}}]}"#,
    );
    // Lengths of 2^62 and of 2^40.
    for length in
        [&[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f][..], &[0x80, 0x80, 0x80, 0x80, 0x80, 0x40]]
    {
        assert!(!failure(&avro, length).is_empty());
        assert!(!failure(&avro, &[&[0], length].concat()).is_empty());
    }
}

static MANY_TYPES: LazyLock<Avro> = LazyLock::new(|| {
    compiled(
        r#"{"type":"record","name":"R","fields":[
            {"name":"a","type":{"type":"array","items":["null","string","double","bytes"]}},
            {"name":"m","type":{"type":"map","values":{"type":"array","items":"int"}}},
            {"name":"d","type":{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}},
            {"name":"bd","type":["null",{"type":"bytes","logicalType":"big-decimal"}]},
            {"name":"t","type":["null",{"type":"long","logicalType":"timestamp-micros"},{"type":"int","logicalType":"time-millis"}]},
            {"name":"u","type":["null",{"type":"string","logicalType":"uuid"}]}]}"#,
    )
});

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(json) = MANY_TYPES.json(&bytes, 100_000) {
            prop_assert!(serde_json::from_slice::<serde_json::Value>(&json).is_ok());
        }
    }
}
