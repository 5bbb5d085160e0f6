//! Versions, tombstones, compare-and-set: what the protocol rests on; and the shape of `_bulk`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::server::{CONFLICT, NO_INDEX, Server};

crate::cases![
    external_versions_let_only_newer_states_through,
    an_equal_version_is_a_conflict_with_external_and_none_with_external_gte,
    a_delete_of_an_absent_document_leaves_a_tombstone,
    a_tombstone_is_forgotten_after_gc_deletes,
    a_tombstone_is_forgotten_when_the_index_is_closed_and_opened,
    a_newer_write_over_a_tombstone_creates_the_document,
    versions_without_condition_count_up_through_deletes,
    create_is_refused_while_the_document_is_there,
    a_state_is_replaced_only_if_it_is_still_the_one_that_was_read,
    sequence_numbers_count_each_operation_of_an_index_that_was_carried_out,
    an_item_says_all_about_the_state_that_it_left,
    a_conflict_says_which_versions_met,
    the_answer_holds_only_what_filter_path_asks_for,
    items_of_one_request_are_carried_out_in_order,
    a_request_that_can_not_be_read_is_refused_as_a_whole,
    a_request_with_an_invalid_operation_is_refused_as_a_whole,
    an_operation_without_id_gets_one,
    the_path_names_the_index_of_operations_that_name_none,
    a_missing_index_is_not_created_where_that_is_switched_off,
    an_index_is_created_by_the_writes_that_the_rule_allows,
];

async fn external_versions_let_only_newer_states_through(server: &Server) {
    server.create("a", json!({})).await;
    let answer = server
        .bulk(&[
            r#"{"index":{"_index":"$a","_id":"1","version":5,"version_type":"external"}}"#,
            "{}",
            r#"{"index":{"_index":"$a","_id":"1","version":4,"version_type":"external"}}"#,
            "{}",
            r#"{"index":{"_index":"$a","_id":"1","version":6,"version_type":"external"}}"#,
            "{}",
            r#"{"delete":{"_index":"$a","_id":"1","version":5,"version_type":"external"}}"#,
            r#"{"delete":{"_index":"$a","_id":"1","version":7,"version_type":"external"}}"#,
            r#"{"index":{"_index":"$a","_id":"0","version":0,"version_type":"external"}}"#,
            "{}",
            r#"{"index":{"_index":"$a","_id":"0","version":9223372036854775807,"version_type":"external"}}"#,
            "{}",
        ])
        .await;
    let ok = |status| (status, "");
    assert_eq!(answer.items(), [ok(201), CONFLICT, ok(200), CONFLICT, ok(200), ok(201), ok(200)]);
    assert_eq!(answer.body["errors"], true);
}

async fn an_equal_version_is_a_conflict_with_external_and_none_with_external_gte(server: &Server) {
    server.create("a", json!({})).await;
    let answer = server
        .bulk(&[
            r#"{"index":{"_index":"$a","_id":"1","version":5,"version_type":"external"}}"#,
            "{}",
            r#"{"index":{"_index":"$a","_id":"1","version":5,"version_type":"external"}}"#,
            "{}",
            r#"{"index":{"_index":"$a","_id":"1","version":5,"version_type":"external_gte"}}"#,
            "{}",
            r#"{"index":{"_index":"$a","_id":"1","version":4,"version_type":"external_gte"}}"#,
            "{}",
            r#"{"delete":{"_index":"$a","_id":"1","version":5,"version_type":"external"}}"#,
            r#"{"delete":{"_index":"$a","_id":"1","version":5,"version_type":"external_gte"}}"#,
            r#"{"index":{"_index":"$a","_id":"1","version":5,"version_type":"external"}}"#,
            "{}",
            r#"{"index":{"_index":"$a","_id":"1","version":5,"version_type":"external_gte"}}"#,
            "{}",
        ])
        .await;
    let ok = |status| (status, "");
    let expected = [ok(201), CONFLICT, ok(200), CONFLICT, CONFLICT, ok(200), CONFLICT, ok(201)];
    assert_eq!(answer.items(), expected);
}

async fn a_delete_of_an_absent_document_leaves_a_tombstone(server: &Server) {
    server.create("a", json!({})).await;
    let deleted =
        server.bulk(&[r#"{"delete":{"_index":"$a","_id":"1","version":9,"version_type":"external"}}"#]).await;
    assert_eq!((deleted.items(), &deleted.body["errors"]), (vec![(404, "")], &json!(false)));
    assert_eq!(deleted.of_items("/result"), ["not_found"]);
    assert_eq!(deleted.of_items("/_version"), [9]);
    let answer = server
        .bulk(&[
            r#"{"index":{"_index":"$a","_id":"1","version":5,"version_type":"external"}}"#,
            "{}",
            r#"{"index":{"_index":"$a","_id":"1","version":9,"version_type":"external"}}"#,
            "{}",
            r#"{"delete":{"_index":"$a","_id":"1","version":8,"version_type":"external"}}"#,
            r#"{"delete":{"_index":"$a","_id":"1","version":10,"version_type":"external"}}"#,
        ])
        .await;
    assert_eq!(answer.items(), [CONFLICT, CONFLICT, CONFLICT, (404, "")]);
}

async fn a_tombstone_is_forgotten_after_gc_deletes(server: &Server) {
    server.create("a", json!({"index.gc_deletes": "1s"})).await;
    let late = [r#"{"index":{"_index":"$a","_id":"1","version":5,"version_type":"external"}}"#, "{}"];
    server.bulk(&[r#"{"delete":{"_index":"$a","_id":"1","version":9,"version_type":"external"}}"#]).await;
    assert_eq!(server.bulk(&late).await.items(), [CONFLICT]);
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(server.bulk(&late).await.items(), [(201, "")]);
}

async fn a_tombstone_is_forgotten_when_the_index_is_closed_and_opened(server: &Server) {
    server.create("a", json!({"index.gc_deletes": "1h"})).await;
    let late = [r#"{"index":{"_index":"$a","_id":"1","version":5,"version_type":"external"}}"#, "{}"];
    server.bulk(&[r#"{"delete":{"_index":"$a","_id":"1","version":9,"version_type":"external"}}"#]).await;
    assert_eq!(server.bulk(&late).await.items(), [CONFLICT]);
    for step in ["_close", "_open"] {
        assert_eq!(server.ask("POST", &format!("/$a/{step}"), Value::Null).await.status, 200);
    }
    assert_eq!(server.bulk(&late).await.items(), [(201, "")]);
}

async fn a_newer_write_over_a_tombstone_creates_the_document(server: &Server) {
    server.create("a", json!({})).await;
    let answer = server
        .bulk(&[
            r#"{"delete":{"_index":"$a","_id":"1","version":9,"version_type":"external"}}"#,
            r#"{"index":{"_index":"$a","_id":"1","version":10,"version_type":"external"}}"#,
            "{}",
            r#"{"delete":{"_index":"$a","_id":"2","version":9,"version_type":"external"}}"#,
            r#"{"create":{"_index":"$a","_id":"2"}}"#,
            "{}",
        ])
        .await;
    assert_eq!(answer.of_items("/result"), ["not_found", "created", "not_found", "created"]);
    assert_eq!(answer.of_items("/_version"), [9, 10, 9, 10]);
}

async fn versions_without_condition_count_up_through_deletes(server: &Server) {
    server.create("a", json!({})).await;
    let answer = server
        .bulk(&[
            r#"{"index":{"_index":"$a","_id":"1"}}"#,
            "{}",
            r#"{"index":{"_index":"$a","_id":"1"}}"#,
            "{}",
            r#"{"delete":{"_index":"$a","_id":"1"}}"#,
            r#"{"index":{"_index":"$a","_id":"1"}}"#,
            "{}",
            r#"{"delete":{"_index":"$a","_id":"2"}}"#,
        ])
        .await;
    assert_eq!(answer.items(), [(201, ""), (200, ""), (200, ""), (201, ""), (404, "")]);
    assert_eq!(answer.of_items("/_version"), [1, 2, 3, 4, 1]);
    assert_eq!(answer.of_items("/result"), ["created", "updated", "deleted", "created", "not_found"]);
}

async fn create_is_refused_while_the_document_is_there(server: &Server) {
    server.create("a", json!({})).await;
    let answer = server
        .bulk(&[
            r#"{"create":{"_index":"$a","_id":"1"}}"#,
            "{}",
            r#"{"create":{"_index":"$a","_id":"1"}}"#,
            "{}",
            r#"{"index":{"_index":"$a","_id":"1","op_type":"create"}}"#,
            "{}",
            r#"{"delete":{"_index":"$a","_id":"1"}}"#,
            r#"{"create":{"_index":"$a","_id":"1"}}"#,
            "{}",
        ])
        .await;
    assert_eq!(answer.items(), [(201, ""), CONFLICT, CONFLICT, (200, ""), (201, "")]);
    let reason = "[1]: version conflict, document already exists (current version [1])";
    assert_eq!(answer.of_items("/error/reason")[1], reason);
}

async fn a_state_is_replaced_only_if_it_is_still_the_one_that_was_read(server: &Server) {
    server.create("a", json!({})).await;
    let answer = server
        .bulk(&[
            r#"{"index":{"_index":"$a","_id":"1"}}"#,
            "{}",
            r#"{"index":{"_index":"$a","_id":"1","if_seq_no":0,"if_primary_term":1}}"#,
            "{}",
            r#"{"index":{"_index":"$a","_id":"1","if_seq_no":0,"if_primary_term":1}}"#,
            "{}",
            r#"{"index":{"_index":"$a","_id":"1","if_seq_no":1,"if_primary_term":2}}"#,
            "{}",
            r#"{"index":{"_index":"$a","_id":"never","if_seq_no":0,"if_primary_term":1}}"#,
            "{}",
            r#"{"delete":{"_index":"$a","_id":"never","if_seq_no":0,"if_primary_term":1}}"#,
            r#"{"delete":{"_index":"$a","_id":"1","if_seq_no":0,"if_primary_term":1}}"#,
            r#"{"delete":{"_index":"$a","_id":"1","if_seq_no":1,"if_primary_term":1}}"#,
            r#"{"index":{"_index":"$a","_id":"1","if_seq_no":2,"if_primary_term":1}}"#,
            "{}",
        ])
        .await;
    let ok = |status| (status, "");
    let expected = [ok(201), ok(200), CONFLICT, CONFLICT, CONFLICT, CONFLICT, CONFLICT, ok(200), CONFLICT];
    assert_eq!(answer.items(), expected);
    let reasons = answer.of_items("/error/reason");
    let required = "[1]: version conflict, required seqNo [0], primary term [1].";
    assert_eq!(reasons[2], format!("{required} current document has seqNo [1] and primary term [1]"));
    let absent = "[never]: version conflict, required seqNo [0], primary term [1]. but no document was found";
    assert_eq!((&reasons[4], &reasons[5]), (&json!(absent), &json!(absent)));
}

async fn sequence_numbers_count_each_operation_of_an_index_that_was_carried_out(server: &Server) {
    server.create("a", json!({})).await;
    server.create("b", json!({})).await;
    let answer = server
        .bulk(&[
            r#"{"index":{"_index":"$a","_id":"1"}}"#,
            "{}",
            r#"{"create":{"_index":"$a","_id":"1"}}"#,
            "{}",
            r#"{"index":{"_index":"$b","_id":"1"}}"#,
            "{}",
            r#"{"delete":{"_index":"$a","_id":"none"}}"#,
            r#"{"index":{"_index":"$a","_id":"2"}}"#,
            "{}",
        ])
        .await;
    assert_eq!(answer.of_items("/_seq_no"), [json!(0), json!(null), json!(0), json!(1), json!(2)]);
}

async fn an_item_says_all_about_the_state_that_it_left(server: &Server) {
    server.create("a", json!({})).await;
    let answer = server
        .bulk(&[r#"{"index":{"_index":"$a","_id":"q\"ü","version":7,"version_type":"external"}}"#, "{}"])
        .await;
    let item = json!({"index": {
        "_index": server.name("a"), "_id": "q\"ü", "_version": 7, "result": "created",
        "_shards": {"total": 1, "successful": 1, "failed": 0}, "_seq_no": 0, "_primary_term": 1, "status": 201,
    }});
    assert_eq!((&answer.body["items"], &answer.body["errors"]), (&json!([item]), &json!(false)));
}

async fn a_conflict_says_which_versions_met(server: &Server) {
    server.create("a", json!({})).await;
    let answer = server
        .bulk(&[
            r#"{"index":{"_index":"$a","_id":"1","version":5,"version_type":"external"}}"#,
            "{}",
            r#"{"index":{"_index":"$a","_id":"1","version":4,"version_type":"external"}}"#,
            "{}",
            r#"{"index":{"_index":"$a","_id":"1","version":4,"version_type":"external_gte"}}"#,
            "{}",
        ])
        .await;
    let reasons = answer.of_items("/error/reason");
    let current = "[1]: version conflict, current version [5] is higher";
    assert_eq!(reasons[1], format!("{current} or equal to the one provided [4]"));
    assert_eq!(reasons[2], format!("{current} than the one provided [4]"));
    let item = &answer.body["items"][1]["index"];
    assert_eq!(item["error"]["index"], server.name("a"));
    assert_eq!(item["error"]["shard"], "0");
    assert_eq!(item["_version"], Value::Null);
}

async fn the_answer_holds_only_what_filter_path_asks_for(server: &Server) {
    server.create("a", json!({})).await;
    let lines = [
        r#"{"index":{"_index":"$a","_id":"1"}}"#,
        "{}",
        r#"{"create":{"_index":"$a","_id":"1"}}"#,
        "{}",
        r#"{"index":{"_index":"$a","_id":"2"}}"#,
        r#"{"location":{"lat":100,"lon":0}}"#,
    ];
    let filter = "?filter_path=errors,items.*.status,items.*.error.type,items.*.error.caused_by.reason";
    let conflict = json!({"status": 409, "error": {"type": "version_conflict_engine_exception"}});
    let refused = json!({"status": 400, "error": {
        "type": server.word("document_parsing_exception"),
        "caused_by": {"reason": "illegal latitude value [100.0] for location"},
    }});
    let items = json!([{"index": {"status": 201}}, {"create": conflict}, {"index": refused}]);
    let answer = server.bulk_with(filter, &lines).await;
    assert_eq!(answer.body, json!({"errors": true, "items": items}));
    let answer = server.bulk_with("?filter_path=errors", &lines[..2]).await;
    assert_eq!(answer.body, json!({"errors": false}));
}

async fn items_of_one_request_are_carried_out_in_order(server: &Server) {
    server.create("a", json!({})).await;
    let mut lines = Vec::new();
    for version in 1..=200 {
        lines.push(format!(
            r#"{{"index":{{"_index":"$a","_id":"1","version":{version},"version_type":"external"}}}}"#
        ));
        lines.push(format!(r#"{{"n":{version}}}"#));
    }
    let answer = server.bulk(&lines.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(answer.body["errors"], false);
    let found = server.ask("GET", "/$a/_doc/1", Value::Null).await;
    assert_eq!((&found.body["_version"], &found.body["_source"]["n"]), (&json!(200), &json!(200)));
}

async fn a_request_that_can_not_be_read_is_refused_as_a_whole(server: &Server) {
    server.create("a", json!({})).await;
    let good = r#"{"index":{"_index":"$a","_id":"1"}}"#;
    let opensearch = server.is_opensearch();
    for (body, kind) in [
        (String::new(), "parse_exception"),
        (format!("{good}\n{{}}"), "illegal_argument_exception"),
        (format!("{good}\n{{}}\n{{\"foo\":{{\"_index\":\"$a\"}}}}\n{{}}\n"), "illegal_argument_exception"),
        (
            format!("{good}\n{{}}\nx\n{{}}\n"),
            if opensearch { "json_parse_exception" } else { "x_content_parse_exception" },
        ),
        (format!("{good}\n{{}}\n[]\n{{}}\n"), "illegal_argument_exception"),
        (
            format!("{good}\n{{}}\n{{\"index\":{{\"_index\":\"$a\",\"colour\":1}}}}\n{{}}\n"),
            "illegal_argument_exception",
        ),
        (format!("{good}\n"), "action_request_validation_exception"),
    ] {
        let answer = server.send("POST", "/_bulk", "application/x-ndjson", body.clone()).await;
        assert_eq!(answer.error(), (400, kind), "{body} {answer:?}");
    }
    assert_eq!(server.ask("GET", "/$a/_doc/1", Value::Null).await.status, 404, "nothing was carried out");
}

async fn a_request_with_an_invalid_operation_is_refused_as_a_whole(server: &Server) {
    server.create("a", json!({})).await;
    let long = format!(r#""_id":"{}""#, "a".repeat(513));
    for (verb, members) in [
        ("index", r#""_id":"1","version":1"#),
        ("index", r#""_id":"1","version":-1,"version_type":"external""#),
        ("index", r#""_id":"1","version_type":"external""#),
        ("create", r#""_id":"1","version":1,"version_type":"external""#),
        ("index", r#""_id":"1","version":1,"version_type":"external","if_seq_no":1,"if_primary_term":1"#),
        ("index", r#""_id":"1","if_seq_no":1"#),
        ("index", long.as_str()),
    ] {
        let action = format!(r#"{{"{verb}":{{"_index":"$a",{members}}}}}"#);
        let answer = server.bulk(&[r#"{"index":{"_index":"$a","_id":"0"}}"#, "{}", &action, "{}"]).await;
        assert_eq!(answer.error(), (400, "action_request_validation_exception"), "{members} {answer:?}");
    }
    for lines in [[r#"{"index":{"_id":"1"}}"#, "{}"].as_slice(), &[r#"{"delete":{"_index":"$a"}}"#]] {
        let answer = server.bulk(lines).await;
        assert_eq!(answer.error(), (400, "action_request_validation_exception"), "{lines:?} {answer:?}");
    }
    let beyond =
        r#"{"delete":{"_index":"$a","_id":"1","version":9223372036854775808,"version_type":"external"}}"#;
    let kind = if server.is_opensearch() { "input_coercion_exception" } else { "x_content_parse_exception" };
    let status = server.status_of_a_number_that_is_too_large();
    assert_eq!(server.bulk(&[beyond]).await.error(), (status, kind));
    assert_eq!(server.ask("GET", "/$a/_doc/0", Value::Null).await.status, 404, "nothing was carried out");
}

async fn an_operation_without_id_gets_one(server: &Server) {
    server.create("a", json!({})).await;
    let lines = [r#"{"index":{"_index":"$a"}}"#, "{}", r#"{"index":{"_index":"$a"}}"#, "{}"];
    let answer = server.bulk(&lines).await;
    assert_eq!(answer.items(), [(201, ""), (201, "")]);
    let ids = answer.of_items("/_id");
    assert!(ids[0] != ids[1] && ids[0].as_str().is_some_and(|id| id.len() >= 10), "{ids:?}");
    let empty = server.bulk(&[r#"{"index":{"_index":"$a","_id":""}}"#, "{}"]).await;
    assert_eq!(empty.items(), [(400, "illegal_argument_exception")]);
}

async fn the_path_names_the_index_of_operations_that_name_none(server: &Server) {
    server.create("a", json!({})).await;
    let body = "{\"index\":{\"_id\":\"1\"}}\n{}\n\n{\"delete\":{\"_id\":\"2\"}}\n".to_owned();
    let answer = server.send("POST", "/$a/_bulk", "application/x-ndjson", body).await;
    assert_eq!(answer.items(), [(201, ""), (404, "")], "an empty line between operations is nothing");
}

async fn a_missing_index_is_not_created_where_that_is_switched_off(server: &Server) {
    let answer = server
        .bulk(&[
            r#"{"index":{"_index":"$none","_id":"1"}}"#,
            "{}",
            r#"{"delete":{"_index":"$none","_id":"1","version":1,"version_type":"external"}}"#,
            r#"{"delete":{"_index":"$none","_id":"1"}}"#,
        ])
        .await;
    assert_eq!(answer.items(), [(404, NO_INDEX), (404, NO_INDEX), (404, NO_INDEX)]);
    assert_eq!(answer.of_items("/error/index"), vec![json!(server.name("none")); 3]);
    assert_eq!(server.ask("GET", "/$none", Value::Null).await.error(), (404, NO_INDEX));
}

/// The rule belongs to the whole cluster, so this one names nothing but this case's indices.
async fn an_index_is_created_by_the_writes_that_the_rule_allows(server: &Server) {
    let rule = |rule: Value| json!({"transient": {"action.auto_create_index": rule}});
    let set = server.ask("PUT", "/_cluster/settings", rule(json!(format!("+{}-auto*", server.prefix)))).await;
    assert_eq!(set.status, 200, "{set:?}");
    let answer = server
        .bulk(&[
            r#"{"delete":{"_index":"$auto1","_id":"1","version":9,"version_type":"external"}}"#,
            r#"{"delete":{"_index":"$auto2","_id":"1"}}"#,
            r#"{"index":{"_index":"$auto3","_id":"1"}}"#,
            "{}",
            r#"{"index":{"_index":"$other","_id":"1"}}"#,
            "{}",
            r#"{"index":{"_index":"$autoX","_id":"1"}}"#,
            "{}",
            r#"{"index":{"_index":"$auto1","_id":"1","version":5,"version_type":"external"}}"#,
            "{}",
        ])
        .await;
    let reset = server.ask("PUT", "/_cluster/settings", rule(Value::Null)).await;
    assert_eq!(reset.status, 200, "{reset:?}");
    let bad_name = (400, "invalid_index_name_exception");
    let expected = [(404, ""), (404, NO_INDEX), (201, ""), (404, NO_INDEX), bad_name, CONFLICT];
    assert_eq!(answer.items(), expected);
    assert_eq!(server.ask("HEAD", "/$auto1", Value::Null).await.status, 200);
    assert_eq!(server.ask("HEAD", "/$auto2", Value::Null).await.status, 404);
}
