//! Locations that Elasticsearch does not search as they are, from the configuration to a search, on the stand-ins: two fields, and
//! the geometries of Debezium. geofold adds a `geo_point` field, which the index maps and searches use.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use rdkafka::message::OwnedHeaders;
use serde_json::{Value, json};

use crate::standins::{Said, Standins, Worker};
use crate::wait::ask_for;

const LETTERS: &str = "bad";
/// A move takes two seconds on an idle machine; each look at it runs a command or two.
const PATIENCE: Duration = Duration::from_secs(120);

/// Asks until the answer is `Ok`; panics with what was waited for, and what was there instead.
fn wait_until(what: &str, mut ask: impl FnMut() -> Result<(), String>) {
    let mut instead = String::new();
    let there = ask_for(PATIENCE, || ask().map_err(|seen| instead = seen).ok());
    assert!(there.is_some(), "waited {PATIENCE:?} in vain for {what}; instead: {instead}");
}

struct World {
    standins: Standins,
    config: PathBuf,
    worker: Worker,
}

impl World {
    /// With a worker at work.
    fn new(documents: &str) -> Self {
        let more =
            format!("[documents]\n{documents}[dead_letter]\npolicy = \"topic\"\ntopic = \"{LETTERS}\"\n");
        let standins = Standins::start_with(&more);
        standins.create_topic(LETTERS);
        let config = standins.write("geofold.toml", &more);
        let worker = Worker::start(standins.folder.path(), &config, &[]);
        Self { standins, config, worker }
    }

    fn geofold(&self, arguments: &[&str]) -> Said {
        self.standins.geofold(&self.config, arguments)
    }

    fn produce(&self, id: &str, value: &Value) {
        self.standins.produce_record(id, Some(&value.to_string()), OwnedHeaders::new());
    }

    fn post(&self, path: &str, body: String) -> Value {
        let client = reqwest::blocking::Client::new();
        let request = client.post(format!("{}/{path}", self.standins.elasticsearch()));
        let answer = request.header("content-type", "application/x-ndjson").body(body).send().unwrap();
        answer.error_for_status().unwrap().json().unwrap()
    }

    /// Waits until a search around a point finds just these documents.
    fn wait_until_found(&self, circle: &str, ids: &[&str]) {
        wait_until(&format!("{ids:?} at {circle}"), || {
            self.post("_refresh", String::new());
            let found = self.geofold(&["search", "--circle", circle, "--json"]).json();
            let hits = found["hits"].as_array().unwrap();
            let seen: BTreeSet<&str> = hits.iter().map(|hit| hit["id"].as_str().unwrap()).collect();
            (seen == ids.iter().copied().collect()).then_some(()).ok_or_else(|| found.to_string())
        });
    }
}

#[test]
fn documents_with_two_fields_are_found_by_searches_and_move() {
    let world = World::new("location = { lat = \"place.lat\", lon = \"place.lon\" }\npoint = \"point\"\n");
    let place = |lat: f64, lon: &str| json!({"place": {"lat": lat, "lon": lon}});
    world.produce("ada", &place(52.52, "13.4"));
    world.produce("bo", &place(35.68, "139.69"));
    world.wait_until_found("52.52,13.4,1km", &["ada"]);
    world.wait_until_found("35.68,139.69,1km", &["bo"]);
    world.produce("ada", &place(35.68, "139.69"));
    world.wait_until_found("52.52,13.4,1km", &[]);
    world.wait_until_found("35.68,139.69,1km", &["ada", "bo"]);
    let audit = |more: &[&str]| world.geofold(&[&["audit", "--settle", "100ms"], more].concat());
    wait_until("an audit without any doubt", || {
        let said = audit(&[]);
        let is_clean = said.code == Some(0) && !said.err.contains("look wrong");
        is_clean.then_some(()).ok_or_else(|| format!("{said:?}"))
    });

    // Written past geofold: it has a location, but no search finds it there.
    let found = world.geofold(&["where", "ada", "--json", "--settle", "100ms"]).json();
    let copy = &found["copies"][0];
    assert_eq!(copy["belongs"], "here", "{found}");
    let version = (1_u64 << 44) + copy["version"]["offset"].as_u64().unwrap() + 1;
    let action = json!({"index": {"_index": copy["index"], "_id": "ada", "version": version, "version_type": "external_gte"}});
    let answer = world.post("_bulk", format!("{action}\n{}\n", place(35.68, "139.69")));
    assert_eq!(answer["errors"], false, "{answer}");
    world.wait_until_found("35.68,139.69,1km", &["bo"]);
    let wrong = audit(&[]);
    assert!(wrong.code == Some(1) && wrong.out.contains("wrong-point"), "{wrong:?}");
    assert!(wrong.err.contains("1 documents look wrong"), "{wrong:?}");
    let seen = world.geofold(&["where", "ada", "--settle", "100ms"]);
    assert!(seen.out.contains("without the point of its location"), "{seen:?}");
    let repaired = audit(&["--repair"]);
    assert_eq!(repaired.code, Some(0), "{repaired:?}");
    world.wait_until_found("35.68,139.69,1km", &["ada", "bo"]);
    world.worker.stop();

    // The indices were made with the field; one of another name is missing.
    let other = "[documents]\nlocation = { lat = \"place.lat\", lon = \"place.lon\" }\npoint = \"there\"\n";
    let check = world.standins.geofold(&world.standins.write("other.toml", other), &["check"]);
    assert!(check.code == Some(1) && check.out.contains("there is not mapped"), "{check:?}");
}

#[test]
fn geometries_of_debezium_are_found_and_others_become_dead_letters() {
    let world = World::new("location = \"geom\"\npoint = \"point\"\n");
    let geometry = |wkb: &str, srid: u32| json!({"geom": {"wkb": wkb, "srid": srid}});
    world.produce("ada", &geometry("AQEAACDmEAAAzczMzMzMKkAAAAAAAEBKQA==", 4326));
    world.produce("bo", &geometry("AQEAACBzDAAAHHxhMlXeZUB4eqUsQ1xCwA==", 3187));
    world.wait_until_found("52.5,13.4,1km", &["ada"]);
    wait_until("a dead letter that names the SRID", || {
        let said = world.geofold(&["dead-letters", "show", "0/0"]);
        let is_there = said.out.contains("bad_location") && said.out.contains("its SRID is 3187");
        is_there.then_some(()).ok_or_else(|| format!("{said:?}"))
    });
    let check = world.geofold(&["check"]);
    assert!(!check.out.contains("not mapped"), "{check:?}");

    // Without a point of its own, such a geometry is refused, and the reason says what to do.
    let without = world.standins.write("without.toml", "[documents]\nlocation = \"geom\"\n");
    let line = world.standins.folder.path().join("line.ndjson");
    std::fs::write(&line, format!("ada\t{}\n", geometry("AQEAACDmEAAAzczMzMzMKkAAAAAAAEBKQA==", 4326)))
        .unwrap();
    let refused = world.standins.geofold(&without, &["send", line.to_str().unwrap()]);
    assert!(refused.code != Some(0) && refused.err.contains("documents.point"), "{refused:?}");
    let unmapped = world.standins.geofold(&without, &["check"]);
    assert!(unmapped.out.contains("geom is mapped as object"), "{unmapped:?}");
    world.worker.stop();
}
