//! Which documents an index takes, and in which words it refuses the others.

use serde_json::{Value, json};

use crate::server::Server;

crate::cases![
    each_form_of_a_location_is_taken,
    invalid_locations_are_refused,
    a_document_must_be_one_json_object_without_a_key_twice,
    an_index_that_only_stores_looks_at_json_and_no_further,
    a_value_must_fit_the_type_of_its_field,
    a_new_field_is_mapped_by_its_first_value,
    a_strict_mapping_refuses_new_fields,
    a_refused_document_leaves_the_old_one_and_its_version,
    a_document_that_is_refused_is_no_conflict,
];

/// What becomes of each source, written into `a` one after the other.
async fn taken(server: &Server, sources: &[&str]) -> Vec<(u16, String)> {
    let lines: Vec<&str> =
        sources.iter().flat_map(|source| [r#"{"index":{"_index":"$a"}}"#, *source]).collect();
    let answer = server.bulk(&lines).await;
    answer.items().into_iter().map(|(status, kind)| (status, kind.to_owned())).collect()
}

async fn assert_all(server: &Server, sources: &[&str], expected: (u16, &str)) {
    for (source, outcome) in sources.iter().zip(taken(server, sources).await) {
        assert_eq!((outcome.0, outcome.1.as_str()), expected, "{source}");
    }
}

async fn each_form_of_a_location_is_taken(server: &Server) {
    server.create("a", json!({})).await;
    let sources = [
        r#"{"location":{"lat":90,"lon":-180}}"#,
        r#"{"location":{"lat":"1.5","lon":"2"}}"#,
        r#"{"location":[2.35,48.85]}"#,
        r#"{"location":[2.35,48.85,100]}"#,
        r#"{"location":"48.85,2.35"}"#,
        r#"{"location":"48.85, 2.35, 3"}"#,
        r#"{"location":"POINT (180 89.9)"}"#,
        r#"{"location":"u09tvw"}"#,
        r#"{"location":{"type":"Point","coordinates":[2.35,48.85]}}"#,
        r#"{"location":[[1,2],[3,4]]}"#,
        r#"{"location":[{"lat":1,"lon":2},"3,4"]}"#,
        r#"{"location":["1","2"]}"#,
        r#"{"location":" 1 , 2 "}"#,
        r#"{"location":"point(1 2 3)"}"#,
        r#"{"location":"u09tvwu09tvwu09"}"#,
        r#"{"location":null}"#,
        r#"{"location":[]}"#,
        r#"{}"#,
    ];
    assert_all(server, &sources, (201, "")).await;
    // Of these geofold takes the first two: with OpenSearch they come back as refusals and are dead-lettered.
    let elasticsearch_only = [
        r#"{"location":{"lat":1,"lon":2,"z":3}}"#,
        r#"{"location":{"type":"Point","coordinates":["1","2"]}}"#,
        r#"{"location":[null]}"#,
    ];
    let outcome = if server.is_opensearch() { server.refused() } else { (201, "") };
    assert_all(server, &elasticsearch_only, outcome).await;
}

async fn invalid_locations_are_refused(server: &Server) {
    server.create("a", json!({})).await;
    let sources = [
        r#"{"location":{"lat":100,"lon":2}}"#,
        r#"{"location":{"lat":1,"lon":181}}"#,
        r#"{"location":"91,0"}"#,
        r#"{"location":"POINT(200 1)"}"#,
        r#"{"location":{"lat":1}}"#,
        r#"{"location":{"lat":null,"lon":1}}"#,
        r#"{"location":{"lat":"x","lon":2}}"#,
        r#"{"location":{"lat":1,"lon":2,"colour":3}}"#,
        r#"{"location":{"type":"Line","coordinates":[1,2]}}"#,
        r#"{"location":{}}"#,
        r#"{"location":[1]}"#,
        r#"{"location":[1,2,3,4]}"#,
        r#"{"location":"nowhere"}"#,
        r#"{"location":" u09 "}"#,
        r#"{"location":"U09"}"#,
        r#"{"location":"1,x"}"#,
        r#"{"location":"NaN,1"}"#,
        r#"{"location":[[[1,2]]]}"#,
        r#"{"location":{"lat":1,"lon":2,"type":"Point","coordinates":[2,1]}}"#,
        r#"{"location":{"type":"Point","coordinates":[1]}}"#,
        r#"{"location":""}"#,
        r#"{"location":true}"#,
        r#"{"location":5}"#,
    ];
    assert_all(server, &sources, server.refused()).await;
    // geofold refuses it before any server sees it.
    let outcome = if server.is_opensearch() { (201, "") } else { server.refused() };
    assert_all(server, &[r#"{"location":{"geohash":"u09"}}"#], outcome).await;
    let lines = [r#"{"index":{"_index":"$a"}}"#, sources[0]];
    let answer = server.bulk(&lines).await;
    let reason = answer.of_items("/error/reason")[0].as_str().unwrap().to_owned();
    assert!(reason.ends_with("failed to parse field [location] of type [geo_point]"), "{reason}");
    let cause = answer.of_items("/error/caused_by");
    let expected = json!({
        "type": "illegal_argument_exception", "reason": "illegal latitude value [100.0] for location",
    });
    assert_eq!(cause, [expected]);
}

async fn a_document_must_be_one_json_object_without_a_key_twice(server: &Server) {
    server.create("a", json!({})).await;
    let sources = [
        "[1]",
        "null",
        r#"{"a":"#,
        r#"{"a":1,"a":2}"#,
        r#"{"o":{"a":1,"a":2}}"#,
        "{} x",
        r#"{"n":NaN}"#,
        "{'t':1}",
        "{\"t\":\"a\tb\"}",
        r#"{"":1}"#,
        r#"{"a..b":1}"#,
        r#"{"_id":"x"}"#,
    ];
    assert_all(server, &sources, server.refused()).await;
}

async fn an_index_that_only_stores_looks_at_json_and_no_further(server: &Server) {
    server.create_mapped("a", json!({}), json!({"enabled": false})).await;
    assert_all(server, &[r#"{"a":1,"a":2}"#, r#"{"a":"#, "[1]", "{} x"], server.refused()).await;
    assert_all(server, &[r#"{"a":1}"#, r#"{"a":{"b":[{"a":true}]}}"#, r#"{"_id":1}"#], (201, "")).await;
    let mapping = server.ask("GET", "/$a/_mapping", Value::Null).await;
    assert_eq!(mapping.body[server.name("a")]["mappings"], json!({"enabled": false}));
}

async fn a_value_must_fit_the_type_of_its_field(server: &Server) {
    let fields = json!({"properties": {
        "n": {"type": "long"}, "b": {"type": "boolean"}, "k": {"type": "keyword"}, "t": {"type": "text"},
        "o": {"properties": {"x": {"type": "keyword"}}},
    }});
    server.create_mapped("a", json!({}), fields).await;
    let bad = [
        r#"{"n":"x"}"#,
        r#"{"n":true}"#,
        r#"{"n":{"a":1}}"#,
        r#"{"n":99999999999999999999}"#,
        r#"{"b":"yes"}"#,
        r#"{"b":1}"#,
        r#"{"o":5}"#,
        r#"{"k":{"x":1}}"#,
        r#"{"t":["a",{"b":1}]}"#,
    ];
    assert_all(server, &bad, server.refused()).await;
    let good = [
        r#"{"n":1.5}"#,
        r#"{"n":"12"}"#,
        r#"{"n":[1,null]}"#,
        r#"{"b":""}"#,
        r#"{"b":["true",false]}"#,
        r#"{"k":5}"#,
        r#"{"o":{"x":true}}"#,
        r#"{"o.x":"y"}"#,
        r#"{"o":null}"#,
    ];
    assert_all(server, &good, (201, "")).await;
}

async fn a_new_field_is_mapped_by_its_first_value(server: &Server) {
    server.create("a", json!({})).await;
    let sources = [
        r#"{"n":1,"f":1.5,"b":true,"s":"x","d":"2024-01-01","o":{"x":1},"empty":[],"nothing":null}"#,
        r#"{"n":2,"f":3,"s":4}"#,
        r#"{"n":"x"}"#,
        r#"{"n":{"q":1}}"#,
        r#"{"d":"abc"}"#,
        r#"{"s":{"x":1}}"#,
        r#"{"n.k":1}"#,
    ];
    let outcomes = taken(server, &sources).await;
    let statuses: Vec<u16> = outcomes.iter().map(|(status, _)| *status).collect();
    assert_eq!(statuses, [201, 201, 400, 400, 400, 400, 400], "{outcomes:?}");
    let mapping = server.ask("GET", "/$a/_mapping", Value::Null).await;
    let text = json!({"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}});
    let expected = json!({
        "b": {"type": "boolean"}, "d": {"type": "date"}, "f": {"type": "float"}, "location": {"type": "geo_point"},
        "n": {"type": "long"}, "o": {"properties": {"x": {"type": "long"}}}, "s": text,
    });
    assert_eq!(mapping.body[server.name("a")]["mappings"]["properties"], expected);
}

async fn a_strict_mapping_refuses_new_fields(server: &Server) {
    server.create_mapped("a", json!({}), json!({"dynamic": "strict"})).await;
    assert_all(server, &[r#"{"x":1}"#], (400, "strict_dynamic_mapping_exception")).await;
    server.create_mapped("b", json!({}), json!({"dynamic": false})).await;
    server.fill("b", &[r#"{"x":1}"#]).await;
    let mapping = server.ask("GET", "/$b/_mapping", Value::Null).await;
    assert_eq!(mapping.body[server.name("b")]["mappings"]["properties"], Value::Null);
}

async fn a_refused_document_leaves_the_old_one_and_its_version(server: &Server) {
    server.create("a", json!({})).await;
    let answer = server
        .bulk(&[
            r#"{"index":{"_index":"$a","_id":"1","version":5,"version_type":"external"}}"#,
            r#"{"n":1}"#,
            r#"{"index":{"_index":"$a","_id":"1","version":6,"version_type":"external"}}"#,
            r#"{"location":{"lat":100,"lon":0}}"#,
            r#"{"index":{"_index":"$a","_id":"2","version":6,"version_type":"external"}}"#,
            r#"{"n":2}"#,
        ])
        .await;
    assert_eq!(answer.items(), [(201, ""), server.refused(), (201, "")]);
    let found = server.ask("GET", "/$a/_doc/1", Value::Null).await;
    assert_eq!((&found.body["_version"], &found.body["_source"]), (&json!(5), &json!({"n": 1})));
}

async fn a_document_that_is_refused_is_no_conflict(server: &Server) {
    server.create("a", json!({})).await;
    let answer = server
        .bulk(&[
            r#"{"index":{"_index":"$a","_id":"1","version":5,"version_type":"external"}}"#,
            "{}",
            r#"{"index":{"_index":"$a","_id":"1","version":4,"version_type":"external"}}"#,
            r#"{"location":{"lat":100,"lon":0}}"#,
        ])
        .await;
    assert_eq!(answer.items(), [(201, ""), server.refused()]);
}
