//! The official clients on a router over the stand-in for Elasticsearch.

use geofold::geoshard::GeoshardMap;
use geofold::testkit::ports::free_address;
use reqwest::blocking::Client;

use crate::official_clients::{Language, documents, expected, other, rust};
use crate::standins::{MAP, Standins, Worker, wait_for};

/// The default.
const PREFIX: &str = "geofold";

#[test]
fn official_clients_work_unchanged_on_the_standin() {
    let world = Standins::start();
    let map = GeoshardMap::load(MAP.as_ref()).unwrap();
    let http = Client::new();
    let written = http
        .post(format!("{}/_bulk?refresh=true", world.elasticsearch()))
        .header("content-type", "application/x-ndjson")
        .body(documents(&map, PREFIX));
    let written: serde_json::Value = written.send().unwrap().json().unwrap();
    assert_eq!(written["errors"], false, "{written}");

    let address = free_address().unwrap();
    let config = world.write("route.toml", &format!("[route]\nlisten = \"{address}\"\n"));
    let router = Worker::start_command(&["route"], world.folder.path(), &config, &[]);
    let url = format!("http://{address}");
    wait_for("a ready router", || {
        let answer = http.get(format!("{url}/readyz")).send().ok()?;
        answer.status().is_success().then_some(())
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    assert_eq!(runtime.block_on(rust(&url, PREFIX)), expected(true), "Rust");
    for language in [Language::Python, Language::JavaScript] {
        if let Some(found) = other(language, &url, PREFIX) {
            assert_eq!(found, expected(true), "{language:?}");
        }
    }
    router.stop();
}
