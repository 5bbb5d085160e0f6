//! Searches: what the last refresh made visible, paged, filtered, near and within.

use std::time::{Duration, Instant};

use geofold::io::elastic::scan::{self, IndexScan, ScanOptions, draw};
use serde_json::{Value, json};

use crate::server::{LIMIT, Server};

crate::cases![
    a_search_sees_the_last_refresh_and_nothing_later,
    a_refresh_comes_by_itself,
    a_bulk_may_ask_for_a_refresh,
    a_hit_tells_version_stamp_and_source_if_asked,
    pages_by_index_and_doc_are_complete_and_without_repetition,
    a_scan_reads_what_was_there_when_it_was_opened,
    a_scan_reads_every_shard_of_an_index,
    a_point_in_time_that_is_closed_is_gone,
    documents_are_drawn_at_random,
    ids_terms_and_their_combinations_find_documents,
    a_circle_reaches_over_the_antimeridian_and_the_poles,
    hits_are_sorted_by_distance,
    hits_are_sorted_by_fields,
    several_searches_go_as_one_request,
    a_box_reaches_over_the_antimeridian_and_the_poles,
    edges_of_boxes_and_circles_are_those_of_the_stored_points,
    totals_are_counted_as_asked,
    documents_that_match_are_counted_over_indices,
    a_search_that_can_not_be_carried_out_says_why,
    a_search_that_fails_on_some_indices_answers_from_the_others,
];

async fn search(server: &Server, names: &str, body: Value) -> crate::server::Answer {
    let answer = server.ask("POST", &format!("/{names}/_search"), body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer
}

/// Ids of the documents of `a` that match, sorted.
async fn found(server: &Server, query: Value) -> Vec<String> {
    let body = json!({"query": query, "size": 100, "_source": false, "sort": ["_doc"]});
    search(server, "$a", body).await.ids().into_iter().map(str::to_owned).collect()
}

async fn count(server: &Server) -> Value {
    let answer = server.ask("GET", "/$a/_count", Value::Null).await;
    answer.body["count"].clone()
}

async fn a_search_sees_the_last_refresh_and_nothing_later(server: &Server) {
    server.create("a", json!({"index.refresh_interval": "-1"})).await;
    server.fill("a", &[r#"{"n":0}"#, r#"{"n":1}"#]).await;
    assert_eq!(count(server).await, 0);
    server.refresh("$a").await;
    assert_eq!(count(server).await, 2);
    server
        .bulk(&[
            r#"{"delete":{"_index":"$a","_id":"0"}}"#,
            r#"{"index":{"_index":"$a","_id":"1"}}"#,
            r#"{"n":7}"#,
        ])
        .await;
    let numbers = async || {
        let answer = search(server, "$a", json!({"sort": ["_doc"]})).await;
        let hits = answer.body["hits"]["hits"].as_array().unwrap().clone();
        hits.iter().map(|hit| hit["_source"]["n"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(numbers().await, [0, 1]);
    server.refresh("$a").await;
    assert_eq!(numbers().await, [7]);
}

async fn a_refresh_comes_by_itself(server: &Server) {
    server.create("a", json!({"index.refresh_interval": "200ms"})).await;
    server.fill("a", &["{}"]).await;
    let began = Instant::now();
    while count(server).await != 1 {
        assert!(began.elapsed() < LIMIT, "no refresh came");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn a_bulk_may_ask_for_a_refresh(server: &Server) {
    server.create("a", json!({"index.refresh_interval": "-1"})).await;
    server.bulk_with("?refresh=true", &[r#"{"index":{"_index":"$a","_id":"1"}}"#, "{}"]).await;
    assert_eq!(count(server).await, 1);
}

async fn a_hit_tells_version_stamp_and_source_if_asked(server: &Server) {
    server.create("a", json!({})).await;
    let write = r#"{"index":{"_index":"$a","_id":"x","version":7,"version_type":"external"}}"#;
    server.bulk_with("?refresh=true", &[write, r#"{"n":1.10,"k":"v"}"#]).await;
    let body = json!({"version": true, "seq_no_primary_term": true, "sort": ["_doc"]});
    let mut hit = json!({
        "_index": server.name("a"), "_id": "x", "_version": 7, "_seq_no": 0, "_primary_term": 1, "_score": null,
        "_source": {"n": 1.1, "k": "v"}, "sort": [0],
    });
    let answer = search(server, "$a", body).await;
    assert_eq!(answer.body["hits"]["hits"], json!([hit]));
    assert!(answer.text.contains(r#""_source":{"n":1.10,"k":"v"}"#), "byte for byte: {}", answer.text);

    let part = search(server, "$a", json!({"_source": ["k"], "sort": ["_doc"]})).await;
    hit = part.body["hits"]["hits"][0].clone();
    assert_eq!((&hit["_source"], &hit["_version"]), (&json!({"k": "v"}), &Value::Null));
    let none = search(server, "$a", json!({"_source": false})).await;
    assert_eq!(none.body["hits"]["hits"][0]["_source"], Value::Null);
}

async fn pages_by_index_and_doc_are_complete_and_without_repetition(server: &Server) {
    for index in ["a", "b", "c"] {
        server.create(index, json!({"index.refresh_interval": "-1"})).await;
        server.fill(index, &["{}"; 7]).await;
    }
    server.bulk(&[r#"{"delete":{"_index":"$b","_id":"3"}}"#]).await;
    server.refresh("$*").await;
    let mut after: Option<Value> = None;
    let mut seen = Vec::new();
    let mut pages = 0;
    loop {
        let mut body = json!({
            "size": 3, "sort": [{"_index": "asc"}, {"_doc": "asc"}], "track_total_hits": false, "version": true,
        });
        if let Some(after) = after.take() {
            body["search_after"] = after;
        }
        let answer = search(server, "$*", body).await;
        assert_eq!(answer.body["hits"]["total"], Value::Null);
        let hits = answer.body["hits"]["hits"].as_array().unwrap().clone();
        let Some(last) = hits.last() else { break };
        after = Some(last["sort"].clone());
        pages += 1;
        seen.extend(hits.iter().map(|hit| (hit["_index"].to_string(), hit["_id"].to_string())));
    }
    assert_eq!((seen.len(), pages), (20, 7));
    let mut distinct = seen.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), 20);
    let indices: Vec<&String> = seen.iter().map(|(index, _)| index).collect();
    assert!(indices.is_sorted(), "{indices:?}");
}

async fn a_scan_reads_what_was_there_when_it_was_opened(server: &Server) {
    for index in ["a", "b", "c"] {
        server.create(index, json!({"index.refresh_interval": "-1"})).await;
        server.fill(index, &[r#"{"location":[1,2],"n":1}"#; 7]).await;
    }
    server.refresh("$*").await;
    let elastic = server.elastic();
    let indices = ["a", "b", "c"].map(|index| server.name(index));
    let options = ScanOptions { page: 4, timeout: LIMIT, fields: vec!["location".to_owned()], query: None };
    let mut scan = IndexScan::open(&elastic, &indices, options).await.unwrap();
    let mut seen: Vec<(String, String)> = Vec::new();
    let mut pages = 0;
    loop {
        let page = scan.next().await.unwrap();
        if page.is_empty() {
            break;
        }
        pages += 1;
        assert!(
            page.iter().all(|hit| hit.source == json!({"location": [1, 2]}) && hit.version == 1),
            "{page:?}"
        );
        seen.extend(page.into_iter().map(|hit| (hit.index, hit.id.as_str().to_owned())));
        // What is written and deleted meanwhile makes no difference.
        server.bulk(&[r#"{"delete":{"_index":"$c","_id":"6"}}"#]).await;
        server.bulk(&[r#"{"index":{"_index":"$c","_id":"0"}}"#, r#"{"location":[3,4]}"#]).await;
        server.bulk(&[r#"{"index":{"_index":"$a","_id":"new"}}"#, r#"{"location":[3,4]}"#]).await;
        server.refresh("$*").await;
    }
    assert_eq!(scan.next().await.unwrap(), []);
    scan.close().await;
    assert_eq!(pages, 6);
    seen.sort();
    let expected: Vec<(String, String)> =
        indices.iter().flat_map(|index| (0..7).map(|id| (index.clone(), id.to_string()))).collect();
    assert_eq!(seen, expected);
}

/// Whose documents have the same sequence numbers.
async fn a_scan_reads_every_shard_of_an_index(server: &Server) {
    server.create("a", json!({"index.number_of_shards": 3})).await;
    server.fill("a", &["{}"; 50]).await;
    server.refresh("$a").await;
    let elastic = server.elastic();
    let options = ScanOptions { page: 4, timeout: LIMIT, fields: vec!["none".to_owned()], query: None };
    let mut scan = IndexScan::open(&elastic, &[server.name("a")], options).await.unwrap();
    let mut seen: Vec<u32> = Vec::new();
    loop {
        let page = scan.next().await.unwrap();
        if page.is_empty() {
            break;
        }
        seen.extend(page.into_iter().map(|hit| hit.id.as_str().parse::<u32>().unwrap()));
    }
    scan.close().await;
    seen.sort_unstable();
    assert_eq!(seen, (0..50).collect::<Vec<_>>());
}

async fn documents_are_drawn_at_random(server: &Server) {
    for index in ["a", "b"] {
        server.create(index, json!({"index.refresh_interval": "-1"})).await;
        server.fill(index, &["{}"; 300]).await;
    }
    server.refresh("$*").await;
    let elastic = server.elastic();
    let names = ["a", "b"].map(|index| server.name(index));
    let drawn = async |size, seed| draw(&elastic, &names, size, seed, LIMIT).await.unwrap();
    let some = drawn(50, 1).await;
    assert_eq!((some.of, some.ids.len()), (600, 50));
    assert_eq!(drawn(50, 1).await, some);
    assert_ne!(drawn(50, 2).await, some);
    assert_eq!(drawn(5_000, 1).await.ids.len(), 600);
    // Each is as likely as any other: neither index, nor its beginning, is preferred.
    let mut early = 0;
    for seed in 0..20 {
        let ids = drawn(100, seed).await.ids;
        early += ids.iter().filter(|id| id.as_str().parse::<u32>().is_ok_and(|n| n < 150)).count();
    }
    assert!((800..1200).contains(&early), "{early} of 2000 are of the first half");
}

async fn a_point_in_time_that_is_closed_is_gone(server: &Server) {
    if server.is_opensearch() {
        return; // It is at other paths there.
    }
    server.create("a", json!({})).await;
    let opened = server.ask("POST", "/$a/_pit?keep_alive=1m", Value::Null).await;
    assert_eq!(opened.status, 200, "{opened:?}");
    let search = json!({"pit": {"id": opened.body["id"], "keep_alive": "1m"}, "sort": ["_shard_doc"]});
    let answer = server.ask("POST", "/_search", search.clone()).await;
    assert_eq!((answer.status, answer.ids()), (200, vec![]), "{answer:?}");
    let closed = server.ask("DELETE", "/_pit", json!({"id": answer.body["pit_id"]})).await;
    assert_eq!((closed.status, &closed.body["succeeded"]), (200, &json!(true)), "{closed:?}");
    let answer = server.ask("POST", "/_search", search).await;
    assert_eq!(answer.error(), (404, "search_phase_execution_exception"), "{answer:?}");
    let answer = server.ask("POST", "/$a/_pit", Value::Null).await;
    assert_eq!(answer.error(), (400, "action_request_validation_exception"), "{answer:?}");
    let answer = server.ask("POST", "/$absent/_pit?keep_alive=1m", Value::Null).await;
    assert_eq!(answer.error(), (404, "index_not_found_exception"), "{answer:?}");
}

async fn ids_terms_and_their_combinations_find_documents(server: &Server) {
    let mappings = json!({"properties": {"k": {"type": "keyword"}, "n": {"type": "long"}}});
    server.create_mapped("a", json!({}), mappings).await;
    let sources = [
        r#"{"k":"x","n":1,"t":"Hello World"}"#,
        r#"{"k":["y","z"],"n":2,"f":true}"#,
        r#"{"k":"x","n":[3,4.0]}"#,
        r#"{"o":{"p":"q"}}"#,
        r#"{"k":null}"#,
    ];
    server.fill("a", &sources).await;
    server.refresh("$a").await;
    for (query, expected) in [
        (json!({"match_all": {}}), vec!["0", "1", "2", "3", "4"]),
        (json!({"match_none": {}}), vec![]),
        (json!({"ids": {"values": ["1", "3", "none"]}}), vec!["1", "3"]),
        (json!({"term": {"_id": "2"}}), vec!["2"]),
        (json!({"term": {"k": "x"}}), vec!["0", "2"]),
        (json!({"term": {"k": {"value": "z"}}}), vec!["1"]),
        (json!({"terms": {"k": ["y", "x"]}}), vec!["0", "1", "2"]),
        (json!({"term": {"n": 4}}), vec!["2"]),
        (json!({"term": {"n": "2"}}), vec!["1"]),
        (json!({"term": {"t": "hello"}}), vec!["0"]),
        (json!({"term": {"t": "Hello World"}}), vec![]),
        (json!({"term": {"t.keyword": "Hello World"}}), vec!["0"]),
        (json!({"term": {"f": true}}), vec!["1"]),
        (json!({"term": {"o.p.keyword": "q"}}), vec!["3"]),
        (json!({"term": {"unmapped": "q"}}), vec![]),
        (json!({"exists": {"field": "k"}}), vec!["0", "1", "2"]),
        (json!({"bool": {"filter": [{"term": {"k": "x"}}, {"term": {"n": 3}}]}}), vec!["2"]),
        (json!({"bool": {"must": {"term": {"k": "x"}}, "must_not": {"term": {"n": 3}}}}), vec!["0"]),
        (json!({"bool": {"should": [{"term": {"n": 1}}, {"term": {"n": 2}}]}}), vec!["0", "1"]),
        (json!({"bool": {"filter": {"term": {"k": "x"}}, "should": [{"term": {"n": 1}}]}}), vec!["0", "2"]),
    ] {
        assert_eq!(found(server, query.clone()).await, expected, "{query}");
    }
}

async fn a_circle_reaches_over_the_antimeridian_and_the_poles(server: &Server) {
    server.create("a", json!({})).await;
    let points =
        [[179.9, 0.0], [-179.9, 0.0], [178.0, 0.0], [0.0, 89.9], [180.0, 89.9], [0.0, -90.0], [2.35, 48.85]];
    fill_points(server, &points).await;
    let within = async |distance: &str, lon: f64, lat: f64| {
        found(server, json!({"geo_distance": {"distance": distance, "location": [lon, lat]}})).await
    };
    assert_eq!(within("12km", 180.0, 0.0).await, ["0", "1"]);
    assert_eq!(within("12km", -180.0, 0.0).await, ["0", "1"]);
    assert_eq!(within("300km", -179.9, 0.0).await, ["0", "1", "2"]);
    assert_eq!(within("12km", 77.0, 90.0).await, ["3", "4"]);
    assert_eq!(within("1m", 123.0, -90.0).await, ["5"]);
    assert_eq!(within("10mi", 2.4, 48.9).await, ["6"]);
    assert_eq!(within("100", 2.35, 48.85).await, ["6"]);
    assert_eq!(within("20020km", 2.35, 48.85).await.len(), 7);
    let filter = json!({"geo_distance": {"distance": "12km", "location": {"lat": 0, "lon": 180}}});
    assert_eq!(found(server, json!({"bool": {"filter": filter}})).await, ["0", "1"]);
}

async fn hits_are_sorted_by_distance(server: &Server) {
    server.create("a", json!({})).await;
    fill_points(server, &[[2.0, 48.0], [179.99, 0.0], [-179.9, 0.0], [180.0, 0.0]]).await;
    let sort = json!([{"_geo_distance": {"location": {"lat": 0, "lon": 180}, "order": "asc", "unit": "m"}}]);
    let filter = json!({"geo_distance": {"distance": "100km", "location": [180, 0]}});
    let body =
        json!({"query": {"bool": {"filter": [filter]}}, "sort": sort, "version": true, "_source": false});
    let answer = search(server, "$a", body).await;
    assert_eq!(answer.ids(), ["3", "1", "2"]);
    let hits = answer.body["hits"]["hits"].as_array().unwrap();
    for (hit, metres) in hits.iter().zip([0.0, 1112.0, 11119.5]) {
        assert!((hit["sort"][0].as_f64().unwrap() - metres).abs() < 0.5, "{hit}");
    }
    // On a plane, which ends at the antimeridian; but the nearest first, in metres, on the globe.
    for (unit, order, ids, kilometres) in [
        ("km", "asc", ["3", "1", "0", "2"], [0.0, 1.112, 18_852.852, 40_019.109]),
        ("m", "asc", ["3", "1", "2", "0"], [0.0, 1.112, 11.119_5, 14_674.257]),
        ("m", "desc", ["2", "0", "1", "3"], [40_019.109, 18_852.852, 1.112, 0.0]),
    ] {
        let key = json!({"location": [180, 0], "distance_type": "plane", "unit": unit, "order": order});
        let answer = search(server, "$a", json!({"sort": [{"_geo_distance": key}], "_source": false})).await;
        assert_eq!(answer.ids(), ids, "{key}");
        let hits = answer.body["hits"]["hits"].as_array().unwrap();
        for (hit, kilometres) in hits.iter().zip(kilometres) {
            let value = hit["sort"][0].as_f64().unwrap() / if unit == "m" { 1000.0 } else { 1.0 };
            assert!((value - kilometres).abs() < 0.001, "{hit}");
        }
    }
    let unknown = json!({"sort": [{"_geo_distance": {"location": [0, 0], "distance_type": "sloppy"}}]});
    let refused = server.ask("POST", "/$a/_search", unknown).await;
    assert_eq!(refused.error(), (400, "illegal_argument_exception"), "{refused:?}");
    let nowhere = json!({"sort": [{"_geo_distance": {"nowhere": [0, 0]}}]});
    let refused = server.ask("POST", "/$a/_search", nowhere).await;
    assert_eq!(refused.error(), (400, "search_phase_execution_exception"), "{refused:?}");
}

async fn hits_are_sorted_by_fields(server: &Server) {
    let fields = json!({"location": {"type": "geo_point"}, "n": {"type": "long"}, "k": {"type": "keyword"}});
    for index in ["a", "b"] {
        server.create_mapped(index, json!({}), json!({"properties": fields})).await;
    }
    server.fill("a", &[r#"{"n":2,"k":"x"}"#, r#"{"k":"y"}"#]).await;
    server.fill("b", &[r#"{"n":2,"k":"x"}"#, r#"{"n":1}"#]).await;
    server.refresh("$a,$b").await;
    let sorted = async |sort: Value, after: Value| {
        let mut body = json!({"sort": sort, "_source": false});
        if !after.is_null() {
            body["search_after"] = after;
        }
        let answer = search(server, "$a,$b", body).await;
        let hits = answer.body["hits"]["hits"].as_array().unwrap().clone();
        let hit = |hit: &Value| {
            let index = hit["_index"].as_str().unwrap().rsplit('-').next().unwrap().to_owned();
            (format!("{index}{}", hit["_id"].as_str().unwrap()), hit["sort"].clone())
        };
        let mut sorted: Vec<(String, Value)> = hits.iter().map(hit).collect();
        // OpenSearch begins with the index that has the lowest value, whatever they are called.
        if server.is_opensearch() {
            sorted
                .chunk_by_mut(|(_, one), (_, other)| one == other)
                .for_each(|ties| ties.sort_by(|(one, _), (other, _)| one.cmp(other)));
        }
        sorted
    };
    let pair = |id: &str, sort: Value| (id.to_owned(), sort);
    // What ties is in the order of the indices; what has no number is last either way.
    let up = [
        pair("b1", json!([1])),
        pair("a0", json!([2])),
        pair("b0", json!([2])),
        pair("a1", json!([i64::MAX])),
    ];
    assert_eq!(sorted(json!(["n"]), Value::Null).await, up);
    assert_eq!(sorted(json!([{"n": "asc"}]), json!([1])).await, up[1..]);
    let down = [
        pair("a0", json!([2])),
        pair("b0", json!([2])),
        pair("b1", json!([1])),
        pair("a1", json!([i64::MIN])),
    ];
    assert_eq!(sorted(json!([{"n": {"order": "desc"}}]), Value::Null).await, down);
    let words = [
        pair("a1", json!(["y", i64::MAX])),
        pair("a0", json!(["x", 2])),
        pair("b0", json!(["x", 2])),
        pair("b1", json!([null, 1])),
    ];
    assert_eq!(sorted(json!([{"k": "desc"}, "n"]), Value::Null).await, words);
    assert_eq!(sorted(json!([{"k": "desc"}, "n"]), json!(["x", 1])).await, words[1..]);
    let refused = server.ask("POST", "/$a/_search", json!({"sort": ["unmapped"]})).await;
    assert_eq!(refused.error(), (400, "search_phase_execution_exception"), "{refused:?}");
}

async fn several_searches_go_as_one_request(server: &Server) {
    server.create("a", json!({})).await;
    server.bulk_with("?refresh=true", &[r#"{"index":{"_index":"$a","_id":"x"}}"#, "{}"]).await;
    let lines = [
        r#"{"index":["$a"],"allow_partial_search_results":"false"}"#,
        r#"{"size":1}"#,
        r#"{"index":"$no"}"#,
        "{}",
        r#"{"index":["$no","$a"],"ignore_unavailable":true}"#,
        "{}\n",
    ];
    let answer = server.send("POST", "/_msearch", "application/x-ndjson", lines.join("\n")).await;
    let [first, second, third] = [0, 1, 2].map(|n| answer.body["responses"][n].clone());
    assert_eq!(
        (&first["status"], &first["hits"]["hits"][0]["_id"]),
        (&json!(200), &json!("x")),
        "{answer:?}"
    );
    let error = (&second["status"], &second["error"]["type"]);
    assert_eq!(error, (&json!(404), &json!("index_not_found_exception")), "{answer:?}");
    assert_eq!(third["hits"]["hits"][0]["_id"], "x", "{answer:?}");
    let lines = [r#"{"index":"$a","size":1}"#, "{}\n"].join("\n");
    let refused = server.send("POST", "/_msearch", "application/x-ndjson", lines).await;
    assert_eq!(refused.error(), (400, "illegal_argument_exception"), "{refused:?}");
}

async fn a_box_reaches_over_the_antimeridian_and_the_poles(server: &Server) {
    server.create("a", json!({})).await;
    let points =
        [[179.9, 0.0], [-179.9, 0.0], [178.0, 0.0], [0.0, 90.0], [180.0, 10.0], [-180.0, 20.0], [0.0, -90.0]];
    fill_points(server, &points).await;
    let within = async |top: f64, left: f64, bottom: f64, right: f64| {
        let corners = json!({"top_left": [left, top], "bottom_right": [right, bottom]});
        found(server, json!({"geo_bounding_box": {"location": corners}})).await
    };
    assert_eq!(within(1.0, 179.0, -1.0, -179.0).await, ["0", "1"]);
    assert_eq!(within(1.0, 170.0, -1.0, 180.0).await, ["0", "2"]);
    assert_eq!(within(1.0, -180.0, -1.0, -170.0).await, ["1"]);
    assert_eq!(within(30.0, 179.0, 5.0, -179.0).await, ["4", "5"]);
    assert_eq!(within(90.0, -180.0, 80.0, 180.0).await, ["3"]);
    assert_eq!(within(-80.0, -180.0, -90.0, 180.0).await, ["6"]);
    assert_eq!(within(90.0, -180.0, -90.0, 180.0).await.len(), 7);
    let sides = json!({"top": 1, "left": 179, "bottom": -1, "right": -179});
    assert_eq!(found(server, json!({"geo_bounding_box": {"location": sides}})).await, ["0", "1"]);
    let objects = json!({"top_left": {"lat": 1, "lon": 179}, "bottom_right": "-1,-179"});
    assert_eq!(found(server, json!({"geo_bounding_box": {"location": objects}})).await, ["0", "1"]);
}

async fn edges_of_boxes_and_circles_are_those_of_the_stored_points(server: &Server) {
    server.create("a", json!({})).await;
    let points = [[2.35, 48.85], [-74.006, 40.7128], [0.1, 0.1], [10.0, 20.0], [-33.3, -1.7]];
    fill_points(server, &points).await;
    for (id, [lon, lat]) in points.into_iter().enumerate() {
        // Boxes that end at the point, within the step that it is rounded to, and beyond that step: 8.4e-8 degrees of
        // longitude, 4.2e-8 of latitude.
        for (top, left, bottom, right, is_in) in [
            (0.0, 0.0, 0.0, 0.0, true),
            (1e-6, 0.0, 0.0, 1.0, true),
            (1e-6, -1e-6, -1e-6, 1e-6, true),
            (1e-6, 1e-6, -1e-6, 1.0, false),
            (1e-6, -1.0, -1e-6, -1e-6, false),
            (1.0, -1e-6, 1e-6, 1e-6, false),
            (-1e-6, -1e-6, -1.0, 1e-6, false),
        ] {
            // OpenSearch refuses a box without an area, and rounds no edge outwards.
            if server.is_opensearch() && left == 0.0 {
                continue;
            }
            let corners =
                json!({"top_left": [lon + left, lat + top], "bottom_right": [lon + right, lat + bottom]});
            let found = found(server, json!({"geo_bounding_box": {"location": corners}})).await;
            assert_eq!(found.contains(&id.to_string()), is_in, "{corners}");
        }
        let circle = json!({"geo_distance": {"distance": "2cm", "location": [lon, lat]}});
        assert_eq!(found(server, circle).await, [id.to_string()], "rounding moves a point by less than 2 cm");
    }
}

async fn fill_points(server: &Server, points: &[[f64; 2]]) {
    let sources: Vec<String> = points.iter().map(|point| json!({"location": point}).to_string()).collect();
    server.fill("a", &sources.iter().map(String::as_str).collect::<Vec<_>>()).await;
    server.refresh("$a").await;
}

async fn totals_are_counted_as_asked(server: &Server) {
    server.create("a", json!({})).await;
    server.fill("a", &["{}"; 7]).await;
    server.refresh("$a").await;
    let total = async |tracked: Value| {
        let answer = search(server, "$a", json!({"size": 0, "track_total_hits": tracked})).await;
        answer.body["hits"]["total"].clone()
    };
    assert_eq!(total(json!(true)).await, json!({"value": 7, "relation": "eq"}));
    assert_eq!(total(json!(7)).await, json!({"value": 7, "relation": "eq"}));
    assert_eq!(total(json!(5)).await, json!({"value": 5, "relation": "gte"}));
    assert_eq!(total(json!(false)).await, Value::Null);
    let usual = search(server, "$a", Value::Null).await;
    assert_eq!(usual.body["hits"]["total"], json!({"value": 7, "relation": "eq"}));
    assert_eq!(usual.ids().len(), 7);
    assert_eq!(search(server, "$a", json!({"from": 5})).await.ids().len(), 2);
    assert_eq!(count(server).await, 7);
}

async fn documents_that_match_are_counted_over_indices(server: &Server) {
    for (index, lons) in [("a", [10, 20]), ("b", [30, 40])] {
        server.create(index, json!({})).await;
        let sources = lons.map(|lon| json!({"location": [lon, 0]}).to_string());
        server.fill(index, &sources.each_ref().map(String::as_str)).await;
    }
    server.refresh("$*").await;
    let elastic = server.elastic();
    let indices = ["a", "b"].map(|index| server.name(index));
    let corners = json!({"top_left": [15, 1], "bottom_right": [35, -1]});
    let query = json!({"geo_bounding_box": {"location": corners}});
    assert_eq!(scan::count(&elastic, &indices, None, LIMIT).await.unwrap(), 4);
    assert_eq!(scan::count(&elastic, &indices, Some(&query), LIMIT).await.unwrap(), 2);
    assert!(scan::count(&elastic, &[server.name("none")], None, LIMIT).await.is_err());
}

async fn a_search_that_can_not_be_carried_out_says_why(server: &Server) {
    server.create("a", json!({})).await;
    let failed = "search_phase_execution_exception";
    for (body, kind) in [
        (json!({"query": {"no_such_query": {}}}), "parsing_exception"),
        (json!({"no_such_key": 1}), "parsing_exception"),
        (json!({"size": -1}), "illegal_argument_exception"),
        (json!({"size": 10_001}), failed),
        (json!({"from": 9_999, "size": 2}), failed),
        (json!({"search_after": [1]}), failed),
        (json!({"search_after": [1, 2], "sort": ["_doc"]}), failed),
        (json!({"query": {"geo_distance": {"distance": "1km", "nowhere": [0, 0]}}}), failed),
    ] {
        let answer = server.ask("POST", "/$a/_search", body.clone()).await;
        assert_eq!(answer.error(), (400, kind), "{body} {answer:?}");
    }
}

async fn a_search_that_fails_on_some_indices_answers_from_the_others(server: &Server) {
    server.create("a", json!({})).await;
    server.create_mapped("b", json!({}), json!({"enabled": false})).await;
    fill_points(server, &[[0.0, 0.0]]).await;
    let body = json!({"query": {"geo_distance": {"distance": "1km", "location": [0, 0]}}});
    let answer = search(server, "$a,$b", body).await;
    assert_eq!(answer.ids(), ["0"]);
    assert_eq!((&answer.body["_shards"]["total"], &answer.body["_shards"]["failed"]), (&json!(2), &json!(1)));
    let failure = &answer.body["_shards"]["failures"][0];
    assert_eq!(failure["reason"]["type"], "query_shard_exception");
}
