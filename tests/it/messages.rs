//! What commands say when something is wrong: each message names the mistake and what to do.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rdkafka::message::{Header, OwnedHeaders};

use crate::standins::{GEOFOLD, MAP, Said, Standins, Worker};

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(GEOFOLD);
    command.args(arguments).env_remove("GEOFOLD_CONFIG").stdin(Stdio::null());
    command
}

fn geofold(arguments: &[&str]) -> Said {
    Said::of(&command(arguments).output().unwrap())
}

/// A configuration for servers that are not there.
fn written(folder: &Path, name: &str, kafka: &str, more: &str) -> String {
    let path = folder.join(name);
    let text = format!(
        "[kafka]\n{kafka}\n[elasticsearch]\nurls = [\"http://127.0.0.1:9\"]\n[geoshards]\nmap = {MAP:?}\n{more}"
    );
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

const KAFKA: &str = "brokers = [\"127.0.0.1:9\"]\ntopic = \"t\"";

/// Ends with `code`, and standard error has these words.
fn refuses(said: &Said, code: i32, words: &[&str]) {
    assert_eq!(said.code, Some(code), "{said:?}");
    for word in words {
        assert!(said.err.contains(word), "no {word:?} in {said:?}");
    }
}

#[test]
fn wrong_arguments_are_answered_with_what_to_write() {
    let folder = tempfile::tempdir().unwrap();
    let config = written(folder.path(), "c.toml", KAFKA, "");
    for (arguments, words) in [
        (&["send", "--rate", "0"][..], &["from 1"][..]),
        (&["campaign", "create", "--action", "touch", "--all", "--rate", "0"], &["from 1"]),
        (&["audit", "--touch-rate", "0"], &["from 1"]),
        (&["shards", "locate", "berlin", "0"], &["berlin", "degrees"]),
        (&["campaign", "run", "abc"], &["abc", "campaign list"]),
        (&["campaign", "pause", "abc"], &["abc", "campaign list"]),
        (&["send", "--op", "upsert"], &["upsert", "index, delete, patch, touch, refeed"]),
        (&["campaign", "create", "--action", "delete", "--all"], &["every document", "--yes"]),
        (&["campaign", "create", "--action", "refeed", "--all"], &["[source]"]),
        (&["dead-letters", "show", "17"], &["PARTITION/OFFSET"]),
    ] {
        refuses(&geofold(&[arguments, &["--config", &config]].concat()), 2, words);
    }
}

#[test]
fn wrong_configurations_are_answered_with_key_value_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let topic = "topic = \"t\"";
    for (kafka, more, words) in [
        (
            "brokers = \"127.0.0.1:9\"\ntopic = \"t\"",
            "",
            &["kafka.brokers", "127.0.0.1:9", "[\"host:9092\"]"][..],
        ),
        (
            KAFKA,
            "[admin]\nlisten = \"localhost:9464\"\n",
            &["admin.listen", "localhost:9464", "127.0.0.1:9464"],
        ),
        (
            KAFKA,
            "[campaigns]\nchunk_size = 0\n",
            &["campaigns.chunk_size", "0 is not allowed", "must be 1 to"],
        ),
        (&format!("{KAFKA}\n{topic}"), "", &[":4:", "duplicate key"]),
        (
            &format!("{KAFKA}\n[kafka.properties]\n\"no.such.setting\" = 1"),
            "",
            &["kafka.properties", "no.such.setting"],
        ),
        (
            &format!("{KAFKA}\n[kafka.producer_properties]\n\"linger.ms\" = \"soon\""),
            "",
            &["kafka.producer_properties", "linger.ms", "soon"],
        ),
    ] {
        let config = written(folder.path(), "c.toml", kafka, more);
        for arguments in [["check"], ["run"]] {
            let said = geofold(&[&arguments[..], &["--config", &config]].concat());
            refuses(&said, 2, words);
            assert_eq!(said.err.matches(words[0]).count(), 1, "said once: {said:?}");
        }
    }
    let config = written(folder.path(), "c.toml", KAFKA, "");
    let mut with_variable = command(&["check", "--config", &config]);
    with_variable.env("GEOFOLD_CAMPAIGNS__CHUNK_SIZE", "many");
    refuses(
        &Said::of(&with_variable.output().unwrap()),
        2,
        &["GEOFOLD_CAMPAIGNS__CHUNK_SIZE", "many", "whole number"],
    );
    let mut with_variable = command(&["check", "--config", &config]);
    with_variable.env("GEOFOLD_KAFKA__TOPIC", OsStr::from_bytes(b"t\xff"));
    refuses(&Said::of(&with_variable.output().unwrap()), 2, &["GEOFOLD_KAFKA__TOPIC", "UTF-8"]);

    let latin = folder.path().join("latin.toml");
    fs::write(&latin, b"# caf\xe9\n").unwrap();
    let said = geofold(&["check", "--config", latin.to_str().unwrap()]);
    refuses(&said, 2, &["save it as UTF-8"]);
    assert!(!said.err.contains("permissions"), "{said:?}");
    refuses(&geofold(&["check", "--config", "/nowhere.toml"]), 2, &["/nowhere.toml", "config init"]);
}

#[test]
fn empty_or_missing_map_names_the_command_that_makes_one() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.json");
    fs::write(&empty, "").unwrap();
    for map in [empty, folder.path().join("absent.json")] {
        let config = written(folder.path(), "c.toml", KAFKA, "");
        let text = fs::read_to_string(&config).unwrap().replace(&format!("{MAP:?}"), &format!("{map:?}"));
        fs::write(&config, text).unwrap();
        refuses(
            &geofold(&["shards", "show", "--config", &config]),
            2,
            &[map.to_str().unwrap(), "geofold shards plan"],
        );
    }
}

#[test]
fn columns_with_long_names_are_recognized() {
    let folder = tempfile::tempdir().unwrap();
    let points = folder.path().join("points.csv");
    fs::write(&points, "latitude,longitude\n52.5,13.4\n").unwrap();
    let said = geofold(&["shards", "plan", points.to_str().unwrap()]);
    assert_ne!(said.code, Some(0), "{said:?}");
    assert!(said.err.contains("--lat latitude --lon longitude"), "{said:?}");
}

#[test]
fn init_writes_a_configuration_that_works_and_never_over_one() {
    let world = Standins::start();
    let file = world.folder.path().join("new.toml");
    let file = file.to_str().unwrap();
    let url = world.elasticsearch();
    let init = |brokers: &str| {
        geofold(&[
            "config",
            "init",
            file,
            "--brokers",
            brokers,
            "--topic",
            "t",
            "--elasticsearch",
            &url,
            "--map",
            MAP,
        ])
    };
    let bad = geofold(&[
        "config",
        "init",
        file,
        "--brokers",
        "a:1",
        "--topic",
        "t",
        "--elasticsearch",
        "no url",
        "--map",
        MAP,
    ]);
    assert_eq!(bad.code, Some(2), "{bad:?}");
    assert!(!Path::new(file).exists());
    let done = init(world.brokers());
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.out.contains("the topics t and t-dead-letters have to exist"), "{done:?}");
    let early = geofold(&["check", "--config", file]);
    assert!(early.code == Some(1) && early.out.contains("t-dead-letters"), "{early:?}");
    world.create_topic("t-dead-letters");
    let checked = geofold(&["check", "--config", file]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let before = fs::read_to_string(file).unwrap();
    refuses(&init("other:1"), 2, &["not overwritten"]);
    assert_eq!(fs::read_to_string(file).unwrap(), before);
}

#[test]
fn lines_that_failed_are_named() {
    let world = Standins::start();
    let config = world.write("c.toml", "");
    let lines = world.folder.path().join("lines");
    fs::write(&lines, "a\tpatch\t{}\nb\nc\tupsert\t{}\nd\t{\"name\":1}\ne\ttouch\n").unwrap();
    let lines = lines.to_str().unwrap();
    let said = world.geofold(&config, &["send", lines, "--keep-going"]);
    refuses(
        &said,
        1,
        &[
            "line 2",
            "line 3",
            "\"upsert\" is no operation",
            "line 4 was not delivered: a worker would refuse it",
        ],
    );
    assert!(said.out.contains("2 records delivered") && said.out.contains("3 bad lines"), "{said:?}");
    let said = world.geofold(&config, &["send", lines, "--keep-going", "--unchecked"]);
    assert!(said.out.contains("3 records delivered") && said.out.contains("2 bad lines"), "{said:?}");
}

#[test]
fn campaign_without_documents_has_to_be_confirmed() {
    let world = Standins::start();
    let database = format!("[database]\nurl = \"sqlite:{}/c.sqlite\"\n", world.folder.path().display());
    let config = world.write("c.toml", &database);
    let create = ["campaign", "create", "--action", "touch", "--all"];
    let said = world.geofold(&config, &create);
    refuses(&said, 1, &["--yes", "no document is selected; no campaign was made"]);
    assert_eq!(world.geofold(&config, &["campaign", "list", "--json"]).json(), serde_json::json!([]));
    assert_eq!(world.geofold(&config, &[&create[..], &["--yes"]].concat()).code, Some(0));
}

#[test]
fn stop_of_a_partition_names_offset_and_remedy() {
    let world = Standins::start();
    let config = world.write("c.toml", "");
    world.produce_record("a", Some(r#"{"location":[1,2]}"#), OwnedHeaders::new());
    world.produce_record("b", Some("{"), OwnedHeaders::new());
    let worker = Worker::start(world.folder.path(), &config, &[]);
    let url = format!("http://{}/readyz", worker.address());
    let shown = crate::wait::wait_for("the partition to stop", || {
        let text = reqwest::blocking::get(&url).ok()?.text().ok()?;
        text.contains("bad record").then_some(text)
    });
    for words in ["partition 0", "(offset 1)", "dead_letter.policy", "geofold dead-letters skip"] {
        assert!(shown.contains(words), "no {words:?} in {shown}");
    }
}

/// Answers each request with these bytes.
fn answering(answer: String) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let Ok(mut connection) = connection else { return };
            let _ = connection.read(&mut [0; 4096]);
            let _ = connection.write_all(answer.as_bytes());
        }
    });
    port
}

#[test]
fn web_server_in_place_of_a_broker_is_recognized() {
    let port =
        answering("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned());
    let world = Standins::start();
    let config = world.write("c.toml", "");
    let text = fs::read_to_string(&config).unwrap().replace(world.brokers(), &format!("127.0.0.1:{port}"));
    fs::write(&config, text).unwrap();
    let said = world.geofold(&config, &["check"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.out.contains("an HTTP server answers there"), "{said:?}");
}

#[test]
fn refused_credentials_are_not_a_missing_answer() {
    let body = r#"{"error":{"type":"security_exception","reason":"missing credentials"},"status":401}"#;
    let head = "HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\nconnection: close\r\n";
    let port = answering(format!("{head}content-length: {}\r\n\r\n{body}", body.len()));
    let world = Standins::start();
    let config = world.write("c.toml", "");
    let url = format!("http://127.0.0.1:{port}");
    let text = fs::read_to_string(&config).unwrap().replace(&world.elasticsearch(), &url);
    fs::write(&config, text).unwrap();
    for arguments in [&["check"][..], &["where", "a"], &["audit"], &["shards", "migrate", "--status"]] {
        let said = world.geofold(&config, arguments);
        assert_eq!(said.code, Some(1), "{said:?}");
        let all = format!("{}{}", said.out, said.err);
        assert!(all.contains("elasticsearch.username") && all.contains("api_key"), "{arguments:?}: {said:?}");
        assert!(!all.contains("did not answer"), "{arguments:?}: {said:?}");
    }
}

#[test]
fn record_with_two_operations_is_a_dead_letter() {
    let world = Standins::start();
    world.create_topic("bad");
    let config = world.write("c.toml", "[dead_letter]\npolicy = \"topic\"\ntopic = \"bad\"\n");
    let twice = ["index", "delete"].into_iter().fold(OwnedHeaders::new(), |headers, op| {
        headers.insert(Header { key: "geofold-op", value: Some(op) })
    });
    world.produce_record("a", Some(r#"{"location":[1,2]}"#), twice);
    let worker = Worker::start(world.folder.path(), &config, &[]);
    worker.wait_for_metric("geofold_dead_letters_total{reason=\"bad_op\"}", 1.0);
    worker.stop();
    let shown = world.geofold(&config, &["dead-letters", "show", "0/0"]);
    assert!(shown.out.contains("geofold-op is \"there twice\""), "{shown:?}");
}

#[test]
fn zero_byte_database_is_an_empty_one_and_another_file_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let list = |file: &str, content: &str| {
        fs::write(folder.path().join(file), content).unwrap();
        let database = format!("[database]\nurl = \"sqlite:{file}\"\n");
        let config = written(folder.path(), "c.toml", KAFKA, &database);
        geofold(&["campaign", "list", "--config", &config])
    };
    assert_eq!(list("zero.sqlite", "").code, Some(0));
    refuses(&list("other.sqlite", &"text".repeat(1000)), 1, &["other.sqlite", "not a database"]);
}
