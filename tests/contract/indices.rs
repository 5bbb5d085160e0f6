//! Making, describing, changing, closing and deleting indices; the cluster around them.

use serde_json::{Value, json};

use crate::server::{CONFLICT, NO_INDEX, Server};

crate::cases![
    an_index_is_made_once,
    invalid_index_names_are_refused,
    an_index_is_described_by_its_settings_and_mappings,
    a_pattern_may_match_nothing_and_a_name_may_not,
    a_pattern_finds_closed_indices_only_if_asked_to,
    a_closed_index_refuses_work_and_says_that_it_is_closed,
    settings_change_and_null_resets_them,
    a_write_block_refuses_writes_and_no_reads,
    a_mapping_takes_new_fields_and_keeps_the_types_of_old_ones,
    indices_are_deleted_together_or_not_at_all,
    the_cluster_tells_health_version_and_its_rule_for_creation,
    a_list_of_indices_is_told_as_rows,
    each_primary_counts_its_own_writes,
    an_unknown_path_is_refused,
];

async fn an_index_is_made_once(server: &Server) {
    let made = server.ask("PUT", "/$a?wait_for_active_shards=1", json!({})).await;
    let name = server.name("a");
    let expected = json!({"acknowledged": true, "shards_acknowledged": true, "index": name});
    assert_eq!((made.status, made.body), (200, expected));
    let again = server.ask("PUT", "/$a", json!({})).await;
    assert_eq!(again.error(), (400, "resource_already_exists_exception"));
    let reason = again.body["error"]["reason"].as_str().unwrap();
    assert!(reason.starts_with(&format!("index [{name}/")) && reason.ends_with("already exists"), "{reason}");
}

async fn invalid_index_names_are_refused(server: &Server) {
    for (path, body, kind) in [
        ("/$UPPER", json!({}), "invalid_index_name_exception"),
        ("/_under", json!({}), "invalid_index_name_exception"),
        ("/$a", json!({"colour": 1}), "parse_exception"),
        (
            "/$a",
            json!({"mappings": {"properties": {"x": {"type": "no_such_type"}}}}),
            "mapper_parsing_exception",
        ),
        ("/$a", json!({"settings": {"gc_deletes": "soon"}}), "illegal_argument_exception"),
    ] {
        let answer = server.ask("PUT", path, body.clone()).await;
        assert_eq!(answer.error(), (400, kind), "{path} {body} {answer:?}");
    }
    assert_eq!(server.ask("HEAD", "/$a", Value::Null).await.status, 404);
}

async fn an_index_is_described_by_its_settings_and_mappings(server: &Server) {
    let settings = json!({"gc_deletes": "61s", "index": {"refresh_interval": "5s"}, "number_of_replicas": 0});
    let mappings = json!({"properties": {"at": {"properties": {"point": {"type": "geo_point"}}}}});
    let body = json!({"settings": settings, "mappings": mappings.clone()});
    assert_eq!(server.ask("PUT", "/$a", body).await.status, 200);
    let name = server.name("a");

    let flat = server.ask("GET", "/$a?flat_settings=true", Value::Null).await;
    let index = &flat.body[&name];
    assert_eq!((&index["aliases"], &index["mappings"]), (&json!({}), &mappings));
    for (setting, value) in [
        ("index.gc_deletes", "61s"),
        ("index.refresh_interval", "5s"),
        ("index.number_of_replicas", "0"),
        ("index.number_of_shards", "1"),
        ("index.provided_name", &name),
    ] {
        assert_eq!(index["settings"][setting], value, "{setting}");
    }
    let nested = server.ask("GET", "/$a", Value::Null).await;
    assert_eq!(nested.body[&name]["settings"]["index"]["gc_deletes"], "61s");
    let settings = server.ask("GET", "/$a/_settings", Value::Null).await;
    assert_eq!(settings.body[&name]["settings"]["index"]["refresh_interval"], "5s");
    let mapping = server.ask("GET", "/$a/_mapping", Value::Null).await;
    assert_eq!(mapping.body, json!({name: {"mappings": mappings}}));
}

async fn a_pattern_may_match_nothing_and_a_name_may_not(server: &Server) {
    let nothing = server.ask("GET", "/$*?expand_wildcards=open,closed,hidden", Value::Null).await;
    assert_eq!((nothing.status, nothing.body), (200, json!({})));
    for path in ["/$none", "/$none/_settings", "/$none/_mapping", "/$none/_search", "/$none/_count"] {
        assert_eq!(server.ask("GET", path, Value::Null).await.error(), (404, NO_INDEX), "{path}");
    }
    for step in ["_refresh", "_open", "_close"] {
        let answer = server.ask("POST", &format!("/$none/{step}"), Value::Null).await;
        assert_eq!(answer.error(), (404, NO_INDEX), "{step}");
    }
    server.create("a", json!({})).await;
    assert_eq!(server.ask("GET", "/$a,$none/_search", Value::Null).await.error(), (404, NO_INDEX));
    let lenient = server.ask("GET", "/$a,$none/_search?ignore_unavailable=true", Value::Null).await;
    assert_eq!((lenient.status, &lenient.body["_shards"]["total"]), (200, &json!(1)));
}

async fn a_pattern_finds_closed_indices_only_if_asked_to(server: &Server) {
    server.create("a", json!({})).await;
    server.create("b", json!({})).await;
    server.ask("POST", "/$b/_close", Value::Null).await;
    let names = async |query: &str| {
        let found = server.ask("GET", &format!("/$*{query}"), Value::Null).await;
        found.body.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(names("").await, [server.name("a")]);
    assert_eq!(names("?expand_wildcards=open,closed,hidden").await, [server.name("a"), server.name("b")]);
    let searched = server.ask("GET", "/$*/_search", Value::Null).await;
    assert_eq!((searched.status, &searched.body["_shards"]["total"]), (200, &json!(1)));
}

async fn a_closed_index_refuses_work_and_says_that_it_is_closed(server: &Server) {
    server.create("a", json!({})).await;
    server.fill("a", &["{}"]).await;
    let name = server.name("a");
    let closed = server.ask("POST", "/$a/_close", Value::Null).await;
    let expected =
        json!({"acknowledged": true, "shards_acknowledged": true, "indices": {&name: {"closed": true}}});
    assert_eq!((closed.status, closed.body), (200, expected));
    let refused = (400, "index_closed_exception");
    let write = server.bulk(&[r#"{"index":{"_index":"$a","_id":"1"}}"#, "{}"]).await;
    assert_eq!(write.items(), [refused]);
    for path in ["/$a/_search", "/$a/_count", "/$a/_doc/0"] {
        assert_eq!(server.ask("GET", path, Value::Null).await.error(), refused, "{path}");
    }
    assert_eq!(server.ask("POST", "/$a/_refresh", Value::Null).await.error(), refused);
    let settings = async || {
        let found = server.ask("GET", "/$a?flat_settings=true", Value::Null).await;
        found.body[&name]["settings"]["index.verified_before_close"].clone()
    };
    assert_eq!(settings().await, "true");
    let opened = server.ask("POST", "/$a/_open", Value::Null).await;
    assert_eq!((opened.status, &opened.body["acknowledged"]), (200, &json!(true)));
    assert_eq!(settings().await, Value::Null);
    assert_eq!(server.ask("GET", "/$a/_doc/0", Value::Null).await.status, 200, "documents survive");
}

async fn settings_change_and_null_resets_them(server: &Server) {
    server.create("a", json!({})).await;
    let set = async |body: Value| server.ask("PUT", "/$a/_settings", body).await;
    let gc_deletes = async || {
        let found = server.ask("GET", "/$a/_settings?flat_settings=true", Value::Null).await;
        found.body[server.name("a")]["settings"]["index.gc_deletes"].clone()
    };
    assert_eq!(set(json!({"index": {"gc_deletes": "2h"}})).await.status, 200);
    assert_eq!(gc_deletes().await, "2h");
    assert_eq!(set(json!({"gc_deletes": null})).await.status, 200);
    assert_eq!(gc_deletes().await, Value::Null);
    let fixed = set(json!({"index.number_of_shards": 2})).await;
    assert_eq!(fixed.error(), (400, "illegal_argument_exception"));
}

async fn a_write_block_refuses_writes_and_no_reads(server: &Server) {
    server.create("a", json!({})).await;
    server.fill("a", &["{}"]).await;
    let write = async || {
        let answer = server.bulk(&[r#"{"index":{"_index":"$a","_id":"1"}}"#, "{}"]).await;
        answer.items().into_iter().map(|(status, kind)| (status, kind.to_owned())).next().unwrap()
    };
    for (block, status) in [("write", 403), ("read_only", 403), ("read_only_allow_delete", 429)] {
        let setting = format!("index.blocks.{block}");
        server.ask("PUT", "/$a/_settings", json!({&setting: true})).await;
        assert_eq!(write().await, (status, "cluster_block_exception".to_owned()), "{block}");
        assert_eq!(server.ask("GET", "/$a/_doc/0", Value::Null).await.status, 200);
        server.ask("PUT", "/$a/_settings", json!({&setting: null})).await;
    }
    assert_eq!(write().await.0, 201);
}

async fn a_mapping_takes_new_fields_and_keeps_the_types_of_old_ones(server: &Server) {
    server.create("a", json!({})).await;
    let put = async |fields: Value| server.ask("PUT", "/$a/_mapping", json!({"properties": fields})).await;
    let taken = put(json!({"k": {"type": "keyword"}})).await;
    assert_eq!((taken.status, taken.body), (200, json!({"acknowledged": true})));
    let refused = put(json!({"location": {"type": "keyword"}})).await;
    assert_eq!(refused.error(), (400, "illegal_argument_exception"));
    let reason = "mapper [location] cannot be changed from type [geo_point] to [keyword]";
    assert_eq!(refused.body["error"]["reason"], reason);
}

async fn indices_are_deleted_together_or_not_at_all(server: &Server) {
    server.create("a", json!({})).await;
    server.create("b", json!({})).await;
    assert_eq!(server.ask("DELETE", "/$a,$none", Value::Null).await.error(), (404, NO_INDEX));
    // OpenSearch would do it; geofold never asks for it.
    if !server.is_opensearch() {
        let pattern = server.ask("DELETE", "/$*", Value::Null).await;
        assert_eq!(pattern.error(), (400, "illegal_argument_exception"));
    }
    assert_eq!(server.ask("HEAD", "/$a", Value::Null).await.status, 200);
    let deleted = server.ask("DELETE", "/$a,$b", Value::Null).await;
    assert_eq!((deleted.status, deleted.body), (200, json!({"acknowledged": true})));
    assert_eq!(server.ask("HEAD", "/$a", Value::Null).await.status, 404);
}

async fn the_cluster_tells_health_version_and_its_rule_for_creation(server: &Server) {
    server.create("a", json!({})).await;
    let health = server.ask("GET", "/_cluster/health/$a?wait_for_status=green&timeout=5s", Value::Null).await;
    assert_eq!((health.status, &health.body["status"]), (200, &json!("green")));
    assert_eq!(health.body["timed_out"], false);
    let nodes = server.ask("GET", "/_nodes/http?filter_path=nodes.*.version", Value::Null).await;
    let node = nodes.body["nodes"].as_object().unwrap().values().next().unwrap();
    let version = node["version"].as_str().unwrap();
    let majors: &[&str] = if server.is_opensearch() { &["2.", "3."] } else { &["8.", "9."] };
    assert!(majors.iter().any(|major| version.starts_with(major)), "{version}");
    assert_eq!(node.as_object().unwrap().len(), 1, "the rest is filtered out");
    let path = "/_cluster/settings?include_defaults=true&filter_path=*.action.auto_create_index";
    let settings = server.ask("GET", path, Value::Null).await;
    let layers: Vec<&Value> = settings.body.as_object().unwrap().values().collect();
    assert!(layers.iter().all(|layer| layer["action"]["auto_create_index"].is_string()), "{settings:?}");
    assert_eq!(layers.len(), 1);
}

async fn a_list_of_indices_is_told_as_rows(server: &Server) {
    server.create("a", json!({})).await;
    server.fill("a", &["{}", "{}"]).await;
    server.refresh("$a").await;
    let rows = server.ask("GET", "/_cat/indices/$*?format=json&h=index,status,docs.count", Value::Null).await;
    let expected = json!([{"index": server.name("a"), "status": "open", "docs.count": "2"}]);
    assert_eq!(rows.body, expected);
    assert_eq!(server.ask("GET", "/_cat/indices/$x*?format=json", Value::Null).await.body, json!([]));
    let missing = server.ask("GET", "/_cat/indices/$none?format=json", Value::Null).await;
    assert_eq!(missing.error(), (404, NO_INDEX));
    let stats = server.ask("GET", "/$a/_stats/docs", Value::Null).await;
    assert_eq!(stats.body["indices"][server.name("a")]["primaries"]["docs"]["count"], 2);
    let stats = server.ask("GET", "/$a/_stats/docs,store", Value::Null).await;
    let primaries = &stats.body["indices"][server.name("a")]["primaries"];
    assert_eq!(primaries["docs"]["count"], 2);
    assert!(primaries["store"]["size_in_bytes"].as_u64() > Some(0), "{primaries}");
}

async fn each_primary_counts_its_own_writes(server: &Server) {
    const WRITES: u64 = 40;
    let made = json!({"settings": {"number_of_shards": 4, "number_of_replicas": 0}});
    assert_eq!(server.ask("PUT", "/$a", made).await.status, 200);
    let ids: Vec<String> = (0..WRITES).map(|n| n.to_string()).collect();
    server.fill("a", &vec!["{}"; ids.len()]).await;
    let stamps = async || {
        let asked: Vec<Value> = ids.iter().map(|id| json!({"_index": server.name("a"), "_id": id})).collect();
        let found = server.ask("POST", "/_mget", json!({"docs": asked})).await;
        let docs = found.body["docs"].as_array().unwrap().clone();
        docs.iter().map(|doc| doc["_seq_no"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    // What each primary has counted, and the index's UUID.
    let counted = async || {
        let stats = server.ask("GET", "/$a/_stats/docs?level=shards", Value::Null).await;
        let index = &stats.body["indices"][server.name("a")];
        let shards = index["shards"].as_object().unwrap();
        let primary = |copies: &Value| {
            let copies = copies.as_array().unwrap();
            let primary = copies.iter().find(|copy| copy["routing"]["primary"] == true).unwrap();
            u64::try_from(primary["seq_no"]["global_checkpoint"].as_i64().unwrap() + 1).unwrap()
        };
        (shards.values().map(primary).collect::<Vec<_>>(), index["uuid"].clone())
    };
    let first = stamps().await;
    let (before, uuid) = counted().await;
    assert_eq!((before.len(), before.iter().sum::<u64>()), (4, WRITES), "{before:?}");
    assert_eq!(first.iter().filter(|&&seq_no| seq_no == 0).count(), 4, "each begins with 0: {first:?}");
    let settings = server.ask("GET", "/$a/_settings?flat_settings=true", Value::Null).await;
    let settings = &settings.body[server.name("a")]["settings"];
    assert_eq!((&settings["index.uuid"], &settings["index.number_of_shards"]), (&uuid, &json!("4")));

    // A write after a mark of the shard that has counted least is not below it, whichever shard it goes to.
    let mark = *before.iter().min().unwrap();
    for id in &ids {
        let written = server.bulk(&[&format!(r#"{{"index":{{"_index":"$a","_id":"{id}"}}}}"#), "{}"]).await;
        assert_eq!(written.items(), [(200, "")]);
    }
    let second = stamps().await;
    assert!(second.iter().all(|&seq_no| seq_no >= mark), "{mark}: {second:?}");
    assert_eq!(counted().await.0.iter().sum::<u64>(), 2 * WRITES);
    let stale = first.iter().zip(&second).position(|(first, second)| first != second).unwrap();
    let guarded = |seq_no: u64| {
        format!(r#"{{"index":{{"_index":"$a","_id":"{stale}","if_seq_no":{seq_no},"if_primary_term":1}}}}"#)
    };
    assert_eq!(server.bulk(&[&guarded(first[stale]), "{}"]).await.items(), [CONFLICT]);
    assert_eq!(server.bulk(&[&guarded(second[stale]), "{}"]).await.items(), [(200, "")]);
}

async fn an_unknown_path_is_refused(server: &Server) {
    let answer = server.ask("GET", "/no/such/path", Value::Null).await;
    let error = "no handler found for uri [/no/such/path] and method [GET]";
    assert_eq!((answer.status, &answer.body["error"]), (400, &json!(error)));
}
