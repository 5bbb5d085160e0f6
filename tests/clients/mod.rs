//! The official clients for Rust, Python and JavaScript, unchanged, on a router: the same few documents, calls and answers for each, on
//! the stand-in (`tests/it`) and on real servers (`tests/real`).
//!
//! Python and JavaScript take part where `dev/clients` has installed their packages (`GEOFOLD_CLIENTS_DIR`).

use std::path::{Path, PathBuf};
use std::process::Command;

use elasticsearch::http::request::JsonBody;
use elasticsearch::http::transport::Transport;
use elasticsearch::{CountParts, Elasticsearch, MsearchParts, SearchParts};
use geofold::base::geo::GeoPoint;
use geofold::geoshard::GeoshardMap;
use serde_json::{Value, json};

const DOCUMENTS: u32 = 40;
/// Degrees of longitude for 100 km at 50° north, nearly.
const STEP: f64 = 1.399;

/// Lines of a `_bulk` request: documents from Cornwall to the Urals, every 100 km, each in the index of its geoshard.
pub fn documents(map: &GeoshardMap, prefix: &str) -> String {
    let line = |n: u32| {
        let (lat, lon) = (50.0, f64::from(n) * STEP);
        let index = format!("{prefix}-{}", map.locate(GeoPoint::new(lat, lon).unwrap()));
        let action = json!({"index": {"_index": index, "_id": format!("d{n}"), "version": 7, "version_type": "external"}});
        let document = json!({"n": n, "name": format!("document {n}"), "location": {"lat": lat, "lon": lon}});
        format!("{action}\n{document}\n")
    };
    (0..DOCUMENTS).map(line).collect()
}

/// What every client has to find. The Elasticsearch of `dev/stack` has no `GET /`, and so no version for the router to return.
pub fn expected(has_version: bool) -> Value {
    let ids = |from: u32, to: u32| (from..to).map(|n| format!("d{n}")).collect::<Vec<_>>();
    json!({
        "has_version": has_version,
        "nearest": ids(0, 5),
        "sources": (0..5).map(|n| json!({"n": n})).collect::<Vec<_>>(),
        "total": 8,
        "count": 11,
        "several": [ids(0, 3), ids(0, 2)],
        "pages": [ids(0, 6), ids(6, 12), ids(12, 18), ids(18, 21)],
        "refused": 400,
    })
}

fn circle(kilometres: u32) -> Value {
    let origin = json!({"lat": 50.0, "lon": 0.0});
    json!({"bool": {"filter": [{"geo_distance": {"distance": format!("{kilometres}km"), "location": origin}}]}})
}

fn ids(answer: &Value) -> Vec<Value> {
    let hits = answer["hits"]["hits"].as_array().unwrap_or_else(|| panic!("no hits: {answer}"));
    hits.iter().map(|hit| hit["_id"].clone()).collect()
}

/// What the client for Rust finds.
pub async fn rust(url: &str, index: &str) -> Value {
    let client = Elasticsearch::new(Transport::single_node(url).unwrap());
    let nearest =
        json!([{"_geo_distance": {"location": {"lat": 50.0, "lon": 0.0}, "order": "asc", "unit": "m"}}]);
    let search = async |body: Value| {
        let answer = client.search(SearchParts::Index(&[index])).body(body).send().await.unwrap();
        answer.error_for_status_code().unwrap().json::<Value>().await.unwrap()
    };
    let info: Value = client.info().send().await.unwrap().json().await.unwrap();
    let found = client
        .search(SearchParts::Index(&[index]))
        ._source_includes(&["n"])
        .body(json!({"query": circle(750), "sort": nearest, "size": 5}))
        .send()
        .await
        .unwrap();
    let found: Value = found.error_for_status_code().unwrap().json().await.unwrap();
    let searches: Vec<JsonBody<Value>> = vec![
        json!({"index": index}).into(),
        json!({"query": circle(250), "sort": nearest}).into(),
        json!({"index": index}).into(),
        json!({"query": circle(450), "sort": nearest, "size": 2}).into(),
    ];
    let several = client.msearch(MsearchParts::None).body(searches).send().await.unwrap();
    let several: Value = several.error_for_status_code().unwrap().json().await.unwrap();
    let (mut pages, mut body) = (Vec::new(), json!({"query": circle(2_050), "sort": nearest, "size": 6}));
    loop {
        let page = search(body.clone()).await;
        let Some(last) = page["hits"]["hits"].as_array().unwrap().last() else { break };
        body["search_after"] = last["sort"].clone();
        pages.push(ids(&page));
    }
    let index_alone = [index];
    let counted = client.count(CountParts::Index(&index_alone)).body(json!({"query": circle(1_050)}));
    let counted: Value = counted.send().await.unwrap().json().await.unwrap();
    let aggregated = json!({"query": {"match_all": {}}, "aggs": {"n": {"terms": {"field": "n"}}}});
    let refused = client.search(SearchParts::Index(&[index])).body(aggregated).send().await.unwrap();
    let hits = found["hits"]["hits"].as_array().unwrap();
    json!({
        "has_version": info["version"]["number"].is_string(),
        "nearest": ids(&found),
        "sources": hits.iter().map(|hit| hit["_source"].clone()).collect::<Vec<_>>(),
        "total": found["hits"]["total"]["value"],
        "count": counted["count"],
        "several": several["responses"].as_array().unwrap().iter().map(ids).collect::<Vec<_>>(),
        "pages": pages,
        "refused": refused.status_code().as_u16(),
    })
}

/// A client in another language.
#[derive(Debug, Clone, Copy)]
pub enum Language {
    Python,
    JavaScript,
}

/// What a client in another language finds; `None`, with a line that says so, where its packages are not installed.
pub fn other(language: Language, url: &str, index: &str) -> Option<Value> {
    let Some(folder) = std::env::var_os("GEOFOLD_CLIENTS_DIR").map(PathBuf::from) else {
        println!("SKIPPED, the client for {language:?}: eval \"$(dev/clients)\" installs it");
        return None;
    };
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
    let mut command = match language {
        Language::Python => {
            let mut python = Command::new(folder.join("python/bin/python"));
            python.arg(scripts.join("search.py"));
            python
        }
        Language::JavaScript => {
            let mut node = Command::new("node");
            node.arg(scripts.join("search.js")).env("NODE_PATH", folder.join("node_modules"));
            node
        }
    };
    let output = command.args([url, index]).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{language:?}: {out}{err}");
    Some(serde_json::from_str(&out).unwrap_or_else(|error| panic!("{language:?}: {error}: {out}{err}")))
}
