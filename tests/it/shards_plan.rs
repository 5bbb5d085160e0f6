//! `geofold shards plan`, the binary: from a file of points to a map file, and what it refuses.

use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use geofold::base::geo::GeoPoint;
use geofold::base::random::Random;
use geofold::geoshard::GeoshardMap;
use geofold::geoshard::cities::{CITIES, City};
use geofold::testkit::embedded::elasticsearch::{Standin, StandinOptions};
use serde_json::Value;

fn plan(folder: &Path, arguments: &[&str]) -> Output {
    shards(folder, &[&["plan"], arguments].concat())
}

fn shards(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_geofold"));
    command.arg("shards").args(arguments).current_dir(folder).stdin(Stdio::null()).output().unwrap()
}

fn error(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A few thousand people about the real cities.
fn people(path: &Path) -> Vec<(GeoPoint, f64)> {
    let mut random = Random::new(5);
    let mut people = Vec::new();
    let mut csv = "name,lat,lon,users,queries\n".to_owned();
    for City(name, lat, lon, thousands) in CITIES {
        for n in 0..thousands / 200 {
            let mut off = || (random.share() - 0.5) * 2.0;
            let (lat, lon) = (lat + off(), (lon + off()).clamp(-180.0, 180.0));
            let queries = n % 5;
            writeln!(csv, "\"{name}, {n}\",{lat},{lon},1,{queries}").unwrap();
            people.push((GeoPoint::new(lat, lon).unwrap(), 1.0 + 0.5 * f64::from(queries)));
        }
    }
    std::fs::write(path, csv).unwrap();
    people
}

#[test]
fn a_file_of_points_becomes_a_map_and_its_report_is_what_the_points_say() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let people = people(&folder.join("people.csv"));
    let arguments = [
        "people.csv",
        "--weight",
        "users + 0.5*queries",
        "--min",
        "20",
        "--max",
        "30",
        "--out",
        "map.json",
        "--json",
    ];
    let output = plan(folder, &arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("wrote map.json: version 1, "), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();

    let map = GeoshardMap::load(&folder.join("map.json")).unwrap();
    assert_eq!((map.version(), report["kept"].as_u64()), (1, Some(map.shards().len() as u64)));
    let mut loads = vec![(0.0, 0_u64); map.shards().len()];
    for (point, load) in &people {
        let owner = &mut loads[map.locate_index(*point)];
        *owner = (owner.0 + load, owner.1 + 1);
    }
    for (index, (load, points)) in loads.iter().enumerate() {
        let shard = &report["shards"][index];
        assert_eq!(shard["shard"].as_str(), Some(map.shards()[index].as_str()));
        assert_eq!(
            (shard["load"].as_f64(), shard["points"].as_u64()),
            (Some(*load), Some(*points)),
            "{shard}"
        );
    }
    assert_eq!(report["tried"].as_array().unwrap().len(), 11);

    let first = std::fs::read(folder.join("map.json")).unwrap();
    let again = plan(folder, &[&arguments[..], &["--force"]].concat());
    assert_eq!(again.stdout, output.stdout, "the same input gives the same report");
    assert_eq!(std::fs::read(folder.join("map.json")).unwrap(), first, "and the same map");
}

#[test]
fn a_map_that_is_there_is_not_overwritten_without_force() {
    let folder = tempfile::tempdir().unwrap();
    people(&folder.path().join("people.csv"));
    std::fs::write(folder.path().join("map.json"), "mine").unwrap();
    let refused = error(&plan(folder.path(), &["people.csv", "--out", "map.json"]));
    assert!(refused.contains("map.json exists") && refused.contains("--force"), "{refused}");
    assert_eq!(std::fs::read(folder.path().join("map.json")).unwrap(), b"mine");
}

#[test]
fn a_plan_after_a_map_has_the_next_version_and_keeps_ids_where_the_load_is() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let people = people(&folder.join("people.csv"));
    let made = |arguments: &[&str]| {
        let output = plan(folder, arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    made(&["people.csv", "--min", "20", "--max", "20", "--map-version", "4", "--out", "old.json"]);
    let text =
        made(&["people.csv", "--min", "24", "--max", "24", "--after", "old.json", "--out", "new.json"]);
    assert!(text.contains("version 5: 24 geoshards"), "{text}");
    assert!(text.contains("Tokyo") && !text.contains("<- kept"), "{text}");
    let counts = made(&["people.csv", "--min", "20", "--max", "24", "--counts"]);
    assert_eq!(counts.matches("<- kept").count(), 1, "{counts}");

    let (old, new) = (folder.join("old.json"), folder.join("new.json"));
    let (old, new) = (GeoshardMap::load(&old).unwrap(), GeoshardMap::load(&new).unwrap());
    assert!(old.shards().iter().all(|id| new.shards().contains(id)), "no index becomes useless");
    let stay = people.iter().filter(|(point, _)| old.locate(*point) == new.locate(*point)).count();
    assert!(stay * 3 > people.len() * 2, "{stay} of {} stay", people.len());
}

/// A JSON report, of a command that succeeds.
fn report(folder: &Path, arguments: &[&str]) -> Value {
    let output = shards(folder, &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The share of the load that `diff` says moves.
fn share_moved(folder: &Path, new: &str) -> f64 {
    let diff = report(folder, &["diff", "old.json", new, "--points", "people.csv"]);
    diff["moved"]["load"].as_f64().unwrap() / diff["total"]["load"].as_f64().unwrap()
}

#[test]
fn a_plan_within_a_budget_moves_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    people(&folder.join("people.csv"));
    let by_queries = ["--weight", "queries", "--min", "20", "--max", "20", "--out", "old.json"];
    report(folder, &[&["plan", "people.csv"], &by_queries[..]].concat());

    let after = ["plan", "people.csv", "--after", "old.json"];
    let mut last = f64::INFINITY;
    for (budget, share) in [("2%", 0.02), ("10%", 0.1), ("40%", 0.4)] {
        let file = format!("within-{budget}.json");
        let report = report(folder, &[&after[..], &["--max-moved", budget, "--out", &file]].concat());
        let moved = report["share_moved"].as_f64().unwrap();
        assert!(moved <= share && (moved - share_moved(folder, &file)).abs() < 1e-9, "{report}");
        let even = report["after"]["max_over_mean"].as_f64().unwrap();
        assert!(even < report["before"]["max_over_mean"].as_f64().unwrap() && even <= last, "{report}");
        assert!(report["budget"]["lower_bound"].as_f64().unwrap() <= even, "{report}");
        assert!(!report["changed"].as_array().unwrap().is_empty());
        last = even;
        let map = GeoshardMap::load(&folder.join(&file)).unwrap();
        assert_eq!((map.version(), map.shards().len()), (2, 20));
    }
    let text = shards(folder, &[&after[..], &["--max-moved", "10%"]].concat());
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("% of the load moves") && text.contains("; budget 10%"), "{text}");

    let refused = |more: &[&str]| error(&shards(folder, &[&after[..], more].concat()));
    assert!(
        refused(&["--max-moved", "0%"]).contains("give --max-moved "),
        "{}",
        refused(&["--max-moved", "0%"])
    );
    assert!(refused(&["--max-moved", "5"]).contains("such as 5%"));
    assert!(refused(&["--max-moved", "5%", "--by", "sd"]).contains("cannot be used with"));
    let without = error(&shards(folder, &["plan", "people.csv", "--max-moved", "5%"]));
    assert!(without.contains("--after"), "{without}");
}

#[test]
fn a_geoshard_is_split_and_merged_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    people(&folder.join("people.csv"));
    report(folder, &["plan", "people.csv", "--min", "20", "--max", "20", "--out", "old.json"]);
    let split = report(folder, &["split", "s07", "people.csv", "--after", "old.json", "--out", "split.json"]);
    assert_eq!((split["count_before"].as_u64(), split["count"].as_u64()), (Some(20), Some(21)));
    let moved = split["share_moved"].as_f64().unwrap();
    assert!(moved > 0.01 && moved < 0.03, "half of a twentieth: {split}");
    assert!((moved - share_moved(folder, "split.json")).abs() < 1e-9);

    let merge = ["merge", "s07", "s20", "people.csv", "--after", "split.json", "--out", "merged.json"];
    let merged = report(folder, &merge);
    assert_eq!((merged["count"].as_u64(), merged["version"].as_u64()), (Some(20), Some(3)));
    let [old, new] = ["old.json", "merged.json"].map(|map| GeoshardMap::load(&folder.join(map)).unwrap());
    assert_eq!(old.ranges().collect::<Vec<_>>(), new.ranges().collect::<Vec<_>>());

    for (arguments, says) in [
        (&["split", "s99", "people.csv"][..], "no geoshard \"s99\"; it has s00"),
        (&["split", "s07"], "give a file of points"),
        (&["merge", "s01", "s07"], "cannot merge s01 and s07"),
        (&["merge", "s01", "s01"], "with itself"),
    ] {
        let refused = error(&shards(folder, &[arguments, &["--after", "old.json"]].concat()));
        assert!(refused.contains(says), "{arguments:?}: {refused}");
    }
}

#[test]
fn tracks_tell_which_share_of_writes_crosses_a_border() {
    let folder = tempfile::tempdir().unwrap();
    people(&folder.path().join("people.csv"));
    let tracks = "who,lat,lon\na,48.85,2.35\nb,0,0\na,48.86,2.36\na,35.68,139.69\n";
    std::fs::write(folder.path().join("tracks.csv"), tracks).unwrap();
    let output = plan(folder.path(), &["people.csv", "--tracks", "tracks.csv", "--track-id", "who"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("writes that cross a border: 50.000 % (1 of 2, 2 tracks)"), "{text}");
}

#[test]
fn a_plan_can_be_made_of_the_documents_of_indices() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let standin = runtime.block_on(Standin::start(StandinOptions::default())).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let people = people(&folder.join("people.csv"));
    let client = reqwest::blocking::Client::new();
    let send = |method: reqwest::Method, path: &str, body: String| {
        let request = client.request(method, format!("{}{path}", standin.url()));
        let answer = request.header("content-type", "application/x-ndjson").body(body).send().unwrap();
        assert!(answer.status().is_success(), "{path}: {}", answer.text().unwrap());
    };
    let mappings = r#"{"mappings": {"properties": {"place": {"type": "geo_point"}}}}"#;
    send(reqwest::Method::PUT, "/people-old", mappings.to_owned());
    let mut bulk = String::new();
    for (point, load) in &people {
        let (lat, lon) = (point.lat(), point.lon());
        writeln!(bulk, "{{\"index\":{{}}}}\n{{\"place\":{{\"lat\":{lat},\"lon\":{lon}}},\"load\":{load}}}")
            .unwrap();
    }
    bulk.push_str("{\"index\":{}}\n{\"load\":1}\n");
    send(reqwest::Method::POST, "/people-old/_bulk?refresh=true", bulk);
    let config = format!(
        "[kafka]\nbrokers = [\"localhost:1\"]\ntopic = \"t\"\ngroup_id = \"g\"\n[elasticsearch]\nurls = [{:?}]\n\
         [documents]\nlocation = \"place\"\n[geoshards]\nmap = \"none.json\"\n",
        standin.url()
    );
    std::fs::write(folder.join("geofold.toml"), config).unwrap();

    let counts = ["--min", "20", "--max", "30", "--json"];
    let from_index = plan(folder, &[&["--from-index", "people-*", "--weight", "load"], &counts[..]].concat());
    let said = String::from_utf8_lossy(&from_index.stderr);
    assert!(from_index.status.success(), "{said}");
    assert!(said.contains(&format!("1 of {} documents are left out", people.len() + 1)), "{said}");
    let from_file = plan(folder, &[&["people.csv", "--weight", "users + 0.5*queries"], &counts[..]].concat());
    assert_eq!(from_index.stdout, from_file.stdout, "the same points give the same plan");

    let nothing = plan(folder, &["--from-index", "nothing-*"]);
    assert!(!nothing.status.success());
    let refused = error(&plan(folder, &["people.csv", "--from-index", "people-*"]));
    assert!(refused.contains("cannot be used with"), "{refused}");
}

#[test]
fn input_that_can_not_be_planned_by_is_refused_with_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("bad.csv"), "lat,lon\n1,2\n91,2\n").unwrap();
    std::fs::write(folder.join("few.csv"), "lat,lon\n1,2\n3,4\n").unwrap();
    std::fs::write(folder.join("empty"), "").unwrap();
    for (arguments, says) in [
        (vec!["bad.csv"], "reading bad.csv: line 3: latitude 91"),
        (vec!["empty"], "reading empty: no rows"),
        (vec!["none.csv"], "opening none.csv"),
        (vec!["few.csv"], "points lie in 2 cells only, too few for 40 geoshards"),
        (vec!["few.csv", "--min", "3", "--max", "2"], "cannot try 3 to 2 geoshards"),
        (vec!["few.csv", "--weight", "a**b"], "no part of a weighted sum"),
        (vec!["few.csv", "--min", "1", "--map-version", "0"], "version is 0"),
        (vec!["few.csv", "--finest", "99"], "level 7"),
        (vec!["few.csv", "--after", "bad.csv"], "--after"),
    ] {
        let refused = error(&plan(folder, &arguments));
        assert!(refused.contains(says), "{arguments:?}: {refused}");
    }
}
