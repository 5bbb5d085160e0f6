//! A server to ask, and a set of index names on it that no other case uses.

use std::sync::Arc;
use std::time::Duration;

use geofold::base::clock::BootClock;
use geofold::io::elastic::http::{HttpElastic, HttpOptions};
use serde_json::{Value, json};

/// Of a request. On a busy machine a refresh has taken more than 20 s.
pub const LIMIT: Duration = Duration::from_secs(300);
pub const CONFLICT: (u16, &str) = (409, "version_conflict_engine_exception");
pub const NO_INDEX: &str = "index_not_found_exception";

/// Who is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Standin,
    Elasticsearch,
    OpenSearch,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Standin => "stand-in",
            Self::Elasticsearch => "elasticsearch",
            Self::OpenSearch => "opensearch",
        }
    }
}

/// What OpenSearch calls by another name than Elasticsearch: Elasticsearch's word, then OpenSearch's.
const OPENSEARCH_WORDS: [(&str, &str); 1] = [("document_parsing_exception", "mapper_parsing_exception")];

pub struct Server {
    http: reqwest::Client,
    pub url: String,
    pub prefix: String,
    kind: Kind,
    version: String,
}

/// What came back: status and body.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub body: Value,
    pub text: String,
}

impl Answer {
    /// Status and type of the error.
    pub fn error(&self) -> (u16, &str) {
        (self.status, self.body["error"]["type"].as_str().unwrap_or_default())
    }

    /// Of each item of a bulk: status and type of the error, if there is one.
    pub fn items(&self) -> Vec<(u16, &str)> {
        let items = self.body["items"].as_array().unwrap_or_else(|| panic!("no items: {self:?}"));
        let item = |item: &Value| item.as_object().unwrap().values().next().unwrap().clone();
        let status = |item: &Value| u16::try_from(item["status"].as_u64().unwrap()).unwrap();
        items
            .iter()
            .map(|entry| {
                let kind = entry.as_object().unwrap().values().next().unwrap()["error"]["type"].as_str();
                (status(&item(entry)), kind.unwrap_or_default())
            })
            .collect()
    }

    /// One member of each item of a bulk, by a JSON pointer.
    pub fn of_items(&self, pointer: &str) -> Vec<Value> {
        let items = self.body["items"].as_array().unwrap_or_else(|| panic!("no items: {self:?}"));
        let member = |entry: &Value| {
            let item = entry.as_object().unwrap().values().next().unwrap();
            item.pointer(pointer).cloned().unwrap_or_default()
        };
        items.iter().map(member).collect()
    }

    /// Ids of a search's hits, in their order.
    pub fn ids(&self) -> Vec<&str> {
        let hits = self.body["hits"]["hits"].as_array().unwrap_or_else(|| panic!("no hits: {self:?}"));
        hits.iter().map(|hit| hit["_id"].as_str().unwrap()).collect()
    }
}

impl Server {
    pub fn new(kind: Kind, url: &str, prefix: &str) -> Self {
        let http = reqwest::Client::builder().timeout(LIMIT * 2).build().unwrap();
        let url = url.trim_end_matches('/').to_owned();
        Self { http, url, prefix: prefix.to_owned(), kind, version: String::new() }
    }

    /// The version of its first node.
    pub async fn ask_version(&self) -> String {
        let nodes = self.ask("GET", "/_nodes/http?filter_path=nodes.*.version", Value::Null).await;
        let node = nodes.body["nodes"].as_object().and_then(|nodes| nodes.values().next());
        node.and_then(|node| node["version"].as_str()).unwrap_or_default().to_owned()
    }

    /// The same server, whose version is known.
    pub fn of_version(self, version: &str) -> Self {
        Self { version: version.to_owned(), ..self }
    }

    pub fn is_stand_in(&self) -> bool {
        self.kind == Kind::Standin
    }

    /// Where OpenSearch is truly another, a case asks, and says what geofold makes of it.
    pub fn is_opensearch(&self) -> bool {
        self.kind == Kind::OpenSearch
    }

    /// With which status a number is refused that does not fit 64 bits. OpenSearch 2 takes the fault upon itself.
    pub fn status_of_a_number_that_is_too_large(&self) -> u16 {
        if self.is_opensearch() && self.version.starts_with("2.") { 500 } else { 400 }
    }

    /// This server's name for Elasticsearch's term.
    pub fn word(&self, elasticsearch: &'static str) -> &'static str {
        let other = OPENSEARCH_WORDS.iter().find(|(one, _)| self.is_opensearch() && *one == elasticsearch);
        other.map_or(elasticsearch, |(_, opensearch)| opensearch)
    }

    /// Status and type of the error with which a document is refused.
    pub fn refused(&self) -> (u16, &'static str) {
        (400, self.word("document_parsing_exception"))
    }

    /// geofold's own client, with this case's prefix.
    pub fn elastic(&self) -> HttpElastic {
        HttpElastic::connect(&self.options(), Arc::new(BootClock)).unwrap()
    }

    /// The same, which compresses what it sends.
    pub fn compressing_elastic(&self) -> HttpElastic {
        let options = HttpOptions { compress_requests: true, ..self.options() };
        HttpElastic::connect(&options, Arc::new(BootClock)).unwrap()
    }

    fn options(&self) -> HttpOptions {
        HttpOptions::new(vec![self.url.parse().unwrap()], self.prefix.clone(), LIMIT)
    }

    /// The whole name of an index of this case.
    pub fn name(&self, index: &str) -> String {
        format!("{}-{index}", self.prefix)
    }

    /// A request; `$` in path and body stands for the prefix and a hyphen.
    pub async fn send(&self, method: &str, path: &str, content_type: &str, body: String) -> Answer {
        let own = |text: &str| text.replace('$', &format!("{}-", self.prefix));
        let mut request = self.http.request(method.parse().unwrap(), format!("{}{}", self.url, own(path)));
        if !body.is_empty() {
            request = request.header("content-type", content_type).body(own(&body));
        }
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        Answer { status, body: serde_json::from_str(&text).unwrap_or(Value::Null), text }
    }

    pub async fn ask(&self, method: &str, path: &str, body: Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(method, path, "application/json", body).await
    }

    /// A bulk of these lines, each with a line break behind it.
    pub async fn bulk(&self, lines: &[&str]) -> Answer {
        self.bulk_with("", lines).await
    }

    pub async fn bulk_with(&self, query: &str, lines: &[&str]) -> Answer {
        let body = lines.iter().map(|line| format!("{line}\n")).collect();
        self.send("POST", &format!("/_bulk{query}"), "application/x-ndjson", body).await
    }

    /// Makes an index with these settings, no replica, and a geo_point `location`.
    pub async fn create(&self, index: &str, settings: Value) {
        self.create_mapped(index, settings, json!({"properties": {"location": {"type": "geo_point"}}})).await;
    }

    pub async fn create_mapped(&self, index: &str, mut settings: Value, mappings: Value) {
        settings["index.number_of_replicas"] = json!(0);
        let body = json!({"settings": settings, "mappings": mappings});
        let answer = self.ask("PUT", &format!("/${index}"), body).await;
        assert_eq!((answer.status, &answer.body["acknowledged"]), (200, &json!(true)), "{answer:?}");
    }

    /// Writes documents of these sources, ids `0`, `1`, …, into the index; each must be taken.
    pub async fn fill(&self, index: &str, sources: &[&str]) {
        let lines: Vec<String> = sources
            .iter()
            .enumerate()
            .flat_map(|(id, source)| {
                [format!(r#"{{"index":{{"_index":"${index}","_id":"{id}"}}}}"#), (*source).to_owned()]
            })
            .collect();
        let answer = self.bulk(&lines.iter().map(String::as_str).collect::<Vec<_>>()).await;
        assert_eq!(answer.body["errors"], false, "{answer:?}");
    }

    pub async fn refresh(&self, names: &str) {
        let answer = self.ask("POST", &format!("/{names}/_refresh"), Value::Null).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }

    /// Deletes this case's indices, each by its name, since wildcards may be refused for that.
    pub async fn clean_up(&self) {
        let found = self.ask("GET", "/$*?expand_wildcards=all", Value::Null).await;
        for name in found.body.as_object().into_iter().flatten().map(|(name, _)| name) {
            self.ask("DELETE", &format!("/{name}"), Value::Null).await;
        }
    }
}
