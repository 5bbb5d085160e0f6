//! Reads by id: realtime, byte for byte, and never "missing" where it is not known.

use geofold::base::ids::{DocId, ShardId};
use geofold::base::position::Position;
use geofold::io::elastic::{BulkOp, Elastic, Get, GetAnswer, Index, WriteCondition};
use serde_json::{Value, json};

use crate::server::{LIMIT, NO_INDEX, Server};

crate::cases![
    a_document_is_read_before_any_refresh_and_after_its_delete_is_missing,
    a_source_comes_back_byte_for_byte,
    a_pretty_printed_document_is_read_and_written_back_as_one_line,
    an_mget_answers_each_slot_by_itself_and_in_order,
    a_slot_of_a_missing_or_closed_index_holds_an_error,
    an_mget_that_asks_for_nothing_is_refused,
    a_single_read_tells_absent_documents_from_absent_indices,
];

async fn mget(server: &Server, docs: &[(&str, &str)]) -> Vec<Value> {
    let docs: Vec<Value> =
        docs.iter().map(|(index, id)| json!({"_index": server.name(index), "_id": id})).collect();
    let answer = server.ask("POST", "/_mget?realtime=true", json!({"docs": docs})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body["docs"].as_array().unwrap().clone()
}

async fn a_document_is_read_before_any_refresh_and_after_its_delete_is_missing(server: &Server) {
    server.create("a", json!({"index.refresh_interval": "-1"})).await;
    server.fill("a", &[r#"{"n":1}"#]).await;
    let found = json!({
        "_index": server.name("a"), "_id": "0", "_version": 1, "_seq_no": 0, "_primary_term": 1, "found": true,
        "_source": {"n": 1},
    });
    assert_eq!(mget(server, &[("a", "0")]).await, [found]);
    server.bulk(&[r#"{"delete":{"_index":"$a","_id":"0"}}"#]).await;
    let missing = json!({"_index": server.name("a"), "_id": "0", "found": false});
    assert_eq!(mget(server, &[("a", "0")]).await, [missing]);
}

async fn a_source_comes_back_byte_for_byte(server: &Server) {
    server.create("a", json!({})).await;
    let sources = [
        r#"{ "price" : 1.10, "big":12345678901234567890.5, "t":"é\u00e9\/" }"#,
        r#"{"z":1,"a":2,"e":1e3}"#,
        r#" {"spaces":"around"} "#,
        r#"{"line":"a\nb\u2028"}"#,
    ];
    server.fill("a", &sources).await;
    for (id, source) in sources.iter().enumerate() {
        let body = json!({"docs": [{"_index": server.name("a"), "_id": id.to_string()}]});
        let answer = server.ask("POST", "/_mget", body).await;
        let expected = format!(r#""_source":{source}}}]}}"#);
        assert!(answer.text.ends_with(&expected), "{} does not end with {expected}", answer.text);
    }
}

/// As another writer than geofold may have stored it, before it is adopted. A `_bulk` takes one of the two line breaks.
async fn a_pretty_printed_document_is_read_and_written_back_as_one_line(server: &Server) {
    server.create("a", json!({})).await;
    let pretty = "{\r  \"text\": \"a\\nb\",\r  \"n\": 1.10\r}";
    server.bulk(&[r#"{"index":{"_index":"$a","_id":"x"}}"#, pretty]).await;
    let elastic = server.elastic();
    let (id, index) = (DocId::from_key(Some(b"x")).unwrap(), Index::Geoshard(ShardId::new("a").unwrap()));
    let gets = [Get::realtime(index.clone(), id.clone())];
    let answers = elastic.mget(&gets, LIMIT).await.unwrap();
    let [GetAnswer::Found(found)] = answers.as_slice() else { panic!("{answers:?}") };
    let source = found.source.clone();
    assert_eq!(source, pretty.replace('\r', " "));
    let guard = WriteCondition::External(Position::from_version(7));
    let answers = elastic.bulk(&[BulkOp::Index { index, id, guard, source: source.clone() }], LIMIT).await;
    assert_eq!(answers.unwrap()[0].status, 200);
    let answers = elastic.mget(&gets, LIMIT).await.unwrap();
    let [GetAnswer::Found(found)] = answers.as_slice() else { panic!("{answers:?}") };
    assert_eq!((found.version, &found.source), (7, &source));
}

async fn an_mget_answers_each_slot_by_itself_and_in_order(server: &Server) {
    server.create("a", json!({})).await;
    server.create("b", json!({})).await;
    server.fill("a", &[r#"{"n":0}"#, r#"{"n":1}"#]).await;
    let slots = mget(server, &[("a", "1"), ("b", "0"), ("none", "0"), ("a", "0"), ("a", "1")]).await;
    let found: Vec<Value> = slots.iter().map(|slot| slot["found"].clone()).collect();
    assert_eq!(found, [json!(true), json!(false), Value::Null, json!(true), json!(true)]);
    let numbers: Vec<Value> = slots.iter().map(|slot| slot["_source"]["n"].clone()).collect();
    assert_eq!(numbers, [json!(1), Value::Null, Value::Null, json!(0), json!(1)]);
}

async fn a_slot_of_a_missing_or_closed_index_holds_an_error(server: &Server) {
    server.create("a", json!({})).await;
    server.fill("a", &["{}"]).await;
    server.ask("POST", "/$a/_close", Value::Null).await;
    let slots = mget(server, &[("a", "0"), ("none", "0")]).await;
    let kinds: Vec<&Value> = slots.iter().map(|slot| &slot["error"]["type"]).collect();
    assert_eq!(kinds, [&json!("index_closed_exception"), &json!(NO_INDEX)]);
    assert!(slots.iter().all(|slot| slot["found"].is_null() && slot["status"].is_null()), "{slots:?}");
    assert_eq!(slots[1]["error"]["reason"], format!("no such index [{}]", server.name("none")));
    assert_eq!(slots[1]["error"]["root_cause"][0]["type"], NO_INDEX);
}

async fn an_mget_that_asks_for_nothing_is_refused(server: &Server) {
    let invalid = (400, "action_request_validation_exception");
    for docs in [json!([]), json!([{"_id": "1"}]), json!([{"_index": "x"}])] {
        let answer = server.ask("POST", "/_mget", json!({"docs": docs})).await;
        assert_eq!(answer.error(), invalid, "{docs}");
    }
}

async fn a_single_read_tells_absent_documents_from_absent_indices(server: &Server) {
    server.create("a", json!({})).await;
    server.bulk(&[r#"{"index":{"_index":"$a","_id":"a/b c"}}"#, "{}"]).await;
    let found = server.ask("GET", "/$a/_doc/a%2Fb%20c", Value::Null).await;
    assert_eq!((found.status, &found.body["found"]), (200, &json!(true)));
    let missing = server.ask("GET", "/$a/_doc/other", Value::Null).await;
    assert_eq!((missing.status, &missing.body["found"]), (404, &json!(false)));
    assert_eq!(server.ask("GET", "/$none/_doc/1", Value::Null).await.error(), (404, NO_INDEX));
    server.ask("POST", "/$a/_close", Value::Null).await;
    assert_eq!(server.ask("GET", "/$a/_doc/1", Value::Null).await.error(), (400, "index_closed_exception"));
}
