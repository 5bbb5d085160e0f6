//! Commands for the people who run geofold, on the stand-ins: `where`, `status`, `dead-letters`, what `check` says of a group at work
//! and of the placements index, and `audit --sweep`.
//! `tests/real/operators.rs` has what only a real broker shows.

use std::path::{Path, PathBuf};

use geofold::base::geo::GeoPoint;
use geofold::geoshard::GeoshardMap;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use serde_json::{Value, json};

use crate::standins::{Said, Standins, TOPIC, Worker};
use crate::wait::wait_for;

const BERLIN: &str = r#"{"location":{"lat":52.52,"lon":13.4}}"#;
const TOKYO: &str = r#"{"location":{"lat":35.68,"lon":139.69}}"#;
const LETTERS: &str = "bad";
const GROUP: &str = "geofold";

struct World {
    standins: Standins,
    config: PathBuf,
}

impl World {
    /// With a dead-letter topic, or with records that stop their partition.
    fn new(has_letters: bool) -> Self {
        let standins = Standins::start();
        standins.create_topic(LETTERS);
        let more = match has_letters {
            true => format!("[dead_letter]\npolicy = \"topic\"\ntopic = \"{LETTERS}\"\n"),
            false => String::new(),
        };
        let config = standins.write("geofold.toml", &more);
        Self { standins, config }
    }

    fn folder(&self) -> &Path {
        self.standins.folder.path()
    }

    fn worker(&self) -> Worker {
        Worker::start(self.folder(), &self.config, &[])
    }

    fn geofold(&self, arguments: &[&str]) -> Said {
        self.standins.geofold(&self.config, arguments)
    }

    fn produce(&self, id: &str, value: &str) {
        self.standins.produce_record(id, Some(value), OwnedHeaders::new());
    }

    fn client(&self) -> BaseConsumer {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", self.standins.brokers()).set("group.id", GROUP);
        client.set("enable.auto.commit", "false").create().unwrap()
    }

    /// From outside, before any worker has joined the group.
    fn commit(&self, offset: i64) {
        let mut offsets = TopicPartitionList::new();
        offsets.add_partition_offset(TOPIC, 0, Offset::Offset(offset)).unwrap();
        self.client().commit(&offsets, CommitMode::Sync).unwrap();
    }

    /// As if a worker had committed it.
    fn remember(&self, offset: i64) {
        let action = json!({"index": {"_index": "geofold-meta", "_id": format!("watermark/{TOPIC}/0")}});
        self.bulk(&action, &json!({"epoch": 1, "offset": offset}).to_string());
    }

    fn committed(&self) -> i64 {
        let mut asked = TopicPartitionList::new();
        asked.add_partition(TOPIC, 0);
        let answer = self.client().committed_offsets(asked, std::time::Duration::from_secs(20)).unwrap();
        match answer.find_partition(TOPIC, 0).unwrap().offset() {
            Offset::Offset(offset) => offset,
            _ => 0,
        }
    }

    fn wait_until_committed(&self, offset: i64) {
        wait_for(&format!("offset {offset} to be committed"), || (self.committed() == offset).then_some(()));
    }

    fn end(&self, topic: &str) -> i64 {
        self.client().fetch_watermarks(topic, 0, std::time::Duration::from_secs(20)).unwrap().1
    }

    fn located(&self, id: &str, more: &[&str]) -> (Option<i32>, Value) {
        let said = self.geofold(&[&["where", id, "--json", "--settle", "100ms"], more].concat());
        (said.code, said.json())
    }

    /// A copy where no placement names it.
    fn stray_copy(&self, shard: &str, id: &str) {
        let index = format!("geofold-{shard}");
        let action = json!({"index": {"_index": index, "_id": id, "version": 1, "version_type": "external"}});
        self.bulk(&action, BERLIN);
    }

    /// A document as a read by id finds it.
    fn stored(&self, index: &str, id: &str) -> Value {
        let body = json!({"docs": [{"_index": index, "_id": id}]});
        let answer = reqwest::blocking::Client::new()
            .post(format!("{}/_mget", self.standins.elasticsearch()))
            .json(&body)
            .send()
            .unwrap();
        answer.json::<Value>().unwrap()["docs"][0].take()
    }

    fn bulk(&self, action: &Value, source: &str) {
        let answer: Value = reqwest::blocking::Client::new()
            .post(format!("{}/_bulk", self.standins.elasticsearch()))
            .header("content-type", "application/x-ndjson")
            .body(format!("{action}\n{source}\n"))
            .send()
            .unwrap()
            .json()
            .unwrap();
        assert_eq!(answer["errors"], false, "{answer}");
    }
}

fn state(found: &(Option<i32>, Value)) -> (Option<i32>, &str) {
    (found.0, found.1["verdict"]["state"].as_str().unwrap())
}

#[test]
fn where_says_where_a_document_is_and_whether_that_is_right() {
    let world = World::new(true);
    world.produce("ada", BERLIN);
    world.produce("bo", BERLIN);
    assert_eq!(state(&world.located("ada", &[])), (Some(1), "behind"));
    let worker = world.worker();
    world.produce("ada", TOKYO);
    world.wait_until_committed(3);
    let ada = wait_for("ada to be in place", || {
        let found = world.located("ada", &[]);
        (found.0 == Some(0)).then_some(found)
    });
    assert_eq!(state(&ada), (Some(0), "in_place"));
    let report = &ada.1;
    assert_eq!(report["location"], json!({"lat": 35.68, "lon": 139.69}));
    let geoshard = report["belongs"][0]["geoshard"].as_str().unwrap();
    assert_eq!(report["placement"]["geoshard"], geoshard);
    assert_eq!(report["copies"].as_array().unwrap().len(), 1, "{report}");
    assert_eq!(report["copies"][0]["version"], json!({"epoch": 1, "offset": 2}));
    assert_eq!((&report["topic"]["last"]["offset"], &report["topic"]["committed"]), (&json!(2), &json!(3)));
    assert_eq!(state(&world.located("ada", &["--no-topic"])), (Some(0), "in_place"));
    assert_eq!(state(&world.located("nobody", &[])), (Some(0), "absent"));

    // What needs somebody.
    let other = if report["belongs"][0]["geoshard"] == "s00" { "s01" } else { "s00" };
    world.stray_copy(other, "ada");
    let wrong = world.located("ada", &[]);
    assert_eq!(state(&wrong), (Some(1), "wrong"));
    assert!(wrong.1["sentence"].as_str().unwrap().contains("unnamed-copy"), "{}", wrong.1);
    let text = world.geofold(&["where", "ada", "--settle", "100ms"]);
    assert!(text.out.contains("belongs") && text.out.contains("run geofold audit"), "{text:?}");

    world.standins.produce_record("bo", None, OwnedHeaders::new());
    world.wait_until_committed(4);
    assert_eq!(state(&world.located("bo", &[])), (Some(0), "deleted"));
    // It became a dead letter.
    world.produce("cy", "{}");
    world.wait_until_committed(5);
    assert_eq!(state(&world.located("cy", &[])), (Some(1), "not_applied"));
    worker.stop();
    world.produce("bo", BERLIN);
    let behind = world.located("bo", &[]);
    assert_eq!(behind.1["verdict"], json!({"state": "behind", "records": 1, "offset": 5}));
    let unread = world.geofold(&["where", "bo", "--max-records", "0"]);
    assert_eq!(unread.code, Some(2), "{unread:?}");
    let unnamed = world.geofold(&["where", ""]);
    assert_eq!(unnamed.code, Some(2), "{unnamed:?}");
}

#[test]
fn status_names_a_stopped_partition_and_why_and_so_does_check() {
    let world = World::new(false);
    world.produce("ada", BERLIN);
    let worker = world.worker();
    world.wait_until_committed(1);
    let address = worker.address();
    let ask = |more: &[&str]| {
        world.geofold(&[&["status", "--sample", "100ms", "--workers", &address], more].concat())
    };
    // The worker shows a partition's state once a second.
    let well = wait_for("a running partition", || {
        let said = ask(&["--json"]);
        assert_eq!((said.code, &said.json()["findings"]), (Some(0), &json!([])), "{said:?}");
        (said.json()["partitions"][0]["state"] == "running").then(|| said.json())
    });
    let partition = &well["partitions"][0];
    assert_eq!(partition["lag"], 0);
    assert!(partition["owner"].as_str().unwrap().contains("process"), "{partition}");

    world.produce("bad", "{");
    world.produce("bo", BERLIN);
    let stopped = wait_for("the partition to stop", || {
        let said = ask(&[]);
        (said.code == Some(1)).then_some(said)
    });
    assert!(stopped.out.contains("partition 0 is stopped: bad record"), "{stopped:?}");
    // So does the worker's own page of the group, which asks once somebody views it.
    let page = worker.get("/group");
    assert!(page.contains("asked a moment ago, not answered yet"), "{page}");
    let group = wait_for("the group's status", || {
        let status: Value = serde_json::from_str(&worker.get("/group.json")).unwrap();
        assert_eq!(status["problem"], Value::Null);
        (!status["report"].is_null()).then(|| status["report"].clone())
    });
    assert!(
        group["findings"][0].as_str().unwrap().starts_with("partition 0 is stopped: bad record"),
        "{group}"
    );
    assert_eq!(group["workers"][0]["url"], format!("http://{address}"));
    assert_eq!(group["workers"][0]["name"], group["partitions"][0]["owner"], "{group}");
    let page = worker.get("/group");
    assert!(page.contains("<li>partition 0 is stopped: bad record"), "{page}");
    assert!(page.contains(&format!("<a href=\"http://{address}\">")), "{page}");
    // Only the worker knows why.
    let unreached = world.geofold(&["status", "--sample", "100ms", "--json"]);
    assert_eq!(unreached.code, Some(1), "{unreached:?}");
    assert!(unreached.json()["findings"][0].as_str().unwrap().contains("--workers"), "{unreached:?}");
    let named = world.geofold(&["status", "--sample", "100ms", "--workers", "127.0.0.1:9"]);
    assert!(named.code == Some(1) && named.out.contains("does not answer"), "{named:?}");

    // `check` asks the local worker.
    let local = world.standins.write("local.toml", "");
    let text = std::fs::read_to_string(&local).unwrap().replace("127.0.0.1:0", &address);
    std::fs::write(&local, text).unwrap();
    let checked = world.standins.geofold(&local, &["check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    assert!(checked.out.contains("partition 0 is stopped: bad record"), "{checked:?}");
}

#[test]
fn check_and_status_see_a_rewound_group() {
    let world = World::new(true);
    for id in ["ada", "bo", "cy"] {
        world.produce(id, BERLIN);
    }
    world.commit(3);
    world.remember(3);
    assert_eq!(world.geofold(&["check"]).code, Some(0));
    world.commit(1);
    let checked = world.geofold(&["check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    assert!(checked.out.contains("partition 0 has 1 committed, and 3 was"), "{checked:?}");
    let status = world.geofold(&["status", "--sample", "100ms"]);
    assert!(status.code == Some(1) && status.out.contains("the group was rewound"), "{status:?}");
}

#[test]
fn letters_are_listed_shown_and_sent_again_unless_obsolete() {
    let world = World::new(true);
    let own = || OwnedHeaders::new().insert(Header { key: "trace", value: Some("x") });
    world.standins.produce_record("ada", Some("{}"), own());
    world.standins.produce_record("bo", Some("{}"), OwnedHeaders::new());
    world.produce("bo", BERLIN);
    let worker = world.worker();
    world.wait_until_committed(3);
    let listed = world.geofold(&["dead-letters", "list", "--json"]).json();
    assert_eq!((&listed["matching"], &listed["by_reason"]), (&json!(2), &json!({"no_location": 2})));
    assert_eq!(listed["letters"][0]["origin"]["first_offset"], 0, "{listed}");
    let text = world.geofold(&["dead-letters", "list", "--id", "ada", "--since", "1h"]);
    assert!(text.out.contains("no_location  ada  (t partition 0 offset 0)"), "{text:?}");
    assert!(world.geofold(&["dead-letters", "list", "--reason", "bad_key"]).out.contains("no dead letters"));
    let shown = world.geofold(&["dead-letters", "show", "0/0"]);
    assert!(shown.out.contains("header  trace: x") && shown.out.ends_with("{}\n"), "{shown:?}");
    assert_eq!(world.geofold(&["dead-letters", "show", "0/99"]).code, Some(1));

    // Nothing is chosen.
    assert_eq!(world.geofold(&["dead-letters", "replay"]).code, Some(2));
    let end = world.end(TOPIC);
    let dry = world.geofold(&["dead-letters", "replay", "--all", "--dry-run"]);
    assert!(dry.out.contains("1 to send, 1 obsolete"), "{dry:?}");
    assert_eq!(world.end(TOPIC), end);
    let replayed = world.geofold(&["dead-letters", "replay", "--all"]);
    assert_eq!(replayed.code, Some(0), "{replayed:?}");
    assert!(replayed.out.contains("1 sent, 1 obsolete, 0 not sent"), "{replayed:?}");
    assert!(replayed.out.contains("bo: a newer write exists, at offset 2"), "{replayed:?}");
    assert_eq!(world.end(TOPIC), end + 1);
    // Its own record is now the newer write.
    let again = world.geofold(&["dead-letters", "replay", "0/0"]);
    assert!(again.out.contains("0 sent, 1 obsolete"), "{again:?}");
    // Still bad: a letter with the record's own headers again, and none of geofold's twice.
    world.wait_until_committed(end + 1);
    assert_eq!(world.geofold(&["dead-letters", "list", "--json"]).json()["matching"], 3);
    let shown = world.geofold(&["dead-letters", "show", "0/2", "--json"]).json();
    assert_eq!(shown["headers"], json!([{"key": "trace", "value": "x"}]));
    let missing = world.geofold(&["dead-letters", "replay", "0/99"]);
    assert!(missing.code == Some(1) && missing.err.contains("0/99"), "{missing:?}");
    worker.stop();
    let none = World { config: world.standins.write("none.toml", ""), ..world };
    let unset = none.geofold(&["dead-letters", "list"]);
    assert!(unset.code == Some(2) && unset.err.contains("--dead-letter-topic"), "{unset:?}");
}

/// The embedded broker takes no offset from outside for a group that ever had a member: `tests/real/operators.rs` stops the workers.
#[test]
fn record_that_stops_a_partition_is_skipped_while_the_group_has_no_member() {
    let world = World::new(false);
    world.produce("ada", BERLIN);
    world.produce("bad", "{");
    world.produce("bo", BERLIN);
    world.commit(1);
    let skip = |offset: &str| {
        let to =
            ["--partition", "0", "--offset", offset, "--why", "not JSON", "--dead-letter-topic", LETTERS];
        world.geofold(&[&["dead-letters", "skip"], &to[..]].concat())
    };
    let other = skip("2");
    assert!(other.code == Some(1) && other.err.contains("is at offset 1, not 2"), "{other:?}");
    assert_eq!((world.committed(), world.end(LETTERS)), (1, 0), "nothing was written");
    let skipped = skip("1");
    assert_eq!(skipped.code, Some(0), "{skipped:?}");
    assert_eq!((world.committed(), world.end(LETTERS)), (2, 1));
    let listed = world.geofold(&["dead-letters", "list", "--json", "--dead-letter-topic", LETTERS]).json();
    let letter = &listed["letters"][0];
    assert_eq!((&letter["reason"], &letter["detail"]), (&json!("skipped_by_operator"), &json!("not JSON")));

    let worker = world.worker();
    world.wait_until_committed(3);
    assert_eq!(state(&world.located("bo", &[])), (Some(0), "in_place"));
    assert!(skip("3").err.contains("nothing to skip"));
    world.produce("bad", "{");
    worker.wait_for("partition stopped");
    let refused = skip("3");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.err.contains("Stop all workers"), "{refused:?}");
    assert_eq!((world.committed(), world.end(LETTERS)), (3, 1), "nothing was written");
    worker.stop();
}

#[test]
fn repairs_and_campaigns_warn_where_a_bad_document_would_stop_its_partition() {
    for has_letters in [true, false] {
        let world = World::new(has_letters);
        let database = format!("sqlite:{}", world.folder().join("campaigns.sqlite").display());
        let text = std::fs::read_to_string(&world.config).unwrap();
        std::fs::write(&world.config, format!("{text}[database]\nurl = {database:?}\n")).unwrap();
        for (arguments, what) in [
            (&["audit", "--repair"][..], "a document that cannot be placed"),
            (&["audit", "--adopt"], "a document that cannot be placed"),
            (
                &["campaign", "create", "--action", "touch", "--all", "--yes"],
                "a document that cannot be fetched or written",
            ),
        ] {
            let said = world.geofold(arguments);
            assert_eq!(said.code, Some(0), "{said:?}");
            let warning =
                format!("warning: dead_letter.policy is \"stop\": {what} stops its partition, and with it");
            assert_eq!(said.err.contains(&warning), !has_letters, "{arguments:?}: {said:?}");
        }
        let deletes = ["campaign", "create", "--action", "delete", "--all", "--yes"];
        let said = world.geofold(&deletes);
        assert!(!said.err.contains("dead_letter.policy"), "a delete is never refused: {said:?}");
    }
}

#[test]
fn adopting_an_index_says_that_workers_may_start() {
    let world = World::new(true);
    let map = GeoshardMap::load(Path::new(crate::standins::MAP)).unwrap();
    let berlin = map.locate(GeoPoint::new(52.52, 13.4).unwrap()).as_str();
    for id in ["ada", "bo"] {
        world.stray_copy(berlin, id);
    }
    let adopted = world.geofold(&["audit", "--adopt", "--settle", "100ms"]);
    assert_eq!(adopted.code, Some(0), "{adopted:?}");
    let expected = "2 documents in 2 copies: all 2 that had no placement are adopted; workers may start\n";
    assert!(adopted.out.ends_with(expected), "{adopted:?}");
    let again = world.geofold(&["audit", "--settle", "100ms"]);
    assert_eq!(again.out, "2 documents in 2 copies, 2 placements: nothing is wrong\n", "{again:?}");
}

#[test]
fn a_worker_that_is_told_to_stop_warns_of_nothing_and_its_log_begins_with_one_line() {
    let world = World::new(true);
    let worker = world.worker();
    world.produce("ada", BERLIN);
    world.wait_until_committed(1);
    let log = worker.stop();
    let (first, rest) = log.split_once('\n').unwrap();
    assert!(first.contains("geofold starts") && first.contains("topic=\"t\" group=\"geofold\""), "{first}");
    assert!(!rest.contains("[kafka]") && !log.contains(" WARN "), "{log}");
}

#[test]
fn placements_index_is_made_and_checked_as_configured() {
    let placements = |lines: &str| format!("[placements]\n{lines}\n");
    let as_made = placements("primaries = 4\nreplicas = 0\nrefresh_interval = \"0s\"");
    let standins = Standins::start_with(&as_made);
    let asked = |lines: &str, arguments: &[&str]| {
        let config = standins.write("geofold.toml", lines);
        standins.geofold(&config, arguments)
    };
    let url = format!("{}/geofold-placements/_settings?flat_settings=true", standins.elasticsearch());
    let found: Value = reqwest::blocking::get(url).unwrap().json().unwrap();
    let settings = &found["geofold-placements"]["settings"];
    for (setting, value) in
        [("number_of_shards", "4"), ("number_of_replicas", "0"), ("refresh_interval", "-1")]
    {
        assert_eq!(settings[format!("index.{setting}")], value, "{settings}");
    }
    let checked = asked(&as_made, &["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(checked.out.contains("placements: 0 placements, 0 B, in 4 primaries\n"), "{checked:?}");
    assert!(!checked.out.contains("index geofold-placements:"), "{checked:?}");

    let how = "(docs/operations.md, \"More primaries for placements\")";
    for (lines, message) in [
        (
            "primaries = 8",
            format!("is 4, but placements.primaries is 8: split the index {how}, or set the key to 4\n"),
        ),
        ("", "index.number_of_shards is 4, but placements.primaries is 1: set the key to 4\n".to_owned()),
        (
            "primaries = 4\nreplicas = 2",
            "index.number_of_replicas is 0, but the key placements.replicas asks for 2: change the index"
                .to_owned(),
        ),
    ] {
        for command in [&["check"][..], &["shards", "create"]] {
            let said = asked(&placements(lines), command);
            assert_eq!(said.code, Some(0), "a worker can do without: {said:?}");
            assert!(said.out.contains(&message), "{lines}: {said:?}");
        }
    }
    for lines in ["primaries = 0", "primaries = 1025", "replicas = -1", "refresh_interval = \"10ms\""] {
        let said = asked(&placements(lines), &["check"]);
        let key = lines.split_once(' ').unwrap().0;
        assert!(said.code == Some(2) && said.err.contains(key), "{lines}: {said:?}");
    }
    let page = include_str!("../../docs/operations.md");
    assert!(page.contains("\n## More primaries for placements\n"), "{how} names no part of it");
}

/// Whatever shard a placement is in.
#[test]
fn only_placements_from_before_a_mark_are_swept_from_several_primaries() {
    let standins = Standins::start_with("[placements]\nprimaries = 4\n");
    standins.create_topic(LETTERS);
    let config = standins.write("geofold.toml", "[placements]\nprimaries = 4\n");
    let world = World { standins, config };
    let worker = world.worker();
    let mut records = 0;
    let mut produce = |ids: std::ops::Range<u64>, value: Option<&str>| {
        for n in ids {
            world.standins.produce_record(&format!("d{n}"), value, OwnedHeaders::new());
            records += 1;
        }
        world.wait_until_committed(records);
    };
    let sweep = || {
        let said = world.geofold(&["audit", "--sweep", "--json", "--settle", "100ms"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        said.json()["swept"].as_u64()
    };
    produce(0..30, Some(BERLIN));
    produce(0..30, None);
    wait_for("leftovers of deleted documents to be cleared", || {
        let leftovers =
            |n| world.stored("geofold-placements", &format!("d{n}"))["_source"]["leftovers"].clone();
        (0..30).all(|n| leftovers(n).as_array().is_none_or(Vec::is_empty)).then_some(())
    });
    assert_eq!(sweep(), None, "only a mark is made");
    // As if that had been long ago.
    let mut marks = world.stored("geofold-meta", &format!("sweep/{TOPIC}"))["_source"].clone();
    let mark = marks["marks"][0]["writes"].as_u64().unwrap();
    let long_ago = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() - 8 * 24 * 60 * 60;
    (marks["marks"][0]["at"], marks["marks"][0]["committed"]) = (json!(long_ago), json!(long_ago));
    world.bulk(
        &json!({"index": {"_index": "geofold-meta", "_id": format!("sweep/{TOPIC}")}}),
        &marks.to_string(),
    );

    // One write each: in the shard that had counted least it gets a number that others had given out before.
    produce(30..60, None);
    let seq_no = |n: u64| world.stored("geofold-placements", &format!("d{n}"))["_seq_no"].as_u64();
    let (before, after): (Vec<_>, Vec<_>) = ((0..30).map(seq_no).collect(), (30..60).map(seq_no).collect());
    let old = before.iter().filter(|seq_no| seq_no.unwrap() < mark).count() as u64;
    assert!(old > 0 && old < 30, "shards have counted differently: {mark}, {before:?}");
    assert!(after.iter().all(|seq_no| seq_no.unwrap() >= mark), "{mark}: {after:?}");
    let lowest = after.iter().min().unwrap().unwrap();
    assert!(
        before.iter().any(|seq_no| seq_no.unwrap() > lowest),
        "no later number in another shard: {before:?}"
    );
    assert_eq!(sweep(), Some(old));
    let left = (0..60).filter(|&n| seq_no(n).is_some()).count() as u64;
    assert_eq!(left, 60 - old);
    assert!((30..60).all(|n| seq_no(n).is_some()), "deleted after the mark");
    worker.stop();
}
