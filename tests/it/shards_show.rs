//! `geofold shards show` and `geofold shards diff`, the binary: one map in every form, with and without load.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

const MAP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/map-55.json");

fn shards(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_geofold"));
    command.arg("shards").args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(arguments: &[&str]) -> String {
    let output = shards(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_map_is_shown_as_table_json_geojson_and_picture_without_a_configuration() {
    let table = text(&["show", "--map", MAP]);
    assert!(table.contains("55 geoshards") && table.lines().count() >= 57, "{table}");

    let json: Value =
        serde_json::from_str(&text(&["show", "--map", MAP, "--as", "json", "--prefix", "p"])).unwrap();
    assert_eq!(json["shards"][54]["index"], "p-s54");
    assert_eq!(text(&["show", "--map", MAP, "--json"]), text(&["show", "--map", MAP, "--as", "json"]));

    let geojson: Value = serde_json::from_str(&text(&["show", "--map", MAP, "--as", "geojson"])).unwrap();
    assert_eq!(geojson["features"].as_array().unwrap().len(), 55);

    let svg = text(&["show", "--map", MAP, "--as", "svg"]);
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert_eq!(svg.matches("<title>").count(), 56);
    assert!(svg.contains("around Lagos: ") && table.contains("Lagos") && json.to_string().contains("Lagos"));

    let html = text(&["show", "--map", MAP, "--as", "html"]);
    assert!(html.starts_with("<!doctype html>") && html.ends_with("</html>\n"));
    assert!(!html.contains("http"), "it needs no network");
}

#[test]
fn the_load_of_points_is_shown_in_each_form() {
    let folder = tempfile::tempdir().unwrap();
    let points = folder.path().join("points.csv");
    std::fs::write(&points, "lat,lon,users\n48.85,2.35,3\n48.86,2.36,2\n35.68,139.69,1\n").unwrap();
    let with = |form| {
        let points = points.to_str().unwrap();
        text(&["show", "--map", MAP, "--points", points, "--weight", "2*users", "--as", form])
    };
    let json: Value = serde_json::from_str(&with("json")).unwrap();
    let shards = json["shards"].as_array().unwrap();
    let loads: Vec<(f64, u64)> = shards
        .iter()
        .map(|shard| (shard["load"].as_f64().unwrap(), shard["points"].as_u64().unwrap()))
        .collect();
    let mut known: Vec<_> = loads.into_iter().filter(|(load, _)| *load > 0.0).collect();
    known.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert_eq!(known, [(2.0, 1), (10.0, 2)]);
    assert!(with("table").contains("of mean"));
    assert!(with("geojson").contains("\"load\":10.0"));
    assert!(with("svg").contains("of the mean load, 2 points"));
}

#[test]
fn maps_are_compared_by_area_and_by_load() {
    let same = text(&["diff", MAP, MAP]);
    assert!(same.contains("every place stays in its geoshard"), "{same}");

    let folder = tempfile::tempdir().unwrap();
    let (path, points) = (folder.path().join("new.json"), folder.path().join("points.csv"));
    let changed = std::fs::read_to_string(MAP).unwrap().replace("\"s54\"", "\"s55\"");
    std::fs::write(&path, changed.replace("\"version\": 1", "\"version\": 2")).unwrap();
    std::fs::write(&points, "lat,lon\n-80,10\n48.86,2.36\n").unwrap();
    let json = text(&["diff", MAP, path.to_str().unwrap(), "--points", points.to_str().unwrap(), "--json"]);
    let diff: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&diff["added"][0], &diff["removed"][0]), (&"s55".into(), &"s54".into()));
    assert_eq!((&diff["flows"][0]["from"], &diff["flows"][0]["to"]), (&"s54".into(), &"s55".into()));
    assert_eq!((&diff["moved"]["points"], &diff["total"]["points"]), (&1.into(), &2.into()));
}

#[test]
fn invalid_input_to_show_is_refused() {
    for (arguments, says) in [
        (vec!["show", "--map", "none.json"], "--map: cannot read the geoshard map none.json"),
        (vec!["show", "--prefix", "p"], "--map"),
        (vec!["show", "--map", MAP, "--json", "--as", "svg"], "cannot be used with"),
        (vec!["diff", MAP, "none.json"], "cannot read the geoshard map none.json"),
        (vec!["diff", MAP, MAP, "--points", "none.csv"], "opening none.csv"),
    ] {
        let output = shards(&arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
}
